//! The size of a job on a cluster, decided once per evaluation interval (RHIC §4). In: what it has learned, what hosts
//! offer. Out: its volunteers from now on, and the decision's record. Called by the owner of the jobs.

use std::collections::BTreeMap;

use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use super::{Observed, dedicated_slots};
use crate::controller::capacity::Capacity;
use crate::controller::hosts::Host;
use crate::controller::interface::{Settings, seconds};
use crate::controller::jobs::job::{Job, WorkerState};
use crate::controller::jobs::others::Others;
use crate::controller::outputs::Outputs;
use crate::io_model::IoCurve;
use crate::selection::Offer;
use crate::sizing::input::{ClusterFacts, DedicatedFacts, HostCpu, PowerFacts, SizingInput};
use crate::sizing::policy::{Situation, SizingPolicy};

impl Job {
    /// Decides about its size by a policy. The next decision is an evaluation interval away.
    pub(in crate::controller::jobs) fn evaluate_cluster(
        &mut self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        policy: &mut dyn SizingPolicy,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        self.next_evaluation = now.after(seconds(settings.evaluation_interval_s));
        self.accrue(now);
        let Some(input) = self.cluster_input(others, capacity, settings, now) else { return };
        let sizing = input.sizing();
        let mut selection: BTreeMap<HostId, u32> = BTreeMap::new();
        let dedicated = self.dedicated_slots(capacity);
        let WorkerState::Hosts(cluster) = &mut self.workers else { return };
        let capacity_of =
            |id: &HostId| capacity.host(id).map_or(CoreShare::ZERO, |host| CoreShare::from_cores(host.facts().cores));
        let choice = policy.choose(Situation {
            job: &self.status.spec.id,
            sizing: sizing.clone(),
            exploration: &mut cluster.exploration,
            observed: cluster.interval.means(),
            capacity_of: &capacity_of,
        });
        let chosen = input.offers().get(..choice.size as usize).unwrap_or_default();
        let wanted: BTreeMap<HostId, u32> = chosen.iter().map(|offer| (offer.host.clone(), offer.slots)).collect();
        selection.extend(wanted.iter().map(|(host, slots)| (host.clone(), *slots)));
        selection.extend(dedicated);
        cluster.choose(wanted, now);
        cluster.target = choice.size;
        cluster.interval = Observed::default();
        self.adopt(&sizing, choice, selection, now, outputs);
    }

    fn cluster_input(
        &self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        now: Timestamp,
    ) -> Option<SizingInput> {
        let (rate, cluster, spec) = (self.rate.value()?, self.cluster()?, self.cluster_spec()?);
        let known = || spec.dedicated.iter().filter_map(|dedicated| capacity.host(&dedicated.host));
        let working = |host: &Host| DedicatedFacts {
            slots: dedicated_slots(host, spec),
            efficiency: cluster.efficiency.of(&host.facts().cpu_model),
        };
        let means = cluster.interval.means();
        let curve = cluster.io.curve(now.seconds_since(Timestamp(0)));
        let interactive = |offers: &[Offer]| -> Vec<HostCpu> {
            let reports = offers.iter().filter_map(|offer| capacity.host(&offer.host)?.report());
            let cpu = reports.map(|report| HostCpu {
                capacity_percent: report.machine.cpu_capacity.percent(),
                foreground_percent: report.machine.cpu_foreground.value().map_or(0.0, |share| share.percent()),
            });
            cpu.collect()
        };
        let power = self.status.spec.power.zip(self.status.energy_wh).map(|(models, spent_wh)| PowerFacts {
            models,
            spent_wh,
            dedicated_cores: known().map(|host| host.facts().cores).max().unwrap_or(1),
            interactive: &interactive,
        });
        let facts = ClusterFacts {
            dedicated: self.dedicated(),
            working: known().filter(|host| host.is_connected()).map(working).collect(),
            used: cluster.volunteers.keys().filter_map(|id| self.offer(id, capacity)).collect(),
            free: self.free_offers(others, capacity, settings.evaluation_interval_s, now),
            max_volunteers: spec.max_volunteers,
            curve: curve.or_else(|| IoCurve::constant(means.potential, means.actual, means.disk)),
            power,
        };
        Some(SizingInput::of_cluster(self.facts(rate, settings.evaluation_interval_s, now), facts))
    }
}
