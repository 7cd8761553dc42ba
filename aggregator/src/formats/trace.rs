//! Finds the schema of a type of today. In: types, by the names of their documents. Out: their schema as text. Called
//! by the tests of formats, which compare it with the committed schema.
//!
//! A type is deserialised from made-up values: again and again, until every variant of every enumeration in it was
//! made.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::de::value::U32Deserializer;
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::value::Mismatch;

/// What is known of a type so far.
#[derive(Debug, Default)]
enum Node {
    #[default]
    Unknown,
    Unit,
    Scalar(&'static str),
    Option(Box<Node>),
    List(Box<Node>),
    Map(Box<(Node, Node)>),
    Tuple(Vec<Node>),
    Record(&'static str, Vec<(&'static str, Node)>),
    Choice(&'static str, Vec<(&'static str, Node)>),
}

impl Node {
    fn is_complete(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::Unit | Self::Scalar(_) => true,
            Self::Option(inner) | Self::List(inner) => inner.is_complete(),
            Self::Map(both) => both.0.is_complete() && both.1.is_complete(),
            Self::Tuple(items) => items.iter().all(Self::is_complete),
            Self::Record(_, fields) | Self::Choice(_, fields) => fields.iter().all(|(_, node)| node.is_complete()),
        }
    }
}

/// What traces one type: [`Definitions::trace`].
pub(super) type Trace = fn(&mut Definitions) -> String;

/// The schema of some types, as text; each is defined under its name.
pub(super) fn schema(types: &[(&str, Trace)]) -> String {
    let mut definitions = Definitions::default();
    for (name, trace) in types {
        let traced = trace(&mut definitions);
        if traced != *name {
            definitions.define(name, traced);
        }
    }
    definitions.0.iter().fold(String::new(), |mut text, (name, shape)| {
        _ = writeln!(text, "{name} = {shape}");
        text
    })
}

/// Types by name. Different types of one name are numbered.
#[derive(Debug, Default)]
pub(super) struct Definitions(BTreeMap<String, String>);

impl Definitions {
    /// Traces a type and everything in it; returns how it is written in a schema.
    pub(super) fn trace<T: for<'de> Deserialize<'de>>(&mut self) -> String {
        let mut node = Node::Unknown;
        for _ in 0..10_000 {
            T::deserialize(Tracer(&mut node)).unwrap();
            if node.is_complete() {
                return self.written(&node);
            }
        }
        panic!("the type is not traced to its end");
    }

    fn written(&mut self, node: &Node) -> String {
        let all = |own: &mut Self, fields: &[(&str, Node)], between: &str| {
            let field = |(name, node): &(&str, Node)| match (own.written(node), between) {
                (shape, _) if shape.is_empty() => (*name).to_owned(),
                (shape, between) => format!("{name}{between}{shape}"),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        };
        match node {
            Node::Unknown => unreachable!("complete"),
            Node::Unit => String::new(),
            Node::Scalar(name) => (*name).to_owned(),
            Node::Option(inner) => format!("{}?", self.written(inner)),
            Node::List(inner) => format!("[{}]", self.written(inner)),
            Node::Map(both) => format!("[{}: {}]", self.written(&both.0), self.written(&both.1)),
            Node::Tuple(items) => {
                let items: Vec<String> = items.iter().map(|item| self.written(item)).collect();
                format!("({})", items.join(", "))
            }
            Node::Record("", fields) => format!("{{ {} }}", all(self, fields, ": ")),
            Node::Record(name, fields) => {
                let shape = format!("{{ {} }}", all(self, fields, ": "));
                self.define(name, shape)
            }
            Node::Choice(name, variants) => {
                let shape = format!("< {} >", all(self, variants, " "));
                self.define(name, shape)
            }
        }
    }

    fn define(&mut self, name: &str, shape: String) -> String {
        let names = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}{number}")));
        for name in names {
            let known = self.0.entry(name.clone()).or_insert_with(|| shape.clone());
            if *known == shape {
                return name;
            }
        }
        unreachable!("numbers do not end")
    }
}

/// Makes up a value, and notes what was asked for.
struct Tracer<'a>(&'a mut Node);

macro_rules! scalars {
    ($($method:ident $visit:ident $value:expr, $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
            *self.0 = Node::Scalar($name);
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Mismatch;

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

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::Option(_)) {
            *self.0 = Node::Option(Box::default());
        }
        let Node::Option(inner) = self.0 else { unreachable!() };
        visitor.visit_some(Tracer(inner))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::List(_)) {
            *self.0 = Node::List(Box::default());
        }
        let Node::List(inner) = self.0 else { unreachable!() };
        visitor.visit_seq(Items(std::iter::once(&mut **inner)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::Map(_)) {
            *self.0 = Node::Map(Box::default());
        }
        let Node::Map(both) = self.0 else { unreachable!() };
        let (key, value) = &mut **both;
        visitor.visit_map(Entry { key: Some(key), value })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::Tuple(_)) {
            *self.0 = Node::Tuple((0..length).map(|_| Node::Unknown).collect());
        }
        let Node::Tuple(items) = self.0 else { unreachable!() };
        visitor.visit_seq(Items(items.iter_mut()))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::Record(..)) {
            *self.0 = Node::Record(name, fields.iter().map(|field| (*field, Node::Unknown)).collect());
        }
        let Node::Record(_, fields) = self.0 else { unreachable!() };
        visitor.visit_seq(Items(fields.iter_mut().map(|(_, node)| node)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        if !matches!(self.0, Node::Choice(..)) {
            *self.0 = Node::Choice(name, variants.iter().map(|variant| (*variant, Node::Unknown)).collect());
        }
        let Node::Choice(_, variants) = self.0 else { unreachable!() };
        let index = variants.iter().position(|(_, node)| !node.is_complete()).unwrap_or(0);
        visitor.visit_enum(Variant { index: u32::try_from(index).unwrap(), node: &mut variants[index].1 })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Mismatch> {
        Err(Mismatch::new("a type that is stored must say what it is"))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        self.deserialize_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    serde::forward_to_deserialize_any! { i8 i16 f32 char bytes byte_buf unit unit_struct ignored_any }
}

/// The items of a list, a tuple or a record.
struct Items<I>(I);

impl<'de, 'a, I: Iterator<Item = &'a mut Node>> SeqAccess<'de> for Items<I> {
    type Error = Mismatch;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mismatch> {
        self.0.next().map(|node| seed.deserialize(Tracer(node))).transpose()
    }
}

/// The one entry of a map.
struct Entry<'a> {
    key: Option<&'a mut Node>,
    value: &'a mut Node,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Mismatch;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Mismatch> {
        self.key.take().map(|node| seed.deserialize(Tracer(node))).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Mismatch> {
        seed.deserialize(Tracer(self.value))
    }
}

/// The variant that is made this time.
struct Variant<'a> {
    index: u32,
    node: &'a mut Node,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Mismatch;
    type Variant = Content<'a>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content<'a>), Mismatch> {
        let index: U32Deserializer<Mismatch> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, Content(self.node)))
    }
}

/// What it holds.
struct Content<'a>(&'a mut Node);

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Mismatch;

    fn unit_variant(self) -> Result<(), Mismatch> {
        *self.0 = Node::Unit;
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Mismatch> {
        seed.deserialize(Tracer(self.0))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Mismatch> {
        Tracer(self.0).deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        Tracer(self.0).deserialize_struct("", fields, visitor)
    }
}
