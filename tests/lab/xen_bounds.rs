//! What bounds the volunteer's Xen domains besides CPU, on a real control domain booted under software emulation, with Linux
//! guests that have balloons: their memory grows into what is free, and comes back when the foreground may take it. An HVM guest
//! is in `xen_hvm.rs`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gleaner_agent::act::{ActSettings, Actor};
use gleaner_agent::network_bound::LinkChoice;
use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_test_support::bench::Running;
use gleaner_test_support::lab;
use gleaner_types::command::{Desired, Quota};
use gleaner_types::event::Event;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, Fraction};

use crate::guests::{PATIENCE, agent, sh, until};
use crate::xen::run;
use crate::xen_foreground::its_traffic_is_limited_and_nobody_elses;
use crate::xen_volunteer::{Hypervisor, open, order, uuid};

/// Set inside a host that was booted for these tests.
const BOUNDS: &str = "GLEANER_LAB_BOUNDS";
/// Set for the process that holds a volunteer until it is killed.
const HOLDS: &str = "GLEANER_LAB_HOLDS_MEMORY";
const FLOOR_MIB: f64 = 96.0;
const FOUND_MIB: f64 = 128.0;
const ROUNDS: usize = 10;
/// Within so many ms the volunteer gives memory back; on a quiet machine in some 600.
const GIVES_BACK_MS: f64 = 5_000.0;
pub(crate) const RUN: Desired = Desired::Run { cap: Quota::Unlimited };

/// The hypervisor's memory and a domain's, in MiB.
pub(crate) struct Memory<'a>(pub(crate) &'a mut Hypervisor);

fn mib(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap() / f64::from(1 << 20)
}

