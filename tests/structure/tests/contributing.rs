//! The examples of CONTRIBUTING.md match the code: every line that a diff removes or expects is there, or, where somebody
//! tries it, every line that it leaves and adds.

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

/// One part of a diff, of the file `path`.
struct Part<'a> {
    path: &'a str,
    makes_the_file: bool,
    before: String,
    after: String,
}

fn parts<'a>(diff: &[&'a str]) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let (mut old, mut path) = ("", "");
    for line in diff {
        if let Some(name) = line.strip_prefix("--- ") {
            old = name;
        } else if let Some(name) = line.strip_prefix("+++ b/") {
            path = name;
        } else if line.starts_with("@@ ") {
            let makes_the_file = old == "/dev/null";
            parts.push(Part { path, makes_the_file, before: String::new(), after: String::new() });
        } else if let Some(part) = parts.last_mut() {
            if let Some(line) = line.strip_prefix([' ', '-']) {
                part.before += &format!("{line}\n");
            }
            if let Some(line) = line.strip_prefix([' ', '+']) {
                part.after += &format!("{line}\n");
            }
        }
    }
    parts
}

#[test]
fn its_diffs_apply_or_are_applied() {
    let text = fs::read_to_string(workspace().join("CONTRIBUTING.md")).unwrap();
    let diffs = diffs(&text);
    assert_eq!(diffs.len(), 3, "a forecaster, an engine, a lever");
    for parts in diffs.iter().map(|diff| parts(diff)) {
        let is_applied = parts.iter().any(|part| part.makes_the_file && workspace().join(part.path).exists());
        for Part { path, makes_the_file, before, after } in parts {
            let expected = if is_applied { after } else { before };
            if is_applied || !makes_the_file {
                let now = fs::read_to_string(workspace().join(path)).unwrap();
                assert!(!expected.is_empty() && now.contains(&expected), "CONTRIBUTING.md has in {path}:\n{expected}");
            }
        }
    }
}
