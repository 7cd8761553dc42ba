//! The columns of each list, by which `--filter` and `--sort` choose and order its rows. In: a row as the aggregator answers it.
//! Out: its values; CPU in cores, times in RFC 3339, durations in seconds. Called by the commands that list.

use gleaner_api::AuditRecord;
use gleaner_planner::advice::HostAdvice;
use gleaner_planner::controller::HostView;
use gleaner_types::application::ApplicationStatus;
use gleaner_types::job::{EngineProgress, JobStatus};
use gleaner_types::report::{HostReport, Reading, WorkloadSample};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare};
use serde_json::{Map, Value as Json};

use crate::admission::Admission;
use crate::format;
use crate::format::CpuUnit;
use crate::guests;
use crate::guests::Guest;
use crate::list::{Columns, Value};
use crate::states;

/// Of `gleaner hosts`.
pub(crate) fn hosts<'a>(now: Timestamp) -> Columns<'a, HostView> {
    let cores = |of: fn(&HostReport) -> &Reading<CoreShare>| {
        move |view: &HostView| view.report.as_ref().and_then(|report| of(report).value()).map(|cpu| cpu.cores()).into()
    };
    let residual = |view: &HostView| view.report.as_ref().and_then(|report| report.residual.cpu.value().copied());
    Columns::<HostView>::new()
        .with("host", |view| view.host.as_str().into())
        .with("state", |view| states::host(view).0.into())
        .with("cpus", |view| view.facts.cores.into())
        .with("busy", cores(|report| &report.machine.cpu_busy))
        .with("foreground", |view| cpu(view.report.as_ref().map(HostReport::foreground_cpu)))
        .with("other", |view| cpu(view.report.as_ref().and_then(HostReport::other_cpu)))
        .with("expected", move |view| residual(view).map(|cpu| cpu.expected.cores()).into())
        .with("safe", move |view| residual(view).map(|cpu| cpu.safe.cores()).into())
        .with("volunteer", cores(|report| &report.volunteer.cpu))
        .with("allowed", cores(|report| &report.volunteer.allowance))
        .with("harm", |view| {
            let harm = view.report.as_ref().and_then(|report| report.harm.foreground.value());
            harm.map(|harm| harm.mean_percent).into()
        })
        .with("promises_broken", |view| {
            let forecast = view.report.as_ref().map(|report| &report.residual);
            let broken = forecast.and_then(|forecast| match forecast.windows {
                Some(windows) => windows.broken_share(),
                None => forecast.record.violation_rate(),
            });
            broken.map(|part| part.value() * 100.0).into()
        })
        .with("promised_risk", |view| {
            let windows = view.report.as_ref().and_then(|report| report.residual.windows);
            windows.map(|windows| windows.risk.value() * 100.0).into()
        })
        .with("age", move |view| view.reported.map(|at| now.seconds_since(at)).into())
        .with("job", |view| view.job.as_ref().map(|job| job.as_str()).into())
}

fn cpu(reading: Option<Reading<CoreShare>>) -> Value {
    reading.as_ref().and_then(Reading::value).map(|cpu| cpu.cores()).into()
}

/// Of `gleaner guests`; rates in bytes per second, memory in bytes.
pub(crate) fn guests<'a>(now: Timestamp) -> Columns<'a, Guest> {
    fn of_sample(of: impl Fn(&WorkloadSample) -> Option<f64>) -> impl Fn(&Guest) -> Value {
        move |guest| guest.sample.as_ref().and_then(&of).into()
    }
    fn rate(of: fn(&WorkloadSample) -> &Reading<BytesPerSec>) -> impl Fn(&Guest) -> Value {
        of_sample(move |sample| of(sample).value().map(|rate| rate.per_sec()))
    }
    let bytes = |memory: &Bytes| memory.0 as f64;
    Columns::<Guest>::new()
        .with("host", |guest| guest.host.as_str().into())
        .with("guest", |guest| guest.guest.as_str().into())
        .with("title", |guest| guest.title().into())
        .with("manager", |guest| guests::managed_by(guest).into())
        .with("cpu", |guest| guest.cpu.value().map(|cpu| cpu.cores()).into())
        .with("memory", of_sample(move |sample| sample.memory.value().map(bytes)))
        .with("read", rate(|sample| &sample.disk_read))
        .with("write", rate(|sample| &sample.disk_write))
        .with("receive", rate(|sample| &sample.network_receive))
        .with("send", rate(|sample| &sample.network_transmit))
        .with("wait", of_sample(|sample| sample.cpu_wait.value().map(|cpu| cpu.cores())))
        .with("harm", |guest| guest.harm.as_ref().and_then(Reading::value).map(|harm| harm.mean_percent).into())
        .with("limits", |guest| guests::limits_in_words(guest.limits, CpuUnit::Cores).into())
        .with("protected", |guest| guest.protected.word().into())
        .with("age", move |guest| guest.age_s(now).into())
}

