//! The controller of one application (AppIMAP, §4.4): model, scaler and balancer put together. Once a control interval it
//! takes what was seen and says what shares the application asks for, and why.
//! In: an [`Observation`]. Out: a [`Request`]. Called by [`crate::policy`] once a control interval.

use serde::{Deserialize, Serialize};

pub use super::request::{GiveBack, Observation, ObservedShare, Request};

use super::constants::Constants;
use super::elsewhere::Elsewhere;
use super::model::{Kind, Model, Orders, Sample};
use super::mpc::{Reach, Variable, balance};
use super::scaler::{Load, bounds, error, least, load};
use super::{Norm, NormalShare, Resource, Share};

/// A performance beyond which faster is as good: e cannot be less than −1 (Eq. 3.1), which ȳ = 2 stands for.
const PERFORMANCE_MOST: f64 = 2.0;

/// Part by which shares are varied while the model knows little. Chosen: far less than the noise of a response time, which near
/// saturation moves by several times as much as a share.
const PROBE: f64 = 0.015;
/// Bits of the rhythms: they repeat after so many doublings of an interval.
const RHYTHM_BITS: u32 = 6;
/// Those below this number have no bit that stays the same for 16 intervals or more.
const FAST_RHYTHMS: u32 = 1 << 4;

/// How many times as large a share that is used up is in the next interval, while no response time is known. Chosen: three
/// intervals make a cap of an eighth of the ceiling none.
const RELIEF: f64 = 2.0;
/// Intervals in a row without a response time after which a share that is used up is released to its ceiling.
const RELIEF_INTERVALS: u32 = 3;

/// How an application is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// q of Eq. 4.3: how much a change counts beside the shares themselves.
    pub stability: f64,
    /// What the model is built of.
    pub model: Kind,
    /// Its orders.
    pub orders: Orders,
    /// Part by which every share is varied around what the balancer chose, each in a rhythm of its own, while its model has
    /// few rows; later an eighth of it. Shares that only ever move together cannot be told apart by any model, so an
    /// imbalance between them would stay. Ours; the paper leaves this to the noise.
    pub probe: f64,
}

impl Default for Settings {
    /// As §4.6.3, with probing.
    fn default() -> Self {
        Self { stability: 4.0, model: Kind::Gray, orders: Orders::default(), probe: PROBE }
    }
}

/// Share below which the gain of one that is used up does not grow any more. Chosen.
const LEAST_SHARE: f64 = 0.01;

/// What is kept of an application between two intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Application {
    settings: Settings,
    model: Model,
    /// Average entitlement per share.
    averages: Vec<f64>,
    /// Intervals so far.
    intervals: u32,
    /// The target that the model's samples were measured against, in milliseconds; 0 before the first.
    #[serde(default)]
    target_ms: f64,
    /// Whether its bottleneck is one of its shares.
    #[serde(default)]
    elsewhere: Elsewhere,
}

