//! Faults, and the processes that they end and start. In: a fault, or that a process is to start. Out: agents, keepers and the
//! aggregator, started or gone. Called by [`super`].

use gleaner_api::{Request, Response};

use super::step::Step;
use super::{GUARD, Happening, RESTART, World};
use crate::faults::{Fault, Time};
use crate::host::Stopped;
use crate::network::LinkId;

impl World {
    fn cut(&mut self, host: usize, long: Time) {
        let until = &mut self.hosts[host].cut_until;
        *until = (*until).max(self.now + long);
    }

    pub(super) fn fault(&mut self, fault: Fault) -> anyhow::Result<()> {
        self.say(|| format!("fault: {fault:?}"));
        let mut counts = true;
        match fault {
            Fault::KillAgent { host, down, keeper } => {
                if self.hosts[host].agent.is_some() {
                    let link = self.hosts[host].kill();
                    self.ended(host, link);
                    if !keeper {
                        let moment = 1 + self.random.below(300) as Time;
                        self.after(moment, Happening::Keeper(host));
                    }
                    self.after(down.max(400), Happening::StartAgent(host));
                } else {
                    counts = false;
                }
            }
            Fault::StopAgent { host, down } => {
                if self.hosts[host].agent.is_some() {
                    self.stop_agent(host);
                    self.after(down, Happening::StartAgent(host));
                } else {
                    counts = false;
                }
            }
            Fault::FreezeAgent { host, long } => {
                let until = &mut self.hosts[host].frozen_until;
                *until = (*until).max(self.now + long);
            }
            Fault::KillAggregator { down, midway: true } => self.midway = Some(down),
            Fault::KillAggregator { down, midway: false } => {
                self.kill_aggregator();
                self.after(down, Happening::StartAggregator);
            }
            Fault::StopAggregator { down } => {
                self.aggregator.stop(self.now);
                self.lose_all();
                self.after(down, Happening::StartAggregator);
            }
            Fault::FreezeAggregator { long } => {
                let until = &mut self.aggregator.frozen_until;
                *until = (*until).max(self.now + long);
            }
            Fault::Cut { host, long } => self.cut(host, long),
            Fault::CutAll { long } => (0..self.hosts.len()).for_each(|host| self.cut(host, long)),
            Fault::ClockStep { machine, by } => match self.hosts.get_mut(machine) {
                Some(host) => host.dial.offset += by,
                None => self.aggregator.dial.offset += by,
            },
            Fault::Sensors { host, how, long } => {
                self.hosts[host].machine.sensors = how;
                self.after(long, Happening::Wellagain(host));
            }
            Fault::FullAggregatorDisk { long } => {
                counts = self.aggregator.disk.can_fill();
                if counts {
                    self.aggregator.disk.fill()?;
                    self.was_full = true;
                    self.after(long, Happening::RelieveAggregator);
                }
            }
            Fault::FullAgentDisk { long } => {
                counts = self.disk.can_fill();
                if counts {
                    self.disk.fill()?;
                    self.agents_full = true;
                    self.after(long, Happening::RelieveAgents);
                }
            }
            Fault::Meddle { host } => self.hosts[host].machine.meddle(0)?,
            Fault::Hold { host, long } => {
                let (id, for_s) = (self.hosts[host].id.clone(), (long as f64 / 1e3).max(1.0));
                if let Some(Response::Held { .. }) =
                    self.ask(Request::Hold { host: id, for_s: Some(for_s), unknown: true })
                {
                    // By the aggregator's clock; a fiftieth is more than any clock here gains.
                    self.hosts[host].held_until = self.now + long * 49 / 50;
                }
            }
            Fault::Reapply => {
                self.ask(Request::Remove { application: self.application.name.clone() });
                self.applied = false;
            }
        }
        if counts {
            *self.faults.entry(fault.kind()).or_default() += 1;
        }
        Ok(())
    }

    pub(super) fn start_agent(&mut self, number: usize) {
        if self.hosts[number].agent.is_some() {
            return;
        }
        match self.hosts[number].start(self.now, &mut self.random) {
            Ok(()) => {
                self.say(|| format!("h{number} started"));
                self.checks.untouched(&self.hosts[number], "after its agent started");
                self.lives += 1;
                self.hosts[number].life = self.lives;
                self.after(10, Happening::Connect(number));
                self.after(20, Happening::Tick(number, self.lives));
                if self.hosts[number].acting {
                    self.after(GUARD, Happening::Guard(number, self.lives));
                    self.after(30, Happening::Trial(number, self.lives, Step::Draw));
                }
            }
            Err(error) => {
                self.say(|| format!("h{number} does not start: {error:#}"));
                self.after(RESTART, Happening::StartAgent(number));
            }
        }
    }

    pub(super) fn stop_agent(&mut self, number: usize) {
        let Stopped { link, failed, posture } = self.hosts[number].stop(self.now);
        self.checks.lifted(number, posture);
        // On a full disk the record of what was changed stays; the knobs are put back all the same.
        let excused = self.agents_full;
        self.checks
            .demand(failed.is_empty() || excused, || format!("h{number} could not restore {}", failed.join(", ")));
        self.checks.untouched(&self.hosts[number], "after its agent stopped");
        self.ended(number, link);
    }

    /// An agent's process is gone.
    fn ended(&mut self, number: usize, link: Option<LinkId>) {
        self.checks.ended(number);
        if let Some(link) = link {
            self.end_client(link);
        }
    }

    pub(super) fn keeper(&mut self, number: usize) {
        if self.hosts[number].agent.is_some() {
            return;
        }
        match self.hosts[number].keeper() {
            Ok(()) => self.checks.untouched(&self.hosts[number], "after its keeper restored it"),
            // It tries again, as the next agent does.
            Err(error) => {
                self.say(|| format!("h{number}: its keeper: {error:#}"));
                self.after(RESTART, Happening::Keeper(number));
            }
        }
    }

    pub(super) fn start_aggregator(&mut self) {
        if self.aggregator.core.is_some() {
            return;
        }
        match self.aggregator.start(self.now) {
            Ok(()) => {
                self.say(|| "the aggregator started".to_owned());
                self.batch.end_reported = false;
                self.batch.slots.clear();
                let id = self.batch.spec.id.clone();
                let knows = self.aggregator.with(self.now, |shell| shell.controller().job(&id).is_some());
                let lost = self.batch.accepted && knows == Some(false);
                self.checks.demand(!lost, || format!("the aggregator forgot {id}, which it had accepted"));
                self.pump();
            }
            Err(error) => {
                self.say(|| format!("the aggregator does not start: {error:#}"));
                self.after(RESTART, Happening::StartAggregator);
            }
        }
    }

    pub(super) fn kill_aggregator(&mut self) {
        self.aggregator.kill();
        self.lose_all();
    }

    /// Its connections end with it; agents notice at once or when nothing comes any more.
    fn lose_all(&mut self) {
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.end_server(link);
        }
    }
}
