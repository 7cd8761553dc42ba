//! Errors between the aggregator and Spark, and the texts that become part of an address. In: what went wrong; the name
//! of an application or a host. Out: a [`SparkError`], whose kind tells callers what to do; a checked name. Called by
//! `application`, `master`, `http`, `json`, `options` and the runner.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long one server may take to answer everything a call asks of it. Chosen: the runner polls once a second.
pub(super) const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(2);

/// What callers do about an error depends on this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// What was asked for is not there.
    Absent,
    /// The answer, or an argument, is not what it must be.
    Malformed,
    /// The server refuses; asking again changes nothing.
    Denied,
    /// Asking again later may help.
    Transient,
}

/// Spark could not be asked, or its answer not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SparkError {
    /// No answer, or not in time.
    #[error("failed to get an answer from {url}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why there is none.
        source: Box<ureq::Error>,
    },
    /// A driver answers before its application is ready.
    #[error("{url} says that Spark is still starting up")]
    StartingUp {
        /// What was asked.
        url: String,
    },
    /// An HTTP status that is no success.
    #[error("{url} answered with HTTP status {status}")]
    Status {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
    },
    /// The master's web interface may not be used to let workers go.
    #[error(
        "{url} refuses to decommission workers (HTTP status {status}); the master needs spark.decommission.enabled=true \
         and, unless asked from its own machine, spark.master.ui.decommission.allow.mode=ALLOW"
    )]
    DecommissionRefused {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
    },
    /// An answer longer than any sensible one.
    #[error("the answer of {url} exceeds {limit_bytes} bytes")]
    TooLarge {
        /// What was asked.
        url: String,
        /// The most that is read.
        limit_bytes: u64,
    },
    /// An answer that is no JSON.
    #[error("the answer of {url} is not JSON")]
    NotJson {
        /// What was asked.
        url: String,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// A field that is missing or of the wrong type or size.
    #[error("in the answer of {url}, {field} is {found} and not {expected}")]
    Malformed {
        /// What was asked.
        url: String,
        /// The field's path within the answer.
        field: String,
        /// Its value, shortened, or "missing".
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An argument that cannot be used.
    #[error("{what} {value:?} cannot be used: {problem}")]
    Argument {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl SparkError {
    /// What kind of error it is.
    #[must_use]
    pub(super) const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. } | Self::StartingUp { .. } => ErrorKind::Transient,
            Self::Status { status: 404 | 410, .. } => ErrorKind::Absent,
            Self::Status { status: 400..=499, .. } | Self::DecommissionRefused { .. } => ErrorKind::Denied,
            Self::Status { .. } => ErrorKind::Transient,
            Self::TooLarge { .. } | Self::NotJson { .. } | Self::Malformed { .. } | Self::Argument { .. } => {
                ErrorKind::Malformed
            }
        }
    }
}

/// An application's name in its cluster, such as `app-20261121064910-0000`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ApplicationId(String);

impl fmt::Display for ApplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// At most 128 letters, digits, `-` and `_`, because it becomes part of an address.
impl FromStr for ApplicationId {
    type Err = SparkError;
    fn from_str(text: &str) -> Result<Self, SparkError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if (1..=128).contains(&text.len()) && text.bytes().all(good) {
            return Ok(Self(text.to_owned()));
        }
        let problem = "it must be 1 to 128 letters, digits, - and _";
        Err(SparkError::Argument { what: "the application", value: shortened(text), problem })
    }
}

/// Checks a worker's host: a name or an address without a port.
pub(super) fn check_host(host: &str) -> Result<(), SparkError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'[' | b']');
    if (1..=253).contains(&host.len()) && !host.starts_with('-') && host.bytes().all(good) {
        return Ok(());
    }
    let problem = "it must be a host name or an address";
    Err(SparkError::Argument { what: "the host", value: shortened(host), problem })
}

/// The beginning of something that is quoted in a message.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
