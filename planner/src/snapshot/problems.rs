//! What is wrong with a question. In: fields with their values and the ranges they must be in. Out: an error that names each.

use std::fmt::{self, Display, Formatter};

use crate::sharing::invalid::short;

/// Version of the documents.
pub const VERSION: u32 = 1;

/// Most mistakes that are named.
const MOST_NAMED: usize = 20;

/// Most entries of a list in a question.
pub(super) const MOST_ENTRIES: usize = 100_000;

/// What is wrong with a question: each field with its value and the rule, a line each; the first 20 of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(Vec<String>);

impl Problems {
    pub(super) fn push(&mut self, problem: String) {
        if self.0.len() < MOST_NAMED {
            self.0.push(problem);
        }
    }

    /// A value and its bounds. Where these leave nothing, what they are from is wrong.
    pub(super) fn within(&mut self, field: &str, value: f64, least: f64, most: f64) {
        if least > most {
            let (value, least, most) = (short(value), short(least), short(most));
            self.push(format!(
                "{field}: is {value}; it must be at least {least}, and at most {most}: a field that sets one of them is wrong"
            ));
        } else if !(least..=most).contains(&value) {
            self.push(format!("{field}: is {}; it must be {} to {}", short(value), short(least), short(most)));
        }
    }

    pub(super) fn above_zero(&mut self, field: &str, value: f64, most: f64) {
        if !(value > 0.0 && value <= most) {
            self.push(format!("{field}: is {}; it must be more than 0 and at most {}", short(value), short(most)));
        }
    }

    pub(super) fn count(&mut self, field: &str, count: usize, least: usize) {
        if !(least..=MOST_ENTRIES).contains(&count) {
            self.push(format!("{field}: has {count} entries; it must have {least} to {MOST_ENTRIES}"));
        }
    }

    pub(super) fn version(&mut self, version: u32) {
        if version != VERSION {
            self.push(format!("version: is {version}; it must be {VERSION}"));
        }
    }

    /// Refuses the question if anything is wrong with it.
    pub(super) fn end(self) -> Result<(), Self> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(self),
        }
    }
}

impl Display for Problems {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_leave_nothing_are_no_range() {
        let mut problems = Problems::default();
        problems.within("ceiling_percent", 5.0, 1.0, 0.0);
        let said = problems.to_string();
        assert_eq!(
            said,
            "ceiling_percent: is 5; it must be at least 1, and at most 0: a field that sets one of them is wrong"
        );
        problems = Problems::default();
        problems.within("ceiling_percent", 5.0, 0.0, 5.0);
        assert!(problems.end().is_ok());
    }
}
