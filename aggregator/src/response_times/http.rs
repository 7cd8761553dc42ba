//! Source `http`. In: a number in a JSON document. Out: a response time. Also the address that it and `prometheus` ask.

use std::time::Duration;

use gleaner_types::application::{ResponseTime, TimeUnit};
use serde_json::Value;

use super::answer::{LONGEST_QUOTE, WITHHELD, missing, quoted, shortened};
use super::error::SourceError;
use crate::http;

/// Most of an answer that is read. Chosen: far more than a page of statistics.
pub(super) const LONGEST_ANSWER: u64 = 1 << 20;
/// Longest address and longest pointer, in bytes.
const LONGEST_ADDRESS: usize = 2_048;

/// One address that is asked.
#[derive(Debug)]
pub(super) struct Address {
    agent: ureq::Agent,
    url: String,
    time_limit: Duration,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// How long a cache kept it, as it says.
    pub(super) age: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Address {
    /// # Errors
    /// [`SourceError::Url`].
    pub(super) fn new(url: &str, time_limit: Duration) -> Result<Self, SourceError> {
        let refuse = |rule| Err(SourceError::Url { url: quoted(&shown(url)), rule });
        let Some(rest) = url.strip_prefix("http://") else { return refuse("begin with http://") };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if url.len() > LONGEST_ADDRESS || !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains('#') {
            return refuse("be at most 2048 ASCII characters without blanks and `#`");
        }
        let port = host.rsplit(']').next().and_then(|rest| rest.split_once(':')).map(|(_, port)| port.parse::<u16>());
        let parsed = url.parse::<ureq::http::Uri>();
        let odd = host.is_empty() || host.starts_with(':') || host.contains('@');
        if odd || parsed.is_err() || port.is_some_and(|port| port.is_err()) {
            return refuse("be http://HOST:PORT/PATH");
        }
        Ok(Self { agent: http::client(None), url: url.to_owned(), time_limit })
    }

    /// Its name in messages: without the query, which may hold a secret.
    pub(super) fn name(&self) -> String {
        shortened(self.url.split('?').next().unwrap_or_default(), 80)
    }

    /// Asks, with `query` as the parameter of this name if there is one.
    ///
    /// # Errors
    /// What stands for no answer, or one that is too long.
    pub(super) fn get(&self, query: Option<&str>) -> Result<Answer, ResponseTime> {
        let mut answer =
            http::get(&self.agent, &self.url, query, self.time_limit).map_err(|error| self.no_answer(&error))?;
        let age = answer.headers().get("age").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let status = answer.status().as_u16();
        match http::body(&mut answer, LONGEST_ANSWER) {
            Ok(body) => Ok(Answer { status, age, body }),
            Err(ureq::Error::BodyExceedsLimit(limit)) => {
                Err(missing(format!("the answer of {} exceeds {limit} bytes", self.name())))
            }
            Err(error) => Err(self.no_answer(&error)),
        }
    }

    fn no_answer(&self, error: &ureq::Error) -> ResponseTime {
        match error {
            ureq::Error::Timeout(_) => {
                missing(format!("no answer from {} within {} s", self.name(), self.time_limit.as_secs_f64()))
            }
            error => missing(format!("no answer from {}: {error}", self.name())),
        }
    }
}

/// An address without its query, which may hold a secret. One with a user's name, and so maybe a password, is refused and
/// not shown at all.
pub(super) fn shown(url: &str) -> String {
    match url.split_once('?') {
        _ if url.contains('@') => WITHHELD.to_owned(),
        Some((before, _)) => format!("{before}?{WITHHELD}"),
        None => url.to_owned(),
    }
}

/// A number in a JSON document.
#[derive(Debug)]
pub(super) struct Document {
    address: Address,
    pointer: String,
    unit: TimeUnit,
    interval: Duration,
}

impl Document {
    pub(super) fn new(
        url: &str,
        pointer: &str,
        unit: TimeUnit,
        interval: Duration,
        time_limit: Duration,
    ) -> Result<Self, SourceError> {
        let address = Address::new(url, time_limit)?;
        if !(pointer.is_empty() || pointer.starts_with('/')) || pointer.len() > LONGEST_ADDRESS {
            return Err(SourceError::Pointer(quoted(pointer)));
        }
        Ok(Self { address, pointer: pointer.to_owned(), unit, interval })
    }

    pub(super) fn read(&self) -> ResponseTime {
        match self.address.get(None) {
            Ok(answer) => self.of(&answer),
            Err(time) => time,
        }
    }

