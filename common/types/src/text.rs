//! Untrusted text, such as the name of a guest. In: text as received. Out: text that is safe in logs and terminals, and
//! short enough to be sent.
//! Called where a name or text from outside is stored, logged or printed.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Whether a character may be shown as it is. Control characters move a terminal's cursor or change what it does;
/// line and paragraph separators end lines; marks of writing direction, characters without width and blank ones that are no
/// spaces let a text look like another.
#[must_use]
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e01ef}'
        )
}

/// The text with a question mark in place of every character that is not harmless.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if is_harmless(c) { c } else { '?' }).collect()
}

/// So many things in words: "1 host", "2 hosts", "2 processes".
#[must_use]
pub fn counted(number: impl std::fmt::Display, one: &str) -> String {
    let number = number.to_string();
    let ending = match number.as_str() {
        "1" => "",
        _ if one.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {one}{ending}")
}

/// A duration in seconds, in words: "250 ms", "4.5 s", "4 min 30 s", "1 h 02 min", "3 d 04 h". The one way in which reasons, events and
/// lists say one.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds > 1e9 {
        return "never".into();
    }
    let (sign, total) = (if seconds < 0.0 { "-" } else { "" }, seconds.abs());
    let ms = (total * 1_000.0).round();
    if ms < 1.0 {
        return "0 s".to_owned();
    }
    if ms < 1_000.0 {
        return format!("{sign}{ms:.0} ms");
    }
    // Of less than ten seconds a tenth counts too.
    let tenths = (total * 10.0).round();
    if tenths < 100.0 && tenths % 10.0 != 0.0 {
        return format!("{sign}{:.1} s", tenths / 10.0);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    let whole = total.round() as u64;
    match whole {
        0..60 => format!("{sign}{whole} s"),
        60..3_600 => format!("{sign}{} min {:02} s", whole / 60, whole % 60),
        3_600..172_800 => format!("{sign}{} h {:02} min", whole / 3_600, whole / 60 % 60),
        _ => format!("{sign}{} d {:02} h", whole / 86_400, whole / 3_600 % 24),
    }
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

/// The value if its JSON, made harmless, has at most `most` bytes. Otherwise one whose long texts and lists are cut as far as
/// that takes; `None` where that does not do.
#[must_use]
pub fn shortened<T: Serialize + DeserializeOwned>(value: T, most: usize) -> Option<T> {
    let mut json = serde_json::to_value(&value).ok()?;
    let fits = |json: &Value| harmless_json(&json.to_string()).len() <= most;
    if fits(&json) {
        return Some(value);
    }
    for (bytes, elements) in [(4_096, 64), (1_024, 16), (512, 8), (256, 4)] {
        shorten(&mut json, bytes, elements);
        if fits(&json) {
            return serde_json::from_value(json).ok();
        }
    }
    None
}

/// Cuts texts to so many bytes, and lists to so many elements.
fn shorten(json: &mut Value, bytes: usize, elements: usize) {
    match json {
        Value::String(text) if text.len() > bytes => {
            let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
        }
        Value::Array(values) => {
            values.truncate(elements);
            values.iter_mut().for_each(|value| shorten(value, bytes, elements));
        }
        Value::Object(fields) => fields.values_mut().for_each(|value| shorten(value, bytes, elements)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a hostile guest may call itself.
    const HOSTILE: &str =
        "web\u{1b}]0;owned\u{7}\u{1b}[2J\r\nhost_lost\u{9b}31m\u{202e}gpj\u{200b}\u{2028}x\u{7f}\u{e0041}";

    #[test]
    fn one_of_them_is_not_many() {
        assert_eq!((counted(1, "process"), counted(2, "process")), ("1 process".into(), "2 processes".into()));
        assert_eq!([0, 1, 2, 11].map(|number| counted(number, "host")), ["0 hosts", "1 host", "2 hosts", "11 hosts"]);
    }

    #[test]
    fn durations_are_said_in_one_way() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (-0.0004, "0 s"),
            (0.4, "400 ms"),
            (1.25, "1.3 s"),
            (4.96, "5 s"),
            (-5.0, "-5 s"),
            (9.97, "10 s"),
            (59.4, "59 s"),
            (59.6, "1 min 00 s"),
            (270.0, "4 min 30 s"),
            (3_725.0, "1 h 02 min"),
            (172_799.0, "47 h 59 min"),
            (273_700.0, "3 d 04 h"),
            (f64::INFINITY, "never"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

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
        let read: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["name"], HOSTILE);
    }

    #[test]
    fn only_what_is_too_long_is_cut() {
        let short = (vec!["a".to_owned(); 100], "b".repeat(700));
        assert_eq!(shortened(short.clone(), 2_000), Some(short));
        let long = (vec!["é".repeat(5_000); 3], "b".to_owned(), 7_u64);
        let (texts, other, number) = shortened(long, 16_384).unwrap();
        assert_eq!((texts[0].len(), texts.len(), other.as_str(), number), (4_096, 3, "b", 7));
        let many = vec![HOSTILE.repeat(1_000); 1_000];
        let cut = shortened(many, 16_384).unwrap();
        assert!(!cut.is_empty() && harmless_json(&serde_json::to_string(&cut).unwrap()).len() <= 16_384);
        assert_eq!(shortened(vec![vec![vec!["x".repeat(300); 9]; 9]; 9], 1_000), None);
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
