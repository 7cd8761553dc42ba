//! A ceiling on the traffic of a cgroup, by two small programs in the kernel (bpf(2), type `CGROUP_SKB`): one for what
//! its sockets send, one for what they receive. In: the cgroup's folder in the version 2 hierarchy, and bytes per
//! second. Out: bytes that passed and bytes that were dropped. [`crate::network_bound`] calls it.
//!
//! Only this process holds the links that attach the programs. When it ends, the kernel detaches them. They are written
//! as instructions here, because a compiler for them would be a new dependency.
//!
//! Each is a token bucket, kept as one number so that CPUs need no lock: the time up to which the bytes that passed
//! have used the rate ("virtual scheduling" in ITU-T I.371). A packet moves that time on by its length over the rate.
//! While that time is in the past, a packet passes. While it is a little ahead, a packet passes and TCP gets a signal
//! to slow down. Beyond that the packet is dropped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use gleaner_planner::network_bound::Directions;

/// No ceiling: everything passes and is counted.
#[cfg(test)]
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// How much may pass after a pause before TCP is told to slow down, as time at the ceiling. Chosen: the kernel's own
/// pacing lets TCP send a millisecond's worth in one packet.
const BURST_NS: u64 = 2_000_000;
/// How much more may pass before packets are dropped, as time at the ceiling. A TCP that is told to slow down has at most
/// two packets on the way, so this much of it makes no queue. One whose packet is dropped here, with nothing on the way,
/// tries again only half a second later (`TCP_RESOURCE_PROBE_INTERVAL`): with 2 ms in place of this a flow used
/// under half of a wide ceiling.
const DEBT_NS: u64 = 100_000_000;
/// Ethernet's header, which a cgroup's packets do not have yet (or no longer) and the link's counters have.
const LINK_HEADER: i32 = 14;
/// Interface number of the loopback, in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: i32 = 1;

// linux/bpf.h
const MAP_CREATE: u32 = 0;
const MAP_LOOKUP_ELEM: u32 = 1;
const MAP_UPDATE_ELEM: u32 = 2;
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_CGROUP_SKB: u32 = 8;
const PSEUDO_MAP_FD: u8 = 1;
const HELPER_MAP_LOOKUP_ELEM: i32 = 1;
const HELPER_KTIME_GET_NS: i32 = 5;
/// Where `struct __sk_buff` has the packet's length and its interface.
const SKB_LEN: i16 = 0;
const SKB_IFINDEX: i16 = 40;

/// Words of a map's value.
const WORDS: usize = 3;
/// Entry of the ceiling, which the agent writes: bytes per second, burst and debt in nanoseconds.
const CEILING: i32 = 0;
/// Entry of the state, which the program writes: when the bucket is empty, bytes passed, bytes dropped.
const STATE: i32 = 1;
const RATE: i16 = 0;
const BURST: i16 = 8;
const DEBT: i16 = 16;
const SPENT_UNTIL: i16 = 0;
const PASSED: i16 = 8;
const DROPPED: i16 = 16;

/// The kernel refused a step.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing}{}", remedy(.source))]
pub(crate) struct BpfError {
    doing: &'static str,
    source: io::Error,
}

/// The usual cause of an error, for an operator; empty where none is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (it needs CAP_BPF and CAP_NET_ADMIN, and no filter on the system call bpf)"
        }
        Some(libc::ENOSYS | libc::EINVAL) => " (it needs Linux 5.8 with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF)",
        _ => "",
    }
}

/// Bytes of one direction since the programs were attached, each packet with the header that it has on the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) passed: u64,
    pub(crate) dropped: u64,
}

/// The programs of one cgroup. Dropping the value detaches them.
#[derive(Debug)]
pub(crate) struct CgroupLimiter(Directions<Attached>);

#[derive(Debug)]
struct Attached {
    map: OwnedFd,
    /// Keeps the program attached.
    _link: OwnedFd,
}

