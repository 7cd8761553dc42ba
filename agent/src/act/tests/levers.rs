//! Disk and memory levers on real cgroups: what the kernel counts must move.

use std::os::unix::fs::MetadataExt;

use gleaner_types::command::DiskLimit;

use super::scene::disks;
use super::*;

/// Runs a shell command inside the scene's foreground until the value is dropped.
struct Inside(std::process::Child);

impl Inside {
    fn start(scene: &Scene, script: &str) -> Self {
        // The shell enters by itself before it runs the command, so that everything it does is counted.
        let enter: String =
            scene.foreground_procs().iter().map(|file| format!("echo $$ >{} || exit 9\n", file.display())).collect();
        let mut command = Process::new("sh");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Self(command.args(["-c", &format!("{enter}{script}")]).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        _ = self.0.wait();
    }
}

/// A place on one of this machine's disks to write to, and which disk; says loudly if there is none.
fn disk_target(test: &str) -> Option<(tempfile::TempPath, CgroupFile)> {
    let file = tempfile::NamedTempFile::new_in(std::env::var_os("GLEANER_TEST_DISK").unwrap_or("/var/tmp".into()));
    let Ok(file) = file else {
        gleaner_test_support::skipped!(
            "{test}: no file can be made on a disk; set GLEANER_TEST_DISK to a folder on one"
        );
        return None;
    };
    let dev = file.as_file().metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    // A partition has a number of its own; its disk is the folder above.
    let parent = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/../dev")).ok();
    let number = parent.and_then(|text| text.parse().ok()).or_else(|| format!("{major}:{minor}").parse().ok());
    match number.filter(|number| disks().numbers.contains(number)) {
        Some(number) => Some((file.into_temp_path(), CgroupFile::Disk(number))),
        None => {
            gleaner_test_support::skipped!(
                "{test}: {} is on device {major}:{minor}, which is no disk",
                file.path().display()
            );
            None
        }
    }
}

/// Bytes written by the foreground, as the kernel counts them.
fn written(scene: &Scene) -> u64 {
    let name = scene.foreground.file_name().unwrap();
    if let Some(mount) = scene.hierarchies.v1.get("blkio") {
        let text = fs::read(mount.join(name).join("blkio.throttle.io_service_bytes")).unwrap();
        return crate::sense::cgroup::parse_blkio(&text).unwrap().1;
    }
    let text = fs::read(scene.foreground.join("io.stat")).unwrap();
    crate::sense::cgroup::parse_io_stat(&text, |_| true).unwrap().write_bytes
}

#[test]
fn a_ceiling_on_writes_bites() {
    const TEST: &str = "a_ceiling_on_writes_bites";
    let Some(scene) = Scene::open(TEST) else { return };
    let Some((file, kind)) = disk_target(TEST) else { return };
    if !scene.workload().levers.iter().any(|(role, _)| *role == Role::Disk) {
        gleaner_test_support::skipped!("{TEST}: no hierarchy here throttles disks");
        return;
    }
    let mut actor = actor(&scene);
    let rate = BytesPerSec::clamped(1_048_576.0);
    let disk = DiskLimit { write: Some(rate), ..DiskLimit::default() };
    let desired = Desired::Limit(Limits { disk, ..Limits::NONE });
    let ack = actor.apply(&command(Target::Workload(guest()), 1, desired), NOW);
    let Outcome::Applied { limits, .. } = &ack.outcome else { panic!("{ack:?}") };
    assert_eq!(limits.disk, disk, "read back");

    let path = file.display();
    let _writer = Inside::start(
        &scene,
        &format!("while :; do dd if=/dev/zero of={path} bs=64k count=64 oflag=direct conv=notrunc; done"),
    );
    // From the first write on, so that starting up does not count as slowness.
    eventually("something is written", || written(&scene) > 0);
    let (start, before) = (Instant::now(), written(&scene));
    eventually("3 MiB more are written", || written(&scene) - before >= 3 << 20);
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds > 1.5, "3 MiB at 1 MiB/s took {seconds:.1} s");

    let report = actor.restore_all();
    assert!(report.failed.is_empty(), "{report:?}");
    let disk_group = scene.workload().levers.into_iter().find(|(role, _)| *role == Role::Disk).unwrap().1;
    let lever = AnyLever::new(&disk_group.as_cgroup().unwrap().cgroup, disk_group.as_cgroup().unwrap().version, kind);
    assert_eq!(lever.read().unwrap(), LeverValue::Throttle(crate::levers::Throttle::default()));
    let (start, before) = (Instant::now(), written(&scene));
    eventually("30 MiB more are written", || written(&scene) - before >= 30 << 20);
    let free = start.elapsed().as_secs_f64();
    assert!(free < 30.0 / 3.0 * seconds, "30 MiB without the ceiling took {free:.1} s");
}

/// Whether a disk's scheduler divides by weight.
fn divides_by_weight(disk: CgroupFile) -> bool {
    let CgroupFile::Disk(number) = disk else { return false };
    let folder = format!("/sys/dev/block/{number}");
    fs::read_to_string(format!("{folder}/queue/scheduler")).is_ok_and(|text| text.contains("[bfq]"))
}