impl Application {
    /// Nothing is known of it yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, Constants::default())
    }

    /// The same with other constants, until it is stored.
    #[must_use]
    pub fn with(settings: Settings, constants: Constants) -> Self {
        Self {
            settings,
            model: Model::with(settings.model, settings.orders, constants),
            averages: Vec::new(),
            intervals: 0,
            target_ms: 0.0,
            elsewhere: Elsewhere::default(),
        }
    }

    /// Its model, for those who judge it.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Takes one of its shares on another scale: what it was until now is `factor` times as much.
    pub fn rescale(&mut self, index: usize, factor: f64) {
        self.averages.get_mut(index).into_iter().for_each(|average| *average *= factor);
        self.model.rescale(index, factor);
        self.elsewhere.rescale(index, factor);
    }

    /// Takes a control interval and says what the application asks for in the next.
    pub fn step(&mut self, observation: &Observation) -> Request {
        let mut request = self.balanced(observation);
        self.elsewhere.judge(observation, &mut request);
        request
    }

    /// What the balancer asks for.
    fn balanced(&mut self, observation: &Observation) -> Request {
        let loads: Vec<Load> = observation.shares.iter().map(|share| load(share.utilisation)).collect();
        let known = |mean_ms: &f64| *mean_ms > 0.0 && mean_ms.is_finite() && observation.target_ms > 0.0;
        let Some(mean_ms) = observation.mean_ms.filter(known) else { return hold(observation) };
        self.average(observation);
        if self.target_ms > 0.0 && self.target_ms.total_cmp(&observation.target_ms).is_ne() {
            self.model.retarget(observation.target_ms / self.target_ms);
        }
        self.target_ms = observation.target_ms;
        let condition = condition(&loads);
        let performance = (observation.target_ms / mean_ms).min(PERFORMANCE_MOST);
        let parts = observation.shares.iter().map(|share| share.share.part()).collect();
        self.model.weigh(observation.shares.iter().map(|share| share.utilisation));
        let (miss_rate, after_gap) = (observation.miss_rate, observation.unanswered > 0);
        self.model.observe(Sample { performance, miss_rate, shares: parts, condition, after_gap, load_changed: false });
        let Some(model) = self.model.predict(condition) else { return hold(observation) };

        let error = error(observation.target_ms, mean_ms);
        let norms: Vec<Norm> = self.averages.iter().map(|average| Norm::of(Share::clamped(*average))).collect();
        let mut bounds_of_all = Vec::with_capacity(observation.shares.len());
        let mut variables = Vec::with_capacity(observation.shares.len());
        for (((share, load), norm), gain) in observation.shares.iter().zip(&loads).zip(&norms).zip(&model.gains) {
            let (floor, ceiling) = (share.floor.part(), share.ceiling.part());
            let (lower, upper) = bounds(share.resource, *load, error, share.share.part(), floor, ceiling);
            let least = least(share.resource, share.utilisation, error, share.share.part()).min(ceiling);
            let (lower, upper) = (lower.max(least), upper.max(least));
            let (lower, upper) = (Share::clamped(lower), Share::clamped(upper));
            bounds_of_all.push((lower, upper));
            let one = norm.normal(Share::clamped(1.0)).value();
            variables.push(Variable {
                present: norm.normal(share.share),
                gain: gain / one,
                lower: norm.normal(lower),
                upper: norm.normal(upper),
            });
        }
        let mut found: Vec<NormalShare> = Vec::with_capacity(variables.len());
        let wanted = 1.0 - model.fixed;
        let mut reach = balance(&variables, wanted, self.settings.stability, &mut found);
        if error < 0.0 && reach == Reach::TooFarAbove {
            // Shares that Table 4.2 wants smaller stay, where the target would be missed without them: the target comes first.
            for variable in &mut variables {
                let kept = variable.upper.value().max(variable.present.value());
                variable.upper = NormalShare::clamped(kept);
            }
            reach = balance(&variables, wanted, self.settings.stability, &mut found);
        }
        self.intervals = self.intervals.wrapping_add(1);
        let part = if self.model.has_few(&model) { 1.0 } else { self.model.constants().settled_probe };
        let probe = self.settings.probe * part;
        for ((share, v), rhythm) in found.iter_mut().zip(&variables).zip(rhythms().cycle()) {
            let sign = if (self.intervals & rhythm).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let varied = share.value() * (1.0 + probe * sign);
            *share = NormalShare::clamped(varied.min(v.upper.value()).max(v.lower.value()));
        }
        let gained: f64 = variables.iter().zip(&found).map(|(v, share)| v.gain * share.value()).sum();
        Request {
            shares: found.iter().zip(&norms).map(|(share, norm)| norm.share(*share)).collect(),
            gains: model.gains.clone(),
            error: Some(error),
            predicted: Some(model.fixed + gained),
            reach: Some(reach),
            loads,
            bounds: bounds_of_all,
            model: Some(model),
            give_back: GiveBack::None,
        }
    }

    fn average(&mut self, observation: &Observation) {
        if self.averages.len() != observation.shares.len() {
            self.averages = observation.shares.iter().map(|share| share.share.part()).collect();
        }
        let weight = self.model.constants().average_weight;
        for (average, share) in self.averages.iter_mut().zip(&observation.shares) {
            *average += weight * (share.share.part() - *average);
        }
    }
}

