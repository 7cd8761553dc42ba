//! The trials of hosts whose volunteer is held by its harm, as the agent's meter makes them: it waits, looks at a window
//! with the volunteer, holds it, and looks at another. In: the time. Out: postures, and their checks. Called by [`super`].

use std::time::Duration;

use gleaner_planner::harm::{Compared, Comparison, RunTime, SETTLING_TIME, Trial};
use gleaner_planner::protecting::Posture;
use gleaner_types::report::{Absence, AbsenceKind, VolunteerState};

use super::step::{Step, Windows};
use super::{Happening, World};
use crate::checks::Tried;
use crate::faults::Time;
use crate::host::Host;
use crate::machine::Sensors;

/// The guard lets a volunteer go so long after a trial should have.
const LATENESS: Duration = Duration::from_millis(400);

fn milliseconds(duration: Duration) -> Time {
    Time::try_from(duration.as_millis()).unwrap_or(Time::MAX).max(1)
}

impl World {
    pub(super) fn trial(&mut self, number: usize, life: u64, step: Step) -> anyhow::Result<()> {
        if !self.lives(number, life) {
            return Ok(());
        }
        if let Some(until) = self.frozen(number) {
            self.at(until, Happening::Trial(number, life, step));
            return Ok(());
        }
        let next = match step {
            Step::Draw => None,
            Step::Begin(trial) => self.begin(number, trial),
            Step::Hold(trial, freezes) => self.hold(number, trial, freezes),
            Step::End(windows) => {
                self.weigh(number, &windows)?;
                None
            }
        };
        let next = next.or_else(|| self.draw(number));
        self.checks.protected(&self.hosts[number]);
        if let Some((delay, step)) = next {
            self.after(delay, Happening::Trial(number, life, step));
        }
        Ok(())
    }

    /// The posture in force, or `None` if the volunteer is not held by its harm.
    fn posture(&self, number: usize) -> Option<Posture> {
        Some(self.hosts[number].harm_by_hand()?.posture())
    }

    /// What is due by time alone, and the next trial.
    fn draw(&mut self, number: usize) -> Option<(Time, Step)> {
        let (now, before) = (self.hosts[number].instant(self.now), self.posture(number)?);
        let pause_share = self.hosts[number].awake(self.now)?.host_loop.harm_by_hand_mut()?.step(now);
        self.checks.stepped(number, &self.hosts[number], before, now);
        self.note_posture(number, before);
        let trial = self.hosts[number].harm.as_mut()?.next_trial(pause_share)?;
        Some((milliseconds(trial.wait), Step::Begin(trial)))
    }

    /// How often the guard froze a volunteer that runs.
    fn freezes(&self, number: usize) -> Option<u64> {
        let (state, freezes) = self.hosts[number].harm_by_hand()?.runs();
        (state == VolunteerState::Active).then_some(freezes)
    }

    fn begin(&mut self, number: usize, trial: Trial) -> Option<(Time, Step)> {
        let freezes = self.freezes(number)?;
        Some((milliseconds(trial.window), Step::Hold(trial, freezes)))
    }

    fn hold(&mut self, number: usize, trial: Trial, freezes: u64) -> Option<(Time, Step)> {
        let same = self.freezes(number)? == freezes;
        let slots = f64::from(self.slots_on(number)) * 100.0;
        let host = &mut self.hosts[number];
        let cores = host.allowance().min(slots).min(host.machine.left()).max(0.0) / 100.0;
        // As the meter, which does not weigh a volunteer that uses no CPU.
        if !same || cores < 0.01 {
            return None;
        }
        let posture = host.harm_by_hand()?.posture();
        let (wanted, cpus, sensors) = (demands(host), host.machine.cores, host.machine.sensors);
        let with = host.harm.as_mut()?.window(&wanted, sensors, trial.window, posture, cpus);
        let until = host.instant(self.now) + trial.held() + LATENESS;
        let held = host.harm_by_hand()?.hold(until);
        held.then(|| {
            let delay = milliseconds(SETTLING_TIME + trial.window);
            (delay, Step::End(Windows { trial, freezes, until, with, cores }))
        })
    }

    fn weigh(&mut self, number: usize, windows: &Windows) -> anyhow::Result<()> {
        let now = self.hosts[number].instant(self.now);
        let freezes = self.freezes(number);
        let host = &mut self.hosts[number];
        let (wanted, cpus, sensors) = (demands(host), host.machine.cores, host.machine.sensors);
        let (Some(by_hand), Some(harm)) =
            (host.agent.as_mut().and_then(|agent| agent.host_loop.harm_by_hand_mut()), &mut host.harm)
        else {
            return Ok(());
        };
        by_hand.release();
        if freezes != Some(windows.freezes) || now >= windows.until {
            return Ok(());
        }
        let before = by_hand.posture();
        let without = harm.window(&wanted, sensors, windows.trial.window, Posture::Hold, cpus);
        let compared = compare(host, &windows.with, &without)?;
        let Some(agent) = host.awake(self.now) else { return Ok(()) };
        let Some(by_hand) = agent.host_loop.harm_by_hand_mut() else { return Ok(()) };
        by_hand.trial(now, &compared, windows.cores);
        let tried = Tried { now, compared: &compared, cores: windows.cores, before, after: by_hand.posture() };
        self.checks.tried(number, &self.hosts[number], &tried);
        self.note_posture(number, before);
        Ok(())
    }

    /// Equal runs choose equal postures.
    fn note_posture(&mut self, number: usize, before: Posture) {
        let Some(by_hand) = self.hosts[number].harm_by_hand().filter(|by_hand| by_hand.posture() != before) else {
            return;
        };
        let reason = by_hand.protection().map(|own| own.reason).unwrap_or_default();
        self.say(|| format!("h{number}: {reason}"));
        self.digest(&reason);
    }
}

/// The CPU that each workload of a host wants and may have, in percent of a core.
fn demands(host: &Host) -> Vec<f64> {
    let of = |workload| {
        let demand = host.machine.demand(workload);
        host.machine.quota(workload).map_or(demand, |quota| demand.min(quota))
    };
    (0..host.machine.workloads()).map(of).collect()
}

/// A trial's two windows by workload. Counters that hold no numbers are absent.
fn compare(host: &Host, with: &[RunTime], without: &[RunTime]) -> anyhow::Result<Vec<Compared>> {
    let absent = matches!(host.machine.sensors, Sensors::Garbage | Sensors::Empty | Sensors::Backwards);
    let of = |(number, (with, without)): (usize, (&RunTime, &RunTime))| {
        let result = match absent {
            true => Err(Absence::described(AbsenceKind::Malformed, "its counters hold no numbers")),
            false => Ok(Comparison::counted(*with, *without)),
        };
        Ok((host.workload(number)?, result))
    };
    with.iter().zip(without).enumerate().map(of).collect()
}
