//! Loaders of recorded traces: CPU here, services and jobs below. In: a folder that the user names, with `google-vm-cpu-mem`
//! (one line per VM and slot) or `planetlab` (one line per VM), both of 300 s steps over a day, gzip-compressed. Out: CPU demand
//! over time.
//! No trace is shipped.

#[cfg(test)]
mod fixture;
pub mod hosts;
pub mod jobs;
pub mod leases;
pub mod services;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// Time between two values of these traces, in seconds.
pub const STEP_S: f64 = 300.0;
/// Values of a day.
const DAY: usize = 288;
/// Longest line, in bytes.
const LONGEST_LINE: usize = 1 << 16;
/// Most lines of a file, and most bytes of them.
const MOST_LINES: usize = 5_000_000;
const MOST_BYTES: usize = 1 << 30;
/// VMs that share a host of the PlanetLab traces. Chosen within the 16 to 64 that make their sums predictable.
const VMS_PER_HOST: usize = 32;

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file or folder.
    #[error("failed to read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line that is not what it should be.
    #[error("{path}, line {line}: {what}: {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// Which field, and what it should be.
        what: &'static str,
        /// What it is.
        text: String,
    },
}

/// CPU of one host over time, in percent of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Where it is from.
    pub name: String,
    /// Values, [`STEP_S`] apart.
    pub values: Vec<f64>,
}

fn lines(path: &Path) -> Result<Vec<String>, TraceError> {
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    bounded_lines(path, BufReader::new(GzDecoder::new(std::fs::File::open(path).map_err(failed)?)))
}

fn bounded_lines(path: &Path, mut reader: impl BufRead) -> Result<Vec<String>, TraceError> {
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    let (mut all, mut bytes) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        let read =
            std::io::Read::take(&mut reader, LONGEST_LINE as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            return Ok(all);
        }
        bytes += read;
        let what = if read == LONGEST_LINE && !line.ends_with(b"\n") {
            Some("a line must be shorter than 65536 bytes")
        } else if all.len() >= MOST_LINES || bytes > MOST_BYTES {
            Some("a trace must have at most 5,000,000 lines and a GiB")
        } else {
            None
        };
        if let Some(what) = what {
            let text = String::from_utf8_lossy(&line).chars().take(40).collect();
            return Err(TraceError::Malformed { path: path.to_owned(), line: all.len() + 1, what, text });
        }
        all.push(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}

fn percent(path: &Path, line: usize, text: &str) -> Result<f64, TraceError> {
    let value = text.trim().parse::<f64>().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| TraceError::Malformed {
        path: path.to_owned(),
        line,
        what: "CPU must be 0 to 100",
        text: text.chars().take(40).collect(),
    })
}

/// CPU and memory of the Google VMs by name, both in percent. Memory goes beyond 100 at times, of what was requested.
fn google_columns(folder: &Path) -> Result<BTreeMap<String, Vec<(f64, f64)>>, TraceError> {
    let path = folder.join("google-vm-cpu-mem/gcd_shared.csv.gz");
    let mut vms: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (index, line) in lines(&path)?.into_iter().enumerate().skip(1) {
        let malformed = |what| TraceError::Malformed {
            path: path.clone(),
            line: index + 1,
            what,
            text: line.chars().take(80).collect(),
        };
        let mut fields = line.split(',');
        let vm = fields.next().unwrap_or_default().to_owned();
        let slot = fields.next().and_then(|slot| slot.parse::<usize>().ok());
        let slot = slot.filter(|slot| *slot < DAY).ok_or_else(|| malformed("the slot must be 0 to 287"))?;
        let cpu = percent(&path, index + 1, fields.next().ok_or_else(|| malformed("a field is missing"))?)?;
        let memory = fields.next().and_then(|memory| memory.trim().parse::<f64>().ok());
        let memory = memory.filter(|memory| memory.is_finite() && *memory >= 0.0);
        let memory = memory.ok_or_else(|| malformed("memory must be a number of 0 or more"))?;
        let values = vms.entry(vm).or_default();
        if slot != values.len() {
            return Err(malformed("slots of a VM must follow each other"));
        }
        values.push((cpu, memory));
    }
    Ok(vms)
}

