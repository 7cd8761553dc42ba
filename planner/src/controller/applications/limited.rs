//! What a tier is limited to now, and how much of that is used. In: an application, its hosts, and what was booked of it. Out:
//! amounts in the unit of bounds, and parts of them. Called by the owner of the applications, and by its decisions and relief.

use gleaner_types::application::{Amount, Load};
use gleaner_types::units::Fraction;

use super::managed::{Managed, TierShare, bounds_of, host_capacity};
use crate::balance::Resource;
use crate::balance::scaler::{OVERLOAD, load};
use crate::controller::hosts::Hosts;

/// Time that a tier waits for the CPU over the time that it runs, from which its share counts as used up while no response
/// time is known. Chosen: as long as it runs. The limit makes it wait more often than it runs, though it may be used to
/// less than nine tenths over an interval.
const WAITS: f64 = 1.0;
/// Part of a share below which waiting for the CPU is the neighbours' doing and not the limit's. Chosen.
const LEAST_USED: f64 = 0.5;

/// What a tier is limited to now, in the unit of its bounds, whatever else is applied or removed. Before the first decision
/// nothing is limited, and what is released has its ceilings. A host that comes back smaller has as much less of everything
/// until the next decision; one that comes back larger changes nothing.
pub(super) fn in_force(managed: &Managed, own: &TierShare, hosts: &Hosts) -> f64 {
    let tier = &managed.status.spec.tiers[own.tier];
    let present = host_capacity(&tier.host, own.resource, hosts).unwrap_or(f64::INFINITY);
    let ceiling = bounds_of(tier, own.resource).map_or(present, |bounds| bounds.ceiling).min(present);
    if !managed.is_limited() || managed.is_released(own) {
        return ceiling;
    }
    let recorded = own.whole.map_or(f64::INFINITY, Amount::value);
    let whole = recorded.min(present);
    if whole.is_finite() { (own.granted.part() * whole).min(ceiling) } else { ceiling }
}

/// What a released share counts as where its host is divided, as a part of the whole: what keeps its use over the last control
/// interval from being an overload, or what it was granted where its use is not known. Never less than its floor or more than its
/// ceiling.
pub(super) fn needed(managed: &Managed, own: &TierShare, hosts: &Hosts) -> f64 {
    let tier = &managed.status.spec.tiers[own.tier];
    let most_used = if own.resource == Resource::Memory { 1.0 } else { OVERLOAD };
    let amount = own.last_used.map_or(own.granted.part() * own.scale(), |used| used / most_used);
    let floor = bounds_of(tier, own.resource).map_or(0.0, |bounds| bounds.floor);
    amount.max(floor).min(in_force(managed, own, hosts)) / own.scale()
}

/// A share of the CPU or the disk is used up in the control interval until now.
pub(super) fn is_used_up(managed: &Managed, hosts: &Hosts) -> bool {
    let is_used_up = |own: &TierShare| {
        let used = used_of(own.used, own.waited, in_force(managed, own, hosts), true).map(Fraction::clamped);
        own.resource != Resource::Memory && load(used) == Load::Over
    };
    managed.shares.iter().any(is_used_up)
}

/// The part that was used of a share of so much, in the unit of its bounds, by use over some seconds and the wait for the
/// CPU. `waiting` counts a CPU share as used up where its tier waits for the CPU as long as it runs.
pub(super) fn used_of((used, seconds): (f64, f64), waited: f64, amount: f64, waiting: bool) -> Option<f64> {
    let waits = waiting && used > 0.0 && waited >= WAITS * used && used / seconds >= LEAST_USED * amount;
    (seconds > 0.0).then(|| if waits { 1.0 } else { used / seconds / amount.max(1e-9) })
}
