//! Nodes that users' leases have and will have, from a file and from Slurm.

use super::*;

/// Three tasks of 100 s have ended, one runs, and others wait.
const QUEUE: &str = "1|4-19|PD|alice|1|N/A|N/A|0||None|(null)\n1|3|R|alice|1|1900|N/A|0|d1|None|(null)\n\
    1|0|CD|alice|1|1800|1900|0|d1|None|(null)\n1|1|CD|alice|1|1800|1900|0|d1|None|(null)\n\
    1|2|CD|alice|1|1800|1900|0|d1|None|(null)\n";
const OPEN: &str = "d1|mixed|1/1/0/2|(null)|none\n";
const DRAINED: &str = "d1|draining|1/1/0/2|(null)|gleaner: leased, or soon to be: course\n";
const DRAIN: &str = "update NodeName=d1 State=DRAIN Reason=gleaner: leased, or soon to be: course";
const RESUME: &str = "update NodeName=d1 State=RESUME";

/// A session without bounds by credit.
fn session_of(fake: &Fake, reservations: Value) -> Session {
    let options = json!({ "partition": "all", "tools": fake.0.path(), "order": "slurm", "reservations": reservations });
    let options = serde_json::from_value(options).unwrap();
    Session::open(&JobId::new("job").unwrap(), options, &[host("d1")], &fake.path("jobs/job")).unwrap()
}

/// One that has seen the tasks end.
async fn filling(fake: &Fake, reservations: Value) -> Session {
    let mut session = session_of(fake, reservations);
    fake.nodes(OPEN);
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n");
    running(fake, "");
    look(&mut session, &["d1"], 1_800.0).await;
    fake.queue(QUEUE);
    running(fake, "1|3|1|1900|d1|(null)\n");
    look(&mut session, &["d1"], 1_950.0).await;
    assert!(fake.told().is_empty(), "140 s are left for tasks of 100");
    session
}

fn running(fake: &Fake, text: &str) {
    fs::write(fake.path("running"), text).unwrap();
}

#[tokio::test]
async fn a_node_is_drained_emptied_and_resumed_around_a_lease() {
    let fake = Fake::new();
    let file = fake.path("leases.csv");
    let leases = "lease,start_s,end_s,hosts\nearlier,100,200,d1\ncourse,2100,3000,d1\n";
    fs::write(&file, leases).unwrap();
    let mut session = filling(&fake, json!({ "file": file })).await;
    let seen = look(&mut session, &["d1"], 1_991.0).await;
    assert_eq!(fake.told(), [DRAIN], "99 s are left, but the task that runs ends in time");
    let shown = &seen.progress.leases;
    assert_eq!((shown.len(), shown[0].lease.as_str(), shown[0].begins.0, shown[0].tasks), (1, "course", 2_100_000, 1));
    assert_eq!(shown[0].stage, gleaner_types::job::ReservedStage::Draining);
    fake.nodes(DRAINED);
    running(&fake, "1|3|1|1900|d1|(null)\n1|5|1|1995|d1|(null)\n");
    look(&mut session, &["d1"], 1_996.0).await;
    assert_eq!(fake.told(), ["requeue Incomplete 1_5"], "it would be lost later, and more of it");
    running(&fake, "1|3|1|1900|d1|(null)\n");
    // Without leases nothing is run again, and nothing resumed.
    fs::write(&file, "lease,start_s,end_s,hosts\ncourse,2100,2100,d1\n").unwrap();
    for now_s in [2_090.0, 3_100.0] {
        let seen = look(&mut session, &["d1"], now_s).await;
        assert!(fake.told().is_empty());
        assert!(seen.trouble.unwrap().contains("line 2 (course).end_s: is 2100.0"));
        assert_eq!(seen.progress.leases.len(), 1);
    }
    fs::write(&file, leases).unwrap();
    let seen = look(&mut session, &["d1"], 2_090.0).await;
    assert_eq!((fake.told(), seen.trouble), (vec!["requeue Incomplete 1_3".to_owned()], None));
    assert_eq!(seen.progress.tasks_retried, 2);
    running(&fake, "");
    look(&mut session, &["d1"], 2_999.0).await;
    assert!(fake.told().is_empty());
    look(&mut session, &["d1"], 3_000.0).await;
    assert_eq!(fake.told(), [RESUME]);
    // A lease of hosts that are none of the partition's is said.
    fs::write(&file, format!("{leases}other,4000,5000,h7 h8\n")).unwrap();
    let seen = look(&mut session, &["d1"], 3_002.0).await;
    assert_eq!(seen.trouble.as_deref(), Some("leases name 2 that are no nodes of the partition: h7, h8"));
}

#[tokio::test]
async fn nothing_is_run_again_for_leases_that_overlap() {
    let fake = Fake::new();
    let file = fake.path("leases.csv");
    let leases = "lease,start_s,end_s,hosts\na,100,200,d1\nb,150,250,d1\ncourse,2100,3000,d1\nnext,3000,4000,d1\n";
    fs::write(&file, leases).unwrap();
    let mut session = filling(&fake, json!({ "file": file })).await;
    fs::write(&file, format!("{leases}other,2500,3500,d1\n")).unwrap();
    let seen = look(&mut session, &["d1"], 2_095.0).await;
    let why = "leases.csv: d1 has lease course until 3000 and lease other from 2500 on";
    assert!(seen.trouble.unwrap().contains(why));
    assert_eq!(fake.told(), [DRAIN], "what was known holds");
    fake.nodes(DRAINED);
    fs::write(&file, leases).unwrap();
    let seen = look(&mut session, &["d1"], 2_097.0).await;
    assert_eq!((fake.told(), seen.trouble), (vec!["requeue Incomplete 1_3".to_owned()], None));
}

