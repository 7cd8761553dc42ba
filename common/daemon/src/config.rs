//! Reads TOML config files and reports every mistake at once, with file, line and key. In: a file's text. Out: the
//! values that a daemon asks for, or all problems. Both daemons call it.
//!
//! A daemon asks a [`Section`] for each key it knows, with the default and the allowed range. Mistakes and unknown keys
//! are collected in the [`Document`]. [`Document::finish`] then gives the finished config or all problems. The
//! requested keys are stored as [`Key`]s: the reference of all keys is generated from them, and a reload compares them
//! to find what has changed ([`Running`]).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Largest config file read.
const MAX_BYTES: u64 = 1 << 20;

/// One mistake in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; `None` when it is about something missing or the file as a whole.
    pub line: Option<usize>,
    /// What is wrong, naming the key.
    pub what: String,
}

/// All mistakes of a config file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The file.
    pub file: PathBuf,
    /// The mistakes; at least one.
    pub list: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.file.display())?;
            if let Some(line) = problem.line {
                write!(f, ":{line}")?;
            }
            write!(f, ": {}", problem.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A key that a config file may have, as its daemon asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its sections and its name, joined by dots.
    pub path: String,
    /// What its value must be.
    pub allowed: String,
    /// The value it has without being in the file, as TOML; `None` where there is none.
    pub default: Option<String>,
    /// The value it has, as TOML; `None` where it has none.
    pub value: Option<String>,
}

/// The keys of the config that a daemon runs with.
#[derive(Debug)]
pub struct Running {
    keys: Vec<Key>,
    at_run_time: &'static [&'static str],
}

/// What a changed config file means for a running daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys whose new values apply from now on.
    pub taken_over: Vec<String>,
    /// Keys whose new values apply after a restart.
    pub need_restart: Vec<String>,
}

impl Running {
    /// A daemon that was started with these keys and can change those of `at_run_time` while it runs.
    #[must_use]
    pub fn new(keys: Vec<Key>, at_run_time: &'static [&'static str]) -> Self {
        Self { keys, at_run_time }
    }

    /// Reads the config file again, and logs what that changes. `None`: it has mistakes, which are logged, and nothing
    /// changes.
    pub fn reload<C>(
        &mut self,
        file: &Path,
        load: impl FnOnce(&Source) -> Result<(C, Vec<Key>), Problems>,
    ) -> Option<C> {
        match Source::read(file).and_then(|source| load(&source)) {
            Ok((config, keys)) => {
                tracing::info!("config reloaded; {}", self.take_over(keys));
                Some(config)
            }
            Err(problems) => {
                tracing::error!("the changed config is not taken over: {problems}");
                None
            }
        }
    }

    /// Applies the keys that can change now. Returns these and the changed keys that need a restart.
    pub fn take_over(&mut self, keys: Vec<Key>) -> Changes {
        let mut changes = Changes::default();
        for new in keys {
            let running = self.keys.iter_mut().find(|key| key.path == new.path);
            if running.as_ref().is_some_and(|key| key.value == new.value) {
                continue;
            }
            match running {
                Some(key) if self.at_run_time.contains(&new.path.as_str()) => {
                    changes.taken_over.push(new.path.clone());
                    *key = new;
                }
                // What needs a restart keeps its old value here, so the next reload reports it again.
                _ => changes.need_restart.push(new.path),
            }
        }
        changes
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |keys: &[String]| if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
        write!(f, "taken over: {}; needs a restart: {}", list(&self.taken_over), list(&self.need_restart))
    }
}

/// The text of a config file.
#[derive(Debug)]
pub struct Source {
    file: PathBuf,
    text: String,
}

impl Source {
    /// Reads a config file.
    ///
    /// # Errors
    /// [`Problems`] with one entry if it cannot be read or is over 1 MiB.
    pub fn read(file: &Path) -> Result<Self, Problems> {
        let one = |what: String| Problems { file: file.to_owned(), list: vec![Problem { line: None, what }] };
        let size = std::fs::metadata(file).map_err(|e| one(format!("cannot be read: {e}")))?.len();
        if size > MAX_BYTES {
            return Err(one(format!("has {size} bytes; at most {MAX_BYTES} are read")));
        }
        let text = std::fs::read_to_string(file).map_err(|e| one(format!("cannot be read: {e}")))?;
        Ok(Self { file: file.to_owned(), text })
    }

