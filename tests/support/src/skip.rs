//! How a test reports that it was skipped. In: a reason. Out: a line that bypasses the test harness, which hides the
//! output of passed tests. Called by every test that may be skipped. So `cargo xtask ci` can count it, and names a skip
//! that is not on its list.

use std::io::Write;

/// What the line of a skipped test begins with.
pub const MARK: &str = "SKIPPED: ";

/// Says, in one line, that a test was skipped, and why.
pub fn skipped(test: &str, why: impl std::fmt::Display) {
    say(format_args!("{test}: {why}"));
}

/// The same in the caller's words: `TEST: WHY`.
pub fn say(what: impl std::fmt::Display) {
    let line = format!("{MARK}{what}").replace('\n', " ");
    // In one write, because other tests print at the same time. Nobody may be reading any more.
    _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The last part of a function's name, as [`std::any::type_name`] has it of a value inside it.
#[must_use]
pub fn last_name(path: &'static str) -> &'static str {
    let path = path.trim_end_matches("::{{closure}}");
    path.rsplit("::").find(|part| *part != "Here" && *part != "{{closure}}").unwrap_or(path)
}

/// Leaves the test function that it stands in, and says that it was skipped and why: `skip!("it takes root")`. The rest is
/// as in `format!`.
#[macro_export]
macro_rules! skip {
    ($($why:tt)+) => {{
        struct Here;
        $crate::skip::skipped($crate::skip::last_name(std::any::type_name::<Here>()), format_args!($($why)+));
        return;
    }};
}

/// Says that a test, or a part of one, was skipped and why: `skipped!("{test}: it takes root")`.
#[macro_export]
macro_rules! skipped {
    ($($what:tt)+) => {
        $crate::skip::say(format_args!($($what)+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_by_its_function() {
        struct Here;
        assert_eq!(last_name(std::any::type_name::<Here>()), "a_test_is_named_by_its_function");
        let inside = || {
            struct Here;
            last_name(std::any::type_name::<Here>())
        };
        assert_eq!(inside(), "a_test_is_named_by_its_function");
    }
}
