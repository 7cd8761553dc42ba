//! The queue of a real Slurm cluster: munged, slurmctld and four slurmd of Debian's packages under a real aggregator and four
//! real agents. Three users' arrays share nodes, first as Slurm starts them by itself, then by credit; then two interactive
//! hosts are harvested, one is held, and one slurmd is killed.
//!
//! Agents on one machine take each other's volunteers for foreground, so the tasks sleep.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::pair::Pair;
use gleaner_test_support::skip;

const DEDICATED: [&str; 2] = ["d1", "d2"];
const INTERACTIVE: [&str; 2] = ["i1", "i2"];
/// CPUs of each node.
const CPUS: u32 = 4;

/// An array of one user: tasks that sleep for some seconds, and say so at their end.
struct Submitted {
    user: &'static str,
    tasks: usize,
    id: u64,
    at: f64,
}

/// A cluster in a folder. All its daemons are children of this process.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Running>,
}

fn now_s() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

impl Slurm {
    /// # Errors
    /// What is missing on this machine.
    fn missing() -> Option<&'static str> {
        let is_root = text(&Command::new("id").arg("-u").output().unwrap().stdout).trim() == "0";
        if !is_root {
            return Some("Slurm's daemons take root");
        }
        let programs =
            ["/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch", "/usr/bin/squeue"];
        programs.into_iter().find(|program| !Path::new(program).exists())
    }

    /// Starts the controller and the nodes of dedicated hosts.
    fn start() -> Self {
        // Its users must be able to come here, and a volunteer has a /tmp of its own.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = folder.path().to_owned();
        for (name, mode) in [("", 0o755), ("munge", 0o755), ("state", 0o755), ("spool", 0o755), ("out", 0o1777)] {
            let folder = dir.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut slurm = Self { folder, daemons: Vec::new() };
        let key = dir.join("munge/key");
        fs::write(&key, "a key that is no secret, of thirty-two bytes or more").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(dir.join("slurm.conf"), slurm.settings()).unwrap();
        let own = |name: &str| format!("{}/munge/{name}", dir.display());
        slurm.daemon(
            "/usr/sbin/munged",
            &[
                "-F",
                &format!("--socket={}", own("socket")),
                &format!("--key-file={}", own("key")),
                &format!("--pid-file={}", own("pid")),
                &format!("--seed-file={}", own("seed")),
                &format!("--log-file={}", own("log")),
            ],
        );
        until("munged is there", || dir.join("munge/socket").exists());
        slurm.daemon("/usr/sbin/slurmctld", &["-D", "-i"]);
        // Tasks outlive their slurmd, unless it has a namespace of its own.
        let own = ["--pid", "--fork", "--kill-child", "--mount-proc", "/usr/sbin/slurmd", "-D", "-N"];
        for node in DEDICATED {
            slurm.daemon("/usr/bin/unshare", &[&own[..], &[node]].concat());
        }
        until("the dedicated nodes are there", || {
            slurm.ask("sinfo", &["-h", "-N", "-o", "%N %t"]).lines().filter(|line| line.ends_with(" idle")).count() == 2
        });
        slurm
    }

    /// As the docs have it, and quick.
    fn settings(&self) -> String {
        let dir = self.folder.path().display();
        let listeners = [(); 5].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, ports @ ..] = listeners.map(|listener| listener.local_addr().unwrap().port());
        let host = text(&Command::new("uname").arg("-n").output().unwrap().stdout);
        let host = host.trim().split('.').next().unwrap_or_default().to_owned();
        let names: Vec<&str> = DEDICATED.into_iter().chain(INTERACTIVE).collect();
        let nodes: String = names
            .iter()
            .zip(ports)
            .map(|(name, port)| {
                format!("NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000\n")
            })
            .collect();
        format!(
            "ClusterName=bed\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={port}\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket,cred_expire=15\nCredType=cred/munge\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool/%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/%n.pid\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/%n.log\n\
             SlurmdParameters=config_overrides\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nMpiDefault=none\nSwitchType=switch/none\nReturnToService=2\n\
             SlurmdTimeout=20\nMessageTimeout=5\nTCPTimeout=2\nKillWait=2\n\
             PriorityType=priority/multifactor\nPriorityWeightPartition=1000000\nSchedulerType=sched/backfill\n\
             SchedulerParameters=sched_interval=1,sched_min_interval=2,batch_sched_delay=0,default_queue_depth=1000,\
             bf_interval=1,bf_max_job_test=1000\n{nodes}PartitionName=all Nodes={} Default=YES MaxTime=INFINITE State=UP\n",
            names.join(",")
        )
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        self.daemons.push(Running::start(command));
    }

    fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("/usr/bin/".to_owned() + program);
        let output = command.args(arguments).env("SLURM_CONF", self.conf()).current_dir("/").output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Submits an array as a user would.
    fn submit(&self, user: &'static str, tasks: usize, task_s: f64, more: &[&str]) -> Submitted {
        let out = self.folder.path().join("out");
        let script = format!(
            "sleep {task_s}; echo $(date +%s.%N) $SLURMD_NODENAME >> {}/$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID",
            out.display()
        );
        let (array, wrap) = (format!("--array=1-{tasks}"), format!("--wrap={script}"));
        let uid = format!("--uid={user}");
        let arguments = ["--parsable", &uid, &array, "--output=/dev/null", "--requeue", "--chdir=/", &wrap];
        let id = self.ask("sbatch", &[&arguments[..], more].concat());
        Submitted { user, tasks, id: id.trim().parse().unwrap(), at: now_s() }
    }

    /// The tasks of an array that have ended: when, and on which node. One may have ended on a host that was lost before Slurm was
    /// told, and once more elsewhere.
    fn ended(&self, array: &Submitted) -> Vec<(f64, String)> {
        let mut ended = Vec::new();
        for task in 1..=array.tasks {
            let file = self.folder.path().join(format!("out/{}.{task}", array.id));
            let said = fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
            if let Some(((at, node), before)) = lines.split_last() {
                let lost = before.iter().all(|(_, node)| INTERACTIVE.contains(node));
                assert!(lost, "task {task} of {} ended twice: {said}", array.user);
                ended.push((at.parse().unwrap(), (*node).to_owned()));
            }
        }
        ended
    }

    fn is_done(&self, array: &Submitted) -> bool {
        self.ended(array).len() == array.tasks
    }

    /// Seconds from its submission to its last task.
    fn took_s(&self, array: &Submitted) -> f64 {
        self.ended(array).iter().map(|(at, _)| at - array.at).fold(0.0, f64::max)
    }

    /// What users' arrays show of Gleaner: bounds and nice values, while tasks wait.
    fn bounds(&self) -> String {
        self.ask("squeue", &["-h", "-t", "PD", "-o", "%F %K %y"])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // The nodes first; each takes its tasks along.
        self.daemons.iter().rev().for_each(|daemon| daemon.kill(daemon.0.id()));
    }
}

