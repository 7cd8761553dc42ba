//! One host as the controller knows it: facts, last report, and the commands in force. In: what `Hosts`
//! writes down. Out: what jobs, applications and operators read.

use gleaner_types::command::{Command, Desired, Outcome, Target};
use gleaner_types::report::{Bounded, HostFacts, HostReport, Reading, VolunteerKind};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use super::promises::Promises;
use crate::controller::unusable::Unusable;

/// A host that joined at least once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::controller) struct Host {
    pub(super) connected: bool,
    /// It is not, because its agent was stopped.
    #[serde(default)]
    pub(super) left: bool,
    /// No report for too long although connected.
    pub(super) silent: bool,
    pub(super) incarnation: u64,
    pub(super) facts: HostFacts,
    /// When it last reported; before its first report, when it joined.
    pub(super) reported: Option<Timestamp>,
    pub(super) report: Option<HostReport>,
    /// The command in force per target, at most one each.
    pub(super) commanded: Vec<Commanded>,
    /// What its volunteer does is known: it was commanded to run or to stop since it joined.
    pub(super) volunteer_known: bool,
    /// How its promises hold.
    #[serde(default)]
    pub(super) promises: Promises,
}

/// A command as last sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::controller) struct Commanded {
    pub(in crate::controller) command: Command,
    pub(in crate::controller) sent: Timestamp,
    pub(in crate::controller) outcome: Option<Outcome>,
}

impl Host {
    /// Static facts.
    pub(in crate::controller) const fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// An agent is connected.
    pub(in crate::controller) const fn is_connected(&self) -> bool {
        self.connected
    }

    /// None is, because the agent was stopped.
    pub(in crate::controller) const fn has_left(&self) -> bool {
        self.left
    }

    /// An agent is connected, and has not reported for too long.
    pub(in crate::controller) const fn is_silent(&self) -> bool {
        self.connected && self.silent
    }

    /// When its agent started.
    pub(in crate::controller) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// When it last reported; before its first report, when it joined.
    pub(in crate::controller) const fn reported(&self) -> Option<Timestamp> {
        self.reported
    }

    /// The last report.
    pub(in crate::controller) const fn report(&self) -> Option<&HostReport> {
        self.report.as_ref()
    }

    /// The last report, unless it is out of date.
    pub(in crate::controller) fn fresh_report(&self) -> Option<&HostReport> {
        self.report.as_ref().filter(|_| self.connected && !self.silent)
    }

    /// Its agent is connected and has reported since.
    pub(in crate::controller) const fn is_present(&self) -> bool {
        self.connected && self.report.is_some()
    }

    /// Residual CPU and memory it has, or why that is not known.
    pub(super) fn residual(&self) -> Result<(CoreShare, Bytes), Unusable> {
        if !self.connected {
            return Err(Unusable::NotConnected);
        }
        if !self.facts.levers.acting {
            return Err(Unusable::ObservesOnly);
        }
        if self.facts.levers.volunteer == VolunteerKind::None {
            return Err(Unusable::NoVolunteer);
        }
        let report = self.report.as_ref().filter(|_| !self.silent).ok_or(Unusable::Silent)?;
        let cpu = match &report.residual.cpu {
            // Whatever it says: a host has no more than all of its CPUs.
            Reading::Value(Bounded { expected, .. }) => expected.min(CoreShare::from_cores(self.facts.cores)),
            Reading::Absent(absence) => {
                return Err(Unusable::Unknown { resource: "CPU", absence: absence.clone() });
            }
        };
        let memory = match &report.residual.memory {
            Reading::Value(Bounded { safe, .. }) => *safe,
            Reading::Absent(absence) => {
                return Err(Unusable::Unknown { resource: "memory", absence: absence.clone() });
            }
        };
        Ok((cpu, memory))
    }

    /// What is known of it when its agent is not connected.
    pub(super) fn disconnected(&self) -> Self {
        Self {
            connected: false,
            left: self.left,
            silent: self.silent,
            incarnation: self.incarnation,
            facts: self.facts.clone(),
            reported: self.reported,
            report: None,
            commanded: Vec::new(),
            volunteer_known: self.volunteer_known,
            promises: self.promises,
        }
    }

    /// More of its promises break than their risk allows.
    pub(in crate::controller) const fn breaks_promises(&self) -> bool {
        self.promises.broken()
    }

    /// Its volunteer does nothing, and was commanded so: what ran in it for an earlier job is over.
    pub(in crate::controller) fn is_latent(&self) -> bool {
        let runs = |sent: &Commanded| sent.command.desired != Desired::Stop;
        self.volunteer_known && !self.commanded(&Target::Volunteer).is_some_and(runs)
    }

    /// Commands under a lease that are in force.
    pub(in crate::controller) fn leases(&self) -> usize {
        let holds = |sent: &&Commanded| matches!(sent.command.desired, Desired::Run { .. } | Desired::Limit { .. });
        self.commanded.iter().filter(holds).count()
    }

    /// The commands in force.
    pub(in crate::controller) fn all_commanded(&self) -> &[Commanded] {
        &self.commanded
    }

    pub(super) fn commanded(&self, target: &Target) -> Option<&Commanded> {
        self.commanded.iter().find(|sent| sent.command.target == *target)
    }
}
