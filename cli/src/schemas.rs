//! Schemas of what commands print with `--json`: docs/json/*.schema.json. In: the types behind the answers. Out: JSON Schema
//! (2020-12). The test here compares them with the committed files, or writes those with `GLEANER_WRITE_JSON_SCHEMA=1`; end-to-end
//! tests check real answers against the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_api::{AuditRecord, InvitationView, Invited, JobDetail, Overview, RevocationView};
use gleaner_planner::advice::Advice;
use gleaner_planner::controller::HostView;
use gleaner_planner::power::{PowerFit, PowerSample};
use gleaner_planner::{mapreduce, snapshot};
use gleaner_test_support::shape::Shape;
use gleaner_types::application::{ApplicationStatus, BalanceDecision};
use gleaner_types::command::Limits;
use gleaner_types::event::Event;
use gleaner_types::guest::GuestName;
use gleaner_types::harm::HarmInterval;
use gleaner_types::job::{Decision, EngineProgress, JobStatus, PoolShare, ReservedNode};
use gleaner_types::report::{HostHarm, Reading, WorkloadSample};
use gleaner_types::units::CoreShare;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Types by name.
#[derive(Debug, Default)]
struct Definitions(BTreeMap<String, Value>);

/// Numbers that may be infinite or none, which JSON has no word for: they are null.
const NO_NUMBERS: [(&str, &str); 2] = [("Quality", "left_out_percent"), ("Quality", "r_squared")];

