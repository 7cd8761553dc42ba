//! Whether another row was better than the product, and whether the product kept a goal. In: the result's lines. Out: a
//! verdict for each cell, as values and as text. Called by [`crate::matrix`]. Pure.
//!
//! Nothing is concluded that the intervals do not show: a row is better, and a goal met or missed, only if the whole
//! interval says so. A single round has no interval.

use serde::{Deserialize, Serialize};

use crate::cells::{Antagonist, Cell, Goal, Row};
use crate::results::Line;
use crate::statistics::Estimate;
use crate::table::BUSY_CORES;

/// Work of this part of the product's counts as no less. Chosen: 1 % is within the noise of a harvest.
const NO_LESS: f64 = 0.99;

/// What came of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which cell.
    pub cell: Cell,
    /// Why the product was not compared; none if it was.
    pub not_judged: Option<String>,
    /// The most cores that others used meanwhile, where that is so much that no difference is to be trusted.
    pub others_cores: Option<f64>,
    /// Rows that were better than the product.
    pub better: Vec<Better>,
    /// Rows with no less work whose harm was lower, but not surely.
    pub cannot_tell: Vec<Row>,
    /// Goals that were asked for, under each row with the product in it.
    pub goals: Vec<Judged>,
}

/// A row that was better than the product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Better {
    /// The row.
    pub row: Row,
    /// In what, a phrase each: its value, then the product's.
    pub reasons: Vec<String>,
}

/// One bound of a goal, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Whose goal.
    pub goal: Goal,
    /// Under which row.
    pub row: Row,
    /// What is bounded.
    pub bound: Bound,
    /// What was measured of it.
    pub value: Option<Estimate>,
    /// What that says.
    pub standing: Standing,
}

/// A bound of a goal, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The mean is at most this much slower than alone.
    Mean(f64),
    /// The same of the 95th percentile.
    P95(f64),
    /// The same of the 99th percentile.
    P99(f64),
    /// At least this part of the idle CPU is harvested.
    Harvest(f64),
}

/// What an interval says about a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// All of it keeps to the bound.
    Met,
    /// All of it is beyond the bound, or the foreground was killed.
    Missed,
    /// It contains the bound, there is none, or requests failed whose times are therefore unknown.
    CannotTell,
}

impl Goal {
    const fn bounds(self) -> &'static [Bound] {
        match self {
            Self::Stock => &[Bound::Mean(1.0), Bound::P99(5.0), Bound::Harvest(75.0)],
            Self::Here => &[Bound::Mean(2.0), Bound::P95(15.0)],
        }
    }
}

impl Bound {
    /// What it bounds, of a line.
    fn value(self, line: &Line) -> Option<Estimate> {
        match self {
            Self::Mean(_) => line.mean_slower_percent,
            Self::P95(_) => line.p95_slower_percent,
            Self::P99(_) => line.p99_slower_percent,
            Self::Harvest(_) => line.harvested_percent,
        }
    }

    /// What the interval says, and nothing else.
    fn standing(self, value: Option<Estimate>) -> Standing {
        let Some((low, high)) = value.and_then(interval) else { return Standing::CannotTell };
        let (met, missed) = match self {
            Self::Mean(most) | Self::P95(most) | Self::P99(most) => (high < most, low > most),
            Self::Harvest(least) => (low > least, high < least),
        };
        match (met, missed) {
            (true, _) => Standing::Met,
            (_, true) => Standing::Missed,
            _ => Standing::CannotTell,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mean(most) => write!(f, "mean at most {most} %"),
            Self::P95(most) => write!(f, "p95 at most {most} %"),
            Self::P99(most) => write!(f, "p99 at most {most} %"),
            Self::Harvest(least) => write!(f, "harvest at least {least} %"),
        }
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::CannotTell => "cannot tell",
        })
    }
}

/// Both ends of its interval; nothing with a single round.
fn interval(value: Estimate) -> Option<(f64, f64)> {
    let half = value.half_width?;
    Some((value.mean - half, value.mean + half))
}

/// All of `one`'s interval is below all of `other`'s.
fn surely_lower(one: Estimate, other: Estimate) -> bool {
    matches!((interval(one), interval(other)), (Some((_, high)), Some((low, _))) if high < low)
}

