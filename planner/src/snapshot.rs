//! Sizing as a question and an answer. In: one document with everything that a decision about a cluster depends on. Out:
//! the decision of the controller's own code. For `gleaner plan size`, which needs no daemon.

pub mod autoscale;
pub mod balance;
pub mod fill;
pub mod problems;
pub mod share;
pub mod tune;

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;
use gleaner_types::job::{Bound, Candidate, Goal, PowerModels, Prices};
use gleaner_types::units::{Bytes, CoreShare, Dollars, Fraction};
use serde::{Deserialize, Serialize};

use self::problems::Problems;
pub use self::problems::VERSION;
use crate::goal::Score;
use crate::io_model::{IoCurve, IoModel, IoPoint, assign, saturation};
use crate::search::{annealing, exhaustive};
use crate::selection::Offer;
use crate::sizing::input::{ClusterFacts, DedicatedFacts, HostCpu, JobFacts, PowerFacts, SizingInput, VolunteerFacts};

/// A question. Times are in seconds, CPU and productivity in percent of one core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeQuestion {
    /// [`VERSION`].
    pub version: u32,
    /// The job.
    pub job: JobState,
    /// Its dedicated hosts.
    pub dedicated: Vec<Dedicated>,
    /// Interactive hosts it could use or uses.
    #[serde(default)]
    pub interactive: Vec<Interactive>,
    /// What was seen of the whole cluster; may be empty after the profile.
    #[serde(default)]
    pub observations: Vec<Observation>,
    /// Efficiency E_K of each class of hosts (RHIC Eq. 7); 1 where none is given.
    #[serde(default)]
    pub efficiency: BTreeMap<String, f64>,
    /// Power of the hosts; needed for the goal `energy`.
    #[serde(default)]
    pub power: Option<PowerModels>,
    /// Time between two decisions.
    #[serde(default = "sixty")]
    pub evaluation_interval_s: f64,
    /// How to search.
    #[serde(default)]
    pub search: Search,
}

fn sixty() -> f64 {
    60.0
}

/// The job and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobState {
    /// Goal; a deadline counts from submission.
    pub goal: Goal,
    /// Prices of hosts.
    #[serde(default)]
    pub prices: Prices,
    /// Since submission.
    pub elapsed_s: f64,
    /// Part done, in 0..=1.
    pub done: f64,
    /// ∫ AP_actual dt so far: T_elapsed × AP_actual of RHIC Eq. 5, dedicated hosts included.
    pub cpu_percent_s: f64,
    /// Cost so far, in dollars.
    #[serde(default)]
    pub spent: f64,
    /// Energy so far, in watt-hours.
    #[serde(default)]
    pub spent_wh: f64,
    /// Mean length of a finished task.
    #[serde(default)]
    pub mean_task_s: f64,
    /// Standard deviation of the same, where known.
    #[serde(default)]
    pub task_deviation_s: Option<f64>,
    /// Tasks not finished, where known.
    #[serde(default)]
    pub tasks_left: Option<u32>,
    /// Probability that a volunteer is lost while a task runs, where known.
    #[serde(default)]
    pub loss: f64,
    /// Time until an added host works.
    #[serde(default)]
    pub set_up_s: f64,
    /// Memory a slot needs, in MiB; 0 is none.
    #[serde(default)]
    pub memory_per_slot_mib: u64,
    /// Most volunteers.
    #[serde(default)]
    pub max_volunteers: Option<u32>,
}

/// A dedicated host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dedicated {
    /// Its name.
    pub host: HostId,
    /// CPUs.
    pub cores: u32,
    /// Class of hardware.
    #[serde(default)]
    pub class: String,
    /// B_K (RHIC §4.6).
    #[serde(default = "one")]
    pub disk: f64,
    /// Utilisation of its disk in the profile, in 0..=1, where known.
    #[serde(default)]
    pub disk_utilisation: Option<f64>,
}

fn one() -> f64 {
    1.0
}

/// An interactive host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interactive {
    /// Its name.
    pub host: HostId,
    /// CPUs.
    pub cores: u32,
    /// Class of hardware.
    #[serde(default)]
    pub class: String,
    /// CPU that its foreground will take, in percent of one core.
    pub foreground_percent: f64,
    /// Memory a volunteer can have, in MiB; `None` is no limit.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// The job uses it now.
    #[serde(default)]
    pub in_use: bool,
}

