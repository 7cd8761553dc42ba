//! Real guests under the real agent: what it shows agrees with an independent tool, each lever has its effect on a
//! counter, and after kill -9 every knob reads as before. The same test runs on this machine and inside a booted host.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gleaner_test_support::lab;
use serde_json::Value;

/// Longest wait for anything. An emulated host on a busy machine is slow, and stands still now and then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Processes whose command line, its words ended by NUL, holds some words.
fn processes(words: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(words)
    };
    pids.filter(holds).collect()
}

/// The agent under test.
pub(crate) fn agent() -> PathBuf {
    std::env::var_os("GLEANER_AGENT").map_or_else(|| env!("CARGO_BIN_EXE_gleaner-agent").into(), Into::into)
}

/// Guests, their tap and their cgroups; all of it goes with the value.
struct Bed {
    folder: tempfile::TempDir,
    tap: String,
    group: String,
    guests: Vec<Child>,
}

impl Bed {
    /// Two guests: one that burns a CPU, writes to a disk and sends to a tap, and one of a single boot sector.
    fn start(images: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let number = std::process::id() % 100_000;
        let (tap, group) = (format!("gl{number}"), format!("gleaner-lab-{number}"));
        sh(&format!("ip tuntap add {tap} mode tap && ip link set {tap} up"));
        let accel = if Path::new("/dev/kvm").exists() && lab::inside() { "kvm" } else { "tcg" };
        let mut bed = Self { folder, tap, group, guests: Vec::new() };
        let (tap, group) = (bed.tap.clone(), bed.group.clone());
        let busy = ["-a", accel, "-d", "100", "-D", "64", "-W", "4000", "-t", &tap, "-S", "100"];
        // Each on a CPU of its own: a guest that an emulated CPU's virtualisation runs hangs now and then when it is moved.
        bed.guest(images, "lab-a", &[&busy[..], &["-u", "0", "-g", &format!("{group}/a")]].concat());
        bed.guest(images, "lab-b", &["-k", "boot", "-d", "25", "-u", "1", "-g", &format!("{group}/nested/b")]);
        for name in ["lab-a", "lab-b"] {
            let console = bed.folder.path().join(name).join("console");
            let log = bed.folder.path().join(name).join("qemu.log");
            until(&format!("{name} is up"), || {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                assert!(said.lines().all(|line| line.contains("warning: ")), "{name}: {said}");
                std::fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("LAB-READY"))
            });
        }
        bed
    }

    fn guest(&mut self, images: &Path, name: &str, options: &[&str]) {
        let script = std::env::var_os("GLEANER_LAB_IMAGES")
            .map_or_else(|| lab::script("kvm/guest.sh"), |inside| Path::new(&inside).join("guest.sh"));
        let mut command = Command::new(script);
        command.arg(images).arg(self.folder.path()).arg(name).args(options);
        self.guests.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    fn pid(&self, name: &str) -> u32 {
        std::fs::read_to_string(self.folder.path().join(name).join("pid")).unwrap().trim().parse().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let config = self.folder.path().join("agent.toml");
        let state = self.folder.path().join("state");
        let text = format!(
            "state_dir = {state:?}\n[foreground]\nmemory_floor_mib = 16\nrate_floor_kib = 16\n[sense]\nscan_period_s = 1.0\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(agent());
        command.arg("--config").arg(config).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `gleaner-agent try`, its report.
    fn attempt(&self, arguments: &[&str]) -> Value {
        let said = self.run(&[&["try", "lab-a", "--json"], arguments].concat());
        println!("{arguments:?}: {}", said.trim());
        serde_json::from_str(&said).unwrap()
    }

    /// Everything that could have been changed on the busy guest, as text.
    fn knobs(&self) -> String {
        let files = "cpu.cfs_quota_us cpu.shares cpu.max cpu.weight io.max memory.high blkio.throttle.write_bps_device";
        let group = &self.group;
        let groups = sh(&format!(
            "for d in /sys/fs/cgroup/{group}/a /sys/fs/cgroup/*/{group}/a; do cd $d 2>/dev/null || continue; \
             for f in {files}; do [ -e $f ] && echo $d/$f: $(cat $f); done; done; true"
        ));
        let queues =
            sh(&format!("tc qdisc show dev {0}; tc filter show dev {0} ingress 2>/dev/null || true", self.tap));
        format!("{groups}\n{queues}\n{}", self.block())
    }

    /// Disk ceiling and balloon of the busy guest, asked by a client that shares no code with the agent.
    fn block(&self) -> String {
        // A monitor serves one client at a time, and drops a second one that comes while it closes the first.
        let mut answer = None;
        until("the monitor answers", || {
            answer = self.ask_monitor().ok();
            answer.is_some()
        });
        let answer = answer.unwrap();
        let of = |key: &str| {
            let tail = answer.split(&format!("\"{key}\": ")).nth(1).unwrap_or("?");
            tail.split([',', '}']).next().unwrap_or("?").to_owned()
        };
        format!("bps_wr {} balloon {}", of("bps_wr"), of("actual"))
    }

    fn ask_monitor(&self) -> std::io::Result<String> {
        let stream = std::os::unix::net::UnixStream::connect(self.folder.path().join("lab-a/qmp"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut lines = BufReader::new(stream);
        let mut answer = String::new();
        for request in ["", "qmp_capabilities", "query-block", "query-balloon"] {
            if !request.is_empty() {
                writeln!(lines.get_mut(), "{{\"execute\": \"{request}\"}}")?;
            }
            loop {
                let mut line = String::new();
                if lines.read_line(&mut line)? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                if !line.contains("\"event\"") {
                    answer.push_str(&line);
                    break;
                }
            }
        }
        Ok(answer)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (name, guest) in ["lab-a", "lab-b"].iter().zip(&mut self.guests) {
                match guest.try_wait() {
                    Ok(Some(status)) => println!("{}: {name}, {status}", lab::GUEST_DIED),
                    other => println!("{name}: {other:?}"),
                }
                for file in ["qemu.log", "console"] {
                    let text = std::fs::read(self.folder.path().join(name).join(file)).unwrap_or_default();
                    let text = String::from_utf8_lossy(&text).into_owned();
                    let lines: Vec<&str> = text.lines().collect();
                    println!("{name}, {file}:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
                }
            }
        }
        for guest in &mut self.guests {
            _ = guest.kill();
            _ = guest.wait();
        }
        _ = Command::new("ip").args(["link", "del", &self.tap]).status();
        let group = &self.group;
        for _ in 0..50 {
            let left = format!(
                "find /sys/fs/cgroup -depth -type d -path '*/{group}*' -exec rmdir {{}} + 2>/dev/null; \
                                ! find /sys/fs/cgroup -type d -name {group} 2>/dev/null | grep -q ."
            );
            if Command::new("sh").args(["-c", &left]).status().is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

pub(crate) fn number(report: &Value, part: &str, key: &str) -> f64 {
    report[part][key].as_f64().unwrap_or_else(|| panic!("{part}.{key} in {report}"))
}

/// Bytes a disk's cgroup wrote, and a tap's guest sent, as the kernel tells a shell.
fn counted(bed: &Bed) -> (f64, f64) {
    let group = &bed.group;
    let disk = sh(&format!(
        "cat /sys/fs/cgroup/blkio/{group}/a/blkio.throttle.io_service_bytes 2>/dev/null | awk '$2 == \"Write\" {{ n += $3 }} END {{ print n + 0 }}'; \
         grep -o 'wbytes=[0-9]*' /sys/fs/cgroup/{group}/a/io.stat 2>/dev/null | awk -F= '{{ n += $2 }} END {{ print n + 0 }}'"
    ));
    let disk = disk.lines().filter_map(|line| line.parse::<f64>().ok()).sum();
    (disk, sh(&format!("cat /sys/class/net/{}/statistics/rx_bytes", bed.tap)).parse().unwrap())
}

/// Means of what the agent shows of a guest over some seconds.
struct Shown(Vec<Value>);

impl Shown {
    fn of(&self, name: &str, key: &str) -> f64 {
        let workloads = self.0.iter().flat_map(|report| report["workloads"].as_array().unwrap());
        let own = workloads.filter(|workload| workload["id"] == name && workload["kind"] == "qemu");
        let values: Vec<f64> = own.filter_map(|workload| workload[key]["value"].as_f64()).collect();
        assert!(!values.is_empty(), "no {key} of {name} in {:?}", self.0);
        values.iter().sum::<f64>() / values.len() as f64
    }
}

fn observe(bed: &Bed, samples: u32) -> Shown {
    let said = bed.run(&["observe", "--count", &samples.to_string()]);
    Shown(said.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn cpu_agrees(bed: &Bed) {
    // Under a ceiling the load is steady, so that windows which begin some ms apart say the same. Short periods, because
    // a window may hold one burst more or less than another.
    let group = &bed.group;
    let ceiling = |version_1: &str, version_2: &str, period: &str| {
        sh(&format!(
            "if cd /sys/fs/cgroup/cpu/{group}/a 2>/dev/null; then echo -1 >cpu.cfs_quota_us; \
             echo {period} >cpu.cfs_period_us; echo {version_1} >cpu.cfs_quota_us; \
             else echo '{version_2} {period}' >/sys/fs/cgroup/{group}/a/cpu.max; fi"
        ))
    };
    ceiling("10000", "10000", "20000");
    let pid = bed.pid("lab-a");
    let tool = std::thread::spawn(move || sh(&format!("LC_ALL=C pidstat -u -p {pid} 7 1")));
    let shown = observe(bed, 8);
    let tool = tool.join().unwrap();
    ceiling("-1", "max", "100000");
    let cpu = shown.of("lab-a", "cpu");
    assert!((cpu - shown.of("lab-a", "cpu_vcpu") - shown.of("lab-a", "cpu_emulator")).abs() < 0.01);
    let (vcpu, emulator) = (shown.of("lab-a", "cpu_vcpu"), shown.of("lab-a", "cpu_emulator"));
    assert!(vcpu > emulator, "a burning guest is mostly its virtual CPU: {vcpu}, {emulator}");
    assert!(shown.of("lab-b", "cpu") > 1.0, "the guest in a nested group is seen");
    // "HH:MM:SS UID PID %usr %system %guest %wait %CPU CPU Command", then the same as an average.
    let average = tool.lines().find(|line| line.starts_with("Average:") && line.contains(&pid.to_string())).unwrap();
    let independent: f64 = average.split_whitespace().nth(7).unwrap().parse().unwrap();
    println!("cpu: agent {cpu:.2}, pidstat {independent:.2}");
    assert!((cpu / independent - 1.0).abs() < 0.02, "agent {cpu}, pidstat {independent}");
}

/// Counters of the host beside the agent's reports, which say when they were made: the guest works in bursts, so only the
/// same moments can be compared.
fn traffic_agrees(bed: &Bed) {
    let ended = AtomicBool::new(false);
    let unix_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1_000.0;
    let (shown, counters) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut counters = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                counters.push((unix_ms(), counted(bed)));
                std::thread::sleep(Duration::from_millis(150));
            }
            counters
        });
        // Long, because the guest writes a megabyte at a time, which may count at either end.
        let shown = observe(bed, 17);
        ended.store(true, Ordering::Relaxed);
        (shown, counting.join().unwrap())
    });
    // Between two readings the counters are taken to grow evenly.
    let at = |when: f64| {
        let next = counters.partition_point(|(at, _)| *at < when).clamp(1, counters.len() - 1);
        let ((from, before), (to, after)) = (counters[next - 1], counters[next]);
        let part = ((when - from) / (to - from)).clamp(0.0, 1.0);
        (before.0 + (after.0 - before.0) * part, before.1 + (after.1 - before.1) * part)
    };
    let end_of = |report: &Value| report["at"].as_f64().unwrap();
    let (first, last) = (&shown.0[0], shown.0.last().unwrap());
    let seconds = (end_of(last) - end_of(first)) / 1_000.0;
    let (before, after) = (at(end_of(first)), at(end_of(last)));
    let (disk, network) = ((after.0 - before.0) / seconds, (after.1 - before.1) / seconds);
    let (own_disk, own_network) = (shown.of("lab-a", "disk_write"), shown.of("lab-a", "network_transmit"));
    println!("disk: agent {own_disk:.0}, cgroup {disk:.0}; network: agent {own_network:.0}, interface {network:.0}");
    assert!((own_disk / disk - 1.0).abs() < 0.05, "agent {own_disk}, cgroup {disk}");
    assert!((own_network / network - 1.0).abs() < 0.05, "agent {own_network}, interface {network}");
}

/// This host has a lever, as `gleaner-agent doctor` says.
fn offers(bed: &Bed, name: &str) -> bool {
    let doctor: Value = serde_json::from_str(&bed.run(&["doctor", "--json"])).unwrap();
    let all = doctor["offers"].as_array().unwrap();
    all.iter().any(|offer| offer["capability"] == name && offer["state"]["value"].is_string())
}

fn levers_bite(bed: &Bed) {
    let found = bed.knobs();
    // 30 % for the guest and 10 % for its emulator.
    let cpu = bed.attempt(&["--for", "3", "--cpu", "30"]);
    assert!(number(&cpu, "before", "cpu_percent") > 55.0, "{cpu}");
    assert!((30.0..43.0).contains(&number(&cpu, "during", "cpu_percent")), "{cpu}");
    assert_eq!(cpu["in_force"]["quota"]["at_most"], 30.0);

    // Half of what a slow machine's guest writes.
    let disk = bed.attempt(&["--for", "4", "--disk-write", "512K"]);
    assert!(number(&disk, "before", "disk_write_per_s") > 1.05e6, "{disk}");
    // What the page cache still had of before is written on top of the ceiling.
    let (before, during) = (number(&disk, "before", "disk_write_per_s"), number(&disk, "during", "disk_write_per_s"));
    assert!((2e5..0.6 * before).contains(&during), "{disk}");

    let memory = bed.attempt(&["--for", "4", "--memory", "64M"]);
    assert!(memory["shortfalls"][0].as_str().unwrap().contains("in steps"), "{memory}");
    // Nobody measures the balloon while it is held but the monitor; it must have been given back since.
    until("the balloon is given back", || bed.block().contains(&format!("balloon {}", 128 << 20)));

    assert!(
        ["cpu_quota", "disk_limit", "memory_limit", "network_receive"].into_iter().all(|name| offers(bed, name)),
        "{}",
        bed.run(&["doctor"])
    );
    if offers(bed, "network_transmit") {
        // The tap counts what arrives; what policing drops behind it, the kernel counts with the filter.
        let mut held = bed.command(&["try", "lab-a", "--for", "60", "--transmit", "20K"]);
        let mut held = held.stdout(Stdio::null()).spawn().unwrap();
        let dropped = format!("tc -s filter show dev {} ingress | grep -o 'dropped [0-9]*' | head -1", bed.tap);
        until("policing drops", || {
            sh(&dropped).strip_prefix("dropped ").is_some_and(|n| n.parse::<u32>().unwrap() > 20)
        });
        sh(&format!("kill {}", held.id()));
        assert!(held.wait().unwrap().success(), "a signal ends a trial in an orderly way");
    } else {
        gleaner_test_support::skipped!("a ceiling on what a guest sends: this kernel has no policing");
    }
    assert_eq!(bed.knobs(), found, "everything is as it was");
}

fn nothing_is_left_behind(bed: &Bed) {
    let found = bed.knobs();
    let mut limits = vec!["try", "lab-a", "--for", "600", "--cpu", "30", "--disk-write", "1M", "--receive", "100K"];
    // On every host that can hold what a guest sends, which the version 2 host is.
    let transmits = offers(bed, "network_transmit");
    if transmits {
        limits.extend(["--transmit", "100K"]);
    }
    assert!(transmits || !lab::inside(), "the version 2 host has policing");
    // Not by asking the monitor: it serves one client at a time, and the agent needs it now.
    let start = || {
        let mut child = bed.command(&limits).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        if !said.inspect(|line| println!("{line}")).any(|line| line.starts_with("limited for")) {
            let output = child.wait_with_output().unwrap();
            panic!("no limits: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        // In the monitor, or, with version 2, in the cgroup.
        let writes = ["bps_wr 1048576", "wbps=1048576"];
        let knobs = bed.knobs();
        assert!(writes.iter().any(|limit| knobs.contains(limit)), "{knobs}");
        assert_eq!(knobs.contains("police"), transmits, "{knobs}");
        child
    };
    // The keeper outlives its agent and puts everything back.
    let mut child = start();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the keeper has put everything back", || bed.knobs() == found);
    // With both gone it is an operator's word.
    let mut child = start();
    let state = bed.folder.path().join("state");
    for keeper in processes(&format!("keeper\0--state-dir\0{}", state.display())) {
        sh(&format!("kill -9 {keeper}"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_ne!(bed.knobs(), found, "nobody was left to put it back");
    let said = bed.run(&["restore"]);
    assert!(said.contains(&format!("{} knobs restored", if transmits { 4 } else { 3 })), "{said}");
    assert_eq!(bed.knobs(), found);
}

#[test]
fn guests_are_shown_limited_and_left_as_they_were() {
    if !gleaner_test_support::beds::wanted("guests_are_shown_limited_and_left_as_they_were") {
        return;
    }
    let _alone = lab::alone();
    let Some(images) = lab::images("guests_are_shown_limited_and_left_as_they_were") else { return };
    if !rustix::process::geteuid().is_root() {
        gleaner_test_support::skipped!(
            "guests_are_shown_limited_and_left_as_they_were: it takes root to make taps and cgroups"
        );
        return;
    }
    let bed = Bed::start(&images);
    cpu_agrees(&bed);
    traffic_agrees(&bed);
    levers_bite(&bed);
    nothing_is_left_behind(&bed);
}

#[test]
fn the_same_on_a_version_2_host_with_kvm() {
    if !gleaner_test_support::beds::wanted("the_same_on_a_version_2_host_with_kvm") {
        return;
    }
    let _alone = lab::alone();
    if lab::inside() {
        return;
    }
    let Some(images) = lab::images("the_same_on_a_version_2_host_with_kvm") else { return };
    let files = [("gleaner-agent", agent()), ("lab-tests", std::env::current_exe().unwrap())].map(|(name, file)| {
        let small = lab::cache(name);
        sh(&format!("strip -o {} {}", small.display(), file.display()));
        small
    });
    let pidstat = PathBuf::from(sh("command -v pidstat"));
    // A run takes some 100 s on a quiet machine.
    let output = lab::on_host(
        &images,
        &["-q", "-m", "1500", "-T", "400"],
        "kvm/lab-tests.sh",
        &[&files[0], &files[1], &pidstat],
    );
    // A bed that died has tested nothing, which must not look like a test that passed.
    assert!(!lab::host_died(&output), "the emulated host died each time:\n{}", lab::quoted(&output));
    assert!(output.status.success(), "{}\n{}", output.status, lab::quoted(&output));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
