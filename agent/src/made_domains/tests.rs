//! Domains made, found and destroyed, with a program in the place of `xl` that keeps its domains in a file. Data only besides.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// Lists, makes and destroys lines of the file `domains`; what it was called with is in `calls`.
const STAND_IN: &str = r#"#!/bin/sh
cd "$(dirname "$0")"; echo "$*" >>calls; [ ! -e refuses ] || [ "$1" != create ] || { echo "libxl: error: refused" >&2; exit 3; }
case $1 in
    vm-list) echo "UUID ID name"; cat domains; [ ! -e later ] || mv later domains;;
    create) uuid=${5#*\"}; name=${4#*\"}; echo "${uuid%\"} $(($(wc -l <domains) + 1)) ${name%\"}" >>domains; [ ! -e breaks ] || exit 1;;
    destroy) grep -v " $2 " domains >rest; mv rest domains;;
esac
"#;

struct Bed {
    folder: tempfile::TempDir,
    toolstack: Toolstack,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("xl");
        fs::write(&program, STAND_IN).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("domains"), "00-0 0 Domain-0\nop-1 1 theirs\n").unwrap();
        Self { toolstack: Toolstack::of(&program), folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.file("state")
    }

    fn config(&self, name: &str) -> DomainConfig {
        let file = self.file(&format!("{name}.cfg"));
        DomainConfig { real: file.clone(), file, name: name.to_owned(), has_weight: false }
    }

    fn make(&self, names: &[&str]) -> Vec<String> {
        let configs: Vec<DomainConfig> = names.iter().map(|name| self.config(name)).collect();
        make_by(&self.toolstack, &configs, &self.state()).unwrap().iter().map(Told::to_string).collect()
    }

    fn end(&self) -> Vec<String> {
        let told = end_by(&self.toolstack, &self.state(), Duration::ZERO).unwrap();
        told.iter().map(Told::to_string).collect()
    }

    fn foreseen(&self, names: &[&str], unusable: &[UnusableFile], acts: bool) -> Vec<String> {
        let configs: Vec<DomainConfig> = names.iter().map(|name| self.config(name)).collect();
        foreseen(&configs, unusable, AtRestore::Leave, acts, &self.state())
    }

    fn domains(&self) -> Vec<String> {
        let domains = self.toolstack.domains(SHORT).unwrap();
        domains.into_iter().map(|domain| domain.name).collect()
    }
}

/// Only that it is not there was said.
fn is_absent(said: &[String]) -> bool {
    said.len() == 1 && said[0].starts_with("vol: Gleaner made it, and it is not there")
}

#[test]
fn what_gleaner_made_is_destroyed_and_nothing_else() {
    let bed = Bed::new();
    assert_eq!(bed.end(), [""; 0]);
    let said = bed.make(&["vol", "theirs"]);
    assert_eq!(said[0], "vol: made");
    assert!(said[1].contains("theirs: a domain of this name that Gleaner did not make"), "{said:?}");
    let calls = fs::read_to_string(bed.file("calls")).unwrap();
    let create = calls.lines().find(|line| line.starts_with("create")).unwrap();
    let made = record::read(&bed.state()).unwrap();
    let file = bed.file("vol.cfg");
    assert_eq!(create, format!("create -q {} name=\"vol\" uuid=\"{}\" cpu_weight=1", file.display(), made[0].uuid));
    assert_eq!(made.len(), 1, "of one domain of two");
    assert!(bed.make(&["vol"])[0].contains("it is there already"));

    assert_eq!(bed.end(), ["vol: destroyed"]);
    assert_eq!(bed.domains(), ["Domain-0", "theirs"]);
    assert!(!has_made(&bed.state()).unwrap());
    assert_eq!(bed.end(), [""; 0]);
}

#[test]
fn one_of_the_operators_that_took_the_name_and_number_is_not_gleaners() {
    let bed = Bed::new();
    bed.make(&["vol"]);
    let uuid = record::read(&bed.state()).unwrap()[0].uuid.clone();
    let domains = fs::read_to_string(bed.file("domains")).unwrap();
    fs::write(bed.file("domains"), domains.replace(&uuid, "op-2")).unwrap();
    assert!(is_absent(&bed.end()), "the other is not");
    assert_eq!(bed.domains(), ["Domain-0", "theirs", "vol"]);
    assert!(bed.make(&["vol"])[0].contains("did not make"));
    // Its own comes back under the same UUID, as xl starts a domain again that reboots: it is Gleaner's still.
    fs::write(bed.file("domains"), domains).unwrap();
    assert_eq!(bed.end(), ["vol: destroyed"]);
}

