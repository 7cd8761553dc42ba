//! A cluster of dedicated and interactive hosts on a virtual clock of one second. In: a [`crate::scenario`]. Out: what
//! its jobs took and cost. Users arrive, work in bursts and leave; batch jobs run in the residual. The production
//! controller decides; there is no policy here.

mod error;
mod fair;
mod host;
mod outcome;
mod running;

use std::collections::BTreeMap;

use gleaner_planner::controller::{Controller, Input, Output, Settings};
use gleaner_planner::sizing::policy::SizingPolicy;
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota};
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineAction, EngineEnd};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};

use crate::scenario::{ClusterScenario, HostClass, SizingChoice};
pub use error::ScenarioError;
use fair::{FairSchedule, Part};
use host::SimulatedHost;
pub use host::class_name;
pub use outcome::{ByClass, ClusterRun, JobRun, SizeAt};
use running::Running;

struct Cluster<'s, S> {
    scenario: &'s ClusterScenario<S>,
    sizing: Box<dyn SizingPolicy>,
    second: u32,
    controller: Controller,
    hosts: Vec<SimulatedHost>,
    places: BTreeMap<HostId, usize>,
    jobs: Vec<Running>,
    /// Beside what happens; of several jobs.
    fair: Option<FairSchedule>,
    sequence: u64,
    run: ClusterRun,
    /// By job and interval.
    decisions_in_interval: BTreeMap<(JobId, u32), u32>,
}

/// Runs a scenario to its jobs' ends, or to its time limit.
///
/// # Errors
/// [`ScenarioError`] when it cannot be run.
pub fn simulate<S: SizingChoice>(scenario: &ClusterScenario<S>) -> Result<ClusterRun, ScenarioError> {
    let problems = scenario.problems();
    if !problems.is_empty() {
        return Err(ScenarioError::Fields(problems));
    }
    let mut cluster = Cluster::new(scenario)?;
    cluster.begin();
    while cluster.second < scenario.limit_s && !cluster.is_done() {
        cluster.second += 1;
        cluster.step();
    }
    Ok(cluster.end())
}

/// Hosts of some classes, numbered on from those that are there.
fn add_hosts<S>(
    scenario: &ClusterScenario<S>,
    kind: &str,
    classes: &[HostClass],
    hosts: &mut Vec<SimulatedHost>,
) -> Result<Vec<usize>, ScenarioError> {
    let dedicated = kind == DEDICATED;
    let first = hosts.len();
    let mut number = hosts.iter().filter(|host| host.is_dedicated() == dedicated).count();
    for class in classes {
        for _ in 0..class.count {
            number += 1;
            let id = HostId::new(format!("{kind}-{number:04}"))?;
            hosts.push(SimulatedHost::new(scenario, id, class, dedicated, number));
        }
    }
    Ok((first..hosts.len()).collect())
}

const DEDICATED: &str = "dedicated";
const INTERACTIVE: &str = "interactive";

impl<'s, S: SizingChoice> Cluster<'s, S> {
    fn new(scenario: &'s ClusterScenario<S>) -> Result<Self, ScenarioError> {
        let profiles = scenario.all_jobs();
        let mut hosts = Vec::new();
        let mut dedicated = Vec::new();
        for profile in profiles {
            let classes = profile.dedicated.as_ref().unwrap_or(&scenario.dedicated);
            dedicated.push(add_hosts(scenario, DEDICATED, classes, &mut hosts)?);
        }
        let interactive = add_hosts(scenario, INTERACTIVE, &scenario.interactive, &mut hosts)?;
        let jobs = (0..).zip(profiles).zip(dedicated).map(|((number, profile), mut own)| {
            own.extend(&interactive);
            Running::new(scenario, number, profile, own, &hosts)
        });
        let jobs = jobs.collect::<Result<Vec<Running>, _>>()?;
        let settings = Settings {
            evaluation_interval_s: scenario.evaluation_interval_s,
            profile_period_s: scenario.evaluation_interval_s,
            ..Settings::default()
        };
        let fairly = || FairSchedule::new(jobs.iter().map(|job| job.fairly(&hosts)).collect());
        Ok(Self {
            scenario,
            sizing: scenario.sizing.policy(),
            second: 0,
            controller: Controller::new(settings, Timestamp(0)),
            places: hosts.iter().enumerate().map(|(place, host)| (host.id.clone(), place)).collect(),
            fair: (jobs.len() > 1).then(fairly),
            hosts,
            jobs,
            sequence: 0,
            run: ClusterRun {
                completed: false,
                elapsed_s: 0.0,
                cost: 0.0,
                energy_wh: 0.0,
                volunteer_s: 0.0,
                mean_volunteers: 0.0,
                sizes: Vec::new(),
                decisions_per_interval: 0,
                busiest: 0.0,
                by_class: ByClass::default(),
                jobs: Vec::new(),
                rejected: Vec::new(),
                decisions: Vec::new(),
                warned_s: None,
                job: None,
            },
            decisions_in_interval: BTreeMap::new(),
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp(u64::from(self.second) * 1_000)
    }

    fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.batch.is_done())
    }

