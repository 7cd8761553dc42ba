//! The name of a forecast method, as a report carries it. In: a name from the planner's registry, or from a peer that
//! may know others. Out: the same name in every text format; in binary ones the seven that have a number travel by it,
//! so that a new method needs no number. Made by `planner::forecast`; reports carry it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::id::InvalidId;

/// A way to predict, by the name it has in the planner's registry of forecasters. A name that this program does not
/// know is shown as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodName(Cow<'static, str>);

/// The methods that have a number: their place in this list. Never changed, and never longer.
const NUMBERED: [&str; 7] =
    ["moving_average", "mean_plus_sigma", "windowed_maximum", "autoregression", "autocorrelation", "signature", "best"];

/// How a name is written in binary.
#[derive(Serialize, Deserialize)]
#[serde(rename = "MethodName")]
enum Coded<'a> {
    MovingAverage,
    MeanPlusSigma,
    WindowedMaximum,
    Autoregression,
    Autocorrelation,
    Signature,
    Best,
    Named(Cow<'a, str>),
}

impl MethodName {
    /// Builds the name. Rule: 1 to 32 lower-case letters, digits and underscores, not starting with an underscore.
    ///
    /// # Errors
    /// [`InvalidId`] naming the rule that was broken.
    pub fn new(name: &str) -> Result<Self, InvalidId> {
        if let Some(numbered) = NUMBERED.iter().find(|numbered| **numbered == name) {
            return Ok(Self(Cow::Borrowed(numbered)));
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if (1..=32).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('_') {
            Ok(Self(Cow::Owned(name.to_owned())))
        } else {
            let rule = "1 to 32 lower-case letters, digits and underscores, not starting with an underscore";
            Err(InvalidId::of("forecast method", name, rule))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for MethodName {
    /// The moving average.
    fn default() -> Self {
        Self(Cow::Borrowed(NUMBERED[0]))
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for MethodName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.serialize_str(self.as_str());
        }
        let coded = match self.as_str() {
            "moving_average" => Coded::MovingAverage,
            "mean_plus_sigma" => Coded::MeanPlusSigma,
            "windowed_maximum" => Coded::WindowedMaximum,
            "autoregression" => Coded::Autoregression,
            "autocorrelation" => Coded::Autocorrelation,
            "signature" => Coded::Signature,
            "best" => Coded::Best,
            other => Coded::Named(Cow::Borrowed(other)),
        };
        coded.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MethodName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = if deserializer.is_human_readable() {
            Cow::Owned(String::deserialize(deserializer)?)
        } else {
            match Coded::deserialize(deserializer)? {
                Coded::MovingAverage => Cow::Borrowed(NUMBERED[0]),
                Coded::MeanPlusSigma => Cow::Borrowed(NUMBERED[1]),
                Coded::WindowedMaximum => Cow::Borrowed(NUMBERED[2]),
                Coded::Autoregression => Cow::Borrowed(NUMBERED[3]),
                Coded::Autocorrelation => Cow::Borrowed(NUMBERED[4]),
                Coded::Signature => Cow::Borrowed(NUMBERED[5]),
                Coded::Best => Cow::Borrowed(NUMBERED[6]),
                Coded::Named(name) => name,
            }
        };
        Self::new(&name).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_identifiers() {
        for good in ["best", "exponential_smoothing", "arima2"] {
            assert_eq!(MethodName::new(good).unwrap().to_string(), good);
        }
        for bad in ["", "_x", "Best", "moving-average", "a b", "é", &"x".repeat(33)] {
            assert!(MethodName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn texts_carry_the_name() {
        let json = serde_json::to_string(&MethodName::default()).unwrap();
        assert_eq!(json, "\"moving_average\"");
        assert_eq!(serde_json::from_str::<MethodName>("\"arima2\"").unwrap().as_str(), "arima2");
        assert!(serde_json::from_str::<MethodName>("\"a b\"").is_err());
    }
}
