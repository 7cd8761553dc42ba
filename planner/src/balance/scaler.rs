//! The scaler (Eq. 4.8–4.10 and Table 4.2): how far each share may move in one control interval, by how far the
//! performance is from its target and how loaded the resource is.
//! In: the error, and each share with its use. Out: its bounds. Called by [`application`](super::application).

pub use gleaner_types::application::Load;
use gleaner_types::units::Fraction;

use super::{Resource, margin};

/// Utilisation up to which a resource counts as under-loaded, and from which it counts as overloaded. Chosen: the paper
/// names the three conditions and no numbers. Half of a share is enough: over 30 s it is a mean of busier and calmer times.
pub(crate) const UNDER_LOAD: f64 = 0.5;
/// Utilisation from which a resource counts as overloaded. Chosen, as [`UNDER_LOAD`] is.
pub(crate) const OVERLOAD: f64 = 0.9;
/// Error from which a target counts as missed. Chosen.
pub(crate) const MISSED: f64 = 0.1;
/// Errors that change the bounds of an under-loaded resource.
const FASTER: f64 = -0.1;
const MUCH_SLOWER: f64 = 0.5;

/// How loaded a share is, by the part of it that is used. What cannot be measured counts as saturated, which moves it
/// least.
#[must_use]
pub fn load(utilisation: Option<Fraction>) -> Load {
    match utilisation.map(Fraction::value) {
        None => Load::Saturated,
        Some(used) if used < UNDER_LOAD => Load::Under,
        Some(used) if used < OVERLOAD => Load::Saturated,
        Some(_) => Load::Over,
    }
}

/// Error of the performance: e = 1 − ȳ with ȳ = target over response time, so that negative is faster than the target.
/// Clamped to −1 … 1 as Eq. 3.1 does, because ȳ has no bound when an application idles.
#[must_use]
pub fn error(target_ms: f64, mean_ms: f64) -> f64 {
    (1.0 - target_ms / mean_ms).clamp(-1.0, 1.0)
}

/// Bounds of one share: absolute, on the scale of `present` (v̄), from `floor` (m_r) to `ceiling`.
#[must_use]
pub fn bounds(resource: Resource, load: Load, error: f64, present: f64, floor: f64, ceiling: f64) -> (f64, f64) {
    // Eq. 4.8 with ȳ_ref = 1.
    let step = margin(resource) * ((10.0 * error).abs() + 1.0) * present;
    let (down, up) = match load {
        // "ub = 2·e·s" would cross the lower bound for e < −0.5.
        Load::Under if error < FASTER => (-step, (2.0 * error * step).max(-step)),
        Load::Under if error > MUCH_SLOWER => (0.0, step),
        Load::Under => (-step, step),
        Load::Saturated if error < 0.0 => (-0.5 * step, 0.0),
        Load::Saturated => (0.0, step),
        Load::Over => (0.5 * step, step),
    };
    let lower = (present + down).max(floor).min(ceiling);
    (lower, (present + up).max(lower).min(ceiling.max(lower)))
}

/// The least that bounds may lower a share to: where its resource would have the next heavier load if as much of it is used
/// as now, and while the application is too slow no further than the step of an error of zero. Ours: a step grows with the
/// error, so that beyond e = −0.5 Table 4.2 takes more than there is, and an application that is too slow would lose the
/// faster what a wrong model does not value the slower it gets.
///
/// Where the application is much faster than its target, a share keeps also what queues need: requests that find a part u of
/// it used take 1/(1 − u) times as long, so that with a part f of the share they take (1 − u)/(f − u) times as long as now.
/// That is at most ȳ = 1 − e. However the response time is made up of its shares' parts, all of them together then miss no
/// target. A model that is linear in the shares does not see how much steeper it gets below.
#[must_use]
pub fn least(resource: Resource, utilisation: Option<Fraction>, error: f64, present: f64) -> f64 {
    let border = match load(utilisation) {
        Load::Under => UNDER_LOAD,
        Load::Saturated | Load::Over => OVERLOAD,
    };
    let used = utilisation.map_or(0.0, |used| present * used.value() / border);
    let step = if error > 0.0 { (1.0 - margin(resource)) * present } else { 0.0 };
    let queue = match utilisation.map(|used| used.value().min(1.0)) {
        Some(used) if error < FASTER => present * (used + (1.0 - used) / (1.0 - error)),
        _ => 0.0,
    };
    used.min(present).max(step).max(queue)
}

