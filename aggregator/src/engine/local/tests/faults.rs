//! What goes wrong around a job: processes that do not want to end, restarts at bad moments, a full disk.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;

/// The process whose number the task wrote to a file.
fn pid_in(bench: &Bench, file: &str) -> i32 {
    std::fs::read_to_string(bench.folder.path().join(file)).unwrap().trim().parse().unwrap()
}

fn written(folder: &Path, file: &str) -> bool {
    std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.ends_with('\n'))
}

/// What kill -9 of the aggregator leaves: the engine is gone without a word, its tasks run on.
async fn killed(bench: &mut Bench) {
    for (_, running) in std::mem::take(&mut bench.engine.running) {
        running.task.abort();
        _ = running.task.await;
    }
    bench.restart();
}

#[tokio::test]
async fn a_task_that_ignores_the_polite_signal_is_gone_when_its_time_is_up() {
    let mut submit = submission(&["trap '' TERM; echo $$ >\"$D/pid\"; while :; do sleep 0.05; done"]);
    (submit.task_timeout_s, submit.max_attempts) = (Some(0.3), 1);
    let mut bench = Bench::new(submit);
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::CompletedWithFailures { failed: 1 });
    let pid = pid_in(&bench, "pid");
    let gone = tokio::time::timeout(Duration::from_secs(5), bench.until(|_| process::start_ticks(pid).is_none())).await;
    kill(pid);
    assert!(gone.is_ok(), "the task was given up, and its process {pid} runs on");
}

#[tokio::test]
async fn what_a_finished_task_left_in_the_background_is_ended() {
    let mut bench = Bench::new(submission(&["sleep 60 & echo $! >\"$D/pid\""]));
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    let pid = pid_in(&bench, "pid");
    let gone = tokio::time::timeout(Duration::from_secs(5), bench.until(|_| process::start_ticks(pid).is_none())).await;
    kill(pid);
    assert!(gone.is_ok(), "process {pid} outlives its task and its slot");
}

#[tokio::test]
async fn a_command_killed_by_a_signal_has_lost_its_slot() {
    let mut submit = submission(&["[ -e \"$D/log\" ] || { echo x >>\"$D/log\"; kill -9 $$; }"]);
    submit.max_attempts = 1;
    let mut bench = Bench::new(submit);
    bench.slots(1);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_retried), (EngineEnd::Completed, 1));
}

/// Cancels the job, whose task wrote its number to `pid` and would run for a minute.
async fn cancelled_ends_its_task(bench: &mut Bench) {
    bench.act(|engine, job| engine.cancel(job));
    std::fs::remove_dir_all(bench.folder.path().join("jobs/j")).unwrap();
    let pid = pid_in(bench, "pid");
    let gone = tokio::time::timeout(Duration::from_secs(5), bench.until(|_| process::start_ticks(pid).is_none())).await;
    kill(pid);
    assert!(gone.is_ok(), "process {pid} of a cancelled job runs on");
}

#[tokio::test]
async fn a_job_cancelled_before_a_restarted_aggregator_resumed_it_ends_its_tasks() {
    let mut bench = Bench::new(submission(&["echo $$ >\"$D/pid\"; sleep 60"]));
    bench.slots(1);
    bench.until(|folder| written(folder, "pid")).await;
    killed(&mut bench).await;
    cancelled_ends_its_task(&mut bench).await;
}

#[tokio::test]
async fn a_job_cancelled_while_a_restarted_aggregator_resumes_it_ends_its_tasks() {
    let mut bench = Bench::new(submission(&["echo $$ >\"$D/pid\"; sleep 60"]));
    bench.slots(1);
    bench.until(|folder| written(folder, "pid")).await;
    killed(&mut bench).await;
    bench.slots(1);
    // The runner has not read the records yet, and there are none when it does.
    cancelled_ends_its_task(&mut bench).await;
}

