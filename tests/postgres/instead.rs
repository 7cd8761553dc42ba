//! What an operator would do instead of moving shares, in the same run: shares fixed at the mean or at what the busy phase takes,
//! weights without limits, nothing; and the controller of one resource. In: the bed, with a third user on every CPU. Out: each
//! one's response times beside the target, what it reserves, and the third user's CPU, which is what is saved for. Called by the
//! harness, by its name alone: an attempt takes eight minutes.

use gleaner_test_support::beds;

use super::bed::{Bed, Measured, Strangers, median, prepare};
use super::judged::{Tally, Verdict, attempt, verdict};
use super::{Controlled, INTERVAL_S, REPORT_OUTWEIGHED_MS, controlled, granted_percent, limit, pair_of};

/// Time of a phase with fixed settings, and from its start until it is judged.
const FIXED: (u32, u32) = (20, 6);
/// The third user's weight, over that of all databases, where weights are all there is.
const LEAST_WEIGHT: f64 = 0.01;
/// Moved shares reserve at most so much of what fixed ones do that suffice in the busy phase. Chosen; shares that never shrink
/// reserve as much.
const SAVED: f64 = 0.9;

/// A row of the table.
struct Row {
    what: &'static str,
    measured: Measured,
    /// CPU that nobody else may count on, in percent of a core.
    reserved: Option<f64>,
    tally: Tally,
}

impl Row {
    /// Of shares that a controller moved.
    fn moved(what: &'static str, run: Controlled) -> Self {
        let Controlled { measured, means, decisions } = run;
        let tally = Tally::of(&measured, &decisions);
        Self { what, measured, reserved: Some(means.iter().sum()), tally }
    }

    /// Of settings that stay as they are.
    fn fixed(what: &'static str, bed: &Bed, shares: Option<[f64; 2]>) -> Self {
        limit(bed, shares);
        let measured = bed.run(FIXED, || {});
        let tally = Tally::of(&measured, &[Vec::new(), Vec::new()]);
        Self { what, measured, reserved: shares.map(|shares| shares.iter().sum()), tally }
    }

    fn say(&self) {
        let [before, after] = [0, 1].map(|phase| {
            let of = |database| self.measured.mean(phase, database);
            format!("{:.1}, {:.1}", of(0), of(1))
        });
        let reserved = self.reserved.map_or("nothing".to_owned(), |percent| format!("{percent:.0}"));
        let (third, least) = self.measured.third_percent();
        let [on, faster, slower] = self.tally.sides();
        eprintln!(
            "| {} | {before} | {after} | {on}, {faster}, {slower} | {reserved} | {third:.0}, {least:.0} | {:.2} |",
            self.what,
            self.measured.report_ms()
        );
    }
}

/// What each database was granted in the phase in which it was granted more, by the median of settled intervals: the least that an
/// operator would fix.
fn peaks(moved: &Controlled) -> [f64; 2] {
    let Measured { phases, settling, .. } = &moved.measured;
    [0, 1].map(|database: usize| {
        let mut decisions = moved.decisions[database].iter();
        let of_phases = phases.iter().map(|phase| {
            let of_phase = decisions.by_ref().take(phase[database].len()).skip(*settling);
            median(of_phase.filter_map(granted_percent)).unwrap_or(0.0)
        });
        of_phases.fold(0.0, f64::max)
    })
}

#[test]
fn what_an_operator_would_do_instead_beside_moved_shares() {
    const TEST: &str = "what_an_operator_would_do_instead_beside_moved_shares";
    if beds::wanted(TEST) {
        let _machine = beds::machine();
        attempt(TEST, judge);
    }
}

fn judge() -> Verdict {
    let bed = match prepare(REPORT_OUTWEIGHED_MS, Strangers::Outweighed) {
        Ok(bed) => bed,
        Err(why) => return Verdict::Unknown(why),
    };
    let pair = pair_of(&bed.group, &format!("control_interval_s = {INTERVAL_S}\n"));
    let moved = controlled(&pair, &bed, "balance");
    let peaks = peaks(&moved);
    if peaks.iter().any(|peak| *peak <= 0.0) {
        return Verdict::Unknown("the machine was not steady: no interval was settled".to_owned());
    }
    let means = moved.means;
    let mut rows = vec![Row::moved("shares moved by `balance`", moved)];
    rows.push(Row::fixed("the means of them, fixed", &bed, Some(means)));
    rows.push(Row::fixed("what the busy phase took, fixed", &bed, Some(peaks)));
    rows.push(Row::fixed("no limits", &bed, None));
    rows.push(Row::moved("shares moved by `stfc`, CPU alone", controlled(&pair, &bed, "stfc")));
    limit(&bed, None);
    let slower = bed.report_ms() / REPORT_OUTWEIGHED_MS;
    bed.third.weigh(LEAST_WEIGHT);
    rows.push(Row::fixed("no limits, the third user's weight a hundredth", &bed, None));

    eprintln!(
        "| run | before, ms | after, ms | on target, faster, slower | reserved, % of a core | third user's CPU, mean and least, \
         % of a core | CPU of a report, ms |"
    );
    rows.iter().for_each(Row::say);
    eprintln!(
        "settled intervals of moved shares: {}; at the end a report takes {slower:.2} times as long",
        rows[0].tally
    );

    let [moved, fixed, peak, ..] = rows.as_slice() else { unreachable!() };
    let (reserved, of_peaks) = (moved.reserved.unwrap_or(0.0), peak.reserved.unwrap_or(0.0));
    match verdict(&moved.tally, &fixed.tally, moved.measured.slowest_ms(), fixed.measured.slowest_ms(), slower) {
        Verdict::Holds(_) if reserved > SAVED * of_peaks => Verdict::Fails(format!(
            "moved shares reserve {reserved:.0} % of a core, fixed ones that suffice when it is busy {of_peaks:.0} %"
        )),
        other => other,
    }
}
