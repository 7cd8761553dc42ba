//! What is judged of a run. In: response times and what each interval was like, the decisions, the same with fixed shares. Out:
//! how many settled intervals are on target, why the others are not, and a verdict that is Gleaner's fault or the machine's, not
//! either. Called by the tests beside it.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::bed::{Measured, Seen, median};
use super::{ATTEMPTS, CEILING_PERCENT, FLOOR_PERCENT, MISSED, TARGET_MS};

/// A settled interval is on target from and up to so much of it.
const ON_TARGET: (f64, f64) = (0.6, 1.25);
/// A share is at a bound if it is no farther from it, in percent of a core.
const AT_BOUND: f64 = 1.0;
/// A share of which so much is used is needed. Chosen: less is an under-loaded share, which the balance may shrink (Table 4.2).
const NEEDED: f64 = 0.5;
/// Of a share of which so much is used little can be taken, whatever was asked for. Chosen: a queue for it takes four times as long
/// as its service alone.
const USED_UP: f64 = 0.75;
/// An interval is disturbed if strangers have more of the CPUs, or a report takes so many times the usual CPU, or so much less.
const STRANGERS: f64 = 0.2;
const STEADY: f64 = 1.25;

/// On which side of the target a response time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Faster,
    On,
    Slower,
}

impl Side {
    fn of(mean_ms: f64) -> Self {
        match mean_ms / TARGET_MS {
            part if part < ON_TARGET.0 => Self::Faster,
            part if part > ON_TARGET.1 => Self::Slower,
            _ => Self::On,
        }
    }
}

/// Settled intervals of a run, of both databases.
#[derive(Debug, Default)]
pub(super) struct Tally {
    on: usize,
    faster: usize,
    slower: usize,
    /// Why intervals were off target, where there is a reason.
    told: BTreeMap<&'static str, usize>,
    /// Those off target without one: faster, slower.
    untold: [usize; 2],
    /// Those in which the machine was not steady, on target or not.
    disturbed: usize,
}

impl Tally {
    /// Without decisions nothing has a reason but the machine.
    pub(super) fn of(measured: &Measured, decisions: &[Vec<Value>; 2]) -> Self {
        let whole = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64) * 100.0;
        let (mut own, mut offset) = (Self::default(), 0);
        for (phase, seen) in measured.phases.iter().zip(&measured.seen) {
            for (database, means) in phase.iter().enumerate() {
                let from = measured.settling.min(means.len());
                let usual_ms = median(seen[from..].iter().filter_map(|seen| seen.report_ms[database]));
                for index in from..means.len() {
                    // What was in force when the interval began, or from some time in it on.
                    let in_force = (offset + index).saturating_sub(1)..=offset + index;
                    // One that is still there an interval later is no decision of that interval.
                    let is_new = |at: &usize| {
                        let number = |at: usize| decisions[database].get(at).map(|decision| &decision["number"]);
                        *at == 0 || number(*at) != number(at - 1)
                    };
                    let mut around = in_force.filter(is_new).filter_map(|at| decisions[database].get(at));
                    own.count(Side::of(means[index]), is_disturbed(&seen[index], database, usual_ms), |side| {
                        let used_percent = seen[index].used_percent[database];
                        around.find_map(|decision| reason(decision, side, used_percent, whole))
                    });
                }
            }
            offset += phase[0].len();
        }
        own
    }

    fn count(&mut self, side: Side, disturbed: bool, reason: impl FnOnce(Side) -> Option<&'static str>) {
        self.disturbed += usize::from(disturbed);
        match side {
            Side::Faster => self.faster += 1,
            Side::On => self.on += 1,
            Side::Slower => self.slower += 1,
        }
        if side == Side::On {
            return;
        }
        let why = if disturbed { Some("the machine was not steady") } else { reason(side) };
        match why {
            Some(why) => *self.told.entry(why).or_insert(0) += 1,
            None => self.untold[usize::from(side == Side::Slower)] += 1,
        }
    }

    /// On target, faster, slower.
    pub(super) fn sides(&self) -> [usize; 3] {
        [self.on, self.faster, self.slower]
    }

    fn settled(&self) -> usize {
        self.sides().iter().sum()
    }

    /// So many intervals were disturbed that the others tell nothing.
    pub(super) fn is_mostly_disturbed(&self) -> bool {
        2 * self.disturbed >= self.settled()
    }

    fn untold(&self) -> usize {
        self.untold.iter().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on, faster, slower, untold, disturbed, .. } = self;
        write!(f, "{on} on target, {faster} faster, {slower} slower")?;
        for (why, intervals) in &self.told {
            write!(f, "; {intervals} because {why}")?;
        }
        write!(f, "; without a reason {} faster, {} slower; {disturbed} disturbed", untold[0], untold[1])
    }
}

