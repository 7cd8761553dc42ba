//! HTTP to Spark's web interfaces. In: an address. Out: a bounded answer. Called by `application` and `master`.

use std::time::{Duration, Instant};

use super::error::{SparkError, shortened};
use super::json::Document;
use crate::http;

/// Most of an answer that is read. Chosen: a driver that keeps 1,000 jobs answers with less than 1 MB, a master
/// with 10,000 workers with some 5 MB.
pub(super) const LONGEST_ANSWER: u64 = 16 << 20;

/// One server, asked with one deadline for everything a call wants of it.
#[derive(Debug)]
pub(super) struct Server {
    agent: ureq::Agent,
    base: String,
    time_limit: Duration,
}

/// When a server has to have answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    fn left(self) -> Duration {
        // Zero would be an error of the argument rather than of the time.
        self.0.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }
}

impl Server {
    /// `url` is `http://HOST:PORT`, with a path in front of Spark's own if it is behind a reverse proxy.
    pub(super) fn new(url: &str, time_limit: Duration) -> Result<Self, SparkError> {
        let base = url.trim_end_matches('/');
        let refuse = |problem| Err(SparkError::Argument { what: "the web interface", value: shortened(url), problem });
        let Some(rest) = base.strip_prefix("http://") else { return refuse("it must begin with http://") };
        let odd = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'?' | b'#' | b'@' | b'%');
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.len() > 512 || rest.bytes().any(odd) {
            return refuse("it must be http://HOST:PORT");
        }
        Ok(Self { agent: http::client(None), base: base.to_owned(), time_limit })
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline(Instant::now() + self.time_limit)
    }

    /// Asks for the JSON at `path`.
    pub(super) fn json(&self, path: &str, deadline: Deadline) -> Result<Document, SparkError> {
        let url = format!("{}{path}", self.base);
        let unreachable = |source| SparkError::Unreachable { url: url.clone(), source: Box::new(source) };
        let mut answer = http::get(&self.agent, &url, None, &[], deadline.left()).map_err(unreachable)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(SparkError::Status { url, status: status.as_u16() });
        }
        let body = match http::body(&mut answer, LONGEST_ANSWER) {
            Ok(body) => body,
            Err(ureq::Error::BodyExceedsLimit(limit_bytes)) => return Err(SparkError::TooLarge { url, limit_bytes }),
            Err(source) => return Err(unreachable(source)),
        };
        // A driver says so, with status 200, until its application has begun.
        if body.starts_with(b"Spark is starting up") {
            return Err(SparkError::StartingUp { url });
        }
        match serde_json::from_slice(&body) {
            Ok(root) => Ok(Document::new(url, root)),
            Err(source) => Err(SparkError::NotJson { url, source }),
        }
    }

    /// Posts nothing to `path` and returns the address and the status, whatever that is.
    pub(super) fn post(&self, path: &str, deadline: Deadline) -> Result<(String, u16), SparkError> {
        let url = format!("{}{path}", self.base);
        match http::post(&self.agent, &url, &[], deadline.left()) {
            Ok(answer) => Ok((url, answer.status().as_u16())),
            Err(source) => Err(SparkError::Unreachable { url, source: Box::new(source) }),
        }
    }
}
