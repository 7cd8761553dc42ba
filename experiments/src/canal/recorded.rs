//! Simulation 2 of Wei's chapter 5: 1,200 nodes in 30 racks (§5.5.1), and a day of recorded jobs. In: a folder of traces.
//! Out: figures, rows of detail and curves of the kinds of Simulation 1. Called by [`super`].
//!
//! The paper replays a day of Google's trace, shows no figure of it, and says no more than that demands are not in the trace. So
//! there is nothing to compare with but the schedulers here. Google's trace is read where it is; else a day of SWIM's sample
//! of Facebook's. A day is played hour by hour, each from an idle cluster, until all jobs of the hour have ended. SWIM's hours
//! are samples of their own anyway.
//!
//! SWIM's file has bytes only. What is read off it, and what is not in it:
//!
//! - Bytes are scaled by nodes, from 3,000. A map task reads a block of 256 MB; a shorter one takes less time, in proportion, but a
//!   tenth at least (chosen).
//! - A job whose shuffle is at least half of its input sorts: it is a TeraSort of one reduce task for 1 GB, which takes less time
//!   for less. Of any other job the application is drawn by a seed, from the other jobs of its size in Table 5.8. It reduces where
//!   it shuffles anything.
//! - Nodes are the test bed's, and inputs lie as in Simulation 1.
//!
//! Of Google's trace each job is one stage of its finished tasks, with their mean duration and mean requests of CPU and memory;
//! tasks of services, which do not finish, are left out. Machines are 1,200 of the trace's, and jobs the same part of all.
//! Disks and the network are not recorded.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_planner::sharing::drf::Drf;
use gleaner_planner::sharing::engine::play;
use gleaner_planner::sharing::input::{Cluster, Invalid, Job, Stage, Workload};
use gleaner_planner::sharing::resources::Resources;
use gleaner_planner::snapshot::share::SharePolicy;
use gleaner_simulator::random::Random;
use gleaner_simulator::traces::TraceError;
use gleaner_simulator::traces::jobs::{GoogleTask, GoogleTrace, SwimJob, google_2011, has_google_2011, swim_facebook};
use gleaner_types::id::JobId;

use super::curves;
use super::facebook::{
    BINS, BLOCK_MB, Kind, Submission, TERA_SORT, application_of, blocks, cluster, cluster_of, map_stage, stage,
};
use super::outcome::{LATE_S, Outcome, Outcomes, POLICIES, late_jobs, latest_s, mean, outcome, worst};
use crate::{Detail, Figure, Reproduction};

/// Racks and nodes of each (§5.5.1).
const RACKS: u32 = 30;
const RACK: u32 = 40;
/// Machines that SWIM's bytes are of.
const RECORDED_NODES: f64 = 3_000.0;
/// Least part of a block that counts in a map task's time. Chosen.
const LEAST_PART: f64 = 0.1;
/// Part of its input that a job which sorts shuffles at least. Chosen.
const SORTS: f64 = 0.5;
const HOUR_S: f64 = 3_600.0;
/// Hours of a day.
pub const DAY: u32 = 24;
/// Google's trace begins so late in its own time.
const GOOGLE_BEGINS_S: f64 = 600.0;

/// The schedulers of Simulation 1, and DRF without delay.
fn policies() -> impl Iterator<Item = (&'static str, SharePolicy)> {
    POLICIES.into_iter().chain([("DRF", SharePolicy::Drf)])
}

/// A day of recorded jobs.
enum Day {
    Swim(Vec<SwimJob>),
    Google,
}

