//! A bad day of a real database: ten times as many clients within a second, a source of response times that dies for two minutes
//! while the load grows, and a time without clients in which the volunteer works. In: the bed. Out: figures, and what must hold of
//! them. Called by the harness, by its name alone: it takes eight minutes.

use std::time::{Duration, Instant};

use gleaner_test_support::bench::{Running, text};
use gleaner_test_support::pair::{HOST, Pair};

use super::bed::{Database, Meter, hog, prepare};
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

/// An interval: its mean response time, and the share of CPU and the volunteer's CPU at its end, in percent of a core.
#[derive(Debug, Clone, Copy)]
struct Interval {
    mean_ms: Option<f64>,
    share: f64,
    volunteer: f64,
}

struct Bed {
    pair: Pair,
    databases: [Database; 2],
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(test: &str) -> Option<Self> {
        if !gleaner_test_support::beds::wanted(test) {
            return None;
        }
        let (folder, databases, group) = match prepare(REPORT_MS) {
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
        let pair = pair_of(&group, &controller);
        apply(&pair, &databases[0], "balance", "");
        Some(Self { pair, databases, _folder: folder })
    }

    /// Some intervals with so many clients; what each was like.
    fn phase(&self, what: &str, clients: u32, intervals: usize) -> Vec<Interval> {
        let database = &self.databases[0];
        let _load: Option<Running> = (clients > 0).then(|| database.load(clients));
        let mut meter = Meter::new(database);
        let mut seen = Vec::new();
        let started = Instant::now();
        for number in 1..=intervals {
            let until = Duration::from_secs(u64::from(INTERVAL_S)) * u32::try_from(number).unwrap();
            std::thread::sleep(until.saturating_sub(started.elapsed()));
            let mean_ms = meter.mean_ms(clients > 0, INTERVAL_S.into());
            let share = granted_percent(&decision(&self.pair, database.name)).unwrap_or(f64::NAN);
            let volunteer = self.pair.hosts()[0]["report"]["volunteer"]["cpu"]["value"].as_f64().unwrap_or(0.0);
            seen.push(Interval { mean_ms, share, volunteer });
        }
        let words: Vec<String> = seen
            .iter()
            .map(|own| {
                let mean = own.mean_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
                format!("{mean}/{:.0}/{:.0}", own.share, own.volunteer)
            })
            .collect();
        eprintln!("{what}, {clients} clients (ms/share/volunteer): {}", words.join(" "));
        seen
    }
}

fn worst(intervals: &[Interval]) -> f64 {
    intervals.iter().filter_map(|own| own.mean_ms).fold(0.0, f64::max) / TARGET_MS
}

fn slow(intervals: &[Interval]) -> usize {
    intervals.iter().filter(|own| own.mean_ms.is_some_and(|ms| ms > SLOW * TARGET_MS)).count()
}

fn mean(intervals: &[Interval], value: impl Fn(&Interval) -> f64) -> f64 {
    intervals.iter().map(value).sum::<f64>() / intervals.len().max(1) as f64
}

fn mean_ms(intervals: &[Interval]) -> f64 {
    mean(intervals, |own| own.mean_ms.unwrap_or(0.0))
}

#[test]
fn a_bad_day_of_a_database_a_surge() {
    let Some(bed) = Bed::new("a_bad_day_of_a_database_a_surge") else { return };
    let _hog = hog();
    let before = bed.phase("before", FEW, 12);
    let surge = bed.phase("surge", MANY, 15);
    let after = bed.phase("after", FEW, 8);
    eprintln!(
        "a surge: {} of 15 intervals above {SLOW} of the target, worst {:.1} times; share {:.0} % of a core before, {:.0} % in the \
         last five; after it {} slow intervals, worst {:.1} times",
        slow(&surge),
        worst(&surge),
        before.last().unwrap().share,
        mean(&surge[10..], |own| own.share),
        slow(&after),
        worst(&after)
    );
    assert!(bed.pair.events().contains("surge_relieved"), "nobody saw a surge");
    // Settled, it is no slower than what it was at once: a machine that is busy makes all of it slower alike.
    assert!(slow(&surge[10..]) <= 2, "the surge does not end");
}

#[test]
fn a_bad_day_of_a_database_whose_source_dies() {
    let Some(bed) = Bed::new("a_bad_day_of_a_database_whose_source_dies") else { return };
    let _hog = hog();
    let database = &bed.databases[0];
    let before = bed.phase("before", FEW, 12);
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gleaner'";
    database.administer("ALTER ROLE gleaner NOLOGIN");
    database.administer(ended);
    let held = bed.phase("blind", FEW, 4);
    let grown = bed.phase("blind", USUAL, 20);
    database.administer("ALTER ROLE gleaner LOGIN");
    let back = bed.phase("its source is back", USUAL, 14);
    eprintln!(
        "a dead source: {:.1} ms before; blind {:.1} ms; blind with {USUAL} clients {} of 20 intervals above {SLOW} of the target, \
         worst {:.1} times, {:.1} ms in the second half; back {} of 14, worst {:.1} times, {:.1} ms in the last five, share \
         {:.0} % of a core",
        mean_ms(&before[6..]),
        mean_ms(&held),
        slow(&grown),
        worst(&grown),
        mean_ms(&grown[10..]),
        slow(&back),
        worst(&back),
        mean_ms(&back[9..]),
        mean(&back[9..], |own| own.share)
    );
    let events = bed.pair.events();
    assert!(events.contains("application_released"), "it was not released");
    // Released, it may have all that the controller could give it: back, it is no slower by more than the target allows.
    assert!(mean_ms(&grown[10..]) < SLOW * TARGET_MS, "it starves while nobody sees it");
    assert!(slow(&back[9..]) <= 2, "it starves after its source is back");
}

#[test]
fn a_bad_day_of_a_database_without_clients() {
    let Some(bed) = Bed::new("a_bad_day_of_a_database_without_clients") else { return };
    let work = bed.pair.bench.write("work.sh", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done\n");
    bed.pair.bench.write("tasks.txt", &format!("sh {}\n", work.display()).repeat(2_000));
    let submitted = bed.pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]);
    assert!(submitted.status.success(), "{}: {}", HOST, text(&submitted.stderr));
    let before = bed.phase("before", USUAL, 16);
    let idle = bed.phase("idle", 0, 10);
    let back = bed.phase("back", USUAL, 10);
    let volunteer = |intervals: &[Interval]| mean(intervals, |own| own.volunteer);
    eprintln!(
        "left idle: {:.1} ms before beside a volunteer that uses {:.0} % of a core; idle, it uses {:.0} %; back {} of 10 intervals \
         above {SLOW} of the target, worst {:.1} times, {:.1} ms in the last five beside {:.0} %",
        mean_ms(&before[8..]),
        volunteer(&before[8..]),
        volunteer(&idle[2..]),
        slow(&back),
        worst(&back),
        mean_ms(&back[5..]),
        volunteer(&back[5..])
    );
    assert!(volunteer(&idle[2..]) > volunteer(&before[8..]), "what is left idle is not harvested");
    assert!(slow(&back[5..]) <= 2, "what was harvested is not given back");
}
