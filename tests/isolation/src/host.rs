//! What the machine has. In: `/proc`, and the program search path. Out: CPU time, CPUs, memory, and where a program is.
//! Called by what starts or measures.

use std::path::Path;

/// CPU time of the whole machine since it was booted, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuTime {
    /// Not idle and not waiting for a disk, summed over the CPUs.
    pub busy_s: f64,
    /// Idle or waiting for a disk.
    pub idle_s: f64,
}

/// Clock ticks a second in `/proc/stat`; the same on every Linux.
const TICKS: f64 = 100.0;

/// Reads it from a `/proc`. Nothing if it cannot be read.
#[must_use]
pub fn cpu_time(proc: &Path) -> Option<CpuTime> {
    parse(&std::fs::read_to_string(proc.join("stat")).ok()?)
}

fn parse(text: &str) -> Option<CpuTime> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; what guests used is in user.
    let [user, nice, system, idle, iowait, irq, softirq] = *fields.get(..7)? else { return None };
    Some(CpuTime { busy_s: (user + nice + system + irq + softirq) / TICKS, idle_s: (idle + iowait) / TICKS })
}

/// CPUs that this process may use.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Memory of the machine in bytes, and what of it is available. Nothing if it cannot be read.
#[must_use]
pub fn memory(proc: &Path) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Some((field("MemTotal")?, field("MemAvailable")?))
}

/// The first program of this name in the folders of `PATH` or those that only root has there.
#[must_use]
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_in_seconds() {
        let time = parse("cpu  100 50 50 700 100 0 10 3 40 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(time, CpuTime { busy_s: 2.1, idle_s: 8.0 });
        for bad in ["", "cpu  1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu a b c d e f g"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let (total, available) = memory(Path::new("/proc")).unwrap();
        assert!(total >= available && available > 0);
        assert!(program("sh").is_some() && program("no-such-program").is_none());
    }
}
