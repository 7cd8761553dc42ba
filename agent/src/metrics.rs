//! The agent's metrics (docs/metrics.md). In: a few counts from the agent's loop, once a period. Out: a page, built on
//! request. The daemon starts the listener (`gleaner_daemon::monitoring`) that asks for it. No workload has a label,
//! because guests choose their names.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_daemon::metrics::{Durations, Page};
use gleaner_daemon::monitoring::{Health, Monitored, PageError};
use gleaner_planner::protecting::Posture;
use gleaner_types::harm::HarmInterval;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{Bounded, HostReport, MachineSample, ResidualForecast, VolunteerSample, VolunteerState};
use gleaner_types::text::{counted, duration};
use gleaner_types::units::{Bytes, CoreShare};

use crate::act::Actor;
use crate::guard::GuardStatus;
use crate::outbox::Outbox;

/// Without a tick for this long, or for three sample periods if that is longer, the loop hangs.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// What the loop did last.
#[derive(Debug)]
pub struct Status {
    hangs_after: Duration,
    /// Why the agent only observes although it may act.
    refused: Option<String>,
    latest: Mutex<Latest>,
}

#[derive(Debug)]
struct Latest {
    ticked: Instant,
    samples: Durations,
    restore_failures: u64,
    superseded: u64,
    last: Option<Tick>,
}

/// What one tick shows.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    machine: MachineSample,
    workloads: usize,
    volunteer: VolunteerSample,
    residual: ResidualForecast,
    harm: HostHarm,
    guard: Option<GuardStatus>,
    leases: usize,
    levers_changed: usize,
}

impl Tick {
    pub(crate) fn of(report: &HostReport, actor: Option<&Actor>) -> Self {
        Self {
            // The disks are the aggregator's business.
            machine: MachineSample { disks: Vec::new(), ..report.machine.clone() },
            workloads: report.workloads.len(),
            volunteer: report.volunteer.clone(),
            residual: report.residual.clone(),
            harm: HostHarm { workloads: Vec::new(), ..report.harm.clone() },
            guard: actor.and_then(Actor::guard_status),
            leases: actor.map_or(0, Actor::leases),
            levers_changed: actor.map_or(0, Actor::levers_changed),
        }
    }
}

impl Status {
    /// Of an agent that has not ticked yet. `refused` is why it only observes although it may act.
    #[must_use]
    pub fn new(sample_period: Duration, restore_failures: usize, refused: Option<String>) -> Self {
        let latest = Latest {
            ticked: Instant::now(),
            samples: Durations::default(),
            restore_failures: restore_failures as u64,
            superseded: 0,
            last: None,
        };
        Self { hangs_after: HUNG_AFTER.max(sample_period * 3), refused, latest: Mutex::new(latest) }
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        // Plain values, valid in any combination.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sampled(&self, took: Duration) {
        self.lock().samples.observe(took);
    }

    pub(crate) fn restore_failed(&self, times: usize) {
        self.lock().restore_failures += times as u64;
    }

    /// So many commands were never taken until now.
    pub(crate) fn superseded(&self, commands: u64) {
        self.lock().superseded = commands;
    }

    pub(crate) fn ticked(&self, tick: Tick) {
        let mut latest = self.lock();
        latest.ticked = Instant::now();
        latest.last = Some(tick);
    }

    fn page(&self, outbox: &Outbox) -> Page {
        let mut page = Page::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.info("gleaner_agent_build", "The agent's build.", version);
        link(&mut page, outbox);
        let latest = self.lock();
        page.counter("gleaner_agent_samples", "Samples of the host taken.", latest.samples.count());
        page.histogram("gleaner_agent_sample_seconds", "Time one sample took.", &latest.samples);
        page.counter(
            "gleaner_agent_restore_failures",
            "Knobs that could not be restored; an operator must check them.",
            latest.restore_failures,
        );
        page.gauge(
            "gleaner_agent_ledger_refused",
            "1 while the record of what must be restored cannot be used, so that the agent only observes.",
            f64::from(u8::from(self.refused.is_some())),
        );
        let tick = latest.last.as_ref();
        host(&mut page, tick);
        volunteer(&mut page, tick);
        guard(&mut page, tick.and_then(|tick| tick.guard.as_ref()));
        harm(&mut page, tick.map(|tick| &tick.harm));
        page.gauge(
            "gleaner_agent_command_leases",
            "Commands in force under a lease.",
            tick.map(|tick| tick.leases as f64),
        );
        page.counter(
            "gleaner_agent_commands_superseded",
            "Commands dropped because a newer one of the same target came first, or too many waited.",
            latest.superseded,
        );
        page.gauge(
            "gleaner_agent_knobs_changed",
            "Knobs that differ from their original value and will be restored.",
            tick.map(|tick| tick.levers_changed as f64),
        );
        page
    }

