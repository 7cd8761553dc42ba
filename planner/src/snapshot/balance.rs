//! Balancing and arbitration as questions and answers, for `gleaner plan balance` and `gleaner plan arbitrate`. In:
//! observed control intervals. Out: requests and grants of the controller's own code, interval by interval.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::{ApplicationId, HostId, TierId};
use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

use super::problems::Problems;
use crate::balance::application::{Application, Observation, ObservedShare, Request, Settings};
use crate::balance::arbitration::{Contended as ContendedPlace, Demand, Grants, arbitrate, capacity};
use crate::balance::model::Kind;
use crate::balance::mpc::Reach;
use crate::balance::request::{GiveBack, Held};
use crate::balance::scaler::Load;
use crate::balance::{Resource, Share};

/// What applications may have of a resource of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// The host.
    pub host: HostId,
    /// The resource.
    pub resource: Resource,
    /// Part of the host, in 0..=1.
    pub share: f64,
}

/// A question about requests that are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArbitrateQuestion {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// Where applications may not have all of a host.
    #[serde(default)]
    pub capacity: Vec<Capacity>,
    /// The requests.
    pub demands: Vec<Asked>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Whose.
    pub application: ApplicationId,
    /// Which of its tiers, where that matters to the reader.
    #[serde(default)]
    pub tier: Option<TierId>,
    /// Of which host.
    pub host: HostId,
    /// Of what.
    pub resource: Resource,
    /// Part of the host, in 0..=1.
    pub wanted: f64,
    /// What it is not cut below, as long as all floors there fit; at most `wanted`.
    #[serde(default)]
    pub floor: f64,
    /// What is in use of it, which it is not cut below where the floors leave room; part of the host.
    #[serde(default)]
    pub in_use: f64,
    /// ∂ȳ/∂w: performance that a whole host would bring; at least 0.
    pub gain: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArbitrateAnswer {
    /// What each request gets, in their order.
    pub granted: Vec<f64>,
    /// p_a of Eq. 4.12, of what exceeds the floors.
    pub parts: BTreeMap<ApplicationId, f64>,
    /// Where more is asked for than there is.
    pub contended: Vec<Contended>,
    /// Applications of each sub-domain.
    pub domains: Vec<Vec<ApplicationId>>,
}

/// A contended resource of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contended {
    /// The host.
    pub host: HostId,
    /// The resource.
    pub resource: Resource,
    /// What is asked for together.
    pub wanted: f64,
    /// What there is.
    pub capacity: f64,
    /// The part of each floor that is kept: 1 where all floors fit.
    pub floors_kept: f64,
}

/// A question about applications of which the last control intervals are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalanceQuestion {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// Where applications may not have all of a host.
    #[serde(default)]
    pub capacity: Vec<Capacity>,
    /// The applications.
    pub applications: Vec<ObservedApplication>,
}

/// An application and its past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedApplication {
    /// Its name.
    pub name: ApplicationId,
    /// Target of its mean response time.
    pub target_ms: f64,
    /// How it is controlled.
    #[serde(default)]
    pub settings: Settings,
    /// The shares that are moved.
    pub shares: Vec<Moved>,
    /// Control intervals, the last one last.
    pub intervals: Vec<Interval>,
}

/// A share that is moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// Its tier.
    pub tier: TierId,
    /// Where that is.
    pub host: HostId,
    /// Of what.
    pub resource: Resource,
    /// Never less.
    #[serde(default)]
    pub floor: f64,
    /// Never more.
    #[serde(default = "one")]
    pub ceiling: f64,
}

impl Moved {
    /// It in an interval, in whose lists it is number `at`.
    fn seen(&self, interval: &Interval, at: usize) -> ObservedShare {
        ObservedShare {
            resource: self.resource,
            share: Share::clamped(interval.shares.get(at).copied().unwrap_or(0.0)),
            utilisation: interval.utilisation.get(at).copied().flatten().map(Fraction::clamped),
            floor: Share::clamped(self.floor),
            ceiling: Share::clamped(self.ceiling),
        }
    }
}

const fn one() -> f64 {
    1.0
}

/// A control interval. Lists have one value per share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Mean response time; null holds, but for what is used up.
    pub mean_ms: Option<f64>,
    /// Miss rate of the last level cache, in 0..=1.
    #[serde(default)]
    pub miss_rate: Option<f64>,
    /// Shares in force, parts of the host.
    pub shares: Vec<f64>,
    /// Parts of them that were used; may be left out, or null where not measured.
    #[serde(default)]
    pub utilisation: Vec<Option<f64>>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BalanceAnswer {
    /// The applications, in their order.
    pub applications: Vec<Balanced>,
    /// Where more is asked for than there is.
    pub contended: Vec<Contended>,
    /// Applications of each sub-domain.
    pub domains: Vec<Vec<ApplicationId>>,
}

