//! The engine against tools that are shell scripts: they show a queue and nodes from files, and keep what they are told.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use gleaner_types::id::HostId;
use serde_json::json;

use super::options::SlurmOptions;
use super::session::{Look, Session};
use super::*;

mod gaps;

/// A cluster of files in a folder.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        let folder = fake.0.path().display();
        for (name, script) in [
            ("squeue", format!("case \"$*\" in *R,CF,S*) cat {folder}/running;; *) cat {folder}/queue;; esac")),
            (
                "sinfo",
                format!("case \"$*\" in *-p*) cat {folder}/nodes;; *) cat {folder}/nodes {folder}/others;; esac"),
            ),
            (
                "scontrol",
                format!(
                    "[ \"$1\" = show ] && exec cat {folder}/reservations\n[ -e {folder}/broken ] && {{ echo 'slurm_load: Unable to contact' >&2; exit 1; }}\necho \"$*\" >> {folder}/told"
                ),
            ),
        ] {
            let file = fake.0.path().join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fake.nodes("d1|mixed|0/2/0/2|(null)|none\ni1|drained|0/2/0/2|(null)|gleaner: not harvested now\ni2|idle|0/2/0/2|(null)|none\n");
        fs::write(fake.path("others"), "").unwrap();
        fake.queue("");
        fake
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn nodes(&self, text: &str) {
        fs::write(self.path("nodes"), text).unwrap();
    }

    fn queue(&self, text: &str) {
        fs::write(self.path("queue"), text).unwrap();
    }

    /// What `scontrol` was told since the last call.
    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.path("told")).unwrap_or_default();
        _ = fs::remove_file(self.path("told"));
        told.lines().map(str::to_owned).collect()
    }

    fn options(&self) -> SlurmOptions {
        let options = json!({ "partition": "all", "tools": self.0.path(), "empty_s": 30.0 });
        serde_json::from_value(options).unwrap()
    }

    fn session(&self) -> Session {
        Session::open(&JobId::new("job").unwrap(), self.options(), &[host("d1")], &self.path("jobs/job")).unwrap()
    }
}

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn slots(names: &[&str]) -> BTreeMap<HostId, u32> {
    names.iter().map(|name| (host(name), 2)).collect()
}

async fn look(session: &mut Session, names: &[&str], now_s: f64) -> Look {
    let look = session.look(&slots(names), now_s).await.unwrap();
    session.said(&look.progress);
    look
}

/// Two arrays of two users, both waiting with all their tasks.
const TWO: &str = "1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n2|0-9%3|PD|bob|1|N/A|N/A|7||JobArrayTaskLimit|(null)\n";

#[test]
fn every_wrong_option_is_named() {
    let options = json!({
        "partition": "a,b", "empty_s": 0.0, "weights": { "bob": 0.0, "a/eve": 1.0 }, "nodes": { "h1": "-x", "h2": "n", "h3": "n" },
        "tools": "bin", "conf": "slurm.conf", "vacate_s": -1.0, "reservations": { "file": "leases.csv" },
    });
    let mut problems = Problems::default();
    options::check(&options, &mut problems);
    let said = problems.none().unwrap_err().to_string();
    for part in [
        "slurm.partition: is \"a,b\"",
        "slurm.empty_s: is 0",
        "slurm.weights: gives \"bob\" the weight 0; it must be 0.01 to 100",
        "slurm.weights: has \"a/eve\", and there is no group \"a\"",
        "slurm.nodes.h1: is \"-x\"",
        "slurm.nodes.h3: \"n\" is another host's too",
        "slurm.tools: there is no bin/squeue",
        "slurm.conf: \"slurm.conf\" is not an absolute path",
        "slurm.vacate_s: is -1.0; it must be 0 to 3600",
        "slurm.reservations.file: \"leases.csv\" is not an absolute path of a file",
    ] {
        assert!(said.contains(part), "{part}\nnot in\n{said}");
    }
    let mut problems = Problems::default();
    options::check(&json!({ "partition": "p", "order": "random" }), &mut problems);
    assert!(problems.none().unwrap_err().to_string().contains("slurm.order: unknown variant `random`"));
}

