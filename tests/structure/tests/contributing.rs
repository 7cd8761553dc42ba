//! The examples of CONTRIBUTING.md match the code: every line that a diff removes or expects is there, and what it adds
//! is not.

use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The diffs in a text: blocks that begin with three or four backquotes and `diff`.
fn diffs(text: &str) -> Vec<Vec<&str>> {
    let mut diffs = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(fence) = line.strip_suffix("diff").filter(|fence| ["```", "````"].contains(fence)) {
            diffs.push(lines.by_ref().take_while(|line| *line != fence).collect());
        }
    }
    diffs
}

/// What a diff expects of the files: for each part of one, the lines that are there before; none for a new file.
fn expected<'a>(diff: &[&'a str]) -> Vec<(&'a str, Option<String>)> {
    let mut parts: Vec<(&str, Option<String>)> = Vec::new();
    let (mut old, mut path) = ("", "");
    for line in diff {
        if let Some(name) = line.strip_prefix("--- ") {
            old = name;
        } else if let Some(name) = line.strip_prefix("+++ b/") {
            path = name;
        } else if line.starts_with("@@ ") {
            parts.push((path, (old != "/dev/null").then(String::new)));
        } else if let (Some(line), Some((_, Some(before)))) = (line.strip_prefix([' ', '-']), parts.last_mut()) {
            before.push_str(line);
            before.push('\n');
        }
    }
    parts
}

#[test]
fn its_diffs_apply() {
    let text = fs::read_to_string(workspace().join("CONTRIBUTING.md")).unwrap();
    let diffs = diffs(&text);
    assert_eq!(diffs.len(), 3, "a forecaster, an engine, a lever");
    for (path, before) in diffs.iter().flat_map(|diff| expected(diff)) {
        let file = workspace().join(path);
        match before {
            Some(before) => {
                let now = fs::read_to_string(&file).unwrap();
                assert!(!before.is_empty() && now.contains(&before), "CONTRIBUTING.md expects in {path}:\n{before}");
            }
            None => assert!(!file.exists(), "CONTRIBUTING.md adds {path}, which is there"),
        }
    }
}