impl Memory<'_> {
    fn free(&mut self) -> f64 {
        mib(&self.0.ask(r#"{"memory":{}}"#)["memory"]["free_bytes"])
    }

    pub(crate) fn of(&mut self, uuid: &str) -> f64 {
        mib(&self.0.ask(&format!(r#"{{"target":{{"uuid":"{uuid}"}}}}"#))["target"]["memory_bytes"])
    }

    /// Target and the hypervisor's bound.
    pub(crate) fn bounds(&mut self, uuid: &str) -> (f64, f64) {
        let target = mib(&self.0.ask(&format!(r#"{{"target":{{"uuid":"{uuid}"}}}}"#))["target"]["memory_target_bytes"]);
        (target, mib(&self.0.state(uuid)["memory_most_bytes"]))
    }
}

fn linux(name: &str, memory: u32, most: u32) -> String {
    linux_of("pv", name, memory, most)
}

fn linux_of(kind: &str, name: &str, memory: u32, most: u32) -> String {
    sh(&format!("TYPE={kind} MEMORY={memory} MAXMEM={most} mkdom {name} linux"));
    until("it has booted", || sh(&format!("grep -c 'up after' /var/log/xen/console/guest-{name}.log || true")) != "0");
    uuid(name)
}

pub(crate) fn settings(domains: &[&str]) -> ActSettings {
    let floor = Some(Bytes::from_mib(96));
    let memory_bound = MemoryBoundSettings { floor, growth_per_s: Fraction::clamped(0.2) };
    ActSettings { memory_bound, ..crate::xen_volunteer::settings(domains) }
}

/// What the agent does once a second. Answers its events.
pub(crate) fn tick(actor: &mut Actor) -> Vec<Event> {
    actor.tick(Timestamp(1_000_000))
}

/// Waits for something while the agent goes on. Answers how long it took, in ms.
pub(crate) fn ticking(actor: &mut Actor, what: &str, mut condition: impl FnMut() -> bool) -> f64 {
    let (start, mut ticked) = (Instant::now(), Instant::now());
    while !condition() {
        if ticked.elapsed() > Duration::from_millis(500) {
            for event in tick(actor) {
                println!("  {event:?}");
            }
            ticked = Instant::now();
        }
        assert!(start.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed().as_secs_f64() * 1e3
}

fn sorted(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(" ")
}

fn grows_and_gives_back(xen: &mut Hypervisor, volunteer: &str, front: &str) {
    let memory = &mut Memory(xen);
    let found = memory.bounds(volunteer);
    let mut actor = open(settings(&["vol"]));
    order(&mut actor, 1, RUN);
    let free_before = memory.free();
    let grown = |memory: &mut Memory<'_>| memory.free() < FLOOR_MIB + 12.0;
    let took = ticking(&mut actor, "it has grown into what is free", || grown(memory));
    let (had, free) = (memory.of(volunteer), memory.free());
    println!("of {free_before:.0} MiB free the volunteer took all but {free:.0} in {took:.0} ms, and has {had:.0} MiB");
    assert!(had > FOUND_MIB + 100.0 && free > FLOOR_MIB - 8.0, "{had} {free}");

    let [mut lowered, mut gave, mut there] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let (had, before) = (memory.of(volunteer), memory.bounds(volunteer).0);
        let start = Instant::now();
        sh("xl mem-set front 400");
        let asked = start.elapsed().as_secs_f64() * 1e3;
        lowered.push(asked + ticking(&mut actor, "the target falls", || memory.bounds(volunteer).0 < before - 100.0));
        // All that the foreground may take, but what was free beyond the floor.
        ticking(&mut actor, "the volunteer gives back", || memory.of(volunteer) < had - 400.0 + FOUND_MIB + 13.0);
        gave.push(start.elapsed().as_secs_f64() * 1e3);
        ticking(&mut actor, "the foreground has its memory", || memory.of(front) > 399.0);
        there.push(start.elapsed().as_secs_f64() * 1e3);
        ticking(&mut actor, "the floor holds", || memory.free() > FLOOR_MIB - 8.0);
        sh("xl mem-set front 128");
        ticking(&mut actor, "it grows again", || memory.of(front) < 130.0 && grown(memory));
    }
    println!(
        "ms from `xl mem-set` of a foreground domain by 272 MiB, of which none is free beyond the floor, until the volunteer's target \
         falls, sorted: {}; until it has given the memory back: {}; until the foreground has it: {}",
        sorted(lowered.clone()),
        sorted(gave.clone()),
        sorted(there)
    );
    assert!(gave.iter().all(|ms| *ms < GIVES_BACK_MS), "{gave:?}");

    let start = Instant::now();
    sh("MEMORY=64 mkdom built idle");
    println!("a domain of 64 MiB, less than the floor, is built beside it in {} ms", start.elapsed().as_millis());
    let took = ticking(&mut actor, "the floor is free again", || memory.free() > FLOOR_MIB - 4.0);
    println!("and the floor is free again {took:.0} ms later");

    // One larger than the floor finds room once the volunteer is stopped.
    let start = Instant::now();
    order(&mut actor, 2, Desired::Stop);
    ticking(&mut actor, "stopped it gives back", || memory.of(volunteer) < FOUND_MIB + 2.0);
    println!(
        "a volunteer that is stopped has given back all but what it was found with {} ms later",
        start.elapsed().as_millis()
    );
    ticking(&mut actor, "and is paused", || memory.0.is_paused(volunteer));
    sh("MEMORY=400 mkdom large idle && xl destroy large && xl destroy built");
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    assert_eq!(memory.bounds(volunteer), found);
}

fn what_somebody_else_sets_is_left(xen: &mut Hypervisor, volunteer: &str) {
    let memory = &mut Memory(xen);
    let mut actor = open(settings(&["vol"]));
    order(&mut actor, 1, RUN);
    ticking(&mut actor, "it has grown", || memory.of(volunteer) > FOUND_MIB + 50.0);
    sh("xl mem-set vol 200");
    let start = Instant::now();
    while !tick(&mut actor).iter().any(|event| format!("{event:?}").contains("memory")) {
        assert!(start.elapsed() < PATIENCE, "a foreign target is told");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(3));
    tick(&mut actor);
    let left = memory.bounds(volunteer);
    assert!((left.0 - 200.0).abs() < 0.1, "and left: {left:?}");
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && !report.foreign.is_empty(), "{report:?}");
    let after = memory.bounds(volunteer);
    assert!((after.0 - 200.0).abs() < 0.1, "{after:?}, before restoring {left:?}: {report:?}");
    sh("xl mem-set vol 128");
    until("it is as it was", || memory.of(volunteer) < FOUND_MIB + 1.0);
}

/// The guest of one page has no balloon.
fn one_without_a_balloon_is_told(xen: &mut Hypervisor) {
    sh("MEMORY=48 mkdom mute burn");
    let mute = uuid("mute");
    let mut actor = open(ActSettings { volunteer_memory_least: Some(Bytes::from_mib(16)), ..settings(&["mute"]) });
    let (start, mut told) = (Instant::now(), None);
    while told.is_none() {
        told = tick(&mut actor).into_iter().find_map(|event| match event {
            Event::SensorChanged { absent: Some(absent), .. } => Some(absent.detail().into_owned()),
            _ => None,
        });
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(100));
    }
    let told = told.unwrap();
    println!("after {} ms: {told}", start.elapsed().as_millis());
    assert!(told.contains("does not give memory back"), "{told}");
    ticking(&mut actor, "it is paused", || xen.is_paused(&mute));
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!(Memory(xen).bounds(&mute), (48.0, 49.0));
    sh("xl destroy mute");
}

fn several_share(xen: &mut Hypervisor, volunteer: &str) {
    // Of the other kind: PVH.
    let second = linux_of("pvh", "second", 128, 200);
    let memory = &mut Memory(xen);
    let mut actor = open(settings(&["vol", "second"]));
    order(&mut actor, 1, RUN);
    ticking(&mut actor, "they have grown", || memory.of(&second) > 199.0 && memory.free() < FLOOR_MIB + 12.0);
    println!(
        "of two the one has {:.0} MiB, the other all that it may have, {:.0}",
        memory.of(volunteer),
        memory.of(&second)
    );
    assert!(memory.of(volunteer) > 200.0);
    assert!(actor.restore_all().failed.is_empty());
    sh("xl destroy second");
    until("it gives back what it was not found with", || memory.of(volunteer) < FOUND_MIB + 1.0);
}

/// A process that holds the volunteer as an agent does, until it is killed.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

pub(crate) fn killed_it_leaves_what_restore_puts_back(xen: &mut Hypervisor, volunteer: &str) {
    let memory = &mut Memory(xen);
    let found = memory.bounds(volunteer);
    let mut command = Program::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "xen_bounds::holds_memory_until_it_is_killed"]);
    let mut holder = Holder(command.env(HOLDS, "vol").stdout(Stdio::null()).spawn().unwrap());
    until("it has grown", || memory.of(volunteer) > FOUND_MIB + 50.0 && memory.bounds(volunteer).0 > FOUND_MIB + 50.0);
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    until("its helper has paused it", || memory.0.is_paused(volunteer));
    let left = memory.bounds(volunteer);
    assert_ne!(left, found);
    println!("{}", run(&["restore"]).trim());
    println!("target and bound in MiB: found {found:?}, left {left:?}");
    assert_eq!(memory.bounds(volunteer), found);
    let start = Instant::now();
    until("it gives back", || memory.of(volunteer) < FOUND_MIB + 1.0);
    println!("its memory is back {} ms after `restore`", start.elapsed().as_millis());
    assert!(!memory.0.is_paused(volunteer));
}

/// Bytes per second that a domain sends to this one, and has from it, over some seconds.
pub(crate) struct Peer {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl Peer {
    /// Serves whoever connects, for ever: port 5000 takes, 5001 gives.
    fn start() -> Self {
        let peer = Self { sent: Arc::default(), received: Arc::default() };
        let (sent, received) = (Arc::clone(&peer.sent), Arc::clone(&peer.received));
        std::thread::spawn(move || {
            for stream in TcpListener::bind("10.9.0.1:5000").unwrap().incoming() {
                let (mut stream, mut buffer) = (stream.unwrap(), vec![0; 65_536]);
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    sent.fetch_add(length as u64, Ordering::Relaxed);
                }
            }
        });
        std::thread::spawn(move || {
            for stream in TcpListener::bind("10.9.0.1:5001").unwrap().incoming() {
                let (mut stream, buffer) = (stream.unwrap(), vec![0; 65_536]);
                while let Ok(length) = stream.write(&buffer) {
                    received.fetch_add(length as u64, Ordering::Relaxed);
                }
            }
        });
        peer
    }

    /// What the domain sends and receives, in MB/s.
    pub(crate) fn rates(&self, over: Duration) -> [f64; 2] {
        let count = || [&self.sent, &self.received].map(|bytes| bytes.load(Ordering::Relaxed) as f64);
        let (start, before) = (Instant::now(), count());
        std::thread::sleep(over);
        let (now, seconds) = (count(), start.elapsed().as_secs_f64());
        [0, 1].map(|way| (now[way] - before[way]) / seconds / 1e6)
    }
}

/// KiB/s that a domain reads from its disk.
pub(crate) fn reads(id: &str, over: Duration) -> f64 {
    let file = format!("/sys/bus/xen-backend/devices/vbd-{id}-51712/statistics/rd_sect");
    let sectors = || std::fs::read_to_string(&file).unwrap().trim().parse::<f64>().unwrap();
    let (start, before) = (Instant::now(), sectors());
    std::thread::sleep(over);
    (sectors() - before) / 2.0 / start.elapsed().as_secs_f64()
}

/// What it may read of each disk, in KiB/s; none without a ceiling.
fn read_ceiling(group: &Path) -> Option<f64> {
    let line = std::fs::read_to_string(group.join("io.max")).unwrap();
    let bytes = line.split_whitespace().find_map(|word| word.strip_prefix("rbps=")?.parse::<f64>().ok());
    bytes.map(|bytes| bytes / 1024.0)
}

/// Beside others that read the same disk it has Gleaner's own ceiling, which bites, and without them it reads as before.
fn its_disk_gives_way_and_comes_back(actor: &mut Actor, id: &str, group: &Path) {
    let second = |actor: &mut Actor| {
        tick(actor);
        let rate = reads(id, Duration::from_secs(1));
        (rate, read_ceiling(group))
    };
    let free = (0..3).map(|_| second(actor).0).sum::<f64>() / 3.0;
    let reader = Running::start({
        let mut command = Program::new("sh");
        command
            .args(["-c", "while :; do dd if=/dev/loop0 of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null; done"]);
        command
    });
    let deadline = Instant::now() + PATIENCE;
    let ceiling = loop {
        match second(actor) {
            (rate, Some(ceiling)) if rate < 1.1 * ceiling && ceiling < 0.6 * free => break ceiling,
            seen => assert!(Instant::now() < deadline, "KiB/s and its ceiling {seen:?}, free {free:.0}"),
        }
    };
    let beside: Vec<f64> = (0..5).map(|_| second(actor).0).collect();
    drop(reader);
    println!(
        "KiB/s that it reads: free {free:.0}, beside a reader under Gleaner's ceiling of {ceiling:.0} {beside:.0?}"
    );
    assert!(beside.iter().all(|rate| *rate < 1.2 * ceiling), "{beside:?}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (rate, _) = second(actor);
        if rate > 2.0 * ceiling {
            println!("KiB/s that it reads when nobody else does: {rate:.0}");
            return;
        }
        assert!(Instant::now() < deadline, "{rate} KiB/s");
    }
}

/// As if another domain served one of its interfaces: the toolstack says so.
fn an_interface_elsewhere_is_told(actor: &mut Actor, id: &str) {
    let place = format!("/libxl/{id}/device/vif/9");
    let told = |actor: &mut Actor, lacking: bool| {
        let start = Instant::now();
        loop {
            let of_this = |event: Event| match event {
                Event::SensorChanged { sensor, absent } if sensor == "network bound of the volunteer's domains" => {
                    Some(absent.map(|absent| absent.detail().into_owned()))
                }
                _ => None,
            };
            if let Some(why) = tick(actor).into_iter().find_map(of_this) {
                println!("an interface elsewhere: {why:?}");
                assert_eq!(why.is_some(), lacking);
                return;
            }
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    sh(&format!("xenstore-write {place}/backend /local/domain/7/backend/vif/{id}/9"));
    told(actor, true);
    sh(&format!("xenstore-rm {place}"));
    told(actor, false);
}

#[test]
fn xen_bounds_of_traffic_from_inside() {
    if !inside() {
        return;
    }
    let script = "#!/bin/sh\n\
        (while :; do nc 10.9.0.1 5000 </dev/zero; sleep 1; done) &\n\
        (while :; do nc 10.9.0.1 5001 >/dev/null; sleep 1; done) &\n\
        while :; do dd if=/dev/xvda of=/dev/null bs=64k; echo 3 >/proc/sys/vm/drop_caches; done\n";
    std::fs::write("/tmp/traffic.sh", script).unwrap();
    let peer = Peer::start();
    sh(
        "chmod +x /tmp/traffic.sh; dd if=/dev/zero of=/tmp/disk bs=1M count=48 && HOST=2 DISK=/tmp/disk mkdom busy linux /tmp/traffic.sh",
    );
    sh("mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup");
    let told = "the controller io is not switched on below the root of the cgroups";
    assert!(run(&["doctor"]).contains(told), "{}", run(&["doctor"]));
    sh("echo +io >/sys/fs/cgroup/cgroup.subtree_control");
    let id = sh("xl domid busy");
    until("it sends, receives and reads", || {
        peer.rates(Duration::from_secs(1)).iter().all(|rate| *rate > 0.5)
            && reads(&id, Duration::from_secs(1)) > 1_000.0
    });
    let doctor = || run(&["doctor"]);
    assert!(doctor().contains("io.max of what serves Xen domains' disks"), "{}", doctor());
    its_traffic_is_limited_and_nobody_elses(&peer, &id);
    let free = peer.rates(Duration::from_secs(5));
    let queues = || sh(&format!("tc qdisc show dev vif{id}.0"));
    let (queued, group) = (queues(), Path::new("/sys/fs/cgroup/gleaner-domains"));

    // 16 Mbit/s are 2 MB/s, of which a tenth stays free.
    let links = LinkChoice { names: vec!["guests".to_owned()], capacity: Some(BytesPerSec::clamped(2e6)) };
    let mut actor = open(ActSettings { links, disk_ceiling: true, ..settings(&["busy"]) });
    println!("{:#?}", actor.levers().weaknesses);
    order(&mut actor, 1, RUN);
    ticking(&mut actor, "its thread is in the group and its interface is held", || {
        queues().contains("tbf")
            && queues().contains("ingress")
            && !sh(&format!("cat {}/cgroup.procs", group.display())).is_empty()
    });
    std::thread::sleep(Duration::from_secs(5));
    let held = peer.rates(Duration::from_secs(10));
    println!("MB/s that the domain sends and receives: free {:.1?}, held on a link of 2 MB/s {held:.1?}", free);
    assert!(held.iter().zip(free).all(|(held, free)| *held < 2.0 && *held < 0.7 * free), "{held:?} {:?}", free);
    its_disk_gives_way_and_comes_back(&mut actor, &id, group);
    an_interface_elsewhere_is_told(&mut actor, &id);
    let report = actor.restore_all();
    println!("{report:?}");
    assert!(report.failed.is_empty(), "{report:?}");
    assert!(!group.exists(), "removed, and the thread is back at the root");
    assert_eq!(queues(), queued);
    until("its traffic is free again", || {
        peer.rates(Duration::from_secs(2)).iter().zip(held).all(|(now, held)| *now > 1.5 * held)
    });
    sh("xl destroy busy; umount /sys/fs/cgroup");
}

#[test]
fn holds_memory_until_it_is_killed() {
    let Ok(name) = std::env::var(HOLDS) else { return };
    let mut actor = open(settings(&[&name]));
    order(&mut actor, 1, RUN);
    loop {
        tick(&mut actor);
        std::thread::sleep(Duration::from_millis(500));
    }
}

pub(crate) fn inside() -> bool {
    lab::inside() && std::env::var_os(BOUNDS).is_some() && std::env::var_os(HOLDS).is_none()
}

#[test]
fn xen_bounds_of_memory_from_inside() {
    if !inside() {
        return;
    }
    let (volunteer, front) = (linux("vol", 128, 700), linux("front", 128, 400));
    let xen = &mut Hypervisor::open();
    grows_and_gives_back(xen, &volunteer, &front);
    what_somebody_else_sets_is_left(xen, &volunteer);
    killed_it_leaves_what_restore_puts_back(xen, &volunteer);
    one_without_a_balloon_is_told(xen);
    several_share(xen, &volunteer);
}

#[test]
fn xen_domains_that_are_the_volunteer_are_bounded() {
    const TEST: &str = "xen_domains_that_are_the_volunteer_are_bounded";
    if !gleaner_test_support::beds::wanted(TEST) || lab::inside() {
        return;
    }
    let _alone = lab::alone();
    let Some(images) = lab::xen_images(TEST) else { return };
    let helper = match lab::build_xen_helper() {
        Ok(helper) => helper,
        Err(why) => {
            gleaner_test_support::skipped!("{TEST}: {why}");
            return;
        }
    };
    let tests = lab::stripped("lab-tests", &std::env::current_exe().unwrap());
    let files = [lab::stripped("gleaner-agent", &agent()), tests, helper];
    let mut command = Program::new(lab::script("xen/host.sh"));
    command.args(["-d", "-T", "1500"]).arg(&images).arg(lab::script("xen/lab-bounds.sh")).args(&files);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, lab::quoted(&output));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
