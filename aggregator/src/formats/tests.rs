//! Tests of formats: golden files of every released one are read.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;
use gleaner_planner::controller::{Controller, HeldUntil};
use gleaner_types::application::Control;
use gleaner_types::id::HostId;
use gleaner_types::job::JobSpec;
use gleaner_types::time::Timestamp;

use super::trace::{Definitions, schema};
use super::*;
use crate::enrolment::Admissions;

/// Formats of which golden files are kept.
pub(crate) const GOLDEN: [u64; 3] = [2, 3, CURRENT];

/// A golden file of a format.
pub(crate) fn golden_file(format: u64, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}")).join(name)
}

/// The store of a format.
pub(crate) fn golden_store(format: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(golden_file(format, "state.redb.deflate")).unwrap();
    DeflateDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

/// That a state is the one of the golden files, which hold the same in every format.
pub(crate) fn is_golden(controller: &Controller, admissions: &Admissions) {
    let beginning = Timestamp(1_700_000_000_000);
    assert_eq!(controller.epoch(), beginning.0);
    assert_eq!(controller.latest(), Timestamp(beginning.0 + 240_000));
    assert_eq!((controller.settings().evaluation_interval_s, controller.settings().ended_jobs_kept), (6.0, 20));
    let job = |status: &gleaner_types::job::JobStatus| (status.spec.id.to_string(), status.phase.word().to_owned());
    let jobs: Vec<(String, String)> = controller.jobs().map(job).collect();
    let expected = [
        ("done", "completed"),
        ("broken", "failed"),
        ("cancelled", "cancelled"),
        ("tiles", "running"),
        ("crawl", "running"),
        ("rank", "running"),
        ("sort", "waiting"),
    ];
    assert_eq!(jobs, expected.map(|(job, phase)| (job.to_owned(), phase.to_owned())));
    for status in controller.jobs().filter(|job| job.phase.word() == "running") {
        assert!(
            status.decisions > 0 && status.cost > gleaner_types::units::Dollars::ZERO && status.progress.is_some(),
            "{status:?}"
        );
        let decision = controller.last_decision(&status.spec.id).unwrap();
        assert_eq!(decision.number, status.decisions, "{status:?}");
    }
    for (status, expected) in controller.jobs().zip(golden::jobs()) {
        let (spec, options) = (&status.spec, |spec: &JobSpec| spec.engine.options.read::<serde_json::Value>().unwrap());
        assert_eq!(options(spec), options(&expected));
        assert_eq!((&spec.engine.name, &spec.workers), (&expected.engine.name, &expected.workers));
        assert_eq!((spec.goal, spec.power), (expected.goal, expected.power));
    }
    let names: Vec<&str> = controller.applications().map(|status| status.spec.name.as_str()).collect();
    assert_eq!(names, ["arma", "kalman", "pi", "shop", "stfc"]);
    // Format 2 had controllers by the first three names.
    let controls = controller.applications().map(|status| status.spec.control);
    assert!(controls.eq([Control::Stfc, Control::Stfc, Control::Stfc, Control::Balance, Control::Stfc]));
    assert!(controller.applications().all(|status| status.decision.is_some() && status.response.is_some()));
    let hosts = controller.hosts();
    let names: Vec<&str> = hosts.iter().map(|host| host.host.as_str()).collect();
    assert_eq!(names, ["a1", "d1", "d2", "here", "i1", "i2", "i3", "i4", "i5"]);
    assert!(hosts.iter().all(|host| host.facts.cores == 8 && host.incarnation == 5));
    let held = Some(HeldUntil::Time(Timestamp(beginning.0 + 200_000 + 86_400_000)));
    for name in ["i2", "never-joined"] {
        assert_eq!(controller.held_until(&HostId::new(name).unwrap()), held);
    }
    assert_eq!(admissions.invitations(beginning).map(|(host, _)| host.as_str()).collect::<Vec<_>>(), ["new"]);
    let revoked: Vec<(&str, Timestamp)> = admissions.revocations().map(|(host, at)| (host.as_str(), at)).collect();
    assert_eq!(revoked, [("old", beginning)]);
}

/// The schema of what this program stores.
fn schema_of_today() -> String {
    schema(&[
        ("controller", Definitions::trace::<Controller>),
        ("admissions", Definitions::trace::<Admissions>),
        ("replicated", Definitions::trace::<(Controller, Admissions)>),
    ])
}

fn current_schema_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/formats/state.{CURRENT}.schema"))
}

fn current_schema() -> String {
    std::fs::read_to_string(current_schema_file()).unwrap()
}

fn lines(schema: &str) -> Vec<&str> {
    schema.lines().filter(|line| !line.starts_with('#')).collect()
}

