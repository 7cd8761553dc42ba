//! Leases from a file of an operator. In: CSV or JSON. Out: leases with errors that name file, line and field. `gleaner plan fill --leases` calls it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use gleaner_planner::snapshot::fill::{Lease, leases_of_csv};
use gleaner_planner::snapshot::problems::Problems;

use crate::documents::read_document;

/// Longest file, in bytes.
const LONGEST: u64 = 64 << 20;

/// Reads leases: a list as in the question where the name ends in `.json`, else CSV.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Lease>> {
    if path.extension().is_some_and(|ending| ending == "json") {
        return read_document(path);
    }
    let failed = || format!("failed to read {}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, LONGEST), &mut text).with_context(failed)?;
    if text.len() as u64 == LONGEST {
        bail!("{}: is too long; it must have less than {LONGEST} bytes", path.display());
    }
    leases_of_csv(&text).with_context(|| path.display().to_string())
}

/// What is wrong with a question whose leases are from a file: each line names the file that it is about.
pub(crate) fn wrong(question: &Path, leases: &Path, problems: &Problems) -> anyhow::Error {
    let problems = problems.to_string();
    let named = problems.lines().map(|line| {
        let path = if line.starts_with("leases") { leases } else { question };
        format!("{}: {line}", path.display())
    });
    anyhow!(named.collect::<Vec<_>>().join("\n"))
}