#[tokio::test]
async fn nodes_are_resumed_and_drained_and_others_drains_are_left() {
    let fake = Fake::new();
    let mut session = fake.session();
    look(&mut session, &["d1"], 0.0).await;
    assert!(fake.told().is_empty(), "i1 and i2 were never wanted");
    look(&mut session, &["d1", "i1", "i2"], 2.0).await;
    assert_eq!(fake.told(), ["update NodeName=i1 State=RESUME"]);
    look(&mut session, &["d1"], 4.0).await;
    let drain = "update NodeName=i2 State=DRAIN Reason=gleaner: not harvested now";
    assert_eq!(fake.told(), [drain], "i1 is drained still");
    // A restart knows which nodes it had.
    let mut session = fake.session();
    look(&mut session, &["d1"], 6.0).await;
    assert_eq!(fake.told(), [drain]);
    fake.nodes("d1|mixed|0/2/0/2|(null)|none\ni1|drained|0/2/0/2|(null)|bad disk\n");
    let seen = look(&mut session, &["d1", "i1"], 8.0).await;
    assert!(fake.told().is_empty());
    assert_eq!(seen.trouble.as_deref(), Some("node i1 was drained by somebody else"));
    let seen = look(&mut session, &["d1", "i3"], 8.0).await;
    assert_eq!(seen.trouble.as_deref(), Some("partition all has no node i3"));
}

#[tokio::test]
async fn arrays_are_bound_by_credit_and_have_their_own_bounds_back() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue(TWO);
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_000.0).await;
    // Bob's bound leaves the other five to Alice.
    let told = fake.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("update JobId=1 Nice=0"), "{told:?}");
    assert!(told[0].ends_with(" ArrayTaskThrottle=5"), "{told:?}");
    // Slurm did it, and no more is to be said.
    fake.queue(&TWO.replace("0-19", "0-19%5"));
    look(&mut session, &["d1"], 2_002.0).await;
    assert!(fake.told().is_empty());
    // What an aggregator set before it was killed is not taken for what Alice wants.
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_004.0).await;
    assert!(fake.told().is_empty());
    session.give_back().await.unwrap();
    assert_eq!(fake.told(), ["update JobId=1 Nice=0 ArrayTaskThrottle=0"]);
    // A user's new bound is the user's.
    fake.queue(&TWO.replace("0-19", "0-19%2"));
    look(&mut session, &["d1"], 2_006.0).await;
    assert!(fake.told().is_empty(), "2 and 3 of 8 CPUs: nobody has to be bound");
}

#[tokio::test]
async fn cpus_that_only_bounds_keep_free_are_given_away() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n2|0-9|PD|bob|1|N/A|N/A|0||None|(null)\n");
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_000.0).await;
    let told = fake.told();
    // Bob's array would be done first.
    assert_eq!(told, ["update JobId=2 Nice=0 ArrayTaskThrottle=8", "update JobId=1 Nice=1000000 ArrayTaskThrottle=1"]);
    // His tasks fit on no node: they need what the free CPUs' memory is too little for.
    fake.nodes("d1|mixed|1/7/0/8|(null)|none\n");
    fake.queue(
        "1|0|R|alice|1|2001|N/A|0|d1|None|(null)\n1|1-19%1|PD|alice|1|N/A|N/A|1000000||JobArrayTaskLimit|(null)\n\
         2|0-9%8|PD|bob|1|N/A|N/A|0||Resources|(null)\n",
    );
    let mut told = Vec::new();
    for look_number in 1..=4 {
        told = fake.told();
        look(&mut session, &["d1"], 2_000.0 + 2.0 * f64::from(look_number)).await;
    }
    told.extend(fake.told());
    // One stays for a task of Bob's, should one fit.
    assert!(told.iter().any(|told| told == "update JobId=1 Nice=0 ArrayTaskThrottle=7"), "{told:?}");
}

#[tokio::test]
async fn what_waits_for_something_else_keeps_no_cpus_free() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n2|0-9|PD|bob|1|N/A|N/A|0||Dependency|(null)\n");
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_000.0).await;
    let told = fake.told();
    assert!(told.iter().any(|told| told.contains("JobId=1 ") && told.ends_with("ArrayTaskThrottle=8")), "{told:?}");
    // Nor is anything bound while there is no node.
    fake.nodes("d1|down*|0/0/8/8|(null)|Not responding\n");
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n");
    look(&mut session, &["d1"], 2_002.0).await;
    assert!(fake.told().is_empty());
}

