//! Traffic control through rtnetlink. In: an interface and a rate. Out: the two queues that Gleaner puts on a guest's
//! interface, set or read. Called by the lever on links. Messages are built and read here byte for byte, because the
//! crates for rtnetlink support neither token buckets nor policing. All numbers are the kernel's (`linux/rtnetlink.h`,
//! `linux/pkt_sched.h`, `linux/pkt_cls.h`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const REPLACE: u16 = 0x100;
const CREATE: u16 = 0x400;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;

const ROOT: u32 = 0xFFFF_FFFF;
const INGRESS: u32 = 0xFFFF_FFF1;
const INGRESS_HANDLE: u32 = 0xFFFF_0000;
/// Handle of the root queue Gleaner makes: "gl" in ASCII, so that it is known again.
const OUR_HANDLE: u32 = 0x676C_0000;
/// A handle that no queue has: the kernel gives from 0x8000 on, people small numbers. (Chosen.)
const UNUSED_HANDLE: u32 = 0x7e57_0000;
/// Priority of the filter Gleaner makes, for the same reason.
const OUR_PRIORITY: u32 = 0x676C;
const ALL_PROTOCOLS: u16 = 0x0003;

const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const MATCHALL_ACTION: u16 = 2;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const POLICE_PARAMETERS: u16 = 1;
const POLICE_RATE_TABLE: u16 = 2;
const DROP: u32 = 2;

const HEADER: usize = 16;
const TC_HEADER: usize = 20;
/// Longest datagram the kernel sends for a dump.
const DATAGRAM: usize = 64 << 10;
/// Most datagrams of one answer; a bound for a kernel that never says done.
const MOST_DATAGRAMS: usize = 1_024;
/// Longest wait for each datagram of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The kernel counts a burst of policing in ticks of 64 ns.
const TICK_NS: f64 = 64.0;

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, interface: u32, handle: u32, parent: u32, info: u32) -> Self {
        let mut bytes = Vec::with_capacity(2_048);
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([0; 4]);
        for number in [interface, handle, parent, info] {
            bytes.extend(number.to_ne_bytes());
        }
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.nested(kind, |message| message.0.extend(payload));
    }

    fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        inside(self);
        let length = self.0.len() - start;
        self.put(start, &u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(slot) = self.0.get_mut(at..at + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.put(0, &length.to_ne_bytes());
        self.0
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes in some bytes; ends at the first that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The top bits mark nesting and byte order.
        let kind = u16_at(bytes, 2)? & 0x3FFF;
        let payload = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload)
}

/// A queue or a filter, as the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Control {
    interface: u32,
    handle: u32,
    parent: u32,
    info: u32,
    kind: String,
    options: Vec<u8>,
}

fn parse_control(body: &[u8]) -> Option<Control> {
    let inside = body.get(TC_HEADER..)?;
    let kind = attribute(inside, KIND)?;
    Some(Control {
        interface: u32_at(body, 4)?,
        handle: u32_at(body, 8)?,
        parent: u32_at(body, 12)?,
        info: u32_at(body, 16)?,
        kind: String::from_utf8_lossy(kind.strip_suffix(&[0]).unwrap_or(kind)).into_owned(),
        options: attribute(inside, OPTIONS).unwrap_or_default().to_vec(),
    })
}

fn collect(bytes: &mut &[u8], into: &mut Vec<Control>) -> io::Result<bool> {
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off");
    while !bytes.is_empty() {
        let length = u32_at(bytes, 0).and_then(|length| usize::try_from(length).ok()).ok_or_else(cut)?;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER).ok_or_else(cut)?;
        let (kind, body) = (u16_at(message, 4).ok_or_else(cut)?, &message[HEADER..]);
        *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let code = u32_at(body, 0).ok_or_else(cut)?.cast_signed();
                return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) };
            }
            NEW_QDISC | NEW_FILTER => into.extend(parse_control(body)),
            _ => {}
        }
    }
    Ok(false)
}

/// A connection to the kernel's traffic control, in the network namespace of the calling thread.
#[derive(Debug)]
pub(crate) struct TrafficControl {
    socket: OwnedFd,
}

/// Which way traffic flows, as the guest behind the interface sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the guest: a token bucket on the interface's way out. Packets wait.
    Receive,
    /// From the guest: policing on the interface's way in. What is too much is dropped, which its TCP takes as a
    /// sign to slow down.
    Transmit,
}

