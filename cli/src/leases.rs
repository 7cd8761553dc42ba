//! Leases from a file of an operator. In: CSV or JSON. Out: leases with errors that name file, line and field. `gleaner plan fill --leases` calls it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use gleaner_planner::snapshot::fill::Lease;
use gleaner_types::id::HostId;

use crate::documents::read_document;

/// Longest file, in bytes.
const LONGEST: u64 = 64 << 20;
/// Columns, of which `created_s`, `nodes` and `hosts` may be left out.
const COLUMNS: [&str; 6] = ["lease", "created_s", "start_s", "end_s", "nodes", "hosts"];

/// Reads leases: a list as in the question where the name ends in `.json`, else CSV.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Lease>> {
    if path.extension().is_some_and(|ending| ending == "json") {
        return read_document(path);
    }
    let failed = || format!("failed to read {}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(failed)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, LONGEST), &mut text).with_context(failed)?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> anyhow::Result<Vec<Lease>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, head) =
        lines.next().ok_or_else(|| anyhow!("there is no head line; it names the columns {}", COLUMNS.join(",")))?;
    let columns: Vec<&str> = head.split(',').map(str::trim).collect();
    if let Some(unknown) = columns.iter().find(|column| !COLUMNS.contains(column)) {
        bail!("line 1: {unknown:?} is no column; they are {}", COLUMNS.join(","));
    }
    lines.map(|(index, line)| lease(&columns, line).with_context(|| format!("line {}", index + 1))).collect()
}

fn lease(columns: &[&str], line: &str) -> anyhow::Result<Lease> {
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
    Ok(Lease {
        lease: field("lease").unwrap_or_default().to_owned(),
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
    }

    #[test]
    fn wrong_files_are_named_by_line_and_field() {
        for (text, said) in [
            ("", "no head line"),
            ("lease,start\n", "\"start\" is no column"),
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
