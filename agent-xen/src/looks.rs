//! What the volunteer and everybody else used, look after look. In: the list of domains, as the hypervisor gives it many
//! times a second, and which of them are the volunteer. Out: two sums of CPU time that never go back. Called by
//! `domains`. A look allocates nothing once its buffers are large enough.

use crate::hypercall::{DomainInfo, Run};

/// CPU time since the first look.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    before: Vec<DomainInfo>,
    now: Vec<DomainInfo>,
    looked: bool,
    foreground_ns: u64,
    volunteer_ns: u64,
}

impl Looks {
    /// Where the list of the next look goes, by rising number.
    pub(crate) fn next(&mut self) -> &mut Vec<DomainInfo> {
        &mut self.now
    }

    /// The domains of the last look, by rising number.
    pub(crate) fn domains(&self) -> &[DomainInfo] {
        &self.before
    }

    /// The pool of CPUs of a domain of the last look.
    pub(crate) fn pool_of(&self, run: Run) -> Option<u32> {
        let at = self.before.binary_search_by_key(&run.id, |domain| domain.id).ok()?;
        self.before.get(at).filter(|domain| domain.run() == run).map(|domain| domain.pool)
    }

    /// Takes in the list in [`Looks::next`]. Answers what everybody else and what the volunteer used since the first
    /// look, in ns. A domain that is new used all its time since the last look; what one that is gone used after it is
    /// lost.
    pub(crate) fn take(&mut self, volunteers: &[Run]) -> (u64, u64) {
        let mut before = self.before.iter().peekable();
        for domain in &self.now {
            while before.next_if(|old| old.id < domain.id).is_some() {}
            let old = before.next_if(|old| old.id == domain.id).filter(|old| old.uuid == domain.uuid);
            let since = match old {
                Some(old) => old.cpu_ns,
                None if self.looked => 0,
                None => domain.cpu_ns,
            };
            let sum = if volunteers.contains(&domain.run()) { &mut self.volunteer_ns } else { &mut self.foreground_ns };
            *sum = sum.saturating_add(domain.cpu_ns.saturating_sub(since));
        }
        std::mem::swap(&mut self.before, &mut self.now);
        self.looked = true;
        (self.foreground_ns, self.volunteer_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(id: u16, name: u8, cpu_ns: u64) -> DomainInfo {
        let uuid = [name; 16];
        DomainInfo { id, uuid, cpu_ns, vcpus: 1, ..DomainInfo::default() }
    }

    #[test]
    fn sums_never_go_back_while_domains_come_go_and_take_a_number_anew() {
        let mut looks = Looks::default();
        let mut take = |domains: &[DomainInfo]| {
            let next = looks.next();
            next.clear();
            next.extend_from_slice(domains);
            looks.take(&[Run { id: 2, uuid: [7; 16] }, Run { id: 9, uuid: [7; 16] }])
        };
        assert_eq!(take(&[domain(0, 0, 100), domain(1, 1, 50), domain(2, 7, 10)]), (0, 0), "before the first look");
        assert_eq!(take(&[domain(0, 0, 110), domain(1, 1, 70), domain(2, 7, 15)]), (30, 5));
        // Domain 1 is gone, number 2 is another's now, and the volunteer was started anew.
        assert_eq!(take(&[domain(0, 0, 111), domain(2, 3, 4), domain(9, 7, 6)]), (35, 11));
        assert_eq!(take(&[domain(0, 0, 111)]), (35, 11));
        assert_eq!(take(&[domain(0, 0, 111), domain(5, 7, 3)]), (38, 11), "started anew and not yet the volunteer");
        assert_eq!(take(&[domain(0, 0, 1)]), (38, 11), "a counter that goes back counts nothing");
    }
}