/// Neither Gleaner nor a load that stays the same changes what strangers take, or the CPU that a report takes.
fn is_disturbed(seen: &Seen, database: usize, usual_ms: Option<f64>) -> bool {
    let times = seen.report_ms[database].zip(usual_ms).map(|(report_ms, usual_ms)| report_ms / usual_ms);
    seen.others > STRANGERS || times.is_some_and(|times| !(1.0 / STEADY..=STEADY).contains(&times))
}

/// What kept the share of CPU from following, by a decision and by what was used of the share. `whole` is the host's CPU, in
/// percent of a core.
fn reason(decision: &Value, side: Side, used_percent: f64, whole: f64) -> Option<&'static str> {
    let percent = |name: &str| decision["shares"][0][name].as_f64().map(|part| part * whole);
    let (present, granted, requested) = (percent("present")?, percent("granted")?, percent("requested")?);
    let (lower, upper) = (percent("lower")?, percent("upper")?);
    let is_least = requested <= lower + AT_BOUND;
    match side {
        Side::Faster if granted <= FLOOR_PERCENT + AT_BOUND => Some("its share is at its floor"),
        Side::Faster if used_percent >= USED_UP * present => Some("its share is nearly used up"),
        Side::Faster if is_least && used_percent >= NEEDED * present => {
            Some("half of its share is used, and it shrinks no faster")
        }
        Side::Faster if is_least && granted < present - AT_BOUND => Some("its share shrinks as fast as it may"),
        Side::Slower if granted >= CEILING_PERCENT - AT_BOUND => Some("its share is at its ceiling"),
        Side::Slower if granted < requested - AT_BOUND => Some("another contends for the CPU"),
        Side::Slower if requested >= upper - AT_BOUND && granted > present + AT_BOUND => {
            Some("its share grows as fast as it may")
        }
        _ => None,
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds(String),
    Fails(String),
    /// It cannot be told, and why: nothing that Gleaner did.
    Unknown(String),
}

/// Judges moved shares, by their settled intervals and the slowest of their medians, beside fixed shares of the same mean. On a
/// machine where a report takes `slower` times as long as when its size was chosen, it takes longer with any division of the CPUs.
pub(super) fn verdict(tally: &Tally, fixed: &Tally, held_ms: f64, fixed_ms: f64, slower: f64) -> Verdict {
    let (settled, untold) = (tally.settled(), tally.untold());
    for (which, own) in [("moved", tally), ("fixed", fixed)] {
        if own.is_mostly_disturbed() {
            let (disturbed, all) = (own.disturbed, own.settled());
            return Verdict::Unknown(format!(
                "the machine was not steady: {disturbed} of {all} intervals with {which} shares"
            ));
        }
    }
    if held_ms >= MISSED * TARGET_MS {
        let why = format!("moved shares do not hold {TARGET_MS} ms: {held_ms:.1} ms");
        return match held_ms < MISSED * TARGET_MS * slower {
            true => Verdict::Unknown(format!("the machine was not steady: reports became heavier; {why}")),
            false => Verdict::Fails(why),
        };
    }
    if 3 * untold > settled - tally.disturbed {
        return Verdict::Fails(format!("of {settled} intervals {untold} are off target without a reason: {tally}"));
    }
    if fixed_ms > MISSED * held_ms {
        return Verdict::Holds(format!(
            "the slowest of four medians is {held_ms:.1} ms, with fixed shares {fixed_ms:.1} ms; {tally}"
        ));
    }
    let why = format!("fixed shares of the same mean do no worse: {fixed_ms:.1} ms against {held_ms:.1} ms");
    match slower * STEADY < 1.0 {
        true => Verdict::Unknown(format!("the machine was not steady: reports became too light; {why}")),
        false => Verdict::Fails(why),
    }
}

