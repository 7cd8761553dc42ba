//! `gleaner-agent try`. In: a workload and limits. Out: the limits set for some seconds, their effect as text, and
//! everything restored. Called by the command line. Where an agent runs, it is asked to do it. So an operator can test a lever before an aggregator may use it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use gleaner_daemon::clock::Clock;
use gleaner_daemon::output;
use gleaner_types::command::{
    Command, Desired, DiskLimit, Limits, NetworkLimit, Outcome, Quota, Refusal, Target, Version, Weight,
    WeightOutOfRange,
};
use gleaner_types::id::WorkloadId;
use gleaner_types::report::{Reading, WorkloadSample};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, InvalidBytes, NotFinite, PerSec};
use serde_json::{Value, json};

use crate::act::beside::LEASE_MS;
use crate::act::restore::RestoreReport;
use crate::act::{ActSettings, Actor, VolunteerChoice};
use crate::config::Config;
use crate::control::RunningAgent;
use crate::hierarchies::Hierarchies;
use crate::host_loop::memory_states;
use crate::levers::catalogue::levers_of_all;
use crate::roots::Roots;
use crate::sense::{Sensor, VolunteerTrace};
use crate::trial_step::{TrialAnswer, TrialStep};

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a workload may take to be found: a guest's monitor tells of its disks a moment after the guest is seen.
const SEARCH: Duration = Duration::from_secs(4);
/// How long the search may wait for a hypervisor that cannot be asked. (Chosen: a helper that failed again rests for 10 s.)
const SILENCE: Duration = Duration::from_secs(15);
/// How often limits that cannot be set are tried: the helper on Xen may be late for one of its answers. (Chosen.)
const TRIES: u32 = 3;

