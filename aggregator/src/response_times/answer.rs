//! What every source's answer is made of. In: reasons and untrusted text. Out: values and messages of bounded length.
//! Each source calls it.

use gleaner_types::application::ResponseTime;

/// Longest reason of a [`ResponseTime::Missing`], in characters.
pub const LONGEST_REASON: usize = 200;
/// Longest value that is quoted, in characters.
pub(super) const LONGEST_QUOTE: usize = 60;
/// Replaces a secret.
pub(super) const WITHHELD: &str = "(withheld)";

/// No value, and why.
pub(super) fn missing(reason: impl AsRef<str>) -> ResponseTime {
    ResponseTime::Missing { reason: shortened(reason.as_ref(), LONGEST_REASON) }
}

/// Untrusted text, quoted for a message.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", shortened(text, LONGEST_QUOTE))
}

/// At most `longest` characters of a text, none of them a control character.
pub(super) fn shortened(text: &str, longest: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    match text.char_indices().nth(longest) {
        None => text.chars().map(plain).collect(),
        Some(_) => text.chars().map(plain).take(longest.saturating_sub(1)).chain(['…']).collect(),
    }
}
