//! States of virtual CPUs. In: which ones. Out: whether each waits for a CPU, and where it ran last; and the physical CPU that
//! this runs on. Called by `sampler`. One call of the hypervisor (`multicall`) has all questions in it
//! (`XEN_DOMCTL_getvcpuinfo`), whose answers are read where they are.

use crate::hypercall::{BUFFER, Hypervisor, PAGE};
use crate::protocol::Failure;
use crate::waits::{MOST_VCPUS, Seen, Vcpu};

const MULTICALL: u64 = 13;
const DOMCTL: u64 = 36;
const DOMCTL_VCPU_INFO: u32 = 14;
/// Those of others, and the own one.
const MOST_QUESTIONS: usize = MOST_VCPUS + 1;
/// `sizeof(struct multicall_entry)`: the call, its result, six arguments.
const ENTRY: usize = 64;
/// `sizeof(struct xen_domctl)`.
const QUESTION: usize = 144;
/// Where the questions begin: behind all entries, on the pages for the list of domains, which nobody needs meanwhile.
const QUESTIONS: usize = PAGE + MOST_QUESTIONS * ENTRY;
const _: () = assert!(QUESTIONS + MOST_QUESTIONS * QUESTION <= BUFFER);

/// The virtual CPU that this runs on, whose number is the kernel's number of its CPU.
fn own() -> Vcpu {
    // SAFETY: it takes no arguments and touches no memory of this program.
    let cpu = unsafe { libc::sched_getcpu() };
    Vcpu { domain: 0, number: u32::try_from(cpu).unwrap_or(0) }
}

impl Hypervisor {
    /// How each of these virtual CPUs is; one that is gone waits for nothing. Of more than [`MOST_VCPUS`] the rest is left out.
    /// Answers the physical CPU that this runs on.
    ///
    /// # Errors
    /// The hypervisor's refusal.
    pub(crate) fn look_at(&self, vcpus: &[Vcpu], seen: &mut Vec<Seen>) -> Result<u32, Failure> {
        seen.clear();
        if vcpus.is_empty() {
            return Ok(0);
        }
        let vcpus = vcpus.get(..MOST_VCPUS).unwrap_or(vcpus);
        for (index, vcpu) in [own()].iter().chain(vcpus).enumerate() {
            let (entry, question) = (PAGE + index * ENTRY, QUESTIONS + index * QUESTION);
            self.put(entry, [DOMCTL, 0, self.address(question), 0, 0, 0, 0, 0]);
            self.put(question, [0_u8; QUESTION]);
            self.put(question, DOMCTL_VCPU_INFO);
            self.put(question + 4, self.domctl_version());
            self.put(question + 8, vcpu.domain);
            self.put(question + 16, vcpu.number);
        }
        let call = self.call_with(MULTICALL, [self.address(PAGE), vcpus.len() as u64 + 1]);
        call.map_err(|error| Failure::io("failed to ask for the states of virtual CPUs".into(), &error))?;
        let one = |index: usize| {
            let (entry, question) = (PAGE + index * ENTRY, QUESTIONS + index * QUESTION);
            let result: i64 = self.get(entry + 8);
            let [online, blocked, running]: [u8; 3] = self.get(question + 20);
            let waits = result == 0 && online != 0 && blocked == 0 && running == 0;
            Seen { waits, cpu: self.get(question + 32) }
        };
        seen.extend((1..=vcpus.len()).map(one));
        Ok(one(0).cpu)
    }
}
