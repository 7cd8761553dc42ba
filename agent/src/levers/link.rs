//! The lever on the traffic of one network interface. In: bytes per second. Out: queues of `crate::netlink`. A queue
//! of another program makes the lever malformed, so that it is never replaced. Called through the catalogue.

use std::fmt;
use std::io;

use gleaner_types::report::{Absence, AbsenceKind, Capability, Reason};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::offer::{Finding, Host, absent};
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::netlink::{self, Direction, Shape, TrafficControl};
use crate::xen::{self, Run};

/// One direction of an interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkLever {
    /// Name of the interface.
    pub interface: String,
    /// Which way, as the guest behind the interface sees it.
    pub direction: Direction,
    /// The foreground's Xen domain behind it: after its end another one may have an interface of this name. `None` where whoever
    /// uses the lever sees to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<Run>,
}

impl LinkLever {
    fn what(&self) -> String {
        let way = match self.direction {
            Direction::Receive => "receives",
            Direction::Transmit => "sends",
        };
        format!("what the guest behind `{}` {way}", self.interface)
    }

    /// The interface's number now: another one of this name has another.
    pub(crate) fn index(&self) -> io::Result<u32> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(name_to_index(&socket, &self.interface)?)
    }

    /// What it is set to, by the queue that was found. Where `there` says that the domain is gone, so is the lever: an interface of its
    /// name may be another one's, of the volunteer's too, which has queues of Gleaner's.
    fn value(&self, shape: Shape, there: impl Fn(&Run) -> io::Result<()>) -> Result<LeverValue, LeverError> {
        if let Some(source) = self.domain.as_ref().and_then(|domain| there(domain).err())
            && source.kind() == io::ErrorKind::NotFound
        {
            return Err(LeverError::Read { what: self.what(), source });
        }
        match shape {
            Shape::Default => Ok(LeverValue::Rate(None)),
            Shape::Ours(rate) => Ok(LeverValue::Rate(Some(rate))),
            Shape::Empty => Err(self.foreign("ingress".to_owned())),
            Shape::Foreign(kind) => Err(self.foreign(kind)),
        }
    }

    /// Sets it, unless it would be a limit on another domain.
    fn hold(&self, rate: Option<u64>, there: impl Fn(&Run) -> io::Result<()>) -> io::Result<()> {
        let index = self.index()?;
        // Asked after the interface was found: what has its name later has another index.
        if let Some(domain) = self.domain.as_ref().filter(|_| rate.is_some()) {
            there(domain)?;
        }
        TrafficControl::open()?.hold(index, self.direction, rate)
    }

    fn foreign(&self, kind: String) -> LeverError {
        let expected = "a queue of Gleaner's or the kernel's own; remove that queue to let Gleaner shape it";
        LeverError::Malformed { what: self.what(), text: kind, expected }
    }

    /// Removes a queue for policing without a filter. True if there was one.
    pub(crate) fn remove_empty(&self) -> io::Result<bool> {
        let (index, control) = (self.index()?, TrafficControl::open()?);
        if control.shape(index, self.direction)? != Shape::Empty {
            return Ok(false);
        }
        control.hold(index, self.direction, None)?;
        Ok(true)
    }
}

/// Any other error says nothing of the interface, such as that this process has too many files open.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[
    Kind {
        name: "traffic that a guest receives",
        does: "bytes per second that a tap, or this host's end of a Xen domain's interface, sends: a token bucket",
        exists: "such an interface in this network namespace, kernel module `sch_tbf`",
        restored: "the queue removed; somebody else's queue is never replaced",
        capability: Some(Capability::NetworkReceive),
    },
    Kind {
        name: "traffic that a guest sends",
        does: "bytes per second that a tap, or this host's end of a Xen domain's interface, receives: policing",
        exists: "such an interface in this network namespace, kernel modules `sch_ingress`, `cls_matchall`, `act_police`",
        restored: "the queue removed; somebody else's queue is never replaced",
        capability: Some(Capability::NetworkTransmit),
    },
];

