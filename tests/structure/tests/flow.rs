//! Every file opens with the data that flows through it: what goes in, what comes out, who calls.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Words of which a file's opening has one: the flow, or that nothing flows.
const FLOW: [&str; 4] = ["In:", "Out:", "Called by", "Data only"];

/// Every file of source in `folder` that is no test.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_skipped = name.starts_with('.') || ["target", "tests", "tests.rs"].contains(&name.as_str());
        if is_skipped || name.ends_with("_tests.rs") {
            continue;
        }
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn every_file_opens_with_the_data_that_flows_through_it() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = files(&workspace);
    assert!(files.len() > 300, "there are {} files", files.len());
    let silent: Vec<String> = files
        .iter()
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
