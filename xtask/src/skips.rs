//! Tests that skip themselves: each says so in a line that begins with `SKIPPED: ` (`gleaner_test_support::skip`). In: such
//! lines. Out: which of them nobody expects. A test that is skipped everywhere protects nothing, so in `ci` an unexpected
//! skip is named as such.

/// What the line of a skipped test begins with.
const MARK: &str = "SKIPPED: ";

/// A part of a line that is expected where the checks run, and why. A line that is not here is a test that used to run.
const EXPECTED: [(&str, &str); 8] = [
    ("a real bed; `cargo xtask beds` runs it", "beds are steps of their own"),
    ("GLEANER_TRACES names no folder of traces", "recorded traces are not part of the repository"),
    (
        "the disk's scheduler is not bfq",
        "the disk's scheduler is the machine's own; the version 2 host has one with bfq",
    ),
    ("on the version 2 host: ", "that host has no QEMU and no tools; what needs them runs on the machine itself"),
    ("no version 2 memory controller here", "runs on the version 2 host, a bed"),
    ("/dev/mapper/control", "no device mapper in this kernel"),
    ("this kernel has no such queue", "the machine's kernel has no policing; the hosts of the lab do"),
    ("this kernel has no policing", "likewise"),
];

/// The text of a skip, if a line of output tells of one.
pub(crate) fn of_line(line: &str) -> Option<&str> {
    // The harness may have begun the line with a test's name.
    let (before, skip) = line.split_once(MARK)?;
    (before.is_empty() || before.starts_with("test ")).then(|| skip.trim_end())
}

/// Why a skip is expected; `None` if it is not.
pub(crate) fn expected(skip: &str) -> Option<&'static str> {
    EXPECTED.iter().find(|(part, _)| skip.contains(part)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_told_from_other_output() {
        let bed = "SKIPPED: spark: a real bed; `cargo xtask beds` runs it\n";
        assert_eq!(of_line(bed), Some("spark: a real bed; `cargo xtask beds` runs it"));
        assert_eq!(of_line("test a::b ... SKIPPED: b: no root"), Some("b: no root"));
        assert_eq!(of_line("on the version 2 host: [\"SKIPPED: x\"]"), None);
        assert_eq!(of_line("test a::b ... ok"), None);
        assert!(expected(of_line(bed).unwrap()).is_some());
        assert_eq!(expected("b: no root"), None);
    }
}