/// Of `gleaner job list`.
pub(crate) fn jobs<'a>() -> Columns<'a, JobStatus> {
    let tasks = |of: fn(&EngineProgress) -> u32| move |job: &JobStatus| job.progress.as_ref().map(of).into();
    let done = |progress: &EngineProgress| progress.fraction_done.value() * 100.0;
    Columns::<JobStatus>::new()
        .with("job", |job| job.spec.id.as_str().into())
        .with("user", |job| job.spec.user.as_ref().map(|user| user.as_str()).into())
        .with("phase", |job| job.phase.word().into())
        .with("goal", |job| format::goal(job.spec.goal).into())
        .with("tasks", tasks(|progress| progress.tasks_total))
        .with("done", move |job| job.progress.as_ref().map(done).into())
        .with("failed", tasks(|progress| progress.tasks_failed))
        .with("volunteers", |job| job.volunteers.into())
        .with("share", |job| job.share.as_ref().map(|share| share.allotted).into())
        .with("ahead", |job| job.share.as_ref().map(|share| share.ahead_s).into())
        .with("cost", |job| job.cost.amount().into())
        .with("core_seconds", |job| job.harvested_core_s.into())
        .with("submitted", |job| job.submitted.to_string().into())
}

/// Of `gleaner app list`; its times are milliseconds, its age is seconds.
pub(crate) fn applications<'a>(now: Timestamp) -> Columns<'a, ApplicationStatus> {
    let mean_ms = |own: &ApplicationStatus| own.response.as_ref().and_then(|(_, response)| response.mean_ms());
    Columns::<ApplicationStatus>::new()
        .with("application", |own| own.spec.name.as_str().into())
        .with("state", |own| states::response(own).0.into())
        .with("target", |own| own.spec.target_ms.into())
        .with("response", move |own| mean_ms(own).into())
        .with("of_target", move |own| mean_ms(own).map(|mean_ms| 100.0 * mean_ms / own.spec.target_ms).into())
        .with("age", move |own| own.response.as_ref().map(|(at, _)| now.seconds_since(*at)).into())
}

/// Of `gleaner advise`.
pub(crate) fn advice<'a>() -> Columns<'a, HostAdvice> {
    Columns::<HostAdvice>::new()
        .with("host", |own| own.host.as_str().into())
        .with("state", |own| states::standing(&own.standing).0.into())
        .with("promised", |own| own.promise.value().map(|promise| promise.cpu.cores()).into())
        .with("expected", |own| own.promise.value().map(|promise| promise.expected.cores()).into())
        .with("memory", |own| {
            own.promise.value().and_then(|promise| promise.memory).map(|memory| memory.0 as f64).into()
        })
        .with("in_use", |own| own.in_use.map(|cpu| cpu.cores()).into())
        .with("job", |own| own.job.as_ref().map(|job| job.as_str()).into())
}

/// Of `gleaner host invitations`.
pub(crate) fn admissions<'a>(now: Timestamp) -> Columns<'a, Admission> {
    Columns::<Admission>::new()
        .with("host", |row| row.host().as_str().into())
        .with("state", |row| states::admission(row).0.into())
        .with("age", move |row| match row {
            Admission::Invited(one) => now.seconds_since(one.made).into(),
            Admission::Revoked(one) => now.seconds_since(one.through).into(),
        })
        .with("expires_in", move |row| match row {
            Admission::Invited(one) => one.expires.seconds_since(now).into(),
            Admission::Revoked(_) => Value::Unknown,
        })
}

/// An order of the audit log, with its line as it is there.
#[derive(Debug, Clone)]
pub(crate) struct OrderLine {
    pub(crate) order: AuditRecord,
    pub(crate) line: String,
}

/// Of `gleaner audit`.
pub(crate) fn orders<'a>() -> Columns<'a, OrderLine> {
    Columns::<OrderLine>::new()
        .with("time", |own| own.order.time.as_str().into())
        .with("user", |own| own.order.user.as_str().into())
        .with("uid", |own| own.order.uid.into())
        .with("order", |own| own.order.request.as_str().into())
        .with("outcome", |own| own.order.outcome.as_str().into())
}

/// A line of the event log, one of a newer version too, with its fields.
#[derive(Debug, Clone)]
pub(crate) struct EventLine {
    pub(crate) line: String,
    pub(crate) fields: Map<String, Json>,
}

