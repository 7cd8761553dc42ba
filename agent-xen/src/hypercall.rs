//! Hypercalls of a control domain. In: questions and settings, for `/dev/xen/privcmd`. Out: what the hypervisor says of
//! the domains and the scheduler; caps, weights, memory and pauses, set. Called by `domains`. The layouts are Xen's
//! public headers' (`xen/include/public/{sysctl,domctl,memory,platform}.h`).
//!
//! The hypervisor refuses a call whose interface version is not its own, so versions are tried until one is taken. The
//! layouts used here are the same in all of those tried; that the answers make sense is checked anyway.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::protocol::Failure;

const PLATFORM: u64 = 7;
const MEMORY_OP: u64 = 12;
const MEMORY_SET_POD_TARGET: u64 = 16;
const SYSCTL: u64 = 35;
const DOMCTL: u64 = 36;
const SYSCTL_PHYSINFO: u32 = 3;
const SYSCTL_SCHED_ID: u32 = 4;
const SYSCTL_DOMAIN_LIST: u32 = 6;
const DOMCTL_PAUSE: u32 = 3;
const DOMCTL_UNPAUSE: u32 = 4;
const DOMCTL_MAX_MEMORY: u32 = 11;
const DOMCTL_SCHEDULER: u32 = 16;
const SCHEDULER_PUT: u32 = 0;
const SCHEDULER_GET: u32 = 1;

/// Interface versions of Xen 4.17 to 4.21, of which 4.17 was tried.
const SYSCTL_VERSIONS: [u32; 1] = [0x15];
const DOMCTL_VERSIONS: [u32; 3] = [0x15, 0x16, 0x17];

/// The interface of the platform has had this version since long before (`XENPF_INTERFACE_VERSION`).
pub(crate) const PLATFORM_VERSION: u32 = 0x0300_0001;

const CREDIT: u32 = 5;
const CREDIT2: u32 = 6;
/// Flags of a domain (`XEN_DOMINF_*`).
const DYING: u32 = 1 << 0;
const HVM: u32 = 1 << 1;
const SHUT_DOWN: u32 = 1 << 2;
const PAUSED: u32 = 1 << 3;
const BLOCKED: u32 = 1 << 4;
const RUNNING: u32 = 1 << 5;

pub(crate) const CONTROL_DOMAIN: u16 = 0;
pub(crate) const PAGE: usize = 4096;
/// `sizeof(struct xen_domctl_getdomaininfo)`.
const DOMAIN_INFO: usize = 112;
/// Number of a domain that is not there.
const NO_DOMAIN: u16 = 0x7fee;
/// Highest number of a virtual CPU that is believed (`MAX_VIRT_CPUS` of PV guests).
const MOST_VCPU: u32 = 8191;
/// Most domains in one answer.
pub(crate) const MOST_DOMAINS: usize = 4096;
/// The argument's page, and room for the list of domains.
pub(crate) const BUFFER: usize = PAGE + (MOST_DOMAINS * DOMAIN_INFO).next_multiple_of(PAGE);

#[repr(C)]
struct Call {
    number: u64,
    arguments: [u64; 5],
}

/// `_IOC(_IOC_NONE, 'P', 0, sizeof(struct privcmd_hypercall))`
const IOCTL_HYPERCALL: libc::c_ulong = (size_of::<Call>() as libc::c_ulong) << 16 | (b'P' as libc::c_ulong) << 8;

/// What a domain is called by the hypervisor, whatever its number.
pub(crate) type Uuid = [u8; 16];

/// A domain from one start to its end: started anew it has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: u16,
    pub(crate) uuid: Uuid,
}

/// The way to the hypervisor, with memory that it can read.
#[derive(Debug)]
pub(crate) struct Hypervisor {
    privcmd: File,
    buffer: *mut u8,
    sysctl_version: u32,
    domctl_version: u32,
    /// Of the hypervisor's first pool of CPUs.
    pub(crate) scheduler: u32,
    _memory: File,
}

