//! `cargo xtask`: what is done with the repository, one verb each.
//!
//! In: a verb and its arguments. Out: the output of the programs that it runs, and an exit code. People and `.ci/run`
//! call it; each verb is a list of steps ([`steps`]), and `ci` is all of them.

mod deps;
mod mutants;
mod packages;
#[cfg(test)]
mod shipped;
mod skips;
mod steps;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use steps::{Bed, Steps, cargo, program, within};

const HELP: &str = "\
cargo xtask VERB [ARGUMENTS]

  check              formatting and clippy over everything, fuzz targets too: before every commit
  test [ARGUMENTS]   `cargo test --workspace`: minutes; no root, no beds, no network but the loopback
  beds [FILTER]      the real beds: booted KVM and Xen hosts, Spark, PostgreSQL, etcd, Slurm, kills,
                     network namespaces; root and the machine to itself. FILTER is a part of a test's name
  seeds [N]          the whole system under faults, seeds 0 to N - 1 (10000)
  bench [NAME]       Criterion benches, or the one named; --smoke runs each body once, unmeasured
  repro [WHICH...]   the papers' experiments: rhic, stfc, bconf, canal, mapreduce, chisim (all)
  demo               `gleaner demo`, as a first-time user runs it
  deb [ARGUMENTS]    Debian packages: packaging/build-debs.sh
  mutants [PART [ARGUMENTS]]   mutation testing of what protects and records (hours); ARGUMENTS go to
                     cargo-mutants, such as `--shard 1/8`. `mutants named [NAME]`: those with a name (minutes)
  fuzz [SECONDS]     every fuzz target (10 s each)
  docs               the documentation of all crates, warnings denied
  deps               licences, banned crates, sources; what the pure crates may not depend on
  ci                 what a change has to pass: all of these but bench, repro, deb, fuzz and mutants; a skip that is not
                     expected is a failure as root; the last line counts the tests
";

/// Folders whose modules a macro declares, in which cargo's formatter does not look for files.
const DECLARED_BY_MACROS: [&str; 1] = ["planner/src/forecast"];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next().unwrap_or_default();
    let rest: Vec<OsString> = arguments.collect();
    // Whatever folder it is called in.
    if let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent()
        && let Err(error) = std::env::set_current_dir(root)
    {
        eprintln!("xtask: failed to enter {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    let mut steps = Steps::default();
    match verb.to_str() {
        Some("check") => check(&mut steps),
        Some("test") => test(&mut steps, &rest),
        Some("beds") => beds(&mut steps, &rest, None),
        Some("seeds") => seeds(&mut steps, rest.first()),
        Some("bench") => bench(&mut steps, &rest),
        Some("repro") => reproduce(&mut steps, &rest),
        Some("demo") => demo(&mut steps),
        Some("deb") => steps.run("packages", program("packaging/build-debs.sh").args(&rest)),
        Some("mutants") => mutants::run(&mut steps, &rest),
        Some("fuzz") => fuzz(&mut steps, rest.first().map_or_else(|| "10".into(), Clone::clone)),
        Some("docs") => docs(&mut steps),
        Some("deps") => deps::check(&mut steps),
        Some("ci") => {
            ci(&mut steps);
            return steps.counted(steps::is_root());
        }
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    }
    steps.ended()
}

fn check(steps: &mut Steps) {
    steps.run("fmt", cargo(&["fmt", "--all", "--check"]));
    for folder in DECLARED_BY_MACROS {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
        steps.run(folder, program("rustfmt").args(["--edition", "2024", "--check"]).args(files));
    }
    steps.run("clippy", cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]));
    // They are no members of the workspace, so a renamed item would be missed.
    let fuzz = ["clippy", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--locked", "--quiet"];
    steps.run("clippy of the fuzz targets", cargo(&fuzz).args(["--", "-D", "warnings"]));
}

fn test(steps: &mut Steps, rest: &[OsString]) {
    steps.tests("tests", cargo(&["test", "--workspace", "--no-fail-fast"]).args(rest));
}

