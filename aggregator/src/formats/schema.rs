//! Schemas of stored documents: which fields and variants the bytes of one format have, in which order. In: a schema's
//! text, committed once per format, and stored bytes; out: a [`Value`] with names.
//!
//! The encoding writes no names, so bytes can be read only by whoever knows what was written. The types of the program
//! that wrote them are gone; its schema is kept. A text defines one type per line, `Name = type`, where a type is a
//! scalar (`bool`, `u8` … `u64`, `i32`, `i64`, `f64`, `text`), `T?`, `[T]`, `[K: V]`, `(T, U)`, a record
//! `{ field: T, … }`, an enumeration `< variant, variant T, … >`, or a name.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::value::Value;

/// A type of a schema.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// A scalar or a text, by its name.
    Scalar(Scalar),
    /// `T?`
    Option(Box<Shape>),
    /// `[T]`
    List(Box<Shape>),
    /// `[K: V]`
    Map(Box<Shape>, Box<Shape>),
    /// `(T, U)`
    Tuple(Vec<Shape>),
    /// `{ field: T }`
    Record(Vec<(&'static str, Shape)>),
    /// `< variant, variant T >`
    Choice(Vec<(&'static str, Option<Shape>)>),
    /// A type defined elsewhere in the schema.
    Named(&'static str),
}

/// What bytes directly stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I32,
    I64,
    F64,
    Text,
}

impl Scalar {
    const ALL: [(&str, Self); 9] = [
        ("bool", Self::Bool),
        ("u8", Self::U8),
        ("u16", Self::U16),
        ("u32", Self::U32),
        ("u64", Self::U64),
        ("i32", Self::I32),
        ("i64", Self::I64),
        ("f64", Self::F64),
        ("text", Self::Text),
    ];
}

/// A schema.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schema(BTreeMap<&'static str, Shape>);

/// A schema's text is wrong. Those of the program are tested; this tells their author where.
#[derive(Debug, thiserror::Error)]
#[error("the schema is wrong at `{near}`: {what}")]
pub(crate) struct SchemaError {
    near: String,
    what: &'static str,
}

impl Schema {
    /// A schema from its text. Names are parts of the text: a state has thousands of records, and their names take no memory.
    ///
    /// # Errors
    /// [`SchemaError`].
    pub(crate) fn parse(text: &'static str) -> Result<Self, SchemaError> {
        let mut types = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let mut words = Words { rest: line };
            let name = words.name()?;
            words.expect("=")?;
            let shape = words.shape()?;
            if !words.rest.trim().is_empty() {
                return Err(words.wrong("something after the type"));
            }
            types.insert(name, shape);
        }
        Ok(Self(types))
    }

    /// What reads bytes as the type of that name.
    pub(crate) fn of<'a>(&'a self, name: &str) -> Option<Reader<'a>> {
        self.0.get(name).map(|shape| Reader { schema: self, shape })
    }
}

#[cfg(test)]
impl Schema {
    /// A type with every name in it replaced by what it stands for.
    pub(super) fn spelled_out(&self, name: &str) -> Shape {
        self.spelled(&self.0[name])
    }

    fn spelled(&self, shape: &Shape) -> Shape {
        let boxed = |inner: &Shape| Box::new(self.spelled(inner));
        match shape {
            Shape::Scalar(scalar) => Shape::Scalar(*scalar),
            Shape::Option(inner) => Shape::Option(boxed(inner)),
            Shape::List(inner) => Shape::List(boxed(inner)),
            Shape::Map(key, value) => Shape::Map(boxed(key), boxed(value)),
            Shape::Tuple(shapes) => Shape::Tuple(shapes.iter().map(|inner| self.spelled(inner)).collect()),
            Shape::Record(fields) => {
                Shape::Record(fields.iter().map(|(field, inner)| (*field, self.spelled(inner))).collect())
            }
            Shape::Choice(variants) => {
                let content = |inner: &Option<Shape>| inner.as_ref().map(|inner| self.spelled(inner));
                Shape::Choice(variants.iter().map(|(variant, inner)| (*variant, content(inner))).collect())
            }
            Shape::Named(name) => self.spelled(&self.0[name]),
        }
    }
}

/// What is left of a line of a schema.
struct Words {
    rest: &'static str,
}

impl Words {
    fn wrong(&self, what: &'static str) -> SchemaError {
        SchemaError { near: self.rest.trim().chars().take(40).collect(), what }
    }

    fn takes(&mut self, mark: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, mark: &'static str) -> Result<(), SchemaError> {
        if self.takes(mark) { Ok(()) } else { Err(self.wrong("another mark is expected")) }
    }