impl fmt::Display for LinkLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())
    }
}

impl Lever for LinkLever {
    const KINDS: &'static [Kind] = KINDS;

    fn offers(host: &Host<'_>) -> Vec<(Capability, Finding)> {
        let shaping = |direction| match host.trying {
            true => netlink::probe(direction).map(str::to_owned).map_err(|error| {
                let kind = match error.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => AbsenceKind::Denied,
                    _ => AbsenceKind::NotSupported,
                };
                Absence { kind, reason: Reason::QueueRefused { error: error.to_string().into() } }
            }),
            false => absent(Reason::NotTried),
        };
        vec![
            (Capability::NetworkReceive, shaping(Direction::Receive)),
            (Capability::NetworkTransmit, shaping(Direction::Transmit)),
        ]
    }

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let of_guest = place.guest().map(|guest| &guest.taps);
        let interfaces =
            of_guest.or_else(|| place.domain().map(|domain| &domain.interfaces)).map_or(&[][..], |all| all);
        let domain = place.domain().map(|domain| Run { uuid: domain.uuid.clone(), id: domain.id });
        let domain = domain.as_ref();
        let of = |direction| {
            interfaces.iter().map(move |name| Self { interface: name.clone(), direction, domain: domain.cloned() })
        };
        let both = of(Direction::Receive).chain(of(Direction::Transmit));
        both.filter(Self::exists).map(Found::alone).collect()
    }

    fn role(&self) -> Option<Role> {
        Some(match self.direction {
            Direction::Receive => Role::Receive,
            Direction::Transmit => Role::Transmit,
        })
    }

    fn exists(&self) -> bool {
        !self.index().is_err_and(|error| is_gone(&error))
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let shape = self.index().and_then(|index| TrafficControl::open()?.shape(index, self.direction));
        let shape = shape.map_err(|source| LeverError::Read { what: self.what(), source })?;
        self.value(shape, xen::lately_there)
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::Rate(rate) = &value else {
            return Err(LeverError::Malformed { what: self.what(), text: value.to_string(), expected: "a rate" });
        };
        // Nothing to take away: the kernel would say that there is no such queue.
        if rate.is_none() && self.read()? == value {
            return Ok(());
        }
        let written = self.hold(*rate, xen::still_there);
        written.map_err(|source| LeverError::Write { value: value.to_string(), what: self.what(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::levers::{AnyLever, Fault};

    fn run(command: &str) -> bool {
        Command::new("sh").args(["-c", command]).status().unwrap().success()
    }

    /// In a network namespace of its own, on a real tap.
    fn in_namespace(test: &str, work: fn()) {
        std::thread::spawn({
            let test = test.to_owned();
            move || match netlink::own_namespace() {
                Ok(()) if run("ip link set lo up && ip tuntap add gl-tap mode tap && ip link set gl-tap up") => work(),
                Ok(()) => gleaner_test_support::skipped!("{test}: no tap can be made here (ip, /dev/net/tun)"),
                Err(error) => gleaner_test_support::skipped!("{test}: no network namespace can be made here: {error}"),
            }
        })
        .join()
        .unwrap();
    }

    fn lever(direction: Direction) -> AnyLever {
        AnyLever::Link(LinkLever { interface: "gl-tap".into(), direction, domain: None })
    }

    #[test]
    fn a_tap_is_shaped_and_put_back() {
        in_namespace("a_tap_is_shaped_and_put_back", || {
            for direction in [Direction::Receive, Direction::Transmit] {
                let lever = lever(direction);
                assert_eq!(lever.read().unwrap(), LeverValue::Rate(None));
                match lever.set(LeverValue::Rate(Some(125_000))) {
                    Err(error) if error.fault() == Fault::Denied => {
                        gleaner_test_support::skipped!(
                            "a_tap_is_shaped_and_put_back: {direction:?}: this kernel has no such queue"
                        );
                        continue;
                    }
                    set => set.unwrap(),
                }
                lever.set(LeverValue::Rate(Some(250_000))).unwrap();
                lever.set(LeverValue::Rate(None)).unwrap();
                lever.set(LeverValue::Rate(None)).unwrap();
            }
        });
    }

    fn of_a_domain() -> LinkLever {
        let domain = Some(Run { uuid: "u".to_owned(), id: 3 });
        LinkLever { interface: "gl-tap".into(), direction: Direction::Receive, domain }
    }

    #[test]
    fn an_interface_of_another_domain_reads_as_gone_and_gets_no_queue() {
        let (there, gone) = (|_: &Run| Ok(()), |_: &Run| Err(io::ErrorKind::NotFound.into()));
        let unknown = |_: &Run| Err(io::ErrorKind::TimedOut.into());
        let lever = of_a_domain();
        for shape in [Shape::Default, Shape::Ours(7), Shape::Empty, Shape::Foreign("fq".to_owned())] {
            let error = lever.value(shape, gone).unwrap_err();
            assert_eq!(error.fault(), Fault::Absent, "{error}");
        }
        assert_eq!(lever.value(Shape::Default, there).unwrap(), LeverValue::Rate(None));
        assert_eq!(lever.value(Shape::Default, unknown).unwrap(), LeverValue::Rate(None));
        assert_eq!(LinkLever { domain: None, ..lever }.value(Shape::Ours(7), gone).unwrap(), LeverValue::Rate(Some(7)));
        in_namespace("an_interface_of_another_domain_reads_as_gone_and_gets_no_queue", || {
            let lever = of_a_domain();
            for kind in [io::ErrorKind::NotFound, io::ErrorKind::TimedOut] {
                let held = lever.hold(Some(125_000), |run| {
                    assert_eq!((run.uuid.as_str(), run.id), ("u", 3));
                    Err(kind.into())
                });
                assert_eq!(held.unwrap_err().kind(), kind);
            }
            let shape = TrafficControl::open().unwrap().shape(lever.index().unwrap(), lever.direction).unwrap();
            assert_eq!(shape, Shape::Default);
        });
    }

    #[test]
    fn the_ledger_tells_interfaces_of_two_domains_apart_and_reads_those_of_no_domain() {
        let lever = of_a_domain();
        let read: LinkLever = serde_json::from_str(&serde_json::to_string(&lever).unwrap()).unwrap();
        assert_eq!(read, lever);
        let of_none: LinkLever = serde_json::from_str(r#"{"interface":"gl-tap","direction":"receive"}"#).unwrap();
        assert_eq!(of_none, LinkLever { domain: None, ..lever });
    }

    #[test]
    fn an_interface_is_gone_only_if_the_kernel_says_so() {
        let gone = LinkLever { interface: "no-such".into(), direction: Direction::Receive, domain: None };
        assert!(!gone.exists());
        assert!(![libc::EMFILE, libc::ENOBUFS, libc::ENOMEM].map(io::Error::from_raw_os_error).iter().any(is_gone));
    }

    #[test]
    fn filters_that_others_added_outlive_gleaners() {
        const TEST: &str = "filters_that_others_added_outlive_gleaners";
        in_namespace(TEST, || {
            let lever = lever(Direction::Transmit);
            if let Err(error) = lever.set(LeverValue::Rate(Some(125_000))) {
                gleaner_test_support::skipped!("{TEST}: this kernel has no policing: {error}");
                return;
            }
            let theirs = "tc filter add dev gl-tap parent ffff: protocol all prio 7 u32 match u32 0 0 classid 1:1";
            let is_there = || run("tc filter show dev gl-tap parent ffff: | grep -q 'pref 7 '");
            if !run(theirs) || !is_there() {
                gleaner_test_support::skipped!("{TEST}: tc cannot make a filter here");
                return;
            }
            lever.set(LeverValue::Rate(Some(250_000))).unwrap();
            assert!(is_there(), "a change is of Gleaner's filter");
            lever.write(LeverValue::Rate(None)).unwrap();
            assert!(is_there());
            assert_eq!(lever.read().unwrap_err().fault(), Fault::Malformed, "all that is left is theirs");
            assert!(!run("tc filter show dev gl-tap parent ffff: | grep -q police"));
        });
    }

    #[test]
    fn gleaners_filter_alone_goes_where_there_are_others_and_else_its_queue() {
        const TEST: &str = "gleaners_filter_alone_goes_where_there_are_others_and_else_its_queue";
        in_namespace(TEST, || {
            // 26476 is the priority of Gleaner's; a kernel without policing has the kind `u32` all the same.
            let filter = |priority: u32| {
                let to = "tc filter add dev gl-tap parent ffff: protocol all prio";
                run(&format!("{to} {priority} u32 match u32 0 0 classid 1:1"))
            };
            let there =
                |priority: u32| run(&format!("tc filter show dev gl-tap parent ffff: | grep -q 'pref {priority} '"));
            if !run("tc qdisc add dev gl-tap ingress") || !filter(26_476) || !filter(7) {
                gleaner_test_support::skipped!("{TEST}: tc cannot make a queue here, or no filters");
                return;
            }
            let lever = LinkLever { interface: "gl-tap".into(), direction: Direction::Transmit, domain: None };
            let index = lever.index().unwrap();
            let release = || TrafficControl::open().unwrap().hold(index, Direction::Transmit, None).unwrap();
            let shape = || TrafficControl::open().unwrap().shape(index, Direction::Transmit).unwrap();
            for _ in 0..2 {
                release();
                assert!(!there(26_476) && there(7));
                assert_eq!(shape(), Shape::Foreign("ingress".into()));
                assert!(!lever.remove_empty().unwrap());
            }
            assert!(run("tc filter del dev gl-tap parent ffff: prio 7"));
            assert_eq!(shape(), Shape::Empty);
            assert!(lever.remove_empty().unwrap());
            assert_eq!(shape(), Shape::Default);
        });
    }

    #[test]
    fn a_foreign_queue_is_left_alone() {
        in_namespace("a_foreign_queue_is_left_alone", || {
            if !run(
                "tc qdisc add dev gl-tap root handle 1: tbf rate 1mbit burst 10kb latency 50ms && tc qdisc add dev gl-tap ingress",
            ) {
                gleaner_test_support::skipped!("a_foreign_queue_is_left_alone: tc cannot make a queue here");
                return;
            }
            for direction in [Direction::Receive, Direction::Transmit] {
                let error = lever(direction).read().unwrap_err();
                assert_eq!(error.fault(), Fault::Malformed);
                assert!(error.to_string().contains("gl-tap"), "{error}");
            }
            let gone =
                AnyLever::Link(LinkLever { interface: "no-such".into(), direction: Direction::Receive, domain: None });
            assert_eq!(gone.read().unwrap_err().fault(), Fault::Absent);
        });
    }

    #[test]
    fn a_ceiling_on_what_a_guest_receives_bites() {
        in_namespace("a_ceiling_on_what_a_guest_receives_bites", || {
            // Loopback stands for the tap: both its ends are here. 1 MiB/s, of which 128 KiB may go at once.
            let lever =
                AnyLever::Link(LinkLever { interface: "lo".into(), direction: Direction::Receive, domain: None });
            if let Err(error) = lever.set(LeverValue::Rate(Some(1 << 20))) {
                gleaner_test_support::skipped!("a_ceiling_on_what_a_guest_receives_bites: {error}");
                return;
            }
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let start = std::time::Instant::now();
            let sender = std::thread::spawn(move || {
                use std::io::Write;
                std::net::TcpStream::connect(to).unwrap().write_all(&vec![0; 3 << 20]).unwrap();
            });
            let received = io::copy(&mut listener.accept().unwrap().0, &mut io::sink()).unwrap();
            sender.join().unwrap();
            let seconds = start.elapsed().as_secs_f64();
            assert_eq!(received, 3 << 20);
            assert!(seconds > 1.5, "3 MiB at 1 MiB/s took {seconds:.2} s");
            lever.set(LeverValue::Rate(None)).unwrap();
        });
    }
}
