//! A decision about a job's size, in words. In: the decision. Out: its lines, with what the model of the job's stages says beside its
//! rate. Called by `commands::explain`.

use gleaner_types::job::{Decision, IoKnot, Samples};
use gleaner_types::stages::{DecidedBy, StageOpinion, StageSize};
use gleaner_types::text::counted;

use crate::format::{CpuUnit, candidates, clean, deadline, goal, seconds};

/// Sizes in the line of what the model of a job's stages predicts. Chosen: `--json` has all.
const MOST_SIZES: usize = 12;

/// A decision with its candidates.
pub(crate) fn decision(decision: &Decision, unit: CpuUnit) -> String {
    let mut lines = vec![
        format!("decision {} about job {} at {}", decision.number, decision.job, decision.at),
        format!("  {}", clean(&decision.reason)),
        format!(
            "  bound by {}; size {} → {}; goal {}",
            serde_json::to_value(decision.bound)
                .ok()
                .and_then(|word| word.as_str().map(|word| word.replace('_', " ")))
                .unwrap_or_default(),
            decision.size_before,
            decision.size,
            goal(decision.goal)
        ),
    ];
    if let Some(left) = decision.deadline_in_s {
        lines.push(format!("  {}", deadline(left)));
    }
    lines.push(format!("  {:.1} % of the work left, {} spent", decision.remaining.value() * 100.0, decision.spent));
    if let Some(rate) = decision.processing_rate {
        lines.push(format!("  one core does {:.3} % of the work a minute", rate * 100.0 * 60.0 * 100.0));
    }
    if let Some(ratio) = decision.yield_ratio {
        lines.push(format!("  workers use {:.0} % of what they could", ratio * 100.0));
    }
    if !decision.io_curve.is_empty() {
        lines.push(format!("  seen so far: {}", io_curve(&decision.io_curve, unit)));
    }
    if decision.assumed {
        lines.push("  nothing was seen of what volunteers bring: half of what they could is assumed".to_owned());
    }
    lines.extend(samples(&decision.samples));
    lines.extend(decision.stages.iter().flat_map(|opinion| stages(opinion, decision)));
    lines.push(candidates(&decision.candidates, decision.size, unit));
    if decision.considered as usize > decision.candidates.len() {
        lines.push(format!("({} candidates were considered; these are around the chosen one)", decision.considered));
    }
    lines.join("\n")
}

/// How many seconds say what the cluster can do, and why the others do not.
fn samples(samples: &Samples) -> Option<String> {
    let rejected = samples.rejected.iter().map(|own| format!("{} s {}", own.seconds, own.reason.words()));
    let rejected: Vec<String> = rejected.collect();
    let not = if rejected.is_empty() { String::new() } else { format!("; not counted: {}", rejected.join(", ")) };
    let seen = samples.taken > 0 || !samples.rejected.is_empty();
    seen.then(|| format!("  learned from {} s since the decision before{not}", samples.taken))
}

/// Which of the models decided, of a job's rate and of its stages, and what the other would have done.
fn stages(opinion: &StageOpinion, decision: &Decision) -> Vec<String> {
    let found = match opinion {
        StageOpinion::Unknown { reason } => {
            return vec![format!("  decided by its rate; the model of its stages says nothing: {}", clean(reason))];
        }
        StageOpinion::Predicted(found) => found,
    };
    let taken =
        found.of(decision.size).map(|own| format!(", done in {}", seconds(own.completion_s))).unwrap_or_default();
    let is_deadline = decision.deadline_in_s.is_some();
    let by_rate = counted(found.rate_size, "volunteer");
    let line = match found.decided_by {
        DecidedBy::Stages => {
            let late = found
                .of(found.rate_size)
                .map_or_else(String::new, |own| format!(", in {} by the stages", seconds(own.completion_s)));
            let rate = seconds(found.rate_s);
            format!(
                "  decided by the model of its stages{taken}; its rate alone would take {by_rate}, done in {rate} by the rate{late}"
            )
        }
        DecidedBy::Rate => {
            let alone = match found.stages_size {
                Some(size) => format!("the model of its stages alone would take {}", counted(size, "volunteer")),
                None if is_deadline => "by the model of its stages no size is in time".to_owned(),
                None => "the model of its stages decides about deadlines only".to_owned(),
            };
            let taken = if taken.is_empty() { taken } else { format!(" (with this size{taken})") };
            format!("  decided by its rate; {alone}{taken}")
        }
    };
    let size = |own: &StageSize| {
        let again =
            if own.again > 0 { format!(" ({} run again)", counted(own.again, "finished task")) } else { String::new() };
        format!("{}: {}{again}", own.size, seconds(own.completion_s))
    };
    let sizes: Vec<String> = found.sizes.iter().take(MOST_SIZES).map(size).collect();
    let more = if found.sizes.len() > MOST_SIZES { ", …" } else { "" };
    vec![line, format!("  by its stages done with so many volunteers in {}{more}", sizes.join(", "))]
}

