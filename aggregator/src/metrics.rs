//! The aggregator's metrics (docs/metrics.md). In: counts that the core loop keeps, and the controller's state. Out: a
//! page, built on request. Labels are bounded: hosts, jobs and applications beyond a number have none, and a workload
//! never has one, because guests choose their names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_daemon::metrics::{Durations, Page};
use gleaner_daemon::monitoring::{Health, Monitored, PageError};
use gleaner_planner::controller::{Controller, HostGlance, Input, Output};
use gleaner_types::application::ApplicationStatus;
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::job::JobStatus;
use gleaner_types::report::{Bounded, HostReport, Reading, VolunteerState};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;
use gleaner_wire::Unknowns;
use tokio::sync::{mpsc, oneshot};

use crate::arrival::Arrival;

/// Most hosts with figures of their own; the fleet's sums have all.
const MOST_HOSTS: usize = 1_000;
/// Most jobs with figures of their own: those that have not ended, oldest first.
const MOST_JOBS: usize = 500;
/// Most applications with figures of their own.
const MOST_APPLICATIONS: usize = 500;

/// The core loop ticks every second; this long without a tick it hangs.
const HUNG_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a host's reports may cover before they arrive, in seconds: an agent sends those of an outage at once.
const MOST_COVERED_S: f64 = 3_600.0;

/// What is known of a host's reports.
#[derive(Debug)]
struct Reporter {
    /// What its agent counted by the last one: reports dropped, shrinks, freezes.
    counts: [u64; 3],
    /// When that arrived.
    at: Timestamp,
    /// Time that passed and that no report has covered yet, in seconds.
    uncovered_s: f64,
}

/// What the core loop counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    inputs: BTreeMap<&'static str, u64>,
    /// What is known of each host's reports.
    reporters: BTreeMap<HostId, Reporter>,
    decisions: Durations,
    commands: u64,
    commands_refused: u64,
    plans_rejected: u64,
    peers_refused: u64,
    messages_refused: u64,
    not_understood: Unknowns,
    reports_dropped: u64,
    guard_shrinks: u64,
    guard_freezes: u64,
    harvested_core_s: f64,
    /// Messages to agents that were dropped for lack of room.
    pub(crate) messages_dropped: u64,
    /// Times the state could not be stored.
    pub(crate) store_failures: u64,
}

impl Counters {
    /// One call of the controller: what went in, what came out, how long it took.
    pub(crate) fn decided(&mut self, kind: &'static str, outputs: &[Output], took: Duration) {
        *self.inputs.entry(kind).or_default() += 1;
        self.decisions.observe(took);
        self.commands += outputs.iter().filter(|output| matches!(output, Output::Command { .. })).count() as u64;
    }

    /// Counts an event.
    pub(crate) fn noticed(&mut self, event: &Event) {
        match event {
            Event::CommandRefused { .. } => self.commands_refused += 1,
            Event::PlanRejected { .. } => self.plans_rejected += 1,
            Event::PeerRefused { .. } => self.peers_refused += 1,
            Event::MessageRefused { .. } => self.messages_refused += 1,
            _ => {}
        }
    }

    /// Counts what an agent said that only a newer release knows.
    pub(crate) fn not_understood(&mut self, unknown: Unknowns) {
        self.not_understood.add(unknown);
    }

    /// Nothing is counted of a host any more.
    pub(crate) fn forget(&mut self, host: &HostId) {
        self.reporters.remove(host);
    }

