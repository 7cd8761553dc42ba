//! Two jobs on clusters share interactive hosts by credit: a real aggregator, six real agents, the folder engine and its
//! workers as they ship.
//!
//! Agents on one machine take each other's volunteers for foreground, so the tasks mostly sleep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{Running, text, until};
use gleaner_test_support::pair::Pair;
use serde_json::Value;

const INTERACTIVE: [&str; 4] = ["i1", "i2", "i3", "i4"];
/// Tasks take four seconds, until their job is to end.
const TASK: &str = "[ -e QUICK ] || sleep 4\n";

/// A job in a folder: its dedicated host's worker runs all the time, as on a real one.
struct FolderJob {
    name: &'static str,
    folder: PathBuf,
    tasks: usize,
    worker: Running,
}

impl FolderJob {
    fn new(pair: &Pair, shared: &Path, name: &'static str, dedicated: &str, tasks: usize) -> Self {
        let folder = shared.join(name);
        std::fs::create_dir_all(folder.join("tasks")).unwrap();
        let task = TASK.replace("QUICK", folder.join("quick").to_str().unwrap());
        for number in 0..tasks {
            std::fs::write(folder.join(format!("tasks/{number}")), &task).unwrap();
        }
        let job = format!(
            "name = '{name}'\nprogram = [{:?}, {folder:?}]\nworking_dir = {folder:?}\nmax_slots_per_host = 1\n\
             memory_per_slot_mib = 16\n[goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
             [[dedicated]]\nhost = '{dedicated}'\n",
            example("folder-engine.py")
        );
        pair.bench.write(&format!("{name}.toml"), &job);
        let mut worker = std::process::Command::new(example("folder-worker.sh"));
        worker.arg(&folder).arg(dedicated);
        std::os::unix::process::CommandExt::process_group(&mut worker, 0);
        Self { name, folder, tasks, worker: Running::start(worker) }
    }

    fn submit(&self, pair: &Pair) {
        let submitted = pair.ask(&["job", "submit-cluster", &format!("{}.toml", self.name)]);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    /// Tasks that ended, by host.
    fn done(&self) -> BTreeMap<String, usize> {
        let names = |folder: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let done = self.folder.join("done");
        names(&done).into_iter().map(|host| (host.clone(), names(&done.join(&host)).len())).collect()
    }

    fn done_on_interactive_hosts(&self) -> usize {
        self.done().iter().filter(|(host, _)| INTERACTIVE.contains(&host.as_str())).map(|(_, tasks)| tasks).sum()
    }

    fn status(&self, pair: &Pair) -> Value {
        pair.job(self.name)["status"].clone()
    }

    /// What is left of it takes no time any more.
    fn hurry(&self) {
        std::fs::write(self.folder.join("quick"), "").unwrap();
    }
}

impl Drop for FolderJob {
    fn drop(&mut self) {
        // The worker's slots and tasks are processes of their own.
        let group = format!("-{}", self.worker.0.id());
        _ = std::process::Command::new("kill").args(["-9", "--", &group]).status();
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(name).canonicalize().unwrap()
}

/// The volunteer of an interactive host: a worker for each job, of which the one that the host is given to takes tasks.
fn interactive_host(pair: &Pair, name: &str, jobs: &[&FolderJob]) -> Running {
    let worker = example("folder-worker.sh");
    let start = |job: &&FolderJob| format!("{} {} {name} &", worker.display(), job.folder.display());
    let workers: Vec<String> = jobs.iter().map(start).collect();
    let command = format!("command = ['/bin/sh', '-c', '{} wait']\nuser = 'root'\n", workers.join(" "));
    agent(pair, name, &command)
}

fn agent(pair: &Pair, name: &str, volunteer: &str) -> Running {
    let file = format!("{name}.toml");
    pair.agent_config(&file, name, name, volunteer);
    let config = pair.bench.path(&file);
    Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap(), "--act"]))
}

#[test]
fn two_jobs_share_interactive_hosts_by_credit() {
    if !wanted("two_jobs_share_interactive_hosts_by_credit") {
        return;
    }
    let hosts: Vec<&str> = ["d1", "d2"].into_iter().chain(INTERACTIVE).collect();
    let mut pair = Pair::new(&hosts);
    // A volunteer has a `/tmp` of its own.
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let long = FolderJob::new(&pair, shared.path(), "long", "d1", 100);
    let short = FolderJob::new(&pair, shared.path(), "short", "d2", 20);
    pair.start_aggregator();
    let dedicated = ["d1", "d2"].map(|name| agent(&pair, name, ""));
    let interactive = INTERACTIVE.map(|name| interactive_host(&pair, name, &[&long, &short]));
    until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == hosts.len());

    long.submit(&pair);
    until("the long job works on interactive hosts", || long.done_on_interactive_hosts() >= 2);
    assert!(long.status(&pair)["share"].is_null(), "it is alone");
    short.submit(&pair);
    until("the short job works on interactive hosts", || short.done_on_interactive_hosts() >= 1);
    // The account that operators see.
    until("both have their shares", || {
        [&long, &short].iter().all(|job| job.status(&pair)["share"]["wanted"].as_u64().is_some())
    });
    let list = text(&pair.ask(&["job", "list"]).stdout);
    assert!(list.contains("SHARE") && list.contains(" of "), "{list}");
    let explained = text(&pair.ask(&["explain", "long"]).stdout);
    assert!(explained.contains("share now: ") && explained.contains("host-seconds"), "{explained}");
    println!("{list}{explained}");

    short.hurry();
    until("the short job is complete", || short.status(&pair)["phase"] == "completed");
    assert_eq!(long.status(&pair)["phase"], "running");
    // What the short job had is for the long one again.
    until("the long job is alone again", || long.status(&pair)["share"].is_null());
    long.hurry();
    until("the long job is complete", || long.status(&pair)["phase"] == "completed");
    for job in [&long, &short] {
        let done = job.done();
        println!("{}: {done:?}", job.name);
        assert_eq!(done.values().sum::<usize>(), job.tasks, "{}: every task once, {done:?}", job.name);
    }
    drop((dedicated, interactive));
}
