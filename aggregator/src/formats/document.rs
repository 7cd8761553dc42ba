//! What a stored state consists of. Data only. The store and the standby's replica name the document they read;
//! [`super::read`] picks its schema by it, and converters what to change.

/// The documents of a stored state, by the names of their schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    /// What the controller knows.
    Controller,
    /// Who may join and who is shut out.
    Admissions,
    /// Both, as they are replicated.
    Replicated,
}

impl Document {
    pub(super) const fn schema(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Admissions => "admissions",
            Self::Replicated => "replicated",
        }
    }
}
