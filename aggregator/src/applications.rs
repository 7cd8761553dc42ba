//! Applications at the aggregator's edge. In: descriptions that operators apply, and the controller's questions about
//! response times. Out: checked descriptions, and the answers of the sources, which go back to the core loop. The shell
//! calls it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gleaner_types::application::{ApplicationSpec, ApplicationStatus, Bounds, Control, ResponseTime, TierSpec};
use gleaner_types::id::ApplicationId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::response_times::{Pushed, ResponseReader, check as check_source, shown as shown_source};
use gleaner_api::{ApiError, ErrorCode};

/// Most applications, and most tiers of one.
const MOST_APPLICATIONS: usize = 10_000;
const MOST_TIERS: usize = 64;
/// Longest list of mistakes reported.
const MOST_PROBLEMS: usize = 20;

/// Checks a new or changed application against the existing ones.
///
/// # Errors
/// [`ApiError`] naming every field that is wrong.
pub(crate) fn check<'a>(
    spec: &ApplicationSpec,
    others: impl Iterator<Item = &'a ApplicationStatus>,
) -> Result<(), ApiError> {
    let mut found = Vec::new();
    let others: Vec<&ApplicationSpec> =
        others.map(|other| &other.spec).filter(|other| other.name != spec.name).collect();
    if others.len() >= MOST_APPLICATIONS {
        found.push(format!("there are {MOST_APPLICATIONS} applications already"));
    }
    if !(spec.target_ms > 0.0 && spec.target_ms <= ResponseTime::LONGEST_MS) {
        found.push(format!("target_ms: is {}; it must be more than 0 and at most an hour", spec.target_ms));
    }
    if let Err(problem) = check_source(&spec.response_time) {
        found.push(format!("response_time.{problem}"));
    }
    if !(1..=MOST_TIERS).contains(&spec.tiers.len()) {
        found.push(format!("tier: there are {}; there must be 1 to {MOST_TIERS}", spec.tiers.len()));
    }
    let only_cpu =
        |tier: &TierSpec| tier.cpu_percent.is_some() && tier.memory_mib.is_none() && tier.disk_mb_s.is_none();
    if spec.control != Control::Balance && !(spec.tiers.len() == 1 && spec.tiers.iter().all(only_cpu)) {
        found.push(
            "control: moves the CPU of one tier and nothing else; several resources or tiers need \"balance\"".into(),
        );
    }
    let mut names = BTreeSet::new();
    let mut places: BTreeSet<_> = others.iter().flat_map(|o| &o.tiers).map(|t| (&t.host, &t.workload)).collect();
    for (index, tier) in spec.tiers.iter().enumerate() {
        if !names.insert(&tier.name) {
            found.push(format!("tier[{index}].name: {} is named twice", tier.name));
        }
        if !places.insert((&tier.host, &tier.workload)) {
            found.push(format!("tier[{index}].workload: {} on {} is another tier already", tier.workload, tier.host));
        }
        check_bounds(index, tier, &mut found);
    }
    if found.is_empty() {
        return Ok(());
    }
    found.truncate(MOST_PROBLEMS);
    Err(ApiError { code: ErrorCode::Invalid, message: found.join("\n") })
}

fn check_bounds(index: usize, tier: &TierSpec, found: &mut Vec<String>) {
    let all = [("cpu_percent", tier.cpu_percent), ("memory_mib", tier.memory_mib), ("disk_mb_s", tier.disk_mb_s)];
    if all.iter().all(|(_, bounds)| bounds.is_none()) {
        found.push(format!("tier[{index}]: names nothing that is moved; give it cpu_percent, memory_mib or disk_mb_s"));
    }
    for (field, bounds) in all {
        let Some(Bounds { floor, ceiling }) = bounds else { continue };
        if !(floor > 0.0 && floor <= ceiling && ceiling <= 1e9) {
            found.push(format!(
                "tier[{index}].{field}: floor is {floor} and ceiling {ceiling}; they must be more than 0, the floor not above the ceiling"
            ));
        }
    }
}

/// An application as shown to everybody who may ask: without the secrets of its source.
pub(crate) fn shown(status: &ApplicationStatus) -> ApplicationStatus {
    let response_time = shown_source(&status.spec.response_time);
    ApplicationStatus { spec: ApplicationSpec { response_time, ..status.spec.clone() }, ..status.clone() }
}

/// The sources that are asked.
#[derive(Debug)]
pub(crate) struct Sources {
    answers: mpsc::Sender<(ApplicationId, ResponseTime)>,
    running: BTreeMap<ApplicationId, Source>,
}

