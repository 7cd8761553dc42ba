//! A client of etcd's version 3 API, over its JSON gateway (`/v3/...`; etcd 3.4 and later). In: the few calls that the
//! election and the replica need. Out: etcd's answers. In the gateway's JSON, keys and values are base64, 64-bit
//! numbers are texts, and zero or false fields are left out.
//!
//! Calls block. Each endpoint is asked in turn, beginning with the one that answered last.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::http::{self, TlsError, TlsFiles};

/// Most of an answer that is read. Chosen: a value is at most 1 MiB (1.4 MB as base64), and an answer has one.
const LONGEST_ANSWER: u64 = 8 << 20;
/// Longest part of an error that is shown.
const LONGEST_MESSAGE: usize = 300;

/// etcd could not be asked, or its answer not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EtcdError {
    /// No endpoint answers. What was asked may have been done all the same.
    #[error("no etcd answers: {0}")]
    Unreachable(String),
    /// It says no.
    #[error("etcd refuses {call}: {message}")]
    Refused {
        /// What was asked.
        call: &'static str,
        /// Its words.
        message: String,
    },
    /// It answers something else.
    #[error("etcd's answer to {call} makes no sense: {what}")]
    Malformed {
        /// What was asked.
        call: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// What is malformed in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Malformed {
    /// A field that should be a number.
    #[error("{0} is no number")]
    NoNumber(&'static str),
    /// A value in another encoding.
    #[error("a value is not base64")]
    NotBase64,
}

impl Malformed {
    fn in_answer_to(self, call: &'static str) -> EtcdError {
        EtcdError::Malformed { call, what: self.to_string() }
    }
}

/// A client.
#[derive(Debug)]
pub(crate) struct Etcd {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
    /// For each endpoint.
    time_limit: Duration,
}

/// A key and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyValue {
    pub(crate) value: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

/// What came of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// Of the store, after it.
    pub(crate) revision: i64,
    /// Per operation, for those that read.
    pub(crate) found: Vec<Option<KeyValue>>,
}

/// What must hold for a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare<'a> {
    /// The key was created at this revision; 0: it is not there.
    Created(&'a str, i64),
    /// The key was written last at this revision; 0: it is not there.
    Modified(&'a str, i64),
}

/// What a transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    /// Writes a key, which ends with a lease unless that is 0.
    Put { key: &'a str, value: &'a [u8], lease: i64 },
    /// Reads a key.
    Get { key: &'a str },
    /// Deletes all keys from this one to before that one.
    Delete { from: &'a str, before: &'a str },
}

impl Compare<'_> {
    fn as_json(self) -> Value {
        match self {
            Self::Created(key, revision) => json!({
                "key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string(),
            }),
            Self::Modified(key, revision) => json!({
                "key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
            }),
        }
    }
}

impl Operation<'_> {
    fn as_json(self) -> Value {
        match self {
            Self::Put { key, value, lease } => {
                json!({ "request_put": { "key": encoded(key), "value": encoded(value), "lease": lease.to_string() } })
            }
            Self::Get { key } => json!({ "request_range": { "key": encoded(key) } }),
            Self::Delete { from, before } => {
                json!({ "request_delete_range": { "key": encoded(from), "range_end": encoded(before) } })
            }
        }
    }
}

