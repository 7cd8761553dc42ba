//! The other controllers, and at which of their settings each is best. In: seeds that no figure is reported of. Out: what becomes
//! of TPC-W with each setting, and the best ones. Called by `fair`, and by the example `tuning`.

use gleaner_planner::policy::Policy;
use gleaner_planner::single_resource::{SingleResource, Stfc};
use gleaner_simulator::service::Disturbance;

use super::figures::{detail, median};
use super::runs::{Control, Course, FOUND, Hosted, Method, changing_clients, constant_clients, enough};
use super::surge::in_parts;
use crate::Reproduction;
use crate::baselines::adaptive_pi::AdaptivePi;
use crate::baselines::arma::{Arma, Output};
use crate::baselines::autocontrol::{self, AutoControl};
use crate::baselines::each_share::EachShare;
use crate::baselines::kalman::Kalman;

/// λ of fuzzy control (Wei, Eq. 3.5), the divisor of its step. It is at least 2, because no step "should exceed half of current
/// capacity" (§3.2.3).
const LAMBDAS: [f64; 4] = [2.0, 3.0, 4.0, 8.0];
/// Intervals that an ARMA model is fitted to: half, once and twice the 20 of Wei §3.4, and as many as BConf's window has.
const WINDOWS: [usize; 4] = [10, 20, 40, 60];
/// λ of adaptive PI: around the 0.5 that suits a service whose response time is inversely proportional to its share, up to the 1.5
/// that regulates utilisation ([`adaptive_pi`](crate::baselines::adaptive_pi)).
const GAINS: [f64; 7] = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5];
/// Part of every share that should be used under the Kalman filter: below the 0.96 of Wei §3.4, which was that of one service.
const USED: [f64; 7] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];

/// Another controller, with a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rival {
    AutoControl(autocontrol::Settings),
    /// The gain.
    AdaptivePi(f64),
    /// λ.
    Stfc(f64),
    /// The part of every share that should be used.
    Kalman(f64),
    /// Intervals of its window.
    Arma(usize),
}

impl Rival {
    /// AutoControl with its settings of the least R(e) of TPC-W with constant and with changing load on seeds 1 to 5, of the 48 that
    /// `cargo run --release -p gleaner-experiments --example tuning 5 calm` tries: too many for every run.
    const AUTO_CONTROL: [Self; 2] = [
        Self::AutoControl(autocontrol::Settings { stability: 8.0, forgetting: 0.995, order: 1 }),
        Self::AutoControl(autocontrol::Settings { stability: 1.0, forgetting: 0.9, order: 2 }),
    ];

    /// The settings of each controller of one resource, one such controller for each share.
    fn grids() -> [Vec<Self>; 4] {
        [
            LAMBDAS.map(Self::Stfc).to_vec(),
            WINDOWS.map(Self::Arma).to_vec(),
            GAINS.map(Self::AdaptivePi).to_vec(),
            USED.map(Self::Kalman).to_vec(),
        ]
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::AutoControl(autocontrol::Settings { stability, forgetting, order }) => {
                format!("AutoControl of order {order}, forgetting {forgetting}, q {stability}")
            }
            Self::AdaptivePi(gain) => format!("adaptive PI {gain}"),
            Self::Stfc(lambda) => format!("fuzzy control, λ {lambda}"),
            Self::Kalman(used) => format!("Kalman {used}"),
            Self::Arma(window) => format!("ARMA over {window} intervals"),
        }
    }

    fn policy(self) -> Box<dyn Policy> {
        let new: Box<dyn Fn() -> Box<dyn SingleResource>> = match self {
            Self::AutoControl(settings) => return Box::new(AutoControl::new(settings)),
            Self::AdaptivePi(gain) => Box::new(move || Box::new(AdaptivePi::new(gain))),
            Self::Stfc(lambda) => Box::new(move || Box::new(Stfc::new(lambda))),
            Self::Kalman(used) => Box::new(move || Box::new(Kalman::with_target(used))),
            Self::Arma(window) => Box::new(move || Box::new(Arma::over(window, Output::Reciprocal))),
        };
        Box::new(EachShare::new(new))
    }

    /// TPC-W's course with the load that it has in the experiment.
    pub(super) fn run(self, hosted: &[Hosted], seed: u64) -> Course {
        let control = Control::of(Method::AutoControl, hosted.iter().map(|_| self.policy()).collect());
        in_parts(control, hosted.to_vec(), false, seed)
    }
}