/// What arbitration leaves of a share in the next interval: as much as is used now without an overload, or all but the step of an
/// error of zero, where that is less. Ours: a model is linear nearby only, and its gain tells nothing of what a share is worth
/// below what is used of it. Of shares that are no more than their host, room for the difference stays to be arbitrated.
/// Where the use is not known nothing is left.
#[must_use]
pub fn in_use(resource: Resource, utilisation: Option<Fraction>, present: f64) -> f64 {
    let used = utilisation.map_or(0.0, |used| present * used.value() / OVERLOAD);
    used.min((1.0 - margin(resource)) * present)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_4_2_cell_by_cell() {
        let present = 0.4;
        let cell = |load, error| {
            let step = 0.05 * (f64::abs(10.0 * error) + 1.0) * present;
            let (lower, upper) = bounds(Resource::Cpu, load, error, present, 0.0, 1.0);
            ((lower - present) / step, (upper - present) / step)
        };
        let near = |seen: (f64, f64), down: f64, up: f64| {
            assert!((seen.0 - down).abs() < 1e-9 && (seen.1 - up).abs() < 1e-9, "{seen:?}, not {down}, {up}");
        };
        near(cell(Load::Under, -0.2), -1.0, -0.4);
        near(cell(Load::Under, -0.8), -1.0, -1.0);
        near(cell(Load::Under, 0.0), -1.0, 1.0);
        near(cell(Load::Under, 0.3), -1.0, 1.0);
        near(cell(Load::Under, 0.7), 0.0, 1.0);
        near(cell(Load::Saturated, -0.3), -0.5, 0.0);
        near(cell(Load::Saturated, 0.3), 0.0, 1.0);
        near(cell(Load::Over, -0.3), 0.5, 1.0);
        near(cell(Load::Over, 0.3), 0.5, 1.0);
    }

    #[test]
    fn floors_and_ceilings_are_kept_and_bounds_never_cross() {
        assert_eq!(bounds(Resource::Disk, Load::Under, -1.0, 0.2, 0.15, 1.0), (0.15, 0.15));
        assert_eq!(bounds(Resource::Disk, Load::Over, 1.0, 0.5, 0.1, 0.55), (0.55, 0.55));
        assert_eq!(bounds(Resource::Disk, Load::Over, 1.0, 0.7, 0.1, 0.5), (0.5, 0.5));
        assert!((error(100.0, 200.0) - 0.5).abs() < 1e-12 && (error(100.0, 1.0) + 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_in_use_is_left_without_an_overload_or_but_for_a_step() {
        let of = |used: Option<f64>| in_use(Resource::Cpu, used.map(Fraction::clamped), 0.4);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got}, not {want}");
        near(of(Some(0.54)), 0.4 * 0.6);
        near(of(Some(0.87)), 0.4 * 0.95);
        near(of(Some(1.0)), 0.4 * 0.95);
        near(of(None), 0.0);
    }

    #[test]
    fn conditions_of_load() {
        let of = |used: f64| load(Some(Fraction::clamped(used)));
        assert_eq!(
            [of(0.3), of(0.8), of(0.95), load(None)],
            [Load::Under, Load::Saturated, Load::Over, Load::Saturated]
        );
    }

    #[test]
    fn a_share_shrinks_no_further_than_to_the_next_heavier_load() {
        let of = |used: Option<f64>, error| least(Resource::Disk, used.map(Fraction::clamped), error, 0.4);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got}, not {want}");
        near(of(Some(0.25), -0.1), 0.2);
        near(of(Some(0.45), -0.1), 0.36);
        near(of(Some(0.6), -0.1), 0.4 * 0.6 / 0.9);
        // Twice as fast as the target: a queue takes (1 − 0.6)/(0.8 − 0.6) = 2 times as long with four fifths of the share.
        near(of(Some(0.6), -1.0), 0.4 * 0.8);
        near(of(Some(0.1), -1.0), 0.4 * 0.55);
        near(of(None, -1.0), 0.0);
        // Too slow: by a tenth at most, the margin of a disk.
        near(of(Some(0.1), 0.4), 0.36);
    }
}
