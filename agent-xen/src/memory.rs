//! The hypervisor's memory. In: what is there and free, the list of domains, and which of them are the volunteer. Out: what
//! the foreground may still take, and what the volunteer has. Called by `domains`.

use crate::hypercall::{CONTROL_DOMAIN, DomainInfo, Run, uuid_text};
use crate::protocol::{HostMemory, VolunteerMemory};

pub(crate) const PAGE: u64 = 4096;
/// Memory a domain may hold beyond its target, as libxl leaves it (`LIBXL_MAXMEM_CONSTANT`).
pub(crate) const SLACK_KIB: u64 = 1024;
/// Pages a domain may hold beyond its target, as libxl leaves it.
const SLACK_PAGES: u64 = SLACK_KIB * 1024 / PAGE;

/// `total` and `free` in pages.
pub(crate) fn of_host(total: u64, free: u64, infos: &[DomainInfo], volunteers: &[Run]) -> HostMemory {
    let foreground = infos.iter().filter(|info| !volunteers.contains(&info.run()));
    let wanted = foreground.map(|info| wanted_pages(info, total)).fold(0, u64::saturating_add);
    HostMemory {
        total_bytes: total.saturating_mul(PAGE),
        free_bytes: free.saturating_mul(PAGE),
        wanted_bytes: wanted.saturating_mul(PAGE),
    }
}

/// What a domain may still take: the hypervisor lets it come to its target and a slack, also while it is being built. Nothing
/// of the control domain, whose bound says nothing of what it will take, nor of one whose bound is more than there is.
fn wanted_pages(info: &DomainInfo, total: u64) -> u64 {
    if info.id == CONTROL_DOMAIN || info.dying {
        return 0;
    }
    let most = if info.most_pages > total { 0 } else { info.most_pages };
    most.saturating_sub(info.pages).saturating_sub(SLACK_PAGES).max(info.claimed_pages.min(total))
}

pub(crate) fn of_volunteers(infos: &[DomainInfo], volunteers: &[Run]) -> Vec<VolunteerMemory> {
    let own = infos.iter().filter(|info| volunteers.contains(&info.run()));
    let one = |info: &DomainInfo| VolunteerMemory {
        uuid: uuid_text(info.uuid),
        id: info.id,
        memory_bytes: info.pages.saturating_mul(PAGE),
    };
    own.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(id: u16, pages: u64, most_pages: u64, claimed_pages: u64) -> DomainInfo {
        let uuid = [u8::try_from(id).unwrap(); 16];
        DomainInfo { id, uuid, pages, most_pages, claimed_pages, vcpus: 1, ..DomainInfo::default() }
    }

    #[test]
    fn the_foreground_wants_what_its_bounds_let_it_take() {
        let infos = [
            domain(0, 100, 5_000, 0),
            domain(1, 1_000, 1_256, 0),
            domain(2, 1_000, 2_256, 0),
            domain(3, 0, 756, 700),
            domain(4, 10, u64::from(u32::MAX), 0),
            DomainInfo { dying: true, ..domain(5, 0, 900, 0) },
            domain(6, 50, 4_000, 0),
        ];
        let volunteers = [Run { id: 6, uuid: [6; 16] }];
        let memory = of_host(100_000, 40_000, &infos, &volunteers);
        // 1,000 that domain 2 may grow by, and 700 of domain 3, which is being built: its bound and the claim are of the same pages.
        let expected = HostMemory { total_bytes: 100_000 << 12, free_bytes: 40_000 << 12, wanted_bytes: 1_700 << 12 };
        assert_eq!(memory, expected);
        let own = of_volunteers(&infos, &volunteers);
        assert_eq!(own.iter().map(|own| (own.id, own.memory_bytes)).collect::<Vec<_>>(), [(6, 50 << 12)]);
        assert!(of_volunteers(&infos, &[Run { id: 6, uuid: [7; 16] }]).is_empty(), "another has that number now");
    }
}