#[tokio::test]
async fn a_disk_that_is_slow_when_a_job_resumes_delays_no_other_job() {
    let mut bench = Bench::new(submission(&["true"]));
    // A pipe answers who reads it when somebody writes.
    let list = bench.folder.path().join("jobs/j/tasks.json");
    let tasks = std::fs::read(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    assert!(Command::new("mkfifo").arg(&list).status().unwrap().success());
    let (wanted, waits) = std::sync::mpsc::channel::<()>();
    let disk = std::thread::spawn(move || {
        // At last it answers in any case, or nothing here would end.
        let in_time = waits.recv_timeout(Duration::from_secs(10)).is_ok();
        std::fs::write(list, tasks).unwrap();
        in_time
    });
    bench.slots(1);
    // This task and the job's share one thread.
    tokio::time::sleep(Duration::from_millis(50)).await;
    _ = wanted.send(());
    let in_time = tokio::task::spawn_blocking(|| disk.join().unwrap()).await.unwrap();
    assert!(in_time, "all that the runtime's thread has to do waited for the disk");
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
}

#[tokio::test]
async fn an_unread_result_survives_an_orderly_stop() {
    let mut bench = Bench::new(submission(&["echo 0 >>\"$D/log\"; while [ ! -e \"$D/go\" ]; do sleep 0.02; done"]));
    bench.slots(1);
    bench.until(|folder| lines(folder, "log") == 1).await;
    killed(&mut bench).await;
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    let exits = |folder: &Path| std::fs::read_dir(folder.join("tasks")).unwrap().map(|entry| entry.unwrap().path());
    let left = |path: &Path| {
        let ended = |text: String| text.lines().any(|line| line == "0");
        path.extension().is_some_and(|kind| kind == "exit") && std::fs::read_to_string(path).is_ok_and(ended)
    };
    bench.until(|folder| exits(folder).any(|path| left(&path))).await;
    // Told to start and to stop before it has looked at anything.
    bench.slots(1);
    bench.stop().await;
    bench.restart();
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    assert_eq!(bench.log(), ["0"], "a finished task ran again");
}

#[tokio::test]
async fn an_earlier_job_of_the_same_name_leaves_nothing_to_inherit() {
    let mut bench = Bench::new(submission(&["echo 0 >>\"$D/log\""]));
    std::fs::write(bench.folder.path().join("jobs/j/results.log"), "0 done 1.000\n").unwrap();
    let mut again = submission(&["echo 0 >>\"$D/log\""]);
    again.environment.insert("D".into(), bench.folder.path().display().to_string());
    bench.spec = bench.prepare("j", again).unwrap();
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    assert_eq!(bench.log(), ["0"], "the task never ran");
}

#[tokio::test]
async fn failed_attempts_are_remembered_across_a_restart() {
    let mut submit =
        submission(&["echo 0 >>\"$D/log\"; while [ ! -e \"$D/go$GLEANER_ATTEMPT\" ]; do sleep 0.02; done; exit 1"]);
    submit.max_attempts = 2;
    let mut bench = Bench::new(submit);
    bench.slots(1);
    bench.until(|folder| lines(folder, "log") == 1).await;
    std::fs::write(bench.folder.path().join("go1"), "").unwrap();
    bench.until(|folder| lines(folder, "log") == 2).await;
    killed(&mut bench).await;
    bench.slots(1);
    for attempt in 2..4 {
        std::fs::write(bench.folder.path().join(format!("go{attempt}")), "").unwrap();
    }
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_retried), (EngineEnd::CompletedWithFailures { failed: 1 }, 1));
    assert_eq!(bench.log().len(), 2, "more attempts than were asked for");
}

/// A small file system of its own for the records, so that it can be filled.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=256k", "gleaner-engine-test"];
        let mounted = Command::new("mount").args(options).arg(at).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(at.to_owned()));
        }
        gleaner_test_support::skipped!("no small file system can be mounted on {}", at.display());
        None
    }

    fn fill(&self) {
        use std::io::Write;
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_stops_new_tasks_and_loses_none() {
    let tasks: Vec<String> =
        (0..4).map(|i| format!("echo {i} >>\"$D/log\"; while [ ! -e \"$D/go\" ]; do sleep 0.02; done")).collect();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&folder.path().join("jobs")) else { return };
    let mut submit = submission(&tasks);
    submit.max_attempts = 1;
    let mut bench = Bench::within(folder, submit);
    bench.slots(2);
    bench.until(|folder| lines(folder, "log") == 2).await;
    disk.fill();
    bench.slots(3);
    loop {
        if let EngineReport::Event(Event::JobWaiting { reason, .. }) = bench.next().await {
            assert!(reason.contains("task 3"), "{reason}");
            break;
        }
    }
    // The two that run end while no result can be written, and the aggregator is killed.
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    loop {
        if let EngineReport::Event(Event::JobWaiting { reason, .. }) = bench.next().await
            && reason.contains("a result cannot be written")
        {
            break;
        }
    }
    killed(&mut bench).await;
    disk.free();
    bench.slots(2);
    let (end, progress) = bench.end().await;
    assert_eq!((end, progress.tasks_done), (EngineEnd::Completed, 4));
    let mut started = bench.log();
    started.sort();
    assert_eq!(started, ["0", "1", "2", "3"]);
    drop(bench);
    drop(disk);
}

#[tokio::test]
async fn the_longest_command_runs_and_a_longer_one_is_refused() {
    let longest = format!("echo 0 >>\"$D/log\" #{}", "x".repeat((128 << 10) - 1 - 19));
    assert_eq!(longest.len(), (128 << 10) - 1);
    let mut bench = Bench::new(submission(&[&longest]));
    bench.slots(1);
    assert_eq!(bench.end().await.0, EngineEnd::Completed);
    let error = bench.prepare("j", submission(&[&format!("{longest}x")])).unwrap_err();
    assert!(error.to_string().contains("task 1: has 131072 bytes"), "{error}");
}

#[tokio::test]
async fn a_running_jobs_output_is_not_written_to_by_another_under_any_spelling() {
    let mut bench = Bench::new(submission(&["sleep 60"]));
    bench.slots(1);
    bench.until(|folder| folder.join("jobs/j/0.run").exists()).await;
    let mut other = submission(&["true"]);
    other.output_dir = Some(bench.folder.path().join("output/../output/j/").display().to_string());
    let error = bench.prepare("k", other).unwrap_err();
    assert_eq!(gleaner_api::ApiError::from(error).code, gleaner_api::ErrorCode::Conflict);
    bench.stop().await;
}