impl CgroupLimiter {
    /// Attaches both programs to a cgroup of the version 2 hierarchy, with these ceilings from the first packet on. Packets on
    /// the loopback pass and are not counted.
    ///
    /// # Errors
    /// [`BpfError`] when the folder cannot be opened, or the kernel has no such programs or does not allow them.
    pub(crate) fn attach(cgroup: &Path, ceiling: Directions<u64>) -> Result<Self, BpfError> {
        let folder = File::open(cgroup).map_err(failed("open the volunteer's cgroup"))?;
        let one = |direction, rate| Attached::new(folder.as_fd(), direction, rate);
        Ok(Self(Directions { sent: one(&SENT, ceiling.sent)?, received: one(&RECEIVED, ceiling.received)? }))
    }

    /// Other ceilings, in bytes per second. Zero lets nothing pass.
    pub(crate) fn set(&self, ceiling: Directions<u64>) -> Result<(), BpfError> {
        write_ceiling(&self.0.sent.map, ceiling.sent)?;
        write_ceiling(&self.0.received.map, ceiling.received)
    }

    /// What passed and what was dropped so far.
    pub(crate) fn counted(&self) -> Result<Directions<Counted>, BpfError> {
        let one = |attached: &Attached| -> Result<Counted, BpfError> {
            let [_, passed, dropped] = lookup(attached.map.as_fd(), STATE).map_err(failed("read a BPF map"))?;
            Ok(Counted { passed, dropped })
        };
        Ok(Directions { sent: one(&self.0.sent)?, received: one(&self.0.received)? })
    }
}

/// Tries what [`CgroupLimiter::attach`] needs, as far as that goes without a cgroup: loads the programs and drops them.
///
/// # Errors
/// [`BpfError`] as for [`CgroupLimiter::attach`].
pub(crate) fn probe() -> Result<(), BpfError> {
    [&SENT, &RECEIVED].into_iter().try_for_each(|direction| load(direction).map(drop))
}

/// What is different between the directions.
struct Direction {
    attach_type: u32,
    /// The program's answer for a packet that is dropped.
    dropped: i32,
    /// Its answer for a packet that passes although it is over the ceiling.
    over: i32,
}

/// Answers 2 and 3 tell TCP of congestion (Linux 5.3). A dropped datagram is then lost as on a network, where answer 0
/// would make `sendto` fail with `EPERM`.
const SENT: Direction = Direction { attach_type: 1, dropped: 2, over: 3 };
const RECEIVED: Direction = Direction { attach_type: 0, dropped: 0, over: 1 };

fn failed(doing: &'static str) -> impl Fn(io::Error) -> BpfError {
    move |source| BpfError { doing, source }
}

impl Attached {
    fn new(cgroup: BorrowedFd<'_>, direction: &Direction, rate: u64) -> Result<Self, BpfError> {
        let (map, program) = load(direction)?;
        write_ceiling(&map, rate)?;
        let mut attributes = Attributes::default();
        attributes.put_fd(0, program.as_fd());
        attributes.put_fd(4, cgroup);
        attributes.put(8, &direction.attach_type.to_ne_bytes());
        let link = attributes.call_for_fd(LINK_CREATE);
        Ok(Self { map, _link: link.map_err(failed("attach a BPF program to the volunteer's cgroup"))? })
    }
}

/// A new map, and the program that uses it.
fn load(direction: &Direction) -> Result<(OwnedFd, OwnedFd), BpfError> {
    let mut attributes = Attributes::default();
    let words = u32::try_from(WORDS * 8).unwrap_or(u32::MAX);
    for (at, value) in [(0, MAP_TYPE_ARRAY), (4, 4), (8, words), (12, 2)] {
        attributes.put(at, &value.to_ne_bytes());
    }
    let map = attributes.call_for_fd(MAP_CREATE).map_err(failed("make a BPF map"))?;

    let program = program(map.as_raw_fd(), direction);
    // Not compatible with the GPL in the kernel's list; the helpers used here are open to any (Linux 5.8).
    let license = c"Apache-2.0 OR MIT";
    let mut attributes = Attributes::default();
    attributes.put(0, &PROG_TYPE_CGROUP_SKB.to_ne_bytes());
    attributes.put(4, &u32::try_from(program.len()).unwrap_or(u32::MAX).to_ne_bytes());
    attributes.put_address(8, program.as_ptr());
    attributes.put_address(16, license.as_ptr());
    attributes.put(68, &direction.attach_type.to_ne_bytes());
    let loaded = attributes.call_for_fd(PROG_LOAD).map_err(failed("load a BPF program"))?;
    Ok((map, loaded))
}

