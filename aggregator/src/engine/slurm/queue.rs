//! A partition's queue, from `squeue`. In: its lines. Out: arrays with their waiting and running tasks, and tasks that have ended.
//! Called by the session.

use std::collections::BTreeMap;

use gleaner_planner::queue::Constraint;

use super::tools::SlurmError;

/// The fields of a line, for `squeue -o`: array, task, state, user, CPUs, start, end, nice value, node, why it
/// waits, features that it asks for (in which `|` may be).
pub(super) const FORMAT: &str = "%F|%K|%t|%u|%C|%S|%e|%y|%N|%r|%f";
/// Why tasks wait that Slurm would start on free CPUs. All others wait for something else.
const STARTABLE: [&str; 4] = ["None", "Priority", "Resources", "JobArrayTaskLimit"];
/// The same while too few nodes are up; what follows differs.
const TOO_FEW_NODES: &str = "Nodes required for job are DOWN";
/// The same while nodes are drained that alone it could run on, such as those of the features that it asks for.
const NODES_DRAINED: &str = "ReqNodeNotAvail, UnavailableNodes";
/// Most tasks of one array; Slurm's own limit is some four million.
const MOST_TASKS: u32 = 4_000_001;
/// Arrays that are taken of one queue.
const MOST_ARRAYS: usize = 100_000;

/// One array of a queue. A job that is no array is one of one task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QueuedArray {
    pub(super) user: String,
    /// CPUs of a task.
    pub(super) cpus: u32,
    pub(super) nice: i64,
    /// Tasks at once that Slurm allows, 0 without a bound. `None` where no line tells: one with a single waiting task shows
    /// a bound at most, and not that there is none.
    pub(super) bound: Option<u32>,
    /// It has several tasks, so that a bound can be set.
    pub(super) is_array: bool,
    pub(super) waiting: u32,
    /// Waiting tasks that Slurm would start on free CPUs: not held, and waiting for no other job or time.
    pub(super) startable: u32,
    /// When each running task began, in seconds since 1970.
    pub(super) running: Vec<u64>,
    /// Nodes that it asks for.
    pub(super) constraint: Constraint,
}

/// A task that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndedTask {
    pub(super) array: u64,
    /// Its number in the array.
    pub(super) task: u32,
    pub(super) how: How,
    pub(super) seconds: u64,
    pub(super) cpus: u32,
    pub(super) node: String,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Good,
    Bad,
    Cancelled,
}

/// What a queue holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Queue {
    pub(super) arrays: BTreeMap<u64, QueuedArray>,
    pub(super) ended: Vec<EndedTask>,
}

/// Reads the lines of `squeue`.
///
/// # Errors
/// [`SlurmError::Line`] naming the line and the field.
pub(super) fn parse(text: &str) -> Result<Queue, SlurmError> {
    let mut queue = Queue::default();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| SlurmError::Line { program: "squeue", line: index + 1, why };
        read(line, &mut queue).map_err(wrong)?;
        if queue.arrays.len() > MOST_ARRAYS {
            return Err(wrong(format!("more than {MOST_ARRAYS} arrays in one queue")));
        }
    }
    Ok(queue)
}

fn read(line: &str, queue: &mut Queue) -> Result<(), String> {
    let fields: Vec<&str> = line.splitn(11, '|').map(str::trim).collect();
    let &[array, tasks, state, user, cpus, start, end, nice, node, reason, features] = fields.as_slice() else {
        return Err(format!("has {} fields instead of 11", fields.len()));
    };
    let array: u64 = number("array", array)?;
    let cpus: u32 = number::<u32>("CPUs", cpus)?.max(1);
    let is_array = tasks != "N/A";
    match state {
        // One whose end is not complete still has its CPUs; one that is run again has no start there.
        "R" | "CG" | "CF" | "ST" | "SI" | "SO" => {
            let start = start.parse().unwrap_or(u64::MAX);
            let entry = entry(queue, array, user, cpus, nice, features)?;
            entry.is_array |= is_array;
            entry.running.push(start);
        }
        "CD" | "F" | "TO" | "CA" | "NF" | "OOM" | "PR" | "DL" | "BF" => {
            // Those that were cancelled before they began have no times, and whole arrays then have one line.
            let task = if is_array { tasks.parse().unwrap_or(u32::MAX) } else { 0 };
            let time = |text: &str| text.parse::<u64>().unwrap_or(0);
            let seconds = time(end).saturating_sub(time(start));
            let seconds = if time(start) == 0 { 0 } else { seconds };
            let how = match state {
                "CD" => How::Good,
                "CA" => How::Cancelled,
                _ => How::Bad,
            };
            queue.ended.push(EndedTask { array, task, how, seconds, cpus, node: node.to_owned() });
        }
        // All others wait: to be started, to be resumed, or for something that this version does not know.
        _ => {
            let (waiting, bound) = if is_array { waiting_tasks(tasks)? } else { (1, None) };
            let entry = entry(queue, array, user, cpus, nice, features)?;
            entry.waiting = entry.waiting.saturating_add(waiting);
            if state == "PD" && is_startable(reason) {
                entry.startable = entry.startable.saturating_add(waiting);
            }
            entry.is_array |= is_array;
            entry.bound = bound.or(entry.bound);
        }
    }
    Ok(())
}

/// Slurm would start it on free CPUs of nodes that are up.
fn is_startable(reason: &str) -> bool {
    STARTABLE.contains(&reason) || [TOO_FEW_NODES, NODES_DRAINED].iter().any(|known| reason.starts_with(known))
}

