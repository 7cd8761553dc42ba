//! A foreground that measures its own slowdown, as a separate process. In: an interactive session. Out: the session,
//! replayed as short requests of fixed CPU work, and how long each took. Started by the demo as
//! `gleaner daemon foreground-load`.
//!
//! Each second the session's demand is cut into requests, spread evenly over the second on one thread per CPU. A
//! request's time counts from when it was due, so it includes waiting for a CPU.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gleaner_daemon::output::note;
use gleaner_simulator::foreground::{Session, SessionTrace};
use serde::{Deserialize, Serialize};

/// CPU time of a request on an idle machine. Chosen: what a person notices when it doubles a few times.
const REQUEST: Duration = Duration::from_millis(5);

/// Largest share of a second that requests may fill, so that a burst does not wait for itself.
const FULLEST: f64 = 0.8;

#[derive(Debug, Parser)]
struct Arguments {
    /// Seed of the traces.
    #[arg(long)]
    seed: u64,
    /// How long to replay.
    #[arg(long)]
    seconds: u32,
    /// Rounds of work in a request; 0 finds out and prints it.
    #[arg(long)]
    rounds: u64,
    /// File for the result, as JSON.
    #[arg(long)]
    output: PathBuf,
}

/// Response times of the requests of a replay, in milliseconds, sorted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Responses {
    pub(crate) sorted_ms: Vec<f64>,
}

impl Responses {
    pub(crate) fn mean_ms(&self) -> f64 {
        self.sorted_ms.iter().sum::<f64>() / (self.sorted_ms.len().max(1) as f64)
    }

    /// The time that a share of the requests stays within.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let last = self.sorted_ms.len().saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
        let index = ((last as f64) * share).round() as usize;
        self.sorted_ms.get(index).copied().unwrap_or(0.0)
    }
}

/// Replays a session, as its own command line says, and writes what its requests took.
#[must_use]
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(2);
        }
    };
    let responses = replay(&arguments);
    let written = serde_json::to_vec(&responses)
        .map_err(std::io::Error::from)
        .and_then(|text| std::fs::File::create(&arguments.output)?.write_all(&text));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("foreground-load: failed to write {}: {error}", arguments.output.display()));
            ExitCode::FAILURE
        }
    }
}

fn replay(arguments: &Arguments) -> Responses {
    let threads = u64::try_from(cpus()).unwrap_or(1);
    let start = Instant::now() + Duration::from_millis(100);
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let seed = arguments.seed.wrapping_mul(1_000).wrapping_add(thread);
            let (seconds, rounds) = (arguments.seconds, arguments.rounds);
            std::thread::spawn(move || one_thread(start, seconds, rounds, seed))
        })
        .collect();
    let mut sorted_ms: Vec<f64> = workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect();
    sorted_ms.sort_by(f64::total_cmp);
    Responses { sorted_ms }
}

/// One CPU's share of the mix: the sessions take turns by seed, so that several threads make a mix.
fn one_thread(start: Instant, seconds: u32, rounds: u64, seed: u64) -> Vec<f64> {
    let session = Session::ALL[usize::try_from(seed % 4).unwrap_or(0)];
    let mut times_ms = Vec::new();
    for (second, percent) in (0..seconds).zip(SessionTrace::new(session, seed)) {
        let begin = start + Duration::from_secs(second.into());
        for due in due_times(percent) {
            let due = begin + due;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            work(rounds);
            times_ms.push(due.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    times_ms
}

/// When the requests of a second with this demand are due.
fn due_times(percent: f64) -> impl Iterator<Item = Duration> {
    let busy_s = (percent / 100.0).clamp(0.0, FULLEST);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred at most")]
    let requests = (busy_s / REQUEST.as_secs_f64()).round() as u32;
    (0..requests).map(move |request| Duration::from_secs(1) * request / requests.max(1))
}

/// Work that no compiler can leave out.
fn work(rounds: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..rounds {
        state = std::hint::black_box(state.rotate_left(5).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ round);
    }
}

/// Rounds that make up a request on this machine now: the quickest of several tries, since others only slow one down.
pub(crate) fn calibrate() -> u64 {
    let rounds = 2_000_000;
    let fastest = (0..10).map(|_| {
        let start = Instant::now();
        work(rounds);
        start.elapsed()
    });
    let per_round_s = fastest.min().map_or(1e-9, |time| time.as_secs_f64() / rounds as f64).max(1e-12);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below the limit")]
    let needed = (REQUEST.as_secs_f64() / per_round_s) as u64;
    needed
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_fill_the_demand_and_never_a_whole_second() {
        assert_eq!(due_times(50.0).count(), 100);
        assert_eq!(due_times(0.0).count(), 0);
        assert_eq!(due_times(100.0).count(), 160);
        let due: Vec<_> = due_times(1.0).collect();
        assert_eq!(due, [Duration::ZERO, Duration::from_millis(500)]);
    }

    #[test]
    fn quantiles_by_hand() {
        let responses = Responses { sorted_ms: (1..=100).map(f64::from).collect() };
        assert!((responses.mean_ms() - 50.5).abs() < 1e-9);
        assert!((responses.quantile_ms(0.95) - 95.0).abs() < 1.1);
        assert!(Responses::default().mean_ms().abs() < 1e-9 && Responses::default().quantile_ms(0.5).abs() < 1e-9);
    }
}
