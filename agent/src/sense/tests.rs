//! The sensor on fixture trees and on the real machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gleaner_types::report::WorkloadKind;
use serde_json::json;

use super::*;

struct Tree {
    folder: tempfile::TempDir,
    hierarchies: Hierarchies,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tree =
            Self { hierarchies: Hierarchies { v2: Some(folder.path().join("cg")), ..Hierarchies::default() }, folder };
        tree.write("proc/stat", "cpu 100 0 0 900 0 0 0 0\ncpu0 1\ncpu1 1\n");
        tree.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
        tree
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn guest(&self, pid: u32, name: &str, vcpu_ns: u64, other_ns: u64) {
        self.write(&format!("proc/{pid}/cmdline"), &format!("qemu-system-x86_64\0-name\0{name}\0"));
        self.write(&format!("proc/{pid}/status"), "Uid:\t0\t0\t0\t0\n");
        self.write(
            &format!("proc/{pid}/stat"),
            &format!("{pid} (x) S 1 {pid} 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {pid} 1 7 0"),
        );
        self.write(&format!("proc/{pid}/statm"), "9 3 0");
        self.write(&format!("proc/{pid}/task/{pid}/comm"), "qemu-system-x86\n");
        self.write(&format!("proc/{pid}/task/{pid}/schedstat"), &format!("{other_ns} 0 1\n"));
        self.write(&format!("proc/{pid}/task/{}/comm", pid + 1), "CPU 0/KVM\n");
        self.write(&format!("proc/{pid}/task/{}/schedstat", pid + 1), &format!("{vcpu_ns} 500000000 1\n"));
    }

    fn sensor(&self, globs: &[&str]) -> Sensor {
        let roots = Roots {
            proc: self.folder.path().join("proc"),
            sys: self.folder.path().join("sys"),
            root: self.folder.path().to_owned(),
        };
        let settings = SenseSettings {
            roots,
            foreground_cgroups: globs.iter().map(|glob| (*glob).to_owned()).collect(),
            qemu: true,
            monitors: false,
            counters: false,
            scan_period_s: 0.0,
        };
        Sensor::open(settings, &self.hierarchies, VolunteerTrace::None, &[]).unwrap()
    }
}

fn cpu(reading: &Reading<CoreShare>) -> f64 {
    reading.value().unwrap_or_else(|| panic!("{reading:?}")).percent()
}

fn kind(reading: &Reading<CoreShare>) -> AbsenceKind {
    match reading {
        Reading::Absent(absence) => absence.kind,
        Reading::Value(value) => panic!("{value}"),
    }
}

#[test]
fn a_guest_is_followed_from_its_coming_to_its_end() {
    let tree = Tree::new();
    let mut sensor = tree.sensor(&[]);
    let start = Instant::now();
    let at = |s: u64| start + Duration::from_secs(s);
    let first = sensor.sample(at(0));
    assert_eq!(first.workloads[0].kind, WorkloadKind::Remainder);

    tree.guest(100, "lab", 5_000_000_000, 1_000_000_000);
    let came = sensor.sample(at(1));
    assert!(matches!(&came.changes[..], [Event::WorkloadAppeared { workload, .. }] if workload.as_str() == "lab"));
    assert_eq!(kind(&came.workloads[0].cpu), AbsenceKind::NotYet);

    // Half a second of vCPU, a quarter of emulator time in one second.
    tree.guest(100, "lab", 5_500_000_000, 1_250_000_000);
    let ran = &sensor.sample(at(2)).workloads[0];
    assert_eq!((cpu(&ran.cpu_vcpu), cpu(&ran.cpu_emulator), cpu(&ran.cpu)), (50.0, 25.0, 75.0));

    tree.guest(100, "renamed", 5_500_000_000, 1_250_000_000);
    let renamed = sensor.sample(at(3));
    assert!(matches!(&renamed.changes[..], [Event::WorkloadRenamed { to, .. }] if to.as_str() == "renamed"));
    assert!(cpu(&renamed.workloads[0].cpu).abs() < 1e-9, "it is still the same guest");

    std::fs::remove_dir_all(tree.folder.path().join("proc/100")).unwrap();
    let gone = sensor.sample(at(4));
    assert!(matches!(&gone.changes[..], [Event::WorkloadVanished { .. }]), "{:?}", gone.changes);
    assert_eq!(gone.workloads[0].kind, WorkloadKind::Remainder);
}