    /// Counts a report of a host with so many CPUs. Agents count from their start, so the difference from the host's last
    /// report is added here. A host cannot have used more than all of its CPUs for all of the time that has passed, whatever it
    /// says. The report is cut to that, before anybody books it: no host makes a sum useless for all, or a job's rate.
    pub(crate) fn reported(&mut self, report: &mut HostReport, cores: u32, now: Timestamp) {
        let counts = [report.reports_dropped, report.volunteer.guard_shrinks, report.volunteer.guard_freezes];
        let first = || Reporter { counts: [0; 3], at: now, uncovered_s: MOST_COVERED_S };
        let reporter = self.reporters.entry(report.host.clone()).or_insert_with(first);
        reporter.uncovered_s = (reporter.uncovered_s + now.seconds_since(reporter.at)).min(MOST_COVERED_S);
        reporter.at = now;
        let before = std::mem::replace(&mut reporter.counts, counts);
        let add = |sum: &mut u64, place: usize| {
            let (now, before): (u64, u64) = (counts[place], before[place]);
            *sum = sum.saturating_add(if now >= before { now - before } else { now });
        };
        add(&mut self.reports_dropped, 0);
        add(&mut self.guard_shrinks, 1);
        add(&mut self.guard_freezes, 2);
        let all = CoreShare::from_cores(cores);
        for used in [&mut report.volunteer.cpu, &mut report.machine.cpu_busy] {
            if let Reading::Value(used) = used {
                *used = used.min(all);
            }
        }
        report.interval_s = report.interval_s.min(reporter.uncovered_s).max(0.0);
        reporter.uncovered_s -= report.interval_s;
        let used = report.volunteer.cpu.value().map_or(0.0, |cpu| cpu.cores());
        self.harvested_core_s += used * report.interval_s;
    }

    /// CPU time that volunteers used, in core seconds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) const fn harvested_core_s(&self) -> f64 {
        self.harvested_core_s
    }
}

/// The kind of an input, as a label.
pub(crate) const fn kind(input: &Input) -> &'static str {
    match input {
        Input::HostJoined { .. } => "host_joined",
        Input::HostLost { .. } => "host_lost",
        Input::Report(_) => "report",
        Input::Acked { .. } => "acked",
        Input::JobSubmitted(_) => "job_submitted",
        Input::JobCancelled { .. } => "job_cancelled",
        Input::Progress { .. } => "progress",
        Input::EngineEnded { .. } => "engine_ended",
        Input::HostHeld { .. } => "host_held",
        Input::HostReleased { .. } => "host_released",
        Input::ApplicationApplied(_) => "application_applied",
        Input::ApplicationRemoved { .. } => "application_removed",
        Input::Responded { .. } => "responded",
        Input::Resumed => "resumed",
        Input::Tick => "tick",
        Input::AllHostsHeld(_) => "all_hosts_held",
        Input::AllHostsReleased { .. } => "all_hosts_released",
        Input::HostRemoved { .. } => "host_removed",
        Input::HostLeft { .. } => "host_left",
    }
}

/// What the aggregator knows of its own records.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) store_error: Option<String>,
    pub(crate) journal_error: Option<String>,
    pub(crate) event_log_error: Option<String>,
    pub(crate) events: u64,
    pub(crate) events_waiting: usize,
    pub(crate) events_lost: u64,
}

/// Messages that wait for agents.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) connections: usize,
    pub(crate) waiting: usize,
    pub(crate) most_waiting: usize,
}

/// Builds a page. It reads every host, job and application once.
pub(crate) fn page(
    controller: &Controller,
    counters: &Counters,
    records: &Records,
    outgoing: &Outgoing,
    started: Timestamp,
    now: Timestamp,
) -> Page {
    let mut page = Page::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.info("gleaner_aggregator_build", "The aggregator's build.", version);
    page.gauge("gleaner_aggregator_uptime_seconds", "Time since the aggregator started.", now.seconds_since(started));
    fleet(&mut page, controller);
    agents(&mut page, counters, outgoing);
    decisions(&mut page, controller, counters);
    jobs(&mut page, controller, now);
    applications(&mut page, controller);
    own_records(&mut page, counters, records);
    page
}