#[test]
fn a_weight_on_the_disk_bites() {
    const TEST: &str = "a_weight_on_the_disk_bites";
    let (Some(heavy), Some(light)) = (Scene::open(TEST), Scene::open(TEST)) else { return };
    let Some((file, kind)) = disk_target(TEST) else { return };
    let weighs = |scene: &Scene| scene.workload().levers.iter().any(|(role, _)| *role == Role::DiskWeight);
    if !divides_by_weight(kind) || !weighs(&heavy) {
        gleaner_test_support::skipped!("{TEST}: the disk's scheduler is not bfq");
        return;
    }
    let mut actors = [(&heavy, 1_000), (&light, 50)].map(|(scene, weight)| {
        let mut own = actor(scene);
        let disk_weight = Weight::new(weight).ok();
        let desired = Desired::Limit(Limits { disk_weight, ..Limits::NONE });
        let ack = own.apply(&command(Target::Workload(guest()), 1, desired), NOW);
        let Outcome::Applied { limits, .. } = &ack.outcome else { panic!("{ack:?}") };
        assert_eq!(limits.disk_weight, disk_weight);
        own
    });
    let writer = |scene: &Scene, name: &str| {
        let path = format!("{}-{name}", file.display());
        let loops = format!("while :; do dd if=/dev/zero of={path} bs=64k count=64 oflag=direct conv=notrunc; done");
        Inside::start(scene, &format!("trap 'rm -f {path}' EXIT; {loops} & {loops} & wait"))
    };
    let writers = [writer(&heavy, "heavy"), writer(&light, "light")];
    eventually("both write", || written(&heavy) > 1 << 20 && written(&light) > 1 << 16);
    let before = (written(&heavy), written(&light));
    eventually("a lot is written", || written(&heavy) - before.0 > 48 << 20);
    let (more, less) = (written(&heavy) - before.0, written(&light) - before.1);
    println!("of 1000 against 50: {more} against {less} bytes");
    drop(writers);
    for name in ["heavy", "light"] {
        _ = fs::remove_file(format!("{}-{name}", file.display()));
    }
    // Both would write as much without weights. Far from 20 to 1: each writer waits for every write, and starts a new
    // process for the next few, in which the other has the disk to itself.
    assert!(2 * more > 3 * less, "{more} against {less}");
    for own in &mut actors {
        assert!(own.restore_all().failed.is_empty());
    }
}

#[test]
fn memory_is_taken_in_steps_without_a_kill() {
    const TEST: &str = "memory_is_taken_in_steps_without_a_kill";
    let Some(scene) = Scene::open(TEST) else { return };
    let memory_group = scene.workload().levers.into_iter().find(|(role, _)| *role == Role::Memory);
    let unified =
        memory_group.and_then(|(_, lever)| lever.as_cgroup().cloned()).filter(|k| k.version == CgroupVersion::V2);
    let Some(group) = unified else {
        gleaner_test_support::skipped!(
            "{TEST}: no version 2 memory controller here; version 1 has no limit that never kills"
        );
        return;
    };
    let Some((file, _)) = disk_target(TEST) else { return };
    let settings = ActSettings {
        reclaim: ReclaimSettings { floor: Bytes::from_mib(4), ..ReclaimSettings::default() },
        ..scene.settings()
    };
    let mut actor = Actor::open(settings, &scene.hierarchies).unwrap().0;
    actor.set_workloads(BTreeMap::from([(guest(), scene.workload())]));
    // Page cache, which can be taken back without swap.
    let path = file.display();
    let _filler = Inside::start(&scene, &format!("dd if=/dev/zero of={path} bs=1M count=48 conv=fsync; sleep 1000"));
    let number = |name: &str| -> u64 { fs::read_to_string(group.cgroup.join(name)).unwrap().trim().parse().unwrap() };
    eventually("the page cache is full", || number("memory.current") > 40 << 20);

    let goal = Bytes::from_mib(16);
    let desired = Desired::Limit(Limits { memory: Some(goal), ..Limits::NONE });
    let command = command(Target::Workload(guest()), 1, desired);
    let mut limits = Vec::new();
    let mut now = NOW;
    assert_eq!(refusal_of(&actor.apply(&command, now)), None);
    eventually("it holds what it may", || {
        let used = Bytes(number("memory.current"));
        let state = MemoryState { used, pressure: Some(gleaner_types::units::Fraction::ZERO) };
        actor.set_memory(BTreeMap::from([(guest(), state)]));
        now = now.after(Duration::from_secs(1));
        assert_eq!(refusal_of(&actor.apply(&command, now)), None);
        assert!(actor.tick(now).is_empty());
        limits.push(fs::read_to_string(group.cgroup.join("memory.high")).unwrap().trim().to_owned());
        used.0 <= goal.0 + (1 << 20)
    });
    assert!(limits.len() > 20, "in steps: {limits:?}");
    let events = fs::read_to_string(group.cgroup.join("memory.events")).unwrap();
    assert!(events.lines().any(|line| line == "oom_kill 0"), "{events}");
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!(fs::read_to_string(group.cgroup.join("memory.high")).unwrap().trim(), "max");
}

