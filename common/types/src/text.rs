//! Untrusted text, such as the name of a guest. In: text as received. Out: text that is safe in logs and terminals.
//! Called where a name or text from outside is stored, logged or printed.

/// Whether a character may be shown as it is. Control characters move a terminal's cursor or change what it does;
/// line and paragraph separators end lines; marks of writing direction and characters without width let a text look
/// like another.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with a question mark in place of every character that is not harmless.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { '?' }).collect()
}

/// A JSON document with every character that is not harmless written as its number. Outside of its strings JSON has
/// none but line ends and tabs, which stay.
#[must_use]
pub fn harmless_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_harmless(c) || matches!(c, '\n' | '\t') {
            shown.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a hostile guest may call itself.
    const HOSTILE: &str =
        "web\u{1b}]0;owned\u{7}\u{1b}[2J\r\nhost_lost\u{9b}31m\u{202e}gpj\u{200b}\u{2028}x\u{7f}\u{e0041}";

    #[test]
    fn nothing_that_acts_is_left() {
        assert_eq!(harmless(HOSTILE), "web?]0;owned??[2J??host_lost?31m?gpj??x??");
        assert_eq!(harmless("Käse-数据 №1 🦀"), "Käse-数据 №1 🦀");
    }

    #[test]
    fn json_means_the_same_and_shows_nothing_that_acts() {
        let json = serde_json::to_string(&serde_json::json!({ "name": HOSTILE })).unwrap();
        let shown = harmless_json(&json);
        assert!(shown.chars().all(is_harmless), "{shown:?}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["name"], HOSTILE);
    }

    proptest::proptest! {
        #[test]
        fn any_text_survives_as_json(text in ".{0,60}") {
            let json = serde_json::to_string(&text).unwrap();
            let shown = harmless_json(&json);
            proptest::prop_assert!(shown.chars().all(is_harmless));
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }
}
