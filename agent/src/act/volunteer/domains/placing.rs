//! CPUs kept free of one domain of the volunteer, by the hard affinity of its virtual CPUs; soft affinity is left as it is. In:
//! how many. Out: the affinity, set through the helper, never beyond what was found. Called by the volunteer's domains.

use crate::act::managed::{ForeignWrite, Managed};
use crate::act::volunteer::error::SpareError;
use crate::levers::{AnyLever, LeverError, LeverValue};
use crate::sense::perf::parse_cpu_list;
use crate::xen::{self, CpuPlacing};

/// Where a domain runs, while it is held.
#[derive(Debug)]
pub(super) struct Placing {
    pub(super) affinity: Managed,
}

impl Placing {
    /// Keeps so many CPUs of its pool free of it, whole cores first; one is always left to it. What somebody else has set is not
    /// overwritten. A foreign write that was not met before is returned in any case.
    pub(super) fn keep_free(&mut self, spare: u32, met: &mut Vec<ForeignWrite>) -> Result<(), SpareError> {
        let AnyLever::Affinity(lever) = &self.affinity.lever else { return Ok(()) };
        let wanted = match spare {
            0 => self.affinity.original.clone(),
            spare => {
                let failed = |source| LeverError::Read { what: lever.to_string(), source };
                let now = xen::placing(&lever.uuid, lever.id).map_err(failed)?;
                without(&self.affinity.original.to_string(), &now, spare, &lever.to_string())?
            }
        };
        met.extend(self.affinity.set(wanted)?);
        match self.affinity.is_foreign() {
            true => Err(SpareError::Foreign(self.affinity.lever.to_string())),
            false => Ok(()),
        }
    }
}

/// What was found, without the CPUs that are kept free: as many as `spare` of the pool's, but one, core by core, the first core
/// first, where the control domain often is.
fn without(found: &str, now: &CpuPlacing, spare: u32, what: &str) -> Result<LeverValue, SpareError> {
    let parse = |list: &str| parse_cpu_list(list).ok_or_else(|| SpareError::NoList(what.to_owned()));
    let cores = now.cores.iter().map(|core| parse(core)).collect::<Result<Vec<_>, _>>()?;
    let pool: Vec<usize> = cores.into_iter().flatten().collect();
    let spare = usize::try_from(spare).unwrap_or(usize::MAX).min(pool.len().saturating_sub(1));
    let (free, left) = pool.split_at(spare);
    let one = |list: &str| {
        if list.is_empty() || free.is_empty() {
            return Ok(list.to_owned());
        }
        let mut cpus: Vec<usize> = parse(list)?.into_iter().filter(|cpu| left.contains(cpu)).collect();
        cpus.sort_unstable();
        if cpus.is_empty() {
            return Err(SpareError::Pinned { what: what.to_owned(), cpus: list.to_owned() });
        }
        Ok(crate::act::volunteer::spare::list(&cpus))
    };
    let lists = found.split(';').map(one).collect::<Result<Vec<String>, _>>()?;
    Ok(LeverValue::Text(lists.join(";")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_narrowed_to_the_cpus_that_are_left_of_its_pool() {
        let of = |found: &str, cores: &[&str], spare| {
            let now = CpuPlacing { vcpus: Vec::new(), cores: cores.iter().map(|core| (*core).to_owned()).collect() };
            without(found, &now, spare, "it").map(|value| value.to_string())
        };
        let cores = ["0,2", "1,3"];
        let left: Vec<String> = (0..6).map(|spare| of("0-7", &cores, spare).unwrap()).collect();
        assert_eq!(left, ["0-7", "1-3", "1,3", "3", "3", "3"], "cores are freed whole, and one CPU is left");
        assert_eq!(of("0-3;2-3;;1", &cores, 2).unwrap(), "1,3;3;;1", "each virtual CPU, and none that does not exist");
        assert_eq!(of("0-7", &["5"], 1).unwrap(), "0-7", "the only CPU of its pool is its own");
        assert!(matches!(of("0-3;0", &cores, 1), Err(SpareError::Pinned { .. })), "an operator has pinned it there");
        assert!(matches!(of("x", &cores, 1), Err(SpareError::NoList(_))));
        assert!(matches!(of("0", &["x"], 1), Err(SpareError::NoList(_))));
    }
}