// SAFETY: the memory is a mapping that is shared with the hypervisor alone and belongs to no thread; nothing but this value
// points to it.
unsafe impl Send for Hypervisor {}

/// What the hypervisor knows of a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DomainInfo {
    pub(crate) id: u16,
    pub(crate) uuid: Uuid,
    pub(crate) paused: bool,
    pub(crate) dying: bool,
    /// It is an HVM or a PVH domain.
    pub(crate) hvm: bool,
    pub(crate) shut_down: bool,
    /// All of its virtual CPUs that are online wait for an event.
    pub(crate) blocked: bool,
    /// One of them runs.
    pub(crate) running: bool,
    pub(crate) pages: u64,
    pub(crate) most_pages: u64,
    /// Promised to it by the hypervisor while it is being built.
    pub(crate) claimed_pages: u64,
    pub(crate) cpu_ns: u64,
    /// Virtual CPUs that are online.
    pub(crate) vcpus: u32,
    /// Its pool of CPUs.
    pub(crate) pool: u32,
    /// Number of the last one.
    pub(crate) highest_vcpu: u32,
}

impl DomainInfo {
    pub(crate) fn run(&self) -> Run {
        Run { id: self.id, uuid: self.uuid }
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open` with this length; nothing but this value points to it.
        unsafe { libc::munmap(self.buffer.cast(), BUFFER) };
    }
}

/// Tries versions of an interface until the hypervisor takes one. Answers it with what it said.
///
/// # Errors
/// Unsupported when it takes none, which it says by `EACCES`; its error when it says another.
fn try_versions<T>(interface: &str, versions: &[u32], mut ask: impl FnMut(u32) -> io::Result<T>) -> Result<T, Failure> {
    for version in versions {
        match ask(*version) {
            Ok(answer) => return Ok(answer),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
            Err(error) => return Err(Failure::io(format!("failed to ask the hypervisor by {interface}"), &error)),
        }
    }
    Err(Failure::unsupported(format!("the hypervisor takes no {interface} version of {versions:#x?}")))
}

fn name_of(scheduler: u32) -> &'static str {
    match scheduler {
        CREDIT => "credit",
        CREDIT2 => "credit2",
        4 => "sedf",
        7 => "arinc653",
        8 => "rtds",
        9 => "null",
        _ => "unknown",
    }
}

impl Hypervisor {
    pub(crate) fn open() -> Result<Self, Failure> {
        let device = |path: &str| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.map_err(|error| Failure::io(format!("failed to open `{path}`"), &error))
        };
        let privcmd = device("/dev/xen/privcmd")?;
        let memory = device("/dev/xen/hypercall")?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of this program.
        let buffer = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), BUFFER, access, libc::MAP_SHARED, memory.as_raw_fd(), 0)
        };
        if buffer == libc::MAP_FAILED {
            return Err(Failure::io("failed to map memory for hypercalls".into(), &io::Error::last_os_error()));
        }
        let buffer = buffer.cast();
        let mut own = Self { privcmd, buffer, sysctl_version: 0, domctl_version: 0, scheduler: 0, _memory: memory };
        own.find_versions()?;
        Ok(own)
    }

    fn find_versions(&mut self) -> Result<(), Failure> {
        self.scheduler = try_versions("sysctl", &SYSCTL_VERSIONS, |version| {
            self.sysctl_version = version;
            self.sched_id()
        })?;
        try_versions("domctl", &DOMCTL_VERSIONS, |version| {
            self.domctl_version = version;
            match self.scheduler_call(self.scheduler, NO_DOMAIN, SCHEDULER_GET, None) {
                // The version is right when only the domain is wrong, or what is asked of it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL | libc::ENOSYS)) => Ok(()),
                answer => answer.map(drop),
            }
        })
    }

    pub(crate) fn put<T: Copy>(&self, at: usize, value: T) {
        debug_assert!(at + size_of::<T>() <= BUFFER);
        // SAFETY: the mapping is `BUFFER` bytes long, lives as long as `self`, and every place written is well inside by
        // constants and bounded counts; unaligned writes need no alignment.
        unsafe { ptr::write_unaligned(self.buffer.add(at).cast(), value) }
    }

    pub(crate) fn get<T: Copy>(&self, at: usize) -> T {
        debug_assert!(at + size_of::<T>() <= BUFFER);
        // SAFETY: as for `put`; only plain integers and arrays of them are read, of which every pattern is valid.
        unsafe { ptr::read_unaligned(self.buffer.add(at).cast()) }
    }

    fn clear(&self, length: usize) {
        // SAFETY: as for `put`; callers clear at most the first page.
        unsafe { ptr::write_bytes(self.buffer, 0, length.min(BUFFER)) }
    }

    /// Where a place of the memory is to the hypervisor.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.buffer as u64 + at as u64
    }

    pub(crate) fn domctl_version(&self) -> u32 {
        self.domctl_version
    }

    fn call(&self, number: u64) -> io::Result<()> {
        self.call_with(number, [self.address(0), 0]).map(drop)
    }

    /// A call whose arguments are no more than that, and name nothing but the memory. Answers with its result.
    pub(crate) fn call_with(&self, number: u64, [first, second]: [u64; 2]) -> io::Result<u32> {
        let mut call = Call { number, arguments: [first, second, 0, 0, 0] };
        // SAFETY: the driver reads `call`, which lives through it; the hypervisor reads and writes the mapping, as far as
        // the structures in it say, which name no more than `BUFFER` bytes.
        let result = unsafe { libc::ioctl(self.privcmd.as_raw_fd(), IOCTL_HYPERCALL, &raw mut call) };
        u32::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    pub(crate) fn sysctl(&self, command: u32, arguments: impl FnOnce(&Self)) -> io::Result<()> {
        self.clear(PAGE);
        self.put(0, command);
        self.put(4, self.sysctl_version);
        arguments(self);
        self.call(SYSCTL)
    }

    pub(crate) fn domctl(&self, command: u32, domain: u16, arguments: impl FnOnce(&Self)) -> io::Result<()> {
        self.clear(PAGE);
        self.put(0, command);
        self.put(4, self.domctl_version);
        self.put(8, domain);
        arguments(self);
        self.call(DOMCTL)
    }

    /// Answers with the call's result.
    pub(crate) fn platform_op(&self, command: u32, arguments: impl FnOnce(&Self)) -> io::Result<u32> {
        self.clear(PAGE);
        self.put(0, command);
        self.put(4, PLATFORM_VERSION);
        arguments(self);
        self.call_with(PLATFORM, [self.address(0), 0])
    }

    fn sched_id(&self) -> io::Result<u32> {
        self.sysctl(SYSCTL_SCHED_ID, |_| {})?;
        Ok(self.get(8))
    }

    /// Name of the scheduler that the hypervisor was started with.
    pub(crate) fn scheduler_name(&self) -> &'static str {
        name_of(self.scheduler)
    }

    /// This pool's scheduler is the old one, credit.
    pub(crate) fn is_credit(&self, pool: u32) -> Result<bool, Failure> {
        let scheduler = self.scheduler_of(pool);
        let scheduler =
            scheduler.map_err(|error| Failure::io(format!("failed to find the scheduler of pool {pool}"), &error))?;
        Ok(scheduler == CREDIT)
    }

    pub(crate) fn physical_cpus(&self) -> Result<u32, Failure> {
        let call = self.sysctl(SYSCTL_PHYSINFO, |_| {});
        call.map_err(|error| Failure::io("failed to ask for the CPUs".into(), &error))?;
        Ok(self.get(16))
    }

    /// All memory, and what is free, in pages.
    ///
    /// # Errors
    /// Unsupported where the answer makes no sense; the hypervisor's error.
    pub(crate) fn memory_pages(&self) -> Result<(u64, u64), Failure> {
        let call = self.sysctl(SYSCTL_PHYSINFO, |_| {});
        call.map_err(|error| Failure::io("failed to ask for the hypervisor's memory".into(), &error))?;
        let (total, free): (u64, u64) = (self.get(48), self.get(56));
        // With another layout than the one known here one of them would be none, or larger than the other.
        if total == 0 || free > total {
            return Err(Failure::unsupported(
                "the hypervisor tells of memory in a layout that is not known here".into(),
            ));
        }
        Ok((total, free))
    }

    /// All domains, by number, in place of what `domains` held: one call, whose answer is read where it is.
    pub(crate) fn list_into(&self, domains: &mut Vec<DomainInfo>) -> Result<(), Failure> {
        let call = self.sysctl(SYSCTL_DOMAIN_LIST, |own| {
            own.put(8, 0_u16);
            own.put(12, MOST_DOMAINS as u32);
            own.put(16, own.address(PAGE));
        });
        call.map_err(|error| Failure::io("failed to list the domains".into(), &error))?;
        let count = self.get::<u32>(24) as usize;
        let one = |index: usize| {
            let at = PAGE + index * DOMAIN_INFO;
            let flags: u32 = self.get(at + 4);
            DomainInfo {
                id: self.get(at),
                paused: flags & PAUSED != 0,
                dying: flags & DYING != 0,
                hvm: flags & HVM != 0,
                shut_down: flags & SHUT_DOWN != 0,
                blocked: flags & BLOCKED != 0,
                running: flags & RUNNING != 0,
                pages: self.get(at + 8),
                most_pages: self.get(at + 16),
                claimed_pages: self.get(at + 24),
                cpu_ns: self.get(at + 56),
                vcpus: self.get(at + 64),
                highest_vcpu: self.get::<u32>(at + 68).min(MOST_VCPU),
                uuid: self.get(at + 76),
                pool: self.get(at + 92),
            }
        };
        domains.clear();
        domains.extend((0..count.min(MOST_DOMAINS)).map(one));
        // With another layout than the one known here the numbers would not begin with 0 and rise.
        if domains.first().is_none_or(|first| first.id != 0) || !domains.is_sorted_by(|a, b| a.id < b.id) {
            return Err(Failure::unsupported(
                "the hypervisor tells of domains in a layout that is not known here".into(),
            ));
        }
        Ok(())
    }

    /// The domain of this name that is not about to end; with a number only while it has that one.
    pub(crate) fn find(
        &self,
        uuid: &Uuid,
        id: Option<u16>,
        domains: &mut Vec<DomainInfo>,
    ) -> Result<Option<DomainInfo>, Failure> {
        self.list_into(domains)?;
        let is_it = |domain: &&DomainInfo| domain.uuid == *uuid && id.is_none_or(|id| id == domain.id) && !domain.dying;
        Ok(domains.iter().find(is_it).copied())
    }

    fn scheduler_call(
        &self,
        scheduler: u32,
        domain: u16,
        command: u32,
        set: Option<(u16, u16)>,
    ) -> io::Result<(u16, u16)> {
        self.domctl(DOMCTL_SCHEDULER, domain, |own| {
            own.put(16, scheduler);
            own.put(20, command);
            if let Some((weight, cap)) = set {
                own.put(24, weight);
                own.put(26, cap);
            }
        })?;
        Ok((self.get(24), self.get(26)))
    }

    /// Weight and cap of a domain, of credit and credit2. Pools of CPUs have a scheduler each.
    pub(crate) fn weight_and_cap(&self, domain: &DomainInfo) -> Result<(u16, u16), Failure> {
        let what = || format!("failed to read the scheduler's parameters of domain {}", domain.id);
        let call = self.scheduler_call(self.scheduler_with_caps(domain)?, domain.id, SCHEDULER_GET, None);
        call.map_err(|error| Failure::io(what(), &error))
    }

    fn scheduler_with_caps(&self, domain: &DomainInfo) -> Result<u32, Failure> {
        let what = || format!("failed to find the scheduler of domain {}", domain.id);
        match self.scheduler_of(domain.pool).map_err(|error| Failure::io(what(), &error))? {
            scheduler @ (CREDIT | CREDIT2) => Ok(scheduler),
            other => Err(Failure::unsupported(format!("the scheduler {} has no caps and weights", name_of(other)))),
        }
    }

    /// Sets the cap alone: a weight of 0 says that it stays as it is, so nobody's is overwritten.
    pub(crate) fn set_cap(&self, domain: &DomainInfo, cap: u16) -> Result<(), Failure> {
        self.set_weight_and_cap(domain, 0, cap)
    }

    pub(crate) fn set_weight_and_cap(&self, domain: &DomainInfo, weight: u16, cap: u16) -> Result<(), Failure> {
        let scheduler = self.scheduler_with_caps(domain)?;
        let call = self.scheduler_call(scheduler, domain.id, SCHEDULER_PUT, Some((weight, cap)));
        let what = || format!("failed to set weight {weight} and cap {cap} of domain {}", domain.id);
        call.map(drop).map_err(|error| Failure::io(what(), &error))
    }

    pub(crate) fn pause(&self, domain: u16, paused: bool) -> Result<(), Failure> {
        let command = if paused { DOMCTL_PAUSE } else { DOMCTL_UNPAUSE };
        let what = if paused { "pause" } else { "unpause" };
        let call = self.domctl(command, domain, |_| {});
        call.map_err(|error| Failure::io(format!("failed to {what} domain {domain}"), &error))
    }

    /// Most memory the hypervisor lets a domain have.
    pub(crate) fn set_most_memory(&self, domain: u16, kib: u64) -> Result<(), Failure> {
        let call = self.domctl(DOMCTL_MAX_MEMORY, domain, |own| own.put(16, kib));
        call.map_err(|error| Failure::io(format!("failed to let domain {domain} have {kib} KiB"), &error))
    }

    /// Memory that an HVM or PVH domain may touch before its balloon has brought it down to its target: until then it has more
    /// addresses than memory, and one that touches more than there is crashes. Afterwards this does nothing.
    pub(crate) fn set_memory_on_demand(&self, domain: u16, kib: u64) -> Result<(), Failure> {
        self.clear(PAGE);
        pod_target(domain, kib).into_iter().enumerate().for_each(|(at, word)| self.put(at * size_of::<u64>(), word));
        let call = self.call_with(MEMORY_OP, [MEMORY_SET_POD_TARGET, self.address(0)]);
        call.map(drop)
            .map_err(|error| Failure::io(format!("failed to have {kib} KiB ready for domain {domain}"), &error))
    }
}

/// `struct xen_pod_target`: the target in pages, three words of the answer, the domain.
fn pod_target(domain: u16, kib: u64) -> [u64; 5] {
    [kib / (PAGE as u64 / 1024), 0, 0, 0, u64::from(domain)]
}

/// As the toolstack writes it.
pub(crate) fn uuid_text(bytes: Uuid) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    #[test]
    fn memory_on_demand_is_asked_for_in_pages_and_of_the_domain() {
        assert_eq!(pod_target(3, 129 << 10), [33_024, 0, 0, 0, 3]);
    }

    #[test]
    fn the_first_version_that_is_taken_counts_and_none_is_no_other_failure() {
        let of = |code: i32| io::Error::from_raw_os_error(code);
        let takes =
            |taken: u32| {
                try_versions("domctl", &[0x15, 0x16], |version| {
                    if version == taken { Ok(version) } else { Err(of(libc::EACCES)) }
                })
            };
        assert_eq!((takes(0x15), takes(0x16)), (Ok(0x15), Ok(0x16)));
        let failure = takes(0x19).unwrap_err();
        assert_eq!(failure.kind, Kind::Unsupported);
        assert!(failure.message.contains("takes no domctl version of"), "{failure}");
        let mut asked = 0;
        let denied = try_versions("sysctl", &[0x15, 0x16], |_| {
            asked += 1;
            Err::<(), _>(of(libc::EPERM))
        });
        assert_eq!((denied.unwrap_err().kind, asked), (Kind::Denied, 1), "another version would not help");
    }
}
