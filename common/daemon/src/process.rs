//! Processes that were started before this one: the same process again, or another with its number. In: /proc. Out:
//! whether a recorded process is alive. Called for tasks of engine `local` and for drivers of engine `spark`.

use std::sync::LazyLock;

/// The process of this number, start and boot is alive: not a later one of the same number, nor one of another boot.
#[must_use]
pub fn is_alive(pid: i32, started: u64, booted: u64) -> bool {
    booted == boot() && start_ticks(pid) == Some(started)
}

/// Distinguishes this boot of the kernel from others: the first half of its random id.
#[must_use]
pub fn boot() -> u64 {
    static BOOT: LazyLock<u64> = LazyLock::new(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        u64::from_str_radix(&digits, 16).unwrap_or_default()
    });
    *BOOT
}

/// Start time of a living process in clock ticks since boot; `None` if there is none, or only its remains.
#[must_use]
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat(pid).and_then(|(ended, started)| (!ended).then_some(started))
}

/// The process of this number, start and boot has ended, and its parent has not waited for it yet: the number is still its
/// own.
#[must_use]
pub fn has_remains(pid: i32, started: u64, booted: u64) -> bool {
    booted == boot() && stat(pid) == Some((true, started))
}

/// Whether a process has ended, and its start time.
fn stat(pid: i32) -> Option<(bool, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so fields are counted after it (proc(5)).
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?;
    Some((state == "Z" || state == "X", fields.nth(18)?.parse().ok()?))
}
