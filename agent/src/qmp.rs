//! The QEMU machine protocol. In: commands to a guest's monitor. Out: its answers, as JSON lines over a Unix socket.
//! Called by the watch of monitors and by the monitor's levers.
//!
//! A monitor serves one client at a time, often libvirt, so a connection is opened for one exchange and closed again. A
//! socket's path comes from a command line, which any process may choose. So nothing is sent before the kernel has
//! named the guest's own process as the socket's listener. Every line and every conversation has a deadline that no
//! slow sender can extend. A monitor that missed one is not asked for a while: a hung or hostile monitor delays no
//! other guest.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::facts::ProcessId;
use crate::process::identify;

/// How long a monitor may take for each line.
const LINE_TIMEOUT: Duration = Duration::from_millis(250);
/// How long all lines of a conversation may take together.
const CONVERSATION_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries to connect to a monitor that is closing another connection.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// How long a monitor that did not answer is not asked again. (All chosen.)
const UNRESPONSIVE_PAUSE: Duration = Duration::from_secs(10);
/// Longest line; an answer about a thousand disks is far below.
const LONGEST: u64 = 1 << 20;
/// Events a monitor may put before its answer.
const MOST_EVENTS: usize = 1_000;

/// When monitors last failed to answer in time.
type Hung = BTreeMap<(ProcessId, PathBuf), Instant>;

/// For the whole process: sampling and acting ask the same monitors.
static HUNG: Mutex<Hung> = Mutex::new(BTreeMap::new());

/// Leaves a monitor alone from now on, and forgets those that may be asked again. Otherwise a user who starts and ends
/// many processes could fill the agent's memory.
fn leave_alone(hung: &mut Hung, monitor: (ProcessId, PathBuf), now: Instant) {
    hung.retain(|_, at| now.duration_since(*at) < UNRESPONSIVE_PAUSE);
    hung.insert(monitor, now);
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// A socket on which nothing is waited for past a moment. (A timeout of the socket's own begins anew with every byte.)
#[derive(Debug)]
struct Timed {
    socket: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// One conversation with a monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    lines: BufReader<Timed>,
    /// When it must be over.
    end: Instant,
}

/// A line of a monitor, as far as it matters here.
#[derive(Debug, PartialEq)]
pub(crate) enum Line {
    Greeting,
    Event,
    Answer(Value),
    Refused(io::ErrorKind, String),
}

/// Reads one line.
pub(crate) fn parse_line(line: &[u8]) -> io::Result<Line> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| invalid(format!("no JSON: {error}")))?;
    if let Some(answer) = value.get_mut("return") {
        return Ok(Line::Answer(answer.take()));
    }
    if let Some(error) = value.get("error") {
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = match text("class") {
            "DeviceNotFound" | "DeviceNotActive" => io::ErrorKind::NotFound,
            "CommandNotFound" => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        return Ok(Line::Refused(kind, text("desc").chars().take(200).collect()));
    }
    match (value.get("QMP"), value.get("event")) {
        (Some(_), _) => Ok(Line::Greeting),
        (_, Some(_)) => Ok(Line::Event),
        _ => Err(invalid("neither greeting, event nor answer")),
    }
}

