//! Counts of what a newer peer sent and this release does not know. In: unknown variants, fields and messages, while
//! decoding. Out: counts for the metrics. Filled while version 2 is decoded, read by both daemons.

/// Counts of what was not known. All of it was skipped or kept as unknown; none of it ended a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unknowns {
    /// Whole messages: of an unknown tag, or about something unknown.
    pub messages: u64,
    /// Numbers of variants, events among them.
    pub codes: u64,
    /// Structs with fields behind the last known one.
    pub fields: u64,
    /// What it was last, and its number.
    pub last: Option<(&'static str, u64)>,
}

impl Unknowns {
    /// A message that is skipped.
    pub(crate) const fn message(&mut self, what: &'static str, code: u16) {
        self.messages += 1;
        self.last = Some((what, code as u64));
    }

    /// The number of a variant.
    pub(crate) const fn code(&mut self, what: &'static str, code: u16) {
        self.codes += 1;
        self.last = Some((what, code as u64));
    }

    /// Bytes behind the fields of a struct.
    pub(crate) const fn fields(&mut self, bytes: usize) {
        self.fields += 1;
        self.last = Some(("bytes of further fields", bytes as u64));
    }

    /// Everything was known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages == 0 && self.codes == 0 && self.fields == 0
    }

    /// All of it together.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.messages + self.codes + self.fields
    }

    /// Adds what another stream met.
    pub fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.codes += other.codes;
        self.fields += other.fields;
        self.last = other.last.or(self.last);
    }
}