#[tokio::test]
async fn a_partition_is_one_jobs() {
    use crate::engine::local::link::TaskLink;
    use gleaner_types::engine::{EngineName, EngineOptions, EngineSpec};
    use gleaner_types::job::{ClusterSpec, DedicatedHost, EngineEnd, Goal, JobSpec, Prices};
    use gleaner_types::units::Bytes;

    let fake = Fake::new();
    let (reports, mut received) = tokio::sync::mpsc::channel(64);
    let tasks = TaskLink::new(host("d1"), fake.path("jobs"));
    let mut engine = SlurmEngine::open(&Setting { host: host("d1"), reports, tasks });
    let options = json!({ "partition": "all", "tools": fake.0.path() });
    let spec = |name: &str| JobSpec {
        id: JobId::new(name).unwrap(),
        engine: EngineSpec { name: EngineName::of("slurm"), options: EngineOptions::new(&options).unwrap() },
        workers: Workers::Hosts(ClusterSpec {
            dedicated: vec![DedicatedHost { host: host("d1"), disk: 1.0 }],
            max_volunteers: None,
            max_slots_per_host: None,
            weight: 1.0,
        }),
        goal: Goal::Cost { budget: None },
        prices: Prices::default(),
        memory_per_slot: Bytes::from_mib(1),
        set_up_s: 0.0,
        power: None,
        user: None,
    };
    let (first, second) = (spec("first"), spec("second"));
    let job = |spec| Job { spec, folder: fake.0.path(), epoch: 1 };
    engine.set_slots(&job(&first), slots(&["d1"]));
    let mut problems = Problems::default();
    engine.check(&options, &mut problems);
    assert_eq!(problems.none().unwrap_err().to_string(), "slurm.partition: all is job first's now");
    engine.set_slots(&job(&second), slots(&["d1"]));
    loop {
        if let crate::engine::EngineReport::Ended { job, end, .. } = received.recv().await.unwrap() {
            assert_eq!(end, EngineEnd::Broken { reason: "partition all is job first's now".into() });
            assert_eq!(job, second.id);
            break;
        }
    }
    for stopped in engine.stop() {
        stopped.await.unwrap();
    }
}

#[tokio::test]
async fn what_slurm_did_not_do_is_tried_again_and_not_taken_for_the_users_wish() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue(TWO);
    let mut session = fake.session();
    fs::write(fake.path("broken"), "").unwrap();
    let seen = look(&mut session, &["d1"], 2_000.0).await;
    assert!(seen.trouble.unwrap().contains("Unable to contact"));
    // Slurm's way to say that it has changed all tasks that have not ended.
    let script = "#!/bin/sh\nprintf '1_1: Job has already finished\\n1_2-19: No error\\n' >&2\nexit 1\n";
    let usual = fs::read(fake.path("scontrol")).unwrap();
    fs::write(fake.path("scontrol"), script).unwrap();
    assert_eq!(look(&mut session, &["d1"], 2_003.0).await.trouble, None);
    fs::write(fake.path("scontrol"), usual).unwrap();
    fs::remove_file(fake.path("broken")).unwrap();
    look(&mut session, &["d1"], 2_004.0).await;
    assert!(fake.told()[0].ends_with("ArrayTaskThrottle=5"));
    // Nor is it forgotten what has to be given back while Slurm does not answer.
    fs::write(fake.path("broken"), "").unwrap();
    assert!(session.give_back().await.is_err());
    fs::remove_file(fake.path("broken")).unwrap();
    // The next job of the partition gives it back, if need be.
    let mut next =
        Session::open(&JobId::new("next").unwrap(), fake.options(), &[host("d1")], &fake.path("jobs/next")).unwrap();
    next.give_back().await.unwrap();
    assert!(fake.told()[0].ends_with("ArrayTaskThrottle=0"));
}

#[tokio::test]
async fn an_array_that_goes_elsewhere_has_its_bound_back() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue(TWO);
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_000.0).await;
    assert!(fake.told()[0].ends_with("ArrayTaskThrottle=5"));
    fake.queue(&TWO[TWO.find("2|").unwrap()..]);
    look(&mut session, &["d1"], 2_002.0).await;
    assert_eq!(fake.told(), ["update JobId=1 Nice=0 ArrayTaskThrottle=0"]);
    look(&mut session, &["d1"], 2_004.0).await;
    assert!(fake.told().is_empty());
}

