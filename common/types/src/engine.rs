//! Which engine runs a job, and its options. In: a name and a document, from a submission. Out: the engine of that name
//! checks and reads the options; all other code passes them on unread. Called by the aggregator's registry of engines.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Name of an engine, such as `local`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EngineName(Cow<'static, str>);

/// A text is no engine's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("engine name {text:?} is not valid: it has 1 to 32 lower-case letters, digits, hyphens and underscores")]
pub struct InvalidEngineName {
    text: String,
}

impl EngineName {
    /// A name known when the program is built.
    ///
    /// # Panics
    /// If the text is no valid name; in a constant the compiler says so.
    #[must_use]
    pub const fn of(name: &'static str) -> Self {
        assert!(is_engine_name(name), "not a valid engine name");
        Self(Cow::Borrowed(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn is_engine_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        if !matches!(bytes[index], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
            return false;
        }
        index += 1;
    }
    !bytes.is_empty() && bytes.len() <= 32
}

impl TryFrom<String> for EngineName {
    type Error = InvalidEngineName;
    fn try_from(text: String) -> Result<Self, InvalidEngineName> {
        if is_engine_name(&text) {
            return Ok(Self(Cow::Owned(text)));
        }
        Err(InvalidEngineName { text: text.chars().take(32).collect() })
    }
}

impl From<EngineName> for String {
    fn from(name: EngineName) -> Self {
        name.0.into_owned()
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Options of an engine: a JSON document that only the engine reads. It is kept as text, because the encodings of
/// messages and stored state need to know their types; where the format is JSON it is part of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions(String);

/// A document cannot serve as options.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// It is longer than any sensible one.
    #[error("the engine's options have {bytes} bytes; at most {} are taken", EngineOptions::MAX_BYTES)]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It is not JSON, or not of the form that was asked for.
    #[error("the engine's options are not usable")]
    Json(#[from] serde_json::Error),
}

impl EngineOptions {
    /// Most bytes of a document. Chosen: names for the workers of twenty thousand hosts fit.
    pub const MAX_BYTES: usize = 2 << 20;

    /// Options made of a value.
    ///
    /// # Errors
    /// [`InvalidOptions`] if it is too long or has no form in JSON.
    pub fn new(value: &impl Serialize) -> Result<Self, InvalidOptions> {
        Self::within_bounds(serde_json::to_string(value)?)
    }

    fn within_bounds(text: String) -> Result<Self, InvalidOptions> {
        let bytes = text.len();
        if bytes <= Self::MAX_BYTES { Ok(Self(text)) } else { Err(InvalidOptions::TooLong { bytes }) }
    }

    /// The options in the form their engine gave them.
    ///
    /// # Errors
    /// [`InvalidOptions`] if they have another form.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, InvalidOptions> {
        Ok(serde_json::from_str(&self.0)?)
    }

    /// An option that is a text, for tools that show it; `None` where the engine has no such option.
    #[must_use]
    pub fn text(&self, option: &str) -> Option<String> {
        let document: Value = serde_json::from_str(&self.0).ok()?;
        document.get(option)?.as_str().map(str::to_owned)
    }
}

impl Default for EngineOptions {
    /// None at all.
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

impl Serialize for EngineOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_str(&self.0);
        }
        let document: Value = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        document.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EngineOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            // What was stored was taken once, perhaps by a release with another bound; a state must stay readable.
            return String::deserialize(deserializer).map(Self);
        }
        Self::new(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The engine of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// Its name.
    pub name: EngineName,
    /// Its options, which it alone reads.
    pub options: EngineOptions,
}

impl EngineSpec {
    /// An engine without options, known when the program is built.
    ///
    /// # Panics
    /// If the text is no valid name.
    #[must_use]
    pub fn without_options(name: &'static str) -> Self {
        Self { name: EngineName::of(name), options: EngineOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_keys_of_documents() {
        for good in ["local", "my-engine_2"] {
            assert_eq!(EngineName::try_from(good.to_owned()).unwrap().as_str(), good);
        }
        for bad in ["", "Spark", "a b", "../x", &"x".repeat(33)] {
            assert!(EngineName::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert_eq!(EngineName::of("exec"), EngineName::try_from("exec".to_owned()).unwrap());
    }

    #[test]
    fn options_are_part_of_a_json_document_and_bounded() {
        let options = EngineOptions::new(&json!({ "output_dir": "/out", "attempts": 3 })).unwrap();
        let spec = EngineSpec { name: EngineName::of("local"), options };
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(text, r#"{"name":"local","options":{"attempts":3,"output_dir":"/out"}}"#);
        assert_eq!(serde_json::from_str::<EngineSpec>(&text).unwrap(), spec);
        assert_eq!(spec.options.text("output_dir").as_deref(), Some("/out"));
        assert_eq!((spec.options.text("attempts"), spec.options.text("none")), (None, None));
        let long = EngineOptions::new(&"x".repeat(EngineOptions::MAX_BYTES));
        assert!(matches!(long, Err(InvalidOptions::TooLong { bytes }) if bytes == EngineOptions::MAX_BYTES + 2));
        let long = format!("\"{}\"", "x".repeat(EngineOptions::MAX_BYTES));
        assert!(serde_json::from_str::<EngineOptions>(&long).is_err());
    }
}
