//! Leases as lines of CSV. In: text. Out: leases, or the first line and field that is wrong. `gleaner plan fill --leases` and engine
//! `slurm` call it.

use gleaner_types::id::{HostId, ReservationId};

use super::question::Lease;

/// Columns.
const COLUMNS: [&str; 6] = ["lease", "created_s", "start_s", "end_s", "nodes", "hosts"];
/// What spreadsheets put at the begin of a file of UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// Those that may not be left out.
const REQUIRED: [&str; 2] = ["start_s", "end_s"];

/// Text that is no list of leases.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLeases {
    /// There is no head line.
    #[error("there is no head line; it names the columns {}", COLUMNS.join(","))]
    Empty,
    /// A line is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// The field, its value and the rule.
        why: String,
    },
}

/// Reads leases, each with the number of its line, from 1; a head line names the columns. The mark that spreadsheets put at the
/// begin of a file of UTF-8 is no part of it.
///
/// # Errors
/// [`InvalidLeases`] naming the first line that is wrong.
pub fn leases_of_csv(text: &str) -> Result<Vec<(usize, Lease)>, InvalidLeases> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (index, head) = lines.next().ok_or(InvalidLeases::Empty)?;
    let columns: Vec<&str> = head.split(',').map(str::trim).collect();
    let of_head = |why| InvalidLeases::Line { line: index + 1, why };
    if let Some(unknown) = columns.iter().find(|column| !COLUMNS.contains(column)) {
        return Err(of_head(format!("{unknown:?} is no column; they are {}", COLUMNS.join(","))));
    }
    if let Some(twice) = COLUMNS.iter().find(|name| columns.iter().filter(|column| column == name).count() > 1) {
        return Err(of_head(format!("{twice} is named twice")));
    }
    if let Some(missing) = REQUIRED.iter().find(|name| !columns.contains(name)) {
        return Err(of_head(format!("{missing} is missing; there must be {}", REQUIRED.join(" and "))));
    }
    let numbered = lines.map(|(index, line)| (index + 1, line));
    let read = |(line, text)| match lease(&columns, line, text) {
        Ok(own) => Ok((line, own)),
        Err(why) => Err(InvalidLeases::Line { line, why }),
    };
    numbered.map(read).collect()
}

fn lease(columns: &[&str], number: usize, line: &str) -> Result<Lease, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.len() {
        return Err(format!("has {} fields; the head line has {}", fields.len(), columns.len()));
    }
    let field = |name: &str| {
        let position = columns.iter().position(|column| *column == name);
        position.map(|position| fields[position]).filter(|field| !field.is_empty())
    };
    let time = |name: &str| {
        let text = field(name)?;
        let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
        Some(seconds.ok_or_else(|| format!("{name}: is {text:?}; it must be a number of seconds")))
    };
    let required = |name: &str| time(name).unwrap_or_else(|| Err(format!("{name}: is missing")));
    let nodes = field("nodes")
        .map(|text| text.parse::<u32>().map_err(|_| format!("nodes: is {text:?}; it must be a number of nodes")));
    // Spaces between hosts, as commas are between fields.
    let hosts = field("hosts").unwrap_or_default().split_whitespace();
    let hosts =
        hosts.map(|host| HostId::new(host).map_err(|error| format!("hosts: {error}"))).collect::<Result<_, _>>()?;
    // One without a name is called by its line.
    let name = field("lease").map_or_else(|| format!("line-{number}"), str::to_owned);
    Ok(Lease {
        lease: ReservationId::new(name).map_err(|error| format!("lease: {error}"))?,
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
        let found = leases_of_csv("lease,start_s,end_s,hosts,created_s\na,10,20,n1 n2,5\n\nb,30,40.5,,\n").unwrap();
        assert_eq!([found[0].0, found[1].0], [2, 4]);
        let found: Vec<Lease> = found.into_iter().map(|(_, lease)| lease).collect();
        assert_eq!((found.len(), found[0].hosts.len(), found[0].created_s), (2, 2, Some(5.0)));
        assert_eq!((found[1].end_s, found[1].created_s, found[1].nodes), (40.5, None, None));
        let unnamed = leases_of_csv("start_s,end_s\n1,2\n\n3,4\n").unwrap();
        assert_eq!(unnamed.iter().map(|(_, own)| own.lease.as_str()).collect::<Vec<_>>(), ["line-2", "line-4"]);
    }

    #[test]
    fn a_mark_at_the_begin_is_no_part_of_the_first_column() {
        let found = leases_of_csv("\u{feff}start_s,end_s\r\n1,2\r\n").unwrap();
        assert_eq!((found[0].1.start_s, found[0].1.end_s), (1.0, 2.0));
        let error = leases_of_csv("\u{feff}").unwrap_err();
        assert_eq!(error, InvalidLeases::Empty);
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
            ("start_s,end_s\n1,inf\n", "line 2: end_s: is \"inf\"; it must be a number of seconds"),
            ("start_s,end_s\n,2\n", "line 2: start_s: is missing"),
            ("start_s,end_s,nodes\n1,2,-3\n", "line 2: nodes: is \"-3\""),
            ("start_s,end_s,hosts\n1,2,bad\u{7}host\n", "line 2: hosts"),
        ] {
            let error = leases_of_csv(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