fn state(host: &HostGlance<'_>) -> &'static str {
    match (host.connected, host.silent, host.held_until, host.facts.levers.acting) {
        (false, ..) if host.left => "left",
        (false, ..) => "lost",
        (true, true, ..) => "silent",
        (true, false, Some(_), _) => "held",
        (true, false, None, true) => "acting",
        (true, false, None, false) => "observing",
    }
}

fn fleet(page: &mut Page, controller: &Controller) {
    let mut states =
        BTreeMap::from(["lost", "left", "silent", "held", "acting", "observing"].map(|state| (state, 0.0)));
    let mut volunteers = BTreeMap::from(["latent", "active", "frozen"].map(|state| (state, 0.0)));
    let (mut capacity, mut foreground, mut used, mut allowed) = (0.0, 0.0, 0.0, 0.0);
    let mut residual = Bounded { expected: 0.0, safe: 0.0 };
    let (mut judged, mut broken, mut hosts) = (0, 0, 0);
    let (mut own_foreground, mut own_residual, mut own_used) = (Vec::new(), Vec::new(), Vec::new());
    let (mut own_harm, mut over_budget) = (Vec::new(), 0.0);
    let (mut windows, mut own_promises, mut breaking) =
        (BTreeMap::from([("kept", 0.0), ("broken", 0.0)]), Vec::new(), 0.0);
    let cores = |reading: &Reading<CoreShare>| reading.value().map(|share| share.cores());
    for host in controller.glances() {
        hosts += 1;
        *states.entry(state(&host)).or_default() += 1.0;
        let Some(report) = host.report.filter(|_| host.connected && !host.silent) else { continue };
        let forecast = report.residual.cpu.value();
        capacity += report.machine.cpu_capacity.cores();
        foreground += cores(&report.machine.cpu_foreground).unwrap_or(0.0);
        used += cores(&report.volunteer.cpu).unwrap_or(0.0);
        allowed += cores(&report.volunteer.allowance).unwrap_or(0.0);
        residual.expected += forecast.map_or(0.0, |cpu| cpu.expected.cores());
        residual.safe += forecast.map_or(0.0, |cpu| cpu.safe.cores());
        judged = u64::saturating_add(judged, report.residual.record.judged);
        broken = u64::saturating_add(broken, report.residual.record.broken);
        breaking += f64::from(u8::from(host.breaks_promises));
        if let Some(own) = report.residual.windows {
            *windows.entry("kept").or_default() += f64::from(own.judged.saturating_sub(own.broken));
            *windows.entry("broken").or_default() += f64::from(own.broken);
        }
        *volunteers.entry(volunteer_state(report.volunteer.state)).or_default() += 1.0;
        let harm = report.harm.foreground.value();
        over_budget += f64::from(u8::from(harm.is_some_and(|item| item.low_percent > report.harm.budget_percent)));
        if hosts > MOST_HOSTS {
            continue;
        }
        let label = || vec![("host", host.host.to_string())];
        own_foreground.extend(cores(&report.machine.cpu_foreground).map(|value| (label(), value)));
        if let Some(item) = harm {
            for (bound, percent) in
                [("mean", item.mean_percent), ("low", item.low_percent), ("high", item.high_percent)]
            {
                own_harm.push(([label(), vec![("bound", bound.to_owned())]].concat(), percent / 100.0));
            }
        }
        own_used.extend(cores(&report.volunteer.cpu).map(|value| (label(), value)));
        let share = report.residual.windows.and_then(|own| Some((own.risk, own.broken_share()?)));
        for (part, value) in share.into_iter().flat_map(|(risk, broken)| [("promised", risk), ("broken", broken)]) {
            own_promises.push(([label(), vec![("part", part.to_owned())]].concat(), value.value()));
        }
        if let Some(cpu) = forecast {
            for (bound, value) in [("expected", cpu.expected), ("safe", cpu.safe)] {
                own_residual.push(([label(), vec![("bound", bound.to_owned())]].concat(), value.cores()));
            }
        }
    }
    let by = |label: &'static str, counts: BTreeMap<&'static str, f64>| {
        counts.into_iter().map(move |(state, count)| (vec![(label, state.to_owned())], count))
    };
    page.gauges("gleaner_hosts", "Hosts that ever joined, by what they do now.", by("state", states));
    page.gauges("gleaner_volunteers", "Volunteers of hosts that report, by state.", by("state", volunteers));
    page.gauge("gleaner_fleet_capacity_cores", "CPUs of the hosts that report.", capacity);
    page.gauge("gleaner_fleet_foreground_cores", "CPU that their foreground uses.", foreground);
    let bounds = [("expected", residual.expected), ("safe", residual.safe)];
    page.gauges(
        "gleaner_fleet_residual_cores",
        "CPU that their foreground is predicted to leave: expected, and what every host promises.",
        bounds.map(|(bound, value)| (vec![("bound", bound.to_owned())], value)),
    );
    page.gauge("gleaner_fleet_volunteer_cores", "CPU that their volunteers use.", used);
    page.gauge("gleaner_fleet_allowance_cores", "CPU that their volunteers may use now.", allowed);
    page.gauge(
        "gleaner_fleet_promises_broken_ratio",
        "Part of the judged promises of the safe residual that did not hold.",
        (judged > 0).then(|| broken as f64 / judged as f64),
    );
    page.gauges(
        "gleaner_fleet_promise_windows",
        "Windows of promises in the last day, none of which overlap, by whether the promise was kept or broken.",
        by("outcome", windows),
    );
    page.gauge(
        "gleaner_hosts_breaking_promises",
        "Hosts that report and break more promises than their risk allows (event promises_broken).",
        breaking,
    );
    page.gauges(
        "gleaner_host_promises_ratio",
        "Part of a host's promises that may break (promised), and that broke in the windows of the last day (broken).",
        own_promises,
    );
    page.gauges("gleaner_host_foreground_cores", "CPU that a host's foreground uses.", own_foreground);
    page.gauges("gleaner_host_residual_cores", "CPU that a host's foreground is predicted to leave.", own_residual);
    page.gauges("gleaner_host_volunteer_cores", "CPU that a host's volunteer uses.", own_used);
    page.gauges(
        "gleaner_host_harm_ratio",
        "How much slower a host's foreground is with its volunteer than without: mean and 95 % interval.",
        own_harm,
    );
    page.gauge(
        "gleaner_hosts_over_harm_budget",
        "Hosts that report and whose foreground's whole interval of harm is above the budget.",
        over_budget,
    );
    page.gauge(
        "gleaner_host_labels_left_out",
        "Hosts without figures of their own on this page, because there are too many.",
        hosts.saturating_sub(MOST_HOSTS) as f64,
    );
}

const fn volunteer_state(state: VolunteerState) -> &'static str {
    match state {
        VolunteerState::Latent => "latent",
        VolunteerState::Active => "active",
        VolunteerState::Frozen => "frozen",
        VolunteerState::Unknown(_) => "unknown",
    }
}

