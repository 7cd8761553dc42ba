//! AutoControl (Padala et al., EuroSys 2009) as the dissertation compares itself with it (§4.6.3): an ARMA model by
//! recursive least squares, on the reciprocal response time, a request that trades the tracking error against the
//! change, and every contended resource arbitrated by itself. In: an application's observation; the demands of all.
//! Out: the shares it asks for; the shares they get. Called by [`crate::bconf`].

use gleaner_planner::balance::application::{Observation, Request};
use gleaner_planner::balance::arbitration::Demand;
use gleaner_planner::balance::{Resource, Share};
use gleaner_planner::policy::Policy;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

/// How AutoControl is set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Weight of the change in the objective: q.
    pub stability: f64,
    /// Weight of the past in the recursive least squares.
    pub forgetting: f64,
    /// Past outputs, and inputs of each resource, in the model.
    pub order: usize,
}

impl Default for Settings {
    /// q = 2 and a model of the second order, two past outputs and two inputs, as Padala et al. (§3.2, §4) and the dissertation
    /// (§4.6.3) have it. Neither names the forgetting: an average over some 20 samples, the window of the dissertation's other
    /// ARMA controller.
    fn default() -> Self {
        Self { stability: 2.0, forgetting: 0.95, order: 2 }
    }
}

/// Uncertainty of coefficients of which nothing is known.
const UNKNOWN: f64 = 100.0;
/// Sweeps in which shares at a bound are taken out of the program; each takes out one at least.
const MOST_SWEEPS: usize = 64;

/// The controller of one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AutoControl {
    settings: Settings,
    /// Of ȳ(k − 1), ȳ(k − 2), …, then of each share, then of each share an interval before, and so on.
    coefficients: Vec<f64>,
    covariance: Vec<f64>,
    /// The latest first: as many as the order.
    performances: Vec<f64>,
    shares: Vec<Vec<f64>>,
}

impl AutoControl {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let (coefficients, covariance) = (Vec::new(), Vec::new());
        Self { settings, coefficients, covariance, performances: Vec::new(), shares: Vec::new() }
    }

    /// What the application asks for in the next interval, with the gains of its shares.
    pub fn step(&mut self, seen: &Observation) -> (Vec<Share>, Vec<f64>) {
        let present: Vec<f64> = seen.shares.iter().map(|share| share.share.part()).collect();
        let known = |mean_ms: &f64| *mean_ms > 0.0 && mean_ms.is_finite();
        let Some(mean_ms) = seen.mean_ms.filter(known) else {
            return (seen.shares.iter().map(|share| share.share).collect(), vec![0.0; present.len()]);
        };
        let performance = seen.target_ms / mean_ms;
        let (order, width) = (self.settings.order.max(1), present.len());
        let size = order * (width + 1);
        if self.coefficients.len() != size {
            // The resources begin alike, as the prior of the other models, and what is past counts for nothing.
            let sum: f64 = present.iter().map(|share| share * share).sum::<f64>().max(1e-9);
            self.coefficients = vec![0.0; size];
            for (gain, share) in self.coefficients[order..].iter_mut().zip(&present) {
                *gain = performance * share / sum;
            }
            self.covariance = (0..size * size).map(|at| if at % (size + 1) == 0 { UNKNOWN } else { 0.0 }).collect();
            (self.performances, self.shares) = (Vec::new(), Vec::new());
        }
        self.shares.insert(0, present.clone());
        if self.performances.len() == order && self.shares.len() >= order {
            let shares = self.shares.iter().take(order).flatten();
            let row: Vec<f64> = self.performances.iter().chain(shares).copied().collect();
            self.learn(&row, performance);
        }
        self.performances.insert(0, performance);
        self.performances.truncate(order);
        self.shares.truncate(order);
        let gains = self.coefficients[order..order + width].to_vec();
        // In the interval to come the present ones are past.
        let outputs: f64 = self.performances.iter().zip(&self.coefficients).map(|(past, a)| past * a).sum();
        let past = self.shares.iter().take(order - 1).flatten().zip(&self.coefficients[order + width..]);
        let inputs: f64 = past.map(|(share, b)| share * b).sum();
        (self.cheapest(seen, &present, &gains, 1.0 - outputs - inputs), gains)
    }

    /// Recursive least squares with forgetting.
    fn learn(&mut self, row: &[f64], value: f64) {
        let size = row.len();
        let p = |i: usize, j: usize| self.covariance[i * size + j];
        let projected: Vec<f64> = (0..size).map(|i| (0..size).map(|j| p(i, j) * row[j]).sum()).collect();
        let spread = self.settings.forgetting + row.iter().zip(&projected).map(|(x, y)| x * y).sum::<f64>();
        let error = value - row.iter().zip(&self.coefficients).map(|(x, c)| x * c).sum::<f64>();
        for i in 0..size {
            self.coefficients[i] += projected[i] / spread * error;
            for j in 0..size {
                let next =
                    (self.covariance[i * size + j] - projected[i] * projected[j] / spread) / self.settings.forgetting;
                // Without excitation it would grow without end.
                self.covariance[i * size + j] = next.clamp(-1e6, 1e6);
            }
        }
    }

    /// Minimises (ŷ − 1)² + q·‖w − v‖² within floors and ceilings: with the shares at a bound taken out, the rest is in
    /// closed form.
    fn cheapest(&self, seen: &Observation, present: &[f64], gains: &[f64], wanted: f64) -> Vec<Share> {
        let mut shares = present.to_vec();
        let mut free = vec![true; present.len()];
        for _ in 0..MOST_SWEEPS {
            let fixed: f64 = (0..shares.len()).filter(|i| !free[*i]).map(|i| gains[i] * shares[i]).sum();
            let at_present: f64 = (0..shares.len()).filter(|i| free[*i]).map(|i| gains[i] * present[i]).sum();
            let squares: f64 = (0..shares.len()).filter(|i| free[*i]).map(|i| gains[i] * gains[i]).sum();
            let push = (wanted - fixed - at_present) / (self.settings.stability + squares).max(1e-12);
            let mut clamped = false;
            for i in (0..shares.len()).filter(|i| free[*i]).collect::<Vec<_>>() {
                let (floor, ceiling) = (seen.shares[i].floor.part(), seen.shares[i].ceiling.part());
                let next = present[i] + gains[i] * push;
                shares[i] = next.max(floor).min(ceiling);
                if (shares[i] - next).abs() > 1e-12 {
                    (free[i], clamped) = (false, true);
                }
            }
            if !clamped {
                break;
            }
        }
        shares.into_iter().map(Share::clamped).collect()
    }
}