#[tokio::test]
async fn what_is_leased_in_slurm_is_emptied_and_open_to_the_leases_users() {
    let fake = Fake::new();
    let reservation =
        "ReservationName=course StartTime=2100 EndTime=3000 Nodes=d[1-2] Flags=MAINT,IGNORE_JOBS,SPEC_NODES\n";
    fs::write(fake.path("reservations"), reservation).unwrap();
    let mut session = filling(&fake, json!("slurm")).await;
    look(&mut session, &["d1"], 1_991.0).await;
    assert_eq!(fake.told(), [DRAIN]);
    fake.nodes(DRAINED);
    running(&fake, "1|3|1|1900|d1|(null)\n2|1|1|1990|d1|course\n");
    look(&mut session, &["d1"], 2_091.0).await;
    assert_eq!(fake.told(), [RESUME, "requeue Incomplete 1_3"]);
    fake.nodes("d1|reserved|0/2/0/2|(null)|none\n");
    running(&fake, "2|1|1|1990|d1|course\n");
    look(&mut session, &["d1"], 2_500.0).await;
    assert!(fake.told().is_empty());
}

#[tokio::test]
async fn a_reservation_of_parts_of_nodes_of_several_partitions_is_left_to_slurm() {
    let fake = Fake::new();
    fs::write(fake.path("others"), "e1|idle|0/2/0/2|(null)|none\ne2|idle|0/2/0/2|(null)|none\n").unwrap();
    let reservation = |cpus: u32| {
        let text =
            format!("ReservationName=course StartTime=2100 EndTime=3000 Nodes=d1,e[1-2] Flags= TRES=cpu={cpus}\n");
        fs::write(fake.path("reservations"), text).unwrap();
    };
    reservation(3);
    let mut session = filling(&fake, json!("slurm")).await;
    let seen = look(&mut session, &["d1"], 1_991.0).await;
    assert!(fake.told().is_empty() && seen.progress.leases.is_empty() && seen.trouble.is_none(), "{:?}", seen.trouble);
    reservation(6);
    look(&mut session, &["d1"], 1_993.0).await;
    assert_eq!(fake.told(), [DRAIN], "whole nodes");
}

#[tokio::test]
async fn what_was_drained_for_a_lease_is_resumed_when_the_job_is_over() {
    let fake = Fake::new();
    let file = fake.path("leases.json");
    fs::write(&file, r#"[{"lease":"course","start_s":2100,"end_s":3000,"hosts":["d1"]}]"#).unwrap();
    drop(filling(&fake, json!({ "file": file })).await);
    fake.nodes(DRAINED);
    // An aggregator that has just started and cannot read the leases resumes nothing.
    fs::remove_file(&file).unwrap();
    let mut session = session_of(&fake, json!({ "file": file }));
    let seen = look(&mut session, &["d1"], 2_000.0).await;
    assert!(seen.trouble.unwrap().starts_with("leases are unknown"));
    assert!(fake.told().is_empty());
    session.leave().await.unwrap();
    assert_eq!(fake.told(), [RESUME]);
    // Nor does a job without leases leave it so.
    look(&mut session_of(&fake, Value::Null), &["d1"], 2_002.0).await;
    assert_eq!(fake.told(), [RESUME]);
}

#[tokio::test]
async fn a_leased_interactive_host_is_given_back_and_stays_drained() {
    let fake = Fake::new();
    let file = fake.path("leases.csv");
    fs::write(&file, "lease,start_s,end_s,hosts\ncourse,2100,3000,i1\n").unwrap();
    let mut session = session_of(&fake, json!({ "file": file }));
    let nodes = |i1: &str| fake.nodes(&format!("{OPEN}{i1}\n"));
    nodes("i1|idle|0/2/0/2|(null)|none");
    fake.queue("1|0-19|PD|alice|1|N/A|N/A|0||None|(null)\n");
    running(&fake, "");
    let seen = look(&mut session, &["d1", "i1"], 2_080.0).await;
    assert!(seen.progress.unusable.is_empty() && fake.told().is_empty(), "nothing is known of the tasks");
    look(&mut session, &["d1", "i1"], 2_090.0).await;
    assert_eq!(fake.told(), ["update NodeName=i1 State=DRAIN Reason=gleaner: leased, or soon to be: course"]);
    nodes("i1|drained|0/0/2/2|(null)|gleaner: leased, or soon to be: course");
    let seen = look(&mut session, &["d1", "i1"], 2_100.0).await;
    assert_eq!(seen.progress.unusable, [host("i1")].into());
    look(&mut session, &["d1"], 2_500.0).await;
    assert!(fake.told().is_empty());
    // Not harvested any more, it is not resumed.
    let seen = look(&mut session, &["d1"], 3_000.0).await;
    assert_eq!(fake.told(), ["update NodeName=i1 State=DRAIN Reason=gleaner: not harvested now"]);
    assert!(seen.progress.unusable.is_empty());
}
