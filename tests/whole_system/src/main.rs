//! Runs seeds of the whole-system simulation. In: which seeds. Out: which of them fail and why, and an exit code.
//! Started by `cargo xtask seeds`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use gleaner_whole_system::world;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

/// Runs the whole system under seeded faults, on a virtual clock.
///
/// A seed that fails is named; `--seed N` runs it again and prints what happens. Exit codes: 0 all rules held, 1 some
/// rule was broken, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "whole-system", version)]
struct Arguments {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// One seed alone, with what happens in it.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Run every seed twice; one whose runs differ fails, as it could not be replayed.
    #[arg(long)]
    twice: bool,
    /// Threads; as many as there are CPUs without it.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Folder for the made-up machines' files; best in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    folder: PathBuf,
    /// The sums as JSON.
    #[arg(long)]
    json: bool,
}

/// Seeds of a hundred that must have tried what they were to. Measured: 80 of 100; in the others no volunteer ran.
const TRIED_PERCENT: u64 = 75;
/// And in which a posture must have been tightened for the harm of a volunteer. Measured: 9 of 60; in most a volunteer does not run for long enough.
const TIGHTENED_PERCENT: u64 = 4;

/// What came of all seeds. What is counted in a seed is added up only where the seed tried what it was to.
#[derive(Debug, Default)]
struct Sums {
    seeds: u64,
    /// Seeds that count: a volunteer ran, and the ceilings that the application asks for were written and put back.
    counted: u64,
    /// Seeds in which harm changed a posture, and seeds in which it tightened one.
    held: [u64; 2],
    trials: u64,
    checks: u64,
    messages: u64,
    virtual_s: f64,
    faults: BTreeMap<&'static str, u64>,
    failed: Vec<(u64, Vec<String>)>,
}

/// Runs a seed, or with `--twice` two times. A panic is a failure like any other.
fn run(seed: u64, arguments: &Arguments) -> (Option<world::Outcome>, Vec<String>) {
    let (outcome, mut breaches) = run_once(seed, arguments);
    if let Some(one) = outcome.as_ref().filter(|_| arguments.twice && breaches.is_empty()) {
        let (other, others_breaches) = run_once(seed, arguments);
        breaches.extend(others_breaches);
        if other.is_some_and(|other| (other.digest, other.lasted) != (one.digest, one.lasted)) {
            breaches.push("two runs of it differ".to_owned());
        }
    }
    (outcome, breaches)
}

fn run_once(seed: u64, arguments: &Arguments) -> (Option<world::Outcome>, Vec<String>) {
    match catch_unwind(|| world::run(seed, &arguments.folder, arguments.seed.is_some())) {
        Ok(Ok(outcome)) => {
            let breaches = outcome.breaches.clone();
            (Some(outcome), breaches)
        }
        Ok(Err(error)) => (None, vec![format!("the bed cannot be made in {}: {error:#}", arguments.folder.display())]),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (None, vec![format!("panicked: {}", text.unwrap_or_default())])
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds: Range<u64> = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    };
    let cpus = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = arguments.threads.unwrap_or_else(cpus).max(1);
    let (next, sums, began) = (AtomicU64::new(seeds.start), Mutex::new(Sums::default()), Instant::now());
    let bar = ProgressBar::new(seeds.end - seeds.start);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left") {
        bar.set_style(style);
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let (outcome, breaches) = run(seed, &arguments);
                    let mut sums = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    sums.seeds += 1;
                    if let Some(outcome) = outcome.filter(|outcome| outcome.untried.is_empty()) {
                        sums.counted += 1;
                        sums.held[0] += u64::from(outcome.followed.changes > 0);
                        sums.held[1] += u64::from(outcome.followed.tightened > 0);
                        sums.trials += outcome.followed.trials;
                        sums.checks += outcome.checks;
                        sums.messages += outcome.messages;
                        sums.virtual_s += outcome.lasted as f64 / 1e3;
                        outcome.faults.into_iter().for_each(|(kind, n)| *sums.faults.entry(kind).or_default() += n);
                    }
                    if !breaches.is_empty() {
                        bar.suspend(|| eprintln!("seed {seed} fails: {}", breaches.join("; ")));
                        sums.failed.push((seed, breaches));
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let sums = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report(&arguments, &sums, began.elapsed().as_secs_f64());
    let least = |percent: u64| sums.seeds * percent / 100;
    let enough =
        arguments.seed.is_some() || (sums.counted >= least(TRIED_PERCENT) && sums.held[1] >= least(TIGHTENED_PERCENT));
    if !enough {
        eprintln!(
            "fewer than {TRIED_PERCENT} % of the seeds tried what they were to, or fewer than {TIGHTENED_PERCENT} % \
             tightened a posture"
        );
    }
    if sums.failed.is_empty() && enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(arguments: &Arguments, sums: &Sums, took_s: f64) {
    let failed: Vec<u64> = sums.failed.iter().map(|(seed, _)| *seed).collect();
    if arguments.json {
        let all = json!({
            "seeds": sums.seeds, "counted": sums.counted, "first_seed": arguments.seed.unwrap_or(arguments.from), "failed": failed,
            "checks": sums.checks, "messages": sums.messages, "virtual_s": sums.virtual_s, "took_s": took_s,
            "faults": sums.faults, "posture_changed": sums.held[0], "posture_tightened": sums.held[1], "trials": sums.trials,
        });
        println!("{all}");
        return;
    }
    let injected: u64 = sums.faults.values().sum();
    println!("{} seeds in {took_s:.0} s, {} failed", sums.seeds, failed.len());
    println!(
        "{} counted of {}, in which a volunteer ran and the ceilings asked for were written and put back:",
        sums.counted, sums.seeds
    );
    println!(
        "{:.1} virtual hours, {} messages, {injected} faults, {} checks",
        sums.virtual_s / 3_600.0,
        sums.messages,
        sums.checks,
    );
    let [changed, tightened] = sums.held;
    println!(
        "{changed} seeds in which harm changed a posture, {tightened} of them tightened one; {} trials",
        sums.trials
    );
    for (kind, count) in &sums.faults {
        println!("{count:>8} {kind}");
    }
    for seed in failed.iter().take(20) {
        println!("again: whole-system --seed {seed}");
    }
}
