//! A bad day of a real database: ten times as many clients within a second, a source of response times that dies for two minutes
//! while the load grows, and a time without clients in which the volunteer works. In: the bed. Out: figures, and what must hold of
//! them. Called by the harness, by its name alone: it takes eight minutes.

use std::time::{Duration, Instant};

use gleaner_test_support::bench::{Running, text};
use gleaner_test_support::pair::{HOST, Pair};

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

/// An interval: its mean response time, and the share of CPU and the volunteer's CPU at its end, in percent of a core.
#[derive(Debug, Clone, Copy)]
struct Interval {
    mean_ms: Option<f64>,
    share: f64,
    volunteer: f64,
}

struct Day {
    pair: Pair,
    bed: Bed,
}

impl Day {
    fn new(test: &str) -> Option<Self> {
        if !gleaner_test_support::beds::wanted(test) {
            return None;
        }
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
        Some(Self { pair, bed })
    }

    /// Some intervals with so many clients; what each was like.
    fn phase(&self, what: &str, clients: u32, intervals: usize) -> Vec<Interval> {
        let database = &self.bed.databases[0];
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

#[test]
fn a_bad_day_of_a_database_without_clients() {
    let Some(mut day) = Day::new("a_bad_day_of_a_database_without_clients") else { return };
    // Here the volunteer is the third user.
    day.bed.third = None;
    let work = day.pair.bench.write("work.sh", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done\n");
    day.pair.bench.write("tasks.txt", &format!("sh {}\n", work.display()).repeat(2_000));
    let submitted = day.pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]);
    assert!(submitted.status.success(), "{}: {}", HOST, text(&submitted.stderr));
    let before = day.phase("before", USUAL, 10);
    let idle = day.phase("idle", 0, 8);
    let back = day.phase("back", USUAL, 8);
    let volunteer = |intervals: &[Interval]| mean(intervals, |own| own.volunteer);
    eprintln!(
        "left idle: {:.1} ms before beside a volunteer that uses {:.0} % of a core; idle, it uses {:.0} %; back {} of 8 intervals \
         above {SLOW} of the target, worst {:.1} times, {:.1} ms in the last five beside {:.0} %",
        mean_ms(&before[5..]),
        volunteer(&before[5..]),
        volunteer(&idle[2..]),
        slow(&back),
        worst(&back),
        mean_ms(&back[3..]),
        volunteer(&back[3..])
    );
    assert!(volunteer(&idle[2..]) > volunteer(&before[5..]), "what is left idle is not harvested");
    assert!(slow(&back[3..]) <= 2, "what was harvested is not given back");
}