    fn health(&self) -> Health {
        let quiet = self.lock().ticked.elapsed();
        let hangs = quiet > self.hangs_after;
        let problem = hangs.then(|| format!("the agent's loop has not ticked for {}", duration(quiet.as_secs_f64())));
        Health::of(problem.into_iter().collect())
    }
}

fn link(page: &mut Page, outbox: &Outbox) {
    let waiting = outbox.queued();
    page.gauge(
        "gleaner_agent_connected",
        "1 while the aggregator has welcomed this agent.",
        f64::from(u8::from(waiting.connected)),
    );
    page.gauge("gleaner_agent_reports_waiting", "Reports that wait to be sent.", waiting.reports as f64);
    page.counter(
        "gleaner_agent_reports_dropped",
        "Reports dropped because they could not be sent.",
        waiting.reports_dropped,
    );
    page.gauge(
        "gleaner_agent_events_waiting",
        "Events that the aggregator has not in its log yet.",
        waiting.events as f64,
    );
    page.counter("gleaner_agent_events_dropped", "Events dropped because too many waited.", waiting.events_dropped);
    let unknown = waiting.unknown;
    let kinds = [("message", unknown.messages), ("code", unknown.codes), ("field", unknown.fields)];
    page.counters(
        "gleaner_agent_protocol_unknown",
        "What the aggregator said that only a newer release knows, by what it was; skipped.",
        kinds.map(|(kind, count)| (vec![("kind", kind.to_owned())], count)),
    );
}

fn host(page: &mut Page, tick: Option<&Tick>) {
    let machine = tick.map(|tick| &tick.machine);
    let cores = |share: &CoreShare| share.cores();
    page.gauge("gleaner_agent_capacity_cores", "CPUs online.", machine.map(|machine| machine.cpu_capacity.cores()));
    page.gauge(
        "gleaner_agent_foreground_cores",
        "CPU that the foreground uses.",
        machine.and_then(|machine| machine.cpu_foreground.value()).map(cores),
    );
    page.gauge("gleaner_agent_workloads", "Foreground workloads found.", tick.map(|tick| tick.workloads as f64));
    let residual = tick.map(|tick| &tick.residual);
    let both = |bounded: Bounded<f64>| {
        [("expected", bounded.expected), ("safe", bounded.safe)]
            .map(|(bound, value)| (vec![("bound", bound.to_owned())], value))
    };
    let cpu = residual.and_then(|residual| residual.cpu.value());
    page.gauges(
        "gleaner_agent_residual_cores",
        "CPU that the foreground is predicted to leave: expected, and what is promised.",
        cpu.map(|cpu| both(Bounded { expected: cpu.expected.cores(), safe: cpu.safe.cores() })).into_iter().flatten(),
    );
    let memory = residual.and_then(|residual| residual.memory.value());
    let bytes = |bytes: Bytes| bytes.0 as f64;
    page.gauges(
        "gleaner_agent_residual_memory_bytes",
        "Memory that the foreground is predicted to leave: expected, and what is promised.",
        memory
            .map(|memory| both(Bounded { expected: bytes(memory.expected), safe: bytes(memory.safe) }))
            .into_iter()
            .flatten(),
    );
    let record = residual.map(|residual| residual.record).unwrap_or_default();
    page.counter("gleaner_agent_promises_judged", "Promises of CPU whose time has passed.", record.judged);
    page.counter("gleaner_agent_promises_broken", "Promises of CPU that did not hold.", record.broken);
    let windows = residual.and_then(|residual| residual.windows);
    page.gauge(
        "gleaner_agent_promised_risk_ratio",
        "Part of its promises of CPU that may break.",
        windows.map(|windows| windows.risk.value()),
    );
    let outcomes = windows.map(|windows| {
        [("kept", windows.judged.saturating_sub(windows.broken)), ("broken", windows.broken)]
            .map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], f64::from(count)))
    });
    page.gauges(
        "gleaner_agent_promise_windows",
        "Windows of promises in the last day, none of which overlap, by whether the promise was kept or broken.",
        outcomes.into_iter().flatten(),
    );
}