    fn name(&mut self) -> Result<&'static str, SchemaError> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            return Err(self.wrong("a name is expected"));
        }
        let (name, rest) = rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }

    fn shape(&mut self) -> Result<Shape, SchemaError> {
        let shape = if self.takes("[") {
            let first = self.shape()?;
            let shape = match self.takes(":") {
                true => Shape::Map(Box::new(first), Box::new(self.shape()?)),
                false => Shape::List(Box::new(first)),
            };
            self.expect("]")?;
            shape
        } else if self.takes("(") {
            Shape::Tuple(self.until(")", Self::shape)?)
        } else if self.takes("{") {
            Shape::Record(self.until("}", |words| {
                let name = words.name()?;
                words.expect(":")?;
                Ok((name, words.shape()?))
            })?)
        } else if self.takes("<") {
            Shape::Choice(self.until(">", |words| {
                let name = words.name()?;
                let ends = words.rest.trim_start().starts_with([',', '>']);
                Ok((name, if ends { None } else { Some(words.shape()?) }))
            })?)
        } else {
            let name = self.name()?;
            let scalar = Scalar::ALL.iter().find(|(known, _)| *known == name);
            scalar.map_or(Shape::Named(name), |(_, scalar)| Shape::Scalar(*scalar))
        };
        Ok(if self.takes("?") { Shape::Option(Box::new(shape)) } else { shape })
    }

    fn until<T>(
        &mut self,
        end: &'static str,
        item: impl Fn(&mut Self) -> Result<T, SchemaError>,
    ) -> Result<Vec<T>, SchemaError> {
        let mut items = Vec::new();
        while !self.takes(end) {
            items.push(item(self)?);
            if !self.takes(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }
}

/// Reads one type of a schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    schema: &'a Schema,
    shape: &'a Shape,
}

impl<'a> Reader<'a> {
    fn of(self, shape: &'a Shape) -> Self {
        Self { shape, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.shape {
            Shape::Scalar(Scalar::Bool) => bool::deserialize(from).map(Value::Bool),
            Shape::Scalar(Scalar::U8) => u8::deserialize(from).map(|value| Value::Unsigned(value.into())),
            Shape::Scalar(Scalar::U16) => u16::deserialize(from).map(|value| Value::Unsigned(value.into())),
            Shape::Scalar(Scalar::U32) => u32::deserialize(from).map(|value| Value::Unsigned(value.into())),
            Shape::Scalar(Scalar::U64) => u64::deserialize(from).map(Value::Unsigned),
            Shape::Scalar(Scalar::I32) => i32::deserialize(from).map(|value| Value::Signed(value.into())),
            Shape::Scalar(Scalar::I64) => i64::deserialize(from).map(Value::Signed),
            Shape::Scalar(Scalar::F64) => f64::deserialize(from).map(Value::Float),
            Shape::Scalar(Scalar::Text) => String::deserialize(from).map(Value::Text),
            Shape::Option(_) => from.deserialize_option(self),
            Shape::List(_) => from.deserialize_seq(self),
            Shape::Map(..) => from.deserialize_map(self),
            Shape::Tuple(shapes) => from.deserialize_tuple(shapes.len(), self),
            // Without the names, which the encoding does not have, a record is a tuple.
            Shape::Record(fields) => from.deserialize_tuple(fields.len(), self),
            Shape::Choice(_) => from.deserialize_enum("", &[], self),
            Shape::Named(name) => match self.schema.0.get(name) {
                Some(shape) => self.of(shape).deserialize(from),
                None => Err(de::Error::custom(format_args!("the schema does not define `{name}`"))),
            },
        }
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shape)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Option(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let Shape::Option(inner) = self.shape else { return Err(de::Error::custom("no option in the schema")) };
        Ok(Value::Option(Some(Box::new(self.of(inner).deserialize(from)?))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let next = |items: &mut A, index, shape| {
            let item = items.next_element_seed(self.of(shape))?;
            item.ok_or_else(|| de::Error::invalid_length(index, &self))
        };
        match self.shape {
            Shape::List(shape) => {
                let mut values = Vec::new();
                while let Some(value) = items.next_element_seed(self.of(shape))? {
                    values.push(value);
                }
                values.shrink_to_fit();
                Ok(Value::List(values))
            }
            Shape::Tuple(shapes) => {
                let values = shapes.iter().enumerate().map(|(index, shape)| next(&mut items, index, shape));
                values.collect::<Result<_, _>>().map(Value::List)
            }
            Shape::Record(fields) => {
                // Not `collect`, which does not know how many there will be.
                let mut values = Vec::with_capacity(fields.len());
                for (index, (name, shape)) in fields.iter().enumerate() {
                    values.push((*name, next(&mut items, index, shape)?));
                }
                Ok(Value::Record(values))
            }
            _ => Err(de::Error::custom("no sequence in the schema")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let Shape::Map(key, value) = self.shape else { return Err(de::Error::custom("no map in the schema")) };
        let mut values = Vec::new();
        while let Some(entry) = entries.next_entry_seed(self.of(key), self.of(value))? {
            values.push(entry);
        }
        values.shrink_to_fit();
        Ok(Value::Map(values))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, from: A) -> Result<Value, A::Error> {
        let Shape::Choice(variants) = self.shape else { return Err(de::Error::custom("no enumeration in the schema")) };
        let (index, content) = from.variant::<u32>()?;
        let variant = usize::try_from(index).ok().and_then(|index| variants.get(index));
        let (name, shape) = variant
            .ok_or_else(|| de::Error::custom(format_args!("variant {index} of {} is unknown", variants.len())))?;
        let content = match shape {
            None => content.unit_variant().map(|()| None),
            Some(shape) => content.newtype_variant_seed(self.of(shape)).map(|value| Some(Box::new(value))),
        };
        Ok(Value::Variant(name, content?))
    }
}
