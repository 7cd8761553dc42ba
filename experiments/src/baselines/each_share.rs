//! Controllers of one resource on several: one for each share, none of which knows of the others. In: an application's
//! observation. Out: the shares that they ask for. Called by [`crate::bconf`].

use gleaner_planner::balance::Share;
use gleaner_planner::balance::application::{Observation, ObservedShare, Request, hold};
use gleaner_planner::policy::Policy;
use gleaner_planner::single_resource::{Observed, SingleResource};
use gleaner_types::units::CoreShare;

/// What a share of 1 is taken for: these controllers count in percent of a core, whatever they control.
const WHOLE_CORES: u32 = 8;

/// A controller for each share.
pub struct EachShare {
    new: Box<dyn Fn() -> Box<dyn SingleResource>>,
    own: Vec<Box<dyn SingleResource>>,
}

impl EachShare {
    /// `new` makes a controller.
    #[must_use]
    pub fn new(new: Box<dyn Fn() -> Box<dyn SingleResource>>) -> Self {
        Self { new, own: Vec::new() }
    }
}

impl Policy for EachShare {
    fn request(&mut self, observed: &Observation, _: CoreShare) -> Request {
        let Some(mean_ms) = observed.mean_ms else { return hold(observed) };
        let whole = CoreShare::from_cores(WHOLE_CORES);
        self.own.resize_with(observed.shares.len(), &self.new);
        let next = |(own, seen): (&mut Box<dyn SingleResource>, &ObservedShare)| {
            let next = own.next(&Observed {
                allocation: whole * seen.share.part(),
                response_ms: Some(mean_ms),
                utilisation: seen.utilisation,
                target_ms: observed.target_ms,
                floor: whole * seen.floor.part(),
                ceiling: whole * seen.ceiling.part(),
            });
            Share::clamped(next.percent() / whole.percent())
        };
        let shares = self.own.iter_mut().zip(&observed.shares).map(next).collect();
        // Nothing is known but the present point: in proportion.
        let gain = |seen: &ObservedShare| (observed.target_ms / mean_ms).min(2.0) / seen.share.part().max(1e-9);
        Request::without_model(observed, shares, observed.shares.iter().map(gain).collect())
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::balance::Resource;
    use gleaner_types::units::Fraction;

    use super::super::adaptive_pi::AdaptivePi;
    use super::*;

    #[test]
    fn each_share_is_moved_by_itself() {
        let seen = |share, used| ObservedShare {
            resource: Resource::Cpu,
            share: Share::clamped(share),
            utilisation: Some(Fraction::clamped(used)),
            floor: Share::clamped(0.01),
            ceiling: Share::clamped(1.0),
        };
        let shares = vec![seen(0.5, 0.8), seen(0.2, 0.5)];
        let mut observed =
            Observation { target_ms: 100.0, mean_ms: Some(150.0), unanswered: 0, miss_rate: None, shares };
        let mut control = EachShare::new(Box::new(|| Box::new(AdaptivePi::new(1.0))));
        let request = control.request(&observed, CoreShare::ZERO);
        // By half of what is used: 0.5 + 0.2 and 0.2 + 0.05.
        let parts: Vec<f64> = request.shares.iter().map(|share| share.part()).collect();
        assert!((parts[0] - 0.7).abs() < 1e-9 && (parts[1] - 0.25).abs() < 1e-9, "{parts:?}");
        observed.mean_ms = None;
        let held = control.request(&observed, CoreShare::ZERO);
        assert_eq!(held.shares, [Share::clamped(0.5), Share::clamped(0.2)]);
    }
}
