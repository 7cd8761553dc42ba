//! Loaders of what hosts use over time, at the pace it was recorded. In: a folder that the user names, with `google-vm-cpu-mem`,
//! `planetlab`, `dc-aggregates`, `crane-dsp`, or a user's own files. Out: series in percent of a host. The evaluation of
//! forecasts calls them.
//!
//! A user's own folder has one file per host, `*.csv` or `*.csv.gz`: the head line `time_s,cpu_percent`, then one line per
//! sample. Times are seconds from any origin and increase by the same step; CPU is 0 to 100 percent of the whole host.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::{DAY, STEP_S, TraceError, bounded_lines, google_columns, lines, percent, planetlab};

/// Head line of a user's own file.
const OWN_HEAD: &str = "time_s,cpu_percent";
/// Steps of `crane-dsp`, in seconds.
const MINUTE_S: f64 = 60.0;
/// What a service's or a site's capacity is of the largest value of the first quarter of its series. Chosen: the unit of these
/// files is not known, and the part from which the capacity is taken is the earlier one.
const CAPACITY: f64 = 1.25;

/// What one host uses over time.
#[derive(Debug, Clone, PartialEq)]
pub struct HostSeries {
    /// Where it is from.
    pub name: String,
    /// Time between two values, in seconds.
    pub step_s: f64,
    /// In percent of the host.
    pub values: Vec<f64>,
}

/// CPU of the Google VMs as hosts.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn google_cpu(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    google(folder, |(cpu, _)| cpu)
}

/// Memory of the Google VMs as hosts. What goes beyond the host counts as all of it.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn google_memory(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    google(folder, |(_, memory)| memory.min(100.0))
}

fn google(folder: &Path, column: fn((f64, f64)) -> f64) -> Result<Vec<HostSeries>, TraceError> {
    let vms = google_columns(folder)?.into_iter().filter(|(_, values)| values.len() == DAY);
    let series = |(vm, values): (String, Vec<(f64, f64)>)| HostSeries {
        name: format!("google {vm}"),
        step_s: STEP_S,
        values: values.into_iter().map(column).collect(),
    };
    Ok(vms.map(series).collect())
}

/// Hosts made of 32 PlanetLab VMs each.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn planetlab_hosts(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    let hosts = planetlab(folder, usize::MAX)?.into_iter();
    Ok(hosts.map(|host| HostSeries { name: host.name, step_s: STEP_S, values: host.values }).collect())
}

/// CPU of three whole data centres: Alibaba's each 10 s over six days, Google's and Azure's each 300 s over weeks.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn data_centres(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    let folder = folder.join("dc-aggregates");
    let mut alibaba = Vec::new();
    for day in 1..=6 {
        alibaba.extend(column(&folder.join(format!("alibaba2018_10s_day{day}.csv.gz")), 0)?);
    }
    let google = column(&folder.join("google2019_300s_days1-21.csv.gz"), 0)?;
    let azure = column(&folder.join("azurev2_300s_days1-22.csv.gz"), 1)?;
    Ok(vec![
        HostSeries { name: "alibaba 2018".into(), step_s: 10.0, values: alibaba },
        HostSeries {
            name: "google 2019".into(),
            step_s: STEP_S,
            values: google.iter().map(|cpu| cpu * 100.0).collect(),
        },
        HostSeries { name: "azure v2".into(), step_s: STEP_S, values: of_capacity(&azure) },
    ])
}

/// Load of services, by the minute, with a daily shape.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn services(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    let mut series = Vec::new();
    for path in files(&folder.join("crane-dsp"), &[".csv.gz"])? {
        let values = of_capacity(&column(&path, 1)?);
        series.push(HostSeries { name: format!("crane {}", file_name(&path)), step_s: MINUTE_S, values });
    }
    Ok(series)
}

/// A user's own hosts: every file of the folder itself. Empty where it has none.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn own(folder: &Path) -> Result<Vec<HostSeries>, TraceError> {
    files(folder, &[".csv", ".csv.gz"])?.iter().map(|path| own_file(path)).collect()
}