/// A test program that holds beds: its name, how it is selected, and which of its tests run without being named.
type BedProgram<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// The test programs that hold beds, one after the other: two would measure each other. They are chosen from the whole
/// workspace, because one package alone is built with other features, and all it depends on once more.
fn beds(steps: &mut Steps, filter: &[OsString], limit: Option<Duration>) {
    const ON_A_QUIET_HOST: [&str; 6] = [
        "--test-threads=1",
        "a_wait_for_the_disk_is_harm",
        "a_real_foreground_takes_its_cpu_back",
        "an_echo_beside_a_flood",
        "hogs_of_the_normal_class_do_several_times",
        "without_a_volunteer_the_interval_holds_zero",
    ];
    // Their tasks sleep, so they may run at the same time.
    const THAT_WAIT: [BedProgram<'_>; 3] = [
        (
            "sharing, slots and slurm",
            &["--test", "end_to_end"],
            &["--test-threads=3", "sharing::", "slots::", "slurm::"],
        ),
        ("faults", &["--test", "faults"], &[]),
        ("standby", &["--test", "standby"], &[]),
    ];
    const PROGRAMS: [&[BedProgram<'_>]; 10] = [
        &[("jobs and kills", &["--test", "end_to_end"], &["jobs::", "kills::"])],
        // What others do to the machine changes most of all: early enough for a second try.
        &[("spark", &["--test", "spark"], &[])],
        &THAT_WAIT,
        // Longer runs go by their names: what an operator would do instead, bad days, tiers on two hosts, the memory of a
        // database on a booted host.
        &[("postgres", &["--test", "postgres"], &["two_databases"])],
        &[("queue", &["--test", "queue"], &["a_queue_keeps"])],
        &[("lab", &["--test", "lab"], &["--skip", "the_memory_of_a_real_database"])],
        &[("guard, harm and network ceiling", &["--lib"], &ON_A_QUIET_HOST)],
        &[("the agent's tests on a version 2 host", &["--lib"], &["version_2"])],
        &[("isolation", &["--test", "matrix"], &[])],
        &[("soak", &["--test", "soak"], &[])],
    ];
    // By its name alone: three daemons in an emulated control domain need a machine that does nothing else.
    const BY_NAME: &[BedProgram<'_>] = &[("a batch job on Xen", &["--test", "xen_job"], &[])];
    let by_name = (!filter.is_empty()).then_some(BY_NAME);
    let bed = |(name, selected, own_filter): BedProgram<'static>| {
        let program = move || {
            let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
            // Not where somebody may press Ctrl-C: it would end this program alone.
            if let Some(limit) = limit {
                command = within(limit, &command);
            }
            command.args(selected).env("GLEANER_BEDS", "1").args(["--", "--nocapture"]);
            command
        };
        let mut all = program();
        if filter.is_empty() {
            all.args(own_filter);
        }
        all.args(filter);
        let again = move |failed: &[String]| {
            let mut command = program();
            command.args(["--test-threads=1", "--exact"]).args(failed);
            command
        };
        Bed { name, command: all, again: Box::new(again) }
    };
    for together in PROGRAMS.into_iter().chain(by_name) {
        steps.beds(together.iter().copied().map(bed).collect());
    }
}

fn seeds(steps: &mut Steps, count: Option<&OsString>) {
    let mut command = cargo(&["run", "--release", "--quiet", "--bin", "whole-system", "--", "--seeds"]);
    command.arg(count.cloned().unwrap_or_else(|| "10000".into()));
    steps.run("whole-system", command);
}

fn bench(steps: &mut Steps, rest: &[OsString]) {
    match rest.first() {
        // Criterion runs each body once when it is run as a test.
        Some(first) if first == "--smoke" => {
            steps.run("benches, each once", cargo(&["test", "--workspace", "--quiet", "--bench", "*"]));
        }
        Some(name) => steps.run("bench", cargo(&["bench", "--workspace", "--bench"]).arg(name)),
        None => steps.run("benches", cargo(&["bench", "--workspace", "--bench", "*"])),
    }
}

fn reproduce(steps: &mut Steps, which: &[OsString]) {
    let all: Vec<OsString> =
        ["rhic", "stfc", "bconf", "canal", "mapreduce", "chisim", "forecast"].map(OsString::from).into();
    for paper in if which.is_empty() { &all } else { which } {
        steps.run(&format!("reproduce {}", paper.display()), gleaner().arg("reproduce").arg(paper));
        if paper == "rhic" {
            steps.run("reproduce rhic --jobs any", gleaner().args(["reproduce", "rhic", "--jobs", "any"]));
        }
    }
}

/// How the demo may end: a deadline missed (3) on a busy machine is an honest result, not a fault of the change.
const MISSED_OR_MET: [i32; 2] = [0, 3];

fn demo(steps: &mut Steps) {
    steps.run("release build", cargo(&["build", "--release", "--quiet", "--bin", "gleaner"]));
    steps.run_with("demo", gleaner().arg("demo"), &MISSED_OR_MET);
}

fn gleaner() -> std::process::Command {
    cargo(&["run", "--release", "--quiet", "--bin", "gleaner", "--"])
}

fn fuzz(steps: &mut Steps, seconds: OsString) {
    steps.run("fuzz", program("fuzz/run.sh").arg(seconds));
}

fn docs(steps: &mut Steps) {
    steps.run("docs", cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"));
}

/// The helper for Xen is no member of the workspace, because it is under another licence.
fn xen_helper(steps: &mut Steps) {
    let helper = ["--manifest-path", "agent-xen/Cargo.toml"];
    steps.run("xen-helper fmt", cargo(&["fmt"]).args(helper).arg("--check"));
    let clippy = ["--all-targets", "--quiet", "--locked", "--", "-D", "warnings"];
    steps.run("xen-helper clippy", cargo(&["clippy"]).args(helper).args(clippy));
    steps.tests("xen-helper tests", cargo(&["test"]).args(helper).args(["--quiet", "--locked"]));
}

/// A program that `test` has built: an optimised one takes ten minutes more, and says the same.
fn tested(name: &str) -> std::process::Command {
    program(std::env::current_exe().unwrap_or_default().with_file_name(name))
}

/// What has to hold before a change lands. Tests of the crates run the kept inputs of the fuzz targets, and clippy compiles the
/// benches: to build and run either takes minutes, which `fuzz` and `bench` are for.
fn ci(steps: &mut Steps) {
    packages::install(steps);
    check(steps);
    test(steps, &[]);
    // Half as long again as the longest takes: on a machine that is slower all of this takes too long anyway.
    beds(steps, &[], Some(Duration::from_secs(30 * 60)));
    xen_helper(steps);
    steps.run_with("demo", tested("gleaner").arg("demo"), &MISSED_OR_MET);
    // Ten thousand are for a quiet hour.
    steps.run("whole-system", tested("whole-system").args(["--seeds", "200"]));
    docs(steps);
    deps::check(steps);
}
