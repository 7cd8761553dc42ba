//! The domain arbitrator (§4.5): who gets what where the requests of applications exceed a host.
//! In: the [`Demand`]s of all applications and the capacity of every host. Out: [`Grants`]. Called by the controller's
//! `applications` after all have asked, and by [`crate::snapshot::balance`].
//!
//! Hosts that can grant everything are cut out of the placement graph; what is left falls into sub-domains of applications
//! that are connected by contended hosts. Within one, every application gets the same part p_a of each constrained
//! resource it asked for, so that none of its tiers is more of a bottleneck than another, and the parts minimise the lost
//! performance (Eq. 4.12–4.14). What that leaves of a constrained resource goes to those whose performance gains most.
//!
//! The paper has no floors. Here every demand gets its floor first, and what exceeds the floors is arbitrated: p_a is the
//! part of that. Floors that add up to more than there is are kept in proportion. What is in use of a share is not taken either, as
//! far as the floors leave room: a gain that a model takes for zero would give it away in one interval.
//!
//! Volunteers take no part: they have what is left when every request is granted, which on a contended host is nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Resource, Share};

/// Least part of its request beyond the floors that an application gets, where that is possible: p_a > 0. Chosen: performance is linear in a
/// share only nearby, and an application whose gain is small would be starved of what it cannot do without.
const LEAST_PART: f64 = 0.25;
/// Weight of an application of whose performance nothing is known or gained, relative to the most weighty one. Chosen.
const LEAST_WEIGHT: f64 = 1e-4;
/// Sweeps over the constraints of a sub-domain, and the error in parts of a host at which they end.
const MOST_SWEEPS: u32 = 20_000;
const TOLERANCE: f64 = 1e-10;

/// One request of one application for one resource of one host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// Number of the application.
    pub application: usize,
    /// Number of the host.
    pub host: usize,
    /// Of what.
    pub resource: Resource,
    /// w: what it asks for.
    pub wanted: Share,
    /// What it is not cut below, as long as all floors there fit; at most `wanted` counts.
    #[serde(default)]
    pub floor: Share,
    /// What is left to it beside that, where there is room: what is in use of it.
    #[serde(default)]
    pub in_use: Share,
    /// ∂ȳ/∂w.
    pub gain: f64,
}

impl Demand {
    fn floor(&self) -> f64 {
        self.floor.part().min(self.wanted.part())
    }

    /// What it asks for beyond its floor.
    fn excess(&self) -> f64 {
        self.wanted.part() - self.floor()
    }
}

/// A resource of a host of which more is asked for than there is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Contended {
    /// Number of the host.
    pub host: usize,
    /// The resource.
    pub resource: Resource,
    /// What is asked for together, in parts of the host.
    pub wanted: f64,
    /// The part of each floor that is kept: 1 where all floors fit.
    pub floors_kept: f64,
}

/// What is granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grants {
    /// One for each demand, in their order.
    pub shares: Vec<Share>,
    /// The part of its constrained requests beyond their floors and what is in use that each application gets at least: p_a, or
    /// less where a host's floors leave no room for the least part; 1 for those that contend for nothing.
    pub parts: Vec<f64>,
    /// Contended resources of hosts.
    pub contended: Vec<Contended>,
    /// Applications of each sub-domain.
    pub domains: Vec<Vec<usize>>,
}

/// What arbitration may grant of a resource of a host, as a part of the whole, where so much of it is `given`. A disk of which
/// nobody says what it can is not divided: the kernel shares it. Floors of a disk are kept even where they add up to more.
#[must_use]
pub fn capacity(demands: &[Demand], host: usize, resource: Resource, given: Option<f64>) -> f64 {
    match (resource, given) {
        (Resource::Disk, Some(given)) => {
            let here = demands.iter().filter(|demand| demand.host == host && demand.resource == resource);
            here.map(|demand| demand.floor.part()).sum::<f64>().max(given)
        }
        (Resource::Disk, None) => f64::INFINITY,
        (Resource::Cpu | Resource::Memory | Resource::Network, given) => given.unwrap_or(1.0),
    }
}