fn volunteer(page: &mut Page, tick: Option<&Tick>) {
    let volunteer = tick.map(|tick| &tick.volunteer);
    let all =
        [("latent", VolunteerState::Latent), ("active", VolunteerState::Active), ("frozen", VolunteerState::Frozen)];
    let states = volunteer.map(|volunteer| {
        all.map(|(word, state)| (vec![("state", word.to_owned())], f64::from(u8::from(volunteer.state == state))))
    });
    page.gauges(
        "gleaner_agent_volunteer_state",
        "1 for the state that the volunteer is in.",
        states.into_iter().flatten(),
    );
    let cores = |share: &CoreShare| share.cores();
    page.gauge(
        "gleaner_agent_volunteer_cores",
        "CPU that the volunteer uses.",
        volunteer.and_then(|volunteer| volunteer.cpu.value()).map(cores),
    );
    page.gauge(
        "gleaner_agent_allowance_cores",
        "CPU that the volunteer may use now.",
        volunteer.and_then(|volunteer| volunteer.allowance.value()).map(cores),
    );
    page.gauge(
        "gleaner_agent_volunteer_memory_bytes",
        "Memory that the volunteer holds.",
        volunteer.and_then(|volunteer| volunteer.memory.value()).map(|bytes| bytes.0 as f64),
    );
}

fn guard(page: &mut Page, guard: Option<&GuardStatus>) {
    page.counter(
        "gleaner_agent_guard_shrinks",
        "Times the guard shrank the volunteer.",
        guard.map_or(0, |guard| guard.shrinks),
    );
    page.counter(
        "gleaner_agent_guard_freezes",
        "Times the guard froze the volunteer.",
        guard.map_or(0, |guard| guard.freezes),
    );
    page.gauge(
        "gleaner_agent_guard_reaction_worst_seconds",
        "From a sample of the guard to its limit in force: the slowest so far.",
        guard.map(|guard| guard.reaction_worst.as_secs_f64()),
    );
    page.gauge(
        "gleaner_agent_guard_interval_longest_seconds",
        "Between two samples of the guard: the longest so far.",
        guard.map(|guard| guard.interval_longest.as_secs_f64()),
    );
    page.gauge(
        "gleaner_agent_guard_failing",
        "1 while the volunteer is held because the guard cannot measure or limit, or memory or a disk is short.",
        guard.map(|guard| f64::from(u8::from(guard.failure.is_some()))),
    );
    page.gauge(
        "gleaner_agent_spare_cpus",
        "CPUs kept free of the volunteer for the harm it does (guard.follow_harm) or for the next burst (guard.idle_buffer).",
        guard.map(|guard| {
            let idle = guard.idle_buffer.as_ref().map_or(0, |idle| idle.spare_cpus);
            f64::from(guard.posture.spare_cpus().max(idle))
        }),
    );
    page.gauges(
        "gleaner_agent_scheduling_points",
        "1 while scheduling points are forced, by what asks for them: `setting` (guard.scheduling_points) or `harm` (guard.follow_harm).",
        guard.into_iter().flat_map(|guard| {
            let forced = guard.scheduling_points.as_ref().is_some_and(|points| points.forced);
            let by_harm = guard.posture == Posture::Points;
            [("setting", forced && !by_harm), ("harm", forced && by_harm)]
                .map(|(reason, forced)| (vec![("reason", reason.to_owned())], f64::from(u8::from(forced))))
        }),
    );
    page.gauge(
        "gleaner_agent_volunteer_share_ratio",
        "The part of the machine that the volunteer may have at most for the harm it does; 0 while it is held.",
        guard.map(|guard| f64::from(guard.posture.share_percent()) / 100.0),
    );
}

