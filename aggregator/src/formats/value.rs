//! A stored value with the names of its fields and variants. In: what [`super::schema`] reads from stored bytes, and
//! what converters change. Out: a type of today, or a [`Mismatch`]. Called by [`super::read`], [`super::schema`] and
//! [`super::convert`]. Names are those of a schema's text or of a converter, so they take no memory of their own.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};

/// A value with names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// A truth value.
    Bool(bool),
    /// A number without a sign.
    Unsigned(u64),
    /// A number with a sign.
    Signed(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// What may be missing.
    Option(Option<Box<Value>>),
    /// A list or a tuple.
    List(Vec<Value>),
    /// A map.
    Map(Vec<(Value, Value)>),
    /// Fields by name.
    Record(Vec<(&'static str, Value)>),
    /// A variant by name and what it holds, if anything.
    Variant(&'static str, Option<Box<Value>>),
}

/// A value is not what a converter or a type expects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Mismatch(String);

impl Mismatch {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl de::Error for Mismatch {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl Value {
    /// The value as a type of today. Fields that the type does not have are left out; an optional field that the value
    /// does not have is `None`.
    ///
    /// # Errors
    /// [`Mismatch`] when a field or variant is missing or has another type.
    pub(crate) fn into_type<T: DeserializeOwned>(self) -> Result<T, Mismatch> {
        T::deserialize(self)
    }

    /// The fields of a record.
    fn fields(&mut self) -> Result<&mut Vec<(&'static str, Value)>, Mismatch> {
        match self {
            Self::Record(fields) => Ok(fields),
            _ => Err(Mismatch::new("no record")),
        }
    }

    /// A field of a record, to be changed.
    ///
    /// # Errors
    /// [`Mismatch`] when this is no record or has no such field.
    pub(super) fn field(&mut self, name: &str) -> Result<&mut Value, Mismatch> {
        let found = self.fields()?.iter_mut().find(|(field, _)| *field == name);
        found.map(|(_, value)| value).ok_or_else(|| Mismatch::new(format!("no field `{name}`")))
    }

    /// A field of a record, taken out of it.
    ///
    /// # Errors
    /// As [`Value::field`].
    pub(super) fn take(&mut self, name: &str) -> Result<Value, Mismatch> {
        let fields = self.fields()?;
        let index = fields.iter().position(|(field, _)| *field == name);
        index.map(|index| fields.remove(index).1).ok_or_else(|| Mismatch::new(format!("no field `{name}`")))
    }

    /// Fields of a record, taken out of it.
    ///
    /// # Errors
    /// As [`Value::field`].
    pub(super) fn part(&mut self, names: &[&'static str]) -> Result<Value, Mismatch> {
        let fields = names.iter().map(|name| Ok((*name, self.take(name)?)));
        fields.collect::<Result<_, _>>().map(Self::Record)
    }

    /// Gives a record another field.
    ///
    /// # Errors
    /// [`Mismatch`] when this is no record.
    pub(super) fn add(&mut self, name: &'static str, value: Value) -> Result<(), Mismatch> {
        self.fields()?.push((name, value));
        Ok(())
    }

    /// Gives a field of a record another name.
    ///
    /// # Errors
    /// As [`Value::field`].
    pub(super) fn rename(&mut self, from: &str, to: &'static str) -> Result<(), Mismatch> {
        let value = self.take(from)?;
        self.add(to, value)
    }

    /// The values of a list, a tuple or a map, to be changed.
    ///
    /// # Errors
    /// [`Mismatch`] when this is none.
    pub(super) fn items(&mut self) -> Result<Box<dyn Iterator<Item = &mut Value> + '_>, Mismatch> {
        match self {
            Self::List(values) => Ok(Box::new(values.iter_mut())),
            Self::Map(entries) => Ok(Box::new(entries.iter_mut().map(|(_, value)| value))),
            _ => Err(Mismatch::new("no list and no map")),
        }
    }

    /// A variant's name and what it holds; an empty record where it holds nothing.
    ///
    /// # Errors
    /// [`Mismatch`] when this is no variant.
    pub(super) fn variant(self) -> Result<(&'static str, Value), Mismatch> {
        match self {
            Self::Variant(name, content) => {
                Ok((name, content.map_or_else(|| Self::Record(Vec::new()), |value| *value)))
            }
            _ => Err(Mismatch::new("no variant")),
        }
    }

    /// The value in JSON, as serde writes it there; a variant that holds something is an object of one field.
    pub(super) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        let key = |key: &Self| match key {
            Self::Text(text) => text.clone(),
            other => other.to_json().to_string(),
        };
        match self {
            Self::Bool(value) => Json::from(*value),
            Self::Unsigned(value) => Json::from(*value),
            Self::Signed(value) => Json::from(*value),
            Self::Float(value) => Json::from(*value),
            Self::Text(value) => Json::from(value.as_str()),
            Self::Option(value) => value.as_ref().map_or(Json::Null, |value| value.to_json()),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Map(entries) => entries.iter().map(|(name, value)| (key(name), value.to_json())).collect(),
            Self::Record(fields) => fields.iter().map(|(name, value)| ((*name).to_owned(), value.to_json())).collect(),
            Self::Variant(name, None) => Json::from(*name),
            Self::Variant(name, Some(value)) => [((*name).to_owned(), value.to_json())].into_iter().collect(),
        }
    }
}

impl<'de> IntoDeserializer<'de, Mismatch> for Value {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self {
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Unsigned(value) => visitor.visit_u64(value),
            Self::Signed(value) => visitor.visit_i64(value),
            Self::Float(value) => visitor.visit_f64(value),
            Self::Text(value) => visitor.visit_string(value),
            Self::Option(None) => visitor.visit_none(),
            Self::Option(Some(value)) => visitor.visit_some(*value),
            Self::List(values) => visitor.visit_seq(SeqDeserializer::new(values.into_iter())),
            Self::Map(entries) => visitor.visit_map(MapDeserializer::new(entries.into_iter())),
            Self::Record(fields) => visitor.visit_map(MapDeserializer::new(fields.into_iter())),
            Self::Variant(name, content) => visitor.visit_enum(Variant { name, content }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self {
            Self::Option(_) => self.deserialize_any(visitor),
            // A field that became optional.
            other => visitor.visit_some(other),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// A variant on its way into an enumeration of today.
struct Variant {
    name: &'static str,
    content: Option<Box<Value>>,
}

impl<'de> EnumAccess<'de> for Variant {
    type Error = Mismatch;
    type Variant = Content;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content), Mismatch> {
        let name: de::value::StrDeserializer<'_, Mismatch> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Content(self.content)))
    }
}

/// What a variant holds.
struct Content(Option<Box<Value>>);

impl Content {
    fn some(self) -> Result<Value, Mismatch> {
        self.0.map(|value| *value).ok_or_else(|| Mismatch::new("a variant that holds nothing, and should"))
    }
}

impl<'de> VariantAccess<'de> for Content {
    type Error = Mismatch;

    fn unit_variant(self) -> Result<(), Mismatch> {
        match self.0 {
            None => Ok(()),
            Some(_) => Err(Mismatch::new("a variant that holds something, and should not")),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Mismatch> {
        seed.deserialize(self.some()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Mismatch> {
        self.some()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Mismatch> {
        self.some()?.deserialize_any(visitor)
    }
}
