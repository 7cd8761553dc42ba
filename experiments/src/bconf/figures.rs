//! Short constructors for the figures and details of this experiment. In: a figure's parts. Out: a [`Figure`], or one
//! more [`Detail`] of the reproduction. Called by the experiment, by `accuracy` and by `surge`.

use crate::{Detail, Figure, Reproduction};

pub(super) fn figure(
    id: &'static str,
    paper: impl Into<Option<f64>>,
    ours: f64,
    unit: &'static str,
    (target, holds): (&str, bool),
    note: String,
) -> Figure {
    let ours = ours.is_finite().then_some(ours);
    Figure {
        id,
        paper: paper.into(),
        ours,
        unit,
        target: target.to_owned(),
        holds: holds && ours.is_some(),
        note,
        interval: None,
    }
}

pub(super) fn detail(
    out: &mut Reproduction,
    experiment: &str,
    case: String,
    quantity: &'static str,
    value: f64,
    unit: &'static str,
) {
    out.details.push(Detail { experiment: experiment.to_owned(), case, quantity, value, unit });
}
