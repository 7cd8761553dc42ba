//! `gleaner replay`. In: journals. Out: the same inputs run through the controller again, and the first difference.
//! Called by `main`, through [`gleaner_cli`].

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use gleaner_aggregator::journal::{journal_files, replay};
use gleaner_cli::{End, print};
use gleaner_types::text::counted;

pub(crate) fn run(journal: &Path, json: bool) -> anyhow::Result<End> {
    let files: Vec<PathBuf> = match journal.is_dir() {
        true => journal_files(journal).with_context(|| format!("failed to read {}", journal.display()))?,
        false => vec![journal.to_owned()],
    };
    ensure!(!files.is_empty(), "{} holds no journal", journal.display());
    let mut end = End::Good;
    for file in files {
        let outcome = replay(&file)?;
        let same = outcome.difference.is_none();
        if json {
            print(&serde_json::json!({ "file": file, "same": same, "replay": outcome }).to_string())?;
        } else {
            let torn = if outcome.torn { " (it ends in half a record, which was left out)" } else { "" };
            let verdict = if same { "same outputs" } else { "DIFFERENT" };
            let span_s = outcome.span.1.seconds_since(outcome.span.0);
            let steps = counted(outcome.steps, "step");
            print(&format!("{}: {steps} over {span_s:.0} s: {verdict}{torn}", file.display()))?;
            if let Some(difference) = &outcome.difference {
                print(&format!("first difference:\n{}", serde_json::to_string_pretty(difference)?))?;
            }
        }
        if !same {
            end = End::Failed;
        }
    }
    Ok(end)
}
