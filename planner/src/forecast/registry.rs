//! The registry of forecasters: every method by its name. In: a name of the config. Out: the [`Method`] that makes the
//! forecaster. The config, docs/configuration.md and reports read it. This file says what an entry is; the list is
//! in the file above.

use std::fmt;

use gleaner_types::method::MethodName;

use super::forecaster::Forecaster;

/// What a method is made of.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// The mixture with a calibrated bound, which learns for a day.
    Calibrated,
    /// A forecaster of the history, made with its length in seconds.
    OfHistory(fn(f64) -> Box<dyn Forecaster>),
}

/// A way to predict: one entry of [`METHODS`](super::METHODS).
#[derive(Clone, Copy)]
pub struct Method {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) kind: Kind,
}

impl Method {
    /// Its name, as in reports: lower-case words joined by underscores.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Its name as config files write it: words joined by hyphens.
    #[must_use]
    pub fn config_word(self) -> String {
        self.name.replace('_', "-")
    }

    /// What it predicts, in one sentence.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        self.meaning
    }

    /// Its name as a report carries it.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "names in the registry are module names of at most 32 letters; a test asks all"
    )]
    pub fn reported(self) -> MethodName {
        MethodName::new(self.name).expect("a registered name is a valid one")
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Method {}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Method({})", self.name)
    }
}

/// Declares the modules of the methods, and `METHODS` with an entry for each: first the one that is calibrated, then those
/// of the history.
macro_rules! methods {
    ($calibrated:ident: $calibrated_meaning:literal; $($name:ident: $meaning:literal;)+) => {
        mod $calibrated;
        $(mod $name;)+

        /// All methods, the default first.
        pub static METHODS: &[Method] = &[
            Method {
                name: stringify!($calibrated),
                meaning: $calibrated_meaning,
                kind: registry::Kind::Calibrated,
            },
            $(Method {
                name: stringify!($name),
                meaning: $meaning,
                kind: registry::Kind::OfHistory($name::forecaster),
            }),+
        ];
    };
}
