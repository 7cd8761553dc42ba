//! Source `http`. In: a number in a JSON document. Out: a response time. Also the address that it and `prometheus` ask.

use std::string::FromUtf8Error;
use std::time::Duration;

use gleaner_types::application::{Access, ResponseTime, TimeUnit};
use gleaner_types::error::chain;
use serde_json::Value;

use super::access::{self, Token};
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
    /// Kept between questions; over HTTPS there is one for each.
    plain: Option<ureq::Agent>,
    url: String,
    access: Access,
    accept: Option<&'static str>,
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
    /// [`SourceError::Url`], [`SourceError::Access`].
    pub(super) fn new(url: &str, access: &Access, time_limit: Duration) -> Result<Self, SourceError> {
        let refuse = |rule| Err(SourceError::Url { url: quoted(&shown(url)), rule });
        let plain = url.strip_prefix("http://");
        let Some(rest) = plain.or_else(|| url.strip_prefix("https://")) else {
            return refuse("begin with http:// or https://");
        };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if url.len() > LONGEST_ADDRESS || !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains('#') {
            return refuse("be at most 2048 ASCII characters without blanks and `#`");
        }
        let port = host.rsplit(']').next().and_then(|rest| rest.split_once(':')).map(|(_, port)| port.parse::<u16>());
        let parsed = url.parse::<ureq::http::Uri>();
        let odd = host.is_empty() || host.starts_with(':') || host.contains('@');
        if odd || parsed.is_err() || port.is_some_and(|port| port.is_err()) {
            return refuse("be http://HOST:PORT/PATH, or https");
        }
        access::check(access, url)?;
        let plain = plain.map(|_| http::client(None));
        Ok(Self { plain, url: url.to_owned(), access: access.clone(), accept: None, time_limit })
    }

    /// The same, asked for these types of documents.
    pub(super) fn accepting(self, accept: &'static str) -> Self {
        Self { accept: Some(accept), ..self }
    }

    /// Its name in messages: without the query, which may hold a secret.
    pub(super) fn name(&self) -> String {
        shortened(self.url.split('?').next().unwrap_or_default(), 80)
    }

    /// Asks, with `query` as the parameter of this name if there is one.
    ///
    /// # Errors
    /// What stands for no answer, or one of more than `longest` bytes.
    pub(super) fn get(&self, query: Option<&str>, longest: u64) -> Result<Answer, ResponseTime> {
        let (client, token) = match &self.plain {
            Some(client) => (client.clone(), None),
            None => access::open(&self.access).map_err(|error| missing(chain(&error)))?,
        };
        let withhold = |text: String| token.iter().fold(text, |text, token| token.withhold(text));
        let no_answer = |error: &ureq::Error| missing(withhold(self.no_answer(error)));
        let authorization = token.as_ref().map(Token::header);
        let headers = [("Accept", self.accept), ("Authorization", authorization.as_deref())];
        let headers: Vec<(&str, &str)> = headers.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        let mut answer =
            http::get(&client, &self.url, query, &headers, self.time_limit).map_err(|error| no_answer(&error))?;
        let age = answer.headers().get("age").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let (status, age) = (answer.status().as_u16(), age.map(withhold));
        let body = http::body(&mut answer, longest).map_err(|error| no_answer(&error))?;
        // What is not text holds no message.
        let body = String::from_utf8(body).map_or_else(FromUtf8Error::into_bytes, |text| withhold(text).into_bytes());
        Ok(Answer { status, age, body })
    }

    fn no_answer(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => {
                format!("no answer from {} within {} s", self.name(), self.time_limit.as_secs_f64())
            }
            ureq::Error::BodyExceedsLimit(limit) => format!("the answer of {} exceeds {limit} bytes", self.name()),
            error => format!("no answer from {}: {error}", self.name()),
        }
    }
}

impl Answer {
    /// Its document, if the status says that it is one.
    ///
    /// # Errors
    /// What stands for another status, or for a document that a cache kept for longer than an interval.
    pub(super) fn document(self, name: &str, interval: Duration) -> Result<Vec<u8>, ResponseTime> {
        if !(200..300).contains(&self.status) {
            return Err(missing(format!("{name} answered with HTTP status {}", self.status)));
        }
        let Some(age) = &self.age else { return Ok(self.body) };
        match age.trim().parse::<u32>() {
            Ok(age) if f64::from(age) > interval.as_secs_f64() => Err(ResponseTime::Late { age_s: f64::from(age) }),
            Ok(_) => Ok(self.body),
            Err(_) => Err(missing(format!("Age: is {} in the answer of {name}", quoted(age)))),
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
        access: &Access,
        pointer: &str,
        unit: TimeUnit,
        interval: Duration,
        time_limit: Duration,
    ) -> Result<Self, SourceError> {
        let address = Address::new(url, access, time_limit)?;
        if !(pointer.is_empty() || pointer.starts_with('/')) || pointer.len() > LONGEST_ADDRESS {
            return Err(SourceError::Pointer(quoted(pointer)));
        }
        Ok(Self { address, pointer: pointer.to_owned(), unit, interval })
    }

    pub(super) fn read(&self) -> ResponseTime {
        self.address.get(None, LONGEST_ANSWER).map_or_else(|time| time, |answer| self.of(answer))
    }

    fn of(&self, answer: Answer) -> ResponseTime {
        let name = self.address.name();
        let body = match answer.document(&name, self.interval) {
            Ok(body) => body,
            Err(time) => return time,
        };
        let root: Value = match serde_json::from_slice(&body) {
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

pub(super) const fn milliseconds(unit: TimeUnit) -> f64 {
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
    if let Ok(document) =
        Document::new("http://h/stats", &Access::default(), pointer, TimeUnit::Milliseconds, second, second)
    {
        _ = document.of(Answer { status: 200, age: Some(pointer.to_owned()), body: body.into() });
        _ = document.of(Answer { status: 200, age: None, body: body.into() });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(pointer: &str, unit: TimeUnit) -> Document {
        let (interval, limit) = (Duration::from_secs(30), Duration::from_secs(1));
        Document::new("http://h/stats?key=secret", &Access::default(), pointer, unit, interval, limit).unwrap()
    }

    fn of(pointer: &str, body: &str) -> ResponseTime {
        document(pointer, TimeUnit::Milliseconds).of(Answer { status: 200, age: None, body: body.into() })
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
            assert_eq!(document("/a/0/b~1c", unit).of(answer), ResponseTime::Mean { mean_ms });
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
            document("", TimeUnit::Milliseconds).of(answer)
        };
        assert_eq!(aged("30"), ResponseTime::Mean { mean_ms: 7.0 });
        assert_eq!(aged("31"), ResponseTime::Late { age_s: 31.0 });
        assert!(reason(&aged("soon")).starts_with("Age: is `soon`"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(pointer in "/.{0,40}|", body in ".{0,200}|[\\[{\"a:1.e9,}\\-\\]]{0,80}", age in ".{0,12}") {
            let answer = Answer { status: 200, age: Some(age), body: body.into_bytes() };
            if let ResponseTime::Missing { reason } = document(&pointer, TimeUnit::Seconds).of(answer) {
                prop_assert!(reason.chars().count() <= crate::response_times::LONGEST_REASON);
            }
        }

        #[test]
        fn no_address_makes_it_panic(url in "(http://)?.{0,60}") {
            _ = Address::new(&url, &Access::default(), Duration::from_secs(1));
        }
    }
}