/// What an application asks for and gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Balanced {
    /// Its name.
    pub name: ApplicationId,
    /// e of the last interval; null when its response time was not known and everything is held.
    pub error: Option<f64>,
    /// ȳ that the model expects of what it asks for.
    pub predicted: Option<f64>,
    /// Whether the target is within the bounds.
    pub reach: Option<Reach>,
    /// The model.
    pub model: Option<Kind>,
    /// Intervals behind it.
    pub rows: usize,
    /// It is another condition's, for lack of data.
    pub neighbour: bool,
    /// p_a.
    pub part: f64,
    /// More of its CPU and disk changes nothing: its bottleneck is elsewhere, and they are given back.
    pub elsewhere: bool,
    /// Its shares.
    pub shares: Vec<BalancedShare>,
}

/// One share of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BalancedShare {
    /// Its tier.
    pub tier: TierId,
    /// Where.
    pub host: HostId,
    /// Of what.
    pub resource: Resource,
    /// In force in the last interval.
    pub present: f64,
    /// How loaded it was.
    pub load: Load,
    /// How far it could move.
    pub bounds: (f64, f64),
    /// ∂ȳ/∂w.
    pub gain: f64,
    /// What the application asks for.
    pub requested: f64,
    /// What it gets.
    pub granted: f64,
}

fn check_capacity(problems: &mut Problems, capacity: &[Capacity]) {
    let mut seen = BTreeSet::new();
    for (index, own) in capacity.iter().enumerate() {
        problems.within(&format!("capacity[{index}].share"), own.share, 0.0, 1.0);
        if !seen.insert((&own.host, own.resource)) {
            problems.push(format!("capacity[{index}]: {} is named twice for the same resource", own.host));
        }
    }
}

/// Numbers of names, in order of their first appearance.
struct Names<'a, T>(Vec<&'a T>, BTreeMap<&'a T, usize>);

impl<'a, T: Ord> Names<'a, T> {
    fn new() -> Self {
        Self(Vec::new(), BTreeMap::new())
    }

    fn number(&mut self, name: &'a T) -> usize {
        *self.1.entry(name).or_insert_with(|| {
            self.0.push(name);
            self.0.len() - 1
        })
    }
}

/// What applications may have, by the number of the host.
fn capacities(capacity: &[Capacity], hosts: &Names<'_, HostId>) -> BTreeMap<(usize, Resource), f64> {
    let known = capacity.iter().filter_map(|own| Some(((*hosts.1.get(&own.host)?, own.resource), own.share)));
    known.collect()
}

fn contended(grants: &Grants, hosts: &Names<'_, HostId>, has: impl Fn(usize, Resource) -> f64) -> Vec<Contended> {
    let one = |place: &ContendedPlace| Contended {
        host: hosts.0[place.host].clone(),
        resource: place.resource,
        wanted: place.wanted,
        capacity: has(place.host, place.resource),
        floors_kept: place.floors_kept,
    };
    grants.contended.iter().map(one).collect()
}

/// Answers a question about requests.
///
/// # Errors
/// Every field that is wrong.
pub fn arbitrate_question(question: &ArbitrateQuestion) -> Result<ArbitrateAnswer, Problems> {
    let mut problems = Problems::default();
    problems.version(question.version);
    check_capacity(&mut problems, &question.capacity);
    problems.count("demands", question.demands.len(), 1);
    for (index, demand) in question.demands.iter().enumerate() {
        problems.within(&format!("demands[{index}].wanted"), demand.wanted, 0.0, 1.0);
        problems.within(&format!("demands[{index}].floor"), demand.floor, 0.0, demand.wanted);
        problems.within(&format!("demands[{index}].in_use"), demand.in_use, 0.0, 1.0);
        problems.within(&format!("demands[{index}].gain"), demand.gain, 0.0, 1e9);
    }
    problems.end()?;
    let (mut applications, mut hosts) = (Names::new(), Names::new());
    let demands: Vec<Demand> = question
        .demands
        .iter()
        .map(|asked| Demand {
            application: applications.number(&asked.application),
            host: hosts.number(&asked.host),
            resource: asked.resource,
            wanted: Share::clamped(asked.wanted),
            floor: Share::clamped(asked.floor),
            in_use: Share::clamped(asked.in_use),
            gain: asked.gain,
        })
        .collect();
    let of = capacities(&question.capacity, &hosts);
    let has = |host, resource| capacity(&demands, host, resource, of.get(&(host, resource)).copied());
    let grants = arbitrate(&demands, has);
    let name = |number: usize| applications.0[number].clone();
    Ok(ArbitrateAnswer {
        granted: grants.shares.iter().map(|share| share.part()).collect(),
        parts: grants.parts.iter().enumerate().map(|(number, part)| (name(number), *part)).collect(),
        contended: contended(&grants, &hosts, has),
        domains: grants.domains.iter().map(|domain| domain.iter().copied().map(name).collect()).collect(),
    })
}

