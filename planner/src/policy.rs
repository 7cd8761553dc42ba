//! Who finds the shares of an application with a response-time target: the trait, and the policies that an operator may
//! choose. In: what was observed in a control interval, from `controller::applications`. Out: a [`Request`], which
//! `balance::arbitration` may cut. The crate `gleaner-experiments` brings the baselines that the papers compare with.

use gleaner_types::application::Control;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use crate::balance::Share;
use crate::balance::application::{Application, Observation, ObservedShare, Request, Settings, hold};
use crate::single_resource::{self, Observed, SingleResource};

/// Finds the shares of one application, one control interval after the other.
pub trait Policy {
    /// What the application asks for in the next interval. Without a response time it holds what it has, but
    /// for what is used up ([`hold`]). `host_cpu` is all CPU of the host of its first share, for policies that count in it.
    fn request(&mut self, observed: &Observation, host_cpu: CoreShare) -> Request;
}

/// A policy that an operator chose, in the form in which it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Controlling {
    /// All shares in balance.
    Balance(Box<Application>),
    /// The only one, of a CPU.
    Single(Box<SingleShare<single_resource::Controller>>),
}

impl Controlling {
    /// The policy of that name, knowing nothing yet.
    #[must_use]
    pub fn new(control: Control) -> Self {
        match single_resource::Controller::new(control) {
            Some(single) => Self::Single(Box::new(SingleShare(single))),
            None => Self::Balance(Box::new(Application::new(Settings::default()))),
        }
    }

    /// Takes one of the shares on another scale: what it was until now is `factor` times as much.
    pub fn rescale(&mut self, index: usize, factor: f64) {
        match self {
            Self::Balance(policy) => policy.rescale(index, factor),
            // It counts in percent of a core.
            Self::Single(_) => {}
        }
    }
}

impl Policy for Controlling {
    fn request(&mut self, observed: &Observation, host_cpu: CoreShare) -> Request {
        match self {
            Self::Balance(policy) => policy.request(observed, host_cpu),
            Self::Single(policy) => policy.request(observed, host_cpu),
        }
    }
}

impl Policy for Application {
    fn request(&mut self, observed: &Observation, _: CoreShare) -> Request {
        self.step(observed)
    }
}

/// A controller of one resource as a policy: it moves the first share, which is of a CPU, and holds the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SingleShare<C>(pub C);

impl<C: SingleResource> Policy for SingleShare<C> {
    fn request(&mut self, observed: &Observation, host_cpu: CoreShare) -> Request {
        let mut shares: Vec<Share> = observed.shares.iter().map(|share| share.share).collect();
        let mut gains = vec![0.0; shares.len()];
        let seen = |first: &ObservedShare, response_ms: Option<f64>| Observed {
            allocation: host_cpu * first.share.part(),
            response_ms,
            utilisation: first.utilisation,
            target_ms: observed.target_ms,
            floor: host_cpu * first.floor.part(),
            ceiling: host_cpu * first.ceiling.part(),
        };
        // It is told of every gap: of one that no interval stands for too.
        if let Some(first) = observed.shares.first().filter(|_| observed.unanswered > 0 || observed.mean_ms.is_none()) {
            self.0.next(&seen(first, None));
        }
        let Some(mean_ms) = observed.mean_ms else { return hold(observed) };
        if let Some(first) = observed.shares.first() {
            let next = self.0.next(&seen(first, Some(mean_ms)));
            shares[0] = Share::clamped(next.percent() / host_cpu.percent().max(1e-9));
            // Nothing is known of it but the present point: in proportion.
            gains[0] = (observed.target_ms / mean_ms).min(2.0) / first.share.part().max(1e-9);
        }
        Request::without_model(observed, shares, gains)
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;

    use super::*;
    use crate::balance::Resource;
    use crate::snapshot::VERSION;
    use crate::snapshot::tune::{TuneQuestion, TunedInterval, tune};

    fn observation(mean_ms: Option<f64>) -> Observation {
        let share = ObservedShare {
            resource: Resource::Cpu,
            share: Share::clamped(0.5),
            utilisation: Some(Fraction::clamped(0.9)),
            floor: Share::clamped(0.1),
            ceiling: Share::clamped(0.75),
        };
        Observation { target_ms: 100.0, mean_ms, unanswered: 0, miss_rate: None, shares: vec![share] }
    }

    #[test]
    fn one_share_is_moved_in_parts_of_its_host() {
        let host_cpu = CoreShare::from_cores(4);
        let mut policy = Controlling::new(Control::Stfc);
        // 200 % of a core, e = −1/2: K = 200/2 · 1/2 = 50, Δu = 1/2: 225 of 400.
        let request = policy.request(&observation(Some(150.0)), host_cpu);
        assert!((request.shares[0].part() - 0.5625).abs() < 1e-9, "{request:?}");
        // Performance 2/3 with half of the host.
        assert!((request.gains[0] - 4.0 / 3.0).abs() < 1e-9, "{request:?}");
        let error = request.error.unwrap();
        assert!((error - 1.0 / 3.0).abs() < 1e-9, "positive is slower: {error}");
        assert_eq!(request.bounds, [(Share::clamped(0.1), Share::clamped(0.75))]);
    }

    /// Production tells a controller of a gap as `gleaner plan tune` does, whether an interval stands for it or not.
    #[test]
    fn a_policy_after_a_gap_decides_as_the_plan_does() {
        let host_cpu = CoreShare::from_cores(4);
        let interval = |mean_ms| TunedInterval { allocation_percent: 200.0, mean_ms, utilisation: Some(0.9) };
        let planned = tune(
            &TuneQuestion {
                version: VERSION,
                control: "stfc".to_owned(),
                target_ms: 100.0,
                floor_percent: 40.0,
                ceiling_percent: 300.0,
                intervals: [Some(30.0), None, Some(150.0)].map(interval).to_vec(),
            },
            &single_resource::CONTROLLERS,
        );
        let planned = planned.unwrap().allocation_percent / host_cpu.percent();
        for gap in [Some(observation(None)), None] {
            let mut policy = Controlling::new(Control::Stfc);
            policy.request(&observation(Some(30.0)), host_cpu);
            gap.iter().for_each(|gap| _ = policy.request(gap, host_cpu));
            let after = Observation { unanswered: 1, ..observation(Some(150.0)) };
            let decided = policy.request(&after, host_cpu).shares[0].part();
            assert!((decided - planned).abs() < 1e-9, "{decided} and {planned}");
        }
    }

    #[test]
    fn without_a_response_time_every_policy_holds() {
        for control in [Control::Balance, Control::Stfc] {
            let next = |used| {
                let mut observation = observation(None);
                observation.shares[0].utilisation = Some(Fraction::clamped(used));
                let request = Controlling::new(control).request(&observation, CoreShare::from_cores(4));
                assert_eq!(request.error, None, "{control:?}");
                request.shares[0].part()
            };
            assert_eq!((next(0.89), next(0.9)), (0.5, 0.75), "{control:?}: what is used up grows to its ceiling");
        }
    }
}