fn agents(page: &mut Page, counters: &Counters, outgoing: &Outgoing) {
    page.gauge("gleaner_connections", "Agents connected.", outgoing.connections as f64);
    let reports = counters.inputs.get("report").copied().unwrap_or(0);
    page.counter("gleaner_reports", "Reports of agents taken.", reports);
    page.counter(
        "gleaner_reports_dropped",
        "Reports that agents dropped because they could not be sent.",
        counters.reports_dropped,
    );
    page.counter("gleaner_guard_shrinks", "Times a guard shrank its volunteer.", counters.guard_shrinks);
    page.counter("gleaner_guard_freezes", "Times a guard froze its volunteer.", counters.guard_freezes);
    page.seconds("gleaner_harvested_core_seconds", "CPU time that volunteers used.", counters.harvested_core_s);
    page.counter("gleaner_peers_refused", "Connections refused.", counters.peers_refused);
    page.counter("gleaner_messages_refused", "Messages of agents refused.", counters.messages_refused);
    let unknown = counters.not_understood;
    let kinds = [("message", unknown.messages), ("code", unknown.codes), ("field", unknown.fields)];
    page.counters(
        "gleaner_protocol_unknown",
        "What agents said that only a newer release knows, by what it was; skipped or kept as unknown.",
        kinds.map(|(kind, count)| (vec![("kind", kind.to_owned())], count)),
    );
    page.counter("gleaner_messages_dropped", "Messages to agents dropped for lack of room.", counters.messages_dropped);
    page.gauge("gleaner_outgoing_waiting", "Messages that wait for agents.", outgoing.waiting as f64);
    page.gauge(
        "gleaner_outgoing_waiting_most",
        "Messages that wait for the agent with the most of them.",
        outgoing.most_waiting as f64,
    );
}

fn decisions(page: &mut Page, controller: &Controller, counters: &Counters) {
    let inputs = counters.inputs.iter().map(|(kind, count)| (vec![("kind", (*kind).to_owned())], *count));
    page.counters("gleaner_controller_inputs", "Inputs of the controller, by kind.", inputs);
    page.histogram(
        "gleaner_controller_decision_seconds",
        "Time the controller took for one input.",
        &counters.decisions,
    );
    page.counter("gleaner_commands", "Commands sent to agents, renewals among them.", counters.commands);
    page.counter("gleaner_commands_refused", "Commands that agents refused.", counters.commands_refused);
    let leases: usize = controller.glances().map(|host| host.leases).sum();
    page.gauge("gleaner_command_leases", "Commands in force under a lease.", leases as f64);
    page.counter(
        "gleaner_plans_rejected",
        "Plans that the independent checker rejected; each is a bug in Gleaner.",
        counters.plans_rejected,
    );
}

