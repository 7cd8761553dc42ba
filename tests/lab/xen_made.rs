//! A volunteer domain that Gleaner makes from a config file, on a real control domain booted under software emulation: made,
//! held, its agent killed, and then destroyed or left as it was made, as the config says; one of the operator's is neither. The
//! test of `xen.rs` boots the host.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

use gleaner_agent::config::Config;
use gleaner_test_support::lab;
use gleaner_types::command::{Desired, Quota};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use crate::guests::{agent, sh, until};
use crate::xen::knobs;
use crate::xen_volunteer::{Hypervisor, open, order, uuid};

/// Set for the process that holds the volunteer of a config until it is killed.
const HOLDS: &str = "GLEANER_LAB_HOLDS_MADE";
/// What the command allows the volunteer, in percent of one CPU.
const CAP_PERCENT: u32 = 30;
/// Its file: another name and UUID than it gets would be a mistake, and it says no weight.
const DOMAIN: &str = "# of the lab\nname = \"batch\"\nuuid = \"11111111-2222-3333-4444-555555555555\"\ntype = \"pv\"\n\
                      kernel = \"/domu/guest\"\nextra = \"burn\"\nmemory = 8\non_crash = \"destroy\"\n";

/// An agent's config, and what its program says to some words.
struct Agent {
    config: String,
}

impl Agent {
    fn that(at_restore: &str) -> Self {
        let config = format!("/tmp/made-{at_restore}.toml");
        let text = format!(
            "state_dir = \"/tmp/made-state\"\n[act]\nenabled = true\n[volunteer]\nkind = \"domain\"\nmemory_floor_mib = 16\n\
             domain_configs = [\"/etc/xen/batch.cfg\"]\ndomains_at_restore = \"{at_restore}\"\n"
        );
        std::fs::write(&config, text).unwrap();
        Self { config }
    }

    /// As [`Self::tells`], and it is shown.
    fn says(&self, words: &[&str]) -> String {
        let said = self.tells(words);
        println!("gleaner-agent {}: {said}", words.join(" "));
        said
    }

    fn tells(&self, words: &[&str]) -> String {
        let output = Program::new(agent()).args(["--config", &self.config]).args(words).output().unwrap();
        let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words:?}: {}: {said}{why}", output.status);
        said.trim().to_owned()
    }

    /// A process holds the volunteer to its cap, and is killed.
    fn holds_and_is_killed(&self, xen: &mut Hypervisor, volunteer: &str) {
        let mut command = Program::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "xen_made::holds_what_was_made_until_it_is_killed"]);
        let mut holder = Holder(command.env(HOLDS, &self.config).stdout(Stdio::null()).spawn().unwrap());
        until("its ceiling is the command's", || {
            let state = xen.state(volunteer);
            state["cap_percent"] == CAP_PERCENT && state["paused"] == false
        });
        let used = xen.percent(&[volunteer], Duration::from_secs(3));
        println!("made by Gleaner, and capped at {CAP_PERCENT} %, it uses {used:.1} %");
        assert!((used - f64::from(CAP_PERCENT)).abs() < 6.0, "{used}");
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        until("nobody looks after it, so the helper has paused it", || xen.is_paused(volunteer));
    }
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Names, numbers and UUIDs of all domains.
fn domains() -> String {
    sh("xl vm-list")
}

#[test]
fn holds_what_was_made_until_it_is_killed() {
    let Ok(config) = std::env::var(HOLDS) else { return };
    let mut actor = open(Config::load(Path::new(&config)).unwrap().act_settings());
    let cap = Quota::AtMost(CoreShare::clamped(f64::from(CAP_PERCENT)));
    order(&mut actor, 1, Desired::Run { cap });
    loop {
        actor.tick(Timestamp(1_000_000));
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn xen_domains_that_gleaner_makes_from_inside() {
    if !lab::inside() || std::env::var_os(HOLDS).is_some() {
        return;
    }
    // Who makes a domain has nothing to do with the scheduler, so it is tried under one of the two.
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    if scheduler != "credit2" {
        return;
    }
    let xen = &mut Hypervisor::open();
    std::fs::write("/etc/xen/batch.cfg", DOMAIN).unwrap();
    std::fs::set_permissions("/etc/xen/batch.cfg", Permissions::from_mode(0o644)).unwrap();
    let (destroys, leaves) = (Agent::that("destroy"), Agent::that("leave"));
    assert!(destroys.says(&["--check"]).contains("good"));
    sh("mkdom other idle; xl sched-credit2 -d other -w 300; xl sched-credit2 -d other -c 40");
    let (others, other) = (domains(), knobs("other"));

    let start = Instant::now();
    assert_eq!(destroys.says(&["domains", "make"]), "batch: made");
    println!("made in {} ms", start.elapsed().as_millis());
    let volunteer = uuid("batch");
    assert_ne!(volunteer, "11111111-2222-3333-4444-555555555555", "it is Gleaner's own");
    assert_eq!(xen.state(&volunteer)["weight"], 1, "nobody guards it yet");
    assert!(destroys.says(&["domains", "make"]).contains("made earlier"));
    let doctor = destroys.tells(&["doctor"]);
    assert!(doctor.contains("made by Gleaner and there now: batch"), "{doctor}");
    destroys.holds_and_is_killed(xen, &volunteer);
    assert!(destroys.says(&["restore"]).contains("batch: destroyed"));
    assert_eq!((domains(), knobs("other")), (others.clone(), other.clone()), "every other one is as before");
    assert_eq!(sh("ps | grep -c '[x]l create.*batch' || true"), "0", "nor does xl wait for it any more");

    assert_eq!(leaves.says(&["domains", "make"]), "batch: made");
    let (made, volunteer) = (domains(), uuid("batch"));
    let found = knobs("batch");
    leaves.holds_and_is_killed(xen, &volunteer);
    assert_ne!(knobs("batch"), found);
    // As the unit does it, and then as an operator does.
    destroys.says(&["restore", "--keep-domains"]);
    assert!(leaves.says(&["restore"]).contains("what Gleaner made stays"));
    assert_eq!((domains(), knobs("batch"), knobs("other")), (made, found, other.clone()));
    let state = xen.state(&volunteer);
    assert_eq!((&state["weight"], &state["cap_percent"], &state["paused"]), (&1.into(), &0.into(), &false.into()));
    // The choice may change: it is Gleaner's all the same.
    assert_eq!(destroys.says(&["domains", "end"]), "batch: destroyed");

    sh("xl create -q /etc/xen/batch.cfg 'uuid=\"11111111-2222-3333-4444-555555555555\"'");
    let (made, found) = (domains(), knobs("batch"));
    assert!(destroys.says(&["domains", "make"]).contains("a domain of this name that Gleaner did not make is there"));
    assert!(!destroys.says(&["restore"]).contains("batch"));
    assert_eq!((domains(), knobs("batch")), (made, found), "the operator's own is never destroyed");
    sh("xl destroy batch");
    assert_eq!((domains(), knobs("other")), (others, other));
    sh("xl destroy other");
}
