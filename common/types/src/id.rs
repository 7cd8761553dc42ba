//! Identifiers of hosts, jobs, users, workloads and reservations. In: text from certificates, config files, guests' names and other input.
//! Out: identifiers of bounded length, without characters that act on terminals and logs. Every crate uses them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::{harmless, is_harmless};

/// A text is not a valid identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?} is not valid: {rule}")]
pub struct InvalidId {
    kind: &'static str,
    text: String,
    rule: &'static str,
}

impl InvalidId {
    /// A text of any length that breaks a rule.
    pub(crate) fn of(kind: &'static str, text: &str, rule: &'static str) -> Self {
        Self { kind, text: text.chars().take(64).collect(), rule }
    }
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal, $ok:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            #[doc = concat!("Builds the identifier. Rule: ", $rule, ".")]
            ///
            /// # Errors
            /// [`InvalidId`] naming the rule that was broken.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                let valid: fn(&str) -> bool = $ok;
                if !text.is_empty() && text.len() <= $max && valid(&text) {
                    Ok(Self(text))
                } else {
                    let text = text.chars().take($max).collect();
                    Err(InvalidId { kind: $kind, text, rule: $rule })
                }
            }

            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }
    };
}

fn is_dns_label_text(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && text.split('.').all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'))
}

identifier! {
    /// A physical machine that runs an agent. It is also the DNS name in the host's certificate.
    HostId, "host name", 63, is_dns_label_text,
    "1 to 63 lower-case letters, digits, hyphens and dots, as in a DNS name"
}

identifier! {
    /// A background job.
    JobId, "job name", 64,
    |text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.') && !text.starts_with('.'),
    "1 to 64 letters, digits, hyphens, underscores and dots, not starting with a dot"
}

identifier! {
    /// A foreground workload (a guest, a Xen domain or a cgroup) on one host.
    WorkloadId, "workload name", 256,
    |text| text.chars().all(is_harmless),
    "1 to 256 bytes without control characters and marks of writing direction"
}

identifier! {
    /// What a guest is called by whoever manages it: a name, a title, a number, a UUID.
    GuestText, "text about a guest", 256,
    |text| text.chars().all(is_harmless),
    "1 to 256 bytes without control characters and marks of writing direction"
}

identifier! {
    /// A user's reservation of nodes, as an operator names it.
    ReservationId, "lease name", 256,
    |text| text.chars().all(is_harmless),
    "1 to 256 bytes without control characters and marks of writing direction"
}

identifier! {
    /// A user who submits jobs: the login name, or its number where it has none.
    UserName, "user name", 256,
    |text| text.chars().all(|c| is_harmless(c) && c != '/') && text.trim() == text,
    "1 to 256 bytes without control characters, marks of writing direction, slashes and blanks around it"
}

identifier! {
    /// A foreground application with a response-time target.
    ApplicationId, "application name", 64,
    |text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.') && !text.starts_with('.'),
    "1 to 64 letters, digits, hyphens, underscores and dots, not starting with a dot"
}

identifier! {
    /// A tier of an application.
    TierId, "tier name", 64,
    |text| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.') && !text.starts_with('.'),
    "1 to 64 letters, digits, hyphens, underscores and dots, not starting with a dot"
}

impl HostId {
    /// The name of this machine.
    ///
    /// # Errors
    /// [`InvalidId`] when the machine's own name is not valid as one.
    pub fn of_this_machine() -> Result<Self, InvalidId> {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self::new(own.trim().to_lowercase())
    }
}

/// What stands between a job's name and the number of its run, from the second run on.
const RUN: &str = ".run-";