impl Monitor {
    /// Connects to the monitor of the process `owner`, and does `work` in one conversation.
    ///
    /// # Errors
    /// Those of `work`; `TimedOut` when the monitor did not answer in time now or lately; `NotFound` when the process has
    /// ended; `PermissionDenied` when another process listens on the socket.
    pub(crate) fn with<T>(
        socket: &Path,
        owner: ProcessId,
        work: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        let hung = || HUNG.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (owner, socket.to_owned());
        if hung().get(&key).is_some_and(|at| at.elapsed() < UNRESPONSIVE_PAUSE) {
            let message =
                format!("it did not answer lately; it is tried again {} s later", UNRESPONSIVE_PAUSE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        let result = Self::connect(socket, owner).and_then(|mut monitor| work(&mut monitor));
        match result {
            // What a socket with a timeout says.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                leave_alone(&mut hung(), key, Instant::now());
                let message = format!(
                    "no answer within {} ms, or not all in {} ms: it is hung, or serves another client such as libvirt",
                    LINE_TIMEOUT.as_millis(),
                    CONVERSATION_TIMEOUT.as_millis()
                );
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
            result => {
                hung().remove(&key);
                result
            }
        }
    }

    /// Connects, and tries again while the monitor ends the connection of another client: until then a new client waits
    /// in the queue, or is dropped without an answer.
    fn connect(socket: &Path, owner: ProcessId) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            let dropped = |error: &io::Error| {
                use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WouldBlock};
                // A wait that has reached the timeout is no quick drop.
                matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof | WouldBlock)
            };
            match Self::greet(socket, owner) {
                Err(error) if dropped(&error) && start.elapsed() + CONNECT_INTERVAL < LINE_TIMEOUT => {
                    std::thread::sleep(CONNECT_INTERVAL)
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(io::Error::new(error.kind(), "it ends every conversation at once"));
                }
                result => return result,
            }
        }
    }

    fn greet(socket: &Path, owner: ProcessId) -> io::Result<Self> {
        let socket = connect_in_time(socket)?;
        check_listener(&socket, owner)?;
        let end = Instant::now() + CONVERSATION_TIMEOUT;
        let mut monitor = Self { lines: BufReader::new(Timed { socket, until: end }), end };
        match monitor.line()? {
            Line::Greeting => {}
            _ => return Err(invalid("no greeting")),
        }
        monitor.execute("qmp_capabilities", Value::Null)?;
        Ok(monitor)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// The monitor's refusal: `NotFound` for a device that is not there, `Unsupported` for an unknown command.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        self.wait_from_now();
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes())?;
        for _ in 0..MOST_EVENTS {
            match self.line()? {
                Line::Answer(answer) => return Ok(answer),
                Line::Refused(kind, why) => {
                    return Err(io::Error::new(kind, format!("the monitor refuses `{command}`: {why}")));
                }
                Line::Event | Line::Greeting => {}
            }
        }
        Err(invalid(format!("no answer to `{command}` among {MOST_EVENTS} lines")))
    }

    /// The timeout for one line begins.
    fn wait_from_now(&mut self) {
        self.lines.get_mut().until = self.end.min(Instant::now() + LINE_TIMEOUT);
    }

    fn line(&mut self) -> io::Result<Line> {
        self.wait_from_now();
        let mut line = Vec::new();
        (&mut self.lines).take(LONGEST).read_until(b'\n', &mut line)?;
        match line.last() {
            None => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(b'\n') => parse_line(&line),
            Some(_) => Err(invalid(format!("a line is cut off or longer than {LONGEST} bytes"))),
        }
    }
}

/// A full backlog makes connect(2) on a Unix socket wait without end, unless the socket does not block.
fn connect_in_time(socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let file = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&file, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(file);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Checks that the other end of a connection is the listener of one process, which still runs.
fn check_listener(socket: &UnixStream, owner: ProcessId) -> io::Result<()> {
    if identify(Path::new("/proc"), owner.pid) != Some(owner) {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("the guest's {owner} has ended")));
    }
    let who = match listener(socket)? {
        pid if pid == owner.pid => return Ok(()),
        0 => "a process of another pid namespace".to_owned(),
        pid => format!("process {pid}"),
    };
    let message = format!("{who} listens there, not the guest's own {owner}: it is neither asked nor set");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// The process that called listen(2) on the socket at the other end; 0 if this process cannot see it.
#[expect(unsafe_code, reason = "the safe wrapper does not expect a pid of 0")]
fn listener(socket: &UnixStream) -> io::Result<i32> {
    use std::os::fd::AsRawFd;
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of_val(&credentials)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open as long as `socket` is borrowed; `credentials` is plain data of the length given,
    // and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(credentials.pid) } else { Err(io::Error::last_os_error()) }
}

/// A guest's disk, by the path of its device in QEMU, which is what throttling wants (not the drive's id).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuestDisk {
    pub(crate) device: String,
    pub(crate) throttle: [u64; 4],
}

/// Longest path of a device that is taken, in bytes. Chosen: several times what QEMU's own are. The guest's QEMU says it, it
/// is repeated to the aggregator and in the ledger, and QEMU may be somebody else's.
const LONGEST_DEVICE: usize = 512;

/// Disks with a medium, of `query-block`.
pub(crate) fn disks(answer: &Value) -> Vec<GuestDisk> {
    let one = |disk: &Value| {
        let inserted = disk.get("inserted")?;
        let number = |key: &str| inserted.get(key).and_then(Value::as_u64).unwrap_or(0);
        let device =
            disk.get("qdev").and_then(Value::as_str).filter(|device| device.len() <= LONGEST_DEVICE)?.to_owned();
        Some(GuestDisk { device, throttle: ["bps_rd", "bps_wr", "iops_rd", "iops_wr"].map(number) })
    };
    answer.as_array().into_iter().flatten().filter_map(one).collect()
}