fn agent(pair: &Pair, slurm: &Slurm, name: &str) -> Running {
    let file = format!("{name}.toml");
    let is_interactive = INTERACTIVE.contains(&name);
    let conf = format!("SLURM_CONF={}", slurm.conf().display());
    let words = ["/usr/bin/env", &conf, "/usr/sbin/slurmd", "-D", "-N", name];
    let command = if is_interactive { format!("command = {words:?}\nuser = 'root'\n") } else { String::new() };
    pair.agent_config(&file, name, name, &command);
    let config = pair.bench.path(&file);
    let mut arguments = vec!["daemon", "agent", "--config", config.to_str().unwrap()];
    arguments.extend(is_interactive.then_some("--act"));
    Running::start(pair.bench.gleaner(&arguments))
}

/// Submits the job of the queue.
fn watch_queue(pair: &Pair, slurm: &Slurm, name: &str, order: &str, volunteers: usize) {
    let dedicated: String = DEDICATED.iter().map(|host| format!("[[dedicated]]\nhost = '{host}'\n")).collect();
    let job = format!(
        "name = '{name}'\nmax_volunteers = {volunteers}\nmemory_per_slot_mib = 16\n[goal.cost]\n\
         [prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
         [slurm]\npartition = 'all'\norder = '{order}'\nempty_s = 2.0\nconf = {:?}\n{dedicated}",
        slurm.conf()
    );
    pair.bench.write(&format!("{name}.toml"), &job);
    let submitted = pair.ask(&["job", "submit-cluster", &format!("{name}.toml")]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
}

/// Waits until a job is over: the queue has been empty for two seconds.
fn completes(pair: &Pair, name: &str) {
    let began = Instant::now();
    loop {
        let job = pair.job(name);
        let phase = job["status"]["phase"].as_str().unwrap_or("failed");
        if phase == "completed" {
            return;
        }
        let goes_on = phase != "failed" && began.elapsed().as_secs() < 60;
        assert!(goes_on, "{job}\n{}", pair.events());
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
}

/// Three users' arrays on the dedicated nodes: the longest was submitted first. How long each took, by user.
fn shared(pair: &Pair, slurm: &Slurm, order: &str) -> BTreeMap<&'static str, f64> {
    let arrays =
        [slurm.submit("daemon", 40, 4.0, &[]), slurm.submit("games", 8, 4.0, &[]), slurm.submit("nobody", 8, 2.0, &[])];
    watch_queue(pair, slurm, order, order, 0);
    let began = Instant::now();
    let mut bounds = String::new();
    until("all arrays are done", || {
        let now = slurm.bounds();
        if now.contains('%') && bounds.is_empty() {
            bounds = now;
        }
        arrays.iter().all(|array| slurm.is_done(array))
    });
    completes(pair, order);
    let took: BTreeMap<&str, f64> = arrays.iter().map(|array| (array.user, slurm.took_s(array))).collect();
    println!("order {order}: {took:?}; all after {:.0} s", began.elapsed().as_secs_f64());
    assert_eq!(order == "credit", bounds.contains('%'), "{bounds}");
    took
}

#[test]
fn arrays_of_three_users_share_a_real_slurm_cluster_by_credit() {
    if !wanted("arrays_of_three_users_share_a_real_slurm_cluster_by_credit") {
        return;
    }
    if let Some(missing) = Slurm::missing() {
        skip!("a real Slurm cluster: {missing} is missing");
    }
    if !bench::cgroups_writable("a real Slurm cluster") {
        return;
    }
    let hosts: Vec<&str> = DEDICATED.into_iter().chain(INTERACTIVE).collect();
    let mut pair = Pair::new(&hosts);
    let slurm = Slurm::start();
    pair.start_aggregator();
    let _agents: Vec<Running> = hosts.iter().map(|name| agent(&pair, &slurm, name)).collect();
    until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == hosts.len());

    // In the same run, on the same nodes: as Slurm does it, and by credit.
    let alone = shared(&pair, &slurm, "slurm");
    let credit = shared(&pair, &slurm, "credit");
    let mean = |took: &BTreeMap<&str, f64>| took.values().sum::<f64>() / 3.0;
    println!("mean completion: {:.1} s by Slurm alone, {:.1} s by credit", mean(&alone), mean(&credit));
    assert!(mean(&credit) < 0.9 * mean(&alone));
    // It can lose what the others have, two of three parts of the time that they ran, and a task.
    let longest = credit["daemon"];
    assert!(longest < 1.5 * alone["daemon"] + 4.0, "{longest} s");

    harvested(&pair, &slurm);
}

