//! Recorded Hadoop runs on clusters of 4 to 12 nodes: how well a job's time on a number of nodes is predicted from its runs on the others.
//! In: a folder of traces. Out: errors by workload. Called by [`super`].
//!
//! The records have whole jobs' times and no tasks, so it is [`ScaleOut`] that is trained. Each run is left out in turn.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_planner::mapreduce::scale_out::{Run, ScaleOut, ScaleOutError};
use gleaner_simulator::traces::TraceError;

/// The set, below the folder of traces.
const FILE: &str = "scout-hadoop-scaleout/hadoop_c4.2xlarge.csv";
/// Fields of a line.
const HEADER: &str = "workload,framework,datasize,instance_type,vcpu_per_node,nodes,completed,elapsed_s";
/// Longest file, in bytes.
const LONGEST: u64 = 1 << 20;

/// Runs of each workload.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// How a run was predicted from the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeftOut {
    /// Its nodes.
    pub nodes: f64,
    /// What was recorded.
    pub recorded_s: f64,
    /// What was predicted.
    pub predicted_s: f64,
}

impl LeftOut {
    /// |recorded − predicted| / recorded, in percent.
    #[must_use]
    pub fn error(&self) -> f64 {
        100.0 * (self.recorded_s - self.predicted_s).abs() / self.recorded_s
    }
}

/// Reads the runs that were completed; `None` where the folder has no such set.
///
/// # Errors
/// [`TraceError`] naming file and line.
pub fn read(folder: &Path) -> Result<Option<Runs>, TraceError> {
    use std::io::Read;
    let path = folder.join(FILE);
    let file = match std::fs::File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other,
    };
    let mut text = String::new();
    let read = file.and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.map_err(|source| TraceError::Read { path: path.clone(), source })?;
    parse(&path, &text).map(Some)
}

/// The runs in the text of a file.
fn parse(path: &Path, text: &str) -> Result<Runs, TraceError> {
    let mut runs = Runs::new();
    for (index, line) in text.lines().enumerate() {
        let malformed = |what| TraceError::Malformed {
            path: path.to_owned(),
            line: index + 1,
            what,
            text: line.chars().take(80).collect(),
        };
        if index == 0 {
            if line != HEADER {
                return Err(malformed("the fields must be those of the set"));
            }
            continue;
        }
        let fields: Vec<&str> = line.split(',').collect();
        let [workload, _, _, _, _, nodes, completed, seconds] = fields[..] else {
            return Err(malformed("there must be 8 fields"));
        };
        if completed != "True" {
            continue;
        }
        let number = |text: &str, what| {
            let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && value.is_finite());
            value.ok_or_else(|| malformed(what))
        };
        let nodes = number(nodes, "nodes must be a number above 0")?;
        let seconds = number(seconds, "elapsed_s must be a number above 0")?;
        runs.entry(workload.to_owned()).or_default().push(Run { nodes, seconds });
    }
    Ok(runs)
}

/// The mean error, in percent, of the curve T(N) = a + b/N that comes nearest to all runs: with all of them in sight no other does better.
#[must_use]
pub fn nearest(runs: &[Run]) -> Option<f64> {
    // The least sum of absolute relative errors is that of a curve through two of them.
    let through = |(p, q): (&Run, &Run)| {
        let shared_s = (p.seconds - q.seconds) / (1.0 / p.nodes - 1.0 / q.nodes);
        let curve = ScaleOut { fixed_s: p.seconds - shared_s / p.nodes, shared_s };
        let error = |own: &Run| 100.0 * (curve.seconds(own.nodes) - own.seconds).abs() / own.seconds;
        runs.iter().map(error).sum::<f64>() / runs.len() as f64
    };
    let pairs = runs.iter().enumerate().flat_map(|(at, p)| runs[at + 1..].iter().map(move |q| (p, q)));
    pairs.map(through).filter(|error| error.is_finite()).reduce(f64::min)
}

/// Predicts every run from the others of its workload.
///
/// # Errors
/// [`ScaleOutError`] where the others have one number of nodes only.
pub fn left_out(runs: &[Run]) -> Result<Vec<LeftOut>, ScaleOutError> {
    let one = |index: usize| {
        let mut others = runs.to_vec();
        let own = others.remove(index);
        let predicted_s = ScaleOut::fit(&others)?.seconds(own.nodes);
        Ok(LeftOut { nodes: own.nodes, recorded_s: own.seconds, predicted_s })
    };
    (0..runs.len()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_wrong_are_named_with_their_line() {
        let path = Path::new(FILE);
        assert_eq!(read(Path::new("no such folder")).unwrap(), None);
        let good = format!("{HEADER}\nsort,h,b,t,8,4,True,100.5\nsort,h,b,t,8,6,False,\n");
        let runs = parse(path, &good).unwrap();
        assert_eq!(runs["sort"], [Run { nodes: 4.0, seconds: 100.5 }]);
        for (line, part) in [
            ("sort,h,b,t,8,0,True,5", "line 4: nodes must be"),
            ("sort,h,b,t,8,4,True,NaN", "line 4: elapsed_s must be"),
            ("sort,4", "line 4: there must be 8 fields"),
        ] {
            let said = parse(path, &format!("{good}{line}\n")).unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
        assert!(parse(path, "a,b\n").unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn runs_are_predicted_from_the_others() {
        let run = |nodes: f64| Run { nodes, seconds: 100.0 + 1_200.0 / nodes };
        let found = left_out(&[run(4.0), run(6.0), run(12.0)]).unwrap();
        assert!(found.iter().all(|own| own.error() < 1e-6) && found.len() == 3);
        assert!(nearest(&[run(4.0), run(6.0), run(12.0)]).unwrap() < 1e-6 && nearest(&[run(4.0)]).is_none());
        // One of four runs takes 30 % longer: the curve through the others leaves that alone.
        let slow = Run { seconds: 1.3 * run(8.0).seconds, ..run(8.0) };
        let off = nearest(&[run(4.0), run(6.0), slow, run(12.0)]).unwrap();
        assert!((off - 100.0 * 0.3 / 1.3 / 4.0).abs() < 1e-6, "{off}");
        assert!(left_out(&[run(4.0), run(6.0)]).is_err());
    }
}