fn write_ceiling(map: &OwnedFd, rate: u64) -> Result<(), BpfError> {
    let (entry, value) = (CEILING, [rate, BURST_NS, DEBT_NS]);
    let mut attributes = Attributes::default();
    attributes.put_fd(0, map.as_fd());
    attributes.put_address(8, &raw const entry);
    attributes.put_address(16, value.as_ptr());
    attributes.call(MAP_UPDATE_ELEM).map(drop).map_err(failed("write a BPF map"))
}

fn lookup(map: BorrowedFd<'_>, entry: i32) -> io::Result<[u64; WORDS]> {
    let mut value = [0_u64; WORDS];
    let mut attributes = Attributes::default();
    attributes.put_fd(0, map);
    attributes.put_address(8, &raw const entry);
    attributes.put_address(16, value.as_mut_ptr());
    attributes.call(MAP_LOOKUP_ELEM)?;
    Ok(value)
}

/// `union bpf_attr`, as far as it is used.
#[derive(Default)]
#[repr(C, align(8))]
struct Attributes([[u8; 8]; 9]);

impl Attributes {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0.as_flattened_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_fd(&mut self, at: usize, fd: BorrowedFd<'_>) {
        self.put(at, &fd.as_raw_fd().to_ne_bytes());
    }

    fn put_address<T>(&mut self, at: usize, pointer: *const T) {
        self.put(at, &(pointer.expose_provenance() as u64).to_ne_bytes());
    }

    #[expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]
    fn call(&mut self, command: u32) -> io::Result<i32> {
        // SAFETY: the kernel reads the attributes, whose size is given, and reads or writes what their addresses point
        // to: the callers of this private function put in addresses of locals and constants that outlive the call, as
        // large as the map's keys and values (4 and 24 bytes), as the count of instructions, or ended by a zero byte.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size_of::<Self>()) };
        match i32::try_from(result) {
            Ok(result) if result >= 0 => Ok(result),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[expect(unsafe_code, reason = "a descriptor from a system call without a wrapper")]
    fn call_for_fd(&mut self, command: u32) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the commands this is used for answer a new descriptor (closed on exec), which nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// `struct bpf_insn`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Places that are jumped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Fresh,
    Charge,
    Passed,
    Dropped,
    Uncounted,
}

/// Writes instructions, and fills in where jumps go.
#[derive(Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn op(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        // Two fields of four bits, the first of which the machine's byte order puts low or high.
        let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        self.instructions.push(Instruction { code, registers, offset, immediate });
        self
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, immediate: i32, label: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.op(code, to, from, 0, immediate)
    }

    fn label(&mut self, label: Label) -> &mut Self {
        self.labels.push((label, self.instructions.len()));
        self
    }

    /// Register 0 is the address of an entry of the map; where there is none the packet passes.
    fn entry(&mut self, map: i32, entry: i32) -> &mut Self {
        self.op(ST_W, 10, 0, -4, entry)
            .op(LD_DW, 1, PSEUDO_MAP_FD, 0, map)
            .op(0, 0, 0, 0, 0)
            .op(MOV, 2, 10, 0, 0)
            .op(ADD_IMM, 2, 0, 0, -4)
            .op(CALL, 0, 0, 0, HELPER_MAP_LOOKUP_ELEM)
            .jump(JEQ_IMM, 0, 0, 0, Label::Uncounted)
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels.iter().find(|(own, _)| *own == label).map_or(at, |(_, target)| *target);
            // Counted from the next instruction. All jumps of a program this short fit.
            self.instructions[at].offset = i16::try_from(target.wrapping_sub(at + 1)).unwrap_or(i16::MAX);
        }
        self.instructions
    }
}