#[tokio::test]
async fn another_job_of_the_same_name_counts_anew() {
    let fake = Fake::new();
    fake.queue(TWO);
    let mut session = fake.session();
    look(&mut session, &["d1"], 2_000.0).await;
    fake.queue("");
    for now_s in [2_002.0, 2_040.0] {
        look(&mut session, &["d1"], now_s).await;
    }
    session.leave().await.unwrap();
    // It has ended, and what was kept of it is gone.
    fs::remove_dir_all(fake.path("jobs/job")).unwrap();
    fake.queue("5|0-3|PD|alice|1|N/A|N/A|0||None|(null)\n");
    let mut session = fake.session();
    let seen = look(&mut session, &["d1"], 3_000.0).await.progress;
    assert_eq!((seen.tasks_total, seen.fraction_done.value()), (4, 0.0));
}

#[tokio::test]
async fn nothing_is_bound_without_a_record() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    fake.queue(TWO);
    fs::write(fake.path("jobs"), "no folder").unwrap();
    let mut session = Session::open(&JobId::new("job").unwrap(), fake.options(), &[host("d1")], &fake.path("jobs/job"));
    assert!(session.is_err(), "and an unreadable one begins nothing");
    fs::remove_file(fake.path("jobs")).unwrap();
    session = Session::open(&JobId::new("job").unwrap(), fake.options(), &[host("d1")], &fake.path("jobs/job"));
    fs::remove_dir_all(fake.path("jobs")).unwrap();
    fs::write(fake.path("jobs"), "no folder").unwrap();
    let seen = look(&mut session.unwrap(), &["d1"], 2_000.0).await;
    assert!(seen.trouble.unwrap().ends_with("cannot be written, and no array is bound anew without it"));
    assert!(fake.told().is_empty());
}

#[tokio::test]
async fn a_node_that_is_down_is_left_to_its_operator() {
    let fake = Fake::new();
    let mut session = fake.session();
    look(&mut session, &["d1", "i2"], 0.0).await;
    fake.nodes("d1|idle|0/2/0/2|(null)|none\ni2|down|0/0/2/2|(null)|fan broken\n");
    look(&mut session, &["d1"], 2.0).await;
    assert!(fake.told().is_empty());
}

#[tokio::test]
async fn progress_counts_tasks_by_their_work_and_never_becomes_less() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/8/0/8|(null)|none\n");
    // What ended before is no part of it.
    fake.queue("9|3|CD|carol|1|900|990|0|d1|None|(null)\n3|0-3|PD|alice|2|N/A|N/A|0||None|(null)\n");
    let mut session = fake.session();
    let seen = look(&mut session, &["d1"], 2_000.0).await.progress;
    assert_eq!((seen.tasks_total, seen.tasks_done, seen.fraction_done.value()), (4, 0, 0.0));
    let half = "3|3|PD|alice|2|N/A|N/A|0||None|(null)\n3|2|R|alice|2|2010|N/A|0|d1|None|(null)\n\
                3|0|CD|alice|2|2000|2010|0|d1|None|(null)\n3|1|F|alice|2|2000|2010|0|d1|None|(null)\n";
    fake.queue(half);
    let seen = look(&mut session, &["d1"], 2_015.0).await.progress;
    assert_eq!((seen.tasks_total, seen.tasks_done, seen.tasks_failed, seen.tasks_running), (4, 1, 1, 1));
    assert_eq!(seen.mean_task_s, Some(10.0));
    assert!((seen.fraction_done.value() - 2.5 / 4.0).abs() < 1e-9, "{seen:?}");
    assert!((seen.workers[&host("d1")].done.value() - 0.25).abs() < 1e-9, "{seen:?}");
    // A new array makes more work; what was done stays done.
    fake.queue(&format!("{half}4|0-39|PD|bob|1|N/A|N/A|0||None|(null)\n"));
    let more = look(&mut session, &["d1"], 2_017.0).await.progress;
    assert_eq!((more.tasks_total, more.fraction_done), (44, seen.fraction_done));
    // It is over when nothing was left for as long as was said.
    fake.queue("3|2|CD|alice|2|2010|2018|0|d1|None|(null)\n3|3|CD|alice|2|2010|2018|0|d1|None|(null)\n");
    assert!(!look(&mut session, &["d1"], 2_020.0).await.is_over);
    assert!(!look(&mut session, &["d1"], 2_040.0).await.is_over);
    let last = look(&mut session, &["d1"], 2_050.0).await;
    assert!(last.is_over);
    assert_eq!((last.progress.fraction_done.value(), last.progress.tasks_total), (1.0, 44));
}

