//! Fields of a JSON answer. In: a document and a path. Out: a value, or an error that names the path. Called by the
//! parsers of this engine.

use serde_json::Value;

use super::error::{SparkError, shortened};

/// An answer.
#[derive(Debug)]
pub(super) struct Document {
    url: String,
    root: Value,
}

/// A place in an answer; there may be nothing.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    url: &'a str,
    path: String,
    value: Option<&'a Value>,
}

impl Document {
    pub(super) fn new(url: String, root: Value) -> Self {
        Self { url, root }
    }

    pub(super) fn root(&self) -> Field<'_> {
        Field { url: &self.url, path: String::new(), value: Some(&self.root) }
    }
}

impl<'a> Field<'a> {
    pub(super) fn get(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self { path: format!("{}{dot}{name}", self.path), value: self.value.and_then(|v| v.get(name)), url: self.url }
    }

    /// The elements of a list of at most `most`.
    pub(super) fn items(&self, most: usize) -> Result<impl Iterator<Item = Self> + use<'a>, SparkError> {
        let list = self.value.and_then(Value::as_array).ok_or_else(|| self.malformed("a list"))?;
        if list.len() > most {
            return Err(self.malformed("a list of bearable length"));
        }
        let (url, path) = (self.url, self.path.clone());
        Ok(list.iter().enumerate().map(move |(i, value)| Self {
            url,
            path: format!("{path}[{i}]"),
            value: Some(value),
        }))
    }

    /// The members of an object of at most `most`, with their names.
    pub(super) fn entries(&self, most: usize) -> Result<impl Iterator<Item = (&'a str, Self)> + use<'a>, SparkError> {
        let object = self.value.and_then(Value::as_object).ok_or_else(|| self.malformed("an object"))?;
        if object.len() > most || object.keys().any(|name| !(1..=256).contains(&name.len())) {
            return Err(self.malformed("an object of bearable size"));
        }
        let (url, path) = (self.url, self.path.clone());
        Ok(object.iter().map(move |(name, value)| {
            (name.as_str(), Self { url, path: format!("{path}.{name}"), value: Some(value) })
        }))
    }

    pub(super) fn flag(&self) -> Result<bool, SparkError> {
        self.value.and_then(Value::as_bool).ok_or_else(|| self.malformed("true or false"))
    }

    /// A text of 1 to 256 bytes.
    pub(super) fn text(&self) -> Result<&'a str, SparkError> {
        let good = |text: &&str| (1..=256).contains(&text.len());
        self.value.and_then(Value::as_str).filter(good).ok_or_else(|| self.malformed("a text of 1 to 256 bytes"))
    }

    /// A number that is never negative.
    pub(super) fn number<T: TryFrom<u64>>(&self) -> Result<T, SparkError> {
        let number = self.value.and_then(Value::as_u64).and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.malformed("a whole number in range"))
    }

    /// A counter of Spark's own. It drops messages to its web interface under load and then counts below zero,
    /// and a clock set back makes durations negative; both are taken for zero.
    pub(super) fn counter<T: TryFrom<u64>>(&self) -> Result<T, SparkError> {
        let number = self.value.and_then(|value| value.as_u64().or_else(|| value.as_i64().map(|_| 0)));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| self.malformed("a whole number in range"))
    }

    pub(super) fn malformed(&self, expected: &'static str) -> SparkError {
        let found = match self.value {
            None => "missing".to_owned(),
            Some(Value::Array(list)) => format!("a list of {}", list.len()),
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(plain) => shortened(&plain.to_string()),
        };
        let field = if self.path.is_empty() { "the whole".to_owned() } else { self.path.clone() };
        SparkError::Malformed { url: self.url.to_owned(), field, found, expected }
    }
}
