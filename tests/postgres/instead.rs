//! What an operator would do instead of moving shares, in the same run: shares fixed at the peak or at the mean, weights
//! without limits, nothing. In: the bed, with a third user on every CPU. Out: each one's response times beside the target, what
//! it reserves, and the third user's CPU. Called by the harness, by its name alone: it takes six minutes.

use std::time::Instant;

use serde_json::Value;

use super::bed::{Database, Measured, Strangers, Third, prepare, run};
use super::{
    CEILING_PERCENT, CONTROLLED, Controlled, FLOOR_PERCENT, INTERVAL_S, MISSED, TARGET_MS, controlled, pair_of,
};

/// What a report is made to take here, where the third user takes what it can get of every CPU.
const REPORT_MS: f64 = 1.4;
/// Time of a phase with fixed settings, and from its start until it is judged.
const FIXED: (u32, u32) = (20, 6);
/// The third user's weight, over that of all databases, where weights are all there is.
const LEAST_WEIGHT: f64 = 0.01;
/// A settled interval is on target from and up to so much of it.
const ON_TARGET: (f64, f64) = (0.6, 1.25);
/// A share is at a bound of its move if it is no farther from it, in parts of the host.
const AT_BOUND: f64 = 0.005;

/// A row of the table.
struct Row {
    what: String,
    measured: Measured,
    /// CPU that nobody else may count on, in percent of a core.
    reserved: Option<f64>,
    /// CPU of the third user, in percent of a core.
    third: f64,
}

impl Row {
    /// Settled intervals: on target, faster, slower.
    fn intervals(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for mean_ms in
            self.measured.phases.iter().flatten().flat_map(|all| &all[self.measured.settling.min(all.len())..])
        {
            counts[side(*mean_ms)] += 1;
        }
        counts
    }

    fn say(&self) {
        let [on, faster, slower] = self.intervals();
        let mean = |phase, database| self.measured.mean(phase, database);
        eprintln!(
            "| {} | {:.1}, {:.1} | {:.1}, {:.1} | {on}, {faster}, {slower} | {} | {:.0} |",
            self.what,
            mean(0, 0),
            mean(0, 1),
            mean(1, 0),
            mean(1, 1),
            self.reserved.map_or("nothing".to_owned(), |percent| format!("{percent:.0}")),
            self.third
        );
    }

    fn worst_ms(&self) -> f64 {
        [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(phase, database)| self.measured.mean(phase, database))
            .into_iter()
            .fold(0.0, f64::max)
    }
}

/// On target, faster, slower.
fn side(mean_ms: f64) -> usize {
    match mean_ms / TARGET_MS {
        part if part < ON_TARGET.0 => 1,
        part if part > ON_TARGET.1 => 2,
        _ => 0,
    }
}

fn row(what: &str, databases: &[Database; 2], third: &Third, reserved: Option<f64>) -> Row {
    let (started, before) = (Instant::now(), third.cpu_s());
    let measured = run(databases, FIXED, || {});
    let third = (third.cpu_s() - before) / started.elapsed().as_secs_f64() * 100.0;
    Row { what: what.to_owned(), measured, reserved, third }
}

/// Why an interval was off its target, by the decision that was in force in it: what kept the share of CPU from following.
fn reason(decision: &Value, side: usize) -> Option<String> {
    let share = &decision["shares"][0];
    let part = |name: &str| share[name].as_f64();
    let (granted, requested) = (part("granted")?, part("requested")?);
    let (lower, upper) = (part("lower")?, part("upper")?);
    let percent = super::granted_percent(decision)?;
    match side {
        1 if percent <= FLOOR_PERCENT + 1.0 => Some("its share is at its floor".to_owned()),
        1 if requested <= lower + AT_BOUND => {
            Some(format!("its share may not shrink further: load {}", share["load"].as_str()?))
        }
        2 if granted < requested - AT_BOUND => Some("another contends for the CPU".to_owned()),
        2 if percent >= CEILING_PERCENT - 1.0 => Some("its share is at its ceiling".to_owned()),
        2 if requested >= upper - AT_BOUND => Some("its share may not grow faster".to_owned()),
        _ => None,
    }
}

