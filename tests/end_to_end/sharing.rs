//! Jobs on clusters share interactive hosts by credit, and by user: a real aggregator, real agents, the folder engine and its
//! workers as they ship.
//!
//! Agents on one machine take each other's volunteers for foreground, so the tasks mostly sleep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{Running, text, until};
use gleaner_test_support::pair::Pair;
use serde_json::Value;

use crate::access::as_nobody;

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

/// What `gleaner job list --json` says of all jobs, the newest first.
fn listed(pair: &Pair) -> Vec<Value> {
    serde_json::from_slice(&pair.ask(&["job", "list", "--json"]).stdout).unwrap_or_default()
}

/// What two users would have of the interactive hosts, by their weights and what they want: each has its part of all hosts,
/// dedicated ones included, and what one cannot use is the other's.
fn fair_of_two(dedicated: [f64; 2], wanted: [f64; 2], weights: [f64; 2]) -> [f64; 2] {
    let most = [0, 1].map(|user| dedicated[user] + wanted[user]);
    let all = dedicated[0] + dedicated[1] + INTERACTIVE.len() as f64;
    let first = (all * weights[0] / (weights[0] + weights[1])).max(all - most[1]).min(most[0]).max(dedicated[0]);
    [first - dedicated[0], (all - first).min(most[1]) - dedicated[1]]
}

#[test]
fn five_jobs_of_one_user_and_one_of_another_are_shared_by_user() {
    const TEST: &str = "five_jobs_of_one_user_and_one_of_another_are_shared_by_user";
    if !wanted(TEST) {
        return;
    }
    let names = ["r1", "r2", "r3", "r4", "r5", "n1"];
    let dedicated = ["d1", "d2", "d3", "d4", "d5", "d6"];
    let hosts: Vec<&str> = dedicated.into_iter().chain(INTERACTIVE).collect();
    let mut pair = Pair::new(&hosts);
    let config = pair.bench.path("aggregator.toml");
    let configured = std::fs::read_to_string(&config).unwrap();
    let more = "[operators]\nacting_users = ['65534']\n[sharing]\nusers = ['lab=1.5', 'lab/root=1']\n";
    std::fs::write(&config, format!("socket_mode = '0666'\n{configured}{more}")).unwrap();
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let job = |(name, host): (&'static str, &str)| FolderJob::new(&pair, shared.path(), name, host, 400);
    let jobs: Vec<FolderJob> = names.into_iter().zip(dedicated).map(job).collect();
    pair.start_aggregator();
    if !as_nobody(&pair, &["job", "list"]).is_some_and(|output| output.status.success()) {
        gleaner_test_support::skipped!("{TEST}: no other user can be taken on");
        return;
    }
    let all: Vec<&FolderJob> = jobs.iter().collect();
    let running: Vec<Running> = dedicated.iter().map(|name| agent(&pair, name, "")).collect();
    let interactive = INTERACTIVE.map(|name| interactive_host(&pair, name, &all));
    until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == hosts.len());

    jobs[..5].iter().for_each(|job| job.submit(&pair));
    let submitted = as_nobody(&pair, &["job", "submit-cluster", "n1.toml"]).unwrap();
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let user = |job: &Value| job["spec"]["user"].as_str().unwrap_or_default().to_owned();
    let others = user(&pair.job("n1")["status"]);
    assert!(listed(&pair).iter().filter(|job| user(job) == "root").count() == 5 && others != "root", "{others}");

    let mut seen = Vec::new();
    until("the shares are by user", || {
        seen = listed(&pair);
        if seen.len() != 6 || seen.iter().any(|job| job["share"].is_null()) {
            return false;
        }
        let of = |own: bool, what: &str| -> Vec<f64> {
            let mine = seen.iter().filter(|job| (user(job) == "root") == own);
            mine.filter_map(|job| job["share"][what].as_f64()).collect()
        };
        let sum = |own: bool, what: &str| of(own, what).iter().sum::<f64>();
        let wanted = [sum(true, "wanted"), sum(false, "wanted")];
        let expected = fair_of_two([5.0, 1.0], wanted, [1.5, 1.0]);
        let near = |a: f64, b: f64| (a - b).abs() < 0.01;
        // They are counted together when a job wants more or less; between, one may be newer than another.
        wanted[0] >= 2.0
            && wanted[1] >= 3.0
            && near(sum(true, "fair"), expected[0])
            && near(sum(false, "fair"), expected[1])
            && of(true, "user_fair").iter().all(|fair| near(*fair, expected[0]))
            && of(true, "user_jobs") == [5.0; 5]
            && of(false, "user_jobs") == [1.0]
    });
    let list = text(&pair.ask(&["job", "list"]).stdout);
    let explained = text(&pair.ask(&["explain", "r1"]).stdout);
    println!("{list}{explained}");
    assert!(list.contains("USER") && list.contains(&others), "{list}");
    assert!(explained.contains("(its user's 5 jobs together "), "{explained}");
    assert!(text(&pair.ask(&["job", "show", "n1"]).stdout).contains(&others));
    assert!(pair.events().lines().any(|line| line.contains("\"job_submitted\"") && line.contains(&others)));

    // A restart knows whose jobs they are.
    drop(pair.aggregator.take());
    pair.start_aggregator();
    assert_eq!(user(&pair.job("n1")["status"]), others);
    assert_eq!(listed(&pair).iter().filter(|job| user(job) == "root").count(), 5);
    drop((running, interactive));
}
