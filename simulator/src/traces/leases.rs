//! The leases and hosts of Chameleon that CHISim simulated (`chisim-chameleon`). In: the folder of traces. Out: a [`CloudTrace`].
//!
//! `sim_input_lease_info.csv.gz` has a line at the start and one at the end of each lease, in the order of `trace_time`. A lease ends at its
//! planned end, as in CHISim, though many users gave theirs back earlier; one without an end lasts to the end of the trace. Hosts come
//! with the first event of `sim_machine_events_compute_haswell.csv.gz` that is not `DISABLE`, go with `DISABLE` and come back with
//! the next one. Where a table has no such file, [`TraceError`] names what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{TraceError, lines};
use crate::leases::{CloudLease, CloudTrace, HostChange};

/// Where the leases are, in the folder of traces.
const LEASES: &str = "chisim-chameleon/sim_input_lease_info.csv.gz";
/// Where the hosts' events are.
const HOSTS: &str = "chisim-chameleon/sim_machine_events_compute_haswell.csv.gz";

/// Longest trace: ten times what CHISim simulated, rounded up to years. Chosen.
const LONGEST_S: f64 = 4.0 * 366.0 * 86_400.0;
/// Most nodes of a lease. Chosen: hundreds of times the testbed.
const MOST_NODES: u32 = 100_000;
/// A lease may have been made so much after its start: starts are recorded in whole minutes.
const MINUTE_S: f64 = 60.0;

/// Fields of a line of CSV; quoted ones may hold commas.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            _ => {
                if let Some(last) = all.last_mut() {
                    last.push(letter);
                }
            }
        }
    }
    all
}

/// Seconds from 1970 of `2018-03-14 11:42:00`.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let numbers = |text: &str, separator| -> Option<[i64; 3]> {
        let parts: Vec<i64> = text.split(separator).map(|part| part.parse().ok()).collect::<Option<_>>()?;
        parts.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let valid = (1970..=2200).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !(valid && (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second)) {
        return None;
    }
    // Days from the civil calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) as f64)
}

/// A table: its columns by name.
struct Table<'a> {
    path: &'a Path,
    columns: BTreeMap<String, usize>,
    rows: Vec<(usize, Vec<String>)>,
}

impl<'a> Table<'a> {
    fn read(path: &'a Path) -> Result<Self, TraceError> {
        let mut all = lines(path)?.into_iter();
        let head = all.next().unwrap_or_default();
        let columns = fields(&head).into_iter().enumerate().map(|(index, name)| (name, index)).collect();
        Ok(Self { path, columns, rows: all.enumerate().map(|(index, line)| (index + 2, fields(&line))).collect() })
    }

    fn malformed(&self, line: usize, what: &'static str, text: &str) -> TraceError {
        TraceError::Malformed { path: self.path.to_owned(), line, what, text: text.chars().take(80).collect() }
    }

    fn field<'b>(&self, (line, row): &'b (usize, Vec<String>), name: &str) -> Result<&'b str, TraceError> {
        let found = self.columns.get(name).and_then(|index| row.get(*index));
        found.map(String::as_str).ok_or_else(|| self.malformed(*line, "a column is missing", name))
    }

    fn time(&self, row: &(usize, Vec<String>), name: &str) -> Result<f64, TraceError> {
        let text = self.field(row, name)?;
        seconds(text).ok_or_else(|| self.malformed(row.0, "a time must be like 2018-03-14 11:42:00", text))
    }
}

