//! Leases from a file of an operator. In: CSV or JSON. Out: leases with errors that name file, line and field. `gleaner plan fill --leases` calls it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use gleaner_planner::snapshot::fill::Lease;
use gleaner_planner::snapshot::problems::Problems;
use gleaner_types::id::{HostId, ReservationId};

use crate::documents::read_document;

/// Longest file, in bytes.
const LONGEST: u64 = 64 << 20;
/// Columns.
const COLUMNS: [&str; 6] = ["lease", "created_s", "start_s", "end_s", "nodes", "hosts"];
/// Those that may not be left out.
const REQUIRED: [&str; 2] = ["start_s", "end_s"];

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
    parse(&text).with_context(|| path.display().to_string())
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

fn parse(text: &str) -> anyhow::Result<Vec<Lease>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (index, head) =
        lines.next().ok_or_else(|| anyhow!("there is no head line; it names the columns {}", COLUMNS.join(",")))?;
    let columns: Vec<&str> = head.split(',').map(str::trim).collect();
    let head_line = index + 1;
    if let Some(unknown) = columns.iter().find(|column| !COLUMNS.contains(column)) {
        bail!("line {head_line}: {unknown:?} is no column; they are {}", COLUMNS.join(","));
    }
    if let Some(twice) = COLUMNS.iter().find(|name| columns.iter().filter(|column| column == name).count() > 1) {
        bail!("line {head_line}: {twice} is named twice");
    }
    if let Some(missing) = REQUIRED.iter().find(|name| !columns.contains(name)) {
        bail!("line {head_line}: {missing} is missing; there must be {}", REQUIRED.join(" and "));
    }
    let numbered = lines.map(|(index, line)| (index + 1, line));
    numbered.map(|(number, line)| lease(&columns, number, line).with_context(|| format!("line {number}"))).collect()
}

fn lease(columns: &[&str], number: usize, line: &str) -> anyhow::Result<Lease> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.len() {
        bail!("has {} fields; the head line has {}", fields.len(), columns.len());
    }
    let field = |name: &str| {
        let position = columns.iter().position(|column| *column == name);
        position.map(|position| fields[position]).filter(|field| !field.is_empty())
    };
    let time = |name: &str| {
        let text = field(name)?;
        Some(text.parse::<f64>().map_err(|_| anyhow!("{name}: is {text:?}; it must be a number of seconds")))
    };
    let required = |name: &str| time(name).unwrap_or_else(|| Err(anyhow!("{name}: is missing")));
    let nodes = field("nodes")
        .map(|text| text.parse::<u32>().map_err(|_| anyhow!("nodes: is {text:?}; it must be a number of nodes")));
    // Spaces between hosts, as commas are between fields.
    let hosts = field("hosts").unwrap_or_default().split_whitespace();
    let hosts = hosts.map(|host| HostId::new(host).with_context(|| "hosts".to_owned())).collect::<Result<_, _>>()?;
    // One without a name is called by its line.
    let name = field("lease").map_or_else(|| format!("line-{number}"), str::to_owned);
    Ok(Lease {
        lease: ReservationId::new(name).context("lease")?,
        created_s: time("created_s").transpose()?,
        start_s: required("start_s")?,
        end_s: required("end_s")?,
        nodes: nodes.transpose()?,
        hosts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_by_hand() {
        let found = parse("lease,start_s,end_s,hosts,created_s\na,10,20,n1 n2,5\n\nb,30,40.5,,\n").unwrap();
        assert_eq!((found.len(), found[0].hosts.len(), found[0].created_s), (2, 2, Some(5.0)));
        assert_eq!((found[1].end_s, found[1].created_s, found[1].nodes), (40.5, None, None));
        let unnamed = parse("start_s,end_s\n1,2\n\n3,4\n").unwrap();
        assert_eq!(unnamed.iter().map(|own| own.lease.as_str()).collect::<Vec<_>>(), ["line-2", "line-4"]);
    }

    #[test]
    fn wrong_files_are_named_by_line_and_field() {
        for (text, said) in [
            ("", "no head line"),
            ("lease,start\n", "\"start\" is no column"),
            ("start_s,end_s,end_s\n1,2,3\n", "line 1: end_s is named twice"),
            ("lease,start_s\na,1\n", "line 1: end_s is missing"),
            ("\nlease,end_s\n", "line 2: start_s is missing"),
            ("lease,start_s,end_s\na\u{1b}[2J,1,2\n", "line 2: lease: lease name"),
            ("start_s,end_s\n1\n", "line 2: has 1 fields"),
            ("start_s,end_s\n1,soon\n", "line 2: end_s: is \"soon\""),
            ("start_s,end_s\n,2\n", "line 2: start_s: is missing"),
            ("start_s,end_s,nodes\n1,2,-3\n", "line 2: nodes: is \"-3\""),
            ("start_s,end_s,hosts\n1,2,bad\u{7}host\n", "line 2: hosts"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