/// How traffic on an interface is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As the kernel made the interface.
    Default,
    /// By Gleaner, to this many bytes per second.
    Ours(u64),
    /// A queue for policing without any filter: Gleaner's if it ended in the midst of setting one, or somebody else's.
    Empty,
    /// By somebody else's queue or filter of this kind.
    Foreign(String),
}

impl TrafficControl {
    pub(crate) fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Self { socket })
    }

    fn ask(&self, message: Message) -> io::Result<Vec<Control>> {
        send(&self.socket, &message.finish(), SendFlags::empty())?;
        let mut controls = Vec::new();
        let mut buffer = vec![0; DATAGRAM];
        for _ in 0..MOST_DATAGRAMS {
            let (_, length) = recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty())?;
            let mut datagram = buffer.get(..length).unwrap_or(&buffer);
            if collect(&mut datagram, &mut controls)? {
                return Ok(controls);
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer does not end"))
    }

    /// How an interface's traffic is held in a direction.
    pub(crate) fn shape(&self, interface: u32, direction: Direction) -> io::Result<Shape> {
        let queues = self.ask(Message::new(GET_QDISC, DUMP, interface, 0, 0, 0))?;
        let parent = match direction {
            Direction::Receive => ROOT,
            Direction::Transmit => INGRESS,
        };
        // Old kernels answer a dump with every interface's.
        let Some(queue) = queues.into_iter().find(|queue| queue.interface == interface && queue.parent == parent)
        else {
            return Ok(Shape::Default);
        };
        match direction {
            // Queues the kernel makes by itself have no handle, or one of its own choice from 0x8000 on.
            Direction::Receive if queue.handle == 0 => Ok(Shape::Default),
            Direction::Receive => {
                let ours = if queue.handle == OUR_HANDLE { tbf_rate(&queue.options) } else { None };
                Ok(ours.map_or(Shape::Foreign(queue.kind), Shape::Ours))
            }
            Direction::Transmit => {
                let filters = self.filters(interface)?;
                // A filter comes with an entry of its priority alone, without options, before it.
                match filters.iter().filter(|filter| is_ours(filter)).find_map(|filter| police_rate(&filter.options)) {
                    Some(rate) => Ok(Shape::Ours(rate)),
                    None if filters.is_empty() && queue.kind == "ingress" => Ok(Shape::Empty),
                    None => Ok(Shape::Foreign(queue.kind)),
                }
            }
        }
    }

    /// Filters on an interface's way in.
    fn filters(&self, interface: u32) -> io::Result<Vec<Control>> {
        self.ask(Message::new(GET_FILTER, DUMP, interface, 0, INGRESS_HANDLE, 0))
    }

    /// Takes away Gleaner's filter alone: others may have added theirs to its queue.
    fn remove_filter(&self, interface: u32) -> io::Result<()> {
        self.ask(Message::new(DELETE_FILTER, ACK, interface, 0, INGRESS_HANDLE, our_filter())).map(drop)
    }

    /// Holds an interface's traffic in a direction to a rate in bytes per second, or no longer.
    pub(crate) fn hold(&self, interface: u32, direction: Direction, rate: Option<u64>) -> io::Result<()> {
        let message = match (direction, rate) {
            (Direction::Receive, Some(rate)) => {
                let mut message = Message::new(NEW_QDISC, ACK | CREATE | REPLACE, interface, OUR_HANDLE, ROOT, 0);
                message.attribute(KIND, b"tbf\0");
                message.nested(OPTIONS, |options| tbf(options, rate));
                return self.ask(message).map(drop).map_err(unsupported);
            }
            (Direction::Receive, None) => Message::new(DELETE_QDISC, ACK, interface, OUR_HANDLE, ROOT, 0),
            (Direction::Transmit, Some(rate)) => {
                // The kernel does not change such a filter in place: for a moment there is none.
                if matches!(self.shape(interface, direction)?, Shape::Ours(_)) {
                    self.remove_filter(interface)?;
                } else {
                    let mut queue = Message::new(NEW_QDISC, ACK | CREATE, interface, INGRESS_HANDLE, INGRESS, 0);
                    queue.attribute(KIND, b"ingress\0");
                    self.ask(queue).map_err(unsupported)?;
                }
                let mut message =
                    Message::new(NEW_FILTER, ACK | CREATE | REPLACE, interface, 1, INGRESS_HANDLE, our_filter());
                message.attribute(KIND, b"matchall\0");
                message.nested(OPTIONS, |options| {
                    options.nested(MATCHALL_ACTION, |actions| actions.nested(1, |action| police(action, rate)));
                });
                let done = self.ask(message);
                if done.is_err() {
                    // A queue without its filter would look like somebody else's.
                    _ = self.hold(interface, direction, None);
                }
                return done.map(drop).map_err(unsupported);
            }
            (Direction::Transmit, None) => {
                let (ours, others): (Vec<_>, Vec<_>) = self.filters(interface)?.into_iter().partition(is_ours);
                if !others.is_empty() {
                    return if ours.is_empty() { Ok(()) } else { self.remove_filter(interface) };
                }
                Message::new(DELETE_QDISC, ACK, interface, INGRESS_HANDLE, INGRESS, 0)
            }
        };
        self.ask(message).map(drop)
    }

    /// Whether this process may change how traffic is held, asked by removing a queue that nobody has: the kernel looks
    /// at the permission (`CAP_NET_ADMIN`) first.
    fn may_change(&self, interface: u32) -> io::Result<()> {
        match self.ask(Message::new(DELETE_QDISC, ACK, interface, UNUSED_HANDLE, ROOT, 0)) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Gleaner's filter, as a message names it.
fn our_filter() -> u32 {
    OUR_PRIORITY << 16 | u32::from(ALL_PROTOCOLS.to_be())
}

const fn is_ours(filter: &Control) -> bool {
    filter.info >> 16 == OUR_PRIORITY
}

/// What the kernel says where it has no such queue or filter.
fn unsupported(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOENT) {
        return error;
    }
    let message = "this kernel has no token bucket (sch_tbf) or policing (sch_ingress, cls_matchall, act_police)";
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Bytes that may go at once: 20 ms of the rate, at least two large frames, so that a slow rate still passes them.
pub(crate) fn burst(rate: u64) -> u32 {
    u32::try_from(rate / 50).unwrap_or(u32::MAX).max(2 * 65_536)
}

/// `struct tc_ratespec`: the table's cell size, Ethernet framing, the rate as far as it fits.
fn rate_spec(rate: u64) -> [u8; 12] {
    let mut spec = [0; 12];
    (spec[0], spec[1]) = (TABLE_CELL_LOG, 1);
    spec[8..12].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    spec
}

fn tbf(options: &mut Message, rate: u64) {
    let mut parameters = [0; 36];
    parameters[..12].copy_from_slice(&rate_spec(rate));
    // What may wait: 50 ms of the rate beyond the burst.
    let limit = u32::try_from(rate / 20).unwrap_or(u32::MAX).saturating_add(burst(rate));
    parameters[24..28].copy_from_slice(&limit.to_ne_bytes());
    options.attribute(TBF_PARAMETERS, &parameters);
    options.attribute(TBF_BURST, &burst(rate).to_ne_bytes());
    if u32::try_from(rate).is_err() {
        options.attribute(TBF_RATE64, &rate.to_ne_bytes());
    }
}

fn tbf_rate(options: &[u8]) -> Option<u64> {
    if let Some(rate) = attribute(options, TBF_RATE64).and_then(|bytes| bytes.try_into().ok()) {
        return Some(u64::from_ne_bytes(rate));
    }
    u32_at(attribute(options, TBF_PARAMETERS)?, 8).map(u64::from)
}

/// Sizes in the rate table are multiples of 2^8 bytes: 256 of them reach the largest frame of 64 KiB.
const TABLE_CELL_LOG: u8 = 8;

/// `struct tc_police` with its rate table. Rates above 4 GiB/s are held to that.
fn police(action: &mut Message, rate: u64) {
    let per_byte_ns = 1e9 / (rate.max(1) as f64);
    let ticks = |bytes: f64| u32::try_from(crate::rounding::whole(bytes * per_byte_ns / TICK_NS)).unwrap_or(u32::MAX);
    action.attribute(ACTION_KIND, b"police\0");
    action.nested(ACTION_OPTIONS, |options| {
        let mut parameters = [0; 56];
        parameters[4..8].copy_from_slice(&DROP.to_ne_bytes());
        parameters[12..16].copy_from_slice(&ticks(f64::from(burst(rate))).to_ne_bytes());
        parameters[20..32].copy_from_slice(&rate_spec(rate));
        options.attribute(POLICE_PARAMETERS, &parameters);
        let table: Vec<u8> =
            (1..=256_u32).flat_map(|cell| ticks(f64::from(cell << TABLE_CELL_LOG)).to_ne_bytes()).collect();
        options.attribute(POLICE_RATE_TABLE, &table);
    });
}

fn police_rate(options: &[u8]) -> Option<u64> {
    let (_, action) = attributes(attribute(options, MATCHALL_ACTION)?).next()?;
    u32_at(attribute(attribute(action, ACTION_OPTIONS)?, POLICE_PARAMETERS)?, 28).map(u64::from)
}

/// Every parser here, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let (mut datagram, mut controls) = (data, Vec::new());
    _ = collect(&mut datagram, &mut controls);
    for control in controls {
        _ = tbf_rate(&control.options);
        _ = police_rate(&control.options);
    }
}

/// Takes the calling thread, and nobody else, into a network namespace of its own.
#[expect(unsafe_code, reason = "leaving shared kernel state is unsafe where that is the table of open files")]
pub(crate) fn own_namespace() -> io::Result<()> {
    // SAFETY: only the network namespace is left, no table of file descriptors, so no other thread's view changes.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Whether this kernel shapes in a direction, tried on a loopback interface in a network namespace made for it, and by
/// what. Needs privilege, and may make the kernel load a module. Where no namespace may be made, as in the packaged unit,
/// only the permission is looked at.
pub(crate) fn probe(direction: Direction) -> io::Result<&'static str> {
    let tried = std::thread::spawn(move || match own_namespace() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            TrafficControl::open()?.may_change(1)?;
            Ok("traffic control; not tried, because no network namespace may be made here")
        }
        made => {
            made?;
            TrafficControl::open()?.hold(1, direction, Some(1 << 20))?;
            Ok("traffic control (tbf, police)")
        }
    });
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the probe ended badly")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        for rate in [1_000, 125_000, 3 << 30, 10 << 30] {
            let mut message = Message::new(NEW_QDISC, 0, 7, OUR_HANDLE, ROOT, 0);
            message.attribute(KIND, b"tbf\0");
            message.nested(OPTIONS, |options| tbf(options, rate));
            let bytes = message.finish();
            let control = parse_control(&bytes[HEADER..]).unwrap();
            assert_eq!((control.interface, control.handle, control.kind.as_str()), (7, OUR_HANDLE, "tbf"));
            assert_eq!(tbf_rate(&control.options), Some(rate));
        }
        let mut message = Message::new(NEW_FILTER, 0, 7, 1, INGRESS_HANDLE, 0);
        message.attribute(KIND, b"matchall\0");
        message.nested(OPTIONS, |options| {
            options.nested(MATCHALL_ACTION, |actions| actions.nested(1, |action| police(action, 125_000)));
        });
        let control = parse_control(&message.finish()[HEADER..]).unwrap();
        assert_eq!(police_rate(&control.options), Some(125_000));
    }

    /// How many controls a datagram holds, and whether the answer is complete.
    fn parse_datagram(mut bytes: &[u8]) -> io::Result<(usize, bool)> {
        let mut controls = Vec::new();
        let done = collect(&mut bytes, &mut controls)?;
        Ok((controls.len(), done))
    }

    #[test]
    fn errors_of_the_kernel_and_cut_off_answers() {
        let mut error = Message::new(ERROR, 0, 0, 0, 0, 0).finish();
        error[HEADER..HEADER + 4].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse_datagram(&error).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let done = Message::new(DONE, 0, 0, 0, 0, 0).finish();
        assert_eq!(parse_datagram(&done).unwrap(), (0, true));
        assert!(parse_datagram(&done[..10]).is_err());
        assert!(parse_datagram(&[0; 64]).is_err(), "a length of 0");
    }

    #[test]
    fn permission_is_looked_at_without_changing_anything() {
        let control = TrafficControl::open().unwrap();
        let before = control.shape(1, Direction::Receive).unwrap();
        let may = control.may_change(1);
        assert_eq!(may.is_ok(), rustix::process::geteuid().is_root(), "{may:?}");
        assert_eq!(control.shape(1, Direction::Receive).unwrap(), before);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            _ = parse_datagram(&bytes);
            _ = parse_control(&bytes);
            _ = tbf_rate(&bytes);
            _ = police_rate(&bytes);
        }
    }
}
