//! Loaders of traces for services. In: recorded request loads (`worldcup98`, one line per minute; `bias-cloud`, one per
//! second) and the recorded speed of cloud machines (`azure`, one line per run of a benchmark). Out: load and speed
//! over time. The experiments call them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{TraceError, lines};

/// Longest gap in a load that is taken for one, in steps; a longer one is a damaged file.
const LONGEST_GAP: i64 = 100_000;

/// Requests a second over time.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedLoad {
    /// Where it is from.
    pub name: String,
    /// Time between two values, in seconds.
    pub step_s: f64,
    /// Requests a second; `None` where the recording has a gap.
    pub per_s: Vec<Option<f64>>,
}

impl RecordedLoad {
    /// Mean rates of intervals `every` steps long, and the last one known where nothing of an interval was recorded.
    #[must_use]
    pub fn averaged(&self, every: usize) -> Vec<f64> {
        let mut last = 0.0;
        let mean = |steps: &[Option<f64>]| {
            let known: Vec<f64> = steps.iter().flatten().copied().collect();
            if !known.is_empty() {
                last = known.iter().sum::<f64>() / known.len() as f64;
            }
            last
        };
        self.per_s.chunks(every.max(1)).map(mean).collect()
    }
}

/// Speed of one machine over time, against its median.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedSpeed {
    /// Where it is from.
    pub name: String,
    /// Factors around 1, by time. The time between two of them varies.
    pub factors: Vec<f64>,
}

/// One file, for errors.
struct Source {
    path: PathBuf,
}

impl Source {
    fn malformed(&self, index: usize, what: &'static str, text: &str) -> TraceError {
        TraceError::Malformed { path: self.path.clone(), line: index + 1, what, text: text.chars().take(80).collect() }
    }

    /// Lines after the header, which must begin with `header`, with their index in the file.
    fn lines(&self, header: &str) -> Result<Vec<(usize, String)>, TraceError> {
        let all = lines(&self.path)?;
        let first = all.first().map_or("", String::as_str);
        if !first.starts_with(header) {
            return Err(self.malformed(0, "the header is another one", first));
        }
        Ok(all.into_iter().enumerate().skip(1).collect())
    }
}

/// Minutes since 1970 of `YYYY-MM-DD HH:MM…`.
fn minutes(text: &str) -> Option<i64> {
    let part = |range: std::ops::Range<usize>| text.get(range)?.parse::<u16>().ok().map(i64::from);
    let marks = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':')];
    if marks.iter().any(|&(at, mark)| text.as_bytes().get(at) != Some(&mark)) {
        return None;
    }
    let (year, month, day) = (part(0..4)?, part(5..7)?, part(8..10)?);
    let (hour, minute) = (part(11..13)?, part(14..16)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    // Days of the civil calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    Some((days * 24 + hour) * 60 + minute)
}

/// What a time must be for [`place`].
const FOLLOWS: &str = "the time must follow the last line's, without a gap of weeks";

/// Appends a value at its step, leaving gaps open; `None` if the step does not follow the last one.
fn place(per_s: &mut Vec<Option<f64>>, step: i64, value: f64) -> Option<()> {
    let behind = step - i64::try_from(per_s.len()).unwrap_or(i64::MAX);
    if !(0..=LONGEST_GAP).contains(&behind) {
        return None;
    }
    per_s.extend((0..behind).map(|_| None));
    per_s.push(Some(value));
    Some(())
}

fn amount(text: Option<&str>) -> Option<f64> {
    text?.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)
}

/// Requests for the site of the World Cup 1998, by the minute.
///
/// # Errors
/// [`TraceError`] naming file, line and field.
pub fn worldcup98(folder: &Path) -> Result<RecordedLoad, TraceError> {
    let source = Source { path: folder.join("worldcup98/requests_per_min_to_0624.csv.gz") };
    let (mut per_s, mut first) = (Vec::new(), None);
    for (index, line) in source.lines("period,count")? {
        let (period, count) =
            line.split_once(',').ok_or_else(|| source.malformed(index, "a field is missing", &line))?;
        let minute =
            minutes(period).ok_or_else(|| source.malformed(index, "period must be YYYY-MM-DD HH:MM:SS", period))?;
        let count = amount(Some(count)).ok_or_else(|| source.malformed(index, "count must be at least 0", count))?;
        let step = minute - *first.get_or_insert(minute);
        place(&mut per_s, step, count / 60.0).ok_or_else(|| source.malformed(index, FOLLOWS, period))?;
    }
    Ok(RecordedLoad { name: "worldcup98".into(), step_s: 60.0, per_s })
}

