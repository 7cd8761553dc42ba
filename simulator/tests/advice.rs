//! Whether advice holds. Hosts have users who come and go. The advice learns for a day. On the next day every promise
//! for ten minutes is compared with what was really free. The advice knows only the past.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where it fails, and tells its figures")]

use gleaner_planner::advice::{Basis, History, Question};
use gleaner_planner::forecast::{ForecastSettings, ResidualForecaster};
use gleaner_simulator::foreground::{Session, SessionTrace};
use gleaner_simulator::random::Random;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

const HOSTS: u64 = 12;
const DAY_S: usize = 86_400;
const FOR_S: usize = 600;
const RISKS: [f64; 3] = [0.1, 0.05, 0.01];

/// A place at which users sit, one after another, with the lengths of stay that were measured and pauses as long.
struct Seat {
    random: Random,
    user: Option<SessionTrace>,
    changes_in_s: f64,
}

impl Seat {
    fn new(mut random: Random) -> Self {
        let changes_in_s = random.uniform() * 3_600.0;
        Self { random, user: None, changes_in_s }
    }

    fn next(&mut self) -> f64 {
        self.changes_in_s -= 1.0;
        if self.changes_in_s <= 0.0 {
            let session = Session::ALL[self.random.below(Session::ALL.len())];
            let (mean, deviation) = session.statistics().reservation_s;
            self.changes_in_s = self.random.normal_at_least(mean, deviation, 600.0);
            self.user = match self.user {
                Some(_) => None,
                None => Some(SessionTrace::new(session, self.random.seed())),
            };
        }
        self.user.as_mut().and_then(Iterator::next).unwrap_or(0.0)
    }
}

/// Promises by risk and window, and what was really free, over one host's second day; whether every promise of the
/// smallest risk was seen rather than stretched.
struct Run {
    promised: Vec<[f64; 3]>,
    free: Vec<f64>,
    all_seen: bool,
}

/// One host of four cores with four seats.
fn run(seed: u64, host: u64, learn_s: usize) -> Run {
    let capacity = CoreShare::from_cores(4);
    let mut seats: Vec<Seat> = (0..4).map(|seat| Seat::new(Random::part(seed, host * 100 + seat))).collect();
    let mut forecaster = ResidualForecaster::new(ForecastSettings::default());
    let mut history = History::new();
    let mut run = Run { promised: Vec::new(), free: Vec::new(), all_seen: true };
    let mut used = 0.0;
    for second in 0..learn_s + DAY_S {
        if second >= learn_s && second % FOR_S == 0 {
            if second > learn_s {
                run.free.push(capacity.percent() - used / FOR_S as f64);
            }
            used = 0.0;
            let forecast = *forecaster.forecast().cpu.value().unwrap();
            let promise = |risk| history.promise(&Question { for_s: FOR_S as f64, risk }, capacity, forecast).unwrap();
            run.promised.push(RISKS.map(|risk| promise(risk).0.percent()));
            run.all_seen &= matches!(promise(RISKS[2]).1, Basis::Observed { .. });
        }
        let demand: f64 = seats.iter_mut().map(Seat::next).sum();
        used += demand;
        let demand = CoreShare::clamped(demand);
        forecaster.observe(capacity, Some(demand), None, 1.0);
        let expected = forecaster.forecast().cpu.value().map(|cpu| cpu.expected);
        history.sample(Timestamp(second as u64 * 1_000), 1.0, capacity, Some(demand), expected);
    }
    run.free.push(capacity.percent() - used / FOR_S as f64);
    run
}

/// Part of the windows in which less was free than promised, by risk; the same of the fleet's sum; and the part of what
/// was free that was promised.
fn judge(runs: &[Run]) -> ([f64; 3], [f64; 3], [f64; 3]) {
    let windows = runs[0].free.len();
    let all = (runs.len() * windows) as f64;
    let broken = |risk: usize| {
        let of = |run: &Run| run.promised.iter().zip(&run.free).filter(|(p, free)| p[risk] > **free + 1e-6).count();
        runs.iter().map(of).sum::<usize>() as f64 / all
    };
    let sums = |risk: usize, window: usize| {
        let promised: f64 = runs.iter().map(|run| run.promised[window][risk]).sum();
        (promised, runs.iter().map(|run| run.free[window]).sum::<f64>())
    };
    let fleet = |risk: usize| {
        (0..windows).filter(|window| sums(risk, *window).0 > sums(risk, *window).1 + 1e-6).count() as f64
            / windows as f64
    };
    let offered = |risk: usize| {
        let (promised, free) =
            (0..windows).map(|window| sums(risk, window)).fold((0.0, 0.0), |(a, b), (p, f)| (a + p, b + f));
        promised / free
    };
    let of_each = [0, 1, 2];
    (of_each.map(broken), of_each.map(fleet), of_each.map(offered))
}

fn runs(seed: u64, learn_s: usize) -> Vec<Run> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..HOSTS).map(|host| scope.spawn(move || run(seed, host, learn_s))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn promises_hold_in_as_many_held_out_windows_as_they_say() {
    let seed = 11;
    let runs = runs(seed, DAY_S);
    let (broken, fleet, offered) = judge(&runs);
    println!("seed {seed}, learnt a day: broken {broken:?} at {RISKS:?}; the sum {fleet:?}; offered {offered:?}");
    assert!(runs.iter().all(|run| run.all_seen), "a day is enough for a risk of 1 % over ten minutes");
    for place in 0..3 {
        assert!(broken[place] <= RISKS[place], "{broken:?} at {RISKS:?}");
        assert!(fleet[place] <= RISKS[place], "the sum: {fleet:?}");
        assert!(offered[place] > 0.5, "advice that promises nothing never breaks: {offered:?}");
    }
}

#[test]
fn what_two_hours_cannot_show_is_stretched_and_holds_too() {
    let seed = 12;
    let runs = runs(seed, 7_200);
    let (broken, fleet, offered) = judge(&runs);
    println!("seed {seed}, learnt two hours: broken {broken:?} at {RISKS:?}; the sum {fleet:?}; offered {offered:?}");
    assert!(runs.iter().all(|run| !run.all_seen));
    assert!(broken[2] <= RISKS[2] && fleet[2] <= RISKS[2], "{broken:?}, {fleet:?}");
}