    fn of(&self, answer: &Answer) -> ResponseTime {
        let name = self.address.name();
        if !(200..300).contains(&answer.status) {
            return missing(format!("{name} answered with HTTP status {}", answer.status));
        }
        if let Some(age) = &answer.age {
            match age.trim().parse::<u32>() {
                Ok(age) if f64::from(age) > self.interval.as_secs_f64() => {
                    return ResponseTime::Late { age_s: f64::from(age) };
                }
                Ok(_) => {}
                Err(_) => return missing(format!("Age: is {} in the answer of {name}", quoted(age))),
            }
        }
        let root: Value = match serde_json::from_slice(&answer.body) {
            Ok(root) => root,
            Err(error) => return missing(format!("the answer of {name} is not JSON: {error}")),
        };
        let Some(value) = root.pointer(&self.pointer) else {
            return missing(format!("there is no {} in the answer of {name}", quoted(&self.pointer)));
        };
        match value {
            // What JSON makes of 0/0.
            Value::Null => ResponseTime::Idle,
            Value::Number(number) => match number.as_f64() {
                Some(value) => ResponseTime::from_ms(value * milliseconds(self.unit)),
                None => ResponseTime::Absurd { value: shortened(&number.to_string(), LONGEST_QUOTE) },
            },
            Value::Array(_) | Value::Object(_) => {
                missing(format!("{} is a list or object, not a number, in the answer of {name}", quoted(&self.pointer)))
            }
            value => missing(format!(
                "{} is {}, not a number, in the answer of {name}",
                quoted(&self.pointer),
                quoted(&value.to_string())
            )),
        }
    }
}

const fn milliseconds(unit: TimeUnit) -> f64 {
    match unit {
        TimeUnit::Seconds => 1e3,
        TimeUnit::Milliseconds => 1.0,
        TimeUnit::Microseconds => 1e-3,
    }
}

/// The parser of an answer, for the fuzz targets: the first line points into the rest.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (pointer, body) = text.split_once('\n').unwrap_or(("/mean", text));
    let second = Duration::from_secs(1);
    if let Ok(document) = Document::new("http://h/stats", pointer, TimeUnit::Milliseconds, second, second) {
        _ = document.of(&Answer { status: 200, age: Some(pointer.to_owned()), body: body.into() });
        _ = document.of(&Answer { status: 200, age: None, body: body.into() });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(pointer: &str, unit: TimeUnit) -> Document {
        Document::new("http://h/stats?key=secret", pointer, unit, Duration::from_secs(30), Duration::from_secs(1))
            .unwrap()
    }

    fn of(pointer: &str, body: &str) -> ResponseTime {
        document(pointer, TimeUnit::Milliseconds).of(&Answer { status: 200, age: None, body: body.into() })
    }

    fn reason(time: &ResponseTime) -> &str {
        match time {
            ResponseTime::Missing { reason } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_number_is_read_in_its_unit() {
        for (unit, mean_ms) in
            [(TimeUnit::Seconds, 2_500.0), (TimeUnit::Milliseconds, 2.5), (TimeUnit::Microseconds, 0.0025)]
        {
            let answer = Answer { status: 200, age: None, body: br#"{"a":[{"b/c":2.5}]}"#.to_vec() };
            assert_eq!(document("/a/0/b~1c", unit).of(&answer), ResponseTime::Mean { mean_ms });
        }
        assert_eq!(of("", "7"), ResponseTime::Mean { mean_ms: 7.0 }, "the whole document");
    }

    #[test]
    fn a_value_that_is_no_number_is_reported() {
        assert_eq!(of("/a", r#"{"a":null}"#), ResponseTime::Idle);
        assert_eq!(reason(&of("/b", r#"{"a":1}"#)), "there is no `/b` in the answer of http://h/stats");
        assert_eq!(reason(&of("/a", r#"{"a":"1"}"#)), "`/a` is `\"1\"`, not a number, in the answer of http://h/stats");
        assert!(reason(&of("/a", r#"{"a":[1]}"#)).contains("a list or object"));
        assert!(reason(&of("/a", "<html>")).contains("not JSON"));
        assert!(reason(&of("/a", &"[".repeat(10_000))).contains("not JSON"));
        for absurd in ["0", "-3", "1e308", "3600001"] {
            assert!(matches!(of("", absurd), ResponseTime::Absurd { .. }), "{absurd}");
        }
        assert!(reason(&of("", "1e999")).contains("not JSON"));
    }

    #[test]
    fn a_kept_answer_is_late_when_older_than_an_interval() {
        let aged = |age: &str| {
            let answer = Answer { status: 200, age: Some(age.to_owned()), body: b"7".to_vec() };
            document("", TimeUnit::Milliseconds).of(&answer)
        };
        assert_eq!(aged("30"), ResponseTime::Mean { mean_ms: 7.0 });
        assert_eq!(aged("31"), ResponseTime::Late { age_s: 31.0 });
        assert!(reason(&aged("soon")).starts_with("Age: is `soon`"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(pointer in "/.{0,40}|", body in ".{0,200}|[\\[{\"a:1.e9,}\\-\\]]{0,80}", age in ".{0,12}") {
            let answer = Answer { status: 200, age: Some(age), body: body.into_bytes() };
            if let ResponseTime::Missing { reason } = document(&pointer, TimeUnit::Seconds).of(&answer) {
                prop_assert!(reason.chars().count() <= crate::response_times::LONGEST_REASON);
            }
        }

        #[test]
        fn no_address_makes_it_panic(url in "(http://)?.{0,60}") {
            _ = Address::new(&url, Duration::from_secs(1));
        }
    }
}
