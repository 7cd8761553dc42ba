//! Tasks that run in a partition, from `squeue`. In: its lines. Out: each task with its nodes. Called by [`super::gaps`].

use super::hostlist;
use super::tools::SlurmError;

/// The fields of a line, for `squeue -o`: array, task, CPUs, start, nodes, reservation (which may hold anything).
pub(super) const FORMAT: &str = "%F|%K|%C|%S|%N|%v";
/// The states in which a task has its nodes and can be run again.
///
/// Flags beside "running" are states of their own to `squeue`: a task that its user has stopped is only in ST.
pub(super) const STATES: &str = "R,CF,S,ST,SI,RS,SO";
/// How Slurm shows that there is none.
const NO_RESERVATION: &str = "(null)";

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    pub(super) array: u64,
    /// What Slurm calls it where it is alone meant, and not its array.
    pub(super) name: String,
    pub(super) cpus: u32,
    /// When it began, in seconds since 1970; `None` before it has.
    pub(super) began_s: Option<u64>,
    pub(super) nodes: Vec<String>,
}

/// Reads the lines of `squeue`. What runs in a reservation is its users' and left out.
///
/// # Errors
/// [`SlurmError::Line`] naming the line and the field.
pub(super) fn parse(text: &str) -> Result<Vec<Task>, SlurmError> {
    let mut tasks = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| SlurmError::Line { program: "squeue", line: index + 1, why };
        tasks.extend(of_line(line).map_err(wrong)?);
    }
    Ok(tasks)
}

fn of_line(line: &str) -> Result<Option<Task>, String> {
    let fields: Vec<&str> = line.splitn(6, '|').map(str::trim).collect();
    let &[array, task, cpus, start, nodes, reservation] = fields.as_slice() else {
        return Err(format!("has {} fields instead of 6", fields.len()));
    };
    if !matches!(reservation, "" | NO_RESERVATION) {
        return Ok(None);
    }
    let wrong =
        |name: &str, text: &str| format!("{name}: {:?} is no such number", text.chars().take(40).collect::<String>());
    let number: u64 = array.parse().map_err(|_| wrong("array", array))?;
    let cpus = cpus.parse().map_err(|_| wrong("CPUs", cpus))?;
    let name = match task {
        "N/A" => array.to_owned(),
        task => format!("{number}_{}", task.parse::<u32>().map_err(|_| wrong("task", task))?),
    };
    Ok(Some(Task { array: number, name, cpus, began_s: start.parse().ok(), nodes: hostlist::expand(nodes)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_and_those_of_reservations_left_out() {
        let text = "12|3|2|1700000010|d1|(null)\n13|N/A|8|N/A|d[1-2]|(null)\n14|1|1|1700000010|d2|course|a\n\n";
        let tasks = parse(text).unwrap();
        let of = |task: &Task| (task.name.clone(), task.cpus, task.began_s, task.nodes.len());
        assert_eq!(
            tasks.iter().map(of).collect::<Vec<_>>(),
            [("12_3".to_owned(), 2, Some(1_700_000_010), 1), ("13".to_owned(), 8, None, 2)]
        );
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        for (text, why) in [
            ("12|3|2", "line 1: has 3 fields instead of 6"),
            ("\nx|3|2|1|d1|(null)", "line 2: array: \"x\""),
            ("12|[1-4]|2|1|d1|(null)", "task: \"[1-4]\""),
            ("12|3|two|1|d1|(null)", "CPUs: \"two\""),
            ("12|3|2|1||(null)", "nodes: \"\" is no name"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.starts_with("squeue: line") && said.contains(why), "{text}: {said}");
        }
    }
}
