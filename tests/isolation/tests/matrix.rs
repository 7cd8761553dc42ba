//! A short part of the matrix on this machine, with real processes: the product beside the plainest other ways.
//! Everything is judged by ratios within one run, generously, because others may use the machine meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gleaner_isolation::cells::{Cell, Row, cells};
use gleaner_isolation::matrix::Outcome;
use gleaner_isolation::network::Network;
use gleaner_isolation::results::Line;
use gleaner_test_support::{beds, lab, skipped};

/// How much more harm than without any protection still passes on a busy machine.
const GENEROUS: f64 = 1.5;
/// Differences below this are the machine's own, in percent.
const NOISE_PERCENT: f64 = 30.0;

/// The built `gleaner`, of the same build.
fn gleaner() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_isolation")).with_file_name("gleaner")
}

fn isolation(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isolation"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn line(outcome: &Outcome, cell: Cell, row: Row) -> &Line {
    outcome.lines.iter().find(|line| line.cell == cell && line.row == row).unwrap()
}

/// What runs leave behind: cgroups, folders, namespaces.
fn left_behind() -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = hierarchies.chain(["/sys/fs/cgroup", "/tmp", in_memory(), "/run/netns"].map(PathBuf::from));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let own = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("gleaner-isolation-") || name.starts_with("gi") && path.starts_with("/run/netns")
    };
    entries.map(|entry| entry.path()).filter(own).collect()
}

fn in_memory() -> &'static str {
    if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }
}

/// Size of the scratch file system. It is in memory where there is some, so that it is full in a few seconds also while
/// others use the machine's disk; what stays free of it, a twentieth, takes the fastest writer 50 ms, in which an agent
/// looks also on a busy machine.
const SCRATCH_MIB: &str = "2048";

/// Measures, and returns what came of it.
fn measure(cells: &str, rows: &str, rounds: &str) -> Outcome {
    assert!(gleaner().is_file(), "{} is not built: cargo build --workspace --bin gleaner", gleaner().display());
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("all.json"), folder.path().join("all.svg"));
    let mut command = isolation(&["--cells", cells, "--rows", rows, "--rounds", rounds, "--seed", "7"]);
    command.args(["--seconds", "4", "--settle", "6", "--gleaner"]).arg(gleaner());
    command.arg("--json").arg(&json).arg("--svg").arg(&svg).arg("--folder").arg(in_memory());
    command.args(["--scratch-mib", SCRATCH_MIB]);
    let output = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{}\n{said}", output.status);
    let outcome: Outcome = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    // On a machine without a moment of idleness there is no harvest to draw.
    let drawable = |line: &Line| line.harvested_percent.is_some() && line.p99_slower_percent.is_some();
    assert!(!outcome.lines.iter().any(drawable) || std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    outcome
}

/// A link that lacks something is none to flood.
fn none(weaker: Option<String>) -> Result<(), String> {
    weaker.map_or(Ok(()), Err)
}

/// The agent held the antagonist still the whole time, because the machine had nothing left over.
fn held(line: &Line) -> bool {
    line.notes.iter().any(|note| note.contains("held the antagonist still"))
}

#[test]
fn the_product_harms_no_more_than_others_and_kills_no_foreground() {
    if !beds::wanted("the_product_harms_no_more_than_others_and_kills_no_foreground") {
        return;
    }
    let _bed = lab::alone();
    let names = "cyclic:cpu,cyclic:memory";
    let outcome = measure(names, "alone,unprotected,idle,gleaner", "2");
    let [cpu, memory] = *cells(names).unwrap() else { panic!("two cells") };
    let slower = |row| line(&outcome, cpu, row).mean_slower_percent.expect("a row was measured and nobody killed").mean;
    let (own, unprotected) = (slower(Row::Gleaner), slower(Row::Unprotected));
    assert!(own <= unprotected.max(0.0) * GENEROUS + NOISE_PERCENT, "{own} % slower, unprotected {unprotected} %");
    let cores = |row| line(&outcome, cpu, row).antagonist_cores.unwrap().mean;
    let (harvest, idle) = (cores(Row::Gleaner), cores(Row::Idle));
    assert!(
        harvest >= idle / 4.0 || held(line(&outcome, cpu, Row::Gleaner)),
        "{harvest} cores harvested, by the idle class {idle}"
    );
    for cell in [cpu, memory] {
        let line = line(&outcome, cell, Row::Gleaner);
        assert_eq!((line.foreground_killed, line.rounds), (0, 2), "{line:?}");
    }
    assert_eq!(left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn a_full_disk_and_a_full_link_fail_no_request_of_the_foreground() {
    const TEST: &str = "a_full_disk_and_a_full_link_fail_no_request_of_the_foreground";
    if !beds::wanted(TEST) {
        return;
    }
    let probe = Network::up(std::process::id());
    if let Err(why) = probe.as_ref().map(|network| network.weaker.clone()).map_err(ToString::to_string).and_then(none) {
        skipped!("{TEST}: no network namespace can be made here: {why}");
        return;
    }
    drop(probe);
    let _bed = lab::alone();
    let names = "disk:fill,echo:net";
    let outcome = measure(names, "alone,unprotected,gleaner", "1");
    for &cell in &cells(names).unwrap() {
        let failures = |row| line(&outcome, cell, row).failures;
        let [alone, unprotected, own] = [Row::Alone, Row::Unprotected, Row::Gleaner].map(failures);
        assert!(unprotected > alone, "{cell}: the antagonist fails nothing by itself ({unprotected}, alone {alone})");
        assert!(own <= alone + unprotected / 20, "{cell}: {own} failed, alone {alone}, unprotected {unprotected}");
    }
    assert_eq!(left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    if !beds::wanted("an_interrupted_run_leaves_nothing") {
        return;
    }
    let _bed = lab::alone();
    let mut child = isolation(&["--cells", "disk:cpu", "--rows", "unprotected", "--seconds", "600", "--rounds", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let folder = PathBuf::from(format!("/tmp/gleaner-isolation-{}", child.id()));
    gleaner_test_support::bench::until("the run is at work", || folder.join("work").exists());
    gleaner_test_support::bench::kill(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(left_behind(), Vec::<PathBuf>::new());
}
