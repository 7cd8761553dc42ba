//! Holds the traffic of a volunteer of Xen domains, or of a guest, by this host's ends of its network interfaces: the domains'
//! `vifDOMID.N`, the guest's taps. In: a ceiling for all of them together. Out: a token bucket and policing on each, and what
//! they carried. Called by the thread of the network bound. Such a queue outlives this process, so the ledger has it before
//! it is set.
//!
//! Changing a queue interrupts it, so a small change, or a rise soon after another, is not written. What stays is read back from
//! time to time: whoever makes an interface anew takes its queue away.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::network_bound::Directions;
use gleaner_types::command::Target;
use gleaner_types::text::counted;

use super::error::NetworkBoundError;
use super::guest::GuestNetwork;
use crate::act::ledger::Record;
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::volunteer::found::FoundLevers;
use crate::levers::{AnyLever, Fault, LeverError, LeverValue, LinkLever};
use crate::netlink::{self, Direction};
use crate::sense::machine::InterfaceReader;
use crate::xen::served::{domain_of_interface, interfaces_of};
use crate::xen::{self, Elsewhere};

/// Between two writes that raise a ceiling. (Chosen.)
const RAISE_PAUSE: Duration = Duration::from_secs(1);
/// A change by less than this part of the ceiling in force is not written. (Chosen.)
const SMALL_PART: u64 = 10;
/// Between two looks at a queue whose rate stays. (Chosen.)
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Most interfaces that are held. (Chosen: as many as one interface each of the most domains a volunteer may have, and more.)
const MOST: usize = 256;

/// One direction of an interface.
#[derive(Debug)]
struct Way {
    managed: Managed,
    raised: Option<Instant>,
    /// When it was last found or set as it is to be.
    checked: Option<Instant>,
}

impl Way {
    fn new(interface: &str, direction: Direction) -> Self {
        let lever = AnyLever::Link(LinkLever { interface: interface.to_owned(), direction, domain: None });
        Self { managed: Managed::new(lever, LeverValue::Rate(None)), raised: None, checked: None }
    }

    fn in_force(&self) -> Option<u64> {
        match self.managed.ours() {
            LeverValue::Rate(rate) => *rate,
            _ => None,
        }
    }

    fn is_worth_a_write(&self, rate: u64, now: Instant) -> bool {
        let Some(ours) = self.in_force() else { return true };
        let is_large = rate.abs_diff(ours) > ours / SMALL_PART;
        is_large && (rate < ours || self.raised.is_none_or(|at| now.duration_since(at) >= RAISE_PAUSE))
    }

    /// Sets it where that is worth a write, or looks whether it is still as it was set, where it is time for that. Returns each
    /// foreign value once.
    fn set(&mut self, rate: u64, now: Instant) -> Result<Option<ForeignWrite>, LeverError> {
        // The kernel's policing knows no higher one, so that it would read as somebody else's.
        let rate = rate.min(u64::from(u32::MAX));
        let rate = match self.in_force() {
            Some(ours) if !self.is_worth_a_write(rate, now) => {
                if self.checked.is_some_and(|at| now.duration_since(at) < CHECK_PERIOD) {
                    return Ok(None);
                }
                ours
            }
            _ => rate,
        };
        if self.in_force().is_none() {
            // Only a queue of Gleaner's reads as a rate: an earlier agent's, or of before the domain was lost from sight.
            let found = self.managed.lever.read()?;
            if matches!(found, LeverValue::Rate(Some(_))) {
                self.managed.was_set(found);
            }
        }
        let raises = self.in_force().is_some_and(|ours| rate > ours);
        // A queue of somebody else cannot be read as a rate, so it is never replaced; it is looked at again the next time.
        let met = self.managed.set(LeverValue::Rate(Some(rate)));
        self.checked = met.is_ok().then_some(now);
        let met = met?;
        self.raised = raises.then_some(now).or(self.raised);
        Ok(met)
    }

    fn record(&self) -> Record {
        let Managed { lever, original, .. } = &self.managed;
        // It changes many times, so any value counts as Gleaner's: a queue of somebody else is none of them.
        Record { target: Target::Volunteer, lever: lever.clone(), original: original.clone(), ours: Vec::new() }
    }
}

