//! CPU time. In: `/proc` and the control groups. Out: what a process or a group has used, and what strangers take of the
//! machine. Called by beds that have to tell their own load from what others do to the machine.

use std::path::Path;

/// Ticks of `/proc` per second; the same on every Linux.
const TICKS: f64 = 100.0;

/// CPU time that a process and its threads have used, in seconds; 0 once it is gone.
#[must_use]
pub fn of_process(pid: u32) -> f64 {
    of_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default())
}

fn of_stat(stat: &str) -> f64 {
    // After the name, which may hold anything: utime and stime are the 14th and 15th field.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// CPU time that a control group has used, in seconds; 0 if it is not there.
#[must_use]
pub fn of_group(group: &str) -> f64 {
    let root = Path::new("/sys/fs/cgroup");
    let of_v1 = std::fs::read_to_string(root.join("cpuacct").join(group).join("cpuacct.usage"));
    if let Some(nanoseconds) = of_v1.ok().and_then(|text| text.trim().parse::<f64>().ok()) {
        return nanoseconds / 1e9;
    }
    let of_v2 = std::fs::read_to_string(root.join(group).join("cpu.stat")).unwrap_or_default();
    let microseconds = of_v2.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<f64>().ok());
    microseconds.unwrap_or(0.0) / 1e6
}

/// CPU time of all CPUs since the machine was started, in seconds.
#[derive(Debug, Clone, Copy)]
struct Machine {
    all_s: f64,
    idle_s: f64,
}

impl Machine {
    fn now() -> Self {
        Self::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn of(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
        let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        let idle: f64 = ticks.iter().skip(3).take(2).sum();
        Self { all_s: ticks.iter().sum::<f64>() / TICKS, idle_s: idle / TICKS }
    }
}

/// What others than the caller's own processes take of the machine's CPUs: strangers on it, and strangers below it, to whom
/// its hypervisor gave the CPU (steal).
#[derive(Debug)]
pub struct Others {
    before: Machine,
    own_s: f64,
}

impl Others {
    /// From now on; `own_s` is what one's own have used so far.
    #[must_use]
    pub fn start(own_s: f64) -> Self {
        Self { before: Machine::now(), own_s }
    }

    /// Their part of all CPUs since the last call.
    pub fn part(&mut self, own_s: f64) -> f64 {
        self.part_of(Machine::now(), own_s)
    }

    fn part_of(&mut self, now: Machine, own_s: f64) -> f64 {
        let all_s = now.all_s - self.before.all_s;
        let busy_s = all_s - (now.idle_s - self.before.idle_s);
        let others_s = busy_s - (own_s - self.own_s);
        (self.before, self.own_s) = (now, own_s);
        if all_s > 0.0 { (others_s / all_s).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_what_its_name_does_not_hide() {
        assert!((of_stat("7 (a) b) R 1 1 1 0 -1 4 5 0 0 0 150 50 9 9 20 0") - 2.0).abs() < 1e-9);
        assert!(of_stat("").abs() < 1e-9);
        assert!(of_process(std::process::id()) >= 0.0);
    }

    #[test]
    fn others_have_what_is_neither_idle_nor_ones_own() {
        let before = Machine::of("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n");
        let mut others = Others { before, own_s: 5.0 };
        // Of 10 s: 4 idle or waiting for a disk, 1 stolen, 5 busy of which 3 are one's own.
        let now = Machine::of("cpu  400 0 300 1100 100 0 0 100 0 0\n");
        assert!((others.part_of(now, 8.0) - 0.3).abs() < 1e-9);
        // Nothing has passed; and ticks of one's own that are counted earlier than the machine's are no negative part.
        assert!(others.part_of(now, 9.0).abs() < 1e-9);
        let later = Machine::of("cpu  500 0 300 1100 100 0 0 100 0 0\n");
        assert!(others.part_of(later, 11.0).abs() < 1e-9);
    }
}
