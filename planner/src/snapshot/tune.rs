//! Control of one resource by response time as a question and an answer, for `gleaner plan tune`. In: observed control
//! intervals. Out: the next allocation of one of the controllers of [`crate::single_resource`].

use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use super::VERSION;
use super::problems::Problems;
use crate::single_resource::{NamedController, Observed};

/// Most intervals of a question.
const MOST: usize = 100_000;

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneQuestion {
    /// [`VERSION`].
    pub version: u32,
    /// Which controller; not `balance`.
    #[serde(default = "stfc")]
    pub control: String,
    /// Target of the mean response time.
    pub target_ms: f64,
    /// Never less, in percent of one core.
    #[serde(default = "ten")]
    pub floor_percent: f64,
    /// Never more.
    pub ceiling_percent: f64,
    /// Control intervals, the last one last.
    pub intervals: Vec<TunedInterval>,
}

fn stfc() -> String {
    "stfc".to_owned()
}

const fn ten() -> f64 {
    10.0
}

/// A control interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedInterval {
    /// What the service was allowed to use, in percent of one core.
    pub allocation_percent: f64,
    /// Mean response time; null holds.
    pub mean_ms: Option<f64>,
    /// Part of the allocation that was used, in 0..=1, where known.
    #[serde(default)]
    pub utilisation: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TuneAnswer {
    /// What it gets in the next interval, in percent of one core.
    pub allocation_percent: f64,
    /// How much more that is than in the last.
    pub change_percent: f64,
    /// e(k) of Eq. 3.1: positive is faster than the target; null when the response time is not known.
    pub error: Option<f64>,
}

/// Answers a question by one of these controllers.
///
/// # Errors
/// Every field that is wrong.
pub fn tune(question: &TuneQuestion, controllers: &[NamedController]) -> Result<TuneAnswer, Problems> {
    let mut problems = Problems::default();
    let mut within = |field: String, value: f64, least: f64, most: f64| problems.within(&field, value, least, most);
    within("version".into(), question.version.into(), VERSION.into(), VERSION.into());
    within("target_ms".into(), question.target_ms, 1e-3, 3.6e6);
    within("floor_percent".into(), question.floor_percent, 0.0, 1e6);
    within("ceiling_percent".into(), question.ceiling_percent, question.floor_percent, 1e6);
    within("intervals: their number".into(), question.intervals.len() as f64, 1.0, MOST as f64);
    for (index, interval) in question.intervals.iter().enumerate() {
        within(format!("intervals[{index}].allocation_percent"), interval.allocation_percent, 0.0, 1e6);
        within(format!("intervals[{index}].mean_ms"), interval.mean_ms.unwrap_or(1.0), 0.0, 3.6e6);
        within(format!("intervals[{index}].utilisation"), interval.utilisation.unwrap_or(0.0), 0.0, 1.0);
    }
    let controller = controllers.iter().find(|(name, _)| *name == question.control).map(|(_, new)| new());
    if controller.is_none() {
        let names: Vec<&str> = controllers.iter().map(|(name, _)| *name).collect();
        let names = names.split_last().map_or_else(String::new, |(last, others)| match others {
            [] => (*last).to_owned(),
            _ => format!("{} or {last}", others.join(", ")),
        });
        let (control, whose) = match question.control.as_str() {
            "balance" => ("balance".to_owned(), ", which `gleaner plan balance` answers"),
            other => (format!("{other:?}"), ""),
        };
        problems.push(format!("control: is {control}{whose}; it must be {names}"));
    }
    let (Some(mut controller), Some(last), Ok(())) = (controller, question.intervals.last(), problems.clone().end())
    else {
        return Err(problems);
    };
    let seen = |interval: &TunedInterval| Observed {
        allocation: CoreShare::clamped(interval.allocation_percent),
        response_ms: interval.mean_ms,
        utilisation: interval.utilisation.map(Fraction::clamped),
        target_ms: question.target_ms,
        floor: CoreShare::clamped(question.floor_percent),
        ceiling: CoreShare::clamped(question.ceiling_percent),
    };
    let mut next = CoreShare::ZERO;
    for interval in &question.intervals {
        next = controller.next(&seen(interval));
    }
    Ok(TuneAnswer {
        allocation_percent: next.percent(),
        change_percent: next.percent() - last.allocation_percent,
        error: seen(last).error(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::single_resource::CONTROLLERS;

    fn question(mean_ms: Option<f64>) -> TuneQuestion {
        TuneQuestion {
            version: VERSION,
            control: stfc(),
            target_ms: 1_000.0,
            floor_percent: 100.0,
            ceiling_percent: 1_600.0,
            intervals: vec![TunedInterval { allocation_percent: 600.0, mean_ms, utilisation: Some(0.9) }],
        }
    }

    #[test]
    fn a_slow_service_gets_more_and_an_unknown_one_the_same() {
        assert!(tune(&question(Some(1_800.0)), &CONTROLLERS).unwrap().change_percent > 50.0);
        assert!(tune(&question(Some(400.0)), &CONTROLLERS).unwrap().change_percent < -20.0);
        assert_eq!(
            tune(&question(None), &CONTROLLERS).unwrap(),
            TuneAnswer { allocation_percent: 600.0, change_percent: 0.0, error: None }
        );
    }

    #[test]
    fn every_wrong_field_is_named() {
        let mut wrong = question(Some(-3.0));
        (wrong.version, wrong.ceiling_percent, wrong.control) = (7, 1.0, "balance".to_owned());
        let said = tune(&wrong, &CONTROLLERS).unwrap_err().to_string();
        for part in ["version: is 7", "ceiling_percent: is 1", "intervals[0].mean_ms: is -3", "control: is balance"] {
            assert!(said.contains(part), "{part} not in {said}");
        }
    }

    #[test]
    fn the_allowed_names_are_reported() {
        let unknown = TuneQuestion { control: "lqr".to_owned(), ..question(None) };
        assert_eq!(tune(&unknown, &CONTROLLERS).unwrap_err().to_string(), "control: is \"lqr\"; it must be stfc");
        let [own] = CONTROLLERS;
        let three = [own, ("a", own.1), ("b", own.1)];
        assert_eq!(tune(&unknown, &three).unwrap_err().to_string(), "control: is \"lqr\"; it must be stfc, a or b");
    }
}
