//! `gleaner reference`: man pages from the command lines, and docs/configuration.md from what the daemons ask of their
//! config files. The sentence about each key is the packaged config's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, anyhow};
use gleaner_cli::{End, ReferenceCommand, print};
use gleaner_daemon::config::{Key, Source};
use gleaner_planner::forecast::METHODS;

pub(crate) fn run(command: &ReferenceCommand) -> anyhow::Result<End> {
    match command {
        ReferenceCommand::Man { folder } => {
            for program in
                [gleaner_cli::command_line(), gleaner_agent::command_line(), gleaner_aggregator::command_line()]
            {
                let folder = folder.join(program.get_name());
                std::fs::create_dir_all(&folder)
                    .and_then(|()| clap_mangen::generate_to(program, &folder))
                    .with_context(|| format!("failed to write man pages into {}", folder.display()))?;
            }
        }
        ReferenceCommand::Configuration => print(configuration()?.trim_end())?,
    }
    Ok(End::Good)
}

/// A daemon's config.
struct Daemon {
    title: &'static str,
    file: &'static str,
    /// The config its package brings.
    packaged: &'static str,
    keys: Vec<Key>,
    at_run_time: &'static [&'static str],
}

fn daemons() -> anyhow::Result<[Daemon; 2]> {
    use gleaner_agent::config as agent;
    use gleaner_aggregator::config as aggregator;
    let source = |file, text| Source::from_text(Path::new(file), text);
    let for_agent = include_str!("../../../systemd/agent.toml");
    let for_aggregator = include_str!("../../../systemd/aggregator.toml");
    // A section that is there or not at all: it is asked for its keys only if it is.
    let with_standby = for_aggregator.replace("#[standby]", "[standby]").replace("#endpoints", "endpoints");
    Ok([
        Daemon {
            title: "The agent",
            file: agent::DEFAULT_FILE,
            packaged: for_agent,
            keys: agent::Config::with_keys(&source(agent::DEFAULT_FILE, for_agent))?.1,
            at_run_time: agent::AT_RUN_TIME,
        },
        Daemon {
            title: "The aggregator",
            file: aggregator::DEFAULT_FILE,
            packaged: for_aggregator,
            keys: aggregator::Config::with_keys(&source(aggregator::DEFAULT_FILE, &with_standby))?.1,
            at_run_time: aggregator::AT_RUN_TIME,
        },
    ])
}

const HEAD: &str = "\
# Configuration

Made by `gleaner reference configuration` from what the daemons ask of their config files; do not edit it.

Both files are TOML. A key that is missing has its default; one that is unknown, misspelt or out of its range is an error, and all
errors of a file are told at once, with their lines: `gleaner-agent --check`, `gleaner-aggregator --check`. `systemctl reload` takes over
what the column \"reload\" says and logs which keys that were and which need a restart; a file with mistakes changes nothing.
";

/// The text of docs/configuration.md.
fn configuration() -> anyhow::Result<String> {
    let mut text = HEAD.to_owned();
    for daemon in daemons()? {
        write!(text, "\n## {}: {}\n", daemon.title, daemon.file)?;
        let sentences = sentences(daemon.packaged);
        let mut sections: Vec<&str> = daemon.keys.iter().map(|key| split(&key.path).0).collect();
        sections.dedup();
        // The order of the packaged config; the keys of one section may be asked for in several places.
        sections.sort_by_key(|section| {
            daemon.packaged.find(&format!("\n[{section}]")).or_else(|| daemon.packaged.find(&format!("\n#[{section}]")))
        });
        sections.dedup();
        for section in sections {
            match section {
                "" => writeln!(text, "\nAbove the first section:")?,
                section => writeln!(text, "\n### [{section}]")?,
            }
            writeln!(text, "\n| key | default | must be | reload | meaning |\n| --- | --- | --- | --- | --- |")?;
            for key in daemon.keys.iter().filter(|key| split(&key.path).0 == section) {
                let name = split(&key.path).1;
                let sentence = sentence(&sentences, section, name)
                    .ok_or_else(|| anyhow!("the packaged {} says nothing of `{}`", daemon.file, key.path))?;
                let default = key.default.as_ref().map_or("–".to_owned(), |default| format!("`{default}`"));
                let reload = if daemon.at_run_time.contains(&key.path.as_str()) { "yes" } else { "restart" };
                writeln!(text, "| `{name}` | {default} | {} | {reload} | {sentence} |", key.allowed)?;
            }
            if section == "forecast" {
                writeln!(text, "\n| method | it predicts |\n| --- | --- |")?;
                for method in METHODS {
                    writeln!(text, "| `{}` | {} |", method.config_word(), method.meaning())?;
                }
            }
        }
    }
    Ok(text)
}

/// The section and the name of a key.
fn split(path: &str) -> (&str, &str) {
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
    fn the_reference_of_the_configuration_is_up_to_date() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let have = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            have == configuration().unwrap(),
            "docs/configuration.md is out of date; make it anew: cargo run --bin gleaner -- reference configuration >docs/configuration.md"
        );
    }

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

    #[test]
    fn every_program_has_man_pages() {
        let folder = tempfile::tempdir().unwrap();
        run(&ReferenceCommand::Man { folder: folder.path().join("man") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join("man").join(name));
        for name in [
            "gleaner/gleaner.1",
            "gleaner/gleaner-job-submit.1",
            "gleaner-agent/gleaner-agent.1",
            "gleaner-agent/gleaner-agent-restore.1",
            "gleaner-aggregator/gleaner-aggregator.1",
        ] {
            assert!(page(name).unwrap().contains(".SH"), "{name}");
        }
        assert!(page("gleaner-agent/gleaner-agent-keeper.1").is_err(), "what is hidden has no page");
    }

    /// The text of every file below a folder whose name ends so.
    fn text_of(folder: &Path, ending: &str, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                text_of(&path, ending, text);
            } else if path.to_string_lossy().ends_with(ending) {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// The first column of docs/troubleshooting.md quotes what programs say, with … for what varies.
    #[test]
    fn troubleshooting_quotes_what_the_programs_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut sources = std::fs::read_to_string(root.join("docs/events.md")).unwrap();
        for folder in ["common", "planner", "agent/src", "aggregator", "cli"] {
            text_of(&root.join(folder), ".rs", &mut sources);
        }
        // A message that is broken over two lines, and what a format string escapes.
        let sources = sources.replace("\\\n", " ").replace("\\\"", "\"");
        let sources = sources.split_whitespace().collect::<Vec<_>>().join(" ");
        let not_ours = |quoted: &str| {
            ["systemctl", "gleaner ", "gleaner-agent ", "Watchdog timeout", "start-limit-hit"]
                .iter()
                .any(|own| quoted.starts_with(own))
        };
        let text = std::fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let mut quotes = 0;
        for quoted in rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|quoted| !not_ours(quoted)) {
            for part in quoted.split('…').map(str::trim).filter(|part| !part.is_empty()) {
                quotes += 1;
                assert!(sources.contains(part), "no program says {part:?}, which docs/troubleshooting.md quotes");
            }
        }
        assert!(quotes > 40, "{quotes}");
    }
}