/// Plays so many hours of the day, evenly apart.
///
/// # Errors
/// [`TraceError`] where a trace is there and cannot be read.
pub(super) fn recorded(
    out: &mut Reproduction,
    folder: Option<&Path>,
    hours: u32,
    seed: u64,
    progress: &dyn Fn(usize, usize),
) -> Result<(), TraceError> {
    let Some(folder) = folder else {
        out.skipped.push("Simulation 2: GLEANER_TRACES names no folder of traces".to_owned());
        return Ok(());
    };
    let day = if has_google_2011(folder) {
        Day::Google
    } else if folder.join("swim-facebook").is_dir() {
        Day::Swim(swim_facebook(folder)?)
    } else {
        out.skipped.push("Simulation 2: the folder of traces has neither swim-facebook nor task_events".to_owned());
        return Ok(());
    };
    let hours = hours.clamp(1, DAY);
    let mut outcomes = Outcomes::new();
    let (all, mut done) = (hours as usize * policies().count(), 0);
    for hour in (0..hours).map(|index| index * DAY / hours) {
        let begins_s = f64::from(hour) * HOUR_S;
        let own = match &day {
            Day::Swim(jobs) => swim_hour(jobs, begins_s, seed),
            Day::Google => {
                let from_s = GOOGLE_BEGINS_S + begins_s;
                google_hour(&google_2011(folder, from_s, from_s + HOUR_S)?, from_s)
            }
        };
        let own = match own {
            Ok(own) => own,
            Err(reason) => {
                out.skipped.push(format!("Simulation 2: hour {hour} of the trace: {reason}"));
                continue;
            }
        };
        let workload = &own.workload;
        let fair = play(&workload.without_inputs(), &mut Drf, f64::INFINITY);
        for (name, policy) in policies() {
            let schedule = play(workload, policy.policy(workload.mean_task_s(), seed).as_mut(), f64::INFINITY);
            let seen = outcomes.entry(name).or_default();
            if seen.is_empty() {
                curves::utilisation(out, "canal-trace", name, workload, &schedule);
            }
            seen.push(outcome(hour.into(), &own, &fair, &schedule));
            done += 1;
            progress(done, all);
        }
    }
    if !outcomes.is_empty() {
        let of = match day {
            Day::Swim(_) => "SWIM's sample of Facebook's",
            Day::Google => "Google's trace of 2011",
        };
        figures(out, &outcomes, &format!("{hours} of 24 hours of {of}"));
        details(out, &outcomes);
        curves::completions(out, ("canal-trace", "hour"), &outcomes);
    }
    Ok(())
}

/// The bin of Table 5.8 of a job with so many map tasks.
fn bin(maps: u32) -> u32 {
    BINS.iter().zip(1..).find(|(most, _)| maps <= **most).map_or(9, |(_, bin)| bin)
}

/// How many pieces of such a size there are, and by how much they are shorter than whole ones.
fn pieces(megabytes: f64, each: f64) -> (u32, f64) {
    let count = (megabytes / each).ceil().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; a workload is checked")]
    let tasks = count as u32;
    (tasks, (megabytes / (count * each)).max(LEAST_PART))
}

fn shorter(kind: Kind, part: f64) -> Kind {
    Kind { duration_s: kind.duration_s * part, ..kind }
}

/// What one of SWIM's jobs runs: its application and stages, and its number of map tasks.
fn swim_job(own: &SwimJob, cluster: &Cluster, random: &mut Random) -> (&'static str, Vec<Stage>) {
    let scale = f64::from(RACKS * RACK) / RECORDED_NODES / 1e6;
    let (input, shuffle) = (own.input_bytes * scale, own.shuffle_bytes * scale);
    let (maps, part) = pieces(input, BLOCK_MB);
    let sorts = shuffle > 0.0 && shuffle >= SORTS * input;
    let application = if sorts { TERA_SORT } else { application_of(bin(maps), random) };
    let inputs = (input > 0.0).then(|| blocks(maps, RACK, cluster, random));
    let mut map = map_stage(application, maps, inputs);
    map.duration_s *= part;
    if let Some(input) = &mut map.input {
        input.rack_extra_s *= part;
        input.off_rack_extra_s *= part;
    }
    let mut stages = vec![map];
    if let Some((each, kind)) = application.reduce.filter(|_| shuffle > 0.0) {
        let (tasks, part) =
            if sorts { pieces(shuffle, f64::from(each) * BLOCK_MB) } else { (maps.div_ceil(each), 1.0) };
        stages.push(stage(tasks, shorter(kind, part)));
    }
    (application.name, stages)
}

/// Why there is nothing to play.
type Reason = String;

fn checked(cluster: Cluster, jobs: Vec<Job>, bins: Vec<u32>) -> Result<Submission, Reason> {
    let first = |problems: Vec<Invalid>| problems.first().map_or_else(String::new, ToString::to_string);
    Ok(Submission { workload: Workload::new(cluster, jobs).map_err(first)?, bins })
}

fn named(name: String) -> Result<JobId, Reason> {
    JobId::new(name).map_err(|error| error.to_string())
}

fn swim_hour(jobs: &[SwimJob], begins_s: f64, seed: u64) -> Result<Submission, Reason> {
    let mut random = Random::new(seed);
    let cluster = cluster(RACKS, RACK).ok_or("no node can be named")?;
    let (mut found, mut bins) = (Vec::new(), Vec::new());
    let hour = jobs.iter().filter(|own| (begins_s..begins_s + HOUR_S).contains(&own.submit_s));
    for (index, own) in hour.enumerate() {
        let (name, stages) = swim_job(own, &cluster, &mut random);
        bins.push(bin(stages.first().map_or(0, |map| map.tasks)));
        found.push(Job { name: named(format!("{name}-{index:04}"))?, release_s: own.submit_s - begins_s, stages });
    }
    checked(cluster, found, bins)
}