fn jobs(page: &mut Page, controller: &Controller, now: Timestamp) {
    let phases = ["waiting", "profiling", "running", "completed", "failed", "cancelled"];
    let mut counts = BTreeMap::from(phases.map(|phase| (phase, 0.0)));
    for job in controller.jobs() {
        *counts.entry(job.phase.word()).or_default() += 1.0;
    }
    let counts = counts.into_iter().map(|(phase, count)| (vec![("phase", phase.to_owned())], count));
    page.gauges("gleaner_jobs", "Jobs remembered, by phase.", counts);
    let active: Vec<&JobStatus> = controller.jobs().filter(|job| !job.phase.is_final()).take(MOST_JOBS).collect();
    let mut of_each = |name, help, value: &dyn Fn(&JobStatus) -> Option<f64>| {
        let label = |job: &JobStatus| vec![("job", job.spec.id.to_string())];
        page.gauges(name, help, active.iter().filter_map(|job| Some((label(job), value(job)?))).collect::<Vec<_>>());
    };
    let until = |at: Timestamp| at.seconds_since(now) - now.seconds_since(at);
    of_each("gleaner_job_progress_ratio", "Part of a job's work that is done.", &|job| {
        Some(job.progress.as_ref()?.fraction_done.value())
    });
    of_each("gleaner_job_volunteers", "Volunteers that a job has.", &|job| Some(f64::from(job.volunteers)));
    of_each(
        "gleaner_job_allotted_volunteers",
        "Interactive hosts, or slots of its machine, that a job may have, where several jobs want the same.",
        &|job| Some(f64::from(job.share.as_ref()?.allotted)),
    );
    of_each(
        "gleaner_job_fair_volunteers",
        "Interactive hosts, or slots of its machine, that a job would have under fair sharing.",
        &|job| Some(job.share.as_ref()?.fair),
    );
    of_each(
        "gleaner_job_credit_host_seconds",
        "Host-seconds, or slot-seconds, that a job has had beyond its fair share, dedicated ones among them; negative when it has lent.",
        &|job| Some(job.share.as_ref()?.credit_s),
    );
    of_each("gleaner_job_deadline_seconds", "Time left to a job's deadline; negative when it has passed.", &|job| {
        job.deadline.map(until)
    });
    of_each("gleaner_job_estimate_seconds", "Time until a job is done, by its last decision.", &|job| {
        job.completion_estimate.map(until)
    });
    of_each("gleaner_job_cost_dollars", "What a job has cost so far.", &|job| Some(job.cost.amount()));
    of_each("gleaner_job_harvested_core_seconds", "CPU time that a job has used.", &|job| Some(job.harvested_core_s));
}

fn applications(page: &mut Page, controller: &Controller) {
    let all: Vec<&ApplicationStatus> = controller.applications().collect();
    page.gauge("gleaner_applications", "Applications with a response-time target.", all.len() as f64);
    let shown = &all[..all.len().min(MOST_APPLICATIONS)];
    let mut of_each = |name, help, value: &dyn Fn(&ApplicationStatus) -> Option<f64>| {
        let label = |status: &ApplicationStatus| vec![("application", status.spec.name.to_string())];
        page.gauges(name, help, shown.iter().filter_map(|item| Some((label(item), value(item)?))).collect::<Vec<_>>());
    };
    of_each(
        "gleaner_application_response_seconds",
        "Mean response time of an application, by its source's last answer; none without a mean.",
        &|item| Some(item.response.as_ref()?.1.mean_ms()? / 1_000.0),
    );
    of_each("gleaner_application_target_seconds", "Response time an application should have.", &|item| {
        Some(item.spec.target_ms / 1_000.0)
    });
    of_each(
        "gleaner_application_missed_intervals",
        "Control intervals in a row in which an application missed its target by a tenth or more.",
        &|item| Some(f64::from(item.missed)),
    );
    let mut shares = Vec::new();
    for item in shown {
        for share in item.decision.iter().flat_map(|decision| &decision.shares) {
            let labels = vec![
                ("application", item.spec.name.to_string()),
                ("tier", share.tier.to_string()),
                ("resource", resource(share.resource).to_owned()),
            ];
            shares.push((labels, share.granted));
        }
    }
    page.gauges("gleaner_application_share_ratio", "Part of its host that a tier of an application has.", shares);
}

