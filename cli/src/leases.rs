//! Leases from a file of an operator. In: CSV or JSON. Out: leases with errors that name file, line and field. `gleaner plan fill --leases` calls it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use gleaner_planner::snapshot::fill::{Lease, leases_of_csv};
use gleaner_planner::snapshot::problems::Problems;

use crate::documents::read_document;

/// Longest file, in bytes.
const LONGEST: u64 = 64 << 20;

/// Leases of a file.
pub(crate) struct LeasesRead {
    /// The leases.
    pub(crate) leases: Vec<Lease>,
    /// The number of the line of each, from 1; none of JSON.
    lines: Vec<usize>,
}

/// Reads leases: a list as in the question where the name ends in `.json`, else CSV.
pub(crate) fn read(path: &Path) -> anyhow::Result<LeasesRead> {
    if path.extension().is_some_and(|ending| ending == "json") {
        return Ok(LeasesRead { leases: read_document(path)?, lines: Vec::new() });
    }
    let failed = || format!("failed to read {}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, LONGEST), &mut text).with_context(failed)?;
    if text.len() as u64 == LONGEST {
        bail!("{}: is too long; it must have less than {LONGEST} bytes", path.display());
    }
    let (lines, leases) = leases_of_csv(&text).with_context(|| path.display().to_string())?.into_iter().unzip();
    Ok(LeasesRead { leases, lines })
}

impl LeasesRead {
    /// A problem that begins with the place of a lease in the list: the same with its line in the file.
    fn with_line(&self, problem: &str) -> Option<String> {
        let (place, rest) = problem.strip_prefix("leases[")?.split_once(']')?;
        let line = self.lines.get(place.parse::<usize>().ok()?)?;
        Some(format!("line {line}{rest}"))
    }
}

/// What is wrong with a question whose leases are from a file: each line names the file that it is about, and of CSV the line.
pub(crate) fn wrong(question: &Path, path: &Path, read: &LeasesRead, problems: &Problems) -> anyhow::Error {
    let problems = problems.to_string();
    let named = problems.lines().map(|problem| {
        let file = if problem.starts_with("leases") { path } else { question };
        let problem = read.with_line(problem).unwrap_or_else(|| problem.to_owned());
        format!("{}: {problem}", file.display())
    });
    anyhow!(named.collect::<Vec<_>>().join("\n"))
}