/// In which rhythms shares are varied: with its sign the parity of the bits that it has in common with the number of the interval,
/// any two differ in half of the intervals (Walsh functions). Two rhythms go on being alike, or opposite, as long as no bit changes
/// in which they differ, and only some ten intervals count for the model: those with high bits, which change seldom, come last.
/// Before come the square waves of doubling lengths, then their products.
fn rhythms() -> impl Iterator<Item = u32> + Clone {
    let of = |bits: std::ops::Range<u32>, ones: u32| bits.filter(move |bits| bits.count_ones() == ones);
    let all = move |bits: std::ops::Range<u32>| (1..=RHYTHM_BITS).flat_map(move |ones| of(bits.clone(), ones));
    all(1..FAST_RHYTHMS).chain(all(FAST_RHYTHMS..1 << RHYTHM_BITS))
}

/// What to ask for of a share while no response time is known: `wanted`, or more where the share is used up. An application
/// so overloaded that it answers nobody has no response time either, and a share that were only held would keep it so. Ours;
/// the paper does not say. Memory is held, because a cache fills whatever there is.
fn relieved(wanted: Share, seen: &ObservedShare, unanswered: u32) -> Share {
    if seen.resource == Resource::Memory || load(seen.utilisation) != Load::Over {
        return wanted;
    }
    let ceiling = seen.ceiling.part();
    let relief = if unanswered < RELIEF_INTERVALS { (RELIEF * seen.share.part()).min(ceiling) } else { ceiling };
    Share::clamped(wanted.part().max(relief))
}

/// What to ask for while no response time is known: everything stays as it is, but for what is used up.
#[must_use]
pub fn hold(observation: &Observation) -> Request {
    let shares: Vec<Share> =
        observation.shares.iter().map(|share| relieved(share.share, share, observation.unanswered)).collect();
    let bounds = observation.shares.iter().map(|share| share.share).zip(shares.iter().copied()).collect();
    // Of a share that is used up, as if all of the performance were its doing: else others would take it in arbitration.
    let gain = |share: &ObservedShare| match load(share.utilisation) {
        Load::Over if share.resource != Resource::Memory => 1.0 / share.share.part().max(LEAST_SHARE),
        _ => 0.0,
    };
    let gains = observation.shares.iter().map(gain).collect();
    Request {
        shares,
        gains,
        error: None,
        predicted: None,
        reach: None,
        loads: observation.shares.iter().map(|share| load(share.utilisation)).collect(),
        bounds,
        model: None,
        give_back: GiveBack::None,
    }
}