/// A cell's work is CPU time. Of `net` too, because the product drops datagrams that the antagonist has counted as sent.
const fn works_by_cpu(antagonist: Antagonist) -> bool {
    matches!(antagonist, Antagonist::Cpu | Antagonist::Fork | Antagonist::Thrash | Antagonist::Net | Antagonist::All)
}

/// The antagonist's work: its harvest, or its bytes where CPU time is not what it is after.
fn work(line: &Line) -> Option<f64> {
    let by_cpu = line.harvested_percent.or(line.antagonist_cores);
    let all = if works_by_cpu(line.cell.antagonist) { by_cpu } else { line.bytes_per_s.or(by_cpu) };
    all.map(|value| value.mean)
}

fn per_round(count: u64, line: &Line) -> f64 {
    count as f64 / line.rounds.max(1) as f64
}

/// A harm and its name.
type Harm = (&'static str, fn(&Line) -> Option<Estimate>);

/// The two harms that rows are compared by.
const HARMS: [Harm; 2] = [("mean", |line| line.mean_slower_percent), ("p99", |line| line.p99_slower_percent)];

/// In what a row was better than the product, and whether that would be so if the intervals were narrower.
fn compared(other: &Line, own: &Line) -> (Vec<String>, bool) {
    let (killed, own_killed) = (per_round(other.foreground_killed, other), per_round(own.foreground_killed, own));
    let (failed, own_failed) = (per_round(other.failures, other), per_round(own.failures, own));
    if other.rounds == 0 || own.rounds == 0 || killed > own_killed {
        // Times of the rounds that it survived say nothing good of a row that killed it in others.
        return (Vec::new(), false);
    }
    let mut reasons = Vec::new();
    if killed < own_killed {
        reasons.push(format!(
            "foreground killed in {} of {} rounds, under gleaner in {} of {}",
            other.foreground_killed, other.rounds, own.foreground_killed, own.rounds
        ));
    }
    if failed < own_failed {
        reasons.push(format!("{} requests failed, under gleaner {}", other.failures, own.failures));
    }
    let no_less = work(other).zip(work(own)).is_some_and(|(other, own)| other >= NO_LESS * own);
    let mut lower = false;
    for (name, harm) in HARMS {
        let Some((harm, own_harm)) = harm(other).zip(harm(own)).filter(|_| no_less) else { continue };
        lower |= harm.mean < own_harm.mean;
        if surely_lower(harm, own_harm) {
            let more = if failed > own_failed { ", though more requests failed".to_owned() } else { String::new() };
            reasons.push(format!("{name} {harm} %, under gleaner {own_harm} %{more}"));
        }
    }
    let unsure = lower && reasons.is_empty();
    (reasons, unsure)
}

/// A goal's bounds under one row.
fn judged(goal: Goal, line: &Line, alone: Option<&Line>) -> Vec<Judged> {
    let fails = alone.is_none_or(|alone| per_round(line.failures, line) > per_round(alone.failures, alone));
    let judge = |&bound: &Bound| {
        let value = bound.value(line);
        let is_harm = !matches!(bound, Bound::Harvest(_));
        let standing = match bound.standing(value) {
            _ if is_harm && line.foreground_killed > 0 => Standing::Missed,
            Standing::Met if is_harm && fails => Standing::CannotTell,
            standing => standing,
        };
        Judged { goal, row: line.row, bound, value, standing }
    };
    let asked = goal.bounds().iter();
    let asked = asked.filter(|bound| !matches!(bound, Bound::Harvest(_)) || works_by_cpu(line.cell.antagonist));
    asked.map(judge).collect()
}

/// A verdict for each cell.
#[must_use]
pub fn verdicts(lines: &[Line], cells: &[Cell], goals: &[Goal]) -> Vec<Verdict> {
    cells.iter().map(|&cell| verdict(lines, cell, goals)).collect()
}

fn verdict(lines: &[Line], cell: Cell, goals: &[Goal]) -> Verdict {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.cell == cell).collect();
    let of = |row: Row| lines.iter().copied().find(|line| line.row == row && line.rounds > 0);
    let others = lines.iter().filter_map(|line| Some(line.others_cores?.mean)).fold(0.0, f64::max);
    let others_cores = (others > BUSY_CORES).then_some(others);
    let mut verdict = Verdict {
        cell,
        not_judged: None,
        others_cores,
        better: Vec::new(),
        cannot_tell: Vec::new(),
        goals: Vec::new(),
    };
    for &goal in goals {
        let own = lines.iter().filter(|line| line.row.has_agent());
        verdict.goals.extend(own.flat_map(|line| judged(goal, line, of(Row::Alone))));
    }
    let others: Vec<&Line> = lines
        .iter()
        .copied()
        .filter(|line| !matches!(line.row, Row::Alone | Row::Unprotected | Row::Gleaner) && line.rounds > 0)
        .collect();
    let own = match of(Row::Gleaner) {
        Some(own) if !others.is_empty() => own,
        Some(_) => {
            verdict.not_judged = Some("no row was measured to compare gleaner with".to_owned());
            return verdict;
        }
        None => {
            verdict.not_judged = Some("the row gleaner was not measured".to_owned());
            return verdict;
        }
    };
    if own.rounds < 2 {
        verdict.not_judged = Some("one round shows no difference in times".to_owned());
    }
    for other in others {
        match compared(other, own) {
            (reasons, false) if !reasons.is_empty() => verdict.better.push(Better { row: other.row, reasons }),
            (_, true) => verdict.cannot_tell.push(other.row),
            _ => {}
        }
    }
    verdict
}