const fn resource(resource: gleaner_types::application::Resource) -> &'static str {
    use gleaner_types::application::Resource;
    match resource {
        Resource::Cpu => "cpu",
        Resource::Memory => "memory",
        Resource::Disk => "disk",
        Resource::Network => "network",
    }
}

fn own_records(page: &mut Page, counters: &Counters, records: &Records) {
    let failing = |error: &Option<String>| f64::from(u8::from(error.is_some()));
    page.gauge("gleaner_store_failing", "1 while the state cannot be stored.", failing(&records.store_error));
    page.counter("gleaner_store_failures", "Times the state could not be stored.", counters.store_failures);
    page.gauge("gleaner_journal_failing", "1 while the journal cannot be written.", failing(&records.journal_error));
    page.gauge(
        "gleaner_event_log_failing",
        "1 while the event log cannot be written.",
        failing(&records.event_log_error),
    );
    page.counter("gleaner_events", "Events logged.", records.events);
    page.gauge("gleaner_events_waiting", "Events that wait for the log.", records.events_waiting as f64);
    page.counter("gleaner_events_lost", "Events dropped for lack of room to wait for the log.", records.events_lost);
}

/// The state of the core loop, updated by it every second. It can be read while the loop hangs.
#[derive(Debug)]
pub(crate) struct Pulse(Mutex<LoopState>);

#[derive(Debug)]
struct LoopState {
    at: Instant,
    store_error: Option<String>,
    journal_error: Option<String>,
    event_log_error: Option<String>,
    /// Another aggregator leads, or none.
    stands_by: Option<String>,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LoopState {
            at: Instant::now(),
            store_error: None,
            journal_error: None,
            event_log_error: None,
            stands_by: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, LoopState> {
        // Plain values, valid in any combination.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn beat(&self, records: &Records) {
        *self.lock() = LoopState {
            at: Instant::now(),
            store_error: records.store_error.clone(),
            journal_error: records.journal_error.clone(),
            event_log_error: records.event_log_error.clone(),
            stands_by: None,
        };
    }

    /// It works, and stands by: healthy, but not ready.
    pub(crate) fn stands_by(&self, who_leads: String) {
        let mut beat = self.lock();
        (beat.at, beat.stands_by) = (Instant::now(), Some(who_leads));
    }

    /// An arrival was processed.
    pub(crate) fn works(&self) {
        self.lock().at = Instant::now();
    }

    /// Whether the core loop of a leader hangs: it has processed nothing for so long, and longer than health allows.
    /// Before its first tick it cannot hang.
    pub(crate) fn leader_hangs(&self, after: Duration) -> Option<String> {
        let leads = self.lock().stands_by.is_none();
        self.quiet(after.max(HUNG_AFTER)).filter(|_| leads)
    }

    fn quiet(&self, after: Duration) -> Option<String> {
        let quiet = self.lock().at.elapsed();
        (quiet > after).then(|| format!("the core loop has not ticked for {}", duration(quiet.as_secs_f64())))
    }

    fn health(&self) -> Health {
        Health::of(self.quiet(HUNG_AFTER).into_iter().collect())
    }

    /// The core loop has done nothing for so long.
    #[cfg(test)]
    pub(crate) fn set_quiet(&self, for_long: Duration) {
        self.lock().at = Instant::now().checked_sub(for_long).unwrap();
    }

    fn readiness(&self) -> Health {
        let mut health = self.health();
        let beat = self.lock();
        health.problems.extend(beat.stands_by.clone());
        health.problems.extend(beat.store_error.clone());
        health.problems.extend(beat.event_log_error.clone());
        health.warnings.extend(beat.journal_error.clone());
        health.ok = health.problems.is_empty();
        health
    }
}

/// What the listener asks.
#[derive(Debug)]
pub(crate) struct Monitor {
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) arrivals: mpsc::Sender<Arrival>,
}

