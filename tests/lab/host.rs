//! The bed itself: a booted host that dies in the middle of its tests must not look like one whose tests passed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use gleaner_test_support::lab;
use rustix::process::{Pid, Signal, kill_process};

/// Those below a process, however far down, whose command line begins with a program.
fn below(parent: u32, program: &str) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let children: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let is = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(program.as_bytes()))
    };
    let own: Vec<u32> = children.iter().copied().filter(is).collect();
    own.into_iter().chain(children.into_iter().flat_map(|child| below(child, program))).collect()
}

#[test]
fn a_host_that_dies_in_the_middle_is_no_success() {
    const TEST: &str = "a_host_that_dies_in_the_middle_is_no_success";
    if !gleaner_test_support::beds::wanted(TEST) || lab::inside() {
        return;
    }
    let _alone = lab::alone();
    let Some(images) = lab::images(TEST) else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sleeps.sh");
    std::fs::write(&script, "#!/bin/sh\necho begun\nsleep 100\n").unwrap();
    let mut command = Command::new(lab::script("kvm/host.sh"));
    command.args(["-T", "100"]).arg(&images).arg(&script).stdin(Stdio::null());
    let mut host = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(host.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.trim() == "begun"), "it ended before: {:?}", host.wait_with_output());
    let machines = below(host.id(), "qemu-system-x86_64");
    assert!(!machines.is_empty(), "there is no machine below {}", host.id());
    for machine in machines {
        kill_process(Pid::from_raw(machine.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    let ended = host.wait().unwrap();
    assert!(matches!(ended.code(), Some(124 | 125)), "{ended}");
}