/// R(e) without the first intervals, in percent: the median over seeds from 1 on, with constant and with changing load.
fn deviations(rival: Rival, scenarios: &[Vec<Hosted>; 2], seeds: u64) -> [f64; 2] {
    scenarios
        .each_ref()
        .map(|hosted| median((1..=seeds.max(1)).map(|seed| rival.run(hosted, seed).deviation_from(FOUND)).collect()))
}

fn scenarios(disturbance: Disturbance) -> [Vec<Hosted>; 2] {
    [constant_clients(), changing_clients()].map(|clients| enough(disturbance, clients))
}

/// A setting of another controller, and what becomes of TPC-W with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// The controller and its setting.
    pub rival: String,
    /// R(e) without the first intervals, in percent: the median over the seeds, with constant and with changing load.
    pub deviations: [f64; 2],
}

/// Tries settings of the other controllers on seeds from 1 on, which no figure is reported of, with services that this disturbs.
/// `progress` is told how many are done.
#[must_use]
pub fn tuning(disturbance: Disturbance, seeds: u64, progress: &dyn Fn(usize, usize)) -> Vec<Tried> {
    let mut rivals = Rival::grids().concat();
    for order in [1, 2] {
        for forgetting in [0.9, 0.95, 0.98, 0.995] {
            for stability in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0] {
                rivals.push(Rival::AutoControl(autocontrol::Settings { stability, forgetting, order }));
            }
        }
    }
    let (all, scenarios) = (rivals.len(), scenarios(disturbance));
    let tried = |(at, rival): (usize, Rival)| {
        progress(at, all);
        Tried { rival: rival.name(), deviations: deviations(rival, &scenarios, seeds) }
    };
    rivals.into_iter().enumerate().map(tried).collect()
}

/// Every other controller with its settings of the least R(e) with constant and with changing load on so many seeds from 1 on, one
/// where they are the same. What each setting gives goes to the details.
pub(super) fn best(
    out: &mut Reproduction,
    disturbance: Disturbance,
    seeds: u64,
    progress: &dyn Fn(usize, usize),
) -> Vec<Rival> {
    let (grids, scenarios) = (Rival::grids(), scenarios(disturbance));
    let all = grids.iter().map(Vec::len).sum();
    let (mut found, mut done) = (Rival::AUTO_CONTROL.to_vec(), 0);
    for grid in grids {
        let mut tried = Vec::new();
        for rival in grid {
            progress(done, all);
            done += 1;
            let of = deviations(rival, &scenarios, seeds);
            for (quantity, value) in
                ["R(e) with constant load, median", "R(e) with changing load, median"].into_iter().zip(of)
            {
                detail(out, "settings of other controllers", format!("tpcw, {}", rival.name()), quantity, value, "%");
            }
            tried.push((rival, of));
        }
        found.extend(best_of(&tried));
    }
    found
}

/// The best with each of the two loads, one where it is the same.
fn best_of(tried: &[(Rival, [f64; 2])]) -> Vec<Rival> {
    let with = |load: usize| tried.iter().min_by(|a, b| a.1[load].total_cmp(&b.1[load])).map(|(rival, _)| *rival);
    let mut found: Vec<Rival> = [0, 1].into_iter().filter_map(with).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_of_one_resource_has_several_settings_and_all_differ() {
        let all = Rival::grids().concat();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one:?}");
        }
        assert!(Rival::grids().iter().all(|grid| grid.len() >= 4));
        assert!(
            LAMBDAS.iter().all(|lambda| Stfc::new(*lambda) != Stfc::default() || *lambda <= 2.0),
            "none is clamped"
        );
    }

    #[test]
    fn the_best_with_each_load_counts_once() {
        let tried =
            [(Rival::Stfc(2.0), [7.0, 30.0]), (Rival::Stfc(4.0), [6.0, 40.0]), (Rival::Stfc(8.0), [f64::NAN, 90.0])];
        assert_eq!(best_of(&tried), [Rival::Stfc(4.0), Rival::Stfc(2.0)]);
        assert_eq!(best_of(&[(Rival::Arma(10), [7.0, 20.0]), (Rival::Arma(20), [8.0, 60.0])]), [Rival::Arma(10)]);
        assert!(best_of(&[]).is_empty());
    }
}