/// Answers a question about applications.
///
/// # Errors
/// Every field that is wrong.
pub fn balance_question(question: &BalanceQuestion) -> Result<BalanceAnswer, Problems> {
    check(question)?;
    let requests: Vec<Request> = question.applications.iter().map(replay).collect();
    let mut hosts = Names::new();
    let mut demands = Vec::new();
    for (application, (observed, request)) in question.applications.iter().zip(&requests).enumerate() {
        let shares = observed.shares.iter().zip(&request.shares).zip(&request.gains);
        for (at, ((moved, wanted), gain)) in shares.enumerate() {
            let (host, resource) = (hosts.number(&moved.host), moved.resource);
            let floor = Share::clamped(moved.floor);
            let in_use =
                observed.intervals.last().map_or(Share::default(), |interval| moved.seen(interval, at).in_use());
            demands.push(Demand { application, host, resource, wanted: *wanted, floor, in_use, gain: *gain });
        }
    }
    let of = capacities(&question.capacity, &hosts);
    let has = |host, resource| capacity(&demands, host, resource, of.get(&(host, resource)).copied());
    let grants = arbitrate(&demands, has);
    let mut granted = grants.shares.iter();
    let applications = question.applications.iter().zip(&requests).enumerate().map(|(index, (observed, request))| {
        let shares = observed.shares.iter().enumerate().map(|(at, moved)| BalancedShare {
            tier: moved.tier.clone(),
            host: moved.host.clone(),
            resource: moved.resource,
            present: observed.intervals.last().map_or(0.0, |interval| interval.shares[at]),
            load: request.loads[at],
            bounds: (request.bounds[at].0.part(), request.bounds[at].1.part()),
            gain: request.gains[at],
            requested: request.shares[at].part(),
            granted: granted.next().map_or(0.0, |share| share.part()),
        });
        Balanced {
            name: observed.name.clone(),
            error: request.error,
            predicted: request.predicted,
            reach: request.reach,
            model: request.model.as_ref().map(|model| model.kind),
            rows: request.model.as_ref().map_or(0, |model| model.rows),
            neighbour: request.model.as_ref().is_some_and(|model| model.neighbour),
            part: grants.parts.get(index).copied().unwrap_or(1.0),
            elsewhere: request.give_back == GiveBack::Given,
            shares: shares.collect(),
        }
    });
    let name = |number: &usize| question.applications[*number].name.clone();
    Ok(BalanceAnswer {
        applications: applications.collect(),
        contended: contended(&grants, &hosts, has),
        domains: grants.domains.iter().map(|domain| domain.iter().map(name).collect()).collect(),
    })
}

fn check(question: &BalanceQuestion) -> Result<(), Problems> {
    let mut problems = Problems::default();
    problems.version(question.version);
    check_capacity(&mut problems, &question.capacity);
    problems.count("applications", question.applications.len(), 1);
    for (index, observed) in question.applications.iter().enumerate() {
        let at = format!("applications[{index}]");
        problems.within(&format!("{at}.target_ms"), observed.target_ms, 1e-3, 3.6e6);
        problems.within(&format!("{at}.settings.stability"), observed.settings.stability, 0.0, 1e6);
        problems.within(&format!("{at}.settings.probe"), observed.settings.probe, 0.0, 0.5);
        problems.count(&format!("{at}.shares"), observed.shares.len(), 1);
        problems.count(&format!("{at}.intervals"), observed.intervals.len(), 1);
        for (number, moved) in observed.shares.iter().enumerate() {
            problems.within(&format!("{at}.shares[{number}].floor"), moved.floor, 0.0, 1.0);
            problems.within(&format!("{at}.shares[{number}].ceiling"), moved.ceiling, moved.floor, 1.0);
        }
        for (number, interval) in observed.intervals.iter().enumerate() {
            let at = format!("{at}.intervals[{number}]");
            for (field, count, needed) in [
                ("shares", interval.shares.len(), true),
                ("utilisation", interval.utilisation.len(), !interval.utilisation.is_empty()),
            ] {
                if needed && count != observed.shares.len() {
                    problems
                        .push(format!("{at}.{field}: has {count} values; there are {} shares", observed.shares.len()));
                }
            }
            if let Some(mean_ms) = interval.mean_ms {
                problems.within(&format!("{at}.mean_ms"), mean_ms, 1e-6, 3.6e6);
            }
            let parts = interval.shares.iter().copied().chain(interval.utilisation.iter().flatten().copied());
            for part in parts.chain(interval.miss_rate) {
                problems.within(&format!("{at}: a share, utilisation or miss rate"), part, 0.0, 1.0);
            }
        }
    }
    problems.end()
}

