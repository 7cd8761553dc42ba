//! Mutants with a name: single changes that some test has to notice, whatever else becomes of the code. In: the tree.
//! Out: which of them a test noticed. Called by `cargo xtask mutants named`, which applies them one at a time to a copy
//! of the tree. What each replaces must be in its file once, which a quick test holds, so that the list keeps up with the
//! code.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::{Failure, Steps, cargo, program};

/// A change, and the test that has to fail for it.
struct Named {
    name: &'static str,
    file: &'static str,
    old: &'static str,
    new: &'static str,
    package: &'static str,
    /// A part of the names of unit tests.
    test: &'static str,
    /// It takes a real bed; the test within it that has to fail, because a bed can fail for other reasons.
    bed: Option<&'static str>,
}

const RECORDS: &str = "    for record in records {\n        match record.lever.read() {\n";
const BACK: &str = "                    wanted: record.original.clone(),\n";
const PUT_BACK: &str = "what_was_limited_is_put_back_whatever_it_is";

const NAMED: [Named; 13] = [
    Named {
        name: "restoring skips what a guest sends",
        file: "agent/src/act/restore.rs",
        old: RECORDS,
        new: "    let skipped = |record: &&Record| !matches!(&record.lever, AnyLever::Link(link) \
              if link.direction == crate::netlink::Direction::Transmit);\n    \
              for record in records.iter().filter(skipped) {\n        match record.lever.read() {\n",
        package: "gleaner-agent",
        test: "every_test_holds_on_a_version_2_host",
        bed: Some("a_ceiling_on_a_link_is_put_back_in_both_directions"),
    },
    Named {
        name: "restoring skips weights on the disk",
        file: "agent/src/act/restore.rs",
        old: RECORDS,
        new: "    let skipped = |record: &&Record| !record.lever.to_string().ends_with(\"io.weight\");\n    \
              for record in records.iter().filter(skipped) {\n        match record.lever.read() {\n",
        package: "gleaner-agent",
        test: PUT_BACK,
        bed: None,
    },
    Named {
        name: "restoring skips operations per second",
        file: "agent/src/act/restore.rs",
        old: BACK,
        new: "                    wanted: match record.original.clone() {\n                        \
              LeverValue::Throttle(found) => LeverValue::Throttle(crate::levers::Throttle {\n                            \
              read_operations: None, write_operations: None, ..found }),\n                        \
              other => other,\n                    },\n",
        package: "gleaner-agent",
        test: PUT_BACK,
        bed: None,
    },
    Named {
        name: "a file that is replaced is not synced",
        file: "common/daemon/src/durable.rs",
        old: "    file.write_all(content)?;\n    file.sync_all()\n",
        new: "    file.write_all(content)\n",
        package: "gleaner-agent",
        test: "a_ledger_is_synced_before_and_after_it_gets_its_name",
        bed: None,
    },
    Named {
        name: "a folder is not synced",
        file: "common/daemon/src/durable.rs",
        old: "    File::open(folder)?.sync_all()\n",
        new: "    File::open(folder).map(|_| ())\n",
        package: "gleaner-agent",
        test: "a_ledger_is_synced_before_and_after_it_gets_its_name",
        bed: None,
    },
    Named {
        name: "the event log is not synced",
        file: "aggregator/src/line_files.rs",
        old: "self.whole().and_then(|()| self.file.sync_data())",
        new: "self.whole()",
        package: "gleaner-aggregator",
        test: "a_line_that_did_not_reach_the_disk_is_not_there",
        bed: None,
    },
    Named {
        name: "events are acknowledged before the sync",
        file: "aggregator/src/event_log.rs",
        old: "self.synced.get(&(host.clone(), incarnation))",
        new: "self.written.get(&(host.clone(), incarnation))",
        package: "gleaner-aggregator",
        test: "events_",
        bed: None,
    },
    Named {
        name: "a keeper that is gone is not replaced",
        file: "agent/src/keeper.rs",
        old: "        self.keeper = None;\n        match self.spawn() {\n",
        new: "        self.keeper = None;\n        match Err::<Keeper, _>(io::Error::other(\"no\")) {\n",
        package: "gleaner-agent",
        test: "a_keeper_is_replaced_by_the_same_program_whatever_became_of_its_file",
        bed: None,
    },
    Named {
        name: "the aggregator commands leases twice as long",
        file: "planner/src/controller/hosts/reconcile.rs",
        old: "u32::try_from(lease.as_millis())",
        new: "u32::try_from(lease.as_millis() * 2)",
        package: "gleaner-planner",
        test: "leases_are_renewed_with_the_same_version",
        bed: None,
    },
    Named {
        name: "the agent holds leases twice as long",
        file: "agent/src/act.rs",
        old: "now.after(Duration::from_millis(command.lease_ms.into()))",
        new: "now.after(2 * Duration::from_millis(command.lease_ms.into()))",
        package: "gleaner-agent",
        test: "limits_are_versioned_and_end_with_their_lease",
        bed: None,
    },
    Named {
        name: "a task runs as root without a second word",
        file: "agent/src/tasks.rs",
        old: "job.user.is_root() && self.settings.of_root() == Some(false)",
        new: "job.user.is_root() && false",
        package: "gleaner-agent",
        test: "a_task_runs_as_root_only_where_the_config_says_so",
        bed: None,
    },
    Named {
        name: "the number of no user is taken for a user's",
        file: "agent/src/launch/restrict.rs",
        old: "[*uid, *gid].contains(&u32::MAX)",
        new: "[*uid, *gid].contains(&70_000)",
        package: "gleaner-agent",
        test: "a_task_runs_as_root_only_where_the_config_says_so",
        bed: None,
    },
    Named {
        name: "a host has no share of the event log",
        file: "aggregator/src/event_log.rs",
        old: "if fit == Fit::Within {",
        new: "if fit == Fit::Within || matches!(subject, Subject::Host(_)) {",
        package: "gleaner-aggregator",
        test: "hosts_that_flood_push_out_nothing_of_others",
        bed: None,
    },
];