    fn begin(&mut self) {
        for place in 0..self.hosts.len() {
            self.join(place);
        }
        self.report_all();
        self.submit();
    }

    fn join(&mut self, place: usize) {
        let host = &self.hosts[place];
        let (id, facts) = (host.id.clone(), Box::new(host.facts.clone()));
        self.tell(Input::HostJoined { host: id, incarnation: u64::from(self.second), facts });
    }

    /// Jobs whose time has come.
    fn submit(&mut self) {
        for index in 0..self.jobs.len() {
            if self.jobs[index].run.arrives_s == self.second {
                let spec = self.jobs[index].spec(self.scenario, &self.hosts);
                self.tell(Input::JobSubmitted(Box::new(spec)));
            }
        }
    }

    fn tell(&mut self, input: Input) {
        let now = self.now();
        for output in self.controller.handle_sizing_by(&mut *self.sizing, input, now) {
            match output {
                Output::Command { host, command } => self.command(&host, &command),
                Output::Engine { job, action: EngineAction::SetSlots(slots) } => self.set_slots(&job, &slots),
                Output::Engine { job, action: EngineAction::Cancel } => self.set_slots(&job, &BTreeMap::new()),
                Output::Event(Event::JobSized { decision }) => {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
                    let interval = (f64::from(self.second) / self.scenario.evaluation_interval_s) as u32;
                    *self.decisions_in_interval.entry((decision.job.clone(), interval)).or_default() += 1;
                    self.run.decisions.push(decision);
                }
                Output::Event(Event::GoalAtRisk { job, .. }) if job == self.jobs[0].id => {
                    self.run.warned_s = Some(f64::from(self.second));
                }
                Output::Event(Event::GoalBackInReach { job }) if job == self.jobs[0].id => self.run.warned_s = None,
                Output::Event(Event::PlanRejected { violation }) => self.run.rejected.push(violation),
                Output::Event(_) | Output::AskResponseTime { .. } => {}
            }
        }
    }

    fn command(&mut self, id: &HostId, command: &Command) {
        let Some(&place) = self.places.get(id) else { return };
        self.hosts[place].cap = match command.desired {
            Desired::Run { cap: Quota::AtMost(cap) } => cap,
            _ => CoreShare::ZERO,
        };
        let limits = Limits { quota: Quota::AtMost(self.hosts[place].cap), ..Limits::NONE };
        let outcome = Outcome::Applied { limits, shortfalls: Vec::new() };
        let ack = Ack { target: command.target.clone(), version: command.version, outcome };
        self.tell(Input::Acked { host: id.clone(), ack });
    }