/// All the memory a guest has: what it was started with, and what was plugged into it since.
pub(crate) fn whole_memory(monitor: &mut Monitor) -> io::Result<u64> {
    let answer = monitor.execute("query-memory-size-summary", Value::Null)?;
    let number = |key: &str| answer.get(key).and_then(Value::as_u64);
    let base = number("base-memory").ok_or_else(|| invalid("a memory size without `base-memory`"))?;
    // Left out where nothing can be plugged.
    Ok(base.saturating_add(number("plugged-memory").unwrap_or(0)))
}

/// Counters of all disks of a guest since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BlockStats {
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
}

/// Sums of `query-blockstats`; of each disk only the device the guest sees, not the files below.
pub(crate) fn block_stats(answer: &Value) -> Option<BlockStats> {
    let mut sum = BlockStats::default();
    for disk in answer.as_array()? {
        let number = |key: &str| disk.get("stats")?.get(key)?.as_u64();
        sum.read_bytes = sum.read_bytes.wrapping_add(number("rd_bytes")?);
        sum.write_bytes = sum.write_bytes.wrapping_add(number("wr_bytes")?);
        sum.operations = sum.operations.wrapping_add(number("rd_operations")?).wrapping_add(number("wr_operations")?);
    }
    Some(sum)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// This process, in which the monitors of the tests listen.
    pub(crate) fn own() -> ProcessId {
        identify(Path::new("/proc"), i32::try_from(std::process::id()).unwrap()).unwrap()
    }

    /// A monitor that says the given lines, whatever it is asked.
    pub(crate) fn fake(folder: &Path, lines: &'static [&'static str]) -> PathBuf {
        let path = folder.join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                for line in lines {
                    _ = stream.write_all(line.as_bytes());
                }
                // Holds the connection open, as a hung monitor does, until the other side has enough.
                _ = io::copy(&mut stream, &mut io::sink());
            }
        });
        path
    }

    #[test]
    fn monitors_that_were_left_alone_are_forgotten() {
        let (mut hung, now) = (Hung::new(), Instant::now());
        let monitor = |pid| (ProcessId { pid, start_ticks: 1 }, PathBuf::from("/run/qmp"));
        (0..100).for_each(|pid| leave_alone(&mut hung, monitor(pid), now));
        assert_eq!(hung.len(), 100);
        leave_alone(&mut hung, monitor(100), now + UNRESPONSIVE_PAUSE);
        assert_eq!(hung.into_keys().collect::<Vec<_>>(), [monitor(100)]);
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

    /// A guest with a balloon, as its monitor tells of it. It takes and gives memory only when the test says so.
    pub(crate) struct BalloonGuest {
        pub(crate) socket: PathBuf,
        /// Bytes it was started with, bytes plugged, and bytes it has now.
        memory: Arc<[AtomicU64; 3]>,
        /// The size its balloon was last set to leave it.
        balloon_target: Arc<AtomicU64>,
    }

    impl BalloonGuest {
        pub(crate) fn start(socket: &Path, base: u64, plugged: u64) -> Self {
            let memory = Arc::new([base, plugged, base + plugged].map(AtomicU64::new));
            let balloon_target = Arc::new(AtomicU64::new(0));
            let listener = UnixListener::bind(socket).unwrap();
            let (of_guest, size) = (Arc::clone(&memory), Arc::clone(&balloon_target));
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    _ = stream.write_all(GREETING.as_bytes());
                    for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                        let Ok(line) = line else { break };
                        let request: Value = serde_json::from_str(&line).unwrap();
                        let [base, plugged, actual] = of_guest.each_ref().map(|bytes| bytes.load(Ordering::SeqCst));
                        let answer = match request["execute"].as_str().unwrap() {
                            "query-balloon" => json!({ "actual": actual }),
                            "query-memory-size-summary" => json!({ "base-memory": base, "plugged-memory": plugged }),
                            "query-block" | "query-blockstats" => json!([]),
                            "balloon" => {
                                size.store(request["arguments"]["value"].as_u64().unwrap(), Ordering::SeqCst);
                                json!({})
                            }
                            _ => json!({}),
                        };
                        _ = stream.write_all(format!("{}\n", json!({ "return": answer })).as_bytes());
                    }
                }
            });
            Self { socket: socket.to_owned(), memory, balloon_target }
        }

        /// What the balloon was last set to.
        pub(crate) fn balloon_target(&self) -> u64 {
            self.balloon_target.load(Ordering::SeqCst)
        }

        /// The guest has taken or given memory, or has got more.
        pub(crate) fn has(&self, base: u64, plugged: u64, actual: u64) {
            for (place, bytes) in self.memory.iter().zip([base, plugged, actual]) {
                place.store(bytes, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn answers_are_distinguished_from_events_and_refusals() {
        let folder = tempfile::tempdir().unwrap();
        let path = fake(
            folder.path(),
            &[
                GREETING,
                "{\"return\": {}}\n",
                "{\"event\": \"STOP\", \"timestamp\": {}}\n{\"return\": {\"running\": true}}\n",
                "{\"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"no such disk\"}}\n",
            ],
        );
        let said = Monitor::with(&path, own(), |monitor| {
            let status = monitor.execute("query-status", Value::Null)?;
            let refusal = monitor.execute("block_set_io_throttle", json!({})).unwrap_err();
            Ok((status, refusal.kind(), refusal.to_string()))
        });
        let (status, kind, text) = said.unwrap();
        assert_eq!((status["running"].as_bool(), kind), (Some(true), io::ErrorKind::NotFound));
        assert!(text.contains("no such disk"), "{text}");
    }

    #[test]
    fn a_hung_monitor_is_left_alone_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = fake(folder.path(), &[GREETING]);
        let ask = || Monitor::with(&path, own(), |_| Ok(())).unwrap_err();
        let first = ask();
        assert_eq!(first.kind(), io::ErrorKind::TimedOut);
        assert!(first.to_string().contains("another client"), "{first}");
        let second = ask();
        assert!(second.to_string().contains("lately"), "not asked again: {second}");
    }

    #[test]
    fn a_trickle_of_bytes_moves_no_deadline() {
        let events = "{\"event\": \"STOP\"}\n";
        let answered = [GREETING, "{\"return\": {}}\n"].concat();
        // A line that never ends, and events without an answer: each byte and each line comes well in time.
        for (start, piece) in [(String::new(), " "), (answered, events)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("qmp");
            let listener = UnixListener::bind(&path).unwrap();
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                _ = stream.write_all(start.as_bytes());
                for _ in 0..500 {
                    std::thread::sleep(Duration::from_millis(20));
                    if stream.write_all(piece.as_bytes()).is_err() {
                        return;
                    }
                }
            });
            let began = Instant::now();
            let error =
                Monitor::with(&path, own(), |monitor| monitor.execute("query-status", Value::Null)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            assert!(began.elapsed() < 5 * CONVERSATION_TIMEOUT, "{:?}", began.elapsed());
        }
    }

    #[test]
    fn one_that_parts_from_another_client_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let monitor = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(GREETING.as_bytes()).unwrap();
            stream.write_all(b"{\"return\": {}}\n").unwrap();
            _ = io::copy(&mut stream, &mut io::sink());
        });
        Monitor::with(&path, own(), |_| Ok(())).unwrap();
        monitor.join().unwrap();
    }

    #[test]
    fn hostile_lines_are_errors() {
        for line in ["", "x\n", "[]\n", "{}\n", "{\"QMP\"", "{\"return\"\n"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("qmp");
            let listener = UnixListener::bind(&path).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    _ = stream.unwrap().write_all(line.as_bytes());
                }
            });
            let error = Monitor::with(&path, own(), |_| Ok(())).unwrap_err();
            assert!(
                matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
                "{line}: {error}"
            );
        }
        let gone = Monitor::with(Path::new("/nonexistent/qmp"), own(), |_| Ok(())).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn block_answers() {
        let stats = json!([
            {"stats": {"rd_bytes": 10, "wr_bytes": 20, "rd_operations": 1, "wr_operations": 2}, "parent": {"stats": {"rd_bytes": 99}}},
            {"stats": {"rd_bytes": 1, "wr_bytes": 2, "rd_operations": 3, "wr_operations": 4}},
        ]);
        assert_eq!(block_stats(&stats), Some(BlockStats { read_bytes: 11, write_bytes: 22, operations: 10 }));
        assert_eq!(block_stats(&json!([{"stats": {}}])), None);
        assert_eq!(block_stats(&json!({})), None);
        let blocks =
            json!([{"qdev": "/machine/peripheral/vd0/virtio-backend", "inserted": {"bps_wr": 5}}, {"device": "cd"}, 7]);
        let expected = GuestDisk { device: "/machine/peripheral/vd0/virtio-backend".into(), throttle: [0, 5, 0, 0] };
        assert_eq!(disks(&blocks), [expected]);
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "(\\{|\\}|\"return\"|\"error\"|\"QMP\"|:|,|\\[|\\]|[a-z0-9 ]){0,60}") {
            if let Ok(Line::Answer(answer)) = parse_line(line.as_bytes()) {
                _ = block_stats(&answer);
                _ = disks(&answer);
            }
        }
    }
}
