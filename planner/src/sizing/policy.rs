//! How the size of a job on a cluster is chosen: the seam between what ships, [`Adaptive`], and what it is compared with.
//! In: a [`Situation`]. Out: a [`Choice`]. Called by the controller once per evaluation interval and job. The crate
//! `gleaner-experiments` has the others.

use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Bound, Goal};
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use super::{Choice, Response, Sizing};
use crate::io_model::{Growth, GrowthView, Saturation};

/// Part of its potential that a cluster must have had in the mean for its size to count as seen. Chosen.
const SEEN: f64 = 0.75;

/// What a policy may go by.
pub struct Situation<'s, 'i> {
    /// Whose size is decided.
    pub job: &'s JobId,
    /// The input of the decision.
    pub sizing: Sizing<'i>,
    /// What the job has learned about growing.
    pub exploration: &'s mut Exploration,
    /// Means since the last evaluation, over the seconds in which the cluster was full.
    pub observed: Means,
    /// Volunteers are being set up.
    pub is_settling: bool,
    /// CPU of a host, all of it.
    pub capacity_of: &'s dyn Fn(&HostId) -> CoreShare,
}

/// What a cluster could do and did in the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// Aggregate potential productivity.
    pub potential: CoreShare,
    /// Aggregate actual productivity.
    pub actual: CoreShare,
    /// Utilisation of the dedicated hosts' disks, where known.
    pub disk: Option<Fraction>,
}

/// A way to choose sizes. It may keep a state of its own.
pub trait SizingPolicy {
    /// The size for the next interval.
    fn choose(&mut self, situation: Situation<'_, '_>) -> Choice;
}

/// Growth to the point of saturation (RHIC §4.3, Algorithm 1), as far as a job has come with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Exploration {
    growth: Growth,
    saturation: Option<Saturation>,
    profile_disk: Option<Fraction>,
}

impl Exploration {
    /// The profile of the dedicated hosts alone is over: their disks' mean utilisation in it, whether they had about
    /// equally much to do, and where volunteers saturate them.
    pub fn profiled(&mut self, disk: Option<Fraction>, balanced: bool, saturation: Option<Saturation>) {
        if balanced {
            self.growth.skip_worst_case();
        }
        (self.profile_disk, self.saturation) = (disk, saturation);
    }
}

/// What ships: grows to the point of saturation first (RHIC Algorithm 1), then follows the curve. A deadline is followed
/// from the start, because time lost on exploring cannot be made up for near the end of what is possible; sizes beyond
/// saturation do it no harm but their price.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adaptive;

impl SizingPolicy for Adaptive {
    fn choose(&mut self, situation: Situation<'_, '_>) -> Choice {
        let Situation { mut sizing, exploration, observed, is_settling, .. } = situation;
        let Exploration { growth, saturation, profile_disk } = exploration;
        if matches!(sizing.goal, Goal::Deadline { .. } | Goal::Cost { budget: Some(_) }) || growth.is_over() {
            return sizing.decide();
        }
        // Where volunteers take longer to set up than an interval, a step says nothing before the next one but one.
        let present =
            sizing.offers.iter().take(sizing.current as usize).map(|offer| offer.potential).sum::<CoreShare>();
        let present = present + sizing.dedicated_potential;
        if is_settling && observed.potential < present * SEEN {
            return sizing.forced(sizing.current, Bound::Exploring);
        }
        // Ours: once two sizes beyond the profile were observed, the curve bounds the growth, and after the third it takes
        // over. Algorithm 1 goes on in small steps until the disks are full: a job whose optimum lies before that pays
        // for it, and one whose optimum lies far beyond takes too long.
        let by_curve = sizing.decide();
        let known = growth.steps() >= 2 && sizing.current > 0;
        if growth.steps() >= 3 || (known && by_curve.size <= sizing.current) {
            growth.end();
            return by_curve;
        }
        // PredictIdealIgnoringIO: the present yield at every size.
        let modelled = sizing.response;
        if observed.potential > CoreShare::ZERO {
            sizing.response = Response::Yield((observed.actual.percent() / observed.potential.percent()).min(1.0));
        }
        let ideal = if known { by_curve } else { sizing.decide() };
        sizing.response = modelled;
        let volunteers = |size: u32| sizing.offers.iter().take(size as usize).map(|offer| offer.potential).sum();
        let view = GrowthView {
            saturation: *saturation,
            most: volunteers(ideal.size),
            current: volunteers(sizing.current),
            disk: observed.disk,
            profile_disk: *profile_disk,
        };
        let Some(next) = growth.next(view) else { return sizing.decide() };
        let mut reached = CoreShare::ZERO;
        let steps = sizing.offers.iter().take_while(|offer| {
            let short = reached < next;
            reached += offer.potential;
            short
        });
        let size = u32::try_from(steps.count()).unwrap_or(u32::MAX).min(sizing.useful);
        // Fewer than now would explore nothing.
        let size = size.max(sizing.current.min(u32::try_from(sizing.offers.len()).unwrap_or(u32::MAX)));
        sizing.forced(size, Bound::Exploring)
    }
}