/// The body of a transaction.
pub(crate) fn transaction(compare: &[Compare<'_>], success: &[Operation<'_>], failure: &[Operation<'_>]) -> Value {
    let all = |operations: &[Operation<'_>]| operations.iter().map(|one| one.as_json()).collect::<Vec<_>>();
    let compare: Vec<Value> = compare.iter().map(|one| one.as_json()).collect();
    json!({ "compare": compare, "success": all(success), "failure": all(failure) })
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

/// A 64-bit number of an answer; what is left out is 0.
fn number(value: &Value, field: &'static str) -> Result<i64, Malformed> {
    match value.get(field) {
        None => Ok(0),
        Some(Value::String(text)) => text.parse().map_err(|_| Malformed::NoNumber(field)),
        Some(other) => other.as_i64().ok_or(Malformed::NoNumber(field)),
    }
}

/// The first key of a range's answer.
fn first_key(range: &Value) -> Result<Option<KeyValue>, Malformed> {
    let Some(first) = range.get("kvs").and_then(|all| all.get(0)) else { return Ok(None) };
    let value = first.get("value").and_then(Value::as_str).unwrap_or_default();
    Ok(Some(KeyValue {
        value: BASE64.decode(value).map_err(|_| Malformed::NotBase64)?,
        created: number(first, "create_revision")?,
        modified: number(first, "mod_revision")?,
        lease: number(first, "lease")?,
    }))
}

fn outcome(answer: &Value) -> Result<Outcome, Malformed> {
    let empty = Vec::new();
    let responses = answer.get("responses").and_then(Value::as_array).unwrap_or(&empty);
    let found = responses.iter().map(|one| one.get("response_range").map_or(Ok(None), first_key));
    Ok(Outcome {
        succeeded: answer.get("succeeded").and_then(Value::as_bool).unwrap_or(false),
        revision: number(answer.get("header").unwrap_or(&Value::Null), "revision")?,
        found: found.collect::<Result<_, _>>()?,
    })
}

fn shortened(text: &str) -> String {
    let clean = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(LONGEST_MESSAGE).collect()
}

impl Etcd {
    /// # Errors
    /// A certificate that cannot be used.
    pub(crate) fn new(endpoints: &[String], tls: Option<&TlsFiles>, time_limit: Duration) -> Result<Self, TlsError> {
        let tls = tls.map(TlsFiles::load).transpose()?;
        Ok(Self { agent: http::client(tls), endpoints: endpoints.to_vec(), current: 0, time_limit })
    }

    /// Asks the endpoints in turn until one answers with success.
    fn call(&mut self, call: &'static str, body: &Value) -> Result<Value, EtcdError> {
        let body = body.to_string();
        let mut unreachable = Vec::new();
        let mut refused = None;
        for step in 0..self.endpoints.len() {
            let index = (self.current + step) % self.endpoints.len();
            let endpoint = &self.endpoints[index];
            match ask(&self.agent, &format!("{endpoint}/v3/{call}"), &body, self.time_limit) {
                Ok((status, answer)) if (200..300).contains(&status) => {
                    self.current = index;
                    let malformed = |error: serde_json::Error| EtcdError::Malformed { call, what: error.to_string() };
                    return serde_json::from_slice(&answer).map_err(malformed);
                }
                // A member without a leader says no as well; the next may know better.
                Ok((status, answer)) => {
                    let document: Option<Value> = serde_json::from_slice(&answer).ok();
                    let message = document
                        .as_ref()
                        .and_then(|document| document.get("message").or_else(|| document.get("error")));
                    let message = message.and_then(Value::as_str).unwrap_or_default();
                    let message = shortened(&format!("{message} (HTTP status {status} of {endpoint})"));
                    refused = Some(EtcdError::Refused { call, message });
                }
                Err(error) => unreachable.push(format!("{endpoint}: {error}")),
            }
        }
        Err(refused.unwrap_or_else(|| EtcdError::Unreachable(shortened(&unreachable.join("; ")))))
    }

    /// A new lease of so many seconds: its id and the seconds etcd gives it, which may be more.
    pub(crate) fn grant(&mut self, ttl_s: u64) -> Result<(i64, u64), EtcdError> {
        const CALL: &str = "lease/grant";
        let answer = self.call(CALL, &json!({ "TTL": ttl_s.to_string() }))?;
        let read = || Ok((number(&answer, "ID")?, u64::try_from(number(&answer, "TTL")?).unwrap_or(0)));
        match read() {
            Ok((id, ttl_s)) if id != 0 && ttl_s > 0 => Ok((id, ttl_s)),
            Ok(_) => Err(EtcdError::Malformed { call: CALL, what: "there is no lease in it".into() }),
            Err(nonsense) => Err(Malformed::in_answer_to(nonsense, CALL)),
        }
    }

    /// Renews a lease: the seconds it has from now on; `None` when it is over.
    pub(crate) fn keep_alive(&mut self, lease: i64) -> Result<Option<u64>, EtcdError> {
        const CALL: &str = "lease/keepalive";
        let answer = self.call(CALL, &json!({ "ID": lease.to_string() }))?;
        let ttl_s = number(answer.get("result").unwrap_or(&Value::Null), "TTL");
        let ttl_s = ttl_s.map_err(|nonsense| nonsense.in_answer_to(CALL))?;
        Ok(u64::try_from(ttl_s).ok().filter(|ttl_s| *ttl_s > 0))
    }

    /// Ends a lease, and the keys that live by it.
    pub(crate) fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() })).map(|_| ())
    }

    /// What a key holds, as agreed by a majority of the members.
    pub(crate) fn get(&mut self, key: &str) -> Result<Option<KeyValue>, EtcdError> {
        const CALL: &str = "kv/range";
        let answer = self.call(CALL, &json!({ "key": encoded(key) }))?;
        first_key(&answer).map_err(|nonsense| nonsense.in_answer_to(CALL))
    }

    /// Does a [`transaction`].
    pub(crate) fn transact(&mut self, transaction: &Value) -> Result<Outcome, EtcdError> {
        const CALL: &str = "kv/txn";
        let answer = self.call(CALL, transaction)?;
        outcome(&answer).map_err(|nonsense| nonsense.in_answer_to(CALL))
    }

    /// Forgets what keys held before a revision.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), EtcdError> {
        self.call("kv/compaction", &json!({ "revision": revision.to_string() })).map(|_| ())
    }
}