/// The leases and hosts that CHISim simulated.
///
/// # Errors
/// [`TraceError`] naming file and line: what cannot be read, lines in the wrong order, an end without a start, a lease that was made after it
/// began, a number of nodes that is none, a trace that has no length or too much of it. One in which no lease ends while there are
/// hosts is refused too: then there would be nothing to measure.
pub fn chameleon(folder: &Path) -> Result<CloudTrace, TraceError> {
    let (leases_path, hosts_path) = (folder.join(LEASES), folder.join(HOSTS));
    let table = Table::read(&leases_path)?;
    let first = table.rows.first().ok_or_else(|| table.malformed(1, "there must be leases", ""))?;
    let begin_s = table.time(first, "trace_time")?;
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    let mut leases: Vec<CloudLease> = Vec::new();
    let (mut last_s, mut last_start) = (0.0, 1);
    for row in &table.rows {
        let at_s = table.time(row, "trace_time")? - begin_s;
        if at_s < last_s {
            return Err(table.malformed(
                row.0,
                "lines must be in the order of trace_time",
                table.field(row, "trace_time")?,
            ));
        }
        last_s = at_s;
        let id = table.field(row, "lease_id")?;
        match table.field(row, "action")? {
            "start" => {
                let text = table.field(row, "node_cnt")?;
                let nodes = text.parse::<u32>().ok().filter(|nodes| (1..=MOST_NODES).contains(nodes));
                let nodes = nodes.ok_or_else(|| table.malformed(row.0, "node_cnt must be 1 to 100,000", text))?;
                if at_s > LONGEST_S {
                    let text = table.field(row, "trace_time")?;
                    return Err(table.malformed(
                        row.0,
                        "the last lease must start within four years of the first",
                        text,
                    ));
                }
                if open.insert(id, leases.len()).is_some() {
                    return Err(table.malformed(row.0, "a lease must not start twice", id));
                }
                let created_s = table.time(row, "created_at")? - begin_s;
                if created_s >= at_s + MINUTE_S {
                    let text = table.field(row, "created_at")?;
                    return Err(table.malformed(row.0, "created_at must not be after the start, trace_time", text));
                }
                last_start = row.0;
                leases.push(CloudLease { created_s, start_s: at_s, end_s: f64::INFINITY, nodes });
            }
            "stop" => {
                let lease = open.remove(id).and_then(|index| leases.get_mut(index));
                let lease = lease.ok_or_else(|| table.malformed(row.0, "a lease must start before it stops", id))?;
                lease.end_s = at_s;
            }
            other => return Err(table.malformed(row.0, "action must be start or stop", other)),
        }
    }
    // CHISim ends with the last start (the end of its evaluation); ends of later leases only say that they last so long.
    let length_s = leases.last().map_or(0.0, |lease| lease.start_s);
    if length_s <= 0.0 {
        return Err(table.malformed(last_start, "a lease must start after the first", ""));
    }
    let hosts = hosts(&hosts_path, begin_s)?;
    let mut ends_s: Vec<f64> = leases.iter().map(|lease| lease.end_s).filter(|end_s| *end_s < length_s).collect();
    ends_s.sort_by(f64::total_cmp);
    if ends_s.is_empty() {
        return Err(table.malformed(last_start, "a lease must stop before the last start", ""));
    }
    if !any_host(&hosts, &ends_s) {
        let what = "there must be a host when a lease stops";
        return Err(TraceError::Malformed { path: hosts_path, line: 1, what, text: String::new() });
    }
    Ok(CloudTrace { leases, hosts, length_s })
}

/// Whether a host is there at any of the times, which are in order.
fn any_host(hosts: &[HostChange], times_s: &[f64]) -> bool {
    let (mut there, mut changes) = (BTreeSet::new(), hosts.iter().peekable());
    times_s.iter().any(|at_s| {
        while let Some(change) = changes.next_if(|change| change.at_s <= *at_s) {
            if change.present {
                there.insert(change.host);
            } else {
                there.remove(&change.host);
            }
        }
        !there.is_empty()
    })
}

