//! Finds the schema of a type of today. In: types, by the names of their documents. Out: their schema as text. Called
//! by the tests of formats, which compare it with the committed schema.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gleaner_test_support::shape::Shape;
use serde::Deserialize;

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
        self.written(&Shape::of::<T>(false))
    }

    fn written(&mut self, shape: &Shape) -> String {
        let all = |own: &mut Self, fields: &[(&str, Shape)], between: &str| {
            let field = |(name, shape): &(&str, Shape)| match (own.written(shape), between) {
                (shape, _) if shape.is_empty() => (*name).to_owned(),
                (shape, between) => format!("{name}{between}{shape}"),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        };
        match shape {
            Shape::Unknown | Shape::Any => unreachable!("complete, and for no people"),
            Shape::Unit => String::new(),
            Shape::Scalar(name) => (*name).to_owned(),
            Shape::Option(inner) => format!("{}?", self.written(inner)),
            Shape::List(inner) => format!("[{}]", self.written(inner)),
            Shape::Map(both) => format!("[{}: {}]", self.written(&both.0), self.written(&both.1)),
            Shape::Tuple(items) => {
                let items: Vec<String> = items.iter().map(|item| self.written(item)).collect();
                format!("({})", items.join(", "))
            }
            Shape::Record("", fields) => format!("{{ {} }}", all(self, fields, ": ")),
            Shape::Record(name, fields) => {
                let shape = format!("{{ {} }}", all(self, fields, ": "));
                self.define(name, shape)
            }
            Shape::Choice(name, variants) => {
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