#[derive(Debug)]
struct Source {
    spec: ApplicationSpec,
    ask: mpsc::Sender<()>,
    pushed: Option<Pushed>,
    task: JoinHandle<()>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sources {
    /// No sources; their answers go to `answers`.
    pub(crate) const fn new(answers: mpsc::Sender<(ApplicationId, ResponseTime)>) -> Self {
        Self { answers, running: BTreeMap::new() }
    }

    /// Asks an application's source from now on. Call it where tasks can be started.
    pub(crate) fn set(&mut self, spec: &ApplicationSpec, interval: Duration) {
        if self.running.get(&spec.name).is_some_and(|own| own.spec.response_time == spec.response_time) {
            return;
        }
        let mut reader = match ResponseReader::new(&spec.response_time, interval) {
            Ok(reader) => reader,
            Err(error) => {
                // It was checked when it was applied; another version of the program may refuse it.
                tracing::error!(application = %spec.name, %error, "the source of its response times cannot be used");
                self.running.remove(&spec.name);
                return;
            }
        };
        let (ask, mut asked) = mpsc::channel(1);
        let (pushed, answers, name) = (reader.pushed(), self.answers.clone(), spec.name.clone());
        let task = tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let response = reader.read().await;
                if answers.send((name.clone(), response)).await.is_err() {
                    return;
                }
            }
        });
        self.running.insert(spec.name.clone(), Source { spec: spec.clone(), ask, pushed, task });
    }

    /// Stops asking an application's source.
    pub(crate) fn remove(&mut self, name: &ApplicationId) {
        self.running.remove(name);
    }

    /// Asks for an answer. A source that still works on the last question is not asked again.
    pub(crate) fn ask(&self, name: &ApplicationId) {
        if let Some(source) = self.running.get(name) {
            _ = source.ask.try_send(());
        }
    }

    /// Takes a value that was pushed.
    ///
    /// # Errors
    /// [`ApiError`] if the application has another source, or the value cannot be one.
    pub(crate) fn push(&self, name: &ApplicationId, mean_ms: f64) -> Result<(), ApiError> {
        let error = |code, message| ApiError { code, message };
        let no_source = || error(ErrorCode::NotFound, format!("{name} has no source that is asked now"));
        let source = self.running.get(name).ok_or_else(no_source)?;
        let pushed = source.pushed.as_ref().ok_or_else(|| {
            let message = format!("{name} has another source of response times; give it `response_time = \"push\"`");
            error(ErrorCode::Conflict, message)
        })?;
        pushed.push(mean_ms, Instant::now()).map_err(|problem| error(ErrorCode::Invalid, problem.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::application::ResponseSource;
    use gleaner_types::id::{HostId, TierId, WorkloadId};

    use super::*;

    fn tier(name: &str, workload: &str, cpu: Option<Bounds>) -> TierSpec {
        TierSpec {
            name: TierId::new(name).unwrap(),
            host: HostId::new("h1").unwrap(),
            workload: WorkloadId::new(workload).unwrap(),
            cpu_percent: cpu,
            memory_mib: None,
            disk_mb_s: None,
        }
    }

    fn spec(name: &str, tiers: Vec<TierSpec>) -> ApplicationSpec {
        let name = ApplicationId::new(name).unwrap();
        let control = Control::Balance;
        ApplicationSpec { name, target_ms: 100.0, response_time: ResponseSource::Push, control, tiers }
    }

    const GOOD: Option<Bounds> = Some(Bounds { floor: 10.0, ceiling: 200.0 });

    #[test]
    fn every_wrong_field_is_named() {
        let other = spec("other", vec![tier("db", "pg", GOOD)]);
        let other = ApplicationStatus { spec: other, response: None, missed: 0, decision: None };
        assert!(check(&spec("shop", vec![tier("db", "mine", GOOD)]), [&other].into_iter()).is_ok());
        let mut wrong = spec(
            "shop",
            vec![
                tier("db", "pg", GOOD),
                tier("db", "b", None),
                tier("web", "c", Some(Bounds { floor: 20.0, ceiling: 10.0 })),
            ],
        );
        wrong.target_ms = f64::NAN;
        wrong.control = Control::Stfc;
        wrong.response_time = ResponseSource::Exec { program: vec!["relative".into()] };
        let message = check(&wrong, [&other].into_iter()).unwrap_err().message;
        for part in [
            "target_ms: is NaN",
            "response_time.",
            "control: moves the CPU of one tier",
            "tier[0].workload: pg on h1 is another tier",
            "tier[1].name: db is named twice",
            "tier[1]: names nothing that is moved",
            "tier[2].cpu_percent: floor is 20",
        ] {
            assert!(message.contains(part), "{part} not in {message}");
        }
        assert!(check(&spec("shop", vec![]), std::iter::empty()).unwrap_err().message.contains("tier: there are 0"));
    }

    #[tokio::test]
    async fn pushed_values_are_reported_when_asked() {
        let (answers, mut responses) = mpsc::channel(8);
        let mut sources = Sources::new(answers);
        let own = spec("shop", vec![tier("db", "pg", GOOD)]);
        assert_eq!(sources.push(&own.name, 5.0).unwrap_err().code, ErrorCode::NotFound);
        sources.set(&own, Duration::from_secs(30));
        sources.push(&own.name, 80.0).unwrap();
        sources.push(&own.name, 120.0).unwrap();
        sources.ask(&own.name);
        assert_eq!(responses.recv().await, Some((own.name.clone(), ResponseTime::Mean { mean_ms: 100.0 })));
        let program = ResponseSource::Exec { program: vec!["/bin/echo".into(), "42".into()] };
        sources.set(&ApplicationSpec { response_time: program, ..own.clone() }, Duration::from_secs(30));
        assert_eq!(sources.push(&own.name, 1.0).unwrap_err().code, ErrorCode::Conflict);
        sources.ask(&own.name);
        assert_eq!(responses.recv().await, Some((own.name.clone(), ResponseTime::Mean { mean_ms: 42.0 })));
    }
}