/// What is stored changes only with its format: a released format never changes. What types are called does not
/// matter, what fields and variants are called does, because converters know those. Once the current one is released, a
/// change of a stored type means a new number, a new schema file, and a converter from the one before.
#[test]
fn what_is_stored_is_the_current_schema() {
    let (today, committed) = (schema_of_today(), current_schema());
    if std::env::var_os("GLEANER_WRITE_SCHEMA").is_some() {
        let head = committed.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
        std::fs::write(current_schema_file(), head.collect::<String>() + &today).unwrap();
        return;
    }
    let parsed = |text: &str| Schema::parse(text.to_owned().leak()).unwrap();
    let (shapes_of_today, shapes_committed) = (parsed(&today), parsed(&committed));
    let (today, committed) = (lines(&today), lines(&committed));
    let only = |these: &[&str], others: &[&str]| {
        these.iter().filter(|line| !others.contains(line)).map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    assert!(
        ["controller", "admissions", "replicated"]
            .iter()
            .all(|document| shapes_of_today.spelled_out(document) == shapes_committed.spelled_out(document)),
        "what is stored changed. Not in format {CURRENT}: {:#?}\nonly in it: {:#?}\nIf that format is released, add the \
         next one in `formats.rs`; if not, write its schema anew with GLEANER_WRITE_SCHEMA=1 and look at the converter",
        only(&today, &committed),
        only(&committed, &today),
    );
}

/// What a schema reads from bytes of today's types is, by names, what those types read from them by place.
#[test]
fn a_schema_reads_what_the_types_read() {
    let folder = tempfile::tempdir().unwrap();
    let (controller, admissions, _) = golden::state(folder.path());
    let both = (controller, admissions);
    let mut bytes = Vec::new();
    gleaner_wire::encode_value(0, &both, &mut bytes).unwrap();
    let value = read_named(current_schema().leak(), Document::Replicated, &bytes).unwrap();
    assert!(value.into_type::<(Controller, Admissions)>().unwrap() == both);
}

#[test]
fn every_format_is_read() {
    for format in GOLDEN {
        let bytes = golden_replicated(format);
        let (controller, admissions) = read::<(Controller, Admissions)>(Document::Replicated, format, &bytes).unwrap();
        is_golden(&controller, &admissions);
    }
}

/// The state as it is replicated.
fn golden_replicated(format: u64) -> Vec<u8> {
    let mut state = Vec::new();
    let packed = std::fs::File::open(golden_file(format, "etcd-chunk-0000")).unwrap();
    DeflateDecoder::new(packed).read_to_end(&mut state).unwrap();
    state
}

#[test]
fn damage_to_a_state_is_an_error() {
    let bytes = golden_replicated(2);
    for end in (0..bytes.len()).step_by(211) {
        let cut = read::<(Controller, Admissions)>(Document::Replicated, 2, &bytes[..end]);
        assert!(matches!(cut, Err(ReadError::Damaged(_))), "cut at {end}");
    }
    for place in (0..bytes.len()).step_by(307) {
        let mut changed = bytes.clone();
        changed[place] ^= 0xff;
        // Another value or an error, never a panic.
        _ = read::<(Controller, Admissions)>(Document::Replicated, 2, &changed);
    }
    let other = read::<Controller>(Document::Controller, CURRENT + 1, &bytes).unwrap_err();
    assert!(matches!(other, ReadError::Unknown(UnknownFormat { found, .. }) if found == CURRENT + 1));
    assert!(matches!(read::<Controller>(Document::Controller, 1, &bytes), Err(ReadError::Unknown(_))));
}

#[test]
fn a_value_becomes_a_type_that_has_other_fields() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Today {
        kept: u32,
        new: Option<String>,
        now_optional: Option<bool>,
        variant: Variant,
    }
    #[derive(Debug, PartialEq, serde::Deserialize)]
    enum Variant {
        Plain,
        Tuple(u8, i64),
        Record { x: f64 },
    }
    let schema = Schema::parse(
        "# A comment\nroot = [Old]\nOld = { gone: [text: u8]?, kept: u32, now_optional: bool, variant: Choice }\n\
         Choice = < Record { x: f64 }, Plain, Tuple (u8, i64) >",
    );
    let schema = schema.unwrap();
    let gone = std::collections::BTreeMap::from([("a".to_owned(), 1_u8)]);
    let mut bytes = Vec::new();
    let records = ((Some(&gone), 300_u32, true, (0_u32, 0.5)), (None::<u8>, 7_u32, false, (2_u32, 9_u8, -4_i64)));
    gleaner_wire::encode_value(0, &(2_u8, records, (None::<u8>, 0_u32, true, 1_u32)), &mut bytes).unwrap();
    bytes[0] = 3;
    let value = decode_stored_as(0, schema.of("root").unwrap(), &bytes).unwrap();
    let read: Vec<Today> = value.into_type().unwrap();
    let today = |kept, now, variant| Today { kept, new: None, now_optional: Some(now), variant };
    assert_eq!(
        read,
        [
            today(300, true, Variant::Record { x: 0.5 }),
            today(7, false, Variant::Tuple(9, -4)),
            today(0, true, Variant::Plain)
        ]
    );
    bytes[0] = 1;
    assert!(decode_stored_as(0, schema.of("root").unwrap(), &bytes).is_err(), "something is left over");
    for wrong in ["root", "root =", "root = [u8", "root = { a u8 }", "root = u8 u8", "= u8"] {
        assert!(Schema::parse(wrong).is_err(), "{wrong}");
    }
}
