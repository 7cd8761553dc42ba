//! Source `prometheus`. In: an instant query, in seconds (Prometheus' manual, "HTTP API", "Instant queries"). Out: a
//! response time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gleaner_types::application::{Access, ResponseTime};
use gleaner_types::text::duration;
use serde_json::Value;

use super::answer::{missing, quoted};
use super::error::{LONGEST_QUERY, SourceError};
use super::http::{Address, LONGEST_ANSWER, shown};

/// One query to one server.
#[derive(Debug)]
pub(super) struct Prometheus {
    address: Address,
    query: String,
    interval: Duration,
}

impl Prometheus {
    pub(super) fn new(
        url: &str,
        access: &Access,
        query: &str,
        interval: Duration,
        time_limit: Duration,
    ) -> Result<Self, SourceError> {
        if url.contains('?') {
            let rule = "be http://HOST:PORT or https, with a path if there is one";
            return Err(SourceError::Url { url: quoted(&shown(url)), rule });
        }
        // First as it is, so that an error quotes what was written.
        Address::new(url, access, time_limit)?;
        let address = Address::new(&format!("{}/api/v1/query", url.trim_end_matches('/')), access, time_limit)?;
        if query.trim().is_empty() || query.len() > LONGEST_QUERY {
            return Err(SourceError::Query(quoted(query)));
        }
        Ok(Self { address, query: query.to_owned(), interval })
    }

    pub(super) fn read(&self) -> ResponseTime {
        let answer = match self.address.get(Some(&self.query), LONGEST_ANSWER) {
            Ok(answer) => answer,
            Err(time) => return time,
        };
        let root: Option<Value> = serde_json::from_slice(&answer.body).ok();
        // Errors come as JSON too, with statuses such as 400 and 422.
        match root.filter(|root| root.get("status").is_some()) {
            Some(root) => self.of(&root, SystemTime::now()),
            None if (200..300).contains(&answer.status) => {
                missing(format!("the answer of {} is none of Prometheus'", self.address.name()))
            }
            None => missing(format!("{} answered with HTTP status {}", self.address.name(), answer.status)),
        }
    }

    fn of(&self, root: &Value, now: SystemTime) -> ResponseTime {
        match sample(root) {
            Ok((at_s, value_s)) => self.judged(at_s, value_s, now),
            Err(error) => missing(error.to_string()),
        }
    }

    /// `at_s` is by the server's clock; the wall's, not the process's own, is what it may be compared with.
    fn judged(&self, at_s: f64, value_s: f64, now: SystemTime) -> ResponseTime {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (age_s, interval_s) = (now_s - at_s, self.interval.as_secs_f64());
        if !at_s.is_finite() || age_s < -interval_s {
            return missing(format!("the sample is of {} in the future; one of the clocks is wrong", duration(-age_s)));
        }
        if age_s > interval_s {
            return ResponseTime::Late { age_s };
        }
        match value_s.is_nan() {
            true => ResponseTime::Idle,
            false => ResponseTime::from_ms(value_s * 1e3),
        }
    }
}

/// An answer holds no sample. What the texts quote is shortened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum SampleError {
    #[error("Prometheus says {kind}: {message}")]
    Refused { kind: String, message: String },
    #[error("status: is {0}; it must be success")]
    Status(String),
    #[error("data.resultType: is {0}; the query must give a scalar or a vector of one sample")]
    ResultType(String),
    #[error("data.result is not a list")]
    NoList,
    #[error("the query has no result")]
    NoResult,
    #[error("the query has {0} results; it must have one")]
    ManyResults(usize),
    #[error("the result is a histogram; the query must give a number")]
    Histogram,
    #[error("the sample is not a pair of time and value")]
    NoPair,
    #[error("the sample's time is {0}, not a number")]
    Time(String),
    #[error("the sample's value is {0}, not a number")]
    Value(String),
}

/// Time and value of the one sample, both in seconds.
fn sample(root: &Value) -> Result<(f64, f64), SampleError> {
    let text = |pointer: &str| root.pointer(pointer).and_then(Value::as_str);
    match text("/status") {
        Some("success") => {}
        Some("error") => {
            let kind = quoted(text("/errorType").unwrap_or("error"));
            let message = text("/error").unwrap_or("no reason").to_owned();
            return Err(SampleError::Refused { kind, message });
        }
        other => return Err(SampleError::Status(quoted(other.unwrap_or("no text")))),
    }
    let pair = match text("/data/resultType") {
        Some("scalar") => root.pointer("/data/result"),
        Some("vector") => match root.pointer("/data/result").and_then(Value::as_array).map(Vec::as_slice) {
            Some([one]) if one.get("histogram").is_some() => return Err(SampleError::Histogram),
            Some([one]) => one.get("value"),
            Some([]) => return Err(SampleError::NoResult),
            Some(many) => return Err(SampleError::ManyResults(many.len())),
            None => return Err(SampleError::NoList),
        },
        other => return Err(SampleError::ResultType(quoted(other.unwrap_or("no text")))),
    };
    let Some([at, value]) = pair.and_then(Value::as_array).map(Vec::as_slice) else {
        return Err(SampleError::NoPair);
    };
    let at = at.as_f64().ok_or_else(|| SampleError::Time(quoted(&at.to_string())))?;
    let number = value.as_str().and_then(|value| value.parse().ok());
    let value = number.ok_or_else(|| SampleError::Value(quoted(&value.to_string())))?;
    Ok((at, value))
}

