//! Limits on the traffic of a foreground Xen domain, on a real control domain booted under software emulation, and what keeps them
//! to that domain: a domain that lies in xenstore, a name that is no text, a hypervisor that the helper does not
//! know. Called by the beds that have such domains.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::guests::{agent, sh, until};
use crate::xen::run;
use crate::xen_bounds::{Peer, reads};

fn queues(id: &str) -> String {
    sh(&format!("tc qdisc show dev vif{id}.0"))
}

/// The cgroups of domains' disks, each with the names of the threads in it.
fn groups() -> String {
    sh("cd /sys/fs/cgroup; for group in gleaner-domain-*; do [ -d $group ] || continue; echo \"$group:\"; \
        for pid in $(cat $group/cgroup.procs); do cat /proc/$pid/comm; done; done")
}

/// What the toolstack writes of a domain is everybody's truth; what the domain may write is nobody's.
fn lie_about_devices(id: &str, victim: &str) {
    for (kind, device) in [("vbd", "51712"), ("vif", "0")] {
        let own = format!("/local/domain/{id}/device/{kind}/{device}");
        let permissions = sh(&format!("xenstore-ls -p /local/domain/{id}/device/{kind}"));
        assert!(permissions.contains(&format!("(n{id}")), "the domain itself may write there: {permissions}");
        sh(&format!("xenstore-write {own}/backend /local/domain/0/backend/{kind}/{victim}/{device}"));
    }
}

/// Names that are no text, or more than that, are told without harm; the domain is the same.
fn a_name_that_is_no_text_is_shown_and_harms_nothing(id: &str, name: &str) {
    // The control domain is none of them.
    let domains = sh("xenstore-list /local/domain | wc -l").parse::<usize>().unwrap() - 1;
    for bytes in [r"\377\376", r"\033[2Jx\n", ""] {
        sh(&format!("xenstore-write /local/domain/{id}/name \"$(printf '{bytes}')\""));
        let mut said = String::new();
        // A control domain as busy as this one may let a helper's answer come too late.
        until("all are shown", || {
            said = run(&["observe", "--count", "2"]);
            let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
            let all = last["workloads"].as_array().unwrap();
            let shown: Vec<&str> = all.iter().filter_map(|workload| workload["id"].as_str()).collect();
            println!("named {bytes:?}: {shown:?}");
            shown.contains(&"victim") && shown.len() == domains
        });
        assert!(!said.contains('\u{1b}'), "nothing that moves a terminal");
    }
    sh(&format!("xenstore-write /local/domain/{id}/name {name}"));
}

/// The domain `busy` sends, receives and reads all it can. `victim` is beside it.
pub(crate) fn its_traffic_is_limited_and_nobody_elses(peer: &Peer, id: &str) {
    sh("dd if=/dev/zero of=/tmp/victim bs=1M count=4 && HOST=3 DISK=/tmp/victim mkdom victim linux");
    let victim = sh("xl domid victim");
    until("the victim has an interface and a disk", || {
        sh(&format!(
            "ls /sys/class/net/vif{victim}.0 /proc/[0-9]*/comm >/dev/null; cat /proc/[0-9]*/comm 2>/dev/null || true"
        ))
        .contains(&format!("{victim}.xvda"))
    });
    a_name_that_is_no_text_is_shown_and_harms_nothing(id, "busy");
    lie_about_devices(id, &victim);
    let (free, free_reads) = (peer.rates(Duration::from_secs(4)), reads(id, Duration::from_secs(4)));
    let [sent, received] = free.map(|mb| (mb * 1e6 / 1024.0 * 0.3).max(80.0).round());
    let read = (free_reads * 0.3).max(80.0).round();
    let before = [queues(id), queues(&victim)];
    let arguments = [
        "--config",
        "/tmp/agent.toml",
        "try",
        "busy",
        "--for",
        "600",
        "--transmit",
        &format!("{sent}K"),
        "--receive",
        &format!("{received}K"),
        "--disk-read",
        &format!("{read}K"),
    ];
    let mut held = Command::new(agent()).args(arguments).stdout(Stdio::null()).spawn().unwrap();
    until("both queues and the cgroup are there", || {
        assert!(held.try_wait().unwrap().is_none(), "`try` has ended; it says why above");
        queues(id).contains("tbf") && queues(id).contains("ingress") && groups().contains(".xvda")
    });
    let found = groups();
    let names: Vec<&str> = found.lines().collect();
    assert_eq!(names.first(), Some(&format!("gleaner-domain-{id}:").as_str()), "{found}");
    assert!(names.iter().skip(1).all(|name| name.starts_with(&format!("{id}."))), "the threads of one domain: {found}");
    assert_eq!(queues(&victim), before[1], "another domain's interface");
    std::thread::sleep(Duration::from_secs(3));
    let (now, now_reads) = (peer.rates(Duration::from_secs(8)), reads(id, Duration::from_secs(5)));
    println!(
        "a foreground domain sends and receives in MB/s: free {free:.2?}, limited to {sent} and {received} KiB/s {now:.2?}; reads in KiB/s: \
         free {free_reads:.0}, limited to {read} {now_reads:.0}"
    );
    let limits = [sent, received].map(|kib| kib * 1024.0 / 1e6);
    assert!(now.iter().zip(limits).all(|(now, limit)| *now < 1.3 * limit), "{now:?} {limits:?}");
    assert!(now_reads < 1.2 * read, "{now_reads} of {read}");
    // The keeper puts back what it leaves.
    held.kill().unwrap();
    held.wait().unwrap();
    until("the queues and the cgroup are gone", || queues(id) == before[0] && groups().is_empty());
    until("it reads as before", || reads(id, Duration::from_secs(1)) > 1.5 * read);
    sh("xl destroy victim");
}

/// A helper that the hypervisor refuses, as one of another interface version would be, is told; the control domain is sensed on.
pub(crate) fn a_hypervisor_of_another_interface_version_is_told() {
    let folder = std::path::Path::new("/tmp/other");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::copy(agent(), folder.join("gleaner-agent")).unwrap();
    let helper = folder.join("gleaner-agent-xen");
    let refusal =
        r#"{"error":{"kind":"unsupported","message":"the hypervisor takes no domctl version of [0x15, 0x16, 0x17]"}}"#;
    std::fs::write(&helper, format!("#!/bin/sh\nwhile read -r question; do echo '{refusal}'; done\n")).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let of = |arguments: &[&str]| {
        let mut command = Command::new(folder.join("gleaner-agent"));
        command.args(["--config", "/tmp/agent.toml"]).args(arguments).output().unwrap()
    };
    let observed = of(&["observe", "--count", "2"]);
    let said = String::from_utf8_lossy(&observed.stdout).into_owned();
    assert!(observed.status.success(), "{}", String::from_utf8_lossy(&observed.stderr));
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let absent = &last["machine"]["cpu_busy"]["absent"];
    println!("another interface version: {absent}");
    assert!(absent.to_string().contains("takes no domctl version"), "{said}");
    assert!(last["machine"]["load_1min"]["value"].as_f64().is_some(), "sensing goes on: {said}");
    let tried = of(&["try", "one", "--for", "2", "--cpu", "30"]);
    assert!(!tried.status.success());
    println!("and a limit: {}", String::from_utf8_lossy(&tried.stderr).trim());
    std::fs::remove_dir_all(folder).unwrap();
}
