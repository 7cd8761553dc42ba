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

/// One direction of an interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkLever {
    /// Name of the interface.
    pub interface: String,
    /// Which way, as the guest behind the interface sees it.
    pub direction: Direction,
}

impl LinkLever {
    fn what(&self) -> String {
        let way = match self.direction {
            Direction::Receive => "receives",
            Direction::Transmit => "sends",
        };
        format!("what the guest behind `{}` {way}", self.interface)
    }

    fn index(&self) -> io::Result<u32> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(name_to_index(&socket, &self.interface)?)
    }
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[
    Kind {
        name: "traffic that a guest receives",
        does: "bytes per second that a tap, or the interface of a volunteer domain, sends: a token bucket",
        exists: "such an interface in this network namespace, kernel module `sch_tbf`",
        restored: "the queue removed; somebody else's queue is never replaced",
        capability: Some(Capability::NetworkReceive),
    },
    Kind {
        name: "traffic that a guest sends",
        does: "bytes per second that a tap, or the interface of a volunteer domain, receives: policing",
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
        let taps = place.guest().map_or(&[][..], |guest| &guest.taps);
        let of = |direction| taps.iter().map(move |tap| Self { interface: tap.clone(), direction });
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
        self.index().is_ok()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let shape = self.index().and_then(|index| TrafficControl::open()?.shape(index, self.direction));
        match shape.map_err(|source| LeverError::Read { what: self.what(), source })? {
            Shape::Default => Ok(LeverValue::Rate(None)),
            Shape::Ours(rate) => Ok(LeverValue::Rate(Some(rate))),
            Shape::Foreign(kind) => Err(LeverError::Malformed {
                what: self.what(),
                text: kind,
                expected: "a queue of Gleaner's or the kernel's own; remove that queue to let Gleaner shape it",
            }),
        }
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::Rate(rate) = &value else {
            return Err(LeverError::Malformed { what: self.what(), text: value.to_string(), expected: "a rate" });
        };
        // Nothing to take away: the kernel would say that there is no such queue.
        if rate.is_none() && self.read()? == value {
            return Ok(());
        }
        let written = self.index().and_then(|index| TrafficControl::open()?.hold(index, self.direction, *rate));
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
        AnyLever::Link(LinkLever { interface: "gl-tap".into(), direction })
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
            let gone = AnyLever::Link(LinkLever { interface: "no-such".into(), direction: Direction::Receive });
            assert_eq!(gone.read().unwrap_err().fault(), Fault::Absent);
        });
    }

    #[test]
    fn a_ceiling_on_what_a_guest_receives_bites() {
        in_namespace("a_ceiling_on_what_a_guest_receives_bites", || {
            // Loopback stands for the tap: both its ends are here. 1 MiB/s, of which 128 KiB may go at once.
            let lever = AnyLever::Link(LinkLever { interface: "lo".into(), direction: Direction::Receive });
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