fn hosts(path: &Path, begin_s: f64) -> Result<Vec<HostChange>, TraceError> {
    let table = Table::read(path)?;
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut changes = Vec::new();
    for row in &table.rows {
        let at_s = (table.time(row, "EVENT_TIME")? - begin_s).max(0.0);
        let name = table.field(row, "HOST_NAME (PHYSICAL)")?;
        let present = match table.field(row, "EVENT")? {
            "CREATE" | "UPDATE" | "ENABLE" => true,
            "DISABLE" => false,
            other => return Err(table.malformed(row.0, "EVENT must be CREATE, UPDATE, ENABLE or DISABLE", other)),
        };
        let next = known.len();
        let host = *known.entry(name).or_insert(next);
        changes.push(HostChange { at_s, host, present });
    }
    changes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::super::fixture::write;
    use super::*;

    const HEAD: &str = "lease_id,created_at,node_cnt,action,trace_time\n";
    const EVENTS: &str = "EVENT_TIME,HOST_NAME (PHYSICAL),EVENT,PROPERTIES\n\
        2018-03-01 00:00:00,a,UPDATE,\"{'x': 1, 'y': 2}\"\n2018-03-14 01:00:00,b,ENABLE,{}\n2018-03-14 02:00:00,a,DISABLE,{}\n";

    fn read(leases: &str) -> Result<CloudTrace, TraceError> {
        read_with(leases, EVENTS)
    }

    fn read_with(leases: &str, hosts: &str) -> Result<CloudTrace, TraceError> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [(LEASES, format!("{HEAD}{leases}")), (HOSTS, hosts.to_owned())] {
            write(folder.path(), name, &text);
        }
        chameleon(folder.path())
    }

    #[test]
    fn times_of_the_calendar() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(seconds("2018-03-14 11:42:00"), Some(1_521_027_720.0));
        assert_eq!(seconds("2020-02-29T23:59:59"), Some(1_583_020_799.0));
        for wrong in ["", "2018-03-14", "2018-13-14 11:42:00", "2018-03-14 24:00:00", "x-y-z 1:2:3"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn starts_and_stops_become_leases() {
        let found = read(
            "x,2018-03-14 00:00:59,2,start,2018-03-14 00:00:00\nx,2018-03-14 00:00:59,2,stop,2018-03-14 00:30:00\n\
             y,2018-03-14 00:10:00,1,start,2018-03-14 01:00:00\n",
        );
        let found = found.unwrap();
        let first = CloudLease { created_s: 59.0, start_s: 0.0, end_s: 1_800.0, nodes: 2 };
        let second = CloudLease { created_s: 600.0, start_s: 3_600.0, end_s: f64::INFINITY, nodes: 1 };
        assert_eq!(found.leases, [first, second]);
        assert_eq!((found.length_s, found.host_count()), (3_600.0, 2));
        let changes: Vec<_> = found.hosts.iter().map(|change| (change.at_s, change.host, change.present)).collect();
        assert_eq!(changes, [(0.0, 0, true), (3_600.0, 1, true), (7_200.0, 0, false)]);
    }

    #[test]
    fn wrong_traces_are_named_by_file_and_line() {
        let start = "x,2018-03-14 00:00:00,2,start,2018-03-14 01:00:00\n";
        for (line, said) in [
            ("x,2018-03-14 00:00:00,2,stop,2018-03-14 00:30:00\n", "order of trace_time"),
            ("y,2018-03-14 00:00:00,2,stop,2018-03-14 01:30:00\n", "must start before it stops"),
            ("x,2018-03-14 00:00:00,2,start,2018-03-14 01:30:00\n", "must not start twice"),
            ("y,2018-03-14 00:00:00,0,start,2018-03-14 01:30:00\n", "node_cnt"),
            ("y,2018-03-14 00:00:00,4294967295,start,2018-03-14 01:30:00\n", "node_cnt"),
            ("y,2018-03-14 01:31:00,1,start,2018-03-14 01:30:00\n", "created_at must not be after"),
            ("y,2018-03-14 00:00:00,1,start,2200-03-14 01:30:00\n", "within four years"),
            ("y,2018-03-14 00:00:00,1,start,2018-03-14 01:00:00\n", "must start after the first"),
            ("y,2018-03-14 00:00:00,1,start,2018-03-14 01:30:00\n", "must stop before the last start"),
            ("y,2018-03-14 00:00:00,1,begin,2018-03-14 01:30:00\n", "action must be"),
            ("y,2018-03-14 00:00:00,1,start,yesterday\n", "a time must be"),
            ("y,2018-03-14 00:00:00\n", "a column is missing"),
        ] {
            let error = read(&format!("{start}{line}")).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("line 3"), "{error}");
        }
        assert!(read("").is_err());
        assert!(read(start).unwrap_err().to_string().contains("must start after the first"));
    }

    #[test]
    fn clouds_without_hosts_are_refused() {
        let leases = "x,2018-03-14 00:00:00,2,start,2018-03-14 00:00:00\nx,2018-03-14 00:00:00,2,stop,2018-03-14 00:30:00\n\
                      y,2018-03-14 00:10:00,1,start,2018-03-14 01:00:00\n";
        let head = EVENTS.lines().next().unwrap();
        for events in ["", "2018-03-14 00:45:00,a,UPDATE,{}\n", "2018-03-01 00:00:00,a,DISABLE,{}\n"] {
            let error = read_with(leases, &format!("{head}\n{events}")).unwrap_err().to_string();
            assert!(error.contains("sim_machine_events") && error.contains("there must be a host"), "{error}");
        }
    }

    #[test]
    fn the_recorded_trace_is_the_paper_s() {
        let folder = std::env::var_os("GLEANER_TRACES").map(PathBuf::from);
        let Some(folder) = folder.filter(|folder| folder.join(LEASES).exists()) else {
            let text = b"SKIPPED: the_recorded_trace_is_the_paper_s: GLEANER_TRACES names no folder of traces with chisim-chameleon\n";
            _ = Write::write_all(&mut std::io::stderr(), text);
            return;
        };
        let found = chameleon(&folder).unwrap();
        assert_eq!((found.leases.len(), found.leases.iter().map(|lease| lease.nodes).sum::<u32>()), (3_017, 5_262));
        // Those of one site are there at once, those of the other are named four hours later.
        let by = |at_s: f64| found.hosts.iter().filter(|change| change.at_s <= at_s).count();
        assert_eq!((by(0.0), by(4.0 * 3_600.0)), (84, 274));
    }
}