impl JobId {
    /// The name that the job was submitted by: a name may be used again once its job has ended, and then the next one's
    /// identifier is the name with the number of the run, as in `tiles.run-2`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.split().map_or(self.as_str(), |(name, _)| name)
    }

    /// Which run of its name it is, from 1.
    #[must_use]
    pub fn run(&self) -> u32 {
        self.split().map_or(1, |(_, run)| run)
    }

    /// It says which run is meant, not only the name.
    #[must_use]
    pub fn is_of_a_run(&self) -> bool {
        self.split().is_some()
    }

    /// The identifier of a later run of this name.
    ///
    /// # Errors
    /// [`InvalidId`] where the name is too long for a number behind it.
    pub fn of_run(name: &str, run: u32) -> Result<Self, InvalidId> {
        Self::new(format!("{name}{RUN}{run}"))
    }

    fn split(&self) -> Option<(&str, u32)> {
        let (name, run) = self.as_str().rsplit_once(RUN)?;
        let run: u32 = run.parse().ok().filter(|number| *number > 0 && number_is_plain(run))?;
        (!name.is_empty()).then_some((name, run))
    }
}

/// Digits alone, without zeros in front: of one number there is one text.
fn number_is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0')
}

impl WorkloadId {
    /// An identifier from text that a guest controls: what is not harmless becomes `?`, the rest is cut to
    /// fit, and an empty text becomes `unnamed`.
    #[must_use]
    pub fn from_untrusted(text: &str) -> Self {
        let mut clean = harmless_beginning(text);
        if clean.is_empty() {
            clean.push_str("unnamed");
        }
        Self(clean)
    }
}

impl GuestText {
    /// The text with `?` for what is not harmless, and cut to fit; `None` of one that is empty or blank.
    #[must_use]
    pub fn from_untrusted(text: &str) -> Option<Self> {
        Some(harmless_beginning(text.trim())).filter(|clean| !clean.is_empty()).map(Self)
    }

    /// What is called nothing.
    #[must_use]
    pub fn unnamed() -> Self {
        Self("unnamed".to_owned())
    }
}

/// The first 256 bytes of a text with `?` for what is not harmless.
fn harmless_beginning(text: &str) -> String {
    let mut clean = harmless(text);
    if clean.len() > 256 {
        let mut end = 256;
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_dns_names() {
        assert!(HostId::new("lab-07.example.org").is_ok());
        for bad in ["", "Lab", "-a", "a-", "a..b", "a/b", &"x".repeat(64)] {
            assert!(HostId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn guest_controlled_names_are_made_harmless() {
        assert_eq!(WorkloadId::from_untrusted("a\nb\u{1b}[2J\u{202e}").as_str(), "a?b?[2J?");
        assert!(WorkloadId::new("a\u{9b}31m").is_err() && WorkloadId::new("a\u{202e}b").is_err());
        assert_eq!(WorkloadId::from_untrusted("").as_str(), "unnamed");
        assert_eq!(WorkloadId::from_untrusted(&"é".repeat(200)).as_str().len(), 256);
        assert_eq!(GuestText::from_untrusted(" web\n1 ").unwrap().as_str(), "web?1");
        assert_eq!(GuestText::from_untrusted(&"é".repeat(200)).unwrap().as_str().len(), 256);
        assert_eq!(GuestText::from_untrusted(" \n"), None);
    }

    #[test]
    fn names_of_reservations_act_on_no_terminal() {
        assert!(ReservationId::new("course, second term").is_ok());
        for bad in ["", "a\u{1b}[2J", "a\nb", "a\u{202e}b", &"x".repeat(257)] {
            assert!(ReservationId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_job_has_a_name_and_a_run() {
        let parts = |text: &str| {
            let id = JobId::new(text).unwrap();
            (id.name().to_owned(), id.run(), id.is_of_a_run())
        };
        assert_eq!(parts("tiles"), ("tiles".into(), 1, false));
        assert_eq!(parts("tiles.run-12"), ("tiles".into(), 12, true));
        assert_eq!(parts("v1.2"), ("v1.2".into(), 1, false));
        for plain in ["a.run-", "a.run-0", "a.run-02", "a.run-x", "a.run-4294967296"] {
            assert_eq!(parts(plain), (plain.into(), 1, false));
        }
        assert_eq!(JobId::of_run("tiles", 2).unwrap().as_str(), "tiles.run-2");
        assert!(JobId::of_run(&"x".repeat(60), 2).is_err());
    }

    #[test]
    fn decoding_applies_the_rule() {
        assert!(serde_json::from_str::<JobId>("\"../etc\"").is_err());
        assert!(serde_json::from_str::<JobId>("\"word-count_1\"").is_ok());
    }
}
