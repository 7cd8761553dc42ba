//! Node selection: offers sorted by potential productivity, the best first; a size is a prefix of the list (RHIC §4.2).
//! In: offers of hosts. Out: their order, for [`crate::sizing`].

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gleaner_types::id::HostId;
use gleaner_types::units::CoreShare;

use crate::productivity::potential;

/// Least potential worth offering. Chosen: a twentieth of a core.
const LEAST: f64 = 5.0;

/// Part of its potential by which a free host must be better than one in use to replace it. Chosen.
pub const REPLACEMENT_THRESHOLD: f64 = 0.25;

/// One volunteer a job could use.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Its host.
    pub host: HostId,
    /// Slots it has: all that fit for a whole host, one where slots are offered singly.
    pub slots: u32,
    /// What it could contribute (RHIC Eq. 1).
    pub potential: CoreShare,
}

/// Sorts offers, the most productive first; equals by host, so that the order is always the same. Offers with
/// hardly any potential are left out.
#[must_use]
pub fn ranked(mut offers: Vec<Offer>) -> Vec<Offer> {
    offers.retain(|offer| offer.potential.percent() >= LEAST);
    sorted(offers)
}

fn sorted(mut offers: Vec<Offer>) -> Vec<Offer> {
    offers.sort_by(|a, b| b.potential.total_cmp(&a.potential).then_with(|| a.host.cmp(&b.host)));
    offers
}

/// Whole hosts in the order in which sizes take them: the ones in use first, so that a size that stays keeps its
/// hosts, then the free ones; within each the best first. Before that the worst in use is swapped for the best free
/// one while their potentials differ by more than `threshold` of the better (RHIC §4.2, "replacement"). Gives the
/// offers and how many were swapped.
///
/// `output` is how many finished tasks have their output on hosts in use, which others still read: those hosts are before all
/// others, that with the most first, and are not swapped, so a smaller size gives them back last.
#[must_use]
pub fn arranged(
    used: Vec<Offer>,
    free: Vec<Offer>,
    threshold: f64,
    output: &BTreeMap<HostId, u32>,
) -> (Vec<Offer>, u32) {
    let (mut holding, used): (Vec<Offer>, Vec<Offer>) =
        sorted(used).into_iter().partition(|offer| output.contains_key(&offer.host));
    holding.sort_by_key(|offer| Reverse(output.get(&offer.host)));
    let (mut used, mut free) = (used, ranked(free));
    let mut swaps = 0;
    for (worst, best) in used.iter_mut().rev().zip(&mut free) {
        if worst.potential.percent() >= best.potential.percent() * (1.0 - threshold) {
            break;
        }
        std::mem::swap(worst, best);
        swaps += 1;
    }
    if swaps > 0 {
        (used, free) = (sorted(used), ranked(free));
    }
    holding.append(&mut used);
    holding.append(&mut free);
    (holding, swaps)
}

/// The slots of one machine as single offers, after `taken` slots that are used already: the i-th slot can
/// use what of the residual the slots before it leave, up to one core.
#[must_use]
pub fn slots_of(host: &HostId, residual: CoreShare, taken: u32, most: u32) -> Vec<Offer> {
    let offer = |slot: u32| Offer {
        host: host.clone(),
        slots: 1,
        potential: potential(residual, slot + 1).saturating_sub(potential(residual, slot)),
    };
    // Slots past the residual offer nothing, so the list need not be longer than the machine has cores.
    let useful = (taken..most).map_while(|slot| Some(offer(slot)).filter(|offer| offer.potential.percent() >= LEAST));
    ranked(useful.collect())
}

/// How many of the offers still find a task, when so many are left besides those of the dedicated hosts.
#[must_use]
pub fn with_tasks(offers: &[Offer], tasks: u32) -> u32 {
    let mut slots = 0_u32;
    let needed = offers.iter().take_while(|offer| {
        let short = slots < tasks;
        slots = slots.saturating_add(offer.slots);
        short
    });
    u32::try_from(needed.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(host: &str, percent: f64) -> Offer {
        Offer { host: HostId::new(host).unwrap(), slots: 1, potential: CoreShare::new(percent).unwrap() }
    }

    #[test]
    fn ranks_by_potential_then_name() {
        let ranked = ranked(vec![offer("c", 50.0), offer("b", 80.0), offer("a", 50.0), offer("d", 1.0)]);
        let hosts: Vec<_> = ranked.iter().map(|o| o.host.as_str()).collect();
        assert_eq!(hosts, ["b", "a", "c"]);
    }

    #[test]
    fn hosts_in_use_are_kept_unless_a_free_one_is_much_better() {
        let names = |used: &[(&str, f64)], free: &[(&str, f64)]| -> (Vec<String>, u32) {
            let offers = |list: &[(&str, f64)]| list.iter().map(|(host, percent)| offer(host, *percent)).collect();
            let (arranged, swaps) = arranged(offers(used), offers(free), 0.25, &BTreeMap::new());
            (arranged.iter().map(|offer| offer.host.to_string()).collect(), swaps)
        };
        let free = [("x", 1_000.0), ("y", 990.0)];
        let (order, swaps) = names(&[("a", 800.0), ("b", 900.0)], &free);
        assert_eq!((order.join(" "), swaps), ("b a x y".into(), 0));
        // `a` fell below three quarters of `x`; `b` did not fall below three quarters of `y`.
        let (order, swaps) = names(&[("a", 700.0), ("b", 900.0)], &free);
        assert_eq!((order.join(" "), swaps), ("x b y a".into(), 1));
    }

    #[test]
    fn hosts_with_output_that_is_read_are_kept_longest_and_not_swapped() {
        let output = [("a", 3), ("c", 9)].map(|(host, tasks)| (HostId::new(host).unwrap(), tasks)).into();
        let used = vec![offer("a", 100.0), offer("b", 400.0), offer("c", 200.0), offer("d", 90.0)];
        let (order, swaps) = arranged(used, vec![offer("x", 300.0)], 0.25, &output);
        let hosts: Vec<&str> = order.iter().map(|offer| offer.host.as_str()).collect();
        assert_eq!((hosts.join(" "), swaps), ("c a b x d".into(), 1), "only d gives way");
    }

    #[test]
    fn slots_of_a_machine_share_its_residual() {
        let host = HostId::new("h").unwrap();
        let residual = CoreShare::new(270.0).unwrap();
        let potentials = |taken, most| -> Vec<f64> {
            slots_of(&host, residual, taken, most).iter().map(|o| o.potential.percent()).collect()
        };
        assert_eq!(potentials(0, 8), [100.0, 100.0, 70.0]);
        assert_eq!(potentials(1, 8), [100.0, 70.0]);
        assert_eq!(potentials(1, 2), [100.0]);
        assert_eq!(potentials(5, 8), [] as [f64; 0]);
    }
}