#[derive(Debug)]
struct Interface {
    name: String,
    /// Its number; `None` if it was not there.
    index: Option<u32>,
    ways: Directions<Way>,
    reader: InterfaceReader,
}

impl Interface {
    fn new(sys: &Path, name: String) -> Self {
        let ways =
            Directions { sent: Way::new(&name, Direction::Transmit), received: Way::new(&name, Direction::Receive) };
        Self { index: index_of(&name).ok(), reader: InterfaceReader::new(sys, &name), ways, name }
    }

    /// The interface of this name is another one now, which nobody has said is the volunteer's.
    fn is_another(&self) -> bool {
        index_of(&self.name).is_ok_and(|now| self.index != Some(now))
    }

    /// Takes Gleaner's queues away. What is somebody else's, or on another interface of that name, is left.
    fn give_back(&self) -> Result<(), LeverError> {
        for way in [&self.ways.sent, &self.ways.received] {
            if way.in_force().is_none() || self.is_another() {
                continue;
            }
            match way.managed.lever.write(way.managed.original.clone()) {
                Ok(()) | Err(LeverError::Malformed { .. }) => {}
                Err(error) if error.fault() == Fault::Absent => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn index_of(name: &str) -> io::Result<u32> {
    LinkLever { interface: name.to_owned(), direction: Direction::Receive, domain: None }.index()
}

/// Whose the interfaces are.
#[derive(Debug)]
pub(super) enum Whose {
    /// All Xen domains that are the volunteer's now.
    Domains,
    /// A guest's.
    Guest(GuestNetwork),
}

/// The interfaces of the volunteer's domains, or of its guest.
#[derive(Debug)]
pub(super) struct Interfaces {
    sys: PathBuf,
    whose: Whose,
    found: FoundLevers,
    held: Vec<Interface>,
    /// Those that the guest has no longer, whose queues could not be taken away yet.
    left: Vec<Interface>,
    /// Foreign writes that nobody has fetched yet: at most one of each direction.
    met: Vec<ForeignWrite>,
}

impl Interfaces {
    pub(super) fn new(sys: &Path, whose: Whose, found: FoundLevers) -> Self {
        Self { sys: sys.to_owned(), whose, found, held: Vec::new(), left: Vec::new(), met: Vec::new() }
    }

    /// Looks which there are now, of a guest not each time. True if they have changed.
    pub(super) fn follow(&mut self, now: Instant) -> bool {
        let changed = match &mut self.whose {
            Whose::Domains => self.follow_domains(&xen::watched(), xen::is_there),
            Whose::Guest(guest) => guest.taps(now).is_some_and(|there| self.take(there, |_| true)),
        };
        // It may be another guest's by now: to it the ceiling would be a harm.
        self.left.retain(|own| own.give_back().is_err());
        changed
    }

    /// A new interface must be of a domain that is there still: another one may have the number of one that has ended.
    fn follow_domains(&mut self, runs: &[xen::Run], is_there: impl Fn(&xen::Run) -> bool) -> bool {
        let numbers: Vec<u32> = runs.iter().map(|run| run.id).collect();
        let (sys, there) = (self.sys.clone(), interfaces_of(&self.sys, &numbers));
        let run_of = |name: &str| domain_of_interface(&sys, name).and_then(|id| runs.iter().find(|run| run.id == id));
        self.take(there, |name| run_of(name).is_some_and(&is_there))
    }

    /// Takes those that are there, a new one only if it is the volunteer's. True if what is held has changed.
    fn take(&mut self, mut there: Vec<String>, is_its: impl Fn(&str) -> bool) -> bool {
        there.truncate(MOST);
        there.sort_unstable();
        let is_same = there.iter().eq(self.held.iter().map(|own| &own.name));
        if is_same && !self.held.iter().any(Interface::is_another) {
            return false;
        }
        let is_kept = |own: &Interface| there.contains(&own.name) && !own.is_another();
        let (kept, dropped): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(is_kept);
        self.held = kept;
        let mut changed = !dropped.is_empty();
        // An interface of a domain bears its number, and goes with it.
        if let Whose::Guest(guest) = &self.whose {
            self.left.extend(dropped.into_iter().filter(|own| !guest.has(&own.name)));
        }
        self.left.retain(|own| !there.contains(&own.name));
        self.left.truncate(MOST);
        for name in there {
            if self.held.iter().any(|own| own.name == name) {
                continue;
            }
            let own = Interface::new(&self.sys, name);
            // Asked after it was found: what has its name later has another index.
            if is_its(&own.name) {
                self.held.push(own);
                changed = true;
            }
        }
        if changed {
            self.held.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let records = self.held.iter().flat_map(|own| [own.ways.sent.record(), own.ways.received.record()]);
            self.found.replace(records.collect());
        }
        changed
    }

    /// What of the volunteer's network passes by none of these, in words; `None` where nothing does, as far as known.
    pub(super) fn passing_by(&self) -> Option<String> {
        match &self.whose {
            Whose::Domains => elsewhere(&xen::served_elsewhere()),
            Whose::Guest(guest) => guest.passing_by(),
        }
    }

    /// The sensor that tells of what passes by.
    pub(super) const fn sensor(&self) -> &'static str {
        match &self.whose {
            Whose::Domains => "network bound of the volunteer's domains",
            Whose::Guest(_) => "network bound of the guest",
        }
    }

    /// Bytes that the volunteer sent and received, since its interfaces were made.
    pub(super) fn carried(&mut self, buffer: &mut Vec<u8>) -> Result<Directions<u64>, NetworkBoundError> {
        let mut sum = Directions { sent: 0_u64, received: 0_u64 };
        for own in &mut self.held {
            // What this host's end receives, the volunteer has sent.
            let read = own.reader.read(buffer);
            if let (Err(_), Whose::Guest(guest)) = (&read, &mut self.whose) {
                // It may have been unplugged.
                guest.scan_soon();
            }
            let (sent, received) = read.map_err(NetworkBoundError::Counters)?;
            sum.sent = sum.sent.wrapping_add(sent);
            sum.received = sum.received.wrapping_add(received);
        }
        Ok(sum)
    }

    /// The most bytes per second that the volunteer can have sent over an interval, by the rates in force; `None` where one has
    /// none. Policing drops after an interface has counted.
    pub(super) fn most_sent(&self, interval_s: f64) -> Option<f64> {
        let rates = self.held.iter().map(|own| own.ways.sent.in_force());
        rates.map(|rate| rate.map(|rate| rate as f64 + f64::from(netlink::burst(rate)) / interval_s)).sum()
    }

    /// Foreign writes since the last call.
    pub(super) fn take_met(&mut self) -> Vec<ForeignWrite> {
        std::mem::take(&mut self.met)
    }

    /// Holds all of them together to a ceiling: each has an equal part.
    ///
    /// # Errors
    /// The first that cannot be set; the others are.
    pub(super) fn set(&mut self, ceiling: Directions<u64>, now: Instant) -> Result<(), NetworkBoundError> {
        let parts = self.held.len().max(1) as u64;
        let part = ceiling.map(|rate| (rate / parts).max(1));
        let mut result = Ok(());
        for own in &mut self.held {
            if own.is_another() {
                // Whose it is shows the next search.
                if let Whose::Guest(guest) = &mut self.whose {
                    guest.scan_soon();
                }
                continue;
            }
            for (way, rate) in [(&mut own.ways.sent, part.sent), (&mut own.ways.received, part.received)] {
                if !self.found.is_recorded(&way.managed.lever) {
                    continue;
                }
                match way.set(rate, now) {
                    Ok(met) => self.met.extend(met),
                    Err(error) if error.fault() != Fault::Absent => result = result.and(Err(error.into())),
                    // The domain or the guest has ended since.
                    Err(_) => {}
                }
            }
        }
        result
    }
}

/// Interfaces of domains that are not at this host's ends, in words.
fn elsewhere(domains: &[Elsewhere]) -> Option<String> {
    let one = |found: &Elsewhere| {
        let interfaces = counted(u64::from(found.interfaces), "network interface");
        format!("another domain serves {interfaces} of Xen domain {} (`backend=`)", found.id)
    };
    let all: Vec<String> = domains.iter().filter(|found| found.interfaces > 0).map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_the_volunteers_domains_are_found_and_counted_the_way_the_domain_sees_them() {
        let root = tempfile::tempdir().unwrap();
        for (name, rx, tx) in [("vif3.0", 100, 7), ("vif3.1", 10, 1), ("vif4.0", 5, 5), ("eth0", 9, 9)] {
            let folder = root.path().join("class/net").join(name).join("statistics");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("rx_bytes"), format!("{rx}\n")).unwrap();
            std::fs::write(folder.join("tx_bytes"), format!("{tx}\n")).unwrap();
        }
        let mut vifs = Interfaces::new(root.path(), Whose::Domains, FoundLevers::default());
        let of = |domains: &[u32]| interfaces_of(root.path(), domains);
        let all = |_: &str| true;
        assert!(vifs.take(of(&[3, 9]), all) && !vifs.take(of(&[3, 9]), all));
        assert_eq!(vifs.carried(&mut Vec::new()).unwrap(), Directions { sent: 110, received: 8 });
        assert!(vifs.set(Directions { sent: 1, received: 1 }, Instant::now()).is_ok(), "not recorded, so not set");
        assert!(vifs.take(of(&[]), all) && vifs.held.is_empty());
    }

    #[test]
    fn an_interface_of_another_domain_that_has_the_number_now_is_not_the_volunteers() {
        let root = tempfile::tempdir().unwrap();
        for name in ["vif3.0", "vif4.0"] {
            std::fs::create_dir_all(root.path().join("class/net").join(name)).unwrap();
        }
        let mut vifs = Interfaces::new(root.path(), Whose::Domains, FoundLevers::default());
        let runs = [("ended", 3), ("there", 4)].map(|(uuid, id)| xen::Run { uuid: uuid.to_owned(), id });
        let names = |vifs: &Interfaces| -> Vec<String> { vifs.held.iter().map(|own| own.name.clone()).collect() };
        let is_there = |run: &xen::Run| run.uuid == "there";
        assert!(vifs.follow_domains(&runs, is_there));
        assert_eq!(names(&vifs), ["vif4.0"]);
        assert!(!vifs.follow_domains(&runs, is_there), "nothing has changed");
        assert!(vifs.follow_domains(&runs, |run| run.uuid == "ended"), "it could not be asked before");
        assert_eq!(names(&vifs), ["vif3.0", "vif4.0"], "what is held stays");
        assert!(vifs.follow_domains(&runs[1..], is_there));
        assert_eq!(names(&vifs), ["vif4.0"], "until its domain is not the volunteer any more");
    }

    #[test]
    fn interfaces_that_another_domain_serves_are_told() {
        assert_eq!(elsewhere(&[]), None);
        let of = |id, interfaces| Elsewhere { id, interfaces, ..Elsewhere::default() };
        assert_eq!(elsewhere(&[Elsewhere { disks: 1, ..of(3, 0) }]), None);
        let told = elsewhere(&[of(3, 1), of(4, 0), of(5, 2)]).unwrap();
        assert!(told.starts_with("another domain serves 1 network interface of Xen domain 3 (`backend=`); "), "{told}");
    }

    #[test]
    fn a_ceiling_falls_at_once_and_rises_with_pauses() {
        let now = Instant::now();
        let mut way = Way::new("vif3.0", Direction::Receive);
        assert!(way.is_worth_a_write(1_000, now), "there is none yet");
        way.managed.was_set(LeverValue::Rate(Some(1_000)));
        assert!(way.is_worth_a_write(800, now) && !way.is_worth_a_write(950, now) && way.is_worth_a_write(1_200, now));
        way.raised = Some(now);
        assert!(!way.is_worth_a_write(1_200, now) && way.is_worth_a_write(1_200, now + RAISE_PAUSE));
        assert!(way.is_worth_a_write(800, now));
    }

    /// On the loopback of a network namespace of its own, in each direction that this kernel can hold.
    fn on_loopback(test: &'static str, work: fn(Direction)) {
        let held = move |direction| match netlink::own_namespace().and_then(|()| netlink::probe(direction)) {
            Ok(_) => work(direction),
            Err(error) => gleaner_test_support::skipped!("{test}: {direction:?}: no queue can be made here: {error}"),
        };
        for direction in [Direction::Receive, Direction::Transmit] {
            std::thread::spawn(move || held(direction)).join().unwrap();
        }
    }

    #[test]
    fn a_queue_of_gleaners_that_is_there_already_is_taken_over() {
        on_loopback("a_queue_of_gleaners_that_is_there_already_is_taken_over", |direction| {
            let now = Instant::now();
            assert_eq!(Way::new("lo", direction).set(1_000_000, now).unwrap(), None);
            let mut again = Way::new("lo", direction);
            assert_eq!(again.set(500_000, now).unwrap(), None, "nobody else's");
            assert_eq!(again.managed.lever.read().unwrap(), LeverValue::Rate(Some(500_000)));
            assert_eq!(again.record().original, LeverValue::Rate(None));
        });
    }

    #[test]
    fn a_queue_that_was_taken_away_is_made_again_and_somebody_elses_is_left() {
        on_loopback("a_queue_that_was_taken_away_is_made_again_and_somebody_elses_is_left", |direction| {
            let (now, second) = (Instant::now(), Duration::from_secs(1));
            let mut way = Way::new("lo", direction);
            // More than the kernel's policing knows.
            way.set(u64::MAX - 1, now).unwrap();
            let most = LeverValue::Rate(Some(u64::from(u32::MAX)));
            assert_eq!(way.managed.lever.read().unwrap(), most);
            way.managed.lever.write(LeverValue::Rate(None)).unwrap();
            assert_eq!(way.set(u64::MAX - 1, now + second).unwrap(), None);
            assert_eq!(way.managed.lever.read().unwrap(), LeverValue::Rate(None), "not looked at yet");
            assert!(way.set(u64::MAX - 1, now + CHECK_PERIOD).unwrap().is_some());
            assert_eq!(way.managed.lever.read().unwrap(), most);

            let other = match direction {
                Direction::Receive => "tc qdisc replace dev lo root handle 1: tbf rate 1mbit burst 10kb latency 50ms",
                Direction::Transmit => "tc qdisc del dev lo ingress && tc qdisc add dev lo ingress",
            };
            if !std::process::Command::new("sh").args(["-c", other]).status().unwrap().success() {
                gleaner_test_support::skipped!("somebody else's queue: tc cannot make a queue here");
                return;
            }
            let later = now + 2 * CHECK_PERIOD;
            for at in [later, later + second] {
                assert_eq!(way.set(u64::MAX - 1, at).unwrap_err().fault(), Fault::Malformed);
            }
        });
    }

    #[test]
    fn what_policing_drops_is_not_taken_for_sent() {
        let root = tempfile::tempdir().unwrap();
        for name in ["vif3.0", "vif3.1"] {
            std::fs::create_dir_all(root.path().join("class/net").join(name)).unwrap();
        }
        let mut vifs = Interfaces::new(root.path(), Whose::Domains, FoundLevers::default());
        assert!(vifs.take(interfaces_of(root.path(), &[3]), |_| true));
        assert_eq!(vifs.most_sent(0.5), None, "nothing is in force yet");
        for own in &mut vifs.held {
            own.ways.sent.managed.was_set(LeverValue::Rate(Some(1_000_000)));
        }
        // Each a burst of 128 KiB within half a second.
        assert_eq!(vifs.most_sent(0.5), Some(2_000_000.0 + 4.0 * 131_072.0));
    }

    #[test]
    fn taps_that_a_process_holds_open_are_held_once_they_are_recorded_and_put_back() {
        const TEST: &str = "taps_that_a_process_holds_open_are_held_once_they_are_recorded_and_put_back";
        let name = format!("glf{}", std::process::id() % 1_000_000);
        let tap = match crate::sense::claims_tests::open_tap(&name) {
            Ok(tap) => tap,
            Err(error) => {
                gleaner_test_support::skipped!("{TEST}: no taps can be made here: {error}");
                return;
            }
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let found = FoundLevers::default();
        let guest = GuestNetwork::of(&crate::roots::Roots::default(), pid).unwrap();
        let mut interfaces = Interfaces::new(Path::new("/sys"), Whose::Guest(guest), found.clone());
        let now = Instant::now();
        assert!(interfaces.follow(now) && !interfaces.follow(now));
        let levers = [Direction::Receive, Direction::Transmit].map(|direction| {
            (direction, AnyLever::Link(LinkLever { interface: name.clone(), direction, domain: None }))
        });
        let ceiling = Directions { sent: 2_000_000, received: 1_000_000 };
        interfaces.set(ceiling, now).unwrap();
        for (_, lever) in &levers {
            assert_eq!(lever.read().unwrap(), LeverValue::Rate(None), "not in the ledger yet");
        }
        let records = found.records();
        found.was_recorded(&records);
        // Fails where one direction cannot be held; the other is.
        let set = interfaces.set(ceiling, now);
        for (direction, lever) in &levers {
            if let Err(error) = netlink::probe(*direction) {
                assert!(set.is_err());
                gleaner_test_support::skipped!("{TEST}: {direction:?}: no queue can be made here: {error}");
                continue;
            }
            assert!(matches!(lever.read().unwrap(), LeverValue::Rate(Some(_))), "{direction:?}");
            // As whoever restores does, from what the ledger has.
            let record = records.iter().find(|record| record.lever == *lever).unwrap();
            lever.write(record.original.clone()).unwrap();
            assert_eq!(lever.read().unwrap(), LeverValue::Rate(None));
        }
        drop(tap);
        assert!(interfaces.follow(now + CHECK_PERIOD), "the interface went with the file");
        assert!(interfaces.held.iter().all(|own| own.name != name));
    }

    #[test]
    fn a_tap_that_leaves_the_guest_loses_its_queues_and_another_of_its_name_gets_none() {
        const TEST: &str = "a_tap_that_leaves_the_guest_loses_its_queues_and_another_of_its_name_gets_none";
        let run = |line: &str| std::process::Command::new("sh").args(["-c", line]).status().unwrap().success();
        let work = move || {
            let add = "ip tuntap add gl-left mode tap";
            if let Err(error) = netlink::own_namespace().and_then(|()| netlink::probe(Direction::Receive)) {
                gleaner_test_support::skipped!("{TEST}: no queue can be made here: {error}");
                return;
            }
            if !run(add) {
                gleaner_test_support::skipped!("{TEST}: no tap can be made here (ip, /dev/net/tun)");
                return;
            }
            // A guest that does not have the tap open: what it has is said by `take`.
            let guest =
                GuestNetwork::of(&crate::roots::Roots::default(), i32::try_from(std::process::id()).unwrap()).unwrap();
            let found = FoundLevers::default();
            let mut interfaces = Interfaces::new(Path::new("/sys"), Whose::Guest(guest), found.clone());
            let lever = AnyLever::Link(LinkLever {
                interface: "gl-left".to_owned(),
                direction: Direction::Receive,
                domain: None,
            });
            let (now, ceiling) = (Instant::now(), Directions { sent: 1_000_000, received: 1_000_000 });
            let hold = |interfaces: &mut Interfaces| {
                assert!(interfaces.take(vec!["gl-left".to_owned()], |_| true));
                found.was_recorded(&found.records());
                // Fails where policing cannot be had; the other direction is held.
                _ = interfaces.set(ceiling, now);
                assert_eq!(lever.read().unwrap(), LeverValue::Rate(Some(1_000_000)));
            };
            hold(&mut interfaces);
            assert!(interfaces.take(Vec::new(), |_| true));
            interfaces.left.retain(|own| own.give_back().is_err());
            assert!(interfaces.left.is_empty());
            assert_eq!(lever.read().unwrap(), LeverValue::Rate(None), "it may be another guest's");

            hold(&mut interfaces);
            assert!(run("ip link del gl-left") && run("ip tuntap add gl-spare mode tap") && run(add));
            _ = interfaces.set(ceiling, now + CHECK_PERIOD);
            assert_eq!(lever.read().unwrap(), LeverValue::Rate(None), "another interface of that name");
            assert!(interfaces.take(vec!["gl-left".to_owned()], |_| true), "taken as a new one");
        };
        std::thread::spawn(work).join().unwrap();
    }
}