/// A field: its name, its schema, and whether every answer has it.
type Field = (&'static str, Value, bool);

impl Definitions {
    fn of<T: for<'de> Deserialize<'de>>(&mut self) -> Value {
        self.schema(&Shape::of::<T>(true))
    }

    fn list<T: for<'de> Deserialize<'de>>(&mut self) -> Value {
        json!({ "type": "array", "items": self.of::<T>() })
    }

    /// The fields of a record.
    fn fields<T: for<'de> Deserialize<'de>>(&mut self) -> Vec<Field> {
        match Shape::of::<T>(true) {
            Shape::Record(_, fields) => fields.iter().map(|(name, shape)| self.field(name, shape)).collect(),
            other => panic!("{other:?} is no record"),
        }
    }

    fn field(&mut self, name: &'static str, shape: &Shape) -> Field {
        // What has no value may be left out.
        (name, self.schema(shape), !matches!(shape, Shape::Option(_) | Shape::Any))
    }

    fn schema(&mut self, shape: &Shape) -> Value {
        match shape {
            Shape::Unknown => unreachable!("complete"),
            Shape::Any => json!({}),
            Shape::Unit => json!({ "type": "null" }),
            Shape::Scalar("bool") => json!({ "type": "boolean" }),
            Shape::Scalar("text") => json!({ "type": "string" }),
            Shape::Scalar("f64") => json!({ "type": "number" }),
            Shape::Scalar(name) if name.starts_with('u') => json!({ "type": "integer", "minimum": 0 }),
            Shape::Scalar(_) => json!({ "type": "integer" }),
            Shape::Option(inner) => or_null(self.schema(inner)),
            Shape::List(inner) => json!({ "type": "array", "items": self.schema(inner) }),
            Shape::Map(both) => json!({ "type": "object", "additionalProperties": self.schema(&both.1) }),
            Shape::Tuple(items) => {
                let items: Vec<Value> = items.iter().map(|item| self.schema(item)).collect();
                json!({ "type": "array", "prefixItems": items, "items": false })
            }
            Shape::Record(name, fields) => {
                let mut fields: Vec<Field> = fields.iter().map(|(name, shape)| self.field(name, shape)).collect();
                for (_, schema, _) in fields.iter_mut().filter(|(field, ..)| NO_NUMBERS.contains(&(*name, *field))) {
                    *schema = or_null(schema.take());
                }
                if name.is_empty() { object(fields) } else { self.define(name, object(fields)) }
            }
            Shape::Choice(name, variants) => {
                let is_unit = |shape: &Shape| matches!(shape, Shape::Unit);
                let units: Vec<&str> =
                    variants.iter().filter(|(_, shape)| is_unit(shape)).map(|(name, _)| *name).collect();
                let mut any = if units.is_empty() { Vec::new() } else { vec![json!({ "enum": units })] };
                for (name, shape) in variants.iter().filter(|(_, shape)| !is_unit(shape)) {
                    any.push(object(vec![(*name, self.schema(shape), true)]));
                }
                let schema = if any.len() == 1 { any.remove(0) } else { json!({ "anyOf": any }) };
                self.define(name, schema)
            }
        }
    }

    fn define(&mut self, name: &str, schema: Value) -> Value {
        let names = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}{number}")));
        for name in names {
            if *self.0.entry(name.clone()).or_insert_with(|| schema.clone()) == schema {
                return json!({ "$ref": format!("#/$defs/{name}") });
            }
        }
        unreachable!("numbers do not end")
    }
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn object(fields: Vec<Field>) -> Value {
    let required: Vec<&str> = fields.iter().filter(|(_, _, always)| *always).map(|(name, ..)| *name).collect();
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, schema, _)| (name.to_owned(), schema)).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Fields that every answer has.
fn always(fields: Vec<(&'static str, Value)>) -> Vec<Field> {
    fields.into_iter().map(|(name, schema)| (name, schema, true)).collect()
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn number() -> Value {
    json!({ "type": "number" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// One file: its name, what prints it, and what makes it.
type Document = (&'static str, &'static str, fn(&mut Definitions) -> Value);

const DOCUMENTS: [Document; 36] = [
    ("hosts", "gleaner hosts", |types| types.list::<HostView>()),
    ("advise", "gleaner advise", |types| types.of::<Advice>()),
    ("audit", "gleaner audit; every line", |types| types.of::<AuditRecord>()),
    ("events", "gleaner events; every line", event),
    ("job-list", "gleaner job list", |types| types.list::<JobStatus>()),
    ("job-show", "gleaner job show", |types| types.of::<JobDetail>()),
    ("job-submit", "gleaner job submit", |_| object(always(vec![("job", text()), ("output_dir", text())]))),
    ("job", "gleaner job submit-cluster", |_| object(always(vec![("job", text())]))),
    ("job-cancel", "gleaner job cancel", |_| object(always(vec![("job", text()), ("user", or_null(text()))]))),
    ("top", "gleaner top --once", |types| {
        let (overview, hosts, jobs) = (types.of::<Overview>(), types.list::<HostView>(), types.list::<JobStatus>());
        object(always(vec![("overview", overview), ("hosts", hosts), ("jobs", jobs)]))
    }),
    ("app-list", "gleaner app list", |types| types.list::<ApplicationStatus>()),
    ("app-show", "gleaner app show", |types| types.of::<ApplicationStatus>()),
    ("app", "gleaner app apply, remove and respond", |_| object(always(vec![("application", text())]))),
    ("guests", "gleaner guests", guests),
    ("host-hold", "gleaner host hold and release", |_| {
        let until = json!({ "anyOf": [count(), { "const": "released" }, { "type": "null" }] });
        let one = object(always(vec![("host", text()), ("held_until", until.clone())]));
        let all = object(always(vec![("all", json!({ "const": true })), ("held_until", until)]));
        json!({ "anyOf": [one, all] })
    }),
    ("host-remove", "gleaner host remove", |_| {
        object(always(vec![("host", text()), ("removed", json!({ "const": true }))]))
    }),
    ("host-invite", "gleaner host invite", |types| types.of::<Invited>()),
    ("host-invitations", "gleaner host invitations", |types| {
        let (invitations, revocations) = (types.list::<InvitationView>(), types.list::<RevocationView>());
        object(always(vec![("invitations", invitations), ("revocations", revocations)]))
    }),
    ("host-uninvite", "gleaner host uninvite", |_| object(always(vec![("host", text())]))),
    ("host-revoke", "gleaner host revoke", |_| {
        object(always(vec![("host", text()), ("through", count()), ("was_connected", json!({ "type": "boolean" }))]))
    }),
    ("explain-job", "gleaner explain JOB", |types| {
        let fields = types.fields::<Decision>();
        explained(types, fields)
    }),
    ("explain-app", "gleaner explain APPLICATION", |types| {
        let fields = types.fields::<BalanceDecision>();
        explained(types, fields)
    }),
    ("run", "gleaner run", run),
    ("demo", "gleaner demo", demo),
    ("plan-size", "gleaner plan size", |types| types.of::<snapshot::SizeAnswer>()),
    ("plan-tune", "gleaner plan tune", |types| types.of::<snapshot::tune::TuneAnswer>()),
    ("plan-balance", "gleaner plan balance", |types| types.of::<snapshot::balance::BalanceAnswer>()),
    ("plan-arbitrate", "gleaner plan arbitrate", |types| types.of::<snapshot::balance::ArbitrateAnswer>()),
    ("plan-fill", "gleaner plan fill", |types| types.of::<snapshot::fill::FillAnswer>()),
    ("plan-share", "gleaner plan share", |types| types.of::<snapshot::share::ShareAnswer>()),
    ("plan-autoscale", "gleaner plan autoscale", |types| {
        let mut fields = types.fields::<mapreduce::decide::Decision>();
        let (fitted, notes) = (or_null(types.of::<mapreduce::fit::Fitted>()), types.of::<Vec<String>>());
        fields.extend(always(vec![("version", count()), ("fitted", fitted), ("notes", notes)]));
        object(fields)
    }),
    ("simulate", "gleaner simulate", |types| types.of::<gleaner_simulator::cluster::ClusterRun>()),
    ("calibrate-power", "gleaner calibrate power", |types| {
        let (fit, samples) = (types.of::<PowerFit>(), types.list::<PowerSample>());
        object(always(vec![("fit", fit), ("samples", samples)]))
    }),
    ("reproduce", "gleaner reproduce, but for harm", |_| {
        let mut figure = always(vec![
            ("id", text()),
            ("paper", or_null(number())),
            ("ours", or_null(number())),
            ("unit", text()),
            ("target", text()),
            ("holds", json!({ "type": "boolean" })),
            ("note", text()),
        ]);
        let ends = json!([number(), number()]);
        figure.push(("median", number(), false));
        figure.push(("calm", json!({ "type": "boolean" }), false));
        figure.push(("interval", json!({ "type": "array", "prefixItems": ends, "items": false }), false));
        json!({ "type": "array", "items": object(figure) })
    }),
    ("reproduce-harm", "gleaner reproduce harm", |_| {
        let percents = ["harvested_percent", "harm_percent", "harm_worst_percent", "over_budget_percent", "changes"];
        let mut fields = always(vec![("kernel", text()), ("protection", text())]);
        fields.extend(percents.map(|name| (name, number(), true)));
        json!({ "type": "array", "items": object(fields) })
    }),
    ("replay", "gleaner replay; a line for each journal", |_| {
        let difference = or_null(object(always(vec![
            ("step", count()),
            ("at", count()),
            ("input", json!({})),
            ("recorded", json!({ "type": "array" })),
            ("replayed", json!({ "type": "array" })),
        ])));
        let replay = object(always(vec![
            ("steps", count()),
            ("span", json!({ "type": "array", "prefixItems": [count(), count()], "items": false })),
            ("torn", json!({ "type": "boolean" })),
            ("difference", difference),
        ]));
        object(always(vec![("file", text()), ("same", json!({ "type": "boolean" })), ("replay", replay)]))
    }),
];

/// A line of the event log: what every line has, and the fields of its event.
fn event(types: &mut Definitions) -> Value {
    let Shape::Choice(_, events) = Shape::of::<Event>(true) else { panic!("an event is no choice") };
    let of_event = |(name, shape): &(&'static str, Shape)| {
        let mut fields = always(vec![
            ("time", text()),
            ("at_ms", count()),
            ("format", count()),
            ("source", json!({ "enum": ["aggregator", "agent"] })),
            ("event", json!({ "const": name })),
        ]);
        let of_agents = ["logged_ms", "incarnation", "sequence"].map(|name| (name, count(), false));
        fields.extend(of_agents.into_iter().chain([("agent", text(), false)]));
        if let Shape::Record(_, own) = shape {
            fields.extend(own.iter().map(|(name, shape)| types.field(name, shape)));
        }
        object(fields)
    };
    let events: Vec<Value> = events.iter().map(of_event).collect();
    json!({ "anyOf": events })
}

/// A decision, and beside it the harm on its hosts and, of a job, its share and the first tasks that failed.
fn explained(types: &mut Definitions, mut decision: Vec<Field>) -> Value {
    let mut harm = types.fields::<HostHarm>();
    harm.extend([("host", text(), true), ("volunteer_held", or_null(text()), true)]);
    let harm = types.define("HarmOn", object(harm));
    decision.push(("harm", json!({ "type": "array", "items": harm }), true));
    decision.push(("share", types.of::<PoolShare>(), false));
    let pair = json!({ "type": "array", "prefixItems": [text(), text()], "items": false });
    let mut failed = always(vec![("task", count()), ("how", text()), ("attempts", count())]);
    failed.extend([("host", text(), false), ("output", pair, false)]);
    decision.push(("first_failed", json!({ "type": "array", "items": object(failed) }), false));
    decision.push(("leases", types.list::<ReservedNode>(), false));
    object(decision)
}

/// A workload: what is known of it, and what its manager calls it where the agent says that.
fn guests(types: &mut Definitions) -> Value {
    let (cpu, harm) = (types.of::<Reading<CoreShare>>(), or_null(types.of::<Reading<HarmInterval>>()));
    let (sample, limits) = (or_null(types.of::<WorkloadSample>()), or_null(types.of::<Limits>()));
    let mut fields = always(vec![
        ("host", text()),
        ("connected", json!({ "type": "boolean" })),
        ("reported", or_null(count())),
        ("role", json!({ "enum": ["foreground", "other"] })),
        ("guest", text()),
        ("protected", json!({ "enum": ["yes", "no_volunteer", "observes_only", "unknown"] })),
        ("cpu", cpu),
        ("sample", sample),
        ("harm", harm),
        ("limits", limits),
    ]);
    fields.push(("unnamed", text(), false));
    let name = types.fields::<GuestName>();
    fields.extend(name.into_iter().map(|(name, schema, _)| (name, schema, false)));
    json!({ "type": "array", "items": object(fields) })
}

fn run(types: &mut Definitions) -> Value {
    let (progress, decision, harm) = (types.of::<EngineProgress>(), types.of::<Decision>(), types.of::<HostHarm>());
    object(always(vec![
        ("job", text()),
        ("phase", json!({ "enum": ["completed", "failed", "cancelled"] })),
        ("goal_met", or_null(json!({ "type": "boolean" }))),
        ("elapsed_s", or_null(number())),
        ("tasks", or_null(progress)),
        ("cost", number()),
        ("harvested_core_s", number()),
        ("idle_core_s", number()),
        ("decisions", count()),
        ("decision", or_null(decision)),
        ("output", text()),
        ("harm", or_null(harm)),
        ("held_s", number()),
    ]))
}

fn demo(types: &mut Definitions) -> Value {
    let responses = object(always(vec![
        ("requests", count()),
        ("mean_ms", number()),
        ("p50_ms", number()),
        ("p95_ms", number()),
        ("p99_ms", number()),
    ]));
    let responses = types.define("Responses", responses);
    let (harm, decisions, job) = (types.of::<HostHarm>(), types.list::<Decision>(), types.of::<JobStatus>());
    let texts = types.of::<Vec<String>>();
    let others = object(always(vec![("busy", number()), ("capacity", number())]));
    object(always(vec![
        ("seed", count()),
        ("cpus", count()),
        ("deadline_s", number()),
        ("deadline_met", json!({ "type": "boolean" })),
        ("elapsed_s", or_null(number())),
        ("words", count()),
        ("words_counted", count()),
        ("free_core_s", number()),
        ("harvested_core_s", number()),
        ("foreground_alone", responses.clone()),
        ("foreground_beside", responses),
        ("guard_shrinks", count()),
        ("guard_freezes", count()),
        ("harm", or_null(harm)),
        ("others", or_null(others)),
        ("learned", texts.clone()),
        ("decisions", decisions),
        ("weaknesses", texts),
        ("job", job),
    ]))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json")
}

fn written((name, printed_by, make): &Document) -> (PathBuf, String) {
    let mut types = Definitions::default();
    let schema = make(&mut types);
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("{printed_by} --json"),
    });
    let fields = document.as_object_mut().unwrap();
    fields.extend(schema.as_object().unwrap().clone());
    if !types.0.is_empty() {
        fields.insert("$defs".into(), Value::Object(types.0.into_iter().collect()));
    }
    (folder().join(format!("{name}.schema.json")), serde_json::to_string_pretty(&document).unwrap() + "\n")
}

#[test]
fn the_schemas_in_the_docs_are_those_of_the_answers() {
    let write = std::env::var_os("GLEANER_WRITE_JSON_SCHEMA").is_some();
    for document in &DOCUMENTS {
        let (file, today) = written(document);
        if write {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&file, &today).unwrap();
        }
        assert!(
            std::fs::read_to_string(&file).unwrap_or_default() == today,
            "{} is out of date; write it anew: GLEANER_WRITE_JSON_SCHEMA=1 cargo test -p gleaner-cli --lib schemas",
            file.display()
        );
    }
    // One that nothing prints any more would go stale.
    let known = |name: &str| DOCUMENTS.iter().any(|(known, ..)| name == format!("{known}.schema.json"));
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known(&name) || !name.ends_with(".json"), "{name} is no schema of an answer");
    }
}
