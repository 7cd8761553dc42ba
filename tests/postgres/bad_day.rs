//! A bad day of a real database: ten times as many clients within a second, a source of response times that dies for two minutes
//! while the load grows. In: the bed. Out: figures, and what must hold of them. Called by the harness, by its name alone: it takes
//! seven minutes.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use gleaner_test_support::beds;
use gleaner_test_support::bench::Running;
use gleaner_test_support::pair::Pair;

use super::bed::{Bed, Meter, Strangers, prepare};
use super::{TARGET_MS, apply, decision, granted_percent, pair_of};

/// Time between two decisions, and the outage after which a source's application is released.
const INTERVAL_S: u32 = 5;
const OUTAGE_S: u32 = 60;
/// What a report is made to take.
const REPORT_MS: f64 = 1.2;
/// Clients: few, many, and what is a usual load. Each thinks 100 ms.
const FEW: u32 = 6;
const MANY: u32 = 60;
const USUAL: u32 = 34;
/// Slow intervals are those above so many times the target.
const SLOW: f64 = 1.25;

/// An interval: its mean response time, and the share of CPU at its end, in percent of a core.
#[derive(Debug, Clone, Copy)]
struct Interval {
    mean_ms: f64,
    share: f64,
}

struct Day {
    pair: Pair,
    bed: Bed,
    _machine: MutexGuard<'static, ()>,
}

impl Day {
    fn new(test: &str) -> Option<Self> {
        if !beds::wanted(test) {
            return None;
        }
        let machine = beds::machine();
        let bed = match prepare(REPORT_MS, Strangers::Outweighed) {
            Ok(bed) => bed,
            Err(why) => {
                gleaner_test_support::skipped!("{test}: {why}");
                return None;
            }
        };
        let controller = format!(
            "control_interval_s = {INTERVAL_S}\nresponse_outage_s = {OUTAGE_S}\nevaluation_interval_s = {INTERVAL_S}\n\
             profile_period_s = {INTERVAL_S}\n"
        );
        let pair = pair_of(&bed.group, &controller);
        apply(&pair, &bed.databases[0], "balance", "");
        Some(Self { pair, bed, _machine: machine })
    }

    /// Some intervals with so many clients; what each was like.
    fn phase(&self, what: &str, clients: u32, intervals: usize) -> Vec<Interval> {
        let database = &self.bed.databases[0];
        let _load: Running = database.load(clients);
        let mut meter = Meter::new(database);
        let mut seen = Vec::new();
        let started = Instant::now();
        for number in 1..=intervals {
            let until = Duration::from_secs(u64::from(INTERVAL_S)) * u32::try_from(number).unwrap();
            std::thread::sleep(until.saturating_sub(started.elapsed()));
            let mean_ms = meter.mean_ms(INTERVAL_S.into());
            let share = granted_percent(&decision(&self.pair, database.name)).unwrap_or(f64::NAN);
            seen.push(Interval { mean_ms, share });
        }
        let words: Vec<String> = seen.iter().map(|own| format!("{:.1}/{:.0}", own.mean_ms, own.share)).collect();
        eprintln!("{what}, {clients} clients (ms/share): {}", words.join(" "));
        seen
    }
}

fn worst(intervals: &[Interval]) -> f64 {
    intervals.iter().map(|own| own.mean_ms).fold(0.0, f64::max) / TARGET_MS
}

fn slow(intervals: &[Interval]) -> usize {
    intervals.iter().filter(|own| own.mean_ms > SLOW * TARGET_MS).count()
}

fn mean(intervals: &[Interval], value: impl Fn(&Interval) -> f64) -> f64 {
    intervals.iter().map(value).sum::<f64>() / intervals.len().max(1) as f64
}

fn mean_ms(intervals: &[Interval]) -> f64 {
    mean(intervals, |own| own.mean_ms)
}

#[test]
fn a_bad_day_of_a_database_a_surge() {
    let Some(day) = Day::new("a_bad_day_of_a_database_a_surge") else { return };
    let before = day.phase("before", FEW, 8);
    let surge = day.phase("surge", MANY, 12);
    let after = day.phase("after", FEW, 5);
    eprintln!(
        "a surge: {} of 12 intervals above {SLOW} of the target, worst {:.1} times; share {:.0} % of a core before, {:.0} % in the \
         last five; after it {} slow intervals, worst {:.1} times",
        slow(&surge),
        worst(&surge),
        before.last().unwrap().share,
        mean(&surge[7..], |own| own.share),
        slow(&after),
        worst(&after)
    );
    assert!(day.pair.events().contains("surge_relieved"), "nobody saw a surge");
    // Settled, it is no slower than what it was at once: a machine that is busy makes all of it slower alike.
    assert!(slow(&surge[7..]) <= 2, "the surge does not end");
}

#[test]
fn a_bad_day_of_a_database_whose_source_dies() {
    let Some(day) = Day::new("a_bad_day_of_a_database_whose_source_dies") else { return };
    let database = &day.bed.databases[0];
    let before = day.phase("before", FEW, 8);
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gleaner'";
    database.administer("ALTER ROLE gleaner NOLOGIN");
    database.administer(ended);
    let held = day.phase("blind", FEW, 4);
    let grown = day.phase("blind", USUAL, 20);
    database.administer("ALTER ROLE gleaner LOGIN");
    let back = day.phase("its source is back", USUAL, 11);
    eprintln!(
        "a dead source: {:.1} ms before; blind {:.1} ms; blind with {USUAL} clients {} of 20 intervals above {SLOW} of the target, \
         worst {:.1} times, {:.1} ms in the second half; back {} of 11, worst {:.1} times, {:.1} ms in the last five, share \
         {:.0} % of a core",
        mean_ms(&before[4..]),
        mean_ms(&held),
        slow(&grown),
        worst(&grown),
        mean_ms(&grown[10..]),
        slow(&back),
        worst(&back),
        mean_ms(&back[6..]),
        mean(&back[6..], |own| own.share)
    );
    let events = day.pair.events();
    assert!(events.contains("application_released"), "it was not released");
    // Released, it may have all that the controller could give it: back, it is no slower by more than the target allows.
    assert!(mean_ms(&grown[10..]) < SLOW * TARGET_MS, "it starves while nobody sees it");
    assert!(slow(&back[6..]) <= 2, "it starves after its source is back");
}
