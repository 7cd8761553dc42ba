//! Runs many scenarios on all CPUs. In: scenarios. Out: their results, in the order of the scenarios whichever thread
//! ran them. Called by [`crate::rhic`], by [`crate::sharing`] and by
//! the example `survey`.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gleaner_simulator::cluster::{ClusterRun, ScenarioError, simulate};
use gleaner_simulator::scenario::{ClusterScenario, SizingChoice};

/// Runs all scenarios; results in their order. `progress` is told how many are done, from any thread.
///
/// # Errors
/// The first [`ScenarioError`] by order.
pub fn run_all<S: SizingChoice + Sync>(
    scenarios: &[ClusterScenario<S>],
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<ClusterRun>, ScenarioError> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<ClusterRun, ScenarioError>>>> = Mutex::new(vec![None; scenarios.len()]);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(scenarios.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(index) else { return };
                    let result = simulate(scenario);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, scenarios.len());
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Every index below the length was taken by exactly one thread, and each stored its result.
    results.into_iter().flatten().collect()
}