/// The verdicts, for people.
#[must_use]
pub fn text(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let cell = verdict.cell;
        let mut say = |what: String| text.push_str(&format!("{cell}: {what}\n"));
        if let Some(cores) = verdict.others_cores {
            say(format!("trust nothing of this: others used up to {cores:.1} cores of this machine meanwhile"));
        }
        for better in &verdict.better {
            say(format!("worse than {}: {}", better.row, better.reasons.join("; ")));
        }
        match &verdict.not_judged {
            Some(why) => say(format!("not judged: {why}")),
            None if verdict.better.is_empty() => say("no row is better at no less harvest".to_owned()),
            None => {}
        }
        if !verdict.cannot_tell.is_empty() {
            let rows: Vec<String> = verdict.cannot_tell.iter().map(ToString::to_string).collect();
            say(format!("cannot tell from {}: less harm there, but the intervals overlap", rows.join(", ")));
        }
        for judged in &verdict.goals {
            let value = judged.value.map_or_else(|| "nothing".to_owned(), |value| format!("{value} %"));
            say(format!(
                "goal {} under {}: {}: {}, measured {value}",
                judged.goal, judged.row, judged.bound, judged.standing
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::cells;

    fn about(mean: f64, half: f64) -> Option<Estimate> {
        Some(Estimate { mean, half_width: Some(half), rounds: 5 })
    }

    /// A line whose p95 and p99 are twice and thrice its mean harm.
    fn line(cell: &str, row: Row, harm: (f64, f64), harvest: f64) -> Line {
        let of = |factor: f64| about(factor * harm.0, factor * harm.1).filter(|_| row != Row::Alone);
        Line {
            cell: cells(cell).unwrap()[0],
            row,
            rounds: 5,
            mean_ms: about(5.0, 0.1),
            mean_slower_percent: of(1.0),
            p95_slower_percent: of(2.0),
            p99_slower_percent: of(3.0),
            failures: 0,
            foreground_killed: 0,
            antagonist_killed: 0,
            antagonist_cores: about(harvest / 100.0, 0.0),
            harvested_percent: about(harvest, 1.0),
            bytes_per_s: about(0.0, 0.0),
            forks_per_s: about(0.0, 0.0),
            others_cores: about(0.0, 0.0),
            notes: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn judge(lines: &[Line], goals: &[Goal]) -> Verdict {
        verdicts(lines, &[lines[0].cell], goals).remove(0)
    }

    fn better(lines: &[Line]) -> Vec<Row> {
        judge(lines, &[]).better.iter().map(|better| better.row).collect()
    }

    #[test]
    fn a_row_with_surely_less_harm_at_no_less_harvest_is_better() {
        let gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 1.0), 90.0);
        let cases = [
            // Entirely below, as much work.
            ((2.0, 0.9), 90.0, true),
            // The intervals touch.
            ((2.0, 1.0), 90.0, false),
            // Entirely below, for less work.
            ((2.0, 0.9), 80.0, false),
            // Within the tolerance of the work.
            ((2.0, 0.9), 89.5, true),
            // More harm.
            ((9.0, 0.9), 99.0, false),
        ];
        for (harm, harvest, is_better) in cases {
            let other = line("cyclic:cpu", Row::Points, harm, harvest);
            assert_eq!(better(&[gleaner.clone(), other]) == [Row::Points], is_better, "{harm:?} at {harvest}");
        }
        let verdict = judge(&[gleaner.clone(), line("cyclic:cpu", Row::Points, (2.0, 0.9), 90.0)], &[]);
        let said = text(&[verdict]);
        assert!(said.starts_with("cyclic:cpu: worse than points: mean +2.0 ± 0.9 %, under gleaner +4.0 ± 1.0 %; p99"));
        assert!(!said.contains("no row is better"), "{said}");
    }

    #[test]
    fn a_better_99th_percentile_alone_is_enough() {
        let gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 1.0), 90.0);
        let mut other = line("cyclic:cpu", Row::Idle, (4.0, 1.0), 95.0);
        other.p99_slower_percent = about(3.0, 1.0);
        let verdict = judge(&[gleaner, other], &[]);
        assert_eq!(verdict.better[0].reasons, ["p99 +3.0 ± 1.0 %, under gleaner +12.0 ± 3.0 %"]);
    }

    #[test]
    fn what_the_intervals_leave_open_is_said_and_is_no_praise() {
        let gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 3.0), 90.0);
        let lines = [gleaner, line("cyclic:cpu", Row::Points, (2.0, 1.5), 97.0)];
        let verdict = judge(&lines, &[]);
        assert_eq!((verdict.better.len(), verdict.cannot_tell.as_slice()), (0, [Row::Points].as_slice()));
        let said = text(&[verdict]);
        assert!(
            said.contains("no row is better at no less harvest") && said.contains("cannot tell from points"),
            "{said}"
        );
    }

    #[test]
    fn a_busy_machine_makes_every_verdict_doubtful() {
        let mut gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 3.0), 90.0);
        let other = line("cyclic:cpu", Row::Idle, (9.0, 1.0), 97.0);
        let said = |gleaner: &Line| text(&[judge(&[gleaner.clone(), other.clone()], &[])]);
        gleaner.others_cores = about(0.2, 0.0);
        assert!(!said(&gleaner).contains("trust nothing"));
        gleaner.others_cores = about(0.3, 0.0);
        assert!(said(&gleaner).starts_with("cyclic:cpu: trust nothing of this: others used up to 0.3 cores"));
    }

    #[test]
    fn alone_and_unprotected_are_no_rivals() {
        let gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 1.0), 10.0);
        let rows = [Row::Alone, Row::Unprotected].map(|row| line("cyclic:cpu", row, (0.1, 0.1), 99.0));
        let [alone, unprotected] = rows;
        let verdict = judge(&[gleaner, alone, unprotected], &[]);
        assert!(verdict.better.is_empty() && verdict.not_judged.unwrap().contains("compare"));
    }

    #[test]
    fn fewer_kills_and_failures_are_better_at_any_harvest() {
        let mut gleaner = line("disk:write-seq-fsync", Row::Gleaner, (4.0, 1.0), 90.0);
        let other = line("disk:write-seq-fsync", Row::Nice, (9.0, 1.0), 1.0);
        gleaner.failures = 2;
        assert_eq!(
            judge(&[gleaner.clone(), other.clone()], &[]).better[0].reasons,
            ["0 requests failed, under gleaner 2"]
        );
        gleaner.failures = 0;
        assert_eq!(better(&[gleaner.clone(), other.clone()]), []);
        gleaner.foreground_killed = 1;
        assert_eq!(better(&[gleaner, other]), [Row::Nice]);
    }

    #[test]
    fn a_row_that_kills_more_is_not_better_by_the_rounds_that_survived() {
        let mut gleaner = line("cyclic:memory", Row::Gleaner, (4.0, 1.0), 12.0);
        gleaner.failures = 7;
        let mut other = line("cyclic:memory", Row::Idle, (0.1, 0.1), 90.0);
        other.foreground_killed = 1;
        assert_eq!(better(&[gleaner.clone(), other.clone()]), []);
        // Its requests that failed are said, where it killed nobody.
        (other.foreground_killed, other.failures) = (0, 9);
        other.bytes_per_s = about(5.0, 0.0);
        let verdict = judge(&[gleaner, other], &[]);
        assert!(verdict.better[0].reasons[0].ends_with("though more requests failed"), "{verdict:?}");
    }

    #[test]
    fn work_is_counted_in_bytes_where_cpu_time_is_not_the_aim() {
        let mut gleaner = line("disk:write-seq", Row::Gleaner, (4.0, 1.0), 10.0);
        let mut other = line("disk:write-seq", Row::Idle, (1.0, 1.0), 5.0);
        (gleaner.bytes_per_s, other.bytes_per_s) = (about(1e6, 0.0), about(2e6, 0.0));
        assert_eq!(better(&[gleaner.clone(), other.clone()]), [Row::Idle]);
        other.bytes_per_s = about(5e5, 0.0);
        assert_eq!(better(&[gleaner, other]), []);
    }

    #[test]
    fn one_round_judges_no_times() {
        let mut gleaner = line("cyclic:cpu", Row::Gleaner, (4.0, 1.0), 90.0);
        gleaner.rounds = 1;
        gleaner.mean_slower_percent = Some(Estimate { mean: 0.1, half_width: None, rounds: 1 });
        let other = line("cyclic:cpu", Row::Idle, (9.0, 1.0), 90.0);
        let verdict = judge(&[gleaner, other], &[Goal::Here]);
        let said = text(std::slice::from_ref(&verdict));
        assert!(said.contains("not judged: one round") && !said.contains("no row is better"), "{said}");
        assert_eq!(verdict.goals[0].standing, Standing::CannotTell);
    }

    fn standings(lines: &[Line], goal: Goal) -> Vec<Standing> {
        judge(lines, &[goal]).goals.iter().map(|judged| judged.standing).collect()
    }

    #[test]
    fn a_goal_is_met_or_missed_only_by_its_whole_interval() {
        use Standing::{CannotTell, Met, Missed};
        let alone = line("cyclic:cpu", Row::Alone, (0.0, 0.0), 0.0);
        // p95 is twice, p99 three times the mean.
        let cases = [
            ((0.5, 0.4), 80.0, [Met, Met, Met]),
            // 0.6 to 1.4; 1.8 to 4.2.
            ((1.0, 0.4), 80.0, [CannotTell, Met, Met]),
            ((3.0, 0.5), 70.0, [Missed, Missed, Missed]),
            // The interval ends at the bound, which it thereby contains.
            ((0.5, 0.5), 76.0, [CannotTell, Met, CannotTell]),
        ];
        for (harm, harvest, expected) in cases {
            let own = line("cyclic:cpu", Row::Gleaner, harm, harvest);
            assert_eq!(standings(&[alone.clone(), own], Goal::Stock), expected, "{harm:?} at {harvest}");
        }
        let own = line("cyclic:cpu", Row::Gleaner, (3.6, 1.5), 90.0);
        assert_eq!(standings(&[alone, own], Goal::Here), [Missed, Met]);
    }

    #[test]
    fn no_goal_is_met_by_times_of_requests_that_did_not_fail_or_rounds_that_survived() {
        use Standing::{CannotTell, Met, Missed};
        let alone = line("cyclic:cpu", Row::Alone, (0.0, 0.0), 0.0);
        let mut own = line("cyclic:cpu", Row::Gleaner, (0.1, 0.1), 90.0);
        own.failures = 1;
        assert_eq!(standings(&[alone.clone(), own.clone()], Goal::Stock), [CannotTell, CannotTell, Met]);
        own.foreground_killed = 1;
        assert_eq!(standings(&[alone, own], Goal::Here), [Missed, Missed]);
    }

    #[test]
    fn every_row_with_the_product_in_it_has_goals_and_a_cell_of_bytes_no_harvest() {
        let rows =
            [Row::Alone, Row::Idle, Row::Gleaner, Row::Pointed].map(|row| line("disk:fill", row, (0.1, 0.1), 9.0));
        let verdict = judge(&rows, &[Goal::Stock]);
        let judged: Vec<Row> = verdict.goals.iter().map(|judged| judged.row).collect();
        assert_eq!(judged, [Row::Gleaner, Row::Gleaner, Row::Pointed, Row::Pointed]);
        let said = text(&[verdict]);
        assert!(said.contains("goal stock under pointed: mean at most 1 %: met, measured +0.1 ± 0.1 %"), "{said}");
    }
}