/// On a busy control domain the first answer of the helper may be late, and whoever tries limits looks for four seconds.
#[test]
fn domains_are_found_once_the_hypervisor_answers_and_not_a_scan_later() {
    let tree = Tree::new();
    tree.write("proc/xen/capabilities", "control_d\n");
    let mut sensor = tree.sensor(&[]);
    sensor.set_scan_period(5.0);
    let start = Instant::now();
    let silent = sensor.sample_with(start, || Err(std::io::ErrorKind::TimedOut.into()));
    assert_eq!(silent.workloads[0].kind, WorkloadKind::Remainder);
    assert!(sensor.domains_unknown().unwrap().contains("the hypervisor cannot be asked"));
    let busy = json!({ "id": 7, "uuid": "u", "name": "busy", "control": false, "cpu_ns": 5, "memory_bytes": 8,
        "memory_most_bytes": 8, "paused": false });
    let domains = xen::parse_sample(&json!({ "sample": { "domains": [busy] } })).unwrap();
    let hypervisor = xen::Hypervisor { physical_cpus: 2, memory: xen::HostMemory::default(), domains };
    let answered = sensor.sample_with(start + Duration::from_secs(1), || Ok(hypervisor));
    assert_eq!(answered.workloads.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["busy"]);
    assert_eq!(sensor.domains_unknown(), None);
}

#[test]
fn a_guest_keeps_its_identifier_when_another_takes_its_name() {
    let tree = Tree::new();
    let mut sensor = tree.sensor(&[]);
    let start = Instant::now();
    tree.guest(100, "lab", 0, 0);
    sensor.sample(start);
    // Its process comes first in the order of keys.
    tree.guest(50, "lab", 0, 0);
    let both = sensor.sample(start + Duration::from_secs(1));
    assert!(
        matches!(&both.changes[..], [Event::WorkloadAppeared { workload, .. }] if workload.as_str() == "lab#2"),
        "{:?}",
        both.changes
    );
}

#[test]
fn a_counter_that_goes_back_and_an_odd_interval() {
    let tree = Tree::new();
    tree.write("cg/vm/cpu.stat", "usage_usec 9000000\n");
    let mut sensor = tree.sensor(&["vm"]);
    let start = Instant::now();
    sensor.sample(start);
    tree.write("cg/vm/cpu.stat", "usage_usec 1000000\n");
    let back = sensor.sample(start + Duration::from_secs(1));
    assert_eq!(kind(&back.workloads[0].cpu), AbsenceKind::WentBack);
    // The agent was suspended for ten seconds: the rate is over ten seconds.
    tree.write("cg/vm/cpu.stat", "usage_usec 6000000\n");
    let late = sensor.sample(start + Duration::from_secs(11));
    assert!((late.interval_s - 10.0).abs() < 1e-9);
    assert!((cpu(&late.workloads[0].cpu) - 50.0).abs() < 1e-9);
    // Two looks at once: the second repeats the first instead of dividing by nothing.
    let again = sensor.sample(start + Duration::from_secs(11) + Duration::from_micros(5));
    assert_eq!(again.workloads, late.workloads);
    // A malformed file is said to be one.
    tree.write("cg/vm/cpu.stat", "nonsense\n");
    let bad = sensor.sample(start + Duration::from_secs(12));
    assert_eq!(kind(&bad.workloads[0].cpu), AbsenceKind::Malformed);
}

#[test]
fn the_loss_and_return_of_a_sensor_are_reported_once() {
    let tree = Tree::new();
    let mut sensor = tree.sensor(&[]);
    let start = Instant::now();
    let changes = |observation: &Observation| -> Vec<(String, bool)> {
        let changes = |event: &Event| match event {
            Event::SensorChanged { sensor, absent } => Some((sensor.clone(), absent.is_some())),
            _ => None,
        };
        observation.changes.iter().filter_map(changes).collect()
    };
    assert!(changes(&sensor.sample(start)).contains(&("load".to_owned(), true)));
    assert!(changes(&sensor.sample(start + Duration::from_secs(1))).is_empty());
    tree.write("proc/loadavg", "0.5 0 0 1/1 1\n");
    assert_eq!(changes(&sensor.sample(start + Duration::from_secs(2))), [("load".to_owned(), false)]);
}