/// Which model applies: one bit per share, set where it is overloaded (§4.4.1.1). More than 64 shares fold over.
fn condition(loads: &[Load]) -> u64 {
    let over = loads.iter().enumerate().filter(|(_, load)| **load == Load::Over);
    over.fold(0, |bits, (index, _)| bits | 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;

    use super::*;

    fn share(resource: Resource, share: f64, used: f64) -> ObservedShare {
        ObservedShare {
            resource,
            share: Share::clamped(share),
            utilisation: Some(Fraction::clamped(used)),
            floor: Share::clamped(0.02),
            ceiling: Share::clamped(1.0),
        }
    }

    fn observation(mean_ms: Option<f64>, shares: Vec<ObservedShare>) -> Observation {
        Observation { target_ms: 100.0, mean_ms, unanswered: 0, miss_rate: None, shares }
    }

    /// Two of nine shares had the same rhythm, so that no model could tell them apart.
    #[test]
    fn every_share_has_a_rhythm_of_its_own() {
        let rhythms: Vec<u32> = rhythms().collect();
        assert_eq!(rhythms.len(), 63);
        for (at, one) in rhythms.iter().enumerate() {
            for other in &rhythms[..at] {
                let alike = (0..64_u32).filter(|t| ((t & one).count_ones() ^ (t & other).count_ones()) & 1 == 0);
                assert_eq!(alike.count(), 32, "{one} and {other}");
            }
        }
    }

    /// Greatest correlation of any two of so many rhythms at any time, over the rows of the model's window with their weights.
    fn worst_correlation(rhythms: &[u32]) -> f64 {
        let Constants { memory, window, .. } = Constants::default();
        let weights: Vec<f64> = std::iter::successors(Some(1.0), |weight| Some(weight * memory)).take(window).collect();
        let sign = |rhythm: u32, t: u32| if (rhythm & t).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let mut worst = 0.0_f64;
        for (at, one) in rhythms.iter().enumerate() {
            for other in &rhythms[..at] {
                // They repeat after 64 intervals.
                for newest in 64..128 {
                    let alike = weights.iter().zip((0..=newest).rev()).map(|(weight, t)| weight * sign(one ^ other, t));
                    worst = worst.max((alike.sum::<f64>() / weights.iter().sum::<f64>()).abs());
                }
            }
        }
        worst
    }

    /// Over 64 intervals all are orthogonal, but ten count. In the order 1, 2, 4, 8, 16, 32, 3 the fifth and the sixth were the same,
    /// or opposite, for 32 intervals in a row. In numeric order four are told apart better, and yet simulated services came into
    /// balance later.
    #[test]
    fn rhythms_of_few_shares_can_be_told_apart_within_the_rows_that_count() {
        let rhythms: Vec<u32> = rhythms().collect();
        let worst = [4, 9, 15].map(|shares| worst_correlation(&rhythms[..shares]));
        assert!(worst.iter().all(|worst| *worst < 0.4), "{worst:?}");
        let square_waves_first = worst_correlation(&[1, 2, 4, 8, 16, 32, 3, 5, 6]);
        assert!(square_waves_first > 0.93, "{square_waves_first}");
    }

    #[test]
    fn other_constants_are_not_stored() {
        let constants = Constants { average_weight: 1.0, ..Constants::default() };
        let other = Application::with(Settings::default(), constants);
        assert_eq!(other.model().constants(), &constants);
        let stored: Application = serde_json::from_str(&serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(stored, Application::new(Settings::default()));
    }

    #[test]
    fn what_is_not_known_is_held() {
        let mut application = Application::new(Settings::default());
        for odd in [None, Some(0.0), Some(-1.0), Some(f64::NAN)] {
            let request = application.step(&observation(odd, vec![share(Resource::Cpu, 0.4, 0.89)]));
            assert_eq!((request.shares[0], request.error), (Share::clamped(0.4), None));
        }
    }

    /// Total overload: nothing completes, so there is no response time, and the share is what is too small.
    #[test]
    fn what_is_used_up_grows_to_its_ceiling_while_nothing_is_known() {
        let mut application = Application::new(Settings::default());
        let (mut cpu, mut seen) = (0.02, Vec::new());
        for unanswered in 0..5 {
            let memory = share(Resource::Memory, 0.3, 1.0);
            let shares = vec![ObservedShare { ceiling: Share::clamped(0.7), ..share(Resource::Cpu, cpu, 1.0) }, memory];
            let request = application.step(&Observation { unanswered, ..observation(None, shares) });
            assert_eq!((request.shares[1], request.error), (Share::clamped(0.3), None));
            cpu = request.shares[0].part();
            seen.push(cpu);
        }
        assert_eq!(seen, [0.04, 0.08, 0.16, 0.7, 0.7]);
    }

    /// One answers nobody at its half of the host; the other is at its target with 0.6 of it.
    #[test]
    fn arbitration_does_not_take_from_what_is_used_up_while_nothing_is_known() {
        use crate::balance::arbitration::{Demand, arbitrate};
        let stalled = hold(&observation(None, vec![share(Resource::Cpu, 0.5, 1.0)]));
        let one = |application, wanted, gain| Demand {
            application,
            host: 0,
            resource: Resource::Cpu,
            wanted,
            floor: Share::clamped(0.02),
            in_use: Share::default(),
            gain,
        };
        let demands = [one(0, stalled.shares[0], stalled.gains[0]), one(1, Share::clamped(0.6), 1.0)];
        let grants = arbitrate(&demands, |_, _| 1.0);
        assert!(grants.shares[0].part() > 0.5, "{grants:?}");
        assert_eq!(hold(&observation(None, vec![share(Resource::Cpu, 0.5, 0.4)])).gains, [0.0]);
    }

    /// The service is as fast as before, and only its target another one.
    #[test]
    fn a_changed_target_is_met_as_if_it_had_always_been_the_target() {
        let expected = |before_ms: f64| {
            let mut application = Application::new(Settings { model: Kind::Black, ..Settings::default() });
            let mut cpu = 0.5;
            for interval in 0..40 {
                let shares = vec![share(Resource::Cpu, cpu, 0.5)];
                let target_ms = if interval < 39 { before_ms } else { 100.0 };
                cpu = 0.5 + 0.02 * f64::from(interval % 5 - 2);
                let mean_ms = Some(100.0 / (0.4 + 1.2 * cpu));
                application.step(&Observation { target_ms, ..observation(mean_ms, shares) });
            }
            let shares = vec![share(Resource::Cpu, cpu, 0.5)];
            let mean_ms = Some(100.0 / (0.4 + 1.2 * cpu));
            application.step(&observation(mean_ms, shares)).predicted.unwrap()
        };
        assert!((expected(60.0) - expected(100.0)).abs() < 0.02, "{} and {}", expected(60.0), expected(100.0));
    }

    #[test]
    fn an_overloaded_share_of_a_slow_application_grows_and_an_idle_one_of_a_fast_one_shrinks() {
        let mut application = Application::new(Settings::default());
        let slow = observation(Some(300.0), vec![share(Resource::Cpu, 0.3, 0.99), share(Resource::Disk, 0.3, 0.2)]);
        let request = application.step(&slow);
        // At least half of the step 0.05·(|10·0.667| + 1)·0.3 of Eq. 4.8.
        let step = 0.05 * (20.0 / 3.0 + 1.0) * 0.3;
        assert!(request.shares[0].part() >= 0.3 + 0.5 * step - 1e-9, "{request:?}");
        assert!(request.shares[1].part() >= 0.3 - 1e-9, "nothing shrinks while the target is far: {request:?}");
        let mut application = Application::new(Settings::default());
        let fast = observation(Some(50.0), vec![share(Resource::Cpu, 0.3, 0.3), share(Resource::Disk, 0.3, 0.2)]);
        let request = application.step(&fast);
        assert!(request.shares.iter().all(|share| share.part() < 0.3), "{request:?}");
    }

    /// A service whose performance is linear in its shares is brought to its target and its shares into balance.
    #[test]
    fn a_linear_service_comes_to_its_target_and_saves_the_share_that_matters_little() {
        let mut application = Application::new(Settings { model: Kind::Black, ..Settings::default() });
        let (mut cpu, mut disk) = (0.5, 0.5);
        let mut performance = 1.0;
        for interval in 0..150 {
            // The noise lets the model see what matters.
            let noise = 1.0 + 0.01 * f64::from(interval % 7 - 3);
            performance = (1.8 * cpu + 0.2 * disk) * noise;
            let shares = vec![share(Resource::Cpu, cpu, 0.5), share(Resource::Disk, disk, 0.5)];
            let request = application.step(&observation(Some(100.0 / performance), shares));
            (cpu, disk) = (request.shares[0].part(), request.shares[1].part());
        }
        assert!((performance - 1.0).abs() < 0.06, "{performance}");
        assert!(disk < 0.2 && cpu > 0.5, "{cpu} of the CPU, {disk} of the disk");
    }
}