    /// A config from text, under the name of a file.
    #[must_use]
    pub fn from_text(file: &Path, text: &str) -> Self {
        Self { file: file.to_owned(), text: text.to_owned() }
    }

    /// Parses it. Syntax errors are among the problems [`Document::finish`] reports.
    #[must_use]
    pub fn parse(&self) -> Document<'_> {
        let (table, errors) = DeTable::parse_recoverable(&self.text);
        let document = Document {
            source: self,
            table: table.into_inner(),
            problems: RefCell::default(),
            keys: RefCell::default(),
        };
        for error in errors {
            document.problem(error.span(), format!("is not valid TOML: {}", error.message()));
        }
        document
    }
}

/// A config file being read.
#[derive(Debug)]
pub struct Document<'s> {
    source: &'s Source,
    table: DeTable<'s>,
    problems: RefCell<Vec<Problem>>,
    keys: RefCell<Vec<Key>>,
}

impl Document<'_> {
    /// The keys asked for so far, in the order they were first asked for.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.keys.borrow().clone()
    }

    /// The top level.
    #[must_use]
    pub fn root(&self) -> Section<'_> {
        Section { document: self, path: String::new(), table: Some(&self.table), asked: BTreeSet::new() }
    }

    /// `config` if nothing was wrong.
    ///
    /// # Errors
    /// All [`Problems`] found.
    pub fn finish<T>(self, config: Option<T>) -> Result<T, Problems> {
        let mut list = self.problems.into_inner();
        match config {
            Some(config) if list.is_empty() => Ok(config),
            _ => {
                if list.is_empty() {
                    list.push(Problem { line: None, what: "is incomplete".into() });
                }
                list.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
                Err(Problems { file: self.source.file.clone(), list })
            }
        }
    }

    fn problem(&self, span: Option<Range<usize>>, what: String) {
        let line = span.map(|s| self.source.text.get(..s.start).unwrap_or_default().matches('\n').count() + 1);
        self.problems.borrow_mut().push(Problem { line, what });
    }

    /// Records a key. Of a key that is requested twice, the request with a default counts.
    fn remember(&self, key: Key) {
        let mut keys = self.keys.borrow_mut();
        match keys.iter_mut().find(|known| known.path == key.path) {
            Some(known) if key.default.is_some() => *known = key,
            Some(_) => {}
            None => keys.push(key),
        }
    }
}

/// A table of a config file. Ask for every key it may have, then drop it: keys not asked for are reported.
#[derive(Debug)]
pub struct Section<'d> {
    document: &'d Document<'d>,
    path: String,
    table: Option<&'d DeTable<'d>>,
    asked: BTreeSet<&'static str>,
}

