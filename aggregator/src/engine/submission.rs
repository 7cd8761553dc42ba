//! Checks a submitted task list, field by field, and stores it durably.

use std::path::Path;

use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineSpec, Goal, JobSpec, LocalSpec, SizingPolicy};

use super::records::{Records, Tasks};
use super::runner;
use gleaner_api::{ApiError, ErrorCode, SubmitJob};

/// Most tasks of a job.
const MAX_TASKS: usize = 100_000;
/// Longest command or environment entry, in bytes: what the kernel takes as one argument, less the NUL at its
/// end (execve(2), MAX_ARG_STRLEN).
const MAX_COMMAND: usize = (128 << 10) - 1;
/// Most bytes of environment. Chosen: with a command passed on twice it is well within the 2 MiB that the
/// kernel takes in all under the usual stack limit.
const MAX_ENVIRONMENT: usize = 1 << 20;
/// Most slots of a job.
const MAX_SLOTS: u32 = 1_024;
/// Longest list of mistakes reported.
const MAX_PROBLEMS: usize = 20;

pub(super) fn prepare(jobs_dir: &Path, host: &HostId, job: &JobId, submit: &SubmitJob) -> Result<JobSpec, ApiError> {
    let problems = problems(submit);
    if !problems.is_empty() {
        return Err(ApiError { code: ErrorCode::Invalid, message: problems.join("\n") });
    }
    let folder = jobs_dir.join(job.as_str());
    let output_dir = match &submit.output_dir {
        Some(output_dir) => output_dir.clone(),
        None => jobs_dir.with_file_name("output").join(job.as_str()).display().to_string(),
    };
    let failed = |what: &Path, error: std::io::Error| ApiError {
        code: ErrorCode::Unavailable,
        message: format!("failed to write {}: {error}", what.display()),
    };
    std::fs::create_dir_all(&output_dir).map_err(|e| failed(Path::new(&output_dir), e))?;
    let tasks = Tasks { commands: submit.tasks.clone(), environment: submit.environment.clone() };
    let records = Records::new(folder.clone());
    // What a job of the same name may have left would pass for this one's results.
    runner::end_left_behind(&records);
    records.remove().and_then(|()| records.write_tasks(&tasks)).map_err(|e| failed(&folder, e))?;
    Ok(JobSpec {
        id: job.clone(),
        engine: EngineSpec::Local(LocalSpec {
            host: host.clone(),
            tasks: u32::try_from(submit.tasks.len()).unwrap_or(u32::MAX),
            dedicated_slots: submit.dedicated_slots,
            max_slots: submit.max_slots,
            max_attempts: submit.max_attempts,
            task_timeout_s: submit.task_timeout_s,
            working_dir: submit.working_dir.clone(),
            output_dir,
        }),
        goal: submit.goal,
        prices: submit.prices,
        memory_per_slot: submit.memory_per_slot,
        // A slot works as soon as its shell has started.
        set_up_s: 0.0,
        sizing: SizingPolicy::Adaptive,
        power: None,
    })
}

fn problems(submit: &SubmitJob) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |good: bool, problem: String| {
        if !good && found.len() < MAX_PROBLEMS {
            found.push(problem);
        }
    };
    let tasks = submit.tasks.len();
    check((1..=MAX_TASKS).contains(&tasks), format!("tasks: there are {tasks}; it must be 1 to {MAX_TASKS}"));
    for (index, task) in submit.tasks.iter().take(MAX_TASKS).enumerate() {
        let number = index + 1;
        check(!task.trim().is_empty(), format!("task {number}: is empty"));
        check(!task.contains('\0'), format!("task {number}: holds a NUL byte"));
        check(task.len() <= MAX_COMMAND, format!("task {number}: has {} bytes; at most {MAX_COMMAND}", task.len()));
    }
    for (name, value) in &submit.environment {
        let good = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        check(good, format!("environment: {name:?} cannot be set"));
        let bytes = name.len() + 1 + value.len();
        check(bytes <= MAX_COMMAND, format!("environment: {name:?} has {bytes} bytes; at most {MAX_COMMAND}"));
    }
    // Each entry also costs a NUL and a pointer.
    let bytes: usize = submit.environment.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
    check(bytes <= MAX_ENVIRONMENT, format!("environment: has {bytes} bytes in all; at most {MAX_ENVIRONMENT}"));
    let folder = Path::new(&submit.working_dir);
    check(
        folder.is_absolute() && folder.is_dir(),
        format!("working_dir: {:?} is not an absolute path of a folder", submit.working_dir),
    );
    if let Some(output_dir) = &submit.output_dir {
        check(Path::new(output_dir).is_absolute(), format!("output_dir: {output_dir:?} is not absolute"));
    }
    let dedicated = submit.dedicated_slots;
    check(
        (1..=MAX_SLOTS).contains(&dedicated),
        format!("dedicated_slots: is {dedicated}; it must be 1 to {MAX_SLOTS}"),
    );
    if let Some(most) = submit.max_slots {
        let good = (dedicated.max(1)..=MAX_SLOTS).contains(&most);
        check(good, format!("max_slots: is {most}; it must be dedicated_slots ({dedicated}) to {MAX_SLOTS}"));
    }
    let attempts = submit.max_attempts;
    check((1..=100).contains(&attempts), format!("max_attempts: is {attempts}; it must be 1 to 100"));
    if let Some(timeout_s) = submit.task_timeout_s {
        let good = timeout_s > 0.0 && timeout_s.is_finite();
        check(good, format!("task_timeout_s: is {timeout_s}; it must be more than 0"));
    }
    if let Goal::Deadline { within_s } = submit.goal {
        let good = within_s > 0.0 && within_s <= 366.0 * 86_400.0;
        check(good, format!("goal.deadline.within_s: is {within_s}; it must be more than 0 and at most a year"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::submission;

    #[test]
    fn every_wrong_field_is_named() {
        let submit = SubmitJob {
            tasks: vec!["true".into(), " ".into(), "a\0".into()],
            working_dir: "here".into(),
            output_dir: Some("there".into()),
            dedicated_slots: 3,
            max_slots: Some(2),
            max_attempts: 0,
            task_timeout_s: Some(f64::NAN),
            goal: Goal::Deadline { within_s: -1.0 },
            environment: [("A=B".to_owned(), String::new()), ("LONG".to_owned(), "x".repeat(2 << 20))].into(),
            ..submission(&[])
        };
        let host = HostId::new("h1").unwrap();
        let error = prepare(Path::new("/nonexistent"), &host, &JobId::new("j").unwrap(), &submit).unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid);
        for part in [
            "task 2: is empty",
            "task 3: holds a NUL",
            "working_dir: \"here\"",
            "output_dir: \"there\"",
            "max_slots: is 2",
            "max_attempts: is 0",
            "task_timeout_s: is NaN",
            "within_s: is -1",
            "environment: \"A=B\" cannot be set",
            "environment: \"LONG\" has 2097157 bytes; at most 131071",
            "bytes in all; at most 1048576",
        ] {
            assert!(error.message.contains(part), "{part}\nnot in\n{}", error.message);
        }
        let none = prepare(Path::new("/nonexistent"), &host, &JobId::new("j").unwrap(), &submission(&[])).unwrap_err();
        assert!(none.message.contains("tasks: there are 0"));
    }
}
