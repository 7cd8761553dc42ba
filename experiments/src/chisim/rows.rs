//! What is told of the runs. In: outcomes. Out: figures, rows of detail, curves. Called by [`super::reproduce`].

use gleaner_planner::reservations::forecast::{Forecaster, Scale, walk_forward};
use gleaner_planner::reservations::history::{HOUR_S, History, Request};
use gleaner_planner::reservations::learnt::Learnt;
use gleaner_planner::reservations::preemption::Preemption;
use gleaner_simulator::leases::CloudTrace;

use super::plant::{Outcome, is_in_advance};
use super::played::{Cell, Played};
use crate::{Detail, Figure, Reproduction, Series};

/// A figure's names: of the recorded trace, and of a generated one.
type Id = (&'static str, &'static str);

const UTILISATION_LEASES: Id = ("chisim.utilisation_leases", "chisim.generated.utilisation_leases");
const UTILISATION_FILLED: Id = ("chisim.utilisation_filled", "chisim.generated.utilisation_filled");
const UTILISATION_GAIN: Id = ("chisim.utilisation_gain", "chisim.generated.utilisation_gain");
const UTILISATION_GIVEN_UP: Id = ("chisim.utilisation_given_up", "chisim.generated.utilisation_given_up");
const SUDDEN_GREEDY: Id = ("chisim.sudden_greedy", "chisim.generated.sudden_greedy");
const SUDDEN_MEDIAN: Id = ("chisim.sudden_median", "chisim.generated.sudden_median");
const SUDDEN_MEAN: Id = ("chisim.sudden_mean", "chisim.generated.sudden_mean");
const SUDDEN_LSTM: Id = ("chisim.sudden_lstm", "chisim.generated.sudden_lstm");
const SUDDEN_CHANGE: Id = ("chisim.sudden_change", "chisim.generated.sudden_change");
const WASTE_BEST: Id = ("chisim.waste_best", "chisim.generated.waste_best");
const WASTE_GREEDY: Id = ("chisim.waste_greedy", "chisim.generated.waste_greedy");
const OURS_WASTE: Id = ("chisim.ours_waste", "chisim.generated.ours_waste");
const OURS_SUDDEN: Id = ("chisim.ours_sudden", "chisim.generated.ours_sudden");

/// The week that is plotted begins after the forecasters' first week and one more.
const PLOTTED_WEEK: usize = 2;
/// Hours of a week.
const WEEK_H: usize = 168;

pub(super) fn rows(out: &mut Reproduction, played: &Played, forecasters: &[Forecaster]) {
    figures(out, played);
    details(out, played, forecasters);
    curves(out, "chisim-week-ours", &played.ours);
    if let Some(best) = best(&played.predictive, |cell| cell.outcome.waste) {
        curves(out, "chisim-week-paper", &best.outcome);
    }
}

/// A forecaster's name, by the word for it.
pub(super) fn name(word: &str) -> String {
    if word == "lstm" { "LSTM".to_owned() } else { format!("rolling {word}") }
}

fn best(cells: &[Cell], of: impl Fn(&Cell) -> f64) -> Option<&Cell> {
    cells.iter().min_by(|a, b| of(a).total_cmp(&of(b)))
}

/// The least and the most of cells.
fn range<'a>(cells: impl Iterator<Item = &'a Cell>, of: impl Fn(&Outcome) -> f64) -> Option<(f64, f64)> {
    let values: Vec<f64> = cells.map(|cell| of(&cell.outcome)).collect();
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    Some((least, values.into_iter().max_by(f64::total_cmp)?))
}

/// How much less often nodes are taken without notice than by greedy filling with the same policy, in percent; negative is less.
fn sudden_change(outcome: &Outcome, greedy: &Outcome) -> f64 {
    100.0 * (outcome.sudden as f64 / greedy.sudden.max(1) as f64 - 1.0)
}