#[tokio::test]
async fn a_tool_that_complains_or_says_nonsense_is_quoted() {
    let fake = Fake::new();
    fake.queue("what?\n");
    let mut session = fake.session();
    let error = session.look(&slots(&["d1"]), 1.0).await.unwrap_err();
    assert_eq!(error.to_string(), "squeue: line 1: has 1 fields instead of 11");
    let script = "#!/bin/sh\necho 'squeue: error: Invalid partition' >&2\nexit 1\n";
    fs::write(fake.path("squeue"), script).unwrap();
    let error = session.look(&slots(&["d1"]), 1.0).await.unwrap_err();
    assert!(error.to_string().ends_with("squeue: error: Invalid partition"), "{error}");
}

/// What Slurm 22.05.8 said of arrays that ask for features while the nodes that have them were drained.
const FEATURED_NODES: &str = "d1|idle|0/4/0/4|(null)|none\ni1|drained*|0/0/4/4|gpu,rack1|gleaner: not harvested now\n\
    i2|idle|0/4/0/4|rack2|none\ni3|drained*|0/0/4/4|(null)|gleaner: not harvested now\n";
const FEATURED_QUEUE: &str = "2|1-5|PD|games|1|N/A|N/A|0||ReqNodeNotAvail, UnavailableNodes:i[1,3]|rack1&gpu\n\
    1|1-5|PD|games|1|N/A|N/A|0||ReqNodeNotAvail, UnavailableNodes:i[1,3]|gpu\n";

#[tokio::test]
async fn hosts_of_nodes_that_no_array_can_use_are_named() {
    let fake = Fake::new();
    fake.nodes(FEATURED_NODES);
    fake.queue(FEATURED_QUEUE);
    let mut session = fake.session();
    let seen = look(&mut session, &["d1", "i2"], 2_000.0).await;
    assert_eq!(seen.progress.unusable, [host("i2"), host("i3")].into(), "d1 is dedicated");
    // They hold no CPUs that others could use, and are not bound: nothing of theirs can begin there.
    let told = fake.told();
    assert!(told.is_empty(), "{told:?}");
    let either = "3|5|PD|games|1|2027|NONE|0||Resources|rack2|rack1\n3|1|R|games|1|1990|2027|0|i2|None|rack2|rack1\n";
    fake.queue(&format!("{FEATURED_QUEUE}{either}"));
    let seen = look(&mut session, &["d1", "i2"], 2_002.0).await;
    assert_eq!(seen.progress.unusable, [host("i3")].into());
    // What is not understood runs anywhere, and what waits for another job asks for nothing.
    fake.queue(&format!("{FEATURED_QUEUE}6|1-5|PD|games|1|N/A|N/A|0||Priority|gpu*1\n"));
    assert!(look(&mut session, &["d1", "i2"], 2_004.0).await.progress.unusable.is_empty());
    fake.queue(&format!("{FEATURED_QUEUE}6|1-5|PD|games|1|N/A|N/A|0||Dependency|rack2\n"));
    assert_eq!(look(&mut session, &["d1"], 2_006.0).await.progress.unusable, [host("i2"), host("i3")].into());
    fake.queue("");
    assert!(look(&mut session, &["d1"], 2_008.0).await.progress.unusable.is_empty());
}

/// An array that can use one node leaves the CPUs of the others to those that can use them.
#[tokio::test]
async fn an_array_claims_no_more_than_its_nodes_have() {
    let fake = Fake::new();
    fake.nodes("d1|idle|0/4/0/4|(null)|none\ni2|idle|0/4/0/4|rack2|none\n");
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n2|0-9|PD|bob|1|N/A|N/A|0||None|rack2\n");
    let mut session = fake.session();
    look(&mut session, &["d1", "i2"], 2_000.0).await;
    let told = fake.told();
    assert!(told.iter().any(|told| told == "update JobId=1 Nice=0 ArrayTaskThrottle=4"), "{told:?}");
    assert!(!told.iter().any(|told| told.contains("JobId=2")), "{told:?}");
}