    fn set_slots(&mut self, id: &JobId, slots: &BTreeMap<HostId, u32>) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == *id) {
            job.set_slots(slots, &self.hosts, self.second, self.scenario.set_up_s);
        }
    }

    /// One second of everything.
    fn step(&mut self) {
        self.come_and_go();
        self.submit();
        self.hosts.iter_mut().for_each(SimulatedHost::next_foreground);
        let here: Vec<usize> = (0..self.jobs.len()).filter(|&job| self.jobs[job].is_here(self.second)).collect();
        self.share_fairly();
        self.work(&here);
        self.measure(&here);
        self.report_all();
        for &index in &here {
            let job = &mut self.jobs[index];
            let (id, progress) = (job.id.clone(), job.progress(&self.hosts));
            if job.batch.is_done() {
                job.end(self.scenario, &self.hosts, self.second);
                self.tell(Input::EngineEnded { job: id, end: EngineEnd::Completed, progress: Some(progress) });
            } else {
                self.tell(Input::Progress { job: id, progress });
            }
        }
        if !self.is_done() {
            self.tell(Input::Tick);
        }
        for job in self.jobs.iter_mut().filter(|job| job.is_here(self.second)) {
            job.count_share(self.controller.job(&job.id));
        }
    }

    fn come_and_go(&mut self) {
        for place in 0..self.hosts.len() {
            if f64::from(self.second) < self.hosts[place].changes_at {
                continue;
            }
            let churn = self.scenario.churn;
            let host = &mut self.hosts[place];
            host.present = !host.present;
            let stay = host.next_stay_s(churn);
            host.changes_at += stay;
            if host.present {
                host.arrive(self.scenario);
                self.join(place);
            } else {
                let id = host.id.clone();
                host.cap = CoreShare::ZERO;
                self.jobs.iter_mut().for_each(|job| job.lose(place));
                self.tell(Input::HostLost { host: id, reason: "its user has left".into() });
            }
        }
    }

    /// The second as it would be under fair sharing.
    fn share_fairly(&mut self) {
        let Some(mut fair) = self.fair.take() else { return };
        if !fair.is_over() {
            let there = self.hosts.iter().filter(|host| !host.is_dedicated() && host.present).count();
            let memory_per_slot = Bytes::from_mib(self.scenario.slot_memory_mib);
            let part = |job: &Running| {
                if job.run.arrives_s >= self.second {
                    return Part::NotHere;
                }
                job.fair_part(self.controller.job(&job.id), memory_per_slot, &self.hosts)
            };
            let parts: Vec<Part> = self.jobs.iter().map(part).collect();
            fair.second(there as f64, &parts);
        }
        self.fair = Some(fair);
    }

    /// Tasks start, work and end.
    fn work(&mut self, here: &[usize]) {
        let mut running = vec![0; self.hosts.len()];
        for &index in here {
            self.jobs[index].start_tasks(&self.hosts, self.second);
            self.jobs[index].running().for_each(|(place, tasks)| running[place] += tasks);
        }
        let allowed: Vec<f64> = self.hosts.iter().map(SimulatedHost::allowed).collect();
        let mut used = vec![0.0; self.hosts.len()];
        // After the profile and the first change.
        let settled_s = 2.0 * self.scenario.evaluation_interval_s;
        for &index in here {
            let job = &mut self.jobs[index];
            let settled = f64::from(self.second - job.run.arrives_s) >= settled_s;
            let classes = settled.then_some(&mut self.run.by_class);
            job.second(&self.hosts, &allowed, &running, &mut used, classes);
        }
        for (host, used) in self.hosts.iter_mut().zip(used) {
            host.used = CoreShare::clamped(used * 100.0);
        }
    }

    /// What the second cost, in money and energy.
    fn measure(&mut self, here: &[usize]) {
        for host in &self.hosts {
            self.run.busiest = self.run.busiest.max(host.part(host.foreground + host.used));
        }
        let volunteers = here.iter().map(|&index| self.jobs[index].measure(self.scenario, &self.hosts)).sum();
        if self.run.sizes.last().is_none_or(|last| last.volunteers != volunteers) {
            self.run.sizes.push(SizeAt { at_s: self.second, volunteers });
        }
    }

    fn report_all(&mut self) {
        self.sequence += 1;
        for place in 0..self.hosts.len() {
            let host = &mut self.hosts[place];
            if !host.present {
                continue;
            }
            host.observe();
            let disk = host.is_dedicated().then(|| self.jobs.iter().find_map(|job| job.disk(place)).unwrap_or(0.0));
            let report = self.hosts[place].report(self.sequence, self.now(), disk);
            self.tell(Input::Report(Box::new(report)));
        }
    }

    fn end(mut self) -> ClusterRun {
        // Fairly the last may be done later; hosts stay as they are.
        for _ in 0..if self.is_done() { self.scenario.limit_s } else { 0 } {
            if self.fair.as_ref().is_none_or(FairSchedule::is_over) {
                break;
            }
            self.share_fairly();
        }
        let fair = self.fair.take();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            if !job.batch.is_done() {
                job.end(self.scenario, &self.hosts, self.second);
            }
            job.compare(fair.as_ref().and_then(|fair| fair.end_s(index)));
        }
        let run = &mut self.run;
        run.completed = self.jobs.iter().all(|job| job.run.completed);
        run.elapsed_s = f64::from(self.second);
        let sum = |of: fn(&JobRun) -> f64| self.jobs.iter().map(|job| of(&job.run)).sum::<f64>();
        run.cost = sum(|job| job.cost);
        run.energy_wh = sum(|job| job.energy_wh);
        run.volunteer_s = sum(|job| job.volunteer_s);
        run.mean_volunteers = if run.elapsed_s > 0.0 { run.volunteer_s / run.elapsed_s } else { 0.0 };
        run.decisions_per_interval = self.decisions_in_interval.values().copied().max().unwrap_or(0);
        run.job = self.jobs.first().and_then(|job| self.controller.job(&job.id)).cloned();
        run.jobs = self.jobs.into_iter().map(|job| job.run).collect();
        self.run
    }
}

#[cfg(test)]
mod tests;
