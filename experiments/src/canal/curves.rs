//! Plots of Simulation 1: Fig. 5.6 to 5.11 of the paper. In: what the schedulers did. Out: series. Called by [`super`].

use gleaner_planner::sharing::engine::Schedule;
use gleaner_planner::sharing::input::Workload;
use gleaner_planner::sharing::tasks::Locality;

use super::outcome::{Outcome, Outcomes, mean};
use crate::{Reproduction, Series};

/// Width of a step of a curve over time.
const STEP_S: f64 = 20.0;

/// Ranges of bins that Fig. 5.6 shows.
const RANGES: [(&str, std::ops::RangeInclusive<u32>); 3] = [("small", 1..=3), ("medium", 4..=6), ("large", 7..=9)];

fn line(plot: String, name: &str, (x, y): (&'static str, &'static str), points: Vec<(f64, f64)>) -> Series {
    Series { plot, name: name.to_owned(), x, y, points_only: false, points, band: Vec::new() }
}

/// The part of the values that are at most each of them.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let all = values.len() as f64;
    values.into_iter().enumerate().map(|(index, value)| (value, (index + 1) as f64 / all)).collect()
}

/// Times of jobs, makespans, and times beyond fair completions, of all workloads together.
/// Plots have names of this prefix; a workload is what `run` says.
pub(super) fn completions(out: &mut Reproduction, (prefix, run): (&str, &'static str), outcomes: &Outcomes) {
    const PART: &str = "part of the jobs";
    for (range, bins) in RANGES {
        for (name, own) in outcomes {
            let times_s = own.iter().flat_map(|outcome| outcome.times_s.iter());
            let times_s =
                times_s.filter(|(bin, _)| bins.contains(bin)).flat_map(|(_, times_s)| times_s.iter().copied());
            let points = distribution(times_s.collect());
            out.series.push(line(format!("{prefix}-jct-{range}"), name, ("completion time (s)", PART), points));
        }
    }
    let canal = outcomes.get("CANAL").map_or(&[][..], Vec::as_slice);
    let bin_s = |own: &[Outcome], bin: u32| {
        mean(&own.iter().filter_map(|outcome| outcome.mean_s.get(&bin).copied()).collect::<Vec<_>>())
    };
    for (name, own) in outcomes {
        let points = (1..=9).map(|bin| (f64::from(bin), bin_s(own, bin) / bin_s(canal, bin))).collect();
        let axes = ("bin of Table 5.8", "mean completion time over CANAL's");
        out.series.push(line(format!("{prefix}-jct-by-bin"), name, axes, points));
    }
    for (name, own) in outcomes {
        let points = own.iter().zip(canal).map(|(own, canal)| (own.seed as f64, own.makespan_s / canal.makespan_s));
        let axes = (run, "makespan over CANAL's");
        let series = line(format!("{prefix}-makespan"), name, axes, points.collect());
        out.series.push(Series { points_only: true, ..series });
    }
    for (name, own) in outcomes {
        let points = distribution(own.iter().flat_map(|outcome| outcome.late_s.iter().copied()).collect());
        out.series.push(line(format!("{prefix}-beyond-fair"), name, ("time beyond FJCT (s)", PART), points));
    }
}

/// A sum over time in steps.
struct Steps(Vec<f64>);

impl Steps {
    fn over(end_s: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times are bounded")]
        let steps = (end_s / STEP_S).ceil() as usize;
        Self(vec![0.0; steps])
    }

    /// Adds a value that holds from one time to another.
    fn add(&mut self, from_s: f64, to_s: f64, value: f64) {
        for (index, sum) in self.0.iter_mut().enumerate() {
            let begin_s = index as f64 * STEP_S;
            let together_s = (to_s.min(begin_s + STEP_S) - from_s.max(begin_s)).max(0.0);
            *sum += value * together_s / STEP_S;
        }
    }

    fn percent_of(self, whole: f64) -> Vec<(f64, f64)> {
        let percent = |(index, sum): (usize, f64)| ((index as f64 + 0.5) * STEP_S, 100.0 * sum / whole);
        self.0.into_iter().enumerate().map(percent).collect()
    }
}

/// Use of the cluster switch and of the disks over time, of one workload. Reading a task's input from elsewhere is not
/// effective (§5.2.2).
pub(super) fn utilisation(out: &mut Reproduction, prefix: &str, name: &str, workload: &Workload, schedule: &Schedule) {
    let steps = || Steps::over(schedule.makespan_s());
    let (mut network, mut wasted, mut disk) = (steps(), steps(), steps());
    for run in &schedule.runs {
        let stage = &workload.jobs()[run.job].stages[run.stage];
        let effective = run.switch.min(stage.demand.network);
        network.add(run.start_s, run.end_s, effective);
        if run.locality == Locality::OffRack {
            wasted.add(run.start_s, run.end_s, run.switch - effective);
        }
        disk.add(run.start_s, run.end_s, stage.demand.disk);
    }
    let (switch, disks) = (workload.capacity().network, workload.capacity().disk);
    let curves = [
        ("network", network, switch, "effective use of the switch (%)"),
        ("network-wasted", wasted, switch, "use of the switch by inputs from other racks (%)"),
        ("disk", disk, disks, "effective use of the disks (%)"),
    ];
    for (plot, steps, whole, y) in curves {
        out.series.push(line(format!("{prefix}-{plot}"), name, ("time (s)", y), steps.percent_of(whole)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_and_a_sum_by_hand() {
        assert_eq!(distribution(vec![3.0, 1.0]), [(1.0, 0.5), (3.0, 1.0)]);
        let mut steps = Steps::over(30.0);
        steps.add(10.0, 25.0, 4.0);
        assert_eq!(steps.percent_of(8.0), [(10.0, 25.0), (30.0, 12.5)]);
    }
}
