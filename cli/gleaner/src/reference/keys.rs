//! The keys of the daemons' config files, with what the packaged configs say of each. In: nothing but the programs
//! themselves. Out: each daemon's keys by section. Called by [`super`], for docs/configuration.md, and by
//! [`super::man`], for the pages of section 5.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use gleaner_daemon::config::{Key, Source};

/// A daemon's config.
pub(super) struct Daemon {
    /// What the daemon is called in a title.
    pub(super) title: &'static str,
    /// Its program.
    pub(super) program: &'static str,
    /// Where its config lies.
    pub(super) file: &'static str,
    /// The config that its package installs.
    packaged: &'static str,
    /// All of its keys.
    pub(super) keys: Vec<Key>,
    at_run_time: &'static [&'static str],
}

/// Both daemons.
///
/// # Errors
/// A packaged config with mistakes.
pub(super) fn daemons() -> anyhow::Result<[Daemon; 2]> {
    use gleaner_agent::config as agent;
    use gleaner_aggregator::config as aggregator;
    let source = |file, text| Source::from_text(Path::new(file), text);
    let for_agent = include_str!("../../../../systemd/agent.toml");
    let for_aggregator = include_str!("../../../../systemd/aggregator.toml");
    // A section that is there or not at all: it is asked for its keys only if it is.
    let with_standby = for_aggregator.replace("#[standby]", "[standby]").replace("#endpoints", "endpoints");
    Ok([
        Daemon {
            title: "The agent",
            program: "gleaner-agent",
            file: agent::DEFAULT_FILE,
            packaged: for_agent,
            keys: agent::Config::with_keys(&source(agent::DEFAULT_FILE, for_agent))?.1,
            at_run_time: agent::AT_RUN_TIME,
        },
        Daemon {
            title: "The aggregator",
            program: "gleaner-aggregator",
            file: aggregator::DEFAULT_FILE,
            packaged: for_aggregator,
            keys: aggregator::Config::with_keys(&source(aggregator::DEFAULT_FILE, &with_standby))?.1,
            at_run_time: aggregator::AT_RUN_TIME,
        },
    ])
}

/// What is known of one key.
pub(super) struct Row<'d> {
    /// Its name in its section.
    pub(super) name: &'d str,
    /// Its default as TOML; `None` where it has none.
    pub(super) default: Option<&'d str>,
    /// What its value must be.
    pub(super) allowed: &'d str,
    /// A running daemon takes it over.
    pub(super) at_run_time: bool,
    /// The sentences of the packaged config.
    pub(super) meaning: String,
}

impl Row<'_> {
    /// The value where the key is not in the file, for a table; in words where it depends on something else.
    pub(super) fn default_words(&self) -> String {
        match (self.default, self.meaning.split_once("Default: ")) {
            (Some(default), _) => format!("`{default}`"),
            (None, Some((_, words))) => {
                let ends = [". ", "; ", ", such as"].iter().filter_map(|end| words.find(end));
                words[..ends.min().unwrap_or(words.len())].trim_end_matches('.').to_owned()
            }
            (None, None) => "none".to_owned(),
        }
    }
}

impl Daemon {
    /// All keys by section, in the order of the packaged config; "" stands for what is above the first section.
    ///
    /// # Errors
    /// A key of which the packaged config says nothing.
    pub(super) fn sections(&self) -> anyhow::Result<Vec<(&str, Vec<Row<'_>>)>> {
        let sentences = sentences(self.packaged);
        let mut sections: Vec<&str> = self.keys.iter().map(|key| split(&key.path).0).collect();
        sections.dedup();
        // The keys of one section may be asked for in several places.
        sections.sort_by_key(|section| {
            self.packaged.find(&format!("\n[{section}]")).or_else(|| self.packaged.find(&format!("\n#[{section}]")))
        });
        sections.dedup();
        let mut found = Vec::new();
        for section in sections {
            let mut rows = Vec::new();
            for key in self.keys.iter().filter(|key| split(&key.path).0 == section) {
                let name = split(&key.path).1;
                rows.push(Row {
                    name,
                    default: key.default.as_deref(),
                    allowed: &key.allowed,
                    at_run_time: self.at_run_time.contains(&key.path.as_str()),
                    meaning: sentence(&sentences, section, name)
                        .map(str::to_owned)
                        .ok_or_else(|| anyhow!("the packaged {} says nothing of `{}`", self.file, key.path))?,
                });
            }
            found.push((section, rows));
        }
        Ok(found)
    }
}

/// The section and the name of a key.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// What a packaged config says, by section: each comment with the key under it. Keys that follow one another share a
/// comment; one that stands alone has no key.
fn sentences(packaged: &str) -> BTreeMap<&str, Vec<(String, Option<&str>)>> {
    let mut found: BTreeMap<&str, Vec<(String, Option<&str>)>> = BTreeMap::new();
    let (mut section, mut comment, mut has_key) = ("", String::new(), false);
    // A last empty line ends the last comment.
    for line in packaged.lines().chain([""]) {
        if let Some(words) = line.strip_prefix("# ") {
            if std::mem::take(&mut has_key) {
                comment.clear();
            }
            comment.push_str(if comment.is_empty() { "" } else { " " });
            comment.push_str(words);
        } else if let Some((key, _)) = line.trim_start_matches('#').split_once(" = ") {
            found.entry(section).or_default().push((comment.clone(), Some(key)));
            has_key = true;
        } else {
            let comment = std::mem::take(&mut comment);
            if !std::mem::take(&mut has_key) && !comment.is_empty() {
                found.entry(section).or_default().push((comment, None));
            }
            if let Some(name) = line.trim_start_matches('#').strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
            }
        }
    }
    found
}

/// The comment above a key, or else one of its section that shows it.
fn sentence<'s>(
    sentences: &'s BTreeMap<&str, Vec<(String, Option<&str>)>>,
    section: &str,
    key: &str,
) -> Option<&'s str> {
    let of_section = sentences.get(section)?;
    let shown = format!("{key} = ");
    let above = of_section.iter().find(|(comment, under)| *under == Some(key) && !comment.is_empty());
    above
        .or_else(|| of_section.iter().find(|(comment, _)| comment.contains(&shown)))
        .map(|(comment, _)| comment.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_found_above_a_key_or_around_it() {
        let packaged = "# A file.\n\n# One\n# two.\n#a = 1\n\n[s]\n# Of b,\nb = 2\n#c = 3\n# As in d = 4.\n";
        let found = sentences(packaged);
        assert_eq!(sentence(&found, "", "a"), Some("One two."));
        assert_eq!(sentence(&found, "s", "b"), Some("Of b,"));
        assert_eq!(sentence(&found, "s", "c"), Some("Of b,"));
        assert_eq!(sentence(&found, "s", "e"), None);
        assert_eq!(sentence(&found, "s", "d"), Some("As in d = 4."));
    }
}
