//! Every file opens with the data that flows through it: what goes in, what comes out, who calls.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words of which a file's opening has one: the flow, or that nothing flows.
const FLOW: [&str; 4] = ["In:", "Out:", "Called by", "Data only"];

/// Every file of source under version control that is no test.
fn files() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed =
        Command::new("git").args(["ls-files", "--full-name", "*.rs"]).current_dir(&workspace).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let is_test = |file: &&str| {
        file.starts_with("tests/")
            || file.contains("/tests/")
            || file.ends_with("/tests.rs")
            || file.ends_with("_tests.rs")
    };
    listed.lines().filter(|file| !is_test(file)).map(|file| workspace.join(file)).collect()
}

#[test]
fn every_file_opens_with_the_data_that_flows_through_it() {
    let files = files();
    assert!(files.len() > 300, "git listed {} files", files.len());
    let silent: Vec<String> = files
        .iter()
        .filter(|file| file.exists())
        .filter(|file| {
            let text = fs::read_to_string(file).unwrap();
            let opening: String = text
                .lines()
                .skip_while(|line| !line.starts_with("//!"))
                .take_while(|line| line.starts_with("//!"))
                .collect();
            !FLOW.iter().any(|word| opening.contains(word))
        })
        .map(|file| file.display().to_string())
        .collect();
    assert!(
        silent.is_empty(),
        "the //! of these says neither In:, Out: and Called by, nor Data only:\n{}",
        silent.join("\n")
    );
}