/// Tries up to [`ATTEMPTS`] times, until one holds, and shows all of them. A virtual machine may be half or twice as fast a minute
/// after the reports were cut to it, which is then too much for any division of its CPUs, or too little for fixed shares to matter.
pub(super) fn attempt(test: &str, mut judge: impl FnMut() -> Verdict) {
    let mut attempts: Vec<Verdict> = Vec::new();
    while is_unsettled(&attempts) {
        attempts.push(judge());
        eprintln!("attempt {}: {:?}", attempts.len(), attempts[attempts.len() - 1]);
    }
    for (number, attempt) in (1..).zip(&attempts) {
        eprintln!("{test}, attempt {number} of {}: {attempt:?}", attempts.len());
    }
    match sum(&attempts) {
        Verdict::Holds(_) => {}
        Verdict::Fails(why) => panic!("{why}"),
        // Past the harness, which would swallow it.
        Verdict::Unknown(why) => gleaner_test_support::skipped!("{test}: {why}"),
    }
}

/// Another attempt may tell more. On a machine that was not steady twice a third one takes minutes for nothing.
fn is_unsettled(attempts: &[Verdict]) -> bool {
    let unknown = attempts.iter().filter(|verdict| matches!(verdict, Verdict::Unknown(_))).count();
    attempts.len() < ATTEMPTS && unknown < 2 && !matches!(attempts.last(), Some(Verdict::Holds(_)))
}