fn entry<'a>(
    queue: &'a mut Queue,
    array: u64,
    user: &str,
    cpus: u32,
    nice: &str,
    features: &str,
) -> Result<&'a mut QueuedArray, String> {
    let nice = number("nice value", nice)?;
    Ok(queue.arrays.entry(array).or_insert_with(|| QueuedArray {
        user: user.to_owned(),
        cpus,
        nice,
        bound: None,
        is_array: false,
        waiting: 0,
        startable: 0,
        running: Vec::new(),
        constraint: Constraint::of(features),
    }))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}: {:?} is no such number", short(text)))
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Waiting tasks of an array and its bound: `7`, `1-5,8,10-20:2%4`; in brackets where Slurm shows them so.
fn waiting_tasks(text: &str) -> Result<(u32, Option<u32>), String> {
    let text = text.trim_start_matches('[').trim_end_matches(']');
    let (list, bound) = match text.split_once('%') {
        Some((list, bound)) => (list, Some(number::<u32>("bound", bound)?)),
        None => (text, text.contains(['-', ',']).then_some(0)),
    };
    let mut tasks = 0_u32;
    for part in list.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number::<u32>("step", step)?.max(1)),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number::<u32>("task", first)?, number::<u32>("task", last)?),
            None => (number::<u32>("task", range)?, number::<u32>("task", range)?),
        };
        let more = last.checked_sub(first).ok_or_else(|| format!("tasks: {:?} ends before it begins", short(part)))?;
        tasks = tasks.saturating_add((more / step).saturating_add(1));
        if tasks > MOST_TASKS {
            return Err(format!("tasks: {:?} are more than {MOST_TASKS}", short(list)));
        }
    }
    Ok((tasks, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_counted_by_what_waits_runs_and_has_ended() {
        let text = "12|5-9,20%3|PD|alice|2|N/A|N/A|0||JobArrayTaskLimit|(null)\n\
                    12|1|R|alice|2|1700000010|N/A|0|h1|None|(null)\n\
                    12|2|CG|alice|2|1700000011|1700000012|0|h2|None|(null)\n\
                    12|3|CD|alice|2|1700000010|1700000019|0|h1|None|(null)\n\
                    12|4|F|alice|2|1700000010|1700000012|0|h1|NonZeroExitCode|(null)\n\
                    13|N/A|PD|bob|1|N/A|N/A|-50||Dependency|(null)\n\
                    14|[1-10:3]|CA|bob|1|N/A|1700000020|0||None|(null)\n\n";
        let queue = parse(text).unwrap();
        let alice = QueuedArray {
            user: "alice".into(),
            cpus: 2,
            nice: 0,
            bound: Some(3),
            is_array: true,
            waiting: 6,
            startable: 6,
            running: vec![1_700_000_010, 1_700_000_011],
            constraint: Constraint::Any,
        };
        assert_eq!(queue.arrays[&12], alice);
        assert_eq!(queue.arrays[&13].startable, 0);
        assert_eq!((queue.arrays[&13].waiting, queue.arrays[&13].is_array, queue.arrays[&13].nice), (1, false, -50));
        assert!(!queue.arrays.contains_key(&14), "nothing of it is left");
        let ended: Vec<(u64, u32, How, u64)> =
            queue.ended.iter().map(|ended| (ended.array, ended.task, ended.how, ended.seconds)).collect();
        assert_eq!(ended, [(12, 3, How::Good, 9), (12, 4, How::Bad, 2), (14, u32::MAX, How::Cancelled, 0)]);
    }

    #[test]
    fn what_is_run_again_suspended_or_not_known_fails_no_look() {
        let text = "12|1|CG|a|1|N/A|N/A|0|h1|None|(null)\n12|2|S|a|1|1700000010|N/A|0|h1|None|(null)\n12|3|??|a|1|N/A|N/A|0||None|(null)\n";
        let queue = parse(text).unwrap();
        let array = &queue.arrays[&12];
        assert_eq!((array.running.len(), array.waiting, array.startable, array.bound), (1, 2, 0, None));
    }

    #[test]
    fn lists_of_tasks_are_counted() {
        for (text, tasks, bound) in [
            ("7", 1, None),
            ("0-99", 100, Some(0)),
            ("[1-10:3]", 4, Some(0)),
            ("1,3,5-6%2", 4, Some(2)),
            ("1-4%0", 4, Some(0)),
            ("0-4000000", 4_000_001, Some(0)),
        ] {
            assert_eq!(waiting_tasks(text).unwrap(), (tasks, bound), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        for (text, why) in [
            ("12|1|R", "line 1: has 3 fields instead of 11"),
            ("\nx|1|R|a|1|1|1|0|h1||", "line 2: array: \"x\""),
            ("12|5-1|PD|a|1|N/A|N/A|0|||", "tasks: \"5-1\" ends before it begins"),
            ("12|1-...|PD|a|1|N/A|N/A|0|||", "task: \"...\""),
            ("12|0-9999999999|PD|a|1|N/A|N/A|0|||", "task: \"9999999999\""),
            ("12|0-4294967295|PD|a|1|N/A|N/A|0|||", "are more than 4000001"),
            ("12|1%x|PD|a|1|N/A|N/A|0|||", "bound: \"x\""),
            ("12|1|R|a|one|1|1|0|h1||", "CPUs: \"one\""),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.starts_with("squeue: line") && said.contains(why), "{text}: {said}");
        }
    }
}