/// Arbitrates between all demands. `capacity` is what applications may have of a resource of a host, usually 1.
#[must_use]
pub fn arbitrate(demands: &[Demand], capacity: impl Fn(usize, Resource) -> f64) -> Grants {
    let applications = demands.iter().map(|demand| demand.application + 1).max().unwrap_or(0);
    let mut places: BTreeMap<(usize, Resource), Vec<usize>> = BTreeMap::new();
    for (index, demand) in demands.iter().enumerate() {
        places.entry((demand.host, demand.resource)).or_default().push(index);
    }
    let asked = |members: &[usize]| members.iter().map(|index| demands[*index].wanted.part()).sum::<f64>();
    places.retain(|place, members| asked(members) > capacity(place.0, place.1).max(0.0) + TOLERANCE);
    let demands = &with_use(demands, &places, &capacity);

    let mut shares: Vec<Share> = demands.iter().map(|demand| demand.wanted).collect();
    let mut due = vec![1.0; applications];
    let domains = domains(demands, &places, applications);
    for domain in &domains {
        for (application, part) in solve(domain, demands, &places, &capacity) {
            due[application] = part;
        }
    }
    let mut parts = due.clone();
    let mut contended = Vec::with_capacity(places.len());
    for ((host, resource), members) in &places {
        let capacity = capacity(*host, *resource).max(0.0);
        let floors: f64 = members.iter().map(|index| demands[*index].floor()).sum();
        // Beyond what rounding adds where all of the room is in use.
        let floors_kept = if floors > capacity + TOLERANCE { capacity / floors } else { 1.0 };
        // What the last sweep left over, and what cannot be given up without going below the least part, is missing here only.
        let room = (capacity - floors).max(0.0);
        let excess: f64 = members.iter().map(|index| due[demands[*index].application] * demands[*index].excess()).sum();
        let kept = if excess > room { room / excess } else { 1.0 };
        for index in members {
            let demand = demands[*index];
            let part = kept * due[demand.application];
            shares[*index] = Share::clamped(floors_kept * demand.floor() + part * demand.excess());
            if demand.excess() > 0.0 {
                parts[demand.application] = parts[demand.application].min(part);
            }
        }
        hand_out(members, demands, capacity, &mut shares);
        contended.push(Contended { host: *host, resource: *resource, wanted: asked(members), floors_kept });
    }
    Grants { shares, parts, contended, domains }
}

/// Demands whose floors are what is in use, too. What that is more than the floors is kept in proportion where there is less room.
fn with_use(
    demands: &[Demand],
    places: &BTreeMap<(usize, Resource), Vec<usize>>,
    capacity: &impl Fn(usize, Resource) -> f64,
) -> Vec<Demand> {
    let mut lifted = demands.to_vec();
    for ((host, resource), members) in places {
        let more = |index: &usize| {
            let demand = demands[*index];
            (demand.in_use.part().min(demand.wanted.part()) - demand.floor()).max(0.0)
        };
        let floors: f64 = members.iter().map(|index| demands[*index].floor()).sum();
        let all: f64 = members.iter().map(more).sum();
        let room = (capacity(*host, *resource) - floors).max(0.0);
        let kept = if all > room { room / all } else { 1.0 };
        for index in members {
            lifted[*index].floor = Share::clamped(demands[*index].floor() + kept * more(index));
        }
    }
    lifted
}