/// What the whole cluster could do and did at some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// When, since submission.
    pub at_s: f64,
    /// Aggregate potential, dedicated hosts included.
    pub potential_percent: f64,
    /// Aggregate actual productivity.
    pub actual_percent: f64,
    /// Mean utilisation of the dedicated hosts' disks, in 0..=1, where known.
    #[serde(default)]
    pub disk_utilisation: Option<f64>,
}

/// How to search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Search {
    /// Every number of volunteers.
    #[default]
    Exhaustive,
    /// Every number of dedicated hosts, from 1 to those given, with every number of volunteers. Ours.
    Joint,
    /// The same by simulated annealing.
    Annealing {
        /// Seed.
        seed: u64,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// Volunteers.
    pub size: u32,
    /// Dedicated hosts: all given, unless the search was over them too.
    pub dedicated: u32,
    /// Which hosts are volunteers, the best first, with the dedicated host each should read from.
    pub volunteers: Vec<Chosen>,
    /// What stopped the choice from being another.
    pub bound: Bound,
    /// The choice in a sentence.
    pub reason: String,
    /// The chosen candidate.
    pub chosen: Candidate,
    /// Candidates by size.
    pub candidates: Vec<Candidate>,
    /// R_proc (RHIC Eq. 5), in parts of the job per second and percent of one core.
    pub processing_rate: f64,
    /// Aggregate volunteer productivity at which disks saturate, worst and best case in percent (RHIC Eq. 3 and 4);
    /// `None` where disks limit nothing or were not seen.
    pub saturation_percent: Option<(f64, f64)>,
    /// Knots of the I/O curve: potential and actual in percent, disk utilisation.
    pub curve: Vec<(f64, f64, Option<f64>)>,
    /// Hosts in use that gave way to much better free ones.
    pub replaced: u32,
}

/// A chosen volunteer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Its host.
    pub host: HostId,
    /// Slots.
    pub slots: u32,
    /// Potential productivity in common units (RHIC Eq. 1 and 8).
    pub potential_percent: f64,
    /// Dedicated host it is assigned to (RHIC §4.3).
    pub reads_from: Option<HostId>,
}

/// Checks a question.
fn check(question: &SizeQuestion) -> Result<(), Problems> {
    let mut found = Problems::default();
    let mut check = |good: bool, field: String, value: String, rule: &str| {
        if !good {
            found.push(format!("{field}: is {value}; it must be {rule}"));
        }
    };
    let amount = |value: f64| value.is_finite() && value >= 0.0;
    let part = |value: f64| (0.0..=1.0).contains(&value);
    let version = question.version;
    check(version == VERSION, "version".into(), version.to_string(), "1");
    let job = &question.job;
    for (field, value) in [
        ("elapsed_s", job.elapsed_s),
        ("cpu_percent_s", job.cpu_percent_s),
        ("spent", job.spent),
        ("spent_wh", job.spent_wh),
        ("mean_task_s", job.mean_task_s),
        ("task_deviation_s", job.task_deviation_s.unwrap_or(0.0)),
        ("set_up_s", job.set_up_s),
    ] {
        check(amount(value), format!("job.{field}"), value.to_string(), "a number of at least 0");
    }
    for (field, value) in [("done", job.done), ("loss", job.loss)] {
        check(part(value), format!("job.{field}"), value.to_string(), "from 0 to 1");
    }
    let progress = job.done > 0.0 && job.cpu_percent_s > 0.0;
    let value = format!("{} with job.cpu_percent_s {}", job.done, job.cpu_percent_s);
    check(progress, "job.done".into(), value, "more than 0, and so must the CPU be: without progress there is no rate");
    if let Goal::Deadline { within_s } = job.goal {
        let good = within_s.is_finite() && within_s > 0.0;
        check(good, "job.goal.deadline.within_s".into(), within_s.to_string(), "more than 0");
    }
    let power = question.power.is_some() || job.goal != Goal::Energy;
    check(power, "power".into(), "missing".into(), "given for the goal `energy`");
    let interval = question.evaluation_interval_s;
    check(interval > 0.0 && interval.is_finite(), "evaluation_interval_s".into(), interval.to_string(), "more than 0");
    let dedicated = question.dedicated.len();
    check((1..=10_000).contains(&dedicated), "dedicated".into(), format!("{dedicated} hosts"), "1 to 10000");
    let interactive = question.interactive.len();
    check(interactive <= 100_000, "interactive".into(), format!("{interactive} hosts"), "at most 100000");
    for (index, host) in question.dedicated.iter().enumerate() {
        let field = |name: &str| format!("dedicated[{index}].{name}");
        check((1..=4_096).contains(&host.cores), field("cores"), host.cores.to_string(), "1 to 4096");
        check(host.disk > 0.0 && host.disk.is_finite(), field("disk"), host.disk.to_string(), "more than 0");
        let used = host.disk_utilisation.unwrap_or(0.0);
        check(part(used), field("disk_utilisation"), used.to_string(), "from 0 to 1");
    }
    for (index, host) in question.interactive.iter().enumerate() {
        let field = |name: &str| format!("interactive[{index}].{name}");
        check((1..=4_096).contains(&host.cores), field("cores"), host.cores.to_string(), "1 to 4096");
        let foreground = host.foreground_percent;
        check(amount(foreground), field("foreground_percent"), foreground.to_string(), "a number of at least 0");
    }
    for (index, seen) in question.observations.iter().enumerate() {
        let field = |name: &str| format!("observations[{index}].{name}");
        for (name, value) in [
            ("at_s", seen.at_s),
            ("potential_percent", seen.potential_percent),
            ("actual_percent", seen.actual_percent),
        ] {
            check(amount(value), field(name), value.to_string(), "a number of at least 0");
        }
        let used = seen.disk_utilisation.unwrap_or(0.0);
        check(part(used), field("disk_utilisation"), used.to_string(), "from 0 to 1");
    }
    for (class, efficiency) in &question.efficiency {
        let good = efficiency.is_finite() && *efficiency > 0.0;
        check(good, format!("efficiency.{class}"), efficiency.to_string(), "more than 0");
    }
    found.end()
}

