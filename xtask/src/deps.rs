//! Rules on dependencies. In: the crates' dependency trees. Out: failures of licences, advisories and sources
//! (cargo-deny), and of the walls between crates. Called by `cargo xtask deps` and `ci`.

use std::path::Path;
use std::process::Stdio;

use crate::steps::{Failure, Steps, cargo};

/// Crates that decide or describe, and so may hold no runtime, network or cryptography, however far down.
const PURE: [&str; 5] =
    ["gleaner-types", "gleaner-planner", "gleaner-plan-check", "gleaner-simulator", "gleaner-experiments"];

/// What the pure crates may not hold.
const RUNTIMES: [&str; 6] = ["tokio", "mio", "hyper", "quinn", "ring", "rustls"];

/// The version of cargo-deny that is installed where it is missing.
const DENY_VERSION: &str = "0.20.2";

/// Names a copy of the databases of advisories, for machines without a network.
const ADVISORIES: &str = "GLEANER_ADVISORY_DBS";

pub(crate) fn check(steps: &mut Steps) {
    steps.step("walls between crates", |_| walls());
    let deny_is_here = cargo(&["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !deny_is_here.is_ok_and(|status| status.success()) {
        // It runs for seconds: built without optimisation it is there in a third of the time.
        let mut install =
            cargo(&["install", "cargo-deny", "--locked", "--version", DENY_VERSION, "--quiet", "--debug"]);
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        steps.run("install cargo-deny", install);
    }
    let deny = ["deny", "--log-level", "error", "check", "licenses", "bans", "sources"];
    steps.run("licences and sources", cargo(&deny));
    steps.run("licences and sources of the Xen helper", cargo(&deny).current_dir("agent-xen"));
    advisories(steps);
}

/// Checks what is known of vulnerable and unmaintained crates: against a copy of the database where one is given, otherwise
/// against the database itself where it can be reached.
fn advisories(steps: &mut Steps) {
    match std::env::var_os(ADVISORIES) {
        Some(copy) => steps.step("advisories, by a copy of their database", |_| {
            let config = std::env::temp_dir().join(format!("gleaner-deny-{}.toml", std::process::id()));
            let text = std::fs::read_to_string("deny.toml").map_err(Failure::Start)?;
            std::fs::write(&config, with_database(&text, Path::new(&copy))).map_err(Failure::Start)?;
            let mut deny = cargo(&["deny", "--log-level", "error", "--offline", "--config"]);
            let status = deny.arg(&config).args(["check", "advisories"]).status();
            _ = std::fs::remove_file(&config);
            let status = status.map_err(Failure::Start)?;
            if status.success() { Ok(()) } else { Err(Failure::Ended(status)) }
        }),
        None if cargo(&["deny", "--log-level", "off", "fetch", "db"]).status().is_ok_and(|status| status.success()) => {
            steps.run("advisories", cargo(&["deny", "--log-level", "error", "check", "advisories"]));
        }
        None => println!(
            "advisories are not checked: their database cannot be reached, and {ADVISORIES} names no copy (CONTRIBUTING.md)"
        ),
    }
}

/// The settings of cargo-deny with the folder of databases: a copy of `advisory-dbs` in cargo's home.
fn with_database(settings: &str, folder: &Path) -> String {
    let path = folder.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    settings.replacen("[advisories]\n", &format!("[advisories]\ndb-path = \"{path}\"\n"), 1)
}

/// No runtime below a pure crate, and no daemon below the command line.
fn walls() -> Result<(), Failure> {
    let members = tree(&["--workspace", "--depth", "0"])?;
    let mut breaches = Vec::new();
    let pure = PURE.iter().map(|own| (*own, &RUNTIMES[..]));
    for (own, banned) in pure.chain([("gleaner-cli", &["gleaner-agent", "gleaner-aggregator"][..])]) {
        if !members.iter().any(|member| member == own) {
            continue;
        }
        let below = tree(&["--package", own])?;
        let found = banned.iter().filter(|name| below.iter().any(|one| one == *name));
        breaches.extend(found.map(|name| format!("{own} depends on {name}")));
    }
    if breaches.is_empty() { Ok(()) } else { Err(Failure::Walls(breaches)) }
}

/// Names of the crates in a tree of what is linked.
fn tree(arguments: &[&str]) -> Result<Vec<String>, Failure> {
    let mut command = cargo(&["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let output = command.args(arguments).stderr(Stdio::inherit()).output().map_err(Failure::Start)?;
    if !output.status.success() {
        return Err(Failure::Ended(output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_database_gets_into_the_settings() {
        let own = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml")).unwrap();
        let settings = with_database(&own, Path::new("/srv/advisory-dbs"));
        assert_eq!(settings.matches("[advisories]\ndb-path = \"/srv/advisory-dbs\"\n").count(), 1, "{settings}");
        assert!(with_database("[advisories]\n", Path::new("/a\"b")).contains(r#"db-path = "/a\"b""#));
    }
}
