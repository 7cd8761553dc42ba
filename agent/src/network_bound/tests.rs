//! The ceiling on a real link: an echo beside a flood. The link is a pair of virtual interfaces shaped to 100 Mbit/s,
//! with the peers in a network namespace.

use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};

use gleaner_types::command::{Desired, Outcome, Quota, Target, Version};
use gleaner_types::time::Timestamp;

use super::*;
use crate::act::tests::scene::{Scene, eventually};
use crate::act::{ActSettings, Actor};
use crate::bpf::tests::{Group, programs};

const MBIT: f64 = 100.0;
/// Where the other ends listen.
const ECHO: u16 = 7_001;
const SINK: u16 = 7_002;
const SOURCE: u16 = 7_003;
/// Says to a process of this file's tests what it should be; without it they end at once.
const ROLE: &str = "GLEANER_TEST_NETWORK_ROLE";

fn run(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("`{command}`: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("`{command}`: {}", error.trim())) }
}

/// This test program as another process, in a role.
fn program(test: &str, role: &str, before: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<std::ffi::OsString> = before.iter().map(Into::into).collect();
    words.push(exe.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["--exact", &format!("network_bound::tests::{test}"), "--nocapture"]);
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The link and its other end.
struct Bed {
    name: String,
    host: String,
    peer: String,
    /// With its output: after a minute the harness says there that the test still runs, and would end with nobody to read it.
    _ends: Option<(Running, Lines<BufReader<ChildStdout>>)>,
}

impl Bed {
    /// `None`, with a line that says why, where it cannot be made.
    fn open(test: &str) -> Option<Self> {
        let id = std::process::id();
        let (name, host) = (format!("gleaner-test-{id}"), format!("glh{id}"));
        let net = format!("198.18.{}", id % 250);
        let mut bed = Self { peer: format!("{net}.2"), name, host, _ends: None };
        let made = bed.make(&net);
        made.inspect_err(|why| gleaner_test_support::skipped!("{test}: no network namespace can be made here: {why}"))
            .ok()?;
        Some(bed)
    }

    fn make(&mut self, net: &str) -> Result<(), String> {
        let (name, host) = (&self.name, &self.host);
        let shape = format!("root tbf rate {MBIT}mbit burst 16kb limit 150kb");
        run(&format!("ip netns add {name}"))?;
        run(&format!("ip link add {host} type veth peer name peer netns {name}"))?;
        run(&format!("ip addr add {net}.1/30 dev {host}"))?;
        run(&format!("ip link set {host} up"))?;
        run(&format!("ip -n {name} addr add {net}.2/30 dev peer"))?;
        run(&format!("ip -n {name} link set peer up"))?;
        run(&format!("tc qdisc add dev {host} {shape}"))?;
        run(&format!("ip netns exec {name} tc qdisc add dev peer {shape}"))?;
        let mut ends = program("other_ends", &self.peer, &["ip", "netns", "exec", name]).spawn().unwrap();
        let mut lines = BufReader::new(ends.stdout.take().unwrap()).lines();
        let listening = lines.any(|line| line.is_ok_and(|line| line.contains("listening")));
        self._ends = Some((Running(ends), lines));
        if listening { Ok(()) } else { Err("the other ends did not start".to_owned()) }
    }

    fn choice(&self) -> LinkChoice {
        LinkChoice { names: vec![self.host.clone()], capacity: Some(of_mbit(MBIT)) }
    }

    /// Megabits per second that crossed the link within a second, both directions.
    fn rate(&self) -> f64 {
        let read = |file: &str| -> f64 {
            let path = format!("/sys/class/net/{}/statistics/{file}", self.host);
            std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
        };
        let bytes = || read("tx_bytes") + read("rx_bytes");
        let (start, before) = (Instant::now(), bytes());
        thread::sleep(Duration::from_secs(1));
        (bytes() - before) / start.elapsed().as_secs_f64() / 125_000.0
    }

    /// Median of a round trip, over as many as there are in a time.
    fn echo(&self, within: Duration) -> Duration {
        let mut stream = TcpStream::connect((self.peer.as_str(), ECHO)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (start, mut buffer, mut trips) = (Instant::now(), [7; 512], Vec::new());
        while start.elapsed() < within || trips.len() < 20 {
            let sent = Instant::now();
            stream.write_all(&buffer).unwrap();
            stream.read_exact(&mut buffer).unwrap();
            trips.push(sent.elapsed());
        }
        trips.sort();
        trips[trips.len() / 2]
    }

    /// A flood from a cgroup.
    fn flood(&self, group: &Group, how: &str) -> Running {
        let mut child = program("flood", &format!("{how} {}", self.peer), &[]).spawn().unwrap();
        std::fs::write(group.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        // Only now does it make a socket.
        drop(child.stdin.take());
        Running(child)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self._ends = None;
        _ = run(&format!("ip link del {}", self.host));
        _ = run(&format!("ip netns del {}", self.name));
    }
}

/// Not a test of its own: what the bed's other end runs. Ends with its standard input.
#[test]
fn other_ends() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let address = address.as_str();
    let serve = |port: u16, with: fn(TcpStream) -> io::Result<()>| {
        let listener = TcpListener::bind((address, port)).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || with(stream));
            }
        });
    };
    serve(ECHO, |mut stream| {
        stream.set_nodelay(true)?;
        let mut buffer = [0; 512];
        loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
    });
    serve(SINK, |mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    serve(SOURCE, |mut stream| {
        let buffer = [0; 65_536];
        loop {
            stream.write_all(&buffer)?;
        }
    });
    let datagrams = UdpSocket::bind((address, SINK)).unwrap();
    thread::spawn(move || while datagrams.recv(&mut [0; 2_000]).is_ok() {});
    println!("listening");
    _ = io::stdin().lines().count();
}

