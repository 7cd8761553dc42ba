//! A simulated machine. In: the kernel's files as an agent writes them, in a folder. Out: the same files as an agent
//! reads them, by the CPU that its foreground and its volunteer use. Called by [`crate::host`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_agent::hierarchies::Hierarchies;
use gleaner_agent::roots::Roots;
use gleaner_simulator::random::Random;

/// Ticks of `/proc/stat` per second.
const TICKS: f64 = 100.0;
/// Memory of every machine, in KiB.
const MEMORY_KIB: u64 = 16 << 20;
/// Memory a foreground workload uses, in bytes.
const WORKLOAD_MEMORY: u64 = 2 << 30;

/// How the machine's counters lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sensors {
    /// They do not.
    Good,
    /// They stand still.
    Frozen,
    /// They hold no numbers.
    Garbage,
    /// They are empty.
    Empty,
    /// They went back to zero.
    Backwards,
    /// They hold the largest numbers there are.
    Huge,
}

/// A workload whose response must not suffer.
#[derive(Debug)]
struct Workload {
    group: PathBuf,
    /// CPU it wants, in percent of a core.
    demand: f64,
    used_us: f64,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
    /// CPUs.
    pub cores: u32,
    workloads: Vec<Workload>,
    user: f64,
    nice: f64,
    idle: f64,
    /// What the foreground used since the guard's last step, in percent of a core times seconds, and those seconds.
    since_step: (f64, f64),
    /// Counters stay as they are written once until this says good again.
    pub sensors: Sensors,
    original: Vec<(PathBuf, String)>,
}

/// Files that limits are set by, with what is found in them.
const KNOBS: [(&str, &str); 3] = [("cpu.max", "max 100000\n"), ("cpu.weight", "100\n"), ("memory.high", "max\n")];

impl Machine {
    /// Makes the files of a machine with some foreground workloads. Without `quota` its workloads have no ceiling on CPU.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn new(folder: &Path, cores: u32, workloads: usize, quota: bool) -> io::Result<Self> {
        for part in
            ["proc/pressure", "proc/net", "proc/self", "proc/sys/kernel", "sys/devices/system/cpu", "sys/block", "cg"]
        {
            fs::create_dir_all(folder.join(part))?;
        }
        fs::write(folder.join("sys/devices/system/cpu/online"), format!("0-{}\n", cores - 1))?;
        fs::write(folder.join("proc/sys/kernel/sched_cfs_bandwidth_slice_us"), "5000\n")?;
        fs::write(folder.join("proc/sys/kernel/osrelease"), "6.1.0\n")?;
        for pressure in ["cpu", "memory", "io"] {
            fs::write(folder.join("proc/pressure").join(pressure), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")?;
        }
        fs::write(folder.join("proc/diskstats"), "")?;
        fs::write(folder.join("proc/net/dev"), "head\nhead\n")?;
        let mut machine = Self {
            folder: folder.to_owned(),
            cores,
            workloads: Vec::new(),
            user: 0.0,
            nice: 0.0,
            idle: 0.0,
            since_step: (0.0, 0.0),
            sensors: Sensors::Good,
            original: Vec::new(),
        };
        for number in 0..workloads {
            let group = folder.join(format!("cg/machine/vm{number}"));
            fs::create_dir_all(&group)?;
            for (file, text) in KNOBS.iter().filter(|(file, _)| quota || *file != "cpu.max") {
                fs::write(group.join(file), text)?;
                machine.original.push((group.join(file), (*text).to_owned()));
            }
            fs::write(group.join("cgroup.procs"), "")?;
            fs::write(group.join("memory.current"), format!("{WORKLOAD_MEMORY}\n"))?;
            for pressure in ["cpu.pressure", "memory.pressure"] {
                fs::write(group.join(pressure), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")?;
            }
            fs::write(group.join("io.stat"), "")?;
            machine.workloads.push(Workload { group, demand: 20.0, used_us: 0.0 });
        }
        machine.write()?;
        Ok(machine)
    }

    /// Where the agent finds the kernel's interfaces.
    #[must_use]
    pub fn roots(&self) -> Roots {
        Roots { proc: self.folder.join("proc"), sys: self.folder.join("sys"), root: self.folder.clone() }
    }

    /// Its one hierarchy, of version 2.
    #[must_use]
    pub fn hierarchies(&self) -> Hierarchies {
        Hierarchies {
            v2: Some(self.folder.join("cg")),
            v2_controllers: vec!["cpu".to_owned(), "memory".to_owned()],
            ..Hierarchies::default()
        }
    }

    /// Time passes: the foreground uses what it wants and may, the volunteer up to `volunteer` percent of what is left.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn advance(&mut self, seconds: f64, volunteer: f64, random: &mut Random) -> io::Result<()> {
        let capacity = f64::from(self.cores) * 100.0;
        let mut foreground = 0.0;
        for number in 0..self.workloads.len() {
            let ceiling = self.quota(number).unwrap_or(capacity);
            let workload = &mut self.workloads[number];
            let most = capacity / 2.0;
            workload.demand = match random.uniform() < 0.05 * seconds {
                // Somebody comes or goes, once in 20 s.
                true => random.uniform() * most,
                false => (workload.demand + 10.0 * random.normal()).clamp(1.0, most),
            };
            let used = workload.demand.min(ceiling).min(capacity - foreground);
            workload.used_us += used * 1e4 * seconds;
            foreground += used;
        }
        let volunteer = volunteer.min(capacity - foreground).max(0.0);
        self.since_step.0 += foreground * seconds;
        self.since_step.1 += seconds;
        self.user += foreground / 100.0 * TICKS * seconds;
        self.nice += volunteer / 100.0 * TICKS * seconds;
        self.idle += (capacity - foreground - volunteer) / 100.0 * TICKS * seconds;
        self.write()
    }