impl EventLine {
    /// # Errors
    /// The line again, where it is no JSON object.
    pub(crate) fn parse(line: String) -> Result<Self, String> {
        match serde_json::from_str(&line) {
            Ok(fields) => Ok(Self { line, fields }),
            Err(_) => Err(line),
        }
    }

    /// The same with the text of its fields as they are now.
    pub(crate) fn rewritten(self) -> Self {
        let text = Json::Object(self.fields.clone()).to_string();
        Self { line: gleaner_types::text::harmless_json(&text), ..self }
    }

    /// A field that is a whole number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.fields.get(name)?.as_u64()
    }

    /// The host whose guard acted, if that is what happened.
    pub(crate) fn guard_of(&self) -> Option<String> {
        let text = |name: &str| self.fields.get(name).and_then(Json::as_str);
        text("agent").filter(|_| text("event") == Some("guard_acted")).map(str::to_owned)
    }
}

/// Of `gleaner events`.
pub(crate) fn events<'a>() -> Columns<'a, EventLine> {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // What a decision is about is in the decision.
    let first = move |line: &EventLine, names: &[&str]| -> Value {
        let fields = &line.fields;
        let of = |name: &&str| fields.get(*name).or_else(|| fields.get("decision")?.get(*name));
        let of = |name: &&str| of(name).filter(|own| !own.is_null());
        names.iter().find_map(of).map(text).into()
    };
    Columns::<EventLine>::new()
        .with("time", move |line| first(line, &["time"]))
        .with("source", move |line| first(line, &["agent", "source"]))
        .with("event", move |line| first(line, &["event"]))
        .with("host", move |line| first(line, &["host", "agent"]))
        .with("job", move |line| first(line, &["job"]))
        .with("application", move |line| first(line, &["application"]))
        .with("workload", move |line| first(line, &["workload"]))
        .with("text", move |line| {
            let fields = line.fields.iter().map(|(name, value)| format!("{name}={}", text(value)));
            fields.collect::<Vec<_>>().join("  ").into()
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::list::ListArgs;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        list: ListArgs,
    }

    fn asked(words: &[&str]) -> ListArgs {
        Command::try_parse_from(std::iter::once(&"list").chain(words)).unwrap().list
    }

    #[test]
    fn hosts_are_chosen_by_what_their_reports_say() {
        let view = |name: &str, percent: f64| {
            let host = gleaner_types::id::HostId::new(name).unwrap();
            let mut report = gleaner_test_support::report::report(&host, 1);
            report.machine.cpu_busy = Reading::Value(CoreShare::clamped(percent));
            crate::fixtures::host_view(report)
        };
        let silent = HostView { report: None, connected: false, ..view("h4", 0.0) };
        let hosts = || vec![view("h1", 50.0), view("h2", 350.0), view("h3", 120.0), silent.clone()];
        let names = |words: &[&str]| {
            let list = asked(words).over(self::hosts(Timestamp(0))).unwrap();
            list.rows(hosts()).unwrap().iter().map(|own| own.host.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["--filter", "busy>1", "--sort", "busy:desc"]), ["h2", "h3"], "in cores");
        assert_eq!(names(&["--filter", "state=lost"]), ["h4"]);
        assert_eq!(names(&["--sort", "busy"]), ["h1", "h3", "h2", "h4"], "what is not known comes last");
    }

    #[test]
    fn events_are_chosen_by_what_they_are_about() {
        let line = |value: Json| EventLine::parse(value.to_string()).unwrap();
        let lines = || {
            vec![
                line(
                    json!({"time": "t1", "source": "aggregator", "event": "host_lost", "host": "h1", "reason": "silent"}),
                ),
                line(json!({"time": "t2", "source": "agent", "agent": "h2", "event": "guard_acted"})),
                line(json!({"time": "t3", "source": "aggregator", "event": "job_sized", "decision": {"job": "j"}})),
                line(json!({"time": "t4", "source": "aggregator", "event": "of_a_newer_version", "x": 1})),
            ]
        };
        let times = |words: &[&str]| {
            let list = asked(words).over(events()).unwrap();
            let time = |line: &EventLine| line.fields["time"].as_str().unwrap().to_owned();
            list.newest(lines()).unwrap().iter().map(time).collect::<Vec<_>>()
        };
        assert_eq!(times(&["--filter", "host=h2"]), ["t2"]);
        assert_eq!(times(&["--filter", "job=j"]), ["t3"]);
        assert_eq!(times(&["--filter", "silent"]), ["t1"]);
        assert!(asked(&["--filter", "x=1"]).over(events()).is_err(), "no column");
        assert_eq!(times(&["--limit", "2"]), ["t3", "t4"]);
    }
}