/// The facts in a question, as the controller would have them.
impl SizeQuestion {
    fn efficiency(&self, class: &str) -> f64 {
        self.efficiency.get(class).copied().unwrap_or(1.0)
    }

    fn potential(&self, host: &Dedicated) -> CoreShare {
        CoreShare::from_cores(host.cores) * self.efficiency(&host.class)
    }

    fn job_facts(&self) -> JobFacts {
        let job = &self.job;
        let in_use = self.interactive.iter().filter(|host| host.in_use).count();
        JobFacts {
            goal: job.goal,
            prices: job.prices,
            spent: Dollars::clamped(job.spent),
            deadline_in_s: match job.goal {
                Goal::Deadline { within_s } => Some(within_s - job.elapsed_s),
                Goal::Cost { .. } | Goal::Energy => None,
            },
            evaluation_interval_s: self.evaluation_interval_s,
            remaining: Fraction::clamped(1.0 - job.done),
            rate: job.done / job.cpu_percent_s,
            mean_task_s: job.mean_task_s,
            task_deviation_s: job.task_deviation_s,
            unfinished: job.tasks_left,
            loss: job.loss,
            set_up_s: job.set_up_s,
            current: u32::try_from(in_use).unwrap_or(u32::MAX),
        }
    }

    /// `disk` is the mean utilisation of the dedicated hosts' disks in the profile.
    fn cluster_facts<'a>(
        &self,
        disk: Option<Fraction>,
        interactive: &'a dyn Fn(&[Offer]) -> Vec<HostCpu>,
    ) -> ClusterFacts<'a> {
        let offers = |in_use: bool| {
            let hosts = self.interactive.iter().filter(move |host| host.in_use == in_use);
            hosts.filter_map(|host| self.offer(host)).collect()
        };
        let working = |host: &Dedicated| DedicatedFacts { slots: host.cores, efficiency: self.efficiency(&host.class) };
        ClusterFacts {
            dedicated: u32::try_from(self.dedicated.len()).unwrap_or(u32::MAX),
            working: self.dedicated.iter().map(working).collect(),
            used: offers(true),
            free: offers(false),
            // What classes are worth is said by the question.
            probes: BTreeSet::new(),
            output: BTreeMap::new(),
            max_volunteers: self.job.max_volunteers,
            curve: self.curve(disk),
            power: self.power.map(|models| PowerFacts {
                models,
                spent_wh: self.job.spent_wh,
                dedicated_cores: self.dedicated.iter().map(|host| host.cores).max().unwrap_or(1),
                interactive,
            }),
        }
    }

    fn offer(&self, host: &Interactive) -> Option<Offer> {
        let foreground = CoreShare::clamped(host.foreground_percent);
        let volunteer = VolunteerFacts {
            host: &host.host,
            cores: host.cores,
            residual: CoreShare::from_cores(host.cores).saturating_sub(foreground),
            memory: host.memory_mib.map(Bytes::from_mib),
            memory_per_slot: Bytes::from_mib(self.job.memory_per_slot_mib),
            most_slots: None,
            efficiency: self.efficiency(&host.class),
        };
        volunteer.offer()
    }

    fn interactive_cpu(&self) -> Vec<HostCpu> {
        let cpu = |host: &Interactive| HostCpu {
            capacity_percent: CoreShare::from_cores(host.cores).percent(),
            foreground_percent: host.foreground_percent,
        };
        self.interactive.iter().map(cpu).collect()
    }

    fn curve(&self, disk: Option<Fraction>) -> Option<IoCurve> {
        let mut model = IoModel::default();
        for observation in &self.observations {
            model.observe(IoPoint {
                at_s: observation.at_s,
                potential: CoreShare::clamped(observation.potential_percent),
                actual: CoreShare::clamped(observation.actual_percent),
                disk: observation.disk_utilisation.map(Fraction::clamped),
            });
        }
        model.curve(self.job.elapsed_s).or_else(|| {
            // The controller has the profile for a first point; here the mean so far stands for it.
            let dedicated: CoreShare = self.dedicated.iter().map(|host| self.potential(host)).sum();
            let mean = CoreShare::clamped(self.job.cpu_percent_s / self.job.elapsed_s.max(1e-9)).min(dedicated);
            IoCurve::constant(dedicated, mean, disk)
        })
    }
}