    /// What a workload wants, in percent of a core.
    #[must_use]
    pub fn demand(&self, workload: usize) -> f64 {
        self.workloads.get(workload).map_or(0.0, |workload| workload.demand)
    }

    fn write(&self) -> io::Result<()> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters of minutes")]
        let whole = |value: f64| value as u64;
        let (user, nice, idle) = (whole(self.user), whole(self.nice), whole(self.idle));
        let stat = |user: u64, nice: u64, idle: u64| {
            let mut text = format!("cpu  {user} {nice} 0 {idle} 0 0 0 0 0 0\n");
            for cpu in 0..self.cores {
                text.push_str(&format!("cpu{cpu} 1 1 1 1\n"));
            }
            text
        };
        let used: Vec<u64> = self.workloads.iter().map(|workload| whole(workload.used_us)).collect();
        let (text, used) = match self.sensors {
            Sensors::Frozen => return Ok(()),
            Sensors::Good => (stat(user, nice, idle), used.iter().map(|us| format!("usage_usec {us}\n")).collect()),
            Sensors::Garbage => ("cpu  x y z\n\u{1b}[2J".to_owned(), vec!["usage_usec -7\n".to_owned(); used.len()]),
            Sensors::Empty => (String::new(), vec![String::new(); used.len()]),
            Sensors::Backwards => (stat(0, 0, 1), vec!["usage_usec 0\n".to_owned(); used.len()]),
            Sensors::Huge => {
                let huge = u64::MAX / 20_000_000;
                (stat(huge, huge / 2, huge), vec![format!("usage_usec {}\n", u64::MAX / 1_000); used.len()])
            }
        };
        let used: Vec<String> = used;
        fs::write(self.folder.join("proc/stat"), text)?;
        let free = MEMORY_KIB - (WORKLOAD_MEMORY >> 10) * self.workloads.len() as u64;
        let meminfo = match self.sensors {
            Sensors::Good => format!("MemTotal: {MEMORY_KIB} kB\nMemAvailable: {free} kB\n"),
            Sensors::Huge => format!("MemTotal: {0} kB\nMemAvailable: {0} kB\n", u64::MAX),
            _ => "MemTotal: none\n".to_owned(),
        };
        fs::write(self.folder.join("proc/meminfo"), meminfo)?;
        fs::write(self.folder.join("proc/loadavg"), "0.5 0.5 0.5 1/100 1\n")?;
        for (workload, text) in self.workloads.iter().zip(used) {
            fs::write(workload.group.join("cpu.stat"), text)?;
        }
        Ok(())
    }

    fn text(&self, workload: usize, file: &str) -> Option<String> {
        fs::read_to_string(self.workloads.get(workload)?.group.join(file)).ok()
    }

    /// How many foreground workloads it has.
    #[must_use]
    pub fn workloads(&self) -> usize {
        self.workloads.len()
    }

    /// The ceiling on a workload's CPU that is in force, in percent of a core.
    #[must_use]
    pub fn quota(&self, workload: usize) -> Option<f64> {
        let text = self.text(workload, "cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()? * 100.0)
    }

    /// The limit on a workload's memory that is in force, in bytes.
    #[must_use]
    pub fn memory_limit(&self, workload: usize) -> Option<u64> {
        self.text(workload, "memory.high")?.trim().parse().ok()
    }

    /// What differs from what was there before Gleaner came, as `FILE: NOW (was BEFORE)`.
    #[must_use]
    pub fn changed(&self) -> Vec<String> {
        let changed = |(file, before): &(PathBuf, String)| {
            let now = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
            let name = file.strip_prefix(&self.folder).unwrap_or(file).display();
            (now.trim() != before.trim()).then(|| format!("{name}: {} (was {})", now.trim(), before.trim()))
        };
        self.original.iter().filter_map(changed).collect()
    }

    /// Somebody else sets a workload's ceiling on CPU: that is theirs to do, and stays.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn meddle(&mut self, workload: usize) -> io::Result<()> {
        let Some(file) = self.workloads.get(workload).map(|own| own.group.join("cpu.max")) else { return Ok(()) };
        for (knob, before) in self.original.iter_mut().filter(|(knob, _)| *knob == file) {
            "155000 100000\n".clone_into(before);
            fs::write(knob, &before)?;
        }
        Ok(())
    }

    /// The knobs of a workload that are neither as they were found nor as somebody else set them: it is limited by these.
    #[must_use]
    pub fn limited_by(&self, workload: usize) -> Vec<&'static str> {
        let Some(own) = self.workloads.get(workload) else { return Vec::new() };
        let differs = |(file, before): &(PathBuf, String)| {
            file.starts_with(&own.group) && fs::read_to_string(file).is_ok_and(|now| now.trim() != before.trim())
        };
        let differing = self.original.iter().filter(|knob| differs(knob));
        differing.flat_map(|(file, _)| KNOBS.iter().map(|knob| knob.0).filter(|name| file.ends_with(name))).collect()
    }

    /// CPU that the foreground left of the machine since the guard's last step, in percent of a core.
    #[must_use]
    pub fn left(&self) -> f64 {
        let (used, seconds) = self.since_step;
        f64::from(self.cores) * 100.0 - if seconds > 0.0 { used / seconds } else { 0.0 }
    }

    /// The guard has made a step.
    pub fn stepped(&mut self) {
        self.since_step = (0.0, 0.0);
    }
}