/// Where the copy is.
const FOLDER: &str = "target/mutants/named";

/// Tries every one, or with `only` those whose name has it in it.
pub(super) fn run(steps: &mut Steps, only: Option<&str>) {
    let chosen: Vec<&Named> = NAMED.iter().filter(|named| only.is_none_or(|part| named.name.contains(part))).collect();
    let tree = match copy() {
        Ok(tree) => tree,
        Err(error) => return steps.step("a copy of the tree", |_| Err(Failure::Start(error))),
    };
    // First all without any, in one build of each package.
    let good: Vec<bool> = chosen.iter().map(|named| named.is_good(&tree)).collect();
    for (named, good) in chosen.into_iter().zip(good) {
        steps.step(named.name, |_| match good {
            true => named.is_noticed(&tree),
            false => Err(Failure::Unjudged("without the mutant its test is bad, skipped or not there".to_owned())),
        });
    }
}

/// Copies what git knows. Files that have not changed keep their times, so that little is built anew.
fn copy() -> std::io::Result<PathBuf> {
    let tree = std::env::current_dir()?.join(FOLDER);
    std::fs::create_dir_all(&tree)?;
    let listed = program("git").args(["ls-files", "-z"]).output()?;
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = Path::new(std::str::from_utf8(name).map_err(std::io::Error::other)?);
        // One that was removed and is not committed yet.
        let Ok(content) = std::fs::read(name) else { continue };
        let to = tree.join(name);
        if std::fs::read(&to).is_ok_and(|before| before == content) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, content)?;
        std::fs::set_permissions(&to, std::fs::metadata(name)?.permissions())?;
    }
    Ok(tree)
}

impl Named {
    /// Its tests are there, run here, and are good without it.
    fn is_good(&self, tree: &Path) -> bool {
        let tried = self.test(tree);
        // A bed tells what was skipped within it.
        tried.is_ok_and(|(good, said)| {
            good && said.contains("... ok") && (self.bed.is_some() || !said.contains("SKIPPED: "))
        })
    }

    /// A test is bad with it.
    fn is_noticed(&self, tree: &Path) -> Result<(), Failure> {
        let path = tree.join(self.file);
        let before = std::fs::read_to_string(&path).map_err(Failure::Start)?;
        std::fs::write(&path, before.replacen(self.old, self.new, 1)).map_err(Failure::Start)?;
        let tried = self.test(tree);
        std::fs::write(&path, before).map_err(Failure::Start)?;
        let bad = self.bed.unwrap_or(self.test);
        match tried? {
            (true, _) => Err(Failure::Unjudged("no test noticed it".to_owned())),
            (false, said) if said.lines().any(|line| line.contains(bad) && line.contains("... FAILED")) => Ok(()),
            (false, _) => Err(Failure::Unjudged("it does not compile, or something else failed".to_owned())),
        }
    }

    /// Whether its tests are good, and what they say.
    fn test(&self, tree: &Path) -> Result<(bool, String), Failure> {
        let mut command: Command = cargo(&["test", "--package", self.package, "--lib", self.test]);
        if std::env::var_os("CARGO_TARGET_DIR").is_none() {
            command.env("CARGO_TARGET_DIR", tree.with_extension("build"));
        }
        if self.bed.is_some() {
            command.env("GLEANER_BEDS", "1");
        }
        let output = command.current_dir(tree).stdin(Stdio::null()).output().map_err(Failure::Start)?;
        // A test that skips itself says so past the harness.
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        println!("{}", said.lines().rev().find(|line| line.starts_with("test result")).unwrap_or(&said));
        Ok((output.status.success(), said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_replaces_is_in_its_file_once_and_its_tests_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let sources =
            program("git").args(["grep", "-h", "fn [a-z_0-9]*", "--", "*.rs"]).current_dir(root).output().unwrap();
        let sources = String::from_utf8(sources.stdout).unwrap();
        for named in &NAMED {
            let text = std::fs::read_to_string(root.join(named.file)).unwrap();
            assert_eq!(text.matches(named.old).count(), 1, "{}: {}", named.name, named.file);
            assert_ne!(named.old, named.new, "{}", named.name);
            assert!(sources.contains(&format!("fn {}", named.test)), "{}: {}", named.name, named.test);
        }
    }
}