/// CPU of the VMs of the Google traces as hosts, every `every`-th.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn google(folder: &Path, every: usize) -> Result<Vec<Series>, TraceError> {
    let whole = google_columns(folder)?.into_iter().filter(|(_, values)| values.len() == DAY).step_by(every.max(1));
    let cpu = |values: Vec<(f64, f64)>| values.into_iter().map(|(cpu, _)| cpu).collect();
    Ok(whole.map(|(vm, values)| Series { name: format!("google {vm}"), values: cpu(values) }).collect())
}

/// Hosts made of 32 PlanetLab VMs each, at most `most` per day.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn planetlab(folder: &Path, most: usize) -> Result<Vec<Series>, TraceError> {
    let folder = folder.join("planetlab");
    let failed = |source| TraceError::Read { path: folder.clone(), source };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "gz"))
        .collect();
    files.sort();
    let mut hosts = Vec::new();
    for path in files {
        let lines = lines(&path)?;
        for (number, group) in lines.chunks_exact(VMS_PER_HOST).take(most).enumerate() {
            let mut values = vec![0.0; DAY];
            for (index, line) in group.iter().enumerate() {
                let at = number * VMS_PER_HOST + index + 1;
                let cpus: Vec<&str> = line.split(',').skip(1).collect();
                if cpus.len() != DAY {
                    let (path, text) = (path.clone(), format!("{} values", cpus.len()));
                    return Err(TraceError::Malformed { path, line: at, what: "there must be 288 values", text });
                }
                for (value, text) in values.iter_mut().zip(cpus) {
                    *value += percent(&path, at, text)? / VMS_PER_HOST as f64;
                }
            }
            let day = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            hosts.push(Series { name: format!("planetlab {day} {number}"), values });
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::fixture::write;
    use super::*;

    #[test]
    fn a_line_without_an_end_is_named() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "long.gz", &format!("a\n{}\n", "b".repeat(LONGEST_LINE)));
        let said = lines(&folder.path().join("long.gz")).unwrap_err().to_string();
        assert!(said.contains("line 2: a line must be shorter"), "{said}");
    }

    #[test]
    fn google_vms_are_whole_days() {
        let folder = tempfile::tempdir().unwrap();
        let day: String = (0..DAY).map(|slot| format!("a_1,{slot},7.5,3\n")).collect();
        write(
            folder.path(),
            "google-vm-cpu-mem/gcd_shared.csv.gz",
            &format!("vm,slot,cpu_pct,mem_pct\n{day}b_1,0,1,1\n"),
        );
        let found = google(folder.path(), 1).unwrap();
        assert_eq!(found.len(), 1, "half a day of b_1 is left out");
        assert_eq!((found[0].name.as_str(), found[0].values.len(), found[0].values[9]), ("google a_1", DAY, 7.5));
        for (line, part) in
            [("a_1,5,1,1", "follow"), ("a_1,x,1,1", "slot"), ("a_1,0,101,1", "0 to 100"), ("a_1,0", "missing")]
        {
            write(folder.path(), "google-vm-cpu-mem/gcd_shared.csv.gz", &format!("vm,slot,cpu_pct,mem_pct\n{line}\n"));
            let said = google(folder.path(), 1).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("line 2"), "{said}");
        }
        assert!(google(&folder.path().join("none"), 1).is_err());
    }

    #[test]
    fn planetlab_hosts_are_means_of_vms() {
        let folder = tempfile::tempdir().unwrap();
        let row = |cpu: &str| format!("vm1,{}\n", vec![cpu; DAY].join(","));
        let text: String = (0..VMS_PER_HOST).map(|vm| row(if vm % 2 == 0 { "10" } else { "30" })).collect();
        write(folder.path(), "planetlab/20110303.csv.gz", &text);
        let hosts = planetlab(folder.path(), 9).unwrap();
        assert_eq!(hosts.len(), 1);
        assert!(hosts[0].values.iter().all(|value| (value - 20.0).abs() < 1e-9));
        write(folder.path(), "planetlab/20110304.csv.gz", &"vm1,5\n".repeat(VMS_PER_HOST));
        assert!(planetlab(folder.path(), 9).unwrap_err().to_string().contains("288"));
        std::fs::write(folder.path().join("planetlab/20110304.csv.gz"), b"no gzip").unwrap();
        assert!(matches!(planetlab(folder.path(), 9), Err(TraceError::Read { .. })));
    }
}
