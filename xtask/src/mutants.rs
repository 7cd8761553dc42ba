//! Mutation testing by cargo-mutants: each mutant is one small change in code that protects a host or keeps a record,
//! and a test has to fail for it. In: a part, and further arguments of cargo-mutants. Out: its lists, in
//! `target/mutants/PART`. `named` is no part but a list of its own ([`named`]). Called by `cargo xtask mutants`. It takes hours, so CI does not run it; docs/reliability.md
//! has the figures and explains the survivors.

mod named;

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use crate::steps::{Failure, Steps, cargo};

/// The version of cargo-mutants that is installed where it is missing.
const VERSION: &str = "27.1.0";

/// Exit codes that are results: every mutant was noticed; some were not; some tests did not end.
const RESULTS: [i32; 3] = [0, 2, 3];

/// Files to change, and the tests of the same crate that have to notice it.
struct Part {
    name: &'static str,
    package: &'static str,
    files: &'static [&'static str],
    /// Parts of the tests' names; empty for all of the crate.
    tests: &'static [&'static str],
}

const PARTS: [Part; 12] = [
    Part { name: "check", package: "gleaner-plan-check", files: &["planner/check/src/*.rs"], tests: &[] },
    Part {
        name: "ledger",
        package: "gleaner-agent",
        files: &["agent/src/act/ledger.rs", "agent/src/act/ledger/*.rs"],
        tests: &["act::ledger", "act::restore"],
    },
    Part { name: "fence", package: "gleaner-agent", files: &["agent/src/act/fence.rs"], tests: &["act::"] },
    Part { name: "outbox", package: "gleaner-agent", files: &["agent/src/outbox.rs"], tests: &["outbox"] },
    Part {
        name: "leases-agent",
        package: "gleaner-agent",
        files: &["agent/src/act.rs"],
        tests: &["act::tests", "act::restore"],
    },
    Part {
        name: "leases-planner",
        package: "gleaner-planner",
        files: &["planner/src/controller/hosts/reconcile.rs"],
        tests: &["controller::"],
    },
    Part {
        name: "leases-leader",
        package: "gleaner-aggregator",
        files: &["aggregator/src/standby/leader_lease.rs"],
        tests: &["standby::"],
    },
    Part {
        name: "event-log",
        package: "gleaner-aggregator",
        files: &["aggregator/src/event_log.rs", "aggregator/src/event_log/*.rs", "aggregator/src/line_files.rs"],
        tests: &["event_log", "line_files", "shell::tests"],
    },
    Part { name: "restore", package: "gleaner-agent", files: &["agent/src/act/restore.rs"], tests: &["act::"] },
    Part { name: "trust", package: "gleaner-agent", files: &["agent/src/act/trust.rs"], tests: &["act::"] },
    Part { name: "claims", package: "gleaner-agent", files: &["agent/src/act/claims.rs"], tests: &["act::"] },
    Part { name: "durable", package: "gleaner-daemon", files: &["common/daemon/src/durable.rs"], tests: &[] },
];

pub(crate) fn run(steps: &mut Steps, rest: &[OsString]) {
    let (wanted, more) = match rest.split_first() {
        Some((name, more)) if !name.as_encoded_bytes().starts_with(b"-") => (Some(name), more),
        _ => (None, rest),
    };
    if wanted.is_some_and(|name| name == "named") {
        return named::run(steps, more.first().and_then(|part| part.to_str()));
    }
    let chosen: Vec<&Part> = PARTS.iter().filter(|part| wanted.is_none_or(|name| name == part.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).chain(["named"]).collect();
        steps.step("mutants", |_| Err(Failure::NoSuchPart(names.join(", "))));
        return;
    }
    let is_here = cargo(&["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_here.is_ok_and(|status| status.success()) {
        let install = ["install", "cargo-mutants", "--locked", "--version", VERSION, "--quiet"];
        steps.run("install cargo-mutants", cargo(&install));
    }
    for part in chosen {
        let output = Path::new("target/mutants").join(part.name);
        if let Err(error) = std::fs::create_dir_all(&output) {
            steps.step(part.name, |_| Err(Failure::Start(error)));
            continue;
        }
        let mut command = cargo(&["mutants", "--no-shuffle", "--jobs", "1", "--package", part.package, "--output"]);
        command.arg(&output).args(part.files.iter().flat_map(|file| ["--file", *file])).args(more);
        command.args(["--", "--lib"]);
        if !part.tests.is_empty() {
            // Filters of the harness come behind a second word.
            command.arg("--").args(part.tests);
        }
        steps.run_with(&format!("mutants of {}", part.name), command, &RESULTS);
    }
}
