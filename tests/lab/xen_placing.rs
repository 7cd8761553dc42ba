//! Volunteer domains that come late, under another scheduler, or kept off some CPUs, on a real control domain booted under
//! software emulation. The test of `xen.rs` boots the host.

use std::path::PathBuf;
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use gleaner_planner::protecting::Posture;
use gleaner_test_support::lab;
use gleaner_types::command::{Desired, Quota};
use gleaner_types::time::Timestamp;

use crate::guests::{agent, sh, until};
use crate::xen::run;
use crate::xen_volunteer::{Hypervisor, make, open, order, settings, uuid};

/// Set for the process that keeps a CPU free until it is killed.
const SPARES: &str = "GLEANER_LAB_SPARES";
const RUN: Desired = Desired::Run { cap: Quota::Unlimited };

/// What `xl vcpu-list` says of the domain's virtual CPUs: the CPU that each is on, and its affinity.
fn vcpus(name: &str) -> String {
    sh(&format!("xl vcpu-list {name} | awk 'NR > 1 {{ print $(NF-2) }}'"))
}

/// Takes the helper's program away, and puts it back at the end.
struct NoHelper(PathBuf);

impl NoHelper {
    fn begin() -> Self {
        let program = agent().with_file_name("gleaner-agent-xen");
        std::fs::rename(&program, program.with_extension("away")).unwrap();
        Self(program)
    }
}

impl Drop for NoHelper {
    fn drop(&mut self) {
        std::fs::rename(self.0.with_extension("away"), &self.0).unwrap();
    }
}

fn late_domains_are_taken_when_they_come(xen: &mut Hypervisor) {
    let no_helper = NoHelper::begin();
    let mut actor = open(settings(&["late", "other"]));
    let why = actor.guard_status().unwrap().failure.unwrap();
    // An earlier test of this process may have left a helper that runs.
    let reasons = ["gleaner-agent-xen is not installed", "no Xen domain has that name"];
    assert!(why.contains("late: ") && reasons.iter().any(|reason| why.contains(reason)), "{why}");
    order(&mut actor, 1, RUN);
    drop(no_helper);
    sh("mkdom late burn");
    let mut domain = uuid("late");
    let mut holds = |actor: &mut gleaner_agent::act::Actor, domain: &str| {
        until("it is held and runs", || {
            actor.tick(Timestamp(1_000_000));
            xen.state(domain)["weight"] == 1 && !xen.is_paused(domain)
        });
    };
    holds(&mut actor, &domain);
    assert_eq!(actor.volunteer_domains(), Some(&[domain.clone()][..]), "the other has yet to come");
    // Of a name, `xl create` makes a domain of another UUID each time.
    sh("xl destroy late");
    until("without a domain there is nothing to guard", || {
        actor.tick(Timestamp(1_000_000));
        actor.guard_status().unwrap().failure.is_some_and(|why| why.contains("late: ") && why.contains("other: no Xen"))
    });
    sh("mkdom late burn");
    let before = std::mem::replace(&mut domain, uuid("late"));
    assert_ne!(domain, before);
    holds(&mut actor, &domain);
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    let state = xen.state(&domain);
    assert_eq!((&state["weight"], &state["paused"]), (&256.into(), &false.into()), "as it was found: {state}");
    sh("xl destroy late");
}