// Codes of instructions: on 64 bits, of a register with a register, or (`_IMM`) with a number.
const LD_DW: u8 = 0x18;
const LDX_W: u8 = 0x61;
const LDX_DW: u8 = 0x79;
const ST_W: u8 = 0x62;
const STX_DW: u8 = 0x7b;
const ATOMIC_ADD_DW: u8 = 0xdb;
const ADD_IMM: u8 = 0x07;
const ADD: u8 = 0x0f;
const SUB: u8 = 0x1f;
const MUL_IMM: u8 = 0x27;
const DIV: u8 = 0x3f;
const MOV_IMM: u8 = 0xb7;
const MOV: u8 = 0xbf;
const JA: u8 = 0x05;
const JEQ_IMM: u8 = 0x15;
const JGT: u8 = 0x2d;
const JGE: u8 = 0x3d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The program of a direction. Two CPUs that find the bucket full at once may both fill it; one packet is then not
/// charged.
fn program(map: i32, direction: &Direction) -> Vec<Instruction> {
    let mut program = Assembler::default();
    program
        // 6: the packet. Traffic of the volunteer with itself is nobody's harm.
        .op(MOV, 6, 1, 0, 0)
        .op(LDX_W, 2, 6, SKB_IFINDEX, 0)
        .jump(JEQ_IMM, 2, 0, LOOPBACK, Label::Uncounted)
        // 7: the ceiling. 8: the state. 9: the packet's length. 6, from here on: the answer.
        .entry(map, CEILING)
        .op(MOV, 7, 0, 0, 0)
        .entry(map, STATE)
        .op(MOV, 8, 0, 0, 0)
        .op(LDX_W, 9, 6, SKB_LEN, 0)
        .op(ADD_IMM, 9, 0, 0, LINK_HEADER)
        .op(MOV_IMM, 6, 0, 0, 1)
        // 0: now. 3: bytes per second. 4: spent until. 5: the burst.
        .op(CALL, 0, 0, 0, HELPER_KTIME_GET_NS)
        .op(LDX_DW, 3, 7, RATE, 0)
        .jump(JEQ_IMM, 3, 0, -1, Label::Passed)
        .jump(JEQ_IMM, 3, 0, 0, Label::Dropped)
        .op(LDX_DW, 4, 8, SPENT_UNTIL, 0)
        .op(LDX_DW, 5, 7, BURST, 0)
        .op(MOV, 1, 0, 0, 0)
        .jump(JGE, 0, 4, 0, Label::Fresh)
        // The rate is used up: over the ceiling for a while, then dropped.
        .op(LDX_DW, 2, 7, DEBT, 0)
        .op(ADD, 1, 2, 0, 0)
        .jump(JGT, 4, 1, 0, Label::Dropped)
        .op(MOV_IMM, 6, 0, 0, direction.over)
        .jump(JA, 0, 0, 0, Label::Charge)
        // Not more than one burst was saved.
        .label(Label::Fresh)
        .op(SUB, 1, 5, 0, 0)
        .jump(JGE, 4, 1, 0, Label::Charge)
        .op(STX_DW, 8, 1, SPENT_UNTIL, 0)
        .label(Label::Charge)
        .op(MOV, 2, 9, 0, 0)
        .op(MUL_IMM, 2, 0, 0, 1_000_000_000)
        .op(DIV, 2, 3, 0, 0)
        .op(ATOMIC_ADD_DW, 8, 2, SPENT_UNTIL, 0)
        .label(Label::Passed)
        .op(ATOMIC_ADD_DW, 8, 9, PASSED, 0)
        .op(MOV, 0, 6, 0, 0)
        .op(EXIT, 0, 0, 0, 0)
        .label(Label::Dropped)
        .op(ATOMIC_ADD_DW, 8, 9, DROPPED, 0)
        .op(MOV_IMM, 0, 0, 0, direction.dropped)
        .op(EXIT, 0, 0, 0, 0)
        .label(Label::Uncounted)
        .op(MOV_IMM, 0, 0, 0, 1)
        .op(EXIT, 0, 0, 0, 0);
    program.finish()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::UdpSocket;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::act::tests::scene::eventually;
    use crate::hierarchies::Hierarchies;

    const PROG_QUERY: u32 = 16;

    /// Programs of a direction attached to the cgroup itself.
    fn attached(cgroup: &Path, direction: &Direction) -> io::Result<u32> {
        let folder = File::open(cgroup)?;
        let mut attributes = Attributes::default();
        attributes.put_fd(0, folder.as_fd());
        attributes.put(4, &direction.attach_type.to_ne_bytes());
        attributes.call(PROG_QUERY)?;
        let count = attributes.0.as_flattened().get(24..28).and_then(|bytes| bytes.try_into().ok());
        Ok(count.map_or(0, u32::from_ne_bytes))
    }

    /// Programs attached to a cgroup itself, for what it sends and what it receives.
    pub(crate) fn programs(cgroup: &Path) -> (u32, u32) {
        (attached(cgroup, &SENT).unwrap(), attached(cgroup, &RECEIVED).unwrap())
    }

    /// A cgroup of version 2 for a test; removed with the value.
    pub(crate) struct Group(pub(crate) std::path::PathBuf);

    impl Group {
        /// `None`, with a line that says why, where there can be none or the kernel takes no programs.
        pub(crate) fn open(test: &str) -> Option<Self> {
            let made = || -> Result<Self, String> {
                let mount = Hierarchies::of_this_machine().v2.ok_or("no version 2 hierarchy is mounted")?;
                probe().map_err(|error| gleaner_types::error::chain(&error))?;
                let dir = mount.join(format!("gleaner-test-{test}-{}", std::process::id()));
                std::fs::create_dir(&dir).map_err(|error| format!("cannot make a cgroup: {error}"))?;
                Ok(Self(dir))
            };
            made().inspect_err(|reason| gleaner_test_support::skipped!("{test}: no ceiling here: {reason}")).ok()
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            _ = crate::act::cgroup::kill_all(
                std::slice::from_ref(&self.0),
                None,
                Duration::from_secs(5),
                crate::act::cgroup::MemoryRelease::ByTheProcess,
            );
            _ = crate::act::cgroup::remove(&self.0, || {});
        }
    }

    #[test]
    fn programs_end_with_their_owner() {
        let Some(group) = Group::open("programs_end_with_their_owner") else { return };
        let limiter = CgroupLimiter::attach(&group.0, Directions::both(UNLIMITED)).unwrap();
        assert_eq!(programs(&group.0), (1, 1));
        limiter.set(Directions { sent: 1_000_000, received: UNLIMITED }).unwrap();
        assert_eq!(limiter.counted().unwrap(), Directions::default());
        drop(limiter);
        eventually("both detached", || programs(&group.0) == (0, 0));

        // As a crashed agent leaves them.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bpf::tests::the_owner", "--nocapture"])
            .env("GLEANER_TEST_BPF_OWNER", &group.0)
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("attached")), "the owner could not attach");
        assert_eq!(programs(&group.0), (1, 1));
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("both detached after a kill", || programs(&group.0) == (0, 0));
    }

    /// Not a test of its own: the process that [`programs_end_with_their_owner`] kills.
    #[test]
    fn the_owner() {
        let Some(group) = std::env::var_os("GLEANER_TEST_BPF_OWNER") else { return };
        let _limiter = CgroupLimiter::attach(Path::new(&group), Directions::both(1)).unwrap();
        println!("attached");
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn the_loopback_is_free() {
        // A child of the cgroup sends to an address of this machine: that is the loopback, whatever the ceiling.
        let Some(group) = Group::open("the_loopback_is_free") else { return };
        let limiter = CgroupLimiter::attach(&group.0, Directions::both(0)).unwrap();
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let address = to.local_addr().unwrap().to_string();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bpf::tests::a_datagram", "--nocapture"])
            .env("GLEANER_TEST_BPF_DATAGRAM", &address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::fs::write(group.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        drop(child.stdin.take());
        let mut buffer = [0; 16];
        assert_eq!(to.recv(&mut buffer).unwrap(), 5);
        assert!(child.wait().unwrap().success());
        assert_eq!(limiter.counted().unwrap(), Directions::default());
    }

    /// Not a test of its own: sends one datagram once its standard input ends.
    #[test]
    fn a_datagram() {
        let Some(address) = std::env::var_os("GLEANER_TEST_BPF_DATAGRAM") else { return };
        _ = io::stdin().lines().count();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"hello", address.to_str().unwrap()).unwrap();
    }
}