/// Replays the observed intervals of an application through its controller, which holds what it last asked for while there is no
/// response time. Returns the request after the last one.
fn replay(observed: &ObservedApplication) -> Request {
    let mut application = Application::new(observed.settings);
    let mut held: Vec<Held> = Vec::new();
    let (mut last, mut unanswered) = (None, 0);
    for interval in &observed.intervals {
        let shares = observed.shares.iter().enumerate().map(|(at, moved)| moved.seen(interval, at));
        let observation = Observation {
            target_ms: observed.target_ms,
            mean_ms: interval.mean_ms,
            unanswered,
            miss_rate: interval.miss_rate.map(Fraction::clamped),
            shares: shares.collect(),
        };
        let mut request = application.step(&observation);
        request.hold_to(&observation.shares, &held);
        held.resize(observed.shares.len(), Held::default());
        for (index, (own, wanted)) in held.iter_mut().zip(&mut request.shares).enumerate() {
            *wanted = Share::clamped(wanted.part().max(observed.shares[index].floor));
            own.requested = *wanted;
            if request.error.is_some() {
                own.gain = request.gains[index];
            }
        }
        last = Some(request);
        unanswered = if interval.mean_ms.is_none() { unanswered + 1 } else { 0 };
    }
    // A checked question has at least one interval.
    last.unwrap_or_else(|| {
        application.step(&Observation {
            target_ms: observed.target_ms,
            mean_ms: None,
            unanswered,
            miss_rate: None,
            shares: Vec::new(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::VERSION;

    fn host(name: &str) -> HostId {
        HostId::new(name).unwrap()
    }

    fn observed(name: &str, cpu: f64, mean_ms: Option<f64>) -> ObservedApplication {
        let interval =
            |mean_ms| Interval { mean_ms, miss_rate: None, shares: vec![cpu], utilisation: vec![Some(0.95)] };
        ObservedApplication {
            name: ApplicationId::new(name).unwrap(),
            target_ms: 100.0,
            settings: Settings::default(),
            shares: vec![Moved {
                tier: TierId::new("db").unwrap(),
                host: host("h1"),
                resource: Resource::Cpu,
                floor: 0.05,
                ceiling: 1.0,
            }],
            intervals: vec![interval(Some(120.0)), interval(mean_ms)],
        }
    }

    #[test]
    fn two_that_ask_for_more_than_a_host_share_the_shortfall() {
        let question = BalanceQuestion {
            version: VERSION,
            capacity: vec![],
            applications: vec![observed("a", 0.6, Some(200.0)), observed("b", 0.6, Some(200.0))],
        };
        let answer = balance_question(&question).unwrap();
        let [a, b] = &answer.applications[..] else { panic!() };
        assert!(a.shares[0].requested > 0.6 && a.part < 1.0 && (a.part - b.part).abs() < 1e-9, "{answer:?}");
        assert!((a.shares[0].granted + b.shares[0].granted - 1.0).abs() < 1e-9);
        assert_eq!((answer.contended.len(), answer.domains.len(), answer.domains[0].len()), (1, 1, 2));
    }

    #[test]
    fn what_is_not_known_is_held_and_capacity_counts() {
        let mut first = observed("a", 0.6, None);
        first.intervals.truncate(1);
        let question = BalanceQuestion { version: VERSION, capacity: vec![], applications: vec![first] };
        let asked = balance_question(&question).unwrap().applications[0].shares[0].requested;
        for (used, requested) in [(0.8, asked), (0.95, 1.0)] {
            let mut application = observed("a", 0.6, None);
            application.intervals[1].utilisation = vec![Some(used)];
            let question = BalanceQuestion {
                version: VERSION,
                capacity: vec![Capacity { host: host("h1"), resource: Resource::Cpu, share: 0.3 }],
                applications: vec![application],
            };
            let answer = balance_question(&question).unwrap();
            let own = &answer.applications[0];
            assert_eq!((own.error, own.shares[0].requested), (None, requested), "{own:?}");
            assert!((own.shares[0].granted - 0.3).abs() < 1e-9, "{own:?}");
        }
    }

    /// As in the aggregator: the cut by contention does not last.
    #[test]
    fn what_is_held_is_what_was_asked_for() {
        let asked = |count| {
            let mut application = observed("a", 0.6, None);
            application.intervals[0].mean_ms = Some(200.0);
            application.intervals[1] =
                Interval { shares: vec![0.5], utilisation: vec![Some(0.7)], ..application.intervals[1].clone() };
            application.intervals.truncate(count);
            let question = BalanceQuestion { version: VERSION, capacity: vec![], applications: vec![application] };
            let share = balance_question(&question).unwrap().applications[0].shares[0].clone();
            (share.requested, share.gain)
        };
        assert_eq!(asked(2), asked(1));
        assert!(asked(1).0 > 0.6 && asked(1).1 > 0.0, "{:?}", asked(1));
    }

    /// As the aggregator divides it: only where somebody says what the disk can, and floors are kept.
    #[test]
    fn a_disk_is_divided_where_its_capacity_is_given() {
        for (given, floor, expected) in [(None, 0.05, 1.8), (Some(1.0), 0.05, 1.0), (Some(0.8), 0.45, 0.9)] {
            let disk = |name| {
                let mut application = observed(name, 0.9, None);
                application.shares[0] =
                    Moved { resource: Resource::Disk, floor, ceiling: 0.9, ..application.shares[0].clone() };
                application
            };
            let capacity = given.map(|share| Capacity { host: host("h1"), resource: Resource::Disk, share });
            let question = BalanceQuestion {
                version: VERSION,
                capacity: capacity.into_iter().collect(),
                applications: vec![disk("a"), disk("b")],
            };
            let answer = balance_question(&question).unwrap();
            let all: f64 = answer.applications.iter().map(|own| own.shares[0].granted).sum();
            assert!((all - expected).abs() < 1e-9, "{all} of {given:?}");
            let capacities: Vec<f64> = answer.contended.iter().map(|own| own.capacity).collect();
            assert_eq!(capacities, given.map(|_| expected).into_iter().collect::<Vec<_>>());
        }
    }

    /// As the aggregator leaves it, also where a model takes its gain for zero.
    #[test]
    fn arbitration_leaves_what_is_in_use() {
        let asked = |name: &str, in_use, gain| Asked {
            application: ApplicationId::new(name).unwrap(),
            tier: None,
            host: host("h1"),
            resource: Resource::Disk,
            wanted: 0.8,
            floor: 0.0,
            in_use,
            gain,
        };
        let granted = |in_use| {
            let demands = vec![asked("a", in_use, 0.0), asked("b", 0.3, 2.0)];
            let capacity = vec![Capacity { host: host("h1"), resource: Resource::Disk, share: 1.0 }];
            arbitrate_question(&ArbitrateQuestion { version: VERSION, capacity, demands }).map(|answer| answer.granted)
        };
        assert!(granted(0.0).unwrap()[0] < 0.25, "{:?}", granted(0.0));
        assert!(granted(0.4).unwrap()[0] >= 0.4 - 1e-9, "{:?}", granted(0.4));
        assert!(granted(1.5).unwrap_err().to_string().contains("demands[0].in_use: is 1.5"));
    }

    #[test]
    fn every_wrong_field_is_named() {
        let mut wrong = observed("a", 1.6, Some(-1.0));
        wrong.intervals[0].utilisation.push(None);
        wrong.shares[0].floor = 2.0;
        let capacity = vec![Capacity { host: host("h1"), resource: Resource::Cpu, share: 3.0 }];
        let said = balance_question(&BalanceQuestion { version: 9, capacity, applications: vec![wrong] }).unwrap_err();
        let said = said.to_string();
        for part in [
            "version: is 9",
            "capacity[0].share: is 3",
            "applications[0].shares[0].floor: is 2",
            "applications[0].intervals[0].utilisation: has 2 values",
            "applications[0].intervals[1].mean_ms: is -1",
            "a share, utilisation or miss rate: is 1.6",
        ] {
            assert!(said.contains(part), "{part} not in {said}");
        }
        let nothing = ArbitrateQuestion { version: VERSION, capacity: vec![], demands: vec![] };
        assert!(arbitrate_question(&nothing).unwrap_err().to_string().contains("demands: has 0 entries"));
    }
}