/// Whether the element at this position is in an even selection of so large a part.
fn selected(index: usize, part: f64) -> bool {
    ((index + 1) as f64 * part).floor() > (index as f64 * part).floor()
}

fn google_hour(trace: &GoogleTrace, from_s: f64) -> Result<Submission, Reason> {
    let part = (f64::from(RACKS * RACK) / trace.machines.len() as f64).min(1.0);
    let machines = trace.machines.iter().enumerate().filter(|(index, _)| selected(*index, part));
    let capacities: Vec<Resources> =
        machines.map(|(_, own)| Resources { cpu: own.cpu, memory: own.memory, ..Resources::default() }).collect();
    let mut by_job: BTreeMap<u64, Vec<&GoogleTask>> = BTreeMap::new();
    // What asks for nothing cannot be shared by what is asked for.
    for task in trace.tasks.iter().filter(|task| task.cpu > 0.0 || task.memory > 0.0) {
        by_job.entry(task.job).or_default().push(task);
    }
    let (mut jobs, mut bins) = (Vec::new(), Vec::new());
    for (_, (number, tasks)) in by_job.iter().enumerate().filter(|(index, _)| selected(*index, part)) {
        let mean_of = |of: fn(&GoogleTask) -> f64| mean(&tasks.iter().map(|task| of(task)).collect::<Vec<_>>());
        let demand =
            Resources { cpu: mean_of(|task| task.cpu), memory: mean_of(|task| task.memory), ..Resources::default() };
        let Ok(count) = u32::try_from(tasks.len()) else { continue };
        if !capacities.iter().any(|own| demand.fits(*own, *own)) {
            continue;
        }
        // Events of one time are in the order of their lines, so a task may have run for no time.
        let duration_s = mean_of(|task| task.duration_s).max(1.0);
        let submit_s = tasks.iter().map(|task| task.submit_s).fold(f64::INFINITY, f64::min);
        let stages = vec![Stage { tasks: count, demand, duration_s, input: None }];
        jobs.push(Job { name: named(format!("job-{number}"))?, release_s: submit_s - from_s, stages });
        bins.push(bin(count));
    }
    checked(cluster_of(&capacities, RACK).ok_or("no node can be named")?, jobs, bins)
}

/// Mean time of a job.
fn time_s(outcomes: &[Outcome]) -> f64 {
    let times_s = outcomes.iter().flat_map(|own| own.times_s.values().flatten().copied());
    mean(&times_s.collect::<Vec<_>>())
}

fn late_percent(outcomes: &[Outcome]) -> f64 {
    let jobs: usize = outcomes.iter().map(|own| own.late_s.len()).sum();
    100.0 * outcomes.iter().map(late_jobs).sum::<f64>() / jobs as f64
}

fn figures(out: &mut Reproduction, outcomes: &Outcomes, what: &str) {
    let of = |name: &str| outcomes.get(name).map_or(&[][..], Vec::as_slice);
    let canal = of("CANAL");
    let mut figure = |id, ours: f64, unit, target: &str, holds: bool, note: String| {
        out.figures.push(Figure::new(id, None, ours, unit, (target, holds), note));
    };
    let late = late_percent(canal);
    let note = format!("{what}: jobs that end more than {LATE_S} s after their fair completion");
    figure("canal.trace_fjct_violations", late, "%", "0", late <= 0.0, note);
    let ratio = |name: &str| time_s(of(name)) / time_s(canal);
    for (id, name) in [("canal.trace_time_vs_drf", "DRF"), ("canal.trace_time_vs_tetris", "Tetris")] {
        let note = format!("the same: mean time of a job under {name} over CANAL's");
        figure(id, ratio(name), "times", "at least 1", ratio(name) >= 1.0, note);
    }
}

fn details(out: &mut Reproduction, outcomes: &Outcomes) {
    for (name, own) in outcomes {
        let makespans_s: Vec<f64> = own.iter().map(|own| own.makespan_s).collect();
        let jobs = own.iter().map(|own| own.late_s.len()).sum::<usize>() as f64;
        let bins = |range: std::ops::RangeInclusive<u32>| {
            let times_s = own.iter().flat_map(|own| own.times_s.iter());
            mean(&times_s.filter(|(bin, _)| range.contains(bin)).flat_map(|(_, all)| all.clone()).collect::<Vec<_>>())
        };
        let quantities = [
            ("jobs", jobs, "jobs"),
            ("mean time", time_s(own), "s"),
            ("mean time, bins 1 to 3", bins(1..=3), "s"),
            ("mean time, bins 4 to 6", bins(4..=6), "s"),
            ("mean time, bins 7 to 9", bins(7..=9), "s"),
            ("jobs late by more than 40 s", late_percent(own), "%"),
            ("latest", worst(own, latest_s), "s"),
            ("mean makespan", mean(&makespans_s), "s"),
        ];
        for (quantity, value, unit) in quantities {
            let (experiment, case) = ("Simulation 2".to_owned(), (*name).to_owned());
            out.details.push(Detail { experiment, case, quantity, value, unit });
        }
    }
}