/// A QEMU guest whose boot sector burns CPU, in a cgroup of its own, ended with the value.
struct BurningGuest {
    process: std::process::Child,
    folder: tempfile::TempDir,
}

impl BurningGuest {
    fn start(scene: &Scene) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        // jmp $, and the signature of a boot sector; padded to a size that firmware takes for a disk.
        let mut image = vec![0_u8; 1 << 20];
        image[..2].copy_from_slice(&[0xEB, 0xFE]);
        image[510..512].copy_from_slice(&[0x55, 0xAA]);
        let disk = folder.path().join("disk");
        fs::write(&disk, image).unwrap();
        let enter: String =
            scene.foreground_procs().iter().map(|file| format!("echo $$ >{} || exit 9\n", file.display())).collect();
        let script = format!(
            "{enter}exec qemu-system-x86_64 -display none -accel tcg -m 16 -nodefaults -name guest={} \
             -qmp unix:{}/qmp,server=on,wait=off -drive file={},format=raw,if=ide",
            scene.name,
            folder.path().display(),
            disk.display()
        );
        if Process::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err() {
            return None;
        }
        let process = Process::new("sh").args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
        let guest = Self { process, folder };
        eventually("its monitor answers", || guest.is_running().is_some());
        Some(guest)
    }

    fn is_running(&self) -> Option<bool> {
        let socket = self.folder.path().join("qmp");
        let owner = crate::process::identify(Path::new("/proc"), i32::try_from(self.process.id()).unwrap())?;
        let status = crate::qmp::Monitor::with(&socket, owner, |monitor| {
            monitor.execute("query-status", serde_json::Value::Null)
        });
        status.ok()?.get("running")?.as_bool()
    }
}

impl Drop for BurningGuest {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn cpu_of(pid: u32) -> u64 {
    crate::process::stat(Path::new("/proc"), i32::try_from(pid).unwrap()).unwrap().cpu_ns
}

#[test]
fn a_guest_that_is_the_volunteer_stops_runs_and_is_left_as_it_was() {
    const TEST: &str = "a_guest_that_is_the_volunteer_stops_runs_and_is_left_as_it_was";
    let Some(scene) = Scene::open(TEST) else { return };
    let Some(guest) = BurningGuest::start(&scene) else {
        gleaner_test_support::skipped!("{TEST}: qemu-system-x86_64 is not installed");
        return;
    };
    let before = scene.snapshot();
    let settings = ActSettings {
        volunteer: VolunteerChoice::Guest,
        volunteer_name: scene.name.clone(),
        kill_after: Duration::ZERO,
        ..scene.settings()
    };
    let (mut actor, _) = Actor::open(settings.clone(), &scene.hierarchies).unwrap();
    assert_eq!(actor.volunteer_kind(), &VolunteerKind::Guest { name: scene.name.clone() });
    // In the idle class its monitor may answer late.
    eventually("latent is stopped", || guest.is_running() == Some(false));
    let latent = cpu_of(guest.process.id());
    thread::sleep(Duration::from_millis(300));
    assert!(cpu_of(guest.process.id()) - latent < 100_000_000);

    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    eventually("it runs", || guest.is_running() == Some(true) && cpu_of(guest.process.id()) > latent);
    let stop = command(Target::Volunteer, 2, Desired::Stop);
    assert_eq!(refusal_of(&actor.apply(&stop, later(100))), None);
    eventually("it is stopped", || guest.is_running() == Some(false));
    actor.tick(later(10_000));
    eventually("it is stopped, and never killed", || guest.is_running() == Some(false));

    assert!(actor.restore_all().failed.is_empty());
    eventually("it runs as when it was found", || guest.is_running() == Some(true));
    assert_eq!(scene.snapshot(), before);
    drop(actor);
    drop(guest);
    let gone = Actor::open(settings, &scene.hierarchies).unwrap_err().to_string();
    assert!(gone.contains("no such guest runs"), "{gone}");
}

#[test]
fn a_unit_that_is_the_volunteer_is_frozen_and_left_as_it_was() {
    let Some(scene) = Scene::open("a_unit_that_is_the_volunteer_is_frozen_and_left_as_it_was") else { return };
    if let Some(mount) = scene.hierarchies.v1.get("freezer") {
        fs::create_dir(mount.join(scene.foreground.file_name().unwrap())).unwrap();
    }
    let mut burner = Burner::start(&scene.foreground_procs());
    let before = scene.snapshot();
    let settings = ActSettings {
        volunteer: VolunteerChoice::Unit,
        volunteer_name: scene.foreground.file_name().unwrap().to_string_lossy().into_owned(),
        kill_after: Duration::ZERO,
        ..scene.settings()
    };
    let (mut actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
    let latent = cpu_of(burner.id());
    thread::sleep(Duration::from_millis(300));
    assert!(cpu_of(burner.id()) - latent < 50_000_000, "latent is frozen");
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    eventually("it runs", || cpu_of(burner.id()) > latent);
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!(scene.snapshot(), before);
    assert!(!burner.ended(), "what runs in a unit is not ours to end");
}
