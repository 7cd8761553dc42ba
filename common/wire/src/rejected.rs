//! Why a received message is refused. In: a field and its fault. Out: an error that names the field. Scalars and
//! schemas make it; `v1` and `v2` turn it into the frame's error.

use std::fmt;

/// The refusal of a received value.
#[derive(Debug)]
pub(crate) struct Rejected(Box<Rejection>);

/// Why a value is refused.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// It breaks a rule: which field of what was sent, the innermost first, and how.
    Invalid { fields: Vec<&'static str>, detail: String },
    /// It is about something that only a newer release knows.
    Unknown { what: &'static str, code: u16 },
}

impl Rejected {
    #[cold]
    pub(crate) fn invalid(error: impl fmt::Display) -> Self {
        Self(Box::new(Rejection::Invalid { fields: Vec::new(), detail: error.to_string() }))
    }

    #[cold]
    pub(crate) fn unknown(what: &'static str, code: u16) -> Self {
        Self(Box::new(Rejection::Unknown { what, code }))
    }

    #[cold]
    fn in_field(mut self, field: &'static str) -> Self {
        if let Rejection::Invalid { fields, .. } = &mut *self.0 {
            fields.push(field);
        }
        self
    }

    pub(crate) const fn why(&self) -> &Rejection {
        &self.0
    }
}

/// Adds the field's name to a refusal.
#[inline(always)]
pub(crate) fn named<T>(field: &'static str, converted: Result<T, Rejected>) -> Result<T, Rejected> {
    converted.map_err(|rejected| rejected.in_field(field))
}

/// `machine.disks.read: NaN is not a valid …`.
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why() {
            Rejection::Invalid { fields, detail } => {
                for (place, field) in fields.iter().rev().enumerate() {
                    write!(f, "{}{field}", if place > 0 { "." } else { "" })?;
                }
                write!(f, "{}{detail}", if fields.is_empty() { "" } else { ": " })
            }
            Rejection::Unknown { what, code } => write!(f, "{what} {code} is unknown"),
        }
    }
}