/// The parser of a sample, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(root) = serde_json::from_slice(data) {
        _ = sample(&root);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NOW_S: f64 = 1_795_000_000.0;

    fn of(root: &Value) -> ResponseTime {
        let interval = Duration::from_secs(30);
        let prometheus = Prometheus::new("http://h:9090/", &Access::default(), "up", interval, interval).unwrap();
        prometheus.of(root, UNIX_EPOCH + Duration::from_secs_f64(NOW_S))
    }

    fn vector(result: &Value) -> Value {
        json!({"status": "success", "data": {"resultType": "vector", "result": result}})
    }

    fn one(at_s: f64, value: &str) -> ResponseTime {
        of(&vector(&json!([{"metric": {"job": "shop"}, "value": [at_s, value]}])))
    }

    #[test]
    fn one_sample_in_seconds_is_a_mean() {
        assert_eq!(one(NOW_S, "0.25"), ResponseTime::Mean { mean_ms: 250.0 });
        let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [NOW_S, "2"]}});
        assert_eq!(of(&scalar), ResponseTime::Mean { mean_ms: 2_000.0 });
    }

    #[test]
    fn no_requests_and_old_samples_are_distinguished() {
        assert_eq!(one(NOW_S, "NaN"), ResponseTime::Idle);
        assert_eq!(one(NOW_S - 30.0, "0.25"), ResponseTime::Mean { mean_ms: 250.0 });
        assert_eq!(one(NOW_S - 31.0, "0.25"), ResponseTime::Late { age_s: 31.0 });
        assert_eq!(one(NOW_S - 31.0, "NaN"), ResponseTime::Late { age_s: 31.0 });
        for absurd in ["+Inf", "-Inf", "0", "-1", "3601", "1e300"] {
            assert!(matches!(one(NOW_S, absurd), ResponseTime::Absurd { .. }), "{absurd}");
        }
    }

    #[test]
    fn everything_else_is_missing_with_its_reason() {
        let sample = json!({"metric": {}, "value": [NOW_S, "1"]});
        for (root, part) in [
            (vector(&json!([])), "no result"),
            (vector(&json!([sample, sample])), "has 2 results"),
            (vector(&json!([{"metric": {}, "histogram": [NOW_S, {}]}])), "histogram"),
            (vector(&json!([{"metric": {}}])), "not a pair"),
            (vector(&json!([{"value": [NOW_S]}])), "not a pair"),
            (vector(&json!([{"value": [NOW_S, 1.5]}])), "value is `1.5`, not a number"),
            (vector(&json!([{"value": [NOW_S, "fast"]}])), "fast"),
            (vector(&json!([{"value": ["now", "1"]}])), "time is `\"now\"`"),
            (vector(&json!([{"value": [NOW_S + 99.0, "1"]}])), "1 min 39 s in the future"),
            (vector(&json!({})), "not a list"),
            (json!({"status": "success", "data": {"resultType": "matrix", "result": []}}), "is `matrix`"),
            (json!({"status": "success"}), "resultType"),
            (json!({"status": 7}), "status"),
            (
                json!({"status": "error", "errorType": "bad_data", "error": "1:5: parse error: no token"}),
                "Prometheus says `bad_data`: 1:5: parse error: no token",
            ),
            (json!({"status": "error", "error": "x".repeat(10_000)}), "xxx"),
        ] {
            let ResponseTime::Missing { reason } = of(&root) else { panic!("{root}") };
            assert!(reason.contains(part) && reason.chars().count() <= 200, "{part}: {reason}");
        }
    }

    proptest! {
        #[test]
        fn no_sample_makes_it_panic(at in any::<f64>(), value in "[-+0-9.eInfNa]{0,9}", kind in "vector|scalar|.{0,9}") {
            _ = one(at, &value);
            _ = of(&json!({"status": "success", "data": {"resultType": kind, "result": [at, value]}}));
        }
    }
}