impl<'d> Section<'d> {
    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.asked.insert(key);
        self.table?.get(key)
    }

    fn remember(&self, key: &str, allowed: String, default: Option<String>, value: Option<String>) {
        self.document.remember(Key { path: self.full(key), allowed, default, value });
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: impl fmt::Display) {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            other => format!("of type {}", other.type_str()),
        };
        self.document.problem(Some(value.span()), format!("`{}` is {found}; it must be {expected}", self.full(key)));
    }

    /// Reports a problem of a key that could be read but does not fit.
    pub fn reject(&self, key: &str, what: impl fmt::Display) {
        let span = self.table.and_then(|table| table.get(key)).map(Spanned::span);
        self.document.problem(span, format!("`{}` {what}", self.full(key)));
    }

    /// Whether the file has this key.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.get(key).is_some())
    }

    /// The table `key`; empty if missing.
    pub fn section(&mut self, key: &'static str) -> Section<'d> {
        let table = match self.take(key) {
            None => None,
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => {
                    self.wrong(key, value, format_args!("a table, written `[{}]`", self.full(key)));
                    None
                }
            },
        };
        Section { document: self.document, path: self.full(key), table, asked: BTreeSet::new() }
    }

    /// An integer, `default` if missing.
    pub fn integer(&mut self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let (allowed, number) = self.read_integer(key, range);
        let number = number.unwrap_or(default);
        self.remember(key, allowed, Some(default.to_string()), Some(number.to_string()));
        number
    }

    /// An integer, if there.
    pub fn optional_integer(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let (allowed, number) = self.read_integer(key, range);
        self.remember(key, allowed, None, number.map(|number| number.to_string()));
        number
    }

    /// What it must be, and what it is where it is that.
    fn read_integer(&mut self, key: &'static str, range: RangeInclusive<u64>) -> (String, Option<u64>) {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let number = self.take(key).and_then(|value| {
            let number = match value.get_ref() {
                DeValue::Integer(number) => u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok(),
                _ => None,
            };
            let good = number.filter(|number| range.contains(number));
            if good.is_none() {
                self.wrong(key, value, &allowed);
            }
            good
        });
        (allowed, number)
    }

    /// A number, `default` if missing.
    pub fn number(&mut self, key: &'static str, default: f64, range: RangeInclusive<f64>) -> f64 {
        let (allowed, number) = self.read_number(key, range);
        let number = number.unwrap_or(default);
        self.remember(key, allowed, Some(default.to_string()), Some(number.to_string()));
        number
    }

    /// A number, if there.
    pub fn optional_number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let (allowed, number) = self.read_number(key, range);
        self.remember(key, allowed, None, number.map(|number| number.to_string()));
        number
    }

    /// What it must be, and what it is where it is that.
    fn read_number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> (String, Option<f64>) {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        let number = self.take(key).and_then(|value| {
            let number: Option<f64> = match value.get_ref() {
                DeValue::Integer(number) => number.to_string().replace('_', "").parse().ok(),
                DeValue::Float(number) => number.to_string().replace('_', "").parse().ok(),
                _ => None,
            };
            let good = number.filter(|number| range.contains(number));
            if good.is_none() {
                self.wrong(key, value, &allowed);
            }
            good
        });
        (allowed, number)
    }

    /// A part as a percentage, such as "1%"; `default` if missing. It and `range` are parts of one.
    pub fn percentage(&mut self, key: &'static str, default: f64, range: RangeInclusive<f64>) -> f64 {
        let allowed = format!("a percentage from {} to {}", percent(*range.start()), percent(*range.end()));
        let part = self.take(key).map_or(default, |value| {
            let text = match value.get_ref() {
                DeValue::String(text) => text.trim().strip_suffix('%'),
                _ => None,
            };
            let part = text.and_then(|number| number.trim().parse::<f64>().ok()).map(|number| number / 100.0);
            part.filter(|part| range.contains(part)).unwrap_or_else(|| {
                self.wrong(key, value, &allowed);
                default
            })
        });
        self.remember(key, allowed, Some(percent(default)), Some(percent(part)));
        part
    }

    /// True or false, `default` if missing.
    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let allowed = "true or false";
        let flag = self.take(key).map_or(default, |value| match value.get_ref() {
            DeValue::Boolean(flag) => *flag,
            _ => {
                self.wrong(key, value, allowed);
                default
            }
        });
        self.remember(key, allowed.to_owned(), Some(default.to_string()), Some(flag.to_string()));
        flag
    }

    /// A text, if there.
    pub fn optional_text(&mut self, key: &'static str) -> Option<String> {
        let text = self.text(key);
        self.remember(key, "a text".to_owned(), None, text.as_ref().map(|text| format!("{text:?}")));
        text
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        let value = self.take(key)?;
        if let DeValue::String(text) = value.get_ref() {
            Some(text.to_string())
        } else {
            self.wrong(key, value, "a text in quotes");
            None
        }
    }

    /// A text that must parse, `default` if missing.
    pub fn parsed<T: FromStr + fmt::Display>(&mut self, key: &'static str, default: T) -> T
    where
        T::Err: fmt::Display,
    {
        let shown = |value: &T| Some(format!("{:?}", value.to_string()));
        let default_shown = shown(&default);
        let value = self.optional_parsed(key).unwrap_or(default);
        self.remember(key, "a text".to_owned(), default_shown, shown(&value));
        value
    }

    /// A text that must parse, if there.
    pub fn optional_parsed<T: FromStr>(&mut self, key: &'static str) -> Option<T>
    where
        T::Err: fmt::Display,
    {
        let text = self.optional_text(key)?;
        text.parse().map_err(|e: T::Err| self.reject(key, format_args!("is {text:?}: {e}"))).ok()
    }

    /// A required text that must parse.
    pub fn required<T: FromStr>(&mut self, key: &'static str) -> Option<T>
    where
        T::Err: fmt::Display,
    {
        if !self.has(key) {
            self.asked.insert(key);
            self.remember(key, "a text".to_owned(), None, None);
            self.document.problem(None, format!("`{}` is missing", self.full(key)));
            return None;
        }
        self.optional_parsed(key)
    }

    /// An absolute path, `default` if missing.
    pub fn path(&mut self, key: &'static str, default: &str) -> PathBuf {
        let path = self.text(key).map_or_else(|| PathBuf::from(default), PathBuf::from);
        let shown = format!("{:?}", path.display().to_string());
        if !path.is_absolute() {
            self.reject(key, format_args!("is {shown}; it must be an absolute path"));
        }
        self.remember(key, "an absolute path".to_owned(), Some(format!("{default:?}")), Some(shown));
        path
    }

    /// An absolute path, if there.
    pub fn optional_path(&mut self, key: &'static str) -> Option<PathBuf> {
        let path = self.text(key).map(PathBuf::from);
        let shown = path.as_ref().map(|path| format!("{:?}", path.display().to_string()));
        if let (Some(path), Some(shown)) = (&path, &shown)
            && !path.is_absolute()
        {
            self.reject(key, format_args!("is {shown}; it must be an absolute path"));
        }
        self.remember(key, "an absolute path".to_owned(), None, shown);
        path
    }

    /// One of a fixed set of words, `default` if missing.
    pub fn choice<T: Copy + PartialEq>(&mut self, key: &'static str, default: T, choices: &[(&str, T)]) -> T {
        let words: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let allowed = format!("one of {}", words.join(", "));
        let choice = self.text(key).map_or(default, |text| {
            choices.iter().find(|(word, _)| *word == text).map_or_else(
                || {
                    self.reject(key, format_args!("is {text:?}; it must be {allowed}"));
                    default
                },
                |(_, choice)| *choice,
            )
        });
        let word = |of: T| choices.iter().find(|(_, choice)| *choice == of).map(|(word, _)| format!("{word:?}"));
        self.remember(key, allowed, word(default), word(choice));
        choice
    }

    /// One of a fixed set of words or a whole number, `default` if missing.
    pub fn choice_or_integer<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
        range: RangeInclusive<u64>,
        of: impl Fn(u64) -> T,
    ) -> T {
        let words: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let allowed =
            format!("one of {}, or a whole number from {} to {}", words.join(", "), range.start(), range.end());
        let taken = self.take(key);
        let found = taken.and_then(|value| match value.get_ref() {
            DeValue::String(text) => {
                let choice = choices.iter().find(|(word, _)| **word == **text);
                choice.map(|(word, choice)| (*choice, format!("{word:?}")))
            }
            DeValue::Integer(number) => {
                let number = u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok();
                number.filter(|number| range.contains(number)).map(|number| (of(number), number.to_string()))
            }
            _ => None,
        });
        if let Some(value) = taken.filter(|_| found.is_none()) {
            self.wrong(key, value, &allowed);
        }
        let default_word = choices.iter().find(|(_, choice)| *choice == default).map(|(word, _)| format!("{word:?}"));
        let (choice, shown) = found.map_or((default, default_word.clone()), |(choice, shown)| (choice, Some(shown)));
        self.remember(key, allowed, default_word, shown);
        choice
    }

    /// A list of texts, empty if missing.
    pub fn texts(&mut self, key: &'static str) -> Vec<String> {
        let texts = self.list(key);
        self.remember(key, "a list of texts".to_owned(), Some("[]".to_owned()), Some(format!("{texts:?}")));
        texts
    }

    /// A list of some of `words`, `default` if missing.
    pub fn words(&mut self, key: &'static str, words: &[&'static str], default: &[&'static str]) -> Vec<&'static str> {
        let named =
            if self.has(key) { self.list(key) } else { default.iter().map(|word| (*word).to_owned()).collect() };
        let most = format!("a list of {}", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", "));
        if let Some(other) = named.iter().find(|name| !words.contains(&name.as_str())) {
            self.reject(key, format_args!("has {other:?}; it must be {most}, or []"));
        }
        self.remember(key, format!("{most}, or []"), Some(format!("{default:?}")), Some(format!("{named:?}")));
        words.iter().filter(|word| named.iter().any(|name| name == *word)).copied().collect()
    }

    fn list(&mut self, key: &'static str) -> Vec<String> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(key, value, "a list of texts");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.to_string()),
                _ => self.wrong(key, item, "a list of texts only"),
            }
        }
        texts
    }
}