fn change_of(cell: &Cell, greedy: &[Cell]) -> Option<f64> {
    let same = greedy.iter().find(|own| own.preemption == cell.preemption)?;
    Some(sudden_change(&cell.outcome, &same.outcome))
}

fn figures(out: &mut Reproduction, played: &Played) {
    let Played { leases, greedy, predictive, ours, .. } = played;
    let mut figure = |id: Id, paper: f64, ours: Option<f64>, unit, target: (String, bool), note: String| {
        let id = if played.generated { id.1 } else { id.0 };
        let paper = (!played.generated).then_some(paper);
        out.figures.push(Figure::new(id, paper, ours, unit, target, note));
    };
    let published = |(least, most): (f64, f64), ours: Option<f64>| {
        (format!("{least} to {most}"), ours.is_some_and(|ours| (least..=most).contains(&ours)))
    };
    // Published outcomes.
    let alone = Some(leases.utilisation.leased_at_ends);
    figure(
        UTILISATION_LEASES,
        24.77,
        alone,
        "%",
        published((24.0, 25.5), alone),
        "cores in use by leases alone, mean over the ends of leases as in the paper".to_owned(),
    );
    let filled = range(predictive.iter(), |outcome| outcome.utilisation.at_ends);
    let least = filled.map(|(least, _)| least);
    figure(
        UTILISATION_FILLED,
        97.7,
        least,
        "%",
        ("at least 97.7".to_owned(), least.is_some_and(|least| least >= 97.7)),
        "the same of the paper's forecasters and policies, the least of them".to_owned(),
    );
    let gain = Some(ours.utilisation.at_ends - leases.utilisation.leased_at_ends);
    figure(
        UTILISATION_GAIN,
        75.9,
        gain,
        "points",
        ("at least 74.4".to_owned(), gain.is_some_and(|gain| gain >= 74.4)),
        "ours beyond the leases alone; the paper has 74.4 to 75.9".to_owned(),
    );
    let greedy_use = range(greedy.iter(), |outcome| outcome.utilisation.over_time).map(|(_, most)| most);
    let given_up = greedy_use.map(|most| most - ours.utilisation.over_time);
    figure(
        UTILISATION_GIVEN_UP,
        0.21,
        given_up,
        "points",
        ("at most 0.21".to_owned(), given_up.is_some_and(|given_up| given_up <= 0.21)),
        "greedy filling's mean over time less ours; the paper has 0.21 to 1.22".to_owned(),
    );
    let mut count = |id, range_of: (f64, f64), cells: Option<(f64, f64)>, note: &str| {
        let holds = cells.is_some_and(|(least, most)| range_of.0 <= least && most <= range_of.1);
        let spread = cells.map_or_else(String::new, |(least, most)| format!(" ({least:.0} to {most:.0})"));
        let middle = cells.map(|(least, most)| f64::midpoint(least, most));
        let target = format!("{} to {}", range_of.0, range_of.1);
        figure(id, f64::midpoint(range_of.0, range_of.1), middle, "nodes", (target, holds), format!("{note}{spread}"));
    };
    let sudden = |outcome: &Outcome| outcome.sudden as f64;
    let of = |forecaster| predictive.iter().filter(move |cell| cell.forecaster == Some(forecaster));
    count(
        SUDDEN_GREEDY,
        (3_707.0, 4_046.0),
        range(greedy.iter(), sudden),
        "nodes taken at once by greedy filling, all policies",
    );
    if of(Forecaster::RollingMedian).count() > 0 {
        let cells = range(of(Forecaster::RollingMedian), sudden);
        count(SUDDEN_MEDIAN, (2_166.0, 2_378.0), cells, "the same with the rolling median");
    }
    if of(Forecaster::RollingMean).count() > 0 {
        let cells = range(of(Forecaster::RollingMean), sudden);
        count(SUDDEN_MEAN, (1_652.0, 1_756.0), cells, "the same with the rolling mean");
    }
    if of(Forecaster::Lstm).count() > 0 {
        let cells = range(of(Forecaster::Lstm), sudden);
        count(SUDDEN_LSTM, (1_800.0, 1_962.0), cells, "the same with the recurrent network");
    }
    // The paper's best, and ours against it.
    let change = predictive.iter().filter_map(|cell| change_of(cell, greedy)).min_by(f64::total_cmp);
    figure(
        SUDDEN_CHANGE,
        -54.9,
        change,
        "%",
        ("at most -42.15".to_owned(), change.is_some_and(|change| change <= -42.15)),
        "nodes taken without notice against greedy filling, the best of the paper's; it has -42.15 to -54.9".to_owned(),
    );
    let best_waste = best(predictive, |cell| cell.outcome.waste);
    let waste = best_waste.map(|cell| cell.outcome.waste);
    figure(
        WASTE_BEST,
        2.09,
        waste,
        "%",
        ("at most 2.09".to_owned(), waste.is_some_and(|waste| waste <= 2.09)),
        format!(
            "wasted core hours (Eq. 1), the best of the paper's forecasters and policies: {}",
            best_waste.map_or("", |cell| cell.name.as_str())
        ),
    );
    let random = greedy.iter().find(|cell| cell.preemption == Preemption::Random).map(|cell| cell.outcome.waste);
    let worse = random.zip(waste).is_some_and(|(random, best)| random > best);
    let note = "the same of greedy filling that preempts at random".to_owned();
    figure(WASTE_GREEDY, 4.64, random, "%", ("more than waste_best".to_owned(), worse), note);
    let of_all = best(greedy, |cell| cell.outcome.waste).map(|cell| cell.outcome.waste);
    let limit = waste.into_iter().chain(of_all).fold(2.09, f64::min);
    figure(
        OURS_WASTE,
        2.09,
        Some(ours.waste),
        "%",
        (format!("at most {limit:.3}"), ours.waste <= limit),
        "ours; the target is the least of the paper, of its cells in this run and of greedy filling".to_owned(),
    );
    let greedy_least = range(greedy.iter(), sudden).map(|(least, _)| least);
    let own = greedy_least.map(|least| 100.0 * (ours.sudden as f64 / least.max(1.0) - 1.0));
    // The paper names one cell as its best: that of the least waste.
    let best_cell = best(predictive, |cell| cell.outcome.waste).and_then(|cell| change_of(cell, greedy));
    let limit = best_cell.map_or(-55.0, |change| change.min(-55.0));
    figure(
        OURS_SUDDEN,
        -54.9,
        own,
        "%",
        (format!("at most {limit:.1}"), own.is_some_and(|own| own <= limit)),
        "ours, against the best of greedy filling; the target is -55 and the cell of the paper's with the least waste in this run"
            .to_owned(),
    );
}

