//! How long Xen domains ran and waited for a CPU. In: the hypervisor's answer, once for all domains of a reading. Out: a
//! domain's times, and how many looks they are of. Called by `run_queue` for the harm meter. The waits are sampled
//! ([`crate::xen::waits`]): a window needs some looks, and the interval of the harm has to say that it has no more.

use std::io;

use gleaner_planner::harm::RunTime;
use gleaner_types::report::{Absence, AbsenceKind, Reason};

use crate::process::gone;
use crate::xen::{self, Waits};

/// Fewest looks of a window that say anything of it. (Chosen: a window has 20 and more, unless the helper hardly ran.)
const LEAST_LOOKS: u64 = 4;

/// How often a domain was looked at so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Looked {
    /// Its number: one that was started anew has another.
    id: u32,
    looks: u64,
    looked_ns: u64,
    scale: u64,
}

/// The answer for a reading, if any of its workloads is a domain.
#[derive(Debug, Default)]
pub(crate) struct DomainWaits(Option<Result<Waits, Absence>>);

impl DomainWaits {
    /// Asks the hypervisor's helper, where there are domains to read.
    pub(super) fn ask(are_there: bool) -> Self {
        let failed = |error: io::Error| Absence {
            kind: AbsenceKind::Vanished,
            reason: Reason::HypervisorFailed { error: error.to_string().into() },
        };
        Self(are_there.then(|| xen::waits().map_err(failed)))
    }

    /// The times of one domain, and by how many looks.
    pub(super) fn of(&self, uuid: &str) -> Result<(RunTime, Looked), Absence> {
        let waits = match &self.0 {
            None => return Err(Absence::because(Reason::NotByHypervisor)),
            Some(Err(absence)) => return Err(absence.clone()),
            Some(Ok(waits)) => waits,
        };
        let domain = waits.domains.iter().find(|domain| domain.uuid == uuid);
        let (id, time) = match domain {
            Some(domain) => (domain.id, RunTime { cpu_ns: domain.cpu_ns, wait_ns: domain.wait_ns }),
            // The helper was not looking yet.
            None if waits.domains.is_empty() => return Err(too_seldom()),
            None => return Err(gone()),
        };
        let looked = Looked { id, looks: waits.looks, looked_ns: waits.looked_ns, scale: waits.scale };
        Ok((time, looked))
    }
}

fn too_seldom() -> Absence {
    Absence::described(AbsenceKind::NotYet, "the hypervisor was looked at too seldom to tell waits")
}

/// The time that a look of one virtual CPU stands for, in ns, over two windows by their four readings; 0 where nothing was
/// sampled.
pub(super) fn look_ns(readings: [Option<Looked>; 4]) -> Result<u64, Absence> {
    let [Some(with_from), Some(with_to), Some(from), Some(to)] = readings else { return Ok(0) };
    if [with_to, from, to].iter().any(|one| one.id != with_from.id) {
        return Err(gone());
    }
    let mut longest_ns = 0;
    for (from, to) in [(with_from, with_to), (from, to)] {
        // Another helper counts from another beginning.
        let looks = to.looks.checked_sub(from.looks).filter(|looks| *looks >= LEAST_LOOKS).ok_or_else(too_seldom)?;
        let mean_ns = to.looked_ns.saturating_sub(from.looked_ns) / looks;
        longest_ns = longest_ns.max(mean_ns.saturating_mul(to.scale.max(1)));
    }
    Ok(longest_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xen::Waited;

    fn waits(id: u32, looks: u64) -> DomainWaits {
        let domain = Waited { id, uuid: "u".to_owned(), cpu_ns: 7, wait_ns: 5 };
        let waits = Waits { looks, looked_ns: 1_000_000 * looks, scale: 3, domains: vec![domain] };
        DomainWaits(Some(Ok(waits)))
    }

    fn of(readings: [(u32, u64); 4]) -> Result<u64, Absence> {
        look_ns(readings.map(|(id, looks)| Some(waits(id, looks).of("u").unwrap().1)))
    }

    #[test]
    fn a_domains_waits_say_how_long_a_look_stands_for() {
        assert_eq!(waits(1, 5).of("u").unwrap().0, RunTime { cpu_ns: 7, wait_ns: 5 });
        assert_eq!(of([(1, 5), (1, 25), (1, 30), (1, 40)]), Ok(3_000_000), "each look is of one in three");
        assert_eq!(look_ns([None; 4]), Ok(0), "no domain");
    }

    #[test]
    fn too_few_looks_another_helper_and_another_domain_say_so() {
        assert!(of([(1, 0), (1, 4), (1, 5), (1, 9)]).is_ok());
        for few in [[0, 3, 5, 9], [10, 20, 2, 4], [10, 2, 8, 20]] {
            assert_eq!(of(few.map(|looks| (1, looks))), Err(too_seldom()), "{few:?}");
        }
        assert_eq!(of([(1, 0), (1, 9), (2, 10), (2, 20)]), Err(gone()), "started anew");
        let none = Waits { looks: 0, looked_ns: 0, scale: 0, domains: Vec::new() };
        assert_eq!(DomainWaits(Some(Ok(none))).of("u").unwrap_err(), too_seldom());
        assert_eq!(waits(1, 5).of("v").unwrap_err(), gone());
        assert_eq!(DomainWaits::default().of("u").unwrap_err().reason, Reason::NotByHypervisor);
        let failed = Absence::described(AbsenceKind::Vanished, "no helper");
        assert_eq!(DomainWaits(Some(Err(failed.clone()))).of("u").unwrap_err(), failed);
    }
}
