//! What the hypervisor can do with the last-level cache. In: nothing. Out: whether it monitors who fills it
//! (`XEN_SYSCTL_psr_cmt_op`) and whether parts of it can be given to domains (`XEN_SYSCTL_psr_alloc`), with its own answers.
//! Called by `domains`. Nothing is attached or set here; `occupancy` reads it.

use std::io;

use crate::hypercall::Hypervisor;
use crate::occupancy::{ENABLED, Monitoring};
use crate::protocol::{Cache, CacheFeature};

const SYSCTL_CACHE_ALLOCATION: u32 = 23;
/// `XEN_SYSCTL_PSR_get_l3_info`, of the first socket.
const ALLOCATION_OF_L3: u32 = 0;

impl Hypervisor {
    pub(crate) fn cache(&self) -> Cache {
        let allocation = self.sysctl(SYSCTL_CACHE_ALLOCATION, |own| own.put(8, ALLOCATION_OF_L3));
        Cache {
            monitoring: feature("psr_cmt_op", self.monitoring(ENABLED).map(|enabled| enabled != 0)),
            allocation: feature("psr_alloc", allocation.map(|()| true)),
        }
    }
}

fn feature(call: &str, answer: io::Result<bool>) -> CacheFeature {
    let text = match &answer {
        Ok(true) => "it is there".to_owned(),
        Ok(false) => "not of the last-level cache".to_owned(),
        Err(error) => error.to_string(),
    };
    CacheFeature { there: answer.unwrap_or(false), answer: format!("{call}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hypervisors_own_answer_is_told() {
        let none = feature("psr_cmt_op", Err(io::Error::from_raw_os_error(libc::ENODEV)));
        assert!(!none.there && none.answer.starts_with("psr_cmt_op: No such device"), "{none:?}");
        assert!(feature("psr_alloc", Ok(true)).there && !feature("psr_cmt_op", Ok(false)).there);
    }
}