#[test]
fn one_that_reboots_meanwhile_is_destroyed_too() {
    let bed = Bed::new();
    bed.make(&["vol"]);
    // xl has it gone when it is asked first, and there under the same UUID and another number then.
    let domains = fs::read_to_string(bed.file("domains")).unwrap();
    fs::write(bed.file("later"), domains.replace(" 3 vol", " 7 vol")).unwrap();
    fs::write(bed.file("domains"), "00-0 0 Domain-0\nop-1 1 theirs\n").unwrap();
    assert_eq!(bed.end(), ["vol: destroyed"]);
    assert_eq!(bed.domains(), ["Domain-0", "theirs"]);
    assert!(fs::read_to_string(bed.file("calls")).unwrap().contains("destroy 7\n"));
}

#[test]
fn many_that_are_gone_take_no_time_from_one_that_is_there() {
    let bed = Bed::new();
    let mut record = Record::open(&bed.state()).unwrap();
    for number in 0..40 {
        let gone = MadeDomain { uuid: format!("gone-{number}"), name: "old".into(), file: bed.file("old.cfg") };
        record.add(gone, &[]).unwrap();
    }
    drop(record);
    bed.make(&["vol"]);
    fs::write(bed.file("calls"), "").unwrap();
    let said = bed.end();
    assert!(said[0] == "vol: destroyed" && said[1].starts_with("old: Gleaner made it") && said.len() == 2, "{said:?}");
    // The two looks, and three for the one that is destroyed: its number, the destroying, that it is gone.
    let calls = fs::read_to_string(bed.file("calls")).unwrap();
    assert_eq!(calls.lines().collect::<Vec<_>>(), ["vm-list", "vm-list", "destroy 3", "vm-list", "vm-list"]);
}

#[test]
fn a_crash_before_or_while_it_is_made_leaves_nothing_unknown() {
    let bed = Bed::new();
    // Between the record and the domain: nothing to destroy, and the next call makes one.
    let mut record = Record::open(&bed.state()).unwrap();
    record.add(MadeDomain { uuid: "u-1".into(), name: "vol".into(), file: bed.file("vol.cfg") }, &[]).unwrap();
    drop(record);
    assert!(is_absent(&bed.end()));
    // After the domain was made, and before anybody knew.
    fs::write(bed.file("domains"), "00-0 0 Domain-0\nu-1 9 vol\n").unwrap();
    assert!(bed.make(&["vol"])[0].contains("made earlier"));
    assert_eq!(bed.end(), ["vol: destroyed"]);
    assert_eq!(bed.domains(), ["Domain-0"]);
}

#[test]
fn what_a_failing_toolstack_leaves_is_taken_away() {
    let bed = Bed::new();
    fs::write(bed.file("breaks"), "").unwrap();
    let said = bed.make(&["vol"]);
    assert!(said[0].starts_with("vol: failed: `xl create -q "), "{said:?}");
    assert_eq!(bed.domains(), ["Domain-0", "theirs"], "the half of a domain is gone");
    assert!(!has_made(&bed.state()).unwrap());
    fs::remove_file(bed.file("breaks")).unwrap();
    fs::write(bed.file("refuses"), "").unwrap();
    let said = bed.make(&["vol", "theirs"]);
    assert!(said[0].ends_with("libxl: error: refused") && said[1].contains("did not make"), "{said:?}");
}

#[test]
fn nothing_is_made_that_cannot_be_recorded() {
    let bed = Bed::new();
    fs::create_dir_all(bed.state().join("domains")).unwrap();
    for folder in [bed.state(), bed.state().join("domains")] {
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(bed.state().join("domains/made.json"), "{").unwrap();
    let error = make_by(&bed.toolstack, &[bed.config("vol")], &bed.state()).unwrap_err();
    assert!(chain(&error).contains("made.json, cannot be used"), "{error}");
    assert!(end_by(&bed.toolstack, &bed.state(), REBOOT).is_err() && has_made(&bed.state()).is_err());
    assert_eq!(bed.domains(), ["Domain-0", "theirs"]);
    assert!(bed.foreseen(&["vol"], &[], true).iter().any(|said| said.contains("PROBLEM")));
}

#[test]
fn what_is_foreseen_is_what_would_be_done() {
    let bed = Bed::new();
    assert!(bed.foreseen(&["vol"], &[], true)[0].ends_with("at restore they are left as they were made"));
    let said = bed.foreseen(&["vol"], &[], false);
    assert_eq!(said, ["while act.enabled is false no domain of volunteer.domain_configs is made"]);
    assert_eq!(bed.foreseen(&[], &[], true), [""; 0]);
    let unusable = UnusableFile { file: "/etc/xen/no.cfg".into(), why: "it cannot be used".to_owned() };
    let said = bed.foreseen(&[], &[unusable], true);
    assert_eq!(said, ["PROBLEM: `volunteer.domain_configs` has \"/etc/xen/no.cfg\": it cannot be used"]);
}