/// Ends a child process whatever happens.
struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn real_sensor(globs: &[&str], trace: VolunteerTrace) -> Sensor {
    let hierarchies = Hierarchies::detect(Path::new("/proc/self"), Path::new("/"));
    let settings = SenseSettings {
        roots: Roots::default(),
        foreground_cgroups: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        qemu: true,
        monitors: false,
        counters: true,
        scan_period_s: 0.0,
    };
    Sensor::open(settings, &hierarchies, trace, &[]).unwrap()
}

fn until(mut sensor: Sensor, what: &str, condition: impl Fn(&Observation) -> bool) -> (Sensor, Observation) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let observation = sensor.sample(Instant::now());
        if condition(&observation) {
            return (sensor, observation);
        }
        assert!(Instant::now() < deadline, "{what} not seen in 20 s: {observation:#?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A real cgroup with a process that burns a CPU.
#[test]
fn a_real_cgroup_is_measured() {
    let name = format!("gleaner-sense-{}", std::process::id());
    let hierarchies = Hierarchies::of_this_machine();
    let mount = hierarchies.v1.get("cpuacct").or(hierarchies.v2.as_ref()).cloned().unwrap_or_default();
    let group = mount.join(&name);
    if let Err(error) = std::fs::create_dir(&group) {
        gleaner_test_support::skipped!("no real cgroup to measure: {}: {error}", group.display());
        return;
    }
    let burner = Kill(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    std::fs::write(group.join("cgroup.procs"), burner.0.id().to_string()).unwrap();
    let sensor = real_sensor(&[&name], VolunteerTrace::Cgroup(name.clone().into()));
    let (_, observation) = until(sensor, "a burner's CPU", |observation| {
        observation.workloads.iter().any(|w| w.cpu.value().is_some_and(|cpu| cpu.percent() > 10.0))
    });
    drop(burner);
    for _ in 0..200 {
        if std::fs::remove_dir(&group).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!group.exists());
    let workload = observation.workloads.iter().find(|w| w.id.as_str() == name).unwrap();
    // The same cgroup as workload and as volunteer: two readers, one truth. A single process uses one CPU at most.
    assert!(cpu(&workload.cpu) < 110.0);
    assert!((cpu(&observation.volunteer_cpu) - cpu(&workload.cpu)).abs() < 10.0);
    assert_eq!(observation.volunteer_processes, Reading::Value(1));
    assert!(cpu(&observation.machine.cpu_busy) <= observation.machine.cpu_capacity.percent());
}

/// Ends all that is in a cgroup, and removes it.
struct Emptied(Vec<PathBuf>);

impl Drop for Emptied {
    fn drop(&mut self) {
        for folder in &self.0 {
            for _ in 0..200 {
                let inside = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                for process in inside.lines() {
                    _ = Command::new("kill").args(["-9", process]).status();
                }
                if std::fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn a_file_that_was_written_once_is_no_working_set_of_a_real_cgroup() {
    const TEST: &str = "a_file_that_was_written_once_is_no_working_set_of_a_real_cgroup";
    let (name, mib) = (format!("gleaner-cache-{}", std::process::id()), 1_u64 << 20);
    let hierarchies = Hierarchies::of_this_machine();
    let mount = |controller: &str| hierarchies.v1.get(controller).or(hierarchies.v2.as_ref());
    let folders: BTreeSet<PathBuf> =
        ["cpuacct", "memory"].into_iter().filter_map(mount).map(|mount| mount.join(&name)).collect();
    let mut group = Emptied(Vec::new());
    for folder in &folders {
        if let Err(error) = std::fs::create_dir(folder) {
            gleaner_test_support::skipped!("{TEST}: no real cgroup to measure: {}: {error}", folder.display());
            return;
        }
        group.0.push(folder.clone());
    }
    if !folders.iter().any(|folder| folder.join("memory.stat").exists()) {
        gleaner_test_support::skipped!("{TEST}: this hierarchy does not account memory");
        return;
    }
    // A file system in memory has no page cache.
    let disk = std::env::var_os("GLEANER_TEST_DISK").map(PathBuf::from);
    let disk = disk.unwrap_or_else(|| std::env::current_exe().unwrap().parent().unwrap().to_owned());
    let file = tempfile::NamedTempFile::new_in(disk).unwrap();
    let enter: String =
        folders.iter().map(|folder| format!("echo $$ >{}/cgroup.procs || exit 9\n", folder.display())).collect();
    let inside = |script: &str| Kill(Command::new("sh").args(["-c", &format!("{enter}{script}")]).spawn().unwrap());
    let _writer = inside(&format!(
        "dd if=/dev/zero of={} bs=1M count=48 conv=fsync 2>/dev/null; sleep 1000",
        file.path().display()
    ));
    let is = |observation: &Observation, least: u64, most: u64| {
        let workload = observation.workloads.iter().find(|workload| workload.id.as_str() == name);
        let working_set = workload.and_then(|workload| workload.memory.value()).map_or(0, |bytes| bytes.0);
        let charged = workload.and_then(|workload| observation.charged.get(&workload.id)).map_or(0, |bytes| bytes.0);
        charged > 40 * mib && working_set > least * mib && working_set < most * mib
    };
    let sensor = real_sensor(&[&name], VolunteerTrace::None);
    let (sensor, _) = until(sensor, "page cache alone", |observation| is(observation, 0, 20));
    let _hog = inside("exec dd if=/dev/zero of=/dev/null bs=48M 2>/dev/null");
    until(sensor, "memory in use", |observation| is(observation, 40, 80));
}

/// A real QEMU process under software emulation, without an image: its firmware burns CPU.
#[test]
fn a_real_qemu_guest_is_found_split_and_missed() {
    let started = Command::new("qemu-system-x86_64")
        .args(["-display", "none", "-accel", "tcg", "-m", "32", "-nodefaults", "-net", "none"])
        .args(["-name", "guest=sense-probe,debug-threads=on"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(guest) = started.map(Kill) else {
        gleaner_test_support::skipped!("no real guest to measure: qemu-system-x86_64 is not installed");
        return;
    };
    let found = |observation: &Observation| {
        observation.workloads.iter().find(|workload| workload.id.as_str() == "sense-probe").cloned()
    };
    let sensor = real_sensor(&[], VolunteerTrace::None);
    let (sensor, observation) = until(sensor, "the guest's vCPU", |observation| {
        found(observation).is_some_and(|guest| guest.cpu_vcpu.value().is_some_and(|cpu| cpu.percent() > 0.0))
    });
    let workload = found(&observation).unwrap();
    assert!(matches!(workload.kind, WorkloadKind::Qemu));
    let sum = cpu(&workload.cpu_vcpu) + cpu(&workload.cpu_emulator);
    assert!((sum - cpu(&workload.cpu)).abs() < 0.01);
    assert!(workload.memory.value().unwrap().0 > 1 << 20);

    drop(guest);
    let (_, gone) = until(sensor, "the guest's end", |observation| found(observation).is_none());
    assert!(gone.changes.iter().any(|event| matches!(event, Event::WorkloadVanished { .. })));
}

#[test]
fn process_groups_are_measured_by_their_registry() {
    use std::os::unix::process::CommandExt;
    let registry = tempfile::tempdir().unwrap();
    let burner = Kill(Command::new("sh").args(["-c", "while :; do :; done"]).process_group(0).spawn().unwrap());
    std::fs::write(registry.path().join(burner.0.id().to_string()), "1").unwrap();
    let sensor = real_sensor(&[], VolunteerTrace::ProcessGroups { registry: registry.path().to_owned() });
    let (_, observation) = until(sensor, "the group's CPU", |observation| {
        observation.volunteer_cpu.value().is_some_and(|cpu| cpu.percent() > 10.0)
    });
    assert_eq!(observation.volunteer_processes, Reading::Value(1));
}

#[test]
fn names_of_guests_are_given_once_and_again_when_they_change() {
    let tree = Tree::new();
    tree.guest(100, "guest=web1,debug-threads=on", 0, 0);
    tree.write("cg/system.slice/nginx.service/cpu.stat", "usage_usec 1\n");
    let mut sensor = tree.sensor(&["system.slice/*"]);
    let start = Instant::now();
    let mut names = |second: u64| {
        _ = sensor.sample(start + Duration::from_secs(second));
        let shown = |name: GuestName| (name.name.to_string(), name.title.map(|title| title.to_string()), name.pid);
        sensor.guest_names().map(|names| names.guests.into_iter().map(shown).collect::<Vec<_>>())
    };
    let nginx = ("nginx.service".to_owned(), None, None);
    assert_eq!(names(0).unwrap(), [("web1".to_owned(), None, Some(100)), nginx.clone()]);
    assert_eq!(names(1), None, "nothing has changed");
    // libvirt has written its file.
    let domain = "<domstatus pid='100'><domain id='1'><name>web1</name><title>Shop</title></domain></domstatus>";
    tree.write("run/libvirt/qemu/web1.xml", domain);
    assert_eq!(names(2).unwrap(), [("web1".to_owned(), Some("Shop".to_owned()), Some(100)), nginx.clone()]);
    tree.write("run/libvirt/qemu/web1.xml", &domain.replace("Shop", "Other"));
    assert_eq!(names(3), None, "what is known is not read again");
    std::fs::remove_dir_all(tree.folder.path().join("proc/100")).unwrap();
    assert_eq!(names(4).unwrap(), [nginx]);
}

/// Real guests, named by libvirt, OpenStack's Nova and a command line alone.
#[test]
fn real_guests_have_the_names_of_their_managers_and_their_own_cpu() {
    use gleaner_test_support::guest::{has_qemu, start};
    use gleaner_types::guest::Manager;
    if !has_qemu() {
        gleaner_test_support::skip!("qemu-system-x86_64 is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let uuid = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";
    let start = |image: &str, busy, name: &str| {
        start(folder.path(), image, busy, &["-uuid", uuid, "-name", &format!("guest={name},debug-threads=on")])
    };
    let guests = [
        start("a.img", true, "gleaner-web1"),
        start("b.img", false, "gleaner-instance-2"),
        start("c.img", false, "gleaner-web1"),
    ];
    let pids = guests.each_ref().map(|guest| guest.0.id());
    let libvirt = folder.path().join("run/libvirt/qemu");
    std::fs::create_dir_all(&libvirt).unwrap();
    let write = |name: &str, pid: u32, more: &str| {
        let xml = format!("<domstatus pid='{pid}'><domain id='1'><name>{name}</name>{more}</domain></domstatus>");
        std::fs::write(libvirt.join(format!("{name}.xml")), xml).unwrap();
    };
    write("gleaner-web1", pids[0], "<title>The shop</title>");
    let nova =
        "<metadata><nova:instance xmlns:nova='x'><nova:name>db of the shop</nova:name></nova:instance></metadata>";
    write("gleaner-instance-2", pids[1], nova);
    let settings = SenseSettings {
        roots: Roots { root: folder.path().to_owned(), ..Roots::default() },
        foreground_cgroups: Vec::new(),
        qemu: true,
        monitors: false,
        counters: false,
        scan_period_s: 0.0,
    };
    let mut sensor = Sensor::open(settings, &Hierarchies::default(), VolunteerTrace::None, &[]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut names, mut found) = (Vec::new(), Vec::new());
    while found.len() < 3 && Instant::now() < deadline {
        _ = sensor.sample(Instant::now());
        names = sensor.guest_names().map_or(names, |new| new.guests);
        found = pids.iter().filter_map(|pid| names.iter().find(|name| name.pid == Some(*pid))).collect();
        std::thread::sleep(Duration::from_millis(20));
    }
    let [web, db, other] = found[..] else { panic!("{names:?}") };
    let text = |text: &Option<GuestText>| text.as_ref().map(ToString::to_string);
    assert_eq!((web.manager, web.name.as_str()), (Manager::Libvirt, "gleaner-web1"));
    assert_eq!((text(&web.title).as_deref(), text(&web.uuid).as_deref()), (Some("The shop"), Some(uuid)));
    assert_eq!((db.manager, db.name.as_str()), (Manager::Openstack, "db of the shop"));
    assert_eq!(text(&db.instance).as_deref(), Some("gleaner-instance-2"));
    // Of the same name as the first: libvirt's file is not about it.
    assert_eq!((other.manager, other.name.as_str(), &other.title), (Manager::Qemu, "gleaner-web1", &None));
    let (busy, idle) = (web.workload.clone(), db.workload.clone());
    let uses = |observation: &Observation, id: &WorkloadId| {
        let own = observation.workloads.iter().find(|own| own.id == *id)?;
        own.cpu.value().map(|cpu| cpu.percent())
    };
    let is_busy = |observation: Observation| match (uses(&observation, &busy), uses(&observation, &idle)) {
        (Some(busy), Some(idle)) => busy > idle,
        _ => false,
    };
    while !is_busy(sensor.sample(Instant::now())) {
        assert!(Instant::now() < deadline, "the guest that loops does not use more CPU than one that halts");
        std::thread::sleep(Duration::from_millis(300));
    }
}