/// A part of one as a percentage in quotes. A millionth of a percent is the finest that is told apart.
fn percent(part: f64) -> String {
    format!("\"{}%\"", (part * 1e8).round() / 1e6)
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let Some(table) = self.table else { return };
        for (key, _) in table {
            let name = key.get_ref().as_ref();
            if !self.asked.contains(name) {
                let known: Vec<_> = self.asked.iter().copied().collect();
                let what = format!("`{}` is unknown; known here: {}", self.full(name), known.join(", "));
                self.document.problem(Some(key.span()), what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(u64, f64, bool, String, Vec<String>), Problems> {
        let source = Source::from_text(Path::new("a.toml"), text);
        let document = source.parse();
        let config = {
            let mut root = document.root();
            let name = root.required::<String>("name");
            let mut guard = root.section("guard");
            let period = guard.integer("period_ms", 50, 10..=1000);
            let headroom = guard.number("headroom", 0.1, 0.0..=1.0);
            let on = guard.flag("on", true);
            let globs = guard.texts("globs");
            name.map(|name| (period, headroom, on, name, globs))
        };
        document.finish(config)
    }

    #[test]
    fn defaults_and_values() {
        let config = read("name = 'x'\n[guard]\nperiod_ms = 1_00\nheadroom = 1\nglobs = ['a', 'b']\n").unwrap();
        assert_eq!(config, (100, 1.0, true, "x".into(), vec!["a".into(), "b".into()]));
    }

    #[test]
    fn a_percentage_is_a_text_with_its_sign_and_within_its_bounds() {
        let of = |value: &str| {
            let source = Source::from_text(Path::new("a.toml"), &format!("risk = {value}\n"));
            let document = source.parse();
            let part = document.root().percentage("risk", 0.01, 0.001..=0.2);
            let key = document.keys().remove(0);
            document.finish(Some(part)).map(|part| (part, key.value)).map_err(|problems| problems.to_string())
        };
        assert_eq!(of("'1%'"), Ok((0.01, Some("\"1%\"".to_owned()))));
        assert_eq!(of("' 0.1 %'"), Ok((0.001, Some("\"0.1%\"".to_owned()))));
        assert_eq!(of("'20%'"), Ok((0.2, Some("\"20%\"".to_owned()))));
        for bad in ["'21%'", "'0%'", "0.01", "1", "'1'", "'nan%'", "'-1%'", "''", "'1%%'"] {
            let said = of(bad).unwrap_err();
            assert!(
                said.contains("a.toml:1: `risk` is ") && said.contains("from \"0.1%\" to \"20%\""),
                "{bad}: {said}"
            );
        }
    }

    #[test]
    fn a_choice_may_be_a_number_too() {
        let of = |value: &str| {
            let source = Source::from_text(Path::new("a.toml"), &format!("idle = {value}\n"));
            let document = source.parse();
            let words = [("off", 0), ("most", u64::MAX)];
            let choice = document.root().choice_or_integer("idle", 0, &words, 1..=64, |number| number);
            let key = document.keys().remove(0);
            document.finish(Some(choice)).map(|choice| (choice, key.value)).map_err(|problems| problems.to_string())
        };
        assert_eq!(of("'off'"), Ok((0, Some("\"off\"".to_owned()))));
        assert_eq!(of("\"most\""), Ok((u64::MAX, Some("\"most\"".to_owned()))));
        assert_eq!(of("1_6"), Ok((16, Some("16".to_owned()))));
        for bad in ["0", "65", "'3'", "1.5", "true"] {
            let said = of(bad).unwrap_err();
            let must = "it must be one of \"off\", \"most\", or a whole number from 1 to 64";
            assert!(said.contains("a.toml:1: `idle` is ") && said.contains(must), "{bad}: {said}");
        }
    }

    #[test]
    fn every_mistake_is_reported_with_line_and_key() {
        let text = "nam = 'x'\n[guard]\nperiod_ms = 5\nheadroom = 'much'\non = 1\nglobs = ['a', 3]\n";
        let problems = read(text).unwrap_err();
        let said = problems.to_string();
        for part in [
            "a.toml:1: `nam` is unknown; known here: guard, name",
            "a.toml:3: `guard.period_ms` is 5; it must be a whole number from 10 to 1000",
            "a.toml:4: `guard.headroom` is \"much\"; it must be a number from 0 to 1",
            "a.toml:5: `guard.on` is 1; it must be true or false",
            "a.toml:6: `guard.globs` is 3; it must be a list of texts only",
            "a.toml: `name` is missing",
        ] {
            assert!(said.contains(part), "{part}\nnot in\n{said}");
        }
        assert_eq!(problems.list.len(), 6, "{said}");
    }

    #[test]
    fn keys_are_remembered_with_defaults_ranges_and_values() {
        let source = Source::from_text(Path::new("a.toml"), "[guard]\nperiod_ms = 20\nkind = 'b'\n");
        let document = source.parse();
        {
            let mut guard = document.root().section("guard");
            guard.integer("period_ms", 50, 10..=100);
            guard.optional_text("kind");
            guard.choice("kind", 1, &[("a", 1), ("b", 2)]);
            guard.path("file", "/a");
            guard.required::<String>("name");
            guard.optional_integer("most", 1..=9);
            assert_eq!(guard.optional_number("share", 0.0..=1.0), None);
            assert_eq!(guard.words("bounds", &["a", "b", "c"], &["a", "c"]), ["a", "c"]);
        }
        let key = |path: &str, allowed: &str, default: Option<&str>, value: Option<&str>| Key {
            path: path.to_owned(),
            allowed: allowed.to_owned(),
            default: default.map(str::to_owned),
            value: value.map(str::to_owned),
        };
        assert_eq!(
            document.keys(),
            [
                key("guard.period_ms", "a whole number from 10 to 100", Some("50"), Some("20")),
                key("guard.kind", "one of \"a\", \"b\"", Some("\"a\""), Some("\"b\"")),
                key("guard.file", "an absolute path", Some("\"/a\""), Some("\"/a\"")),
                key("guard.name", "a text", None, None),
                key("guard.most", "a whole number from 1 to 9", None, None),
                key("guard.share", "a number from 0 to 1", None, None),
                key(
                    "guard.bounds",
                    "a list of \"a\", \"b\", \"c\", or []",
                    Some("[\"a\", \"c\"]"),
                    Some("[\"a\", \"c\"]"),
                ),
            ]
        );
    }

    #[test]
    fn a_reload_tells_what_is_taken_over_and_what_is_not_until_it_is() {
        let keys = |text: &str| {
            let source = Source::from_text(Path::new("a.toml"), text);
            let document = source.parse();
            {
                let mut root = document.root();
                root.integer("now", 1, 0..=9);
                root.integer("later", 1, 0..=9);
            }
            document.keys()
        };
        let mut running = Running::new(keys(""), &["now"]);
        assert_eq!(running.take_over(keys("now = 1")), Changes::default());
        let changes = running.take_over(keys("now = 2\nlater = 3"));
        assert_eq!(changes.to_string(), "taken over: now; needs a restart: later");
        let changes = running.take_over(keys("now = 2\nlater = 3"));
        assert_eq!(changes.to_string(), "taken over: nothing; needs a restart: later");
    }

    #[test]
    fn a_syntax_error_does_not_hide_the_others() {
        let said = read("name = 'x'\n[guard]\nperiod_ms = = 5\non = 'no'\n").unwrap_err().to_string();
        assert!(said.contains("a.toml:3: is not valid TOML"), "{said}");
        assert!(said.contains("a.toml:4: `guard.on`"), "{said}");
    }

    #[test]
    fn a_missing_file_is_one_problem() {
        let problems = Source::read(Path::new("/nonexistent/a.toml")).unwrap_err();
        assert!(problems.to_string().starts_with("/nonexistent/a.toml: cannot be read"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[a-z=\\[\\]'\"\n0-9_. {}#-]{0,200}") {
            _ = read(&text);
        }
    }
}
