//! How long a year of leases of a cloud of Chameleon's size takes, with one forecaster and one preemption policy. In: nothing; the leases are
//! generated. Out: the seconds of each run, on the terminal. Called by hand: `cargo run --release -p gleaner-experiments --example year`.
#![expect(clippy::disallowed_methods, reason = "it is run by hand, and says how long it took")]

use std::error::Error;
use std::sync::Mutex;
use std::time::Instant;

use gleaner_experiments::chisim::{Options, reproduce};
use gleaner_planner::reservations::forecast::Forecaster;
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_simulator::leases::CloudSize;

/// The runs, in the order in which they are played.
const RUNS: [&str; 4] = ["leases alone", "greedy, least core hours", "rolling median, least core hours", "ours"];

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options {
        forecasters: vec![Forecaster::RollingMedian],
        preemptions: vec![Preemption::LeastCoreHours],
        estimate_errors: Vec::new(),
        size: CloudSize { days: 365, ..CloudSize::PAPER },
        ..Options::default()
    };
    let (began, ends_s) = (Instant::now(), Mutex::new(vec![0.0]));
    let ended = |_: &str, _: usize, _: usize| {
        if let Ok(mut ends_s) = ends_s.lock() {
            ends_s.push(began.elapsed().as_secs_f64());
        }
    };
    reproduce(&options, &ended)?;
    let ends_s = ends_s.lock().map_err(|error| error.to_string())?;
    for (name, times) in RUNS.iter().zip(ends_s.windows(2)) {
        println!("{:6.2} s  {name}", times[1] - times[0]);
    }
    println!("{:6.2} s  everything, with the forecasts walked through slot by slot", began.elapsed().as_secs_f64());
    Ok(())
}