/// A cluster's actual productivity, as a function of its potential.
fn io_curve(knots: &[IoKnot], unit: CpuUnit) -> String {
    let point = |knot: &IoKnot| {
        let disk = knot.disk.map(|disk| format!(" (disks {:.0} % busy)", disk.value() * 100.0)).unwrap_or_default();
        format!("{} of {}{disk}", unit.show(knot.actual), unit.in_words(knot.potential))
    };
    knots.iter().map(point).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gleaner_types::id::JobId;
    use gleaner_types::job::{Bound, Candidate, Goal, Unsampled, UnsampledFor};
    use gleaner_types::stages::StagePrediction;
    use gleaner_types::time::Timestamp;
    use gleaner_types::units::{CoreShare, Dollars, Fraction};

    use super::*;

    fn sized(size: u32, bound: Bound, stages: Option<StageOpinion>) -> Decision {
        let candidate = Candidate {
            size,
            potential: CoreShare::from_cores(1),
            predicted: CoreShare::from_cores(1),
            completion_s: 100.0,
            cost: Dollars::ZERO,
            energy_wh: None,
            meets_goal: true,
            score: 0.0,
        };
        Decision {
            job: JobId::new("words").unwrap(),
            number: 3,
            at: Timestamp(0),
            goal: Goal::Deadline { within_s: 300.0 },
            deadline_in_s: Some(215.0),
            spent: Dollars::ZERO,
            remaining: Fraction::clamped(0.5),
            processing_rate: None,
            yield_ratio: None,
            io_curve: Vec::new(),
            samples: Samples::default(),
            assumed: false,
            size_before: 1,
            size,
            selection: BTreeMap::new(),
            reason: "why".to_owned(),
            candidates: vec![candidate],
            considered: 1,
            bound,
            stages,
        }
    }

    fn prediction(decided_by: DecidedBy, stages_size: Option<u32>) -> StagePrediction {
        let sizes = vec![
            StageSize { size: 0, completion_s: 360.0, again: 40 },
            StageSize { size: 1, completion_s: 100.0, again: 0 },
        ];
        StagePrediction { decided_by, rate_size: 0, rate_s: 200.0, stages_size, meets_goal: true, sizes }
    }

    fn about_stages(decision: &Decision) -> Vec<String> {
        decision.stages.iter().flat_map(|opinion| stages(opinion, decision)).collect()
    }

    #[test]
    fn it_is_said_what_was_seen_and_what_was_assumed() {
        let mut blind = sized(1, Bound::Cost, None);
        assert!(!decision(&blind, CpuUnit::Cores).contains("learned"), "one machine");
        let rejected = vec![
            UnsampledFor { reason: Unsampled::Changed, seconds: 5 },
            UnsampledFor { reason: Unsampled::SettingUp, seconds: 55 },
        ];
        (blind.assumed, blind.samples) = (true, Samples { taken: 0, rejected });
        let whole = decision(&blind, CpuUnit::Cores);
        let line = "learned from 0 s since the decision before; not counted: 5 s just after a change, 55 s while volunteers were set up";
        assert!(whole.contains(line) && whole.contains("half of what they could is assumed"), "{whole}");
    }

    #[test]
    fn it_is_said_which_model_decided_and_what_the_other_would_have_done() {
        let found = prediction(DecidedBy::Stages, Some(1));
        let by_stages = sized(1, Bound::Stages, Some(StageOpinion::Predicted(found)));
        let lines = about_stages(&by_stages);
        assert_eq!(
            lines,
            [
                "  decided by the model of its stages, done in 1 min 40 s; its rate alone would take 0 volunteers, done in 3 min 20 s by \
                 the rate, in 6 min 00 s by the stages",
                "  by its stages done with so many volunteers in 0: 6 min 00 s (40 finished tasks run again), 1: 1 min 40 s",
            ]
        );
        // docs/autoscale.md shows just these.
        let manual = include_str!("../../docs/autoscale.md");
        lines.iter().for_each(|line| assert!(manual.contains(line.trim()), "{line}"));
        let whole = decision(&by_stages, CpuUnit::Cores);
        assert!(whole.contains("bound by stages; size 1 → 1") && whole.contains(&lines.join("\n")), "{whole}");
    }

    #[test]
    fn where_the_rate_decided_it_is_said_what_the_stages_would_have_done() {
        let says = |size, found| {
            about_stages(&sized(size, Bound::Deadline, Some(StageOpinion::Predicted(found)))).swap_remove(0)
        };
        assert_eq!(
            says(1, prediction(DecidedBy::Rate, Some(1))),
            "  decided by its rate; the model of its stages alone would take 1 volunteer (with this size, done in 1 min 40 s)"
        );
        assert_eq!(
            says(7, prediction(DecidedBy::Rate, None)),
            "  decided by its rate; by the model of its stages no size is in time"
        );
        let mut by_cost = sized(1, Bound::Cost, Some(StageOpinion::Predicted(prediction(DecidedBy::Rate, None))));
        by_cost.deadline_in_s = None;
        assert!(about_stages(&by_cost)[0].contains("the model of its stages decides about deadlines only"));
        let unknown = StageOpinion::Unknown { reason: "no\nanswer".to_owned() };
        assert_eq!(
            about_stages(&sized(1, Bound::Deadline, Some(unknown))),
            ["  decided by its rate; the model of its stages says nothing: no?answer"]
        );
        assert!(about_stages(&sized(1, Bound::Deadline, None)).is_empty());
    }

    #[test]
    fn of_many_sizes_the_first_are_shown() {
        let mut found = prediction(DecidedBy::Rate, None);
        found.sizes = (0..30).map(|size| StageSize { size, completion_s: 60.0, again: 0 }).collect();
        let lines = about_stages(&sized(1, Bound::Deadline, Some(StageOpinion::Predicted(found))));
        assert!(lines[1].ends_with(", 11: 1 min 00 s, …"), "{lines:?}");
    }
}