fn details(out: &mut Reproduction, played: &Played, forecasters: &[Forecaster]) {
    let mut case = |name: &str, outcome: &Outcome, greedy: &Outcome| {
        let mut row = |quantity, value, unit| {
            let (experiment, case) = ("filling gaps".to_owned(), name.to_owned());
            out.details.push(Detail { experiment, case, quantity, value, unit });
        };
        row("utilisation over time", outcome.utilisation.over_time, "%");
        row("utilisation at ends of leases", outcome.utilisation.at_ends, "%");
        row("given up against greedy", greedy.utilisation.over_time - outcome.utilisation.over_time, "points");
        row("waste, mean over jobs", outcome.waste, "%");
        row("waste of all core hours", outcome.waste_of_hours, "%");
        row("sudden", outcome.sudden as f64, "nodes");
        row("advanced", outcome.advanced as f64, "nodes");
        row("unused", outcome.unused as f64, "nodes");
        row("against greedy", sudden_change(outcome, greedy), "% sudden");
        row("leases' nodes not there", outcome.unmet as f64, "nodes");
        row("finished", outcome.finished as f64, "jobs");
    };
    let greedy = |preemption| played.greedy.iter().find(|cell| cell.preemption == preemption);
    for cell in played.greedy.iter().chain(&played.predictive) {
        if let Some(same) = greedy(cell.preemption) {
            case(&cell.name, &cell.outcome, &same.outcome);
        }
    }
    if let Some(best) = best(&played.greedy, |cell| cell.outcome.waste) {
        case("ours", &played.ours, &best.outcome);
        for (error, outcome) in &played.ours_with_wrong_estimates {
            case(&format!("ours, estimates wrong by {:.0} %", 100.0 * error), outcome, &best.outcome);
        }
    }
    let mut row = |quantity, value, unit| {
        let (experiment, case) = ("leases alone".to_owned(), "as recorded".to_owned());
        out.details.push(Detail { experiment, case, quantity, value, unit });
    };
    row("leases", played.trace.leases.len() as f64, "leases");
    row("nodes asked for", played.leases.taken as f64 + played.leases.unmet as f64, "nodes");
    row("utilisation over time", played.leases.utilisation.leased, "%");
    row("utilisation at ends of leases", played.leases.utilisation.leased_at_ends, "%");
    let Ok(history) = History::new(0.0, requests(&played.trace), Vec::new()) else { return };
    for (word, forecaster) in Forecaster::ALL.into_iter().filter(|(_, own)| forecasters.contains(own)) {
        let mut learnt = Learnt::default();
        let asked = (Scale::PAPER, played.seed);
        let found = walk_forward(forecaster, &mut learnt, &history, played.trace.length_s, asked);
        for (quantity, value) in
            [("mean error", found.mean_absolute), ("nodes missed", found.under), ("nodes too many", found.over)]
        {
            let (experiment, case) = ("forecasts of a slot, walk forward".to_owned(), name(word));
            out.details.push(Detail { experiment, case, quantity, value, unit: "nodes" });
        }
    }
}