fn own_file(path: &Path) -> Result<HostSeries, TraceError> {
    let all = if file_name(path).ends_with(".gz") {
        lines(path)?
    } else {
        let failed = |source| TraceError::Read { path: path.to_owned(), source };
        bounded_lines(path, BufReader::new(std::fs::File::open(path).map_err(failed)?))?
    };
    let malformed = |index: usize, what, text: &str| TraceError::Malformed {
        path: path.to_owned(),
        line: index + 1,
        what,
        text: text.chars().take(80).collect(),
    };
    if all.first().is_none_or(|head| head.trim() != OWN_HEAD) {
        return Err(malformed(0, "the head line must be time_s,cpu_percent", all.first().map_or("", |head| head)));
    }
    let (mut times, mut values): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for (index, line) in all.iter().enumerate().skip(1) {
        let (time, cpu) = line.split_once(',').ok_or_else(|| malformed(index, "there must be two fields", line))?;
        let time = time.trim().parse::<f64>().ok().filter(|time| time.is_finite());
        let time = time.ok_or_else(|| malformed(index, "time_s must be a number", line))?;
        let step_s = times.windows(2).next().map(|first| first[1] - first[0]);
        let wrong = times.last().is_some_and(|last| {
            let step = time - last;
            step <= 0.0 || step_s.is_some_and(|wanted| (step - wanted).abs() > 0.01 * wanted)
        });
        if wrong {
            return Err(malformed(index, "time_s must increase by the same step from line to line", line));
        }
        times.push(time);
        values.push(percent(path, index + 1, cpu)?);
    }
    let step_s = times.windows(2).next().map(|first| first[1] - first[0]);
    let step_s = step_s.ok_or_else(|| malformed(all.len(), "there must be two samples at least", ""))?;
    Ok(HostSeries { name: file_name(path), step_s, values })
}

/// A column of a file with a head line; its values are not negative.
fn column(path: &Path, number: usize) -> Result<Vec<f64>, TraceError> {
    let mut values = Vec::new();
    for (index, line) in lines(path)?.into_iter().enumerate().skip(1) {
        let value = line.split(',').nth(number).and_then(|text| text.trim().parse::<f64>().ok());
        let valid = value.filter(|value| value.is_finite() && *value >= 0.0);
        values.push(valid.ok_or_else(|| TraceError::Malformed {
            path: path.to_owned(),
            line: index + 1,
            what: "the value must be a number of 0 or more",
            text: line.chars().take(80).collect(),
        })?);
    }
    Ok(values)
}

/// In percent of a capacity that the first quarter of the series gives; at most all of it.
fn of_capacity(values: &[f64]) -> Vec<f64> {
    let capacity = CAPACITY * values[..values.len().div_ceil(4)].iter().copied().fold(0.0, f64::max);
    if capacity > 0.0 {
        values.iter().map(|value| (100.0 * value / capacity).min(100.0)).collect()
    } else {
        values.to_vec()
    }
}

/// Files of a folder with one of these endings, in the order of their names.
fn files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>, TraceError> {
    let failed = |source| TraceError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| endings.iter().any(|ending| file_name(path).ends_with(ending))).collect();
    files.sort();
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::write;
    use super::*;

    #[test]
    fn own_files_are_read_packed_or_not_and_faults_are_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "time_s,cpu_percent\n100,5\n160,7.5\n220,0\n").unwrap();
        write(folder.path(), "b.csv.gz", "time_s,cpu_percent\n0,1\n10,2\n");
        std::fs::write(folder.path().join("notes.txt"), "no trace").unwrap();
        let found = own(folder.path()).unwrap();
        assert_eq!(found.len(), 2);
        let first = HostSeries { name: "a.csv".into(), step_s: 60.0, values: vec![5.0, 7.5, 0.0] };
        assert_eq!((&found[0], found[1].step_s), (&first, 10.0));
        for (text, said) in [
            ("time,cpu\n0,1\n1,1\n", "head line"),
            ("time_s,cpu_percent\n0,1\n", "two samples"),
            ("time_s,cpu_percent\n0,1\n1,1\n3,1\n", "line 4: time_s must increase"),
            ("time_s,cpu_percent\n0,1\n0,1\n", "line 3: time_s must increase"),
            ("time_s,cpu_percent\n0,101\n1,1\n", "line 2: CPU must be 0 to 100"),
            ("time_s,cpu_percent\nx,1\n1,1\n", "line 2: time_s must be a number"),
            ("time_s,cpu_percent\n7\n1,1\n", "two fields"),
        ] {
            std::fs::write(folder.path().join("a.csv"), text).unwrap();
            let error = own(folder.path()).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("a.csv"), "{error}");
        }
        assert!(own(&folder.path().join("none")).is_err());
    }

    #[test]
    fn services_are_of_the_capacity_that_their_begin_shows() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "crane-dsp/input0.csv.gz", "ts,value\n0,8\n60,4\n120,40\n180,2\n240,1\n");
        let found = services(folder.path()).unwrap();
        assert_eq!(found[0].values, [80.0, 40.0, 100.0, 20.0, 10.0]);
        write(folder.path(), "crane-dsp/input0.csv.gz", "ts,value\n0,8\n60,-4\n");
        assert!(services(folder.path()).unwrap_err().to_string().contains("line 3"));
    }
}
