//! An HVM domain as the volunteer, on a real control domain booted under software emulation: what its device model serves is
//! told while it does, the domain boots while it is held, and is left as it was found. The test of `xen_bounds.rs` boots the host.

use std::path::Path;
use std::time::{Duration, Instant};

use gleaner_agent::act::{ActSettings, Actor, Bound};
use gleaner_agent::network_bound::LinkChoice;
use gleaner_types::command::{Command, Desired, Outcome, Quota, Target, Version};
use gleaner_types::event::Event;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{BytesPerSec, CoreShare};

use crate::guests::{PATIENCE, sh};
use crate::xen_bounds::{Memory, RUN, inside, killed_it_leaves_what_restore_puts_back, settings, tick, ticking};
use crate::xen_volunteer::{Hypervisor, open, order, uuid};

/// So many times the guest copies a program of 2 MB: with its kernel more memory than it was found with. Zeros would not do, the
/// hypervisor takes pages of them away.
const FILLS: u32 = 40;
/// Of the memory that the guest then sees, its kernel not counted.
const GROWN_KIB: u32 = 150_000;

/// Waits for the event on disks that have no ceiling. Answers why they have none; `None` when they have it again.
fn told_of_disks(actor: &mut Actor) -> Option<String> {
    let mut told = None;
    let start = Instant::now();
    while told.is_none() {
        assert!(start.elapsed() < PATIENCE, "nothing is told of the disks");
        told = tick(actor).into_iter().find_map(|event| match event {
            Event::SensorChanged { sensor, absent } if sensor == "disk bound of the volunteer's domains" => {
                Some(absent.map(|absent| absent.detail().into_owned()))
            }
            _ => None,
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    let told = told.flatten();
    println!("of its disks is told: {told:?}");
    told
}

/// It has not booted, so its device model has its disk open and its emulated card is there.
fn what_its_device_model_serves_is_told(xen: &mut Hypervisor, settings: ActSettings, id: &str) {
    let mut actor = open(ActSettings { required: vec![Bound::Disk], ..settings });
    let why = told_of_disks(&mut actor).unwrap();
    assert!(why.contains("the device model of Xen domain") && why.contains("1 disk open"), "{why}");
    let version = Version { epoch: 1, number: 1 };
    let command = Command { target: Target::Volunteer, version, lease_ms: 600_000, desired: RUN };
    let outcome = actor.apply(&command, Timestamp(1_000_000)).outcome;
    let Outcome::Refused { detail, .. } = outcome else { panic!("{outcome:?}") };
    assert!(detail.contains("device model") && detail.contains("act.require"), "{detail}");
    for interface in [format!("vif{id}.0"), format!("vif{id}.0-emu")] {
        ticking(&mut actor, "both of its interfaces are held", || {
            sh(&format!("tc qdisc show dev {interface}")).contains("tbf")
        });
    }
    assert!(xen.is_paused(&uuid("vol")), "it is latent");
    assert!(actor.restore_all().failed.is_empty());
    assert!(!sh(&format!("tc qdisc show dev vif{id}.0-emu")).contains("tbf"));
}

#[test]
fn xen_hvm_domain_as_the_volunteer_from_inside() {
    if !inside() {
        return;
    }
    sh("for domain in $(xl list | awk 'NR > 2 { print $1 }'); do xl destroy $domain; done");
    sh(
        "mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && echo +io >/sys/fs/cgroup/cgroup.subtree_control",
    );
    // It is busy only while it has grown: its balloon is slow beside that.
    let script = format!(
        "#!/bin/sh\nhas_grown() {{ read -r _ total _ </proc/meminfo; [ \"$total\" -gt {GROWN_KIB} ]; }}\n\
         until has_grown; do sleep 1; done\nmount -o remount,size=90% /tmp\n\
         seq {FILLS} | while read -r _; do cat /bin/busybox; done >/tmp/filled && rm /tmp/filled && echo has filled its memory\n\
         while :; do has_grown || sleep 1; done\n"
    );
    std::fs::write("/tmp/fills.sh", script).unwrap();
    sh(
        "chmod +x /tmp/fills.sh; rm -f /var/log/xen/console/guest-vol.log; dd if=/dev/zero of=/tmp/hvm-disk bs=1M count=4",
    );
    sh("TYPE=hvm MEMORY=128 MAXMEM=220 HOST=4 DISK=/tmp/hvm-disk mkdom vol linux /tmp/fills.sh");
    let (volunteer, id) = (uuid("vol"), sh("xl domid vol"));
    let xen = &mut Hypervisor::open();
    let found = (xen.state(&volunteer), Memory(xen).bounds(&volunteer));

    let links = LinkChoice { names: vec!["guests".to_owned()], capacity: Some(BytesPerSec::clamped(1e8)) };
    let settings = || ActSettings { links: links.clone(), disk_ceiling: true, ..settings(&["vol"]) };
    what_its_device_model_serves_is_told(xen, settings(), &id);

    let mut actor = open(settings());
    order(&mut actor, 2, RUN);
    assert_eq!(xen.state(&volunteer)["weight"], 1);
    assert!(
        told_of_disks(&mut actor).is_some() && told_of_disks(&mut actor).is_none(),
        "its own drivers serve them now"
    );
    let emulated = format!("/sys/class/net/vif{id}.0-emu");
    assert!(!Path::new(&emulated).exists(), "its own driver has taken the card's place");
    // While it boots its target rises, and it believes in it before its balloon works.
    let has_filled = || sh("grep -c 'has filled' /var/log/xen/console/guest-vol.log || true") != "0";
    ticking(&mut actor, "it has booted, and filled more memory than it was found with", has_filled);
    ticking(&mut actor, "it has grown", || Memory(xen).of(&volunteer) > 210.0);

    order(&mut actor, 3, Desired::Run { cap: Quota::AtMost(CoreShare::clamped(30.0)) });
    ticking(&mut actor, "it is capped", || xen.state(&volunteer)["cap_percent"] == 30);
    let used = xen.percent(&[&volunteer], Duration::from_secs(5));
    println!("an HVM volunteer capped at 30 % uses {used:.1} %");
    assert!((used - 30.0).abs() < 5.0, "{used}");
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    drop(actor);
    let now = (xen.state(&volunteer), Memory(xen).bounds(&volunteer));
    for key in ["weight", "cap_percent", "paused", "memory_most_bytes"] {
        assert_eq!(now.0[key], found.0[key], "{key}");
    }
    assert_eq!(now.1, found.1);
    killed_it_leaves_what_restore_puts_back(xen, &volunteer);
    sh("xl destroy vol; umount /sys/fs/cgroup");
}