/// CPU that interactive hosts expect to have free, in percent of a CPU: that of the one which has most.
fn most_free(pair: &Pair) -> f64 {
    let hosts = pair.hosts();
    let acting = hosts.iter().filter(|host| INTERACTIVE.iter().any(|name| host["report"]["host"] == **name));
    let free = acting.map(|host| host["report"]["residual"]["cpu"]["value"]["expected"].as_f64().unwrap());
    free.reduce(f64::max).unwrap()
}

/// Interactive hosts are resumed, held and lost; every task ends once, and users' own bounds are as they were.
fn harvested(pair: &Pair, slurm: &Slurm) {
    let arrays = [slurm.submit("daemon", 100, 2.0, &["--nice=30"]), slurm.submit("games", 60, 2.0, &[])];
    slurm.ask("scontrol", &["update", &format!("JobId={}", arrays[1].id), "ArrayTaskThrottle=5"]);
    watch_queue(pair, slurm, "harvest", "credit", 2);
    let on = |node: &str| arrays.iter().flat_map(|array| slurm.ended(array)).filter(|(_, on)| on == node).count();
    let is_done = || arrays.iter().all(|array| slurm.is_done(array));
    until("an interactive host has done tasks, or none are left", || {
        INTERACTIVE.iter().any(|node| on(node) > 0) || is_done()
    });
    // Those of the jobs before it, which may have none, say the same.
    let is_without =
        |line: &str| line.contains("\"job\":\"harvest\"") && line.contains("no volunteer to be had: done in");
    if INTERACTIVE.iter().all(|node| on(node) == 0) && pair.events().lines().any(is_without) {
        // Whatever else runs on this machine is these hosts' foreground, and may leave them nothing.
        let free = most_free(pair);
        assert!(free < 25.0, "nobody offered a host, although {free:.1} % of a CPU is free: {}", pair.events());
        gleaner_test_support::skipped!("harvesting nodes of a real Slurm cluster: others use this machine's CPUs");
        return;
    }
    let first = INTERACTIVE.into_iter().find(|node| on(node) > 0).unwrap();
    let second = INTERACTIVE.into_iter().find(|node| *node != first).unwrap();

    // A held host: its volunteer ends, its tasks are run again, and the other takes its place.
    assert!(pair.ask(&["host", "hold", first, "--for", "1h"]).status.success());
    until("its node drains or is gone", || {
        let state = slurm.ask("sinfo", &["-h", "-N", "-n", first, "-o", "%T"]);
        !["idle", "mixed", "allocated"].contains(&state.trim())
    });
    until("the other has done tasks, or none are left", || on(second) > 0 || is_done());
    // A slurmd that is killed: its agent starts it again.
    let nodes = bench::processes(&["/usr/sbin/slurmd", "-N", second]);
    nodes.iter().for_each(|pid| bench::kill(*pid, "KILL"));
    until("all arrays are done", || arrays.iter().all(|array| slurm.is_done(array)));
    completes(pair, "harvest");
    assert!(pair.ask(&["host", "release", first]).status.success());
    let job = pair.job("harvest");
    println!("{}", job["status"]["progress"]);
    assert_eq!(job["status"]["progress"]["tasks_total"], 160);
    for node in INTERACTIVE {
        let state = slurm.ask("sinfo", &["-h", "-N", "-n", node, "-o", "%T|%E"]);
        println!("{node}: {} tasks; {}", on(node), state.trim());
        let ours = state.contains("drain") && state.contains("gleaner: not harvested now");
        assert!(ours || on(node) == 0, "{node}: {state}");
    }
    // An aggregator that ends gives arrays back what they had.
    let left = slurm.submit("games", 30, 2.0, &["--nice=30"]);
    let other = slurm.submit("nobody", 30, 2.0, &[]);
    let own = format!("{} ", left.id);
    watch_queue(pair, slurm, "left", "credit", 0);
    until("an array is bound", || slurm.bounds().lines().any(|line| line.starts_with(&own) && line.contains('%')));
    assert!(pair.ask(&["job", "cancel", "left"]).status.success());
    until("it has no bound any more", || {
        let bounds = slurm.bounds();
        let line = bounds.lines().find(|line| line.starts_with(&own));
        line.is_none_or(|line| !line.contains('%') && line.ends_with(" 30"))
    });
    slurm.ask("scancel", &[&left.id.to_string(), &other.id.to_string()]);
}