/// Answers a question.
///
/// # Errors
/// Every field that is out of range, with its value and the rule.
pub fn size(question: &SizeQuestion) -> Result<SizeAnswer, Problems> {
    check(question)?;
    let seen: Vec<f64> = question.dedicated.iter().filter_map(|host| host.disk_utilisation).collect();
    let disks: Vec<f64> = question.dedicated.iter().map(|host| host.disk).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let disk = (!seen.is_empty()).then(|| Fraction::clamped(mean(&seen)));
    let dedicated = u32::try_from(question.dedicated.len()).unwrap_or(u32::MAX);
    let p_max = question.dedicated.iter().map(|host| question.potential(host)).fold(CoreShare::ZERO, CoreShare::max);
    let saturated = disk.and_then(|used| saturation(used, p_max, dedicated, mean(&disks)));

    let facts = question.job_facts();
    let input = SizingInput::of_cluster(facts, question.cluster_facts(disk, &|_| question.interactive_cpu()));
    let offers = input.offers();
    let mut sizing = input.sizing();
    let largest = u32::try_from(offers.len()).unwrap_or(u32::MAX).min(sizing.useful);
    let score = |hosts: u32, volunteers: u32| {
        let candidate = input.with_dedicated(hosts).assess(volunteers);
        candidate.map_or(Score { meets_goal: false, value: f64::MAX }, |candidate| Score {
            meets_goal: candidate.meets_goal,
            value: candidate.score,
        })
    };
    let found = match question.search {
        Search::Exhaustive => None,
        Search::Joint => exhaustive(1..=dedicated, largest, score),
        Search::Annealing { seed } => Some(annealing(seed, (1, dedicated), largest, (dedicated, facts.current), score)),
    };
    let choice = match found {
        None => sizing.decide(),
        Some((hosts, volunteers)) => {
            sizing = input.with_dedicated(hosts);
            let free = sizing.decide();
            if free.size == volunteers { free } else { sizing.forced(volunteers, free.bound) }
        }
    };
    let reads_from = assign(choice.size as usize, disks.get(..sizing.dedicated as usize).unwrap_or(&disks));
    let volunteers = offers.iter().take(choice.size as usize).enumerate().map(|(index, offer)| Chosen {
        host: offer.host.clone(),
        slots: offer.slots,
        potential_percent: offer.potential.percent(),
        reads_from: reads_from.get(index).and_then(|own| question.dedicated.get(*own)).map(|own| own.host.clone()),
    });
    let knots = input.curve().into_iter().flat_map(IoCurve::knots);
    Ok(SizeAnswer {
        version: VERSION,
        size: choice.size,
        dedicated: sizing.dedicated,
        volunteers: volunteers.collect(),
        bound: choice.bound,
        reason: sizing.reason(&choice),
        chosen: choice.chosen,
        candidates: choice.candidates,
        processing_rate: facts.rate,
        saturation_percent: saturated.map(|found| (found.worst.percent(), found.best.percent())),
        curve: knots
            .map(|(potential, actual, disk)| (potential.percent(), actual.percent(), disk.map(Fraction::value)))
            .collect(),
        replaced: input.replaced(),
    })
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::DollarsPerHour;

    use super::*;

    /// Two dedicated hosts of 4 cores and four interactive ones of 4, a quarter of the job done in 100 s at 800 %.
    fn question(goal: Goal) -> SizeQuestion {
        let host = |name: &str| HostId::new(name).unwrap();
        SizeQuestion {
            version: VERSION,
            job: JobState {
                goal,
                prices: Prices { dedicated: DollarsPerHour::clamped(1.0), volunteer: DollarsPerHour::clamped(0.4) },
                elapsed_s: 100.0,
                done: 0.25,
                cpu_percent_s: 80_000.0,
                spent: 0.1,
                spent_wh: 0.0,
                mean_task_s: 0.0,
                task_deviation_s: None,
                tasks_left: None,
                loss: 0.0,
                set_up_s: 0.0,
                memory_per_slot_mib: 1_024,
                max_volunteers: None,
            },
            dedicated: ["d1", "d2"]
                .map(|name| Dedicated {
                    host: host(name),
                    cores: 4,
                    class: String::new(),
                    disk: 1.0,
                    disk_utilisation: Some(0.5),
                })
                .to_vec(),
            interactive: [("i1", 50.0, 4_096), ("i2", 0.0, 2_048), ("i3", 100.0, 8_192), ("i4", 400.0, 8_192)]
                .map(|(name, foreground_percent, memory)| Interactive {
                    host: host(name),
                    cores: 4,
                    class: String::new(),
                    foreground_percent,
                    memory_mib: Some(memory),
                    in_use: false,
                })
                .to_vec(),
            observations: Vec::new(),
            efficiency: BTreeMap::new(),
            power: None,
            evaluation_interval_s: 60.0,
            search: Search::Exhaustive,
        }
    }

    #[test]
    fn a_question_by_hand() {
        let answer = size(&question(Goal::Cost { budget: None })).unwrap();
        // Potentials: i1 350, i3 300, i2 200 (two slots in memory), i4 nothing. Disks used to 50 % by 400 % each feed
        // 400 % more each.
        assert_eq!(answer.saturation_percent, Some((400.0, 800.0)));
        assert!((answer.processing_rate - 0.25 / 80_000.0).abs() < 1e-18);
        let potentials: Vec<f64> = answer.candidates.iter().map(|candidate| candidate.potential.percent()).collect();
        assert_eq!(potentials, [800.0, 1_150.0, 1_450.0, 1_650.0]);
        // 0.75 / (1,450 × rate) = 165.5 s with two: $2.8/h; with three 145.5 s (1,600 % at the ceiling: 150 s): $3.2/h.
        let costs: Vec<f64> = answer.candidates.iter().map(|candidate| candidate.cost.amount()).collect();
        assert!((costs[2] - (0.1 + 240_000.0 / 1_450.0 * 2.8 / 3_600.0)).abs() < 1e-9, "{costs:?}");
        assert!((costs[3] - (0.1 + 150.0 * 3.2 / 3_600.0)).abs() < 1e-9, "{costs:?}");
        assert_eq!((answer.size, answer.bound), (2, Bound::Cost));
        let chosen: Vec<&str> = answer.volunteers.iter().map(|chosen| chosen.host.as_str()).collect();
        assert_eq!(chosen, ["i1", "i3"]);
        assert_eq!(answer.volunteers[1].reads_from.as_ref().unwrap().as_str(), "d2");
    }

    #[test]
    fn searches_over_dedicated_hosts_agree() {
        let mut question = question(Goal::Cost { budget: None });
        question.search = Search::Joint;
        let joint = size(&question).unwrap();
        for seed in 0..10 {
            question.search = Search::Annealing { seed };
            let annealed = size(&question).unwrap();
            assert_eq!((annealed.dedicated, annealed.size), (joint.dedicated, joint.size), "seed {seed}");
        }
        question.search = Search::Exhaustive;
        assert!(joint.chosen.cost <= size(&question).unwrap().chosen.cost);
    }

    #[test]
    fn every_field_that_is_wrong_is_named() {
        let mut wrong = question(Goal::Energy);
        wrong.version = 7;
        wrong.job.done = 1.5;
        wrong.interactive[2].foreground_percent = f64::NAN;
        wrong.dedicated[1].disk = 0.0;
        let said = size(&wrong).unwrap_err().to_string();
        for part in [
            "version: is 7",
            "job.done: is 1.5",
            "interactive[2].foreground_percent: is NaN",
            "dedicated[1].disk",
            "power",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        wrong = question(Goal::Deadline { within_s: 300.0 });
        wrong.job.done = 0.0;
        assert!(size(&wrong).unwrap_err().to_string().contains("without progress there is no rate"));
    }
}