/// Load tests of an autoscaler, by the second, in the order of their files' names. Of the recorded columns only the rate is
/// read: the percentiles are over a sliding window and belong to no second.
///
/// # Errors
/// [`TraceError`] naming file, line and field.
pub fn bias_cloud(folder: &Path) -> Result<Vec<RecordedLoad>, TraceError> {
    let folder = folder.join("bias-cloud");
    let failed = |source| TraceError::Read { path: folder.clone(), source };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.ends_with("load-test.csv.gz") || name.ends_with("stats_history.csv.gz")
    });
    paths.sort();
    paths.into_iter().map(|path| load_test(Source { path })).collect()
}

fn load_test(source: Source) -> Result<RecordedLoad, TraceError> {
    let (mut per_s, mut first) = (Vec::new(), None);
    for (index, line) in source.lines("Timestamp,User Count,Type,Name,Requests/s,")? {
        let mut fields = line.split(',');
        let at = fields.next().unwrap_or_default();
        let second = at.parse::<u32>().map(i64::from);
        let second = second.map_err(|_| source.malformed(index, "Timestamp must be seconds since 1970", at))?;
        let rate = fields.nth(3);
        let rate = amount(rate)
            .ok_or_else(|| source.malformed(index, "Requests/s must be at least 0", rate.unwrap_or_default()))?;
        let step = second - *first.get_or_insert(second);
        // Two lines within a second happen where the generator was late: the later one counts.
        if usize::try_from(step + 1).is_ok_and(|length| length == per_s.len()) {
            per_s.pop();
        }
        place(&mut per_s, step, rate).ok_or_else(|| source.malformed(index, FOLLOWS, at))?;
    }
    let name = source.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.trim_end_matches(".csv.gz").replace("transient-queuing__", "").replace("__", " ");
    Ok(RecordedLoad { name: format!("bias-cloud {name}"), step_s: 1.0, per_s })
}

/// A benchmark that was run again and again on long-lived cloud machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Benchmark {
    /// Transactions a second of a database that only reads.
    Postgres,
    /// Events a second of arithmetic alone.
    Cpu,
}