fn harm(page: &mut Page, harm: Option<&HostHarm>) {
    let known = harm.and_then(|harm| harm.foreground.value());
    let cpi = harm.and_then(|harm| harm.cpi.as_ref()?.foreground.value());
    let bounds = |known: Option<&HarmInterval>| {
        let all =
            known.map(|harm| [("mean", harm.mean_percent), ("low", harm.low_percent), ("high", harm.high_percent)]);
        all.into_iter().flatten().map(|(bound, percent)| (vec![("bound", bound.to_owned())], percent / 100.0))
    };
    page.gauges(
        "gleaner_agent_harm_ratio",
        "How much slower the foreground is with the volunteer than without: mean and 95 % interval; missing while unknown.",
        bounds(known),
    );
    page.gauges(
        "gleaner_agent_harm_cpi_ratio",
        "The part of it by cycles per instruction; missing without hardware counters.",
        bounds(cpi),
    );
    page.gauge("gleaner_agent_harm_trials", "Pauses that this is made of.", known.map(|harm| f64::from(harm.trials)));
    page.seconds(
        "gleaner_agent_paused_seconds",
        "Time the volunteer was held still to measure harm.",
        harm.map_or(0.0, |harm| harm.paused_s),
    );
}

/// What the listener asks.
#[derive(Debug)]
pub(crate) struct Monitor {
    pub(crate) status: Arc<Status>,
    pub(crate) outbox: Arc<Outbox>,
}

impl Monitored for Monitor {
    async fn page(&self) -> Result<Page, PageError> {
        Ok(self.status.page(&self.outbox))
    }

    fn health(&self) -> Health {
        self.status.health()
    }

    fn readiness(&self) -> Health {
        let mut health = self.status.health();
        if !self.outbox.queued().connected {
            health.problems.push("the agent is not connected to its aggregator".to_owned());
        }
        health.problems.extend(self.status.refused.clone());
        let latest = self.status.lock();
        let failure = latest.last.as_ref().and_then(|tick| tick.guard.as_ref()?.failure.clone());
        health.warnings.extend(failure.map(|failure| format!("the guard holds the volunteer frozen: {failure}")));
        if latest.restore_failures > 0 {
            health.warnings.push(format!("{} could not be put back", counted(latest.restore_failures, "knob")));
        }
        health.ok = health.problems.is_empty();
        health
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::HostId;

    use super::*;
    use crate::outbox::OutboxLimits;

    fn monitor() -> Monitor {
        let limits = OutboxLimits { reports: 3, events: 3 };
        let outbox = Arc::new(Outbox::new(limits, HostId::new("h1").unwrap(), 1));
        Monitor { status: Arc::new(Status::new(Duration::from_secs(1), 2, None)), outbox }
    }

    #[test]
    fn a_page_names_every_family_before_the_first_sample() {
        let monitor = monitor();
        monitor.status.superseded(7);
        let text = monitor.status.page(&monitor.outbox).text().unwrap();
        for line in [
            "# TYPE gleaner_agent_residual_cores gauge",
            "# TYPE gleaner_agent_guard_reaction_worst_seconds gauge",
            "# TYPE gleaner_agent_harm_ratio gauge",
            "gleaner_agent_restore_failures_total 2",
            "gleaner_agent_connected 0.0",
            "gleaner_agent_commands_superseded_total 7",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn the_docs_say_what_the_help_says() {
        let monitor = monitor();
        let text = monitor.status.page(&monitor.outbox).text().unwrap();
        let docs = include_str!("../../docs/metrics.md");
        let differing = gleaner_test_support::metrics::differing(&text, docs);
        assert!(differing.is_empty(), "docs/metrics.md says something else:\n{}", differing.join("\n"));
    }

    #[test]
    fn an_agent_that_may_not_act_is_alive_and_not_ready() {
        let mut monitor = monitor();
        let refused = "the record is cut off".to_owned();
        monitor.status = Arc::new(Status::new(Duration::from_secs(1), 0, Some(refused.clone())));
        assert!(monitor.health().ok);
        assert!(monitor.readiness().problems.contains(&refused));
        let text = monitor.status.page(&monitor.outbox).text().unwrap();
        assert!(text.contains("gleaner_agent_ledger_refused 1.0"), "{text}");
    }

    #[test]
    fn alive_is_not_ready() {
        let monitor = monitor();
        assert!(monitor.health().ok);
        let ready = monitor.readiness();
        assert!(!ready.ok && ready.problems[0].contains("not connected"), "{ready:?}");
        assert!(ready.warnings[0].contains("2 knobs"), "{ready:?}");
        monitor.status.lock().ticked = Instant::now().checked_sub(Duration::from_secs(11)).unwrap();
        assert!(monitor.health().problems[0].contains("has not ticked"));
        let slow = Status::new(Duration::from_secs(60), 0, None);
        slow.lock().ticked = Instant::now().checked_sub(Duration::from_secs(11)).unwrap();
        assert!(slow.health().ok, "an agent that samples once a minute is alive");
    }
}