impl Monitored for Monitor {
    async fn page(&self) -> Result<Page, PageError> {
        let waiting = self.arrivals.max_capacity() - self.arrivals.capacity();
        let (answer, page) = oneshot::channel();
        let asked = async {
            self.arrivals.send(Arrival::Scraped { answer }).await.map_err(|_| ())?;
            page.await.map_err(|_| ())
        };
        let mut page = match tokio::time::timeout(PAGE_TIMEOUT, asked).await {
            Ok(Ok(page)) => page,
            Ok(Err(())) => return Err(PageError::Stopping),
            Err(_) => return Err(PageError::Timeout(PAGE_TIMEOUT)),
        };
        page.gauge("gleaner_arrivals_waiting", "Messages and requests that wait for the core loop.", waiting as f64);
        Ok(page)
    }

    fn health(&self) -> Health {
        self.pulse.health()
    }

    fn readiness(&self) -> Health {
        self.pulse.readiness()
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::controller::Settings;

    use super::*;

    #[test]
    fn a_page_names_every_family_even_of_an_empty_fleet() {
        let controller = Controller::new(Settings::default(), Timestamp(1));
        let (records, outgoing) = (Records::default(), Outgoing::default());
        let page = page(&controller, &Counters::default(), &records, &outgoing, Timestamp(1_000), Timestamp(3_000));
        let text = page.text().unwrap();
        for line in [
            "# TYPE gleaner_job_progress_ratio gauge",
            "# TYPE gleaner_application_response_seconds gauge",
            "gleaner_hosts{state=\"acting\"} 0.0",
            "gleaner_aggregator_uptime_seconds 2.0",
            "gleaner_jobs{phase=\"running\"} 0.0",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn the_docs_say_what_the_help_says() {
        let controller = Controller::new(Settings::default(), Timestamp(1));
        let (records, outgoing) = (Records::default(), Outgoing::default());
        let page = page(&controller, &Counters::default(), &records, &outgoing, Timestamp(1_000), Timestamp(3_000));
        let text = page.text().unwrap();
        let docs = include_str!("../../docs/metrics.md");
        let differing = gleaner_test_support::metrics::differing(&text, docs);
        assert!(differing.is_empty(), "docs/metrics.md says something else:\n{}", differing.join("\n"));
    }

    /// A host of four CPUs that claims all there are, in as many reports as it may send at once.
    #[test]
    fn no_report_says_more_than_all_cpus_for_all_of_the_time() {
        let mut counters = Counters::default();
        let host = HostId::new("h1").unwrap();
        let mut booked_core_s = 0.0;
        for sequence in 1..=5_000 {
            let mut report = gleaner_test_support::report::report(&host, sequence);
            report.interval_s = 120.0;
            report.volunteer.cpu = Reading::Value(CoreShare::clamped(6_553_600.0));
            report.machine.cpu_busy = report.volunteer.cpu.clone();
            counters.reported(&mut report, 4, Timestamp(1_000));
            assert!(report.machine.cpu_busy.value().unwrap().cores() <= 4.0);
            booked_core_s += report.volunteer.cpu.value().unwrap().cores() * report.interval_s;
        }
        assert!((booked_core_s - 4.0 * MOST_COVERED_S).abs() < 1.0, "{booked_core_s}");
        assert!((counters.harvested_core_s() - booked_core_s).abs() < 1.0);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let pulse = Pulse::new();
        assert!(pulse.health().ok && pulse.readiness().ok);
        let records = Records {
            event_log_error: Some("the event log cannot be written".to_owned()),
            journal_error: Some("the journal cannot be written".to_owned()),
            ..Records::default()
        };
        pulse.beat(&records);
        let ready = pulse.readiness();
        assert!(pulse.health().ok && !ready.ok);
        assert_eq!(ready.problems, ["the event log cannot be written"]);
        assert_eq!(ready.warnings, ["the journal cannot be written"], "jobs run on without a journal");
        pulse.set_quiet(HUNG_AFTER + Duration::from_secs(1));
        let health = pulse.health();
        assert!(!health.ok && health.problems[0].contains("has not ticked"), "{health:?}");
    }
}