/// What all attempts come to: an attempt that could not be told excuses none that failed.
fn sum(attempts: &[Verdict]) -> Verdict {
    let of = |wanted: fn(&Verdict) -> bool| attempts.iter().rev().find(|verdict| wanted(verdict)).cloned();
    of(|verdict| matches!(verdict, Verdict::Holds(_)))
        .or_else(|| of(|verdict| matches!(verdict, Verdict::Fails(_))))
        .or_else(|| of(|_| true))
        .unwrap_or_else(|| Verdict::Unknown("nothing was tried".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: f64 = 200.0;

    /// A decision with its parts in percent of a core.
    fn decision(present: f64, [lower, upper]: [f64; 2], requested: f64, granted: f64) -> Value {
        let part = |percent: f64| percent / WHOLE;
        serde_json::json!({"shares": [{"present": part(present), "lower": part(lower), "upper": part(upper),
            "requested": part(requested), "granted": part(granted)}]})
    }

    #[test]
    fn an_interval_is_off_target_on_either_side() {
        let side = |part: f64| Side::of(part * TARGET_MS);
        assert_eq!([side(0.59), side(0.61), side(1.24), side(1.26)], [Side::Faster, Side::On, Side::On, Side::Slower]);
    }

    #[test]
    fn a_share_that_is_held_for_nothing_is_no_reason() {
        let of = |own: Value, side, used| reason(&own, side, used, WHOLE);
        // 80 % of a core of which 10 are used: it could shrink and does not.
        assert_eq!(of(decision(80.0, [44.0, 80.0], 80.0, 80.0), Side::Faster, 10.0), None);
        assert_eq!(of(decision(80.0, [80.0, 90.0], 80.0, 80.0), Side::Faster, 10.0), None);
        assert_eq!(of(decision(80.0, [60.0, 80.0], 80.0, 80.0), Side::Faster, 50.0), None);
        assert!(of(decision(80.0, [80.0, 90.0], 80.0, 80.0), Side::Faster, 50.0).is_some());
        assert!(of(decision(80.0, [60.0, 80.0], 80.0, 80.0), Side::Faster, 70.0).is_some());
        assert!(of(decision(80.0, [44.0, 80.0], 44.0, 44.0), Side::Faster, 10.0).is_some());
        assert!(of(decision(15.0, [15.0, 16.0], 15.0, 15.0), Side::Faster, 1.0).is_some());
        // Too slow: it could grow further, and is not even asked to.
        assert_eq!(of(decision(40.0, [40.0, 60.0], 42.0, 42.0), Side::Slower, 40.0), None);
        assert!(of(decision(40.0, [40.0, 60.0], 60.0, 60.0), Side::Slower, 40.0).is_some());
        assert!(of(decision(40.0, [40.0, 60.0], 60.0, 45.0), Side::Slower, 40.0).is_some());
        assert!(of(decision(150.0, [150.0, 150.0], 150.0, 150.0), Side::Slower, 40.0).is_some());
        // Nothing was decided.
        assert_eq!(of(Value::Null, Side::Slower, 40.0), None);
    }

    #[test]
    fn strangers_and_another_speed_disturb_an_interval() {
        let seen =
            |others, report_ms| Seen { used_percent: [0.0; 2], report_ms: [report_ms; 2], third_percent: 0.0, others };
        assert!(!is_disturbed(&seen(0.1, Some(1.1)), 0, Some(1.0)));
        assert!(is_disturbed(&seen(0.3, Some(1.1)), 0, Some(1.0)));
        assert!(is_disturbed(&seen(0.1, Some(1.3)), 0, Some(1.0)));
        assert!(is_disturbed(&seen(0.1, Some(0.7)), 0, Some(1.0)));
        assert!(!is_disturbed(&seen(0.1, None), 0, Some(1.0)));
    }

    /// Two intervals a phase, of which the second is settled; the first database is then too fast or slow.
    fn measured(mean_ms: f64, others: f64) -> Measured {
        let seen = Seen { used_percent: [10.0; 2], report_ms: [Some(1.0); 2], third_percent: 90.0, others };
        let phase = [vec![TARGET_MS * 9.0, mean_ms], vec![TARGET_MS; 2]];
        Measured { phases: vec![phase.clone(), phase], seen: vec![vec![seen; 2]; 2], settling: 1 }
    }

    #[test]
    fn settled_intervals_are_counted_with_their_reasons() {
        let held: [Vec<Value>; 2] = [vec![Value::Null; 4], vec![Value::Null; 4]];
        let calm = Tally { on: 4, ..Tally::default() };
        let tally = Tally::of(&measured(TARGET_MS * 0.3, 0.0), &held);
        assert_eq!((tally.on, tally.faster, tally.slower, tally.untold, tally.disturbed), (2, 2, 0, [2, 0], 0));
        let judged = verdict(&tally, &calm, 10.0, 30.0, 1.0);
        assert!(matches!(judged, Verdict::Fails(why) if why.contains("without a reason")));
        let tally = Tally::of(&measured(TARGET_MS * 2.0, 0.5), &held);
        assert_eq!((tally.on, tally.slower, tally.untold(), tally.disturbed), (2, 2, 0, 4));
        assert!(matches!(verdict(&tally, &calm, 10.0, 30.0, 1.0), Verdict::Unknown(_)));
        assert!(matches!(verdict(&calm, &tally, 10.0, 30.0, 1.0), Verdict::Unknown(_)));
    }

    #[test]
    fn a_decision_is_a_reason_once() {
        let shrinks = |number: u64| {
            let mut own = decision(80.0, [44.0, 80.0], 44.0, 44.0);
            own["number"] = number.into();
            own
        };
        let fast = measured(TARGET_MS * 0.3, 0.0);
        let of = |numbers: [u64; 4]| Tally::of(&fast, &[numbers.map(shrinks).to_vec(), Vec::new()]).untold;
        assert_eq!(of([1, 2, 3, 4]), [0, 0]);
        assert_eq!(of([1, 1, 1, 1]), [1, 0], "nothing was decided after the first interval");
    }

    #[test]
    fn only_what_gleaner_did_fails() {
        let tally = Tally { on: 20, faster: 4, ..Tally::default() };
        let of = |held_ms, fixed_ms, slower| verdict(&tally, &tally, held_ms, fixed_ms, slower);
        assert!(matches!(of(12.0, 30.0, 1.0), Verdict::Holds(_)));
        assert!(matches!(of(25.0, 90.0, 1.0), Verdict::Fails(_)));
        assert!(matches!(of(25.0, 90.0, 2.0), Verdict::Unknown(_)));
        assert!(matches!(of(12.0, 13.0, 1.0), Verdict::Fails(_)));
        assert!(matches!(of(12.0, 13.0, 0.7), Verdict::Unknown(_)));
        assert!(matches!(verdict(&Tally::default(), &tally, 12.0, 30.0, 1.0), Verdict::Unknown(_)));
    }

    #[test]
    fn an_attempt_that_cannot_be_told_excuses_no_failure() {
        let [holds, fails, unknown] = [Verdict::Holds, Verdict::Fails, Verdict::Unknown].map(|of| of(String::new()));
        assert_eq!(sum(&[fails.clone(), unknown.clone(), holds.clone()]), holds);
        assert_eq!(sum(&[fails.clone(), unknown.clone()]), fails);
        assert_eq!(sum(&[unknown.clone(), unknown.clone()]), unknown);
        assert!(is_unsettled(&[]) && is_unsettled(&[fails.clone(), unknown.clone()]));
        assert!(!is_unsettled(&[unknown.clone(), unknown]) && !is_unsettled(&[fails.clone(), holds]));
        assert!(!is_unsettled(&[fails.clone(), fails.clone(), fails]));
    }
}