/// The reasons of all settled intervals off target, with their numbers; the second is of those without one.
fn reasons(controlled: &Controlled) -> (std::collections::BTreeMap<String, usize>, usize) {
    let (mut told, mut untold) = (std::collections::BTreeMap::new(), 0);
    let measured = &controlled.measured;
    let mut offset = 0;
    for phase in &measured.phases {
        for (means, decisions) in phase.iter().zip(&controlled.decisions) {
            for (index, mean_ms) in means.iter().enumerate().skip(measured.settling) {
                let side = side(*mean_ms);
                if side == 0 {
                    continue;
                }
                // What was decided before this interval, or in it.
                let around = offset + index;
                let found = [around.saturating_sub(1), around].iter().find_map(|at| reason(decisions.get(*at)?, side));
                match found {
                    Some(why) => {
                        *told.entry(format!("{}: {why}", if side == 1 { "faster" } else { "slower" })).or_insert(0) += 1
                    }
                    None => untold += 1,
                }
            }
        }
        offset += phase[0].len();
    }
    (told, untold)
}

/// The most that each database was granted in settled intervals: what an operator would size its fixed share for.
fn peaks(controlled: &Controlled) -> [f64; 2] {
    let settling = controlled.measured.settling;
    [0, 1].map(|database: usize| {
        let mut decisions = controlled.decisions[database].iter();
        let mut peak: f64 = 0.0;
        for phase in &controlled.measured.phases {
            let of_phase = decisions.by_ref().take(phase[0].len()).skip(settling);
            peak = of_phase.filter_map(super::granted_percent).fold(peak, f64::max);
        }
        peak
    })
}

#[test]
fn what_an_operator_would_do_instead_beside_moved_shares() {
    if !gleaner_test_support::beds::wanted("what_an_operator_would_do_instead_beside_moved_shares") {
        return;
    }
    let mut bed = match prepare(REPORT_MS, Strangers::Outweighed) {
        Ok(bed) => bed,
        Err(why) => {
            gleaner_test_support::skipped!("a real PostgreSQL: {why}");
            return;
        }
    };
    let pair = pair_of(&bed.group, &format!("control_interval_s = {INTERVAL_S}\n"));
    let third = bed.third.take().unwrap();
    let databases = &bed.databases;

    let (started, before) = (Instant::now(), third.cpu_s());
    let moved = controlled(&pair, databases, "balance");
    let third_percent = (third.cpu_s() - before) / started.elapsed().as_secs_f64() * 100.0;
    let (told, untold) = reasons(&moved);
    let peaks = peaks(&moved);
    assert!(peaks.iter().all(|peak| *peak > 0.0), "the machine is too busy: no interval was settled");
    let means = moved.means;
    let limit = |shares: Option<[f64; 2]>| {
        for (index, database) in databases.iter().enumerate() {
            let share = shares.map_or("-".to_owned(), |shares| format!("{:.0}", shares[index]));
            database.run(&["limit", &share]).unwrap();
        }
    };
    let sum = |shares: [f64; 2]| Some(shares.iter().sum());
    let mut rows = vec![Row {
        what: "shares moved".to_owned(),
        measured: moved.measured,
        reserved: sum(means),
        third: third_percent,
    }];
    for (what, shares) in [("the means of them, fixed", means), ("their peaks, fixed", peaks)] {
        limit(Some(shares));
        rows.push(row(what, databases, &third, sum(shares)));
    }
    limit(None);
    rows.push(row("no limits", databases, &third, None));
    third.weigh(LEAST_WEIGHT);
    rows.push(row("no limits, the third user's weight a hundredth", databases, &third, None));

    eprintln!(
        "phases of {} s with moved shares, {} s else; settled intervals of {INTERVAL_S} s",
        CONTROLLED.0, FIXED.0
    );
    eprintln!(
        "| run | before, ms | after, ms | on target, faster, slower | reserved, % of a core | third user's CPU, % of a core |"
    );
    rows.iter().for_each(Row::say);
    told.iter().for_each(|(why, intervals)| eprintln!("{intervals} intervals {why}"));
    eprintln!("{untold} intervals off target for no reason that the decision knows");

    let [moved, fixed, ..] = rows.as_slice() else { unreachable!() };
    let [on, faster, slower] = moved.intervals();
    assert!(fixed.worst_ms() > MISSED * moved.worst_ms(), "{:.1} and {:.1} ms", fixed.worst_ms(), moved.worst_ms());
    assert!(2 * untold <= on + faster + slower, "most intervals are on target or have a reason: {untold}");
    assert!(moved.reserved < sum(peaks), "less is reserved than by fixed peaks: {:?} and {peaks:?}", moved.reserved);
}
