//! The shape of a type as serde reads it: its fields, variants and what they hold. In: a type. Out: its shape. Called by the tests
//! that compare what is stored, and what commands print as JSON, with what was committed.
//!
//! A type is deserialised from made-up values: again and again, until every variant of every enumeration in it was
//! made.

use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, Deserializer};

/// What is known of a type so far.
#[derive(Debug, Default)]
pub enum Shape {
    /// Nothing yet.
    #[default]
    Unknown,
    /// No value beside a variant's name.
    Unit,
    /// A scalar, by its name in Rust, or `text`.
    Scalar(&'static str),
    /// Any document; only for people.
    Any,
    /// What may be missing.
    Option(Box<Shape>),
    /// A list of one type.
    List(Box<Shape>),
    /// A map: keys and values.
    Map(Box<(Shape, Shape)>),
    /// A list of fixed length.
    Tuple(Vec<Shape>),
    /// Fields by name, with the type's name; a variant's fields have none.
    Record(&'static str, Vec<(&'static str, Shape)>),
    /// Variants by name, with the type's name.
    Choice(&'static str, Vec<(&'static str, Shape)>),
}

impl Shape {
    /// The shape of a type, as it is stored or as it is shown to people.
    ///
    /// # Panics
    /// On a type that cannot be made from made-up values, or not to its end.
    #[must_use]
    pub fn of<T: for<'de> Deserialize<'de>>(for_people: bool) -> Self {
        let mut shape = Self::Unknown;
        for _ in 0..10_000 {
            T::deserialize(Tracer { shape: &mut shape, for_people }).unwrap();
            if shape.is_complete() {
                return shape;
            }
        }
        panic!("the type is not traced to its end");
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Unit | Self::Scalar(_) | Self::Any => true,
            Self::Option(inner) | Self::List(inner) => inner.is_complete(),
            Self::Map(both) => both.0.is_complete() && both.1.is_complete(),
            Self::Tuple(items) => items.iter().all(Self::is_complete),
            Self::Record(_, fields) | Self::Choice(_, fields) => fields.iter().all(|(_, shape)| shape.is_complete()),
        }
    }
}

/// Makes up a value, and notes what was asked for.
struct Tracer<'a> {
    shape: &'a mut Shape,
    for_people: bool,
}

macro_rules! scalars {
    ($($method:ident $visit:ident $value:expr, $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            *self.shape = Shape::Scalar($name);
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    scalars! {
        deserialize_bool visit_bool true, "bool";
        deserialize_u8 visit_u8 1, "u8";
        deserialize_u16 visit_u16 1, "u16";
        deserialize_u32 visit_u32 1, "u32";
        deserialize_u64 visit_u64 1, "u64";
        deserialize_i32 visit_i32 1, "i32";
        deserialize_i64 visit_i64 1, "i64";
        deserialize_f64 visit_f64 1.0, "f64";
        deserialize_str visit_str "a", "text";
        deserialize_string visit_str "a", "text";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::Option(_)) {
            *shape = Shape::Option(Box::default());
        }
        let Shape::Option(inner) = shape else { unreachable!() };
        visitor.visit_some(Tracer { shape: inner, for_people })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::List(_)) {
            *shape = Shape::List(Box::default());
        }
        let Shape::List(inner) = shape else { unreachable!() };
        visitor.visit_seq(Items { shapes: std::iter::once(&mut **inner), for_people })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::Map(_)) {
            *shape = Shape::Map(Box::default());
        }
        let Shape::Map(both) = shape else { unreachable!() };
        let (key, value) = &mut **both;
        visitor.visit_map(Entry { key: Some(key), value, for_people })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::Tuple(_)) {
            *shape = Shape::Tuple((0..length).map(|_| Shape::Unknown).collect());
        }
        let Shape::Tuple(items) = shape else { unreachable!() };
        visitor.visit_seq(Items { shapes: items.iter_mut(), for_people })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::Record(..)) {
            *shape = Shape::Record(name, fields.iter().map(|field| (*field, Shape::Unknown)).collect());
        }
        let Shape::Record(_, fields) = shape else { unreachable!() };
        visitor.visit_seq(Items { shapes: fields.iter_mut().map(|(_, shape)| shape), for_people })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Self { shape, for_people } = self;
        if !matches!(shape, Shape::Choice(..)) {
            *shape = Shape::Choice(name, variants.iter().map(|variant| (*variant, Shape::Unknown)).collect());
        }
        let Shape::Choice(_, variants) = shape else { unreachable!() };
        let index = variants.iter().position(|(_, shape)| !shape.is_complete()).unwrap_or(0);
        let shape = &mut variants[index].1;
        visitor.visit_enum(Variant { index: u32::try_from(index).unwrap(), shape, for_people })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if !self.for_people {
            return Err(Error::custom("a type that is stored must say what it is"));
        }
        *self.shape = Shape::Any;
        // What takes one of several things takes a number in all cases so far.
        visitor.visit_u64(0)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.for_people
    }

    serde::forward_to_deserialize_any! { i8 i16 f32 char bytes byte_buf unit unit_struct ignored_any }
}

/// The items of a list, a tuple or a record.
struct Items<I> {
    shapes: I,
    for_people: bool,
}

impl<'de, 'a, I: Iterator<Item = &'a mut Shape>> SeqAccess<'de> for Items<I> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let for_people = self.for_people;
        self.shapes.next().map(|shape| seed.deserialize(Tracer { shape, for_people })).transpose()
    }
}

/// The one entry of a map.
struct Entry<'a> {
    key: Option<&'a mut Shape>,
    value: &'a mut Shape,
    for_people: bool,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let for_people = self.for_people;
        self.key.take().map(|shape| seed.deserialize(Tracer { shape, for_people })).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(Tracer { shape: self.value, for_people: self.for_people })
    }
}

/// The variant that is made this time.
struct Variant<'a> {
    index: u32,
    shape: &'a mut Shape,
    for_people: bool,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Content<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content<'a>), Error> {
        let index: U32Deserializer<Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, Content { shape: self.shape, for_people: self.for_people }))
    }
}

/// What it holds.
struct Content<'a> {
    shape: &'a mut Shape,
    for_people: bool,
}

impl<'a> Content<'a> {
    fn tracer(self) -> Tracer<'a> {
        Tracer { shape: self.shape, for_people: self.for_people }
    }
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        *self.shape = Shape::Unit;
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.tracer())
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.tracer().deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.tracer().deserialize_struct("", fields, visitor)
    }
}
