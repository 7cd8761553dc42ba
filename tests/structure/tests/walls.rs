//! The agent's program links nothing of what decides about reservations, and so not the recurrent network. The planner is one crate for all
//! programs, so a wall between crates cannot hold this: it is held by who names what.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Sources of the agent's program, but the planner's.
const OF_THE_AGENT: [&str; 6] =
    ["agent/src", "agent-xen/src", "common/daemon/src", "common/net/src", "common/types/src", "common/wire/src"];

/// What decides about reservations, and the question that asks it. Nothing else of the planner may name them.
const OF_RESERVATIONS: [&str; 4] = ["reservations", "reservations.rs", "snapshot/fill", "snapshot/fill.rs"];

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Whether code names the modules that decide about reservations.
fn names_reservations(text: &str) -> bool {
    let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_named = |line: &str| {
        let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let is_module = line.trim() == "pub mod reservations;";
        !is_module && (words.any(|word| word == "reservations") || line.contains("snapshot::fill"))
    };
    code.any(is_named)
}

#[test]
fn the_agent_links_nothing_of_reservations() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let of_the_agent = OF_THE_AGENT.iter().flat_map(|folder| files(&workspace.join(folder)));
    let planner = workspace.join("planner/src");
    let apart = OF_RESERVATIONS.map(|part| planner.join(part));
    let of_the_planner = files(&planner).into_iter().filter(|file| !apart.iter().any(|part| file.starts_with(part)));
    let all: Vec<PathBuf> = of_the_agent.chain(of_the_planner).collect();
    assert!(all.len() > 200, "there are {} files", all.len());
    let named = all.iter().filter(|file| names_reservations(&fs::read_to_string(file).unwrap()));
    let named: Vec<String> = named.map(|file| file.display().to_string()).collect();
    assert!(named.is_empty(), "these name what decides about reservations:\n{}", named.join("\n"));
}

#[test]
fn what_names_it_is_seen() {
    for text in [
        "use gleaner_planner::reservations::learnt::Learnt;",
        "use gleaner_planner::{guard, reservations};",
        "use gleaner_planner::snapshot::fill::fill;",
    ] {
        assert!(names_reservations(text), "{text}");
    }
    for text in ["// crate::reservations", "pub mod reservations;", "fn names_of_reservations_are_short() {}"] {
        assert!(!names_reservations(text), "{text}");
    }
}