/// Not a test of its own: as much traffic as the link takes and more.
#[test]
fn flood() {
    let Ok(role) = std::env::var(ROLE) else { return };
    _ = io::stdin().lines().count();
    // The test is about the network, not about the CPU.
    _ = rustix::process::setpriority_process(None, 19);
    let (how, peer) = role.split_once(' ').unwrap();
    let mut buffer = [0; 65_536];
    // A connection that lost nearly everything waits up to minutes before it sends again: a flood opens a new one.
    let connect = |port: u16| {
        let second = Duration::from_secs(1);
        let stream = TcpStream::connect_timeout(&format!("{peer}:{port}").parse().unwrap(), second).ok()?;
        stream.set_read_timeout(Some(second)).ok()?;
        stream.set_write_timeout(Some(second)).ok()?;
        Some((stream, Instant::now() + 3 * second))
    };
    match how {
        "tcp" => loop {
            let Some((mut stream, until)) = connect(SINK) else { continue };
            while Instant::now() < until && stream.write_all(&buffer).is_ok() {}
        },
        "download" => loop {
            let Some((mut stream, until)) = connect(SOURCE) else { continue };
            while Instant::now() < until && stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
        },
        _ => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((peer, SINK)).unwrap();
            loop {
                for _ in 0..40 {
                    // A full queue is what it is for.
                    _ = socket.send(&buffer[..1_400]);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn an_echo_beside_a_flood() {
    const TEST: &str = "an_echo_beside_a_flood";
    if !gleaner_test_support::beds::wanted(TEST) {
        return;
    }
    if gleaner_test_support::lab::inside() {
        gleaner_test_support::skipped!("{TEST}: no flood fills a link under emulation; it runs on the machine itself");
        return;
    }
    let Some(group) = Group::open(TEST) else { return };
    let Some(bed) = Bed::open(TEST) else { return };
    let second = Duration::from_secs(1);
    let link = of_mbit(MBIT).per_sec();
    let alone = bed.echo(second);
    for how in ["tcp", "udp", "download"] {
        let flood = bed.flood(&group, how);
        eventually("the flood", || bed.rate() > 0.7 * MBIT);
        let mut beside = Duration::ZERO;
        eventually("harm by the flood", || {
            beside = bed.echo(second);
            beside > 4 * alone
        });

        let bound = NetworkBound::start(Path::new("/sys"), &bed.choice(), group.0.clone(), || true).unwrap();
        let ceiling = || {
            let Directions { sent, received } = bound.status().ceiling;
            sent.max(received).per_sec() / link
        };
        // What the flood had queued is gone, and the echo is seen.
        bed.echo(second);
        let held = bed.echo(2 * second);
        let low = ceiling();

        // Nobody uses the link.
        eventually("a wide ceiling", || ceiling() > 0.7);
        let mut wide = 0.0;
        eventually("use of it", || {
            wide = bed.rate();
            wide > 0.4 * MBIT
        });
        // An echo that begins beside it is found.
        let mut began = Duration::ZERO;
        eventually("a low ceiling", || {
            let median = bed.echo(second / 2);
            if began.is_zero() {
                began = median;
            }
            ceiling() < 0.1
        });
        let again = bed.echo(second);
        assert!(!bound.status().failing, "{:?}", bound.status());
        drop(bound);
        eventually("the flood without a ceiling", || bed.rate() > 0.7 * MBIT);
        drop(flood);
        eprintln!(
            "{how}: median echo alone {alone:?}, beside the flood {beside:?}, held {held:?} (ceiling {:.0} % of the link), \
             begun under a wide ceiling ({wide:.0} of {MBIT} Mbit/s used) {began:?}, then {again:?}",
            low * 100.0
        );
        assert!(low < 0.1, "{how}: the ceiling beside the echo is {low} of the link");
        assert!(3 * held < beside && 3 * again < beside, "{how}: {held:?} and {again:?} of {beside:?}");
    }
}

#[test]
fn an_agents_volunteer_is_held_until_it_is_gone() {
    const TEST: &str = "an_agents_volunteer_is_held_until_it_is_gone";
    let Some(_bpf_works) = Group::open(TEST) else { return };
    let Some(scene) = Scene::open(TEST) else { return };
    // Every machine has the loopback.
    let links = |name: &str| LinkChoice { names: vec![name.to_owned()], capacity: Some(of_mbit(MBIT)) };
    let settings = |name| ActSettings { links: links(name), ..scene.settings() };
    let without = Actor::open(settings("missing0"), &scene.hierarchies).unwrap().0;
    let weaknesses = without.levers().weaknesses.join("\n");
    assert!(weaknesses.contains("has no ceiling") && weaknesses.contains("missing0"), "{weaknesses}");
    assert_eq!(without.network_status(), None);
    drop(without);

    let mut actor = Actor::open(settings("lo"), &scene.hierarchies).unwrap().0;
    let weaknesses = actor.levers().weaknesses.join("\n");
    assert!(!weaknesses.contains("network"), "{weaknesses}");
    // Latent, with the least ceiling: 1 % of 100 Mbit/s.
    let sent = |actor: &Actor| actor.network_status().unwrap().ceiling.sent.per_sec();
    eventually("the first sample", || sent(&actor) > 0.0);
    assert!((sent(&actor) - 125_000.0).abs() < 1.0, "{:?}", actor.network_status());
    let group = cgroup_of(actor.volunteer_kind(), actor.volunteer_cgroups(), &scene.hierarchies).unwrap();
    assert_eq!(programs(&group), (1, 1));
    let run = gleaner_types::command::Command {
        target: Target::Volunteer,
        version: Version { epoch: 1, number: 1 },
        lease_ms: 60_000,
        desired: Desired::Run { cap: Quota::Unlimited },
    };
    let outcome = actor.apply(&run, Timestamp(1_000_000)).outcome;
    assert!(matches!(outcome, Outcome::Applied { .. }), "{outcome:?}");
    eventually("the ceiling opens", || sent(&actor) > 126_000.0);
    assert!(actor.restore_all().failed.is_empty());
    assert!(!group.exists() && actor.network_status().is_none());
}

#[test]
fn without_counters_the_ceiling_is_the_least() {
    let Some(group) = Group::open("without_counters_the_ceiling_is_the_least") else { return };
    let sys = tempfile::tempdir().unwrap();
    let folder = sys.path().join("class/net/eth0");
    std::fs::create_dir_all(folder.join("statistics")).unwrap();
    std::fs::create_dir(folder.join("device")).unwrap();
    let write = |file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
    write("carrier", "1\n");
    write("speed", "100\n");
    write("statistics/rx_bytes", "0\n");
    write("statistics/tx_bytes", "0\n");
    let bound = NetworkBound::start(sys.path(), &LinkChoice::default(), group.0.clone(), || true).unwrap();
    let percent = || bound.status().ceiling.sent.per_sec() / of_mbit(100.0).per_sec() * 100.0;
    eventually("growth", || percent() > 5.0);
    write("statistics/tx_bytes", "nonsense\n");
    eventually("the least", || bound.status().failing && (percent() - 1.0).abs() < 1e-6);
    eventually("its event", || {
        bound.take_events().iter().any(|event| matches!(event, Event::SensorChanged { absent: Some(_), .. }))
    });
    write("statistics/tx_bytes", "0\n");
    eventually("growth again", || !bound.status().failing && percent() > 5.0);
}

#[test]
fn a_missing_ceiling_is_reported() {
    let both = Hierarchies { v2: Some("/cg".into()), ..Hierarchies::default() };
    let neither = Hierarchies::default();
    let of = |kind, dirs: &[&str], hierarchies| {
        let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
        cgroup_of(&kind, &dirs, hierarchies)
    };
    let cgroup = || VolunteerKind::Cgroup { procs_files: Vec::new() };
    assert_eq!(of(cgroup(), &["/cpu/v", "/cg/v"], &both).unwrap(), PathBuf::from("/cg/v"));
    assert!(matches!(of(cgroup(), &["/cpu/v"], &both), Err(NetworkBoundError::OnVersion1)));
    let unmounted = of(cgroup(), &["/cpu/v"], &neither).unwrap_err();
    assert!(unmounted.to_string().contains("mount -t cgroup2"), "with what to do: {unmounted}");
    let guest = VolunteerKind::Guest { name: "g".to_owned() };
    assert!(matches!(of(guest, &["/cg/v"], &both), Err(NetworkBoundError::NotInCgroup)));
    let groups = VolunteerKind::ProcessGroups { registry: String::new() };
    assert!(matches!(of(groups, &[], &both), Err(NetworkBoundError::NotInCgroup)));
}

/// Not a test of its own: a process that holds a tap open. Ends with its standard input.
#[test]
fn holds_a_tap() {
    let Ok(name) = std::env::var(ROLE) else { return };
    let Ok(_tap) = crate::sense::claims_tests::open_tap(&name) else { return };
    println!("open");
    _ = io::stdin().lines().count();
}

#[test]
fn a_guest_whose_tap_has_somebody_elses_queue_is_told_as_not_held() {
    const TEST: &str = "a_guest_whose_tap_has_somebody_elses_queue_is_told_as_not_held";
    let name = format!("glq{}", std::process::id() % 1_000_000);
    let mut child = program("holds_a_tap", &name, &[]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = i32::try_from(child.id()).unwrap();
    let _guest = Running(child);
    // It ends without that line where it may have no tap.
    let is_open = lines.any(|line| line.is_ok_and(|line| line.contains("open")));
    let foreign = format!("tc qdisc add dev {name} root handle 1: tbf rate 1mbit burst 10kb latency 50ms");
    if !is_open || netlink::probe(Direction::Receive).is_err() || run(&foreign).is_err() {
        gleaner_test_support::skipped!("{TEST}: no tap, or no queue, can be made here");
        return;
    }
    let found = FoundLevers::default();
    let guest = GuestNetwork::of(&crate::roots::Roots::default(), pid).unwrap();
    let choice = LinkChoice { names: vec!["lo".to_owned()], capacity: Some(of_mbit(MBIT)) };
    let sys = Path::new("/sys");
    // Not by what first tries both directions: the one that somebody else has will do.
    let limiter = Limiter::Interfaces(Box::new(Interfaces::new(sys, Whose::Guest(guest), found.clone())));
    let bound = NetworkBound::start_with(Holder::open(sys, &choice, limiter).unwrap(), || true).unwrap();
    let is_told = || bound.lacking().is_some_and(|why| why.contains(&name));
    assert!(!is_told(), "nothing is set before the ledger has it");
    let records = found.records();
    assert_eq!(records.len(), 2);
    found.was_recorded(&records);
    eventually("a reason", is_told);
    if try_queues().is_err() {
        gleaner_test_support::skipped!("{TEST}: no policing can be made here, so that it stays so");
        return;
    }
    run(&format!("tc qdisc del dev {name} root")).unwrap();
    eventually("a ceiling", || !is_told());
}

#[test]
fn a_host_without_queues_has_no_ceiling_on_domains() {
    // A thread that may change no network stands for a kernel without such queues.
    let start = || {
        let sets = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let links = LinkChoice { names: vec!["lo".to_owned()], capacity: Some(of_mbit(MBIT)) };
        NetworkBound::start_on_domains(Path::new("/sys"), &links, FoundLevers::default(), || true).map(drop)
    };
    let refused = thread::spawn(start).join().unwrap();
    assert!(matches!(refused, Err(NetworkBoundError::Queues(_))), "{refused:?}");
}