/// What to try, on what, for how long.
#[derive(Debug, Clone, Args)]
pub struct TrialArgs {
    /// The workload, by its identifier (`id` in what `gleaner-agent observe` prints); of a guest of QEMU that is its name.
    workload: WorkloadId,
    /// How long to hold the limits, in seconds.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Ceiling on CPU, in percent of one core.
    #[arg(long, value_name = "PERCENT", value_parser = quota)]
    cpu: Option<Quota>,
    /// Weight on the CPU, from 1 to 10000; 100 is normal.
    #[arg(long, value_name = "WEIGHT", value_parser = weight)]
    cpu_weight: Option<Weight>,
    /// Memory it may keep, such as 512M.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Bytes it may read from each disk per second, such as 10M.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    disk_read: Option<BytesPerSec>,
    /// Bytes it may write to each disk per second.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    disk_write: Option<BytesPerSec>,
    /// Reads it may do on each disk per second.
    #[arg(long, value_name = "N", value_parser = operations)]
    disk_read_operations: Option<PerSec>,
    /// Writes it may do on each disk per second.
    #[arg(long, value_name = "N", value_parser = operations)]
    disk_write_operations: Option<PerSec>,
    /// Weight on the disks, from 1 to 10000.
    #[arg(long, value_name = "WEIGHT", value_parser = weight)]
    disk_weight: Option<Weight>,
    /// Bytes it may receive from the network per second.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    receive: Option<BytesPerSec>,
    /// Bytes it may send to the network per second.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    transmit: Option<BytesPerSec>,
    /// One JSON object instead of lines for people.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An argument is no limit.
#[derive(Debug, PartialEq, thiserror::Error)]
enum ArgumentError {
    /// It is of another kind.
    #[error("{text:?} is no {expected}")]
    NotNumber { text: String, expected: &'static str },
    /// It is a number that no limit can have.
    #[error(transparent)]
    Quantity(#[from] NotFinite),
    /// It is a number that no weight can have.
    #[error(transparent)]
    Weight(#[from] WeightOutOfRange),
}

fn number<T: FromStr>(text: &str, expected: &'static str) -> Result<T, ArgumentError> {
    text.parse().map_err(|_| ArgumentError::NotNumber { text: text.to_owned(), expected })
}

fn quota(text: &str) -> Result<Quota, ArgumentError> {
    let percent = number(text.trim_end_matches('%'), "number of percent")?;
    Ok(Quota::AtMost(CoreShare::new(percent)?))
}

fn weight(text: &str) -> Result<Weight, ArgumentError> {
    Ok(Weight::new(number(text, "whole number")?)?)
}

fn rate(text: &str) -> Result<BytesPerSec, InvalidBytes> {
    text.parse::<Bytes>().map(|bytes| BytesPerSec::clamped(bytes.0 as f64))
}

fn operations(text: &str) -> Result<PerSec, ArgumentError> {
    Ok(PerSec::new(number(text, "number")?)?)
}

impl TrialArgs {
    fn limits(&self) -> Limits {
        Limits {
            quota: self.cpu.unwrap_or(Quota::Unlimited),
            weight: self.cpu_weight,
            memory: self.memory,
            disk: DiskLimit {
                read: self.disk_read,
                write: self.disk_write,
                read_operations: self.disk_read_operations,
                write_operations: self.disk_write_operations,
            },
            disk_weight: self.disk_weight,
            network: NetworkLimit { receive: self.receive, transmit: self.transmit },
        }
    }
}

/// Means of what was measured over some seconds; nothing where a sensor is missing.
#[derive(Debug, Default)]
struct Measured {
    samples: BTreeMap<&'static str, (f64, u32)>,
}

impl Measured {
    fn take(&mut self, sample: &WorkloadSample) {
        let mut add = |name, value: Option<f64>| {
            if let Some(value) = value {
                let (sum, count) = self.samples.entry(name).or_default();
                *sum += value;
                *count += 1;
            }
        };
        fn of<T: Copy>(reading: &Reading<T>, number: impl Fn(T) -> f64) -> Option<f64> {
            reading.value().copied().map(number)
        }
        add("cpu_percent", of(&sample.cpu, CoreShare::percent));
        add("memory_bytes", of(&sample.memory, |bytes| bytes.0 as f64));
        add("disk_read_per_s", of(&sample.disk_read, BytesPerSec::per_sec));
        add("disk_write_per_s", of(&sample.disk_write, BytesPerSec::per_sec));
        add("disk_operations_per_s", of(&sample.disk_operations, PerSec::per_sec));
        add("receive_per_s", of(&sample.network_receive, BytesPerSec::per_sec));
        add("transmit_per_s", of(&sample.network_transmit, BytesPerSec::per_sec));
    }

    fn mean(&self, name: &str) -> Option<f64> {
        self.samples.get(name).map(|(sum, count)| sum / f64::from((*count).max(1)))
    }

    fn as_json(&self) -> Value {
        self.samples
            .keys()
            .map(|name| ((*name).to_owned(), json!(self.mean(name))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// Where limits are tried: by this process alone, or by the agent that runs here.
trait Bed {
    /// What is seen of the workload now.
    fn look(&mut self, id: &WorkloadId) -> anyhow::Result<Seen>;
    /// Limits it, or renews that; and what happened since, in words.
    fn limit(&mut self, id: &WorkloadId, limits: &Limits) -> anyhow::Result<(Outcome, Vec<String>)>;
}

/// A sample of a workload.
#[derive(Debug)]
struct Seen {
    /// `None` where the workload is not there.
    sample: Option<WorkloadSample>,
    /// It was not seen before.
    is_new: bool,
    /// Those that are there instead.
    others: Vec<WorkloadId>,
    /// Why it is not known which Xen domains there are.
    unknown: Option<String>,
}

/// This process, where no agent runs.
#[derive(Debug)]
struct Alone<'a> {
    config: &'a Config,
    hierarchies: &'a Hierarchies,
    actor: &'a mut Actor,
    sensor: Sensor,
    clock: Clock,
    limits_begun: bool,
}

impl Bed for Alone<'_> {
    fn look(&mut self, id: &WorkloadId) -> anyhow::Result<Seen> {
        let observation = self.sensor.sample(Instant::now());
        if !self.limits_begun {
            let ioband = self.config.foreground_ioband.as_deref();
            self.actor.set_workloads(levers_of_all(&self.sensor.foreground(), self.hierarchies, ioband));
        }
        self.actor.set_memory(memory_states(&observation));
        let sample = observation.workloads.iter().find(|workload| workload.id == *id).cloned();
        let others = observation.workloads.into_iter().map(|workload| workload.id).collect();
        Ok(Seen { sample, is_new: true, others, unknown: self.sensor.domains_unknown() })
    }

    fn limit(&mut self, id: &WorkloadId, limits: &Limits) -> anyhow::Result<(Outcome, Vec<String>)> {
        self.limits_begun = true;
        let command = Command {
            target: Target::Workload(id.clone()),
            // The present one: a trial must not shut out the aggregator of this host.
            version: Version { epoch: self.actor.epoch(), number: 1 },
            lease_ms: LEASE_MS,
            desired: Desired::Limit(*limits),
        };
        let outcome = self.actor.apply(&command, self.clock.now()).outcome;
        let events: Result<Vec<_>, _> = self.actor.tick(self.clock.now()).iter().map(serde_json::to_string).collect();
        Ok((outcome, events?))
    }
}

/// The agent that runs here. It puts everything back when the connection ends.
#[derive(Debug)]
struct Beside {
    agent: RunningAgent,
    sequence: u64,
}

impl Beside {
    fn seen(&mut self, answer: TrialAnswer) -> Seen {
        let is_new = answer.sequence != std::mem::replace(&mut self.sequence, answer.sequence);
        Seen { sample: answer.sample, is_new, others: answer.others, unknown: answer.unknown }
    }
}

impl Bed for Beside {
    fn look(&mut self, id: &WorkloadId) -> anyhow::Result<Seen> {
        let answer = self.agent.step(&TrialStep::Look { workload: id.clone() })?;
        Ok(self.seen(answer))
    }

    fn limit(&mut self, id: &WorkloadId, limits: &Limits) -> anyhow::Result<(Outcome, Vec<String>)> {
        let answer = self.agent.step(&TrialStep::Limit { workload: id.clone(), limits: *limits })?;
        let outcome = answer.outcome.context("the agent that runs here has nothing that acts")?;
        Ok((outcome, Vec::new()))
    }
}

/// Tries the limits. A word on `stop` ends the trial early; whatever happens, what was changed is put back.
///
/// # Errors
/// When the workload is not there, the limits are refused, or another agent uses the state folder.
pub fn run(config: &Config, arguments: &TrialArgs, stop: &mpsc::Receiver<()>) -> anyhow::Result<RestoreReport> {
    let hierarchies = Hierarchies::of_this_machine();
    let settings = ActSettings { acting: true, volunteer: VolunteerChoice::None, ..config.act_settings() };
    let (mut actor, _) = Actor::open(settings, &hierarchies)?;
    let sensor = Sensor::open(config.sense_settings(Roots::default()), &hierarchies, VolunteerTrace::None, &[]);
    let result = sensor.map_err(anyhow::Error::from).and_then(|sensor| {
        let (hierarchies, actor) = (&hierarchies, &mut actor);
        let mut alone = Alone { config, hierarchies, actor, sensor, clock: Clock::start(), limits_begun: false };
        attempt(arguments, SEARCH, &mut alone, stop)
    });
    let report = actor.restore_all();
    result.map(|()| report)
}

/// The same by the agent that runs here, under its config.
///
/// # Errors
/// As of [`run`], and when the agent only observes or stops meanwhile.
pub(crate) fn run_beside(
    agent: RunningAgent,
    config: &Config,
    arguments: &TrialArgs,
    stop: &mpsc::Receiver<()>,
) -> anyhow::Result<()> {
    let mut beside = Beside { agent, sequence: 0 };
    // Its first sample after the trial's begin is the first that is shown.
    let search = SEARCH.max(config.sample_period * 2);
    let result = attempt(arguments, search, &mut beside, stop);
    // Also where it failed: its answer is that all is put back.
    let ended = beside.agent.step(&TrialStep::End);
    result?;
    ended?;
    Ok(())
}

fn attempt(
    arguments: &TrialArgs,
    search: Duration,
    bed: &mut impl Bed,
    stop: &mpsc::Receiver<()>,
) -> anyhow::Result<()> {
    let say = |line: String| if arguments.json { Ok(()) } else { output::say(line) };
    let (id, limits) = (&arguments.workload, arguments.limits());
    // A pause; false once the trial should end.
    let pause = || matches!(stop.recv_timeout(PERIOD), Err(RecvTimeoutError::Timeout));

    if limits == Limits::NONE {
        bail!("nothing is to be tried: name a limit, such as --cpu 50 (`gleaner-agent try --help` has all)");
    }
    let (mut before, begin) = (Measured::default(), Instant::now());
    let mut start = begin;
    loop {
        let seen = bed.look(id)?;
        if let Some(sample) = seen.sample.as_ref().filter(|_| seen.is_new) {
            before.take(sample);
        }
        if seen.sample.is_none() && seen.unknown.is_some() && begin.elapsed() < SILENCE {
            // It may be there all the same: the search begins once that is known.
            start = Instant::now();
        } else if start.elapsed() >= search {
            seen.sample.with_context(|| not_there(id, &seen.others, seen.unknown.as_deref()))?;
            break;
        }
        if !pause() {
            return Ok(());
        }
    }
    say(format!("{id} as it is:"))?;
    say(lines(&before, None))?;

    let mut tries = 1;
    let (in_force, shortfalls) = loop {
        match bed.limit(id, &limits)? {
            (Outcome::Applied { limits, shortfalls }, events) => {
                for note in shortfalls.iter().chain(&events) {
                    say(format!("note: {note}"))?;
                }
                break (limits, shortfalls);
            }
            (Outcome::Refused { reason: Refusal::Failed, .. }, _) if tries < TRIES && pause() => tries += 1,
            (Outcome::Refused { detail, .. }, _) => bail!("refused: {detail}"),
        }
    };
    say(format!("limited for {} s:", arguments.seconds))?;
    let (mut during, start) = (Measured::default(), Instant::now());
    // What was before the limits does not count.
    bed.look(id)?;
    while start.elapsed() < Duration::from_secs(arguments.seconds) && pause() {
        let seen = bed.look(id)?;
        let Some(sample) = seen.sample else { bail!("the workload has ended") };
        if seen.is_new {
            during.take(&sample);
        }
        let (outcome, events) = bed.limit(id, &limits)?;
        if let Outcome::Refused { detail, .. } = outcome {
            say(format!("note: no longer limited: {detail}"))?;
        }
        for event in events {
            say(format!("note: {event}"))?;
        }
    }
    say(lines(&during, Some(&before)))?;
    if arguments.json {
        let report = json!({
            "workload": id, "asked": limits, "in_force": in_force, "shortfalls": shortfalls,
            "before": before.as_json(), "during": during.as_json(),
        });
        output::say(report)?;
    }
    Ok(())
}

/// That a workload is not there, in words.
fn not_there(id: &WorkloadId, others: &[WorkloadId], unknown: Option<&str>) -> String {
    let names: Vec<&str> = others.iter().map(WorkloadId::as_str).collect();
    let others = match names.is_empty() {
        true => "there is none at all (foreground.cgroups names some, and guests are found)".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    let unknown = unknown.map_or_else(String::new, |why| format!("; Xen domains are not known, because {why}"));
    format!("there is no workload `{id}` here; {others}{unknown}")
}

fn lines(measured: &Measured, before: Option<&Measured>) -> String {
    let show = |name: &str, value: f64| match name {
        "cpu_percent" => format!("{value:.1} % of a core"),
        "memory_bytes" => Bytes(crate::rounding::whole(value)).to_string(),
        "disk_operations_per_s" => format!("{value:.0}/s"),
        _ => format!("{}/s", Bytes(crate::rounding::whole(value))),
    };
    let line = |name: &&'static str| {
        let value = measured.mean(name)?;
        let was = before.and_then(|before| before.mean(name)).map(|was| format!("  (was {})", show(name, was)));
        let title = name.trim_end_matches("_percent").trim_end_matches("_bytes").trim_end_matches("_per_s");
        Some(format!("  {:<16} {}{}", title.replace('_', " "), show(name, value), was.unwrap_or_default()))
    };
    let all: Vec<String> = measured.samples.keys().filter_map(line).collect();
    all.join("\n")
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::{Reason, WorkloadKind};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        trial: TrialArgs,
    }

    /// A workload of which nothing is measured.
    fn nothing() -> WorkloadSample {
        fn none<T>() -> Reading<T> {
            Reading::because(Reason::NeedsTwoSamples)
        }
        WorkloadSample {
            id: WorkloadId::new("busy").unwrap(),
            kind: WorkloadKind::XenDomain,
            cpu: none(),
            cpu_vcpu: none(),
            cpu_emulator: none(),
            cpu_wait: none(),
            memory: none(),
            memory_pressure: none(),
            disk_read: none(),
            disk_write: none(),
            disk_operations: none(),
            network_receive: none(),
            network_transmit: none(),
            llc_references: none(),
            llc_misses: none(),
            instructions: none(),
            cache_occupancy: None,
        }
    }

    /// A host whose hypervisor cannot be asked at first, and where limits cannot be set at first.
    #[derive(Default)]
    struct Late {
        looks: u32,
        tries: u32,
    }

    impl Bed for Late {
        fn look(&mut self, _: &WorkloadId) -> anyhow::Result<Seen> {
            self.looks += 1;
            let unknown = (self.looks == 1).then(|| "the helper is late".to_owned());
            let sample = unknown.is_none().then(nothing);
            Ok(Seen { sample, is_new: true, others: Vec::new(), unknown })
        }

        fn limit(&mut self, _: &WorkloadId, limits: &Limits) -> anyhow::Result<(Outcome, Vec<String>)> {
            self.tries += 1;
            let outcome = match self.tries {
                1 => Outcome::Refused { reason: Refusal::Failed, detail: "the helper is late".to_owned() },
                _ => Outcome::Applied { limits: *limits, shortfalls: Vec::new() },
            };
            Ok((outcome, Vec::new()))
        }
    }

    #[test]
    fn a_hypervisor_that_is_late_at_first_ends_no_trial() {
        use clap::Parser;
        let line = Line::try_parse_from(["try", "busy", "--cpu", "50%", "--for", "1", "--json"]).unwrap();
        let (_stop, stopped) = mpsc::channel();
        let mut late = Late::default();
        attempt(&line.trial, Duration::ZERO, &mut late, &stopped).unwrap();
        assert!(late.looks > 2 && late.tries > 1, "{} looks, {} tries", late.looks, late.tries);
        let said = not_there(&line.trial.workload, &[], Some("the helper is late"));
        assert!(said.ends_with("; Xen domains are not known, because the helper is late"), "{said}");
    }

    #[test]
    fn limits_are_read_from_the_command_line() {
        use clap::Parser;
        let line =
            Line::try_parse_from(["try", "lab-1", "--cpu", "50%", "--disk-write", "1M", "--memory", "1G"]).unwrap();
        let limits = line.trial.limits();
        assert_eq!(limits.quota, Quota::AtMost(CoreShare::clamped(50.0)));
        assert_eq!(limits.disk.write, Some(BytesPerSec::clamped(1_048_576.0)));
        assert_eq!((limits.memory, limits.weight), (Some(Bytes::from_mib(1024)), None));
        for bad in [["--cpu", "x"], ["--cpu-weight", "0"], ["--disk-read", "1Q"], ["--for", "0"], ["--cpu", "-1"]] {
            assert!(Line::try_parse_from(["try", "lab-1"].into_iter().chain(bad)).is_err(), "{bad:?}");
        }
    }
}