impl Policy for AutoControl {
    fn request(&mut self, observed: &Observation, _: CoreShare) -> Request {
        let (shares, gains) = self.step(observed);
        Request::without_model(observed, shares, gains)
    }
}

/// Arbitrates each contended resource of each host by itself: gives up what costs the least Σ (∂ȳ/∂w·Δw)².
#[must_use]
pub fn partition(demands: &[Demand], capacity: f64) -> Vec<Share> {
    let mut shares: Vec<Share> = demands.iter().map(|demand| demand.wanted).collect();
    let mut places: Vec<(usize, Resource)> = demands.iter().map(|demand| (demand.host, demand.resource)).collect();
    places.sort_unstable();
    places.dedup();
    for place in places {
        let members: Vec<usize> =
            (0..demands.len()).filter(|i| (demands[*i].host, demands[*i].resource) == place).collect();
        let mut open = members.clone();
        // Those that would give up more than they have leave the others the rest.
        loop {
            let over: f64 = members.iter().map(|i| shares[*i].part()).sum::<f64>() - capacity;
            if over <= 1e-12 || open.is_empty() {
                break;
            }
            let ease = |i: &usize| 1.0 / (demands[*i].gain * demands[*i].gain).max(1e-6);
            let ease_of_all: f64 = open.iter().map(ease).sum();
            let cuts: Vec<f64> = open.iter().map(|i| over * ease(i) / ease_of_all).collect();
            for (i, cut) in open.iter().zip(cuts) {
                shares[*i] = Share::clamped(shares[*i].part() - cut);
            }
            open.retain(|i| shares[*i].part() > 0.0);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;

    use super::*;
    use gleaner_planner::balance::application::ObservedShare;

    #[test]
    fn it_tracks_a_linear_service_slowly() {
        let mut control = AutoControl::new(Settings::default());
        let mut share = 0.4;
        let mut errors = Vec::new();
        for _ in 0..200 {
            let performance = 2.0 * share;
            errors.push((performance - 1.0_f64).abs());
            let seen = ObservedShare {
                resource: Resource::Cpu,
                share: Share::clamped(share),
                utilisation: Some(Fraction::clamped(0.5)),
                floor: Share::clamped(0.01),
                ceiling: Share::clamped(1.0),
            };
            let seen = Observation {
                target_ms: 100.0,
                mean_ms: Some(100.0 / performance),
                unanswered: 0,
                miss_rate: None,
                shares: vec![seen],
            };
            share = control.step(&seen).0[0].part();
        }
        assert!(errors[199] < 0.01 && errors[199] < errors[0], "{}", errors[199]);
    }

    #[test]
    fn a_contended_resource_is_cut_where_that_costs_least() {
        let demand = |application, wanted: f64, gain| Demand {
            application,
            host: 0,
            resource: Resource::Cpu,
            wanted: Share::clamped(wanted),
            floor: Share::default(),
            in_use: Share::default(),
            gain,
        };
        let shares = partition(&[demand(0, 0.75, 1.0), demand(1, 0.75, 2.0)], 1.0);
        assert!((shares[0].part() - 0.35).abs() < 1e-9 && (shares[1].part() - 0.65).abs() < 1e-9, "{shares:?}");
        let shares = partition(&[demand(0, 0.1, 0.1), demand(1, 1.0, 2.0)], 0.5);
        assert!(shares[0].part() <= 0.0 && (shares[1].part() - 0.5).abs() < 1e-9, "{shares:?}");
    }
}
