//! Cost and energy of each of the papers' jobs over all sizes, for calibrating their profiles
//! ([`gleaner_experiments::jobs`]). In: optionally the name of a job whose decisions are printed too. Out: for each
//! job, a line per size, and one for each adaptive sizing. Run by hand:
//! `cargo run --release -p gleaner-experiments --example survey`.
#![expect(clippy::disallowed_methods, reason = "it is run by hand, and says how long it took")]

use gleaner_experiments::baselines::sizing::{Scenario, Sizing};
use gleaner_experiments::jobs::PaperJob;
use gleaner_experiments::pool::run_all;
use gleaner_types::job::Goal;

fn main() {
    let begin = std::time::Instant::now();
    for job in PaperJob::ALL {
        let scenario = |sizing, goal| Scenario { job: job.profile(), sizing, goal, ..Scenario::default() };
        let mut all: Vec<Scenario> = (0..=36)
            .step_by(2)
            .map(|volunteers| scenario(Sizing::Fixed { volunteers }, Goal::Cost { budget: None }))
            .collect();
        all.push(scenario(Sizing::Adaptive, Goal::Cost { budget: None }));
        all.push(scenario(Sizing::Adaptive, Goal::Energy));
        let runs = match run_all(&all, &|_, _| {}) {
            Ok(runs) => runs,
            Err(error) => {
                println!("{error}");
                return;
            }
        };
        println!("{} (paper: {:?})", job.name(), job.survey());
        for (index, run) in runs.iter().enumerate() {
            let what = if index < 19 { format!("{}", index * 2) } else { "adaptive".into() };
            println!(
                "{what:>9} {:>6.1} min ${:.2} {:>5.0} Wh  {:>4.1} volunteers {}",
                run.elapsed_s / 60.0,
                run.cost,
                run.energy_wh,
                run.mean_volunteers,
                run.rejected.first().map_or("", String::as_str)
            );
            if index >= 19 {
                let sizes: Vec<String> =
                    run.sizes.iter().map(|size| format!("{}:{}", size.at_s, size.volunteers)).collect();
                println!("          {}", sizes.join(" "));
                if std::env::args().nth(1).as_deref() == Some(job.name()) {
                    for decision in &run.decisions {
                        println!("{} {:?} {}", decision.at.0 / 1_000, decision.bound, decision.reason);
                        for c in decision.candidates.iter().step_by(3) {
                            println!(
                                "   {} {:.0} {:.0} {:.0} s {} {:?}",
                                c.size,
                                c.potential.percent(),
                                c.predicted.percent(),
                                c.completion_s,
                                c.cost,
                                c.energy_wh
                            );
                        }
                    }
                }
            }
        }
    }
    println!("{:.1} s", begin.elapsed().as_secs_f64());
}