fn ask(agent: &ureq::Agent, url: &str, body: &str, time_limit: Duration) -> Result<(u16, Vec<u8>), ureq::Error> {
    let mut answer = http::post(agent, url, body.as_bytes(), time_limit)?;
    let status = answer.status().as_u16();
    Ok((status, http::body(&mut answer, LONGEST_ANSWER)?))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(answer) = serde_json::from_slice(data) {
        _ = outcome(&answer);
        _ = first_key(&answer);
        _ = number(&answer, "TTL");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_transaction_is_built_as_the_gateway_takes_it() {
        let built = transaction(
            &[Compare::Created("/g/leader", 0), Compare::Modified("/g/epoch", 7)],
            &[
                Operation::Put { key: "/g/leader", value: b"a", lease: 5 },
                Operation::Delete { from: "/g/x/", before: "/g/x/9" },
            ],
            &[Operation::Get { key: "/g/leader" }],
        );
        let expected = json!({
            "compare": [
                { "key": "L2cvbGVhZGVy", "target": "CREATE", "result": "EQUAL", "create_revision": "0" },
                { "key": "L2cvZXBvY2g=", "target": "MOD", "result": "EQUAL", "mod_revision": "7" },
            ],
            "success": [
                { "request_put": { "key": "L2cvbGVhZGVy", "value": "YQ==", "lease": "5" } },
                { "request_delete_range": { "key": "L2cveC8=", "range_end": "L2cveC85" } },
            ],
            "failure": [{ "request_range": { "key": "L2cvbGVhZGVy" } }],
        });
        assert_eq!(built, expected);
    }

    #[test]
    fn an_outcome_is_read_with_what_is_left_out() {
        let failed = json!({
            "header": { "revision": "12" },
            "responses": [
                { "response_range": { "kvs": [{ "value": "YQ==", "create_revision": "3", "mod_revision": "4" }] } },
                { "response_range": {} },
            ],
        });
        let read = outcome(&failed).unwrap();
        assert!(!read.succeeded && read.revision == 12);
        let first = KeyValue { value: b"a".to_vec(), created: 3, modified: 4, lease: 0 };
        assert_eq!(read.found, [Some(first), None]);
        for bad in [json!({ "header": { "revision": "x" } }), json!({ "header": { "revision": 1.5 } })] {
            assert!(outcome(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_names_every_endpoint_that_does_not_answer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let endpoints = [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")];
        let mut etcd = Etcd::new(&endpoints, None, Duration::from_secs(1)).unwrap();
        let Err(EtcdError::Unreachable(said)) = etcd.get("/k") else { panic!("somebody answers") };
        assert!(endpoints.iter().all(|endpoint| said.contains(endpoint)), "{said}");
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(\\{|\\}|\\[|\\]|\"(kvs|value|revision|header|responses|response_range|TTL|ID)\"|:|,|\"[0-9a-z=]{0,6}\"|[0-9.e-]{1,5}){0,40}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                _ = outcome(&value);
                _ = first_key(&value);
            }
        }
    }
}
