//! One deadline run in detail: job, mix, deadline in seconds.
use gleaner_common::job::{Goal, SizingPolicy};
use gleaner_simulator::cluster::simulate;
use gleaner_simulator::reproduce::jobs::PaperJob;
use gleaner_simulator::scenario::ClusterScenario;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let job = PaperJob::ALL.into_iter().find(|job| job.name() == args[1]).unwrap_or(PaperJob::Pi);
    let mix = args[2].parse().unwrap_or(1);
    let within_s: f64 = args[3].parse().unwrap_or(0.0);
    let goal = if within_s > 0.0 { Goal::Deadline { within_s } } else { Goal::Cost { budget: None } };
    let scenario = ClusterScenario {
        seed: mix,
        foreground_seed: mix,
        job: job.profile(),
        goal,
        sizing: SizingPolicy::Adaptive,
        ..ClusterScenario::default()
    };
    let Ok(run) = simulate(&scenario) else { return };
    for d in &run.decisions {
        println!("{:5} {:?} left {:.3} {}", d.at.0 / 1_000, d.bound, d.remaining.value(), d.reason);
        for c in &d.candidates {
            if c.size.abs_diff(d.size) <= 3 {
                println!(
                    "      {:3} {:8.0} {:8.0} {:6.0} s {}",
                    c.size,
                    c.potential.percent(),
                    c.predicted.percent(),
                    c.completion_s,
                    c.meets_goal
                );
            }
        }
    }
    println!("{:.0} s of {within_s}", run.elapsed_s);
    println!("{:?}", run.sizes.iter().map(|s| (s.at_s, s.volunteers)).collect::<Vec<_>>());
}
