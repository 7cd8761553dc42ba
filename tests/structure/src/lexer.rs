//! Rust source to the few tokens that paths and items are made of. In: the text of a file. Out: words, `::`, and single
//! signs; comments, literals and lifetimes are left out. Called by [`crate::module`].

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name or keyword; raw names (`r#type`) without their prefix.
    Word(String),
    /// `::`.
    PathSeparator,
    /// Any other sign.
    Sign(char),
}

impl Token {
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            Self::PathSeparator | Self::Sign(_) => None,
        }
    }

    pub(crate) fn is(&self, sign: char) -> bool {
        *self == Self::Sign(sign)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        match c {
            '/' if next == Some('/') => at = position(&chars, at, |c| c == '\n'),
            '/' if next == Some('*') => at = after_comment(&chars, at),
            '"' => {
                let end = after_string(&chars, at);
                path_in_attribute(&chars[at + 1..end.saturating_sub(1).max(at + 1)], &mut found);
                at = end;
            }
            '\'' => at = after_quote(&chars, at),
            ':' if next == Some(':') => {
                found.push(Token::PathSeparator);
                at += 2;
            }
            c if c.is_alphabetic() || c == '_' => {
                let end = position(&chars, at, |c| !(c.is_alphanumeric() || c == '_'));
                let word: String = chars[at..end].iter().collect();
                match (word.as_str(), chars.get(end)) {
                    ("r" | "br" | "cr", Some('"' | '#')) if raw_hashes(&chars, end).is_some() => {
                        at = after_raw_string(&chars, end);
                    }
                    // `r#type`: the name follows.
                    ("r", Some('#')) => at = end + 1,
                    ("b" | "c", Some('"')) => at = after_string(&chars, end),
                    ("b", Some('\'')) => at = after_quote(&chars, end),
                    _ => {
                        found.push(Token::Word(word));
                        at = end;
                    }
                }
            }
            c if c.is_ascii_digit() => at = position(&chars, at, |c| !(c.is_alphanumeric() || c == '_')),
            c => {
                if !c.is_whitespace() {
                    found.push(Token::Sign(c));
                }
                at += 1;
            }
        }
    }
    found
}

fn position(chars: &[char], from: usize, ends: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|c| ends(*c)).map_or(chars.len(), |length| from + length)
}

/// Comments in Rust nest.
fn after_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn after_string(chars: &[char], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Hashes before the quote of a raw string; `None` if this is not one.
fn raw_hashes(chars: &[char], from: usize) -> Option<usize> {
    let hashes = position(chars, from, |c| c != '#') - from;
    (chars.get(from + hashes) == Some(&'"')).then_some(hashes)
}

fn after_raw_string(chars: &[char], from: usize) -> usize {
    let hashes = raw_hashes(chars, from).unwrap_or_default();
    let mut at = from + hashes + 1;
    while at < chars.len() {
        let closes = chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        at += 1;
        if closes {
            return at + hashes;
        }
    }
    at
}

/// A character literal, or a lifetime.
fn after_quote(chars: &[char], quote: usize) -> usize {
    match (chars.get(quote + 1), chars.get(quote + 2)) {
        (Some('\\'), _) => position(chars, quote + 3, |c| c == '\'') + 1,
        (Some(_), Some('\'')) => quote + 3,
        _ => position(chars, quote + 1, |c| !(c.is_alphanumeric() || c == '_')),
    }
}

/// `with = "crate::x"` of serde names a path in a string.
fn path_in_attribute(text: &[char], found: &mut Vec<Token>) {
    let names = ["with", "serialize_with", "deserialize_with", "default", "skip_serializing_if"];
    let is_value =
        matches!(found.as_slice(), [.., Token::Word(key), Token::Sign('=')] if names.contains(&key.as_str()));
    let text: String = text.iter().collect();
    let is_path =
        text.split("::").all(|part| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_'));
    if is_value && is_path {
        for (index, part) in text.split("::").enumerate() {
            found.extend((index > 0).then_some(Token::PathSeparator));
            found.push(Token::Word(part.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_literals_and_lifetimes_are_left_out() {
        let text = r##"a /* b /* c */ d */ "e\"f" r#"g"h"# 'i' '\'' '\u{1f}' <'j> b'k' 0x1f // l
            m::n"##;
        let words: Vec<_> = tokens(text).iter().filter_map(|token| token.word().map(str::to_owned)).collect();
        assert_eq!(words, ["a", "m", "n"]);
        assert_eq!(tokens("r#type x::y").len(), 4);
    }

    #[test]
    fn a_path_in_an_attribute_is_one() {
        let words = |text: &str| tokens(text).iter().filter_map(|token| token.word().map(str::to_owned)).count();
        assert_eq!(words("serde(with = \"crate::x::y\")"), 5);
        assert_eq!(words("title = \"crate::x::y\""), 1);
    }
}