/// What forecasts are of and are judged by: leases that were not made in advance.
fn requests(trace: &CloudTrace) -> Vec<Request> {
    let asked = trace.leases.iter().filter(|lease| !is_in_advance(lease));
    asked.map(|lease| Request { at_s: lease.start_s, nodes: lease.nodes }).collect()
}

/// A week of nodes.
fn curves(out: &mut Reproduction, plot: &str, outcome: &Outcome) {
    for (index, name) in ["nodes", "leased", "filled", "preempted in the hour"].into_iter().enumerate() {
        let week = outcome.hourly.iter().enumerate().skip(PLOTTED_WEEK * WEEK_H).take(WEEK_H);
        out.series.push(Series {
            plot: plot.to_owned(),
            name: name.to_owned(),
            x: "time, days",
            y: "nodes",
            points_only: false,
            points: week.map(|(hour, row)| (hour as f64 * HOUR_S / 86_400.0, row[index])).collect(),
            band: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use gleaner_simulator::leases::CloudLease;

    use super::*;

    #[test]
    fn a_lease_that_was_made_in_advance_is_no_error_of_a_forecast() {
        let slot_s = Scale::PAPER.slot_s();
        let lease = |slot: f64, ahead_s: f64, nodes| {
            let start_s = slot * slot_s;
            CloudLease { created_s: start_s - ahead_s, start_s, end_s: start_s + slot_s, nodes }
        };
        // Two nodes at once in every slot, and nine more in the last but one, known an hour before.
        let mut leases: Vec<CloudLease> = (0..60).map(|slot| lease(f64::from(slot), 60.0, 2)).collect();
        leases.insert(59, lease(58.5, HOUR_S, 9));
        let trace = CloudTrace { leases, length_s: 60.0 * slot_s, ..CloudTrace::default() };
        let history = History::new(0.0, requests(&trace), Vec::new()).unwrap();
        let asked = (Scale::PAPER, 1);
        let found = walk_forward(Forecaster::RollingMedian, &mut Learnt::default(), &history, trace.length_s, asked);
        assert!(found.slots > 0 && found.mean_absolute.abs() < 1e-9, "{found:?}");
    }
}