fn cpus_are_kept_free_of_it_and_given_back(xen: &mut Hypervisor) {
    sh("VCPUS=2 mkdom vol burn");
    let volunteer = uuid("vol");
    let pool = sh("xl cpupool-list -c | awk '$1 == \"Pool-0\" { print $2 }'");
    assert_eq!((pool.as_str(), vcpus("vol").as_str()), ("0,1", "all\nall"));
    let mut actor = open(settings(&["vol"]));
    order(&mut actor, 1, RUN);
    until("it runs", || !xen.is_paused(&volunteer));
    let view = actor.guard_view().unwrap();
    view.protect(Posture::Spare { cpus: 1 }).unwrap();
    assert_eq!(vcpus("vol"), "1\n1", "off CPU 0");
    let on: Vec<String> = (0..20).map(|_| sh("xl vcpu-list vol | awk 'NR == 2 { print $4 }'")).collect();
    assert!(on.iter().all(|cpu| cpu == "1" || cpu == "-"), "it was on other CPUs: {on:?}");
    assert!(on.iter().any(|cpu| cpu == "1"), "it runs: {on:?}");
    println!("with a CPU kept free the volunteer was on: {}", on.join(" "));
    view.protect(Posture::Open).unwrap();
    assert_eq!(vcpus("vol"), "all\nall", "given back");
    view.protect(Posture::Spare { cpus: 1 }).unwrap();
    // What an operator sets is told, left and counts for nothing kept free.
    sh("xl vcpu-pin vol 1 0");
    let mut told = Vec::new();
    until("that is told", || {
        told.extend(actor.tick(Timestamp(1_000_000)).into_iter().map(|event| format!("{event:?}")));
        told.iter().any(|event| event.contains("ForeignWrite") && event.contains("hard affinity"))
    });
    assert_eq!((vcpus("vol").as_str(), view.status().posture), ("1\n0", Posture::Open));
    sh("xl vcpu-pin vol 1 1");
    until("set back, it counts again", || {
        actor.tick(Timestamp(1_000_000));
        view.status().posture == Posture::Spare { cpus: 1 }
    });
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!(vcpus("vol"), "all\nall", "put back as found");
    drop(actor);

    sh("xl vcpu-pin vol 0 0-1; xl vcpu-pin vol 1 1");
    let mut holder = Program::new(std::env::current_exe().unwrap());
    holder.args(["--exact", "xen_placing::keeps_a_cpu_free_of_a_xen_volunteer_until_it_is_killed"]);
    let mut holder = holder.env(SPARES, "vol").stdout(Stdio::null()).spawn().unwrap();
    until("it is kept off CPU 0", || vcpus("vol") == "1\n1" && !xen.is_paused(&volunteer));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(vcpus("vol"), "1\n1");
    println!("{}", run(&["restore"]).trim());
    let state = xen.state(&volunteer);
    assert_eq!((vcpus("vol").as_str(), &state["weight"], &state["paused"]), ("all\n1", &256.into(), &false.into()));
    sh("xl destroy vol");
}

#[test]
fn keeps_a_cpu_free_of_a_xen_volunteer_until_it_is_killed() {
    let Ok(name) = std::env::var(SPARES) else { return };
    let mut actor = open(settings(&[&name]));
    order(&mut actor, 1, RUN);
    actor.guard_view().unwrap().protect(Posture::Spare { cpus: 1 }).unwrap();
    loop {
        actor.tick(Timestamp(1_000_000));
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn another_scheduler_changes_how_it_is_held(xen: &mut Hypervisor) {
    let second = make("second");
    xen.pause(&second, false);
    sh("xl cpupool-cpu-remove Pool-0 1");
    let other = if sh("xl info").contains("sched=credit2") { "credit" } else { "credit2" };
    sh(&format!(
        "xl cpupool-create 'name=\"other\"' 'sched=\"{other}\"' 'cpus=[\"1\"]' && xl cpupool-migrate second other"
    ));
    let mut actor = open(settings(&["second"]));
    order(&mut actor, 1, Desired::Run { cap: Quota::AtMost(gleaner_types::units::CoreShare::clamped(30.0)) });
    until("its weight and ceiling are set in its own pool", || {
        actor.tick(Timestamp(1_000_000));
        let state = xen.state(&second);
        state["weight"] == 1 && state["cap_percent"] == 30 && state["paused"] == false
    });
    let shown = sh(&format!("xl sched-{other} -d second | tail -1"));
    assert!(shown.ends_with("1   30"), "{shown}");
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!(xen.state(&second)["weight"], 256);
    sh("xl destroy second && xl cpupool-destroy other && xl cpupool-cpu-add Pool-0 1");
}

#[test]
fn xen_domains_come_late_and_are_placed_from_inside() {
    if !lab::inside() || ["GLEANER_LAB_HOLDS", SPARES].iter().any(|set| std::env::var_os(set).is_some()) {
        return;
    }
    // It makes a pool of the other scheduler itself, so one boot tries both.
    if !sh("xl info").contains("credit2") {
        println!("placing is tried under credit2 alone");
        return;
    }
    sh("for domain in $(xl list | awk 'NR > 2 { print $1 }'); do xl destroy $domain; done");
    sh("xl vcpu-pin Domain-0 all all");
    let xen = &mut Hypervisor::open();
    late_domains_are_taken_when_they_come(xen);
    another_scheduler_changes_how_it_is_held(xen);
    cpus_are_kept_free_of_it_and_given_back(xen);
}