/// Applications connected by contended hosts.
fn domains(
    demands: &[Demand],
    places: &BTreeMap<(usize, Resource), Vec<usize>>,
    applications: usize,
) -> Vec<Vec<usize>> {
    let mut parents: Vec<usize> = (0..applications).collect();
    fn root(parents: &mut [usize], mut node: usize) -> usize {
        while parents[node] != node {
            parents[node] = parents[parents[node]];
            node = parents[node];
        }
        node
    }
    let mut first_on_host: BTreeMap<usize, usize> = BTreeMap::new();
    let mut involved = BTreeSet::new();
    for ((host, _), members) in places {
        for index in members {
            let application = demands[*index].application;
            involved.insert(application);
            let other = *first_on_host.entry(*host).or_insert(application);
            let (one, other) = (root(&mut parents, application), root(&mut parents, other));
            parents[one.max(other)] = one.min(other);
        }
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for application in involved {
        groups.entry(root(&mut parents, application)).or_default().push(application);
    }
    groups.into_values().collect()
}

/// A contended resource within a sub-domain.
struct Constraint {
    /// Position of the application within the sub-domain, and what it asks for beyond its floors in all its tiers there.
    members: Vec<(usize, f64)>,
    /// What has to be given up together.
    shortfall: f64,
}

/// The parts p_a of a sub-domain: minimises Σ c_a²·(1 − p_a)² with c_a = Σ ∂ȳ/∂w·w, every constraint kept; w is what is asked
/// for beyond the floors.
///
/// With x_a = 1 − p_a and a price μ ≥ 0 per constraint, x_a = clamp(Σ μ·w / 2c_a²); each price in turn is set to what its
/// constraint needs, until none moves (dual coordinate ascent, Hildreth's method; the objective is strictly convex).
fn solve(
    domain: &[usize],
    demands: &[Demand],
    places: &BTreeMap<(usize, Resource), Vec<usize>>,
    capacity: &impl Fn(usize, Resource) -> f64,
) -> Vec<(usize, f64)> {
    let position = |application: usize| domain.binary_search(&application).ok();
    let mut weights = vec![0.0; domain.len()];
    let mut constraints = Vec::new();
    for ((host, resource), members) in places {
        let (mut own, mut floors): (BTreeMap<usize, f64>, f64) = (BTreeMap::new(), 0.0);
        let all_floors: f64 = members.iter().map(|index| demands[*index].floor()).sum();
        if all_floors >= capacity(*host, *resource).max(0.0) {
            // Nothing is left to arbitrate, whatever is given up elsewhere.
            continue;
        }
        for index in members {
            let demand = demands[*index];
            if let Some(position) = position(demand.application) {
                floors += demand.floor();
                weights[position] += demand.gain.max(0.0) * demand.excess();
                if demand.excess() > 0.0 {
                    *own.entry(position).or_default() += demand.excess();
                }
            }
        }
        let total: f64 = own.values().sum();
        if total > 0.0 {
            let shortfall = total - (capacity(*host, *resource) - floors).max(0.0);
            constraints.push(Constraint { members: own.into_iter().collect(), shortfall });
        }
    }
    weights.iter_mut().for_each(|weight| *weight *= *weight);
    let most = weights.iter().copied().fold(0.0_f64, f64::max);
    let least = if most > 0.0 { LEAST_WEIGHT * most } else { 1.0 };
    weights.iter_mut().for_each(|weight| *weight = if weight.is_finite() { weight.max(least) } else { least });

    // Σ μ·w per application, before the clamp.
    let mut pressure = vec![0.0; domain.len()];
    let mut prices = vec![0.0; constraints.len()];
    let given = |pressure: f64, weight: f64| (pressure / (2.0 * weight)).clamp(0.0, 1.0 - LEAST_PART);
    for _ in 0..MOST_SWEEPS {
        let mut moved = 0.0_f64;
        for (constraint, price) in constraints.iter().zip(&mut prices) {
            let before: f64 = constraint.members.iter().map(|(a, w)| w * given(pressure[*a], weights[*a])).sum();
            let next = price_for(constraint, *price, &pressure, &weights);
            constraint.members.iter().for_each(|(a, w)| pressure[*a] += (next - *price) * w);
            let after: f64 = constraint.members.iter().map(|(a, w)| w * given(pressure[*a], weights[*a])).sum();
            moved = moved.max((after - before).abs());
            *price = next;
        }
        if moved < TOLERANCE || constraints.len() == 1 {
            break;
        }
    }
    let parts: Vec<f64> = pressure.iter().zip(&weights).map(|(p, w)| 1.0 - given(*p, *w)).collect();
    domain.iter().copied().zip(parts).collect()
}

/// The price of one constraint at which exactly its shortfall is given up, the other prices being what they are; 0 where
/// the others give up enough.
fn price_for(constraint: &Constraint, price: f64, pressure: &[f64], weights: &[f64]) -> f64 {
    // What each member gives up grows with the price in a straight line between two bends.
    let mut bends = Vec::with_capacity(2 * constraint.members.len());
    let (mut sum, mut slope) = (0.0, 0.0);
    for (a, w) in &constraint.members {
        let others = pressure[*a] - price * w;
        let steepness = w * w / (2.0 * weights[*a]);
        let full = 2.0 * weights[*a] * (1.0 - LEAST_PART);
        let (begins, ends) = (-others / w, (full - others) / w);
        if ends <= 0.0 {
            sum += w * (1.0 - LEAST_PART);
        } else if begins <= 0.0 {
            sum += others * w / (2.0 * weights[*a]);
            slope += steepness;
            bends.push((ends, -steepness));
        } else {
            bends.push((begins, steepness));
            bends.push((ends, -steepness));
        }
    }
    bends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut at = 0.0;
    for (next, change) in bends {
        let reached = sum + slope * (next - at);
        if reached >= constraint.shortfall {
            break;
        }
        (sum, at) = (reached, next);
        slope += change;
    }
    if sum >= constraint.shortfall || slope <= 0.0 { at } else { at + (constraint.shortfall - sum) / slope }
}

/// Hands out what is left of a constrained resource, in proportion to the gain; no application gets more than it asked for.
fn hand_out(members: &[usize], demands: &[Demand], capacity: f64, shares: &mut [Share]) {
    let used: f64 = members.iter().map(|index| shares[*index].part()).sum();
    let mut left = capacity - used;
    let mut open: Vec<usize> = members.to_vec();
    while left > TOLERANCE && !open.is_empty() {
        // Where no gain is known all count alike.
        let known: f64 = open.iter().map(|index| demands[*index].gain.max(0.0)).sum();
        let weight =
            |index: usize| if known > 0.0 { demands[index].gain.max(0.0) / known } else { 1.0 / open.len() as f64 };
        let mut rest = 0.0;
        let mut still_open = Vec::new();
        for index in &open {
            let (share, wanted) = (shares[*index].part(), demands[*index].wanted.part());
            let offered = left * weight(*index);
            let taken = offered.min((wanted - share).max(0.0));
            shares[*index] = Share::clamped(share + taken);
            rest += offered - taken;
            if wanted - share - taken > TOLERANCE {
                still_open.push(*index);
            }
        }
        if known > 0.0 && still_open.len() == open.len() {
            break;
        }
        // Those without a known gain come last.
        (left, open) = (rest, still_open);
    }
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;

    fn demand(application: usize, host: usize, resource: Resource, wanted: f64, gain: f64) -> Demand {
        let (wanted, floor, in_use) = (Share::clamped(wanted), Share::default(), Share::default());
        Demand { application, host, resource, wanted, floor, in_use, gain }
    }

    const WHOLE: fn(usize, Resource) -> f64 = |_, _| 1.0;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }

    /// One uses six hundredths of a disk, of which its model says that they bring nothing, and the other wants all of it.
    #[test]
    fn what_is_in_use_is_not_given_away_for_a_gain_of_zero() {
        let in_use = |in_use, demand| Demand { in_use: Share::clamped(in_use), ..demand };
        let demands = [
            in_use(0.068, demand(0, 0, Resource::Disk, 0.102, 0.0)),
            in_use(0.37, demand(1, 0, Resource::Disk, 1.0, 2.5)),
        ];
        let grants = arbitrate(&demands, WHOLE);
        assert!(grants.shares[0].part() >= 0.068 && grants.shares[0].part() < 0.08, "{grants:?}");
        near(grants.shares[0].part() + grants.shares[1].part(), 1.0);
        assert!(grants.contended[0].floors_kept >= 1.0);
        let blind = demands.map(|demand| Demand { in_use: Share::default(), ..demand });
        near(arbitrate(&blind, WHOLE).shares[0].part(), 0.102 * LEAST_PART);
    }

    /// The host became smaller, or a floor larger: floors come first, and nobody is given more than was asked for.
    #[test]
    fn where_floors_leave_less_room_what_is_in_use_is_kept_in_proportion() {
        let of =
            |floor, in_use, demand| Demand { floor: Share::clamped(floor), in_use: Share::clamped(in_use), ..demand };
        let demands = [
            of(0.4, 0.6, demand(0, 0, Resource::Cpu, 0.8, 1.0)),
            of(0.2, 0.4, demand(1, 0, Resource::Cpu, 0.5, 9.0)),
            of(0.0, 0.5, demand(2, 0, Resource::Cpu, 0.1, 9.0)),
        ];
        let grants = arbitrate(&demands, |_, _| 0.85);
        [0.5, 0.3, 0.05].iter().zip(&grants.shares).for_each(|(want, got)| near(got.part(), *want));
        assert!(grants.contended[0].floors_kept >= 1.0, "{grants:?}");
        let none = arbitrate(&demands, |_, _| 0.3);
        [0.2, 0.1, 0.0].iter().zip(&none.shares).for_each(|(want, got)| near(got.part(), *want));
        near(none.contended[0].floors_kept, 0.5);
    }

    #[test]
    fn what_fits_is_granted_and_surplus_stays_unallocated() {
        let demands = [demand(0, 0, Resource::Cpu, 0.4, 1.0), demand(1, 0, Resource::Cpu, 0.5, 1.0)];
        let grants = arbitrate(&demands, WHOLE);
        assert_eq!(grants.shares, [Share::clamped(0.4), Share::clamped(0.5)]);
        assert!(grants.contended.is_empty() && grants.domains.is_empty());
    }

    #[test]
    fn equals_give_up_alike_and_those_who_lose_less_give_up_more() {
        let demands = [demand(0, 0, Resource::Cpu, 0.75, 1.0), demand(1, 0, Resource::Cpu, 0.75, 1.0)];
        let grants = arbitrate(&demands, WHOLE);
        near(grants.parts[0], 2.0 / 3.0);
        near(grants.shares[1].part(), 0.5);
        // min (2x₀)² + (1x₁)² with 0.75·(x₀ + x₁) = 0.5: x₁ = 4·x₀.
        let demands = [demand(0, 0, Resource::Cpu, 0.75, 2.0 / 0.75), demand(1, 0, Resource::Cpu, 0.75, 1.0 / 0.75)];
        let grants = arbitrate(&demands, WHOLE);
        near(1.0 - grants.parts[0], 2.0 / 15.0);
        near(1.0 - grants.parts[1], 8.0 / 15.0);
    }

    #[test]
    fn one_part_holds_for_every_constrained_tier_and_the_excess_goes_by_gain() {
        // Application 0 has tiers on both hosts; host 1 is contended more, so 0 leaves some of host 0 to others.
        let demands = [
            demand(0, 0, Resource::Cpu, 0.6, 1.0),
            demand(1, 0, Resource::Cpu, 0.5, 1.0),
            demand(0, 1, Resource::Cpu, 0.9, 1.0),
            demand(2, 1, Resource::Cpu, 0.9, 1.0),
            demand(3, 2, Resource::Cpu, 0.9, 1.0),
            demand(0, 2, Resource::Memory, 0.9, 1.0),
        ];
        let grants = arbitrate(&demands, WHOLE);
        assert_eq!(grants.domains, [vec![0, 1, 2]]);
        assert_eq!(grants.contended.len(), 2);
        assert_eq!((grants.parts[3], grants.shares[4]), (1.0, Share::clamped(0.9)), "host 2 contends for nothing");
        let on = |host: usize| -> f64 {
            demands
                .iter()
                .zip(&grants.shares)
                .filter(|(d, _)| d.host == host && d.resource == Resource::Cpu)
                .map(|(_, s)| s.part())
                .sum()
        };
        near(on(0), 1.0);
        near(on(1), 1.0);
        assert!(grants.parts[0] < grants.parts[1], "{:?}", grants.parts);
        assert!(grants.shares[1].part() <= 0.5 + 1e-9);
    }

    #[test]
    fn what_exceeds_the_floors_is_arbitrated() {
        let floor = |floor, demand| Demand { floor: Share::clamped(floor), ..demand };
        // 0.1, 0.7 and 0.8 are asked for beyond the floors, for which 0.6 is left.
        let demands = [
            floor(0.3, demand(0, 0, Resource::Cpu, 0.4, 0.0)),
            floor(0.1, demand(1, 0, Resource::Cpu, 0.8, 1.0)),
            demand(2, 0, Resource::Cpu, 0.8, 1.0),
        ];
        let grants = arbitrate(&demands, WHOLE);
        // The first gains nothing, so it keeps the least part. min (0.7·x₁)² + (0.8·x₂)² with 0.7·x₁ + 0.8·x₂ = 1 − 0.075: each
        // of the others gives up half of that.
        near(grants.parts[0], LEAST_PART);
        near(grants.shares[0].part(), 0.3 + 0.025);
        near(grants.shares[1].part(), 0.8 - 0.925 / 2.0);
        near(grants.shares[2].part(), 0.8 - 0.925 / 2.0);
        near(grants.contended[0].floors_kept, 1.0);
    }

    #[test]
    fn floors_that_do_not_fit_are_kept_in_proportion() {
        let floor = |floor, demand| Demand { floor: Share::clamped(floor), ..demand };
        let demands = [
            floor(0.9, demand(0, 0, Resource::Memory, 1.0, 1.0)),
            floor(0.3, demand(1, 0, Resource::Memory, 0.3, 5.0)),
            // No more than what it asks for counts.
            floor(0.9, demand(2, 0, Resource::Memory, 0.3, 5.0)),
        ];
        let grants = arbitrate(&demands, WHOLE);
        near(grants.contended[0].floors_kept, 1.0 / 1.5);
        for (share, due) in grants.shares.iter().zip([0.6, 0.2, 0.2]) {
            near(share.part(), due);
        }
    }

    #[test]
    fn floors_that_do_not_fit_on_one_host_take_nothing_of_another() {
        let floor = |floor, demand| Demand { floor: Share::clamped(floor), ..demand };
        let demands = [
            floor(0.6, demand(0, 0, Resource::Cpu, 0.9, 1.0)),
            floor(0.6, demand(1, 0, Resource::Cpu, 0.9, 1.0)),
            demand(0, 1, Resource::Cpu, 0.9, 1.0),
            demand(2, 1, Resource::Cpu, 0.9, 1.0),
        ];
        let grants = arbitrate(&demands, WHOLE);
        for (share, due) in grants.shares.iter().zip([0.5; 4]) {
            near(share.part(), due);
        }
    }

    #[test]
    fn no_tier_gets_nothing_and_no_capacity_is_no_panic() {
        let demands = [demand(0, 0, Resource::Disk, 1.0, 0.0), demand(1, 0, Resource::Disk, 1.0, f64::NAN)];
        let grants = arbitrate(&demands, WHOLE);
        assert!(grants.shares.iter().all(|share| share.part() > 0.4), "{grants:?}");
        let none = arbitrate(&demands, |_, _| 0.0);
        assert!(none.shares.iter().all(|share| share.part() <= 0.0), "{none:?}");
        assert_eq!(arbitrate(&[], WHOLE).shares, []);
    }

    /// The same sub-domain by clarabel: minimises Σ c²x² with Σ w·x ≥ shortfall and 0 ≤ x ≤ 1.
    fn oracle(wanted: &[Vec<f64>], gains: &[f64]) -> Option<Vec<f64>> {
        use clarabel::algebra::CscMatrix;
        use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus};
        let (n, hosts) = (gains.len(), wanted[0].len());
        let over = |host: usize| wanted.iter().map(|own| own[host]).sum::<f64>() - 1.0;
        let contended: Vec<usize> = (0..hosts).filter(|host| over(*host) > 1e-9).collect();
        let weight = |a: usize| contended.iter().map(|host| wanted[a][*host] * gains[a]).sum::<f64>().powi(2);
        let most = (0..n).map(weight).fold(0.0, f64::max);
        let diagonal = (0..n).map(|a| 2.0 * weight(a).max(LEAST_WEIGHT * most)).collect();
        let p = CscMatrix::new(n, n, (0..=n).collect(), (0..n).collect(), diagonal);
        let (mut columns, mut rows, mut values) = (vec![0], Vec::new(), Vec::new());
        for (a, own) in wanted.iter().enumerate() {
            for (row, host) in contended.iter().enumerate() {
                rows.push(row);
                values.push(-own[*host]);
            }
            rows.extend([contended.len() + a, contended.len() + n + a]);
            values.extend([1.0, -1.0]);
            columns.push(rows.len());
        }
        let m = contended.len() + 2 * n;
        let a = CscMatrix::new(m, n, columns, rows, values);
        let mut b: Vec<f64> = contended.iter().map(|host| -over(*host)).collect();
        b.extend((0..n).map(|_| 1.0 - LEAST_PART).chain((0..n).map(|_| 0.0)));
        let settings = DefaultSettings {
            verbose: false,
            tol_gap_abs: 1e-11,
            tol_gap_rel: 1e-11,
            tol_feas: 1e-11,
            ..DefaultSettings::default()
        };
        let mut solver = DefaultSolver::new(&p, &vec![0.0; n], &a, &b, &[NonnegativeConeT(m)], settings).unwrap();
        solver.solve();
        (solver.solution.status == SolverStatus::Solved).then(|| solver.solution.x.iter().map(|x| 1.0 - x).collect())
    }

    proptest::proptest! {
        #[test]
        fn no_floor_is_broken_and_no_host_gives_more_than_it_has(
            asked in proptest::collection::vec(
                (0..4_usize, 0..3_usize, 0.0..1.0_f64, 0.0..1.0_f64, 0.0..1.0_f64, 0.0..2.0_f64),
                1..20,
            ),
            capacity in 0.1..1.0_f64,
        ) {
            let one = |(application, host, wanted, floor, in_use, gain)| {
                let (floor, in_use) = (Share::clamped(floor), Share::clamped(in_use));
                Demand { floor, in_use, ..demand(application, host, Resource::Cpu, wanted, gain) }
            };
            let demands: Vec<Demand> = asked.into_iter().map(one).collect();
            let grants = arbitrate(&demands, |_, _| capacity);
            let kept = |host: usize| {
                grants.contended.iter().find(|own| own.host == host).map_or(1.0, |own| own.floors_kept)
            };
            for (demand, share) in demands.iter().zip(&grants.shares) {
                let least = kept(demand.host) * demand.floor();
                proptest::prop_assert!(share.part() >= least - 1e-9 && share.part() <= demand.wanted.part() + 1e-9);
            }
            for host in 0..3 {
                let here = |value: &dyn Fn(usize) -> f64| -> f64 {
                    (0..demands.len()).filter(|i| demands[*i].host == host).map(value).sum()
                };
                let (asked, floors) = (here(&|i| demands[i].wanted.part()), here(&|i| demands[i].floor()));
                let got = here(&|i| grants.shares[i].part());
                proptest::prop_assert!((got - asked.min(capacity)).abs() < 1e-6, "{} of {}", got, asked);
                proptest::prop_assert!((kept(host) < 1.0) == (floors > capacity), "{} of {}", floors, capacity);
            }
        }

        #[test]
        fn the_parts_are_clarabels_and_no_host_gives_more_than_it_has(
            wanted in (2..6_usize, 1..4_usize).prop_flat_map(|(applications, hosts)| {
                proptest::collection::vec(proptest::collection::vec(0.05..0.9_f64, hosts), applications)
            }),
            gains in proptest::collection::vec(0.2..3.0_f64, 6),
        ) {
            let demands: Vec<Demand> = wanted
                .iter()
                .enumerate()
                .flat_map(|(a, own)| {
                    let gain = gains[a];
                    own.iter().enumerate().map(move |(host, wanted)| demand(a, host, Resource::Cpu, *wanted, gain))
                })
                .collect();
            let grants = arbitrate(&demands, WHOLE);
            for host in 0..wanted[0].len() {
                let on = |value: &dyn Fn(usize) -> f64| -> f64 {
                    (0..demands.len()).filter(|i| demands[*i].host == host).map(value).sum()
                };
                let (asked, got) = (on(&|i| demands[i].wanted.part()), on(&|i| grants.shares[i].part()));
                // All of a contended host is given, and no more; every application has the part that is due.
                proptest::prop_assert!((got - asked.min(1.0)).abs() < 1e-6, "{} of {}", got, asked);
            }
            for (demand, share) in demands.iter().zip(&grants.shares) {
                let due = grants.parts[demand.application] * demand.wanted.part();
                proptest::prop_assert!(share.part() >= due - 1e-9 && share.part() <= demand.wanted.part() + 1e-9);
            }
            if !grants.contended.is_empty()
                && let Some(parts) = oracle(&wanted, &gains[..wanted.len()])
            {
                // By the objective: where it is flat an interior point is some way off.
                let over = |host: usize| wanted.iter().map(|own| own[host]).sum::<f64>() > 1.0 + 1e-9;
                let weight = |a: usize| -> f64 {
                    let constrained = wanted[a].iter().enumerate().filter(|(host, _)| over(*host));
                    constrained.map(|(_, own)| own * gains[a]).sum::<f64>().powi(2)
                };
                let most = (0..wanted.len()).map(weight).fold(0.0, f64::max);
                let lost = |parts: &[f64]| -> f64 {
                    parts.iter().enumerate().map(|(a, p)| weight(a).max(LEAST_WEIGHT * most) * (1.0 - p).powi(2)).sum()
                };
                let (own, best) = (lost(&grants.parts), lost(&parts));
                proptest::prop_assert!(own <= best * (1.0 + 1e-6) + 1e-9, "{} and {}: {:?} and {:?}", own, best, grants.parts, parts);
            }
        }
    }
}
