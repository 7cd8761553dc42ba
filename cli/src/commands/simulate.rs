//! `gleaner simulate`. In: a scenario that a user wrote. Out: what its job took and cost. Called by [`super`].

use std::path::Path;

use anyhow::anyhow;
use gleaner_experiments::baselines::sizing::Scenario;
use gleaner_simulator::cluster::simulate;

use crate::documents::{print, read_document};
use crate::exit::End;
use crate::format;

pub(super) fn run(path: &Path, json: bool) -> anyhow::Result<End> {
    let scenario: Scenario = read_document(path)?;
    let run = simulate(&scenario).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    if json {
        print(&serde_json::to_string(&run)?)?;
    } else {
        let mut last = None;
        for decision in &run.decisions {
            if last != Some(decision.size) {
                let at_s = decision.at.0 as f64 / 1_000.0;
                print(&format!("{:>12}  {}", format::seconds(at_s), decision.reason))?;
            }
            last = Some(decision.size);
        }
        let end = if run.completed { "done" } else { "NOT done at the time limit" };
        print(&format!(
            "{end} after {}: ${:.2}, {:.0} Wh, {:.1} volunteers in the mean",
            format::seconds(run.elapsed_s),
            run.cost,
            run.energy_wh,
            run.mean_volunteers
        ))?;
        for violation in &run.rejected {
            print(&format!("rejected by the checker: {violation}"))?;
        }
    }
    Ok(if run.completed && run.rejected.is_empty() { End::Good } else { End::Failed })
}