/// Speed of every machine over its runs, by time; the files are in no order.
///
/// # Errors
/// [`TraceError`] naming file, line and field.
pub fn azure_noise(folder: &Path, benchmark: Benchmark) -> Result<Vec<RecordedSpeed>, TraceError> {
    let name = match benchmark {
        Benchmark::Postgres => "postgres_ro_tps",
        Benchmark::Cpu => "sysbench_cpu",
    };
    let source = Source { path: folder.join(format!("azure/noise_{name}_D8sv5_westus2.csv.gz")) };
    let mut machines: BTreeMap<String, Vec<(i64, String, f64)>> = BTreeMap::new();
    for (index, line) in source.lines("value,runtime,starttime,VM_id")? {
        let mut fields = line.split(',');
        let value = fields.next();
        let value = amount(value)
            .filter(|value| *value > 0.0)
            .ok_or_else(|| source.malformed(index, "value must be a number above 0", value.unwrap_or_default()))?;
        let start = fields.nth(1).unwrap_or_default();
        let minute =
            minutes(start).ok_or_else(|| source.malformed(index, "starttime must be YYYY-MM-DD HH:MM:SS", start))?;
        let machine = fields.next().filter(|machine| !machine.is_empty());
        let machine = machine.ok_or_else(|| source.malformed(index, "VM_id is missing", &line))?;
        // Within a minute the text itself is in order.
        machines.entry(machine.to_owned()).or_default().push((minute, start.to_owned(), value));
    }
    let speeds = machines.into_iter().map(|(machine, mut runs)| {
        runs.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut values: Vec<f64> = runs.iter().map(|run| run.2).collect();
        values.sort_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied().unwrap_or(1.0);
        let factors = runs.iter().map(|run| run.2 / median).collect();
        RecordedSpeed { name: format!("azure {name} {machine}"), factors }
    });
    Ok(speeds.collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::fixture::write;
    use super::*;

    const CUP: &str = "worldcup98/requests_per_min_to_0624.csv.gz";
    const BIAS: &str = "bias-cloud/transient-queuing__x__load-test.csv.gz";
    const NOISE: &str = "azure/noise_postgres_ro_tps_D8sv5_westus2.csv.gz";

    #[test]
    fn worldcup_with_a_gap() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            CUP,
            "period,count\n1998-04-30 23:59:00,60\n1998-05-01 00:00:00,120\n1998-05-01 00:03:00,30\n",
        );
        let load = worldcup98(folder.path()).unwrap();
        assert_eq!(load.per_s, [Some(1.0), Some(2.0), None, None, Some(0.5)]);
        assert_eq!(load.averaged(2), [1.5, 1.5, 0.5]);
        for (text, what) in [
            ("period,count\n1998-04-30,60\n", "line 2: period must be"),
            ("period,count\n1998-04-30 23:59:00,-1\n", "line 2: count must be"),
            ("period,count\n1998-04-30 23:59:00\n", "line 2: a field is missing"),
            ("period,count\n1998-04-30 23:59:00,1\n1998-04-30 23:59:00,1\n", "line 3: the time must follow"),
            ("period,count\n1998-04-30 23:59:00,1\n1999-04-30 23:59:00,1\n", "line 3: the time must follow"),
            ("count,period\n", "line 1: the header"),
        ] {
            write(folder.path(), CUP, text);
            let error = worldcup98(folder.path()).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(CUP), "{error}");
        }
    }

    #[test]
    fn load_tests() {
        let folder = tempfile::tempdir().unwrap();
        let header = "Timestamp,User Count,Type,Name,Requests/s,Failures/s\n";
        write(folder.path(), BIAS, &format!("{header}100,6,,Aggregated,8,0\n102,6,,Aggregated,9.5,0\n102,6,,A,10,0\n"));
        write(folder.path(), "bias-cloud/other__history.csv.gz", "nothing for us");
        let loads = bias_cloud(folder.path()).unwrap();
        assert_eq!(loads.len(), 1);
        assert_eq!(loads[0].per_s, [Some(8.0), None, Some(10.0)]);
        assert_eq!(loads[0].name, "bias-cloud x load-test");
        write(folder.path(), BIAS, &format!("{header}100,6,,Aggregated,N/A,0\n"));
        assert!(bias_cloud(folder.path()).unwrap_err().to_string().contains("line 2: Requests/s"));
        write(folder.path(), BIAS, &format!("{header}1.6E12,6,,Aggregated,1,0\n"));
        assert!(bias_cloud(folder.path()).unwrap_err().to_string().contains("line 2: Timestamp"));
        assert!(matches!(bias_cloud(Path::new("/nowhere")), Err(TraceError::Read { .. })));
    }

    #[test]
    fn noise_is_sorted_and_relative() {
        let folder = tempfile::tempdir().unwrap();
        let header = "value,runtime,starttime,VM_id\n";
        let rows = "110,1,2024-06-06 13:35:25.900,0\n90,1,2024-06-06 13:17:57.400,0\n100,1,2024-06-06 13:35:25.901,0\n7,1,2024-06-06 01:00:00.0,1\n";
        write(folder.path(), NOISE, &format!("{header}{rows}"));
        let speeds = azure_noise(folder.path(), Benchmark::Postgres).unwrap();
        assert_eq!(speeds.len(), 2);
        assert_eq!(speeds[0].factors, [0.9, 1.1, 1.0]);
        assert_eq!(speeds[1].factors, [1.0]);
        for (row, what) in [
            ("0,1,2024-06-06 13:35:25.900,0", "value must be"),
            ("1,1,06/06/2024,0", "starttime must be"),
            ("1,1,2024-06-06 13:35:25.900", "VM_id is missing"),
        ] {
            write(folder.path(), NOISE, &format!("{header}{row}\n"));
            let error = azure_noise(folder.path(), Benchmark::Postgres).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn recorded_ones_where_there_are_some() {
        let Some(folder) = std::env::var_os("GLEANER_TRACES") else {
            _ = Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED: recorded_ones_where_there_are_some: GLEANER_TRACES names no folder of traces\n",
            );
            return;
        };
        let folder = Path::new(&folder);
        let cup = worldcup98(folder).unwrap();
        assert!(cup.per_s.len() > 70_000 && cup.per_s.iter().flatten().all(|rate| *rate < 4_000.0));
        let loads = bias_cloud(folder).unwrap();
        assert!(!loads.is_empty() && loads.iter().all(|load| load.per_s.len() > 1_000));
        let deviation = |benchmark| {
            let speeds = azure_noise(folder, benchmark).unwrap();
            let factors: Vec<f64> = speeds.into_iter().flat_map(|speed| speed.factors).collect();
            assert!(factors.len() > 10_000);
            (factors.iter().map(|factor| (factor - 1.0).powi(2)).sum::<f64>() / factors.len() as f64).sqrt()
        };
        let (postgres, cpu) = (deviation(Benchmark::Postgres), deviation(Benchmark::Cpu));
        assert!((0.01..0.05).contains(&postgres) && cpu < 0.005, "{postgres} {cpu}");
    }
}
