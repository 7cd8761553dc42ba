//! `gleaner guests`: real guests and cgroups, by their names, through a real agent and aggregator.

use std::os::unix::process::CommandExt;
use std::process::Command;

use gleaner_test_support::bench::{Running, text, until};
use gleaner_test_support::guest::{has_qemu, start};
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

fn guests(pair: &Pair) -> Value {
    serde_json::from_slice(&pair.ask(&["guests", HOST, "--json"]).stdout).unwrap_or_default()
}

/// The guest with this process; none while it is not known.
fn of(all: &Value, pid: u32) -> Option<Value> {
    all.as_array()?.iter().find(|guest| guest["pid"] == pid).cloned()
}

fn cpu(guest: &Value) -> Option<f64> {
    guest["cpu"]["value"].as_f64()
}

#[test]
fn guests_are_listed_by_the_names_their_operators_know() {
    if !has_qemu() {
        gleaner_test_support::skip!("qemu-system-x86_64 is not installed");
    }
    let mut pair = Pair::new(&[HOST]);
    let folder = pair.bench.folder.path().to_owned();
    // Other runs of this test have other names.
    let [web, db, pve] = ["web", "db", "pve"].map(|name| format!("{name}-{}", pair.port));
    let names = [&web, &db].map(|name| format!("guest={name},debug-threads=on"));
    let uuids = ["4dea22b3-1d52-d8f3-2516-782e98ab3fa0", "9c3b1a00-77aa-4c3c-9d9d-5f1d3f9b8a10"];
    let busy = start(&folder, "web.img", true, &["-name", &names[0], "-uuid", uuids[0]]);
    let idle = start(&folder, "db.img", false, &["-name", &names[1], "-uuid", uuids[1]]);
    let same_name = start(&folder, "other.img", false, &["-name", &db]);
    // As Proxmox starts its QEMU, whose option -id no other has.
    let mut proxmox = Command::new("sh");
    proxmox.arg0("kvm").args([
        "-c",
        "while sleep 1; do :; done",
        "kvm",
        "-id",
        "101",
        "-name",
        &format!("{pve},debug-threads=on"),
    ]);
    let proxmox = Running::start(proxmox);
    pair.start_aggregator();
    pair.start_agent(&[]);
    until("all guests are named, and the one that loops is busy", || {
        let all = guests(&pair);
        let [busy, idle] = [busy.0.id(), idle.0.id()].map(|pid| of(&all, pid).as_ref().and_then(cpu));
        let named = [same_name.0.id(), proxmox.0.id()].iter().all(|pid| of(&all, *pid).is_some());
        named && busy.zip(idle).is_some_and(|(busy, idle)| busy > idle)
    });
    let all = guests(&pair);
    let [busy, idle, same_name, proxmox] =
        [&busy, &idle, &same_name, &proxmox].map(|own| of(&all, own.0.id()).unwrap());
    assert_eq!(
        (&busy["name"], &busy["manager"], &busy["uuid"]),
        (&web.as_str().into(), &"qemu".into(), &uuids[0].into())
    );
    // Two of one name are told apart: one by its UUID, the other has none.
    assert_eq!((&idle["name"], &same_name["name"]), (&db.as_str().into(), &db.as_str().into()));
    let told_apart = format!("{db} [9c3b1a00]");
    assert_eq!(idle["guest"], told_apart);
    assert_ne!(same_name["guest"], idle["guest"]);
    assert_eq!((&proxmox["manager"], &proxmox["instance"]), (&"proxmox".into(), &"101".into()));
    assert_eq!((&busy["protected"], &busy["limits"]["quota"]), (&"observes_only".into(), &"unlimited".into()));
    // It is not known at a moment in which a guest ends, as one of another test may.
    until("the rest of the host is known", || {
        let all = guests(&pair);
        let other = all.as_array().and_then(|rows| rows.iter().find(|guest| guest["role"] == "other"));
        other.and_then(cpu).is_some_and(|cpu| cpu >= 0.0)
    });

    let table = text(&pair.ask(&["guests"]).stdout);
    for part in [web.as_str(), &told_apart, "proxmox 101", "(other)", "observing"] {
        assert!(table.contains(part), "{part} not in\n{table}");
    }
    let percent = text(&pair.ask(&["guests", "--percent"]).stdout);
    assert!(percent.lines().any(|line| line.contains(&web) && line.contains(" % ")), "{percent}");
    let sorted =
        text(&pair.ask(&["guests", "--filter", &pair.port.to_string(), "--sort", "cpu:desc", "--limit", "1"]).stdout);
    assert!(sorted.contains(&web) && sorted.lines().count() >= 2 && !sorted.contains(&db), "{sorted}");
    let hosts = text(&pair.ask(&["hosts"]).stdout);
    assert!(hosts.contains("OTHER"), "{hosts}");
    let wrong = pair.ask(&["guests", "no-such-host"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("there is no host no-such-host"), "{wrong:?}");
}

/// A process that calls itself a guest, as one of Proxmox, and runs as this user.
fn claims(uid: u32, name: &str) -> Running {
    let mut command = Command::new("sh");
    command.arg0("kvm").uid(uid).args(["-c", "while sleep 1; do :; done", "kvm", "-id", "101", "-name", name]);
    Running::start(command)
}

#[test]
fn nobody_takes_a_guests_name_or_the_reserved_row() {
    if !rustix::process::geteuid().is_root() {
        gleaner_test_support::skip!("only root can start a process of another user");
    }
    let mut pair = Pair::new(&[HOST]);
    let web = format!("web-{}", pair.port);
    // The impostor comes first.
    let impostor = claims(65_534, &web);
    let (own, posing) = (claims(0, &web), claims(0, "(other)"));
    pair.start_aggregator();
    pair.start_agent(&[]);
    until("all are named", || {
        let all = guests(&pair);
        [&impostor, &own, &posing].iter().all(|process| of(&all, process.0.id()).is_some())
    });
    let all = guests(&pair);
    let [users, own, posing] = [&impostor, &own, &posing].map(|process| of(&all, process.0.id()).unwrap());
    let called = format!("qemu-{} of ", impostor.0.id());
    for field in ["name", "guest", "workload"] {
        assert!(users[field].as_str().unwrap().starts_with(&called), "{users}");
    }
    assert_eq!(users["manager"], "qemu", "{users}");
    assert_ne!(users["instance"], "101", "{users}");
    assert_eq!((&own["name"], &own["workload"]), (&web.as_str().into(), &web.as_str().into()));
    assert_eq!((&own["manager"], &own["instance"]), (&"proxmox".into(), &"101".into()));
    assert_eq!((&posing["role"], &posing["name"]), (&"foreground".into(), &"(other)".into()));
    assert_eq!(posing["guest"], "\"(other)\"");
    let table = text(&pair.ask(&["guests"]).stdout);
    let rows = |start: &str| table.lines().filter(|line| line.contains(&format!("  {start}  "))).count();
    assert_eq!((rows("(other)"), rows("\"(other)\"")), (1, 1), "{table}");
}