#[cfg(test)]
mod tests {
    use gleaner_simulator::traces::jobs::GoogleMachine;

    use super::*;

    /// 2.5 GB are 1 GB here: four blocks, the same length each. What shuffles half of that sorts it in one reduce task.
    #[test]
    fn jobs_by_their_bytes() {
        let cluster = cluster(RACKS, RACK).unwrap();
        let own = |input_bytes, shuffle_bytes| {
            let own = SwimJob { submit_s: 0.0, input_bytes, shuffle_bytes };
            swim_job(&own, &cluster, &mut Random::new(1))
        };
        let (name, stages) = own(2.56e9, 1.28e9);
        assert_eq!((name, stages.len(), stages[0].tasks, stages[1].tasks), ("TeraSort", 2, 4, 1));
        assert!((stages[0].duration_s - 40.0).abs() < 1e-9 && (stages[1].duration_s - 17.5).abs() < 1e-9);
        assert_eq!(stages[0].input.as_ref().map(|input| input.nodes.len()), Some(4));
        let (name, stages) = own(1e3, 0.0);
        assert!(name != "TeraSort" && stages.len() == 1 && stages[0].tasks == 1);
        assert!([1.5, 4.0].iter().any(|tenth| (stages[0].duration_s - tenth).abs() < 1e-9), "{stages:?}");
        assert!(own(0.0, 0.0).1[0].input.is_none());
        assert_eq!([1, 2, 3, 20, 21, 1_500, 1_501].map(bin), [1, 2, 3, 3, 4, 8, 9]);
    }

    #[test]
    fn an_hour_has_the_jobs_of_its_time() {
        let job = |submit_s| SwimJob { submit_s, input_bytes: 1e9, shuffle_bytes: 0.0 };
        let jobs = [job(10.0), job(3_599.0), job(3_600.0), job(9_000.0)];
        let release_s = |begins_s| {
            let own = swim_hour(&jobs, begins_s, 1);
            own.map(|own| own.workload.jobs().iter().map(|job| job.release_s).collect::<Vec<_>>())
        };
        assert_eq!(release_s(0.0).unwrap(), [10.0, 3_599.0]);
        assert_eq!(release_s(3_600.0).unwrap(), [0.0]);
        assert!(release_s(10_800.0).is_err());
    }

    /// 2,400 machines and 4 jobs: half of each. A job of two tasks is one stage with their means.
    #[test]
    fn google_s_jobs_and_machines_are_scaled_alike() {
        let machines = (0..2_400).map(|_| GoogleMachine { cpu: 0.5, memory: 0.25 }).collect();
        let task = |job, submit_s, duration_s, cpu| GoogleTask { job, submit_s, duration_s, cpu, memory: 0.1 };
        let tasks = vec![
            task(1, 610.0, 30.0, 0.1),
            task(2, 620.0, 10.0, 0.1),
            task(2, 621.0, 30.0, 0.3),
            task(3, 630.0, 30.0, 0.1),
            task(4, 640.0, 0.0, 0.6),
        ];
        let own = google_hour(&GoogleTrace { machines, tasks }, 600.0).unwrap();
        assert_eq!(own.workload.cluster().nodes.len(), 1_200);
        let jobs = own.workload.jobs();
        // The fourth fits no machine.
        assert_eq!(jobs.len(), 1);
        let stage = &jobs[0].stages[0];
        assert_eq!((jobs[0].name.as_str(), jobs[0].release_s, stage.tasks, stage.duration_s), ("job-2", 20.0, 2, 20.0));
        assert!((stage.demand.cpu - 0.2).abs() < 1e-9 && (stage.demand.memory - 0.1).abs() < 1e-9);
    }

    #[test]
    fn without_traces_it_is_skipped_in_one_line() {
        for folder in [None, Some(Path::new("/nowhere"))] {
            let mut out = Reproduction::default();
            recorded(&mut out, folder, 1, 1, &|_, _| {}).unwrap();
            assert_eq!((out.skipped.len(), out.figures.len(), out.details.len()), (1, 0, 0));
        }
    }
}
