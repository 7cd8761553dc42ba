//! Applications with response-time targets: shares follow the target, what is not known holds, and volunteers give way.

use gleaner_test_support::report::workload;
use gleaner_types::application::{ApplicationSpec, Bounds, Control, ResponseSource, ResponseTime, TierSpec};
use gleaner_types::id::{ApplicationId, TierId, WorkloadId};
use gleaner_types::report::{Capability, Offer, WorkloadSample};
use gleaner_types::units::BytesPerSec;

use super::*;

mod away;
mod elsewhere;
mod grants;

/// Services on one host of four cores: each needs so much CPU, in percent of a core, for its target of 100 ms.
struct Services {
    bench: Bench,
    needs: BTreeMap<&'static str, f64>,
    /// Those of the disk, in MB/s; a service that is not named needs none.
    disk_needs: BTreeMap<&'static str, f64>,
    /// Limits in force.
    limits: BTreeMap<&'static str, f64>,
    /// Those of disks, in MB/s.
    disks: BTreeMap<&'static str, f64>,
    /// The volunteer's cap in force.
    volunteer: f64,
    asked: u32,
    events: Vec<Event>,
    /// Sources that say nothing.
    silent: bool,
    /// A service whose source alone says nothing.
    mute: Option<&'static str>,
    /// What sources say instead of a mean.
    answer: Option<ResponseTime>,
    /// What a lock adds to every response, in milliseconds.
    lock_ms: f64,
    /// How long services wait for the CPU, over the time that they run.
    wait: f64,
    /// A mean is pushed at so many seconds' distance, and told once: when it was told last.
    pushed: Option<(f64, Timestamp)>,
}

fn name(text: &str) -> ApplicationId {
    ApplicationId::new(text).unwrap()
}

fn application(text: &str, ceiling: f64) -> ApplicationSpec {
    ApplicationSpec {
        name: name(text),
        target_ms: 100.0,
        response_time: ResponseSource::Push,
        control: Control::Balance,
        tiers: vec![TierSpec {
            name: TierId::new("db").unwrap(),
            host: id(),
            workload: WorkloadId::new(text).unwrap(),
            cpu_percent: Some(Bounds { floor: 10.0, ceiling }),
            memory_mib: None,
            disk_mb_s: None,
        }],
    }
}

impl Services {
    fn new(services: &[(&'static str, f64)], ceiling: f64) -> Self {
        let mut facts = facts(true);
        for capability in [Capability::CpuQuota, Capability::DiskLimit] {
            facts.offers.push(Offer { capability, state: Reading::Value("test".into()) });
        }
        let mut own = Self {
            bench: Bench::new(),
            needs: services.iter().copied().collect(),
            disk_needs: BTreeMap::new(),
            limits: BTreeMap::new(),
            disks: BTreeMap::new(),
            volunteer: 0.0,
            asked: 0,
            events: Vec::new(),
            silent: false,
            mute: None,
            answer: None,
            lock_ms: 0.0,
            wait: 0.0,
            pushed: None,
        };
        own.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts) });
        for (service, _) in services {
            own.send(Input::ApplicationApplied(Box::new(application(service, ceiling))));
        }
        own
    }

    fn send(&mut self, input: Input) {
        for output in self.bench.send(input) {
            match output {
                Output::Command { command, .. } => match (&command.target, &command.desired) {
                    (Target::Volunteer, Desired::Run { cap: Quota::AtMost(cap) }) => self.volunteer = cap.percent(),
                    (Target::Volunteer, _) => self.volunteer = 0.0,
                    (Target::Workload(id), desired) => {
                        let service = *self.needs.keys().find(|service| **service == id.as_str()).unwrap();
                        match desired {
                            Desired::Limit(limits) => {
                                let Quota::AtMost(cap) = limits.quota else { panic!("{limits:?}") };
                                self.limits.insert(service, cap.percent());
                                self.disks.extend(limits.disk.read.map(|rate| (service, rate.per_sec() / 1e6)));
                            }
                            _ => _ = self.limits.remove(service),
                        }
                    }
                },
                Output::AskResponseTime { application } => {
                    self.asked += 1;
                    let mean_ms = self.mean_ms(application.as_str());
                    if !self.silent && self.mute != Some(application.as_str()) {
                        let mut response = self.answer.clone().unwrap_or_else(|| ResponseTime::from_ms(mean_ms));
                        if let Some((every_s, told)) = &mut self.pushed {
                            if self.bench.now.seconds_since(*told) < *every_s {
                                response = ResponseTime::Missing { reason: "nothing was pushed".into() };
                            } else {
                                *told = self.bench.now;
                            }
                        }
                        self.send(Input::Responded { application, response });
                    }
                }
                Output::Event(event) => self.events.push(event),
                Output::Engine { .. } => {}
            }
        }
    }

    /// Reciprocal in the share that is in force: that which is the shortest.
    fn mean_ms(&self, service: &str) -> f64 {
        let cpu = self.needs[service] / self.limits.get(service).copied().unwrap_or(400.0);
        let disk = self.disk_needs.get(service).zip(self.disks.get(service)).map_or(0.0, |(need, limit)| need / limit);
        self.lock_ms + 100.0 * cpu.max(disk)
    }

    fn seconds(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.bench.now = self.bench.now.after(Duration::from_secs(1));
            self.bench.sequence += 1;
            let mut report = report(self.bench.sequence, 300.0, self.volunteer);
            // Each uses most of what it needs, as much as its limit allows.
            let used = |(service, need): (&&'static str, &f64)| {
                let used = (0.8 * need).min(self.limits.get(service).copied().unwrap_or(400.0));
                let cpu_wait = Reading::Value(CoreShare::clamped(self.wait * used));
                let disk = self
                    .disk_needs
                    .get(service)
                    .map_or(0.0, |need| (0.8 * need).min(self.disks.get(service).copied().unwrap_or(f64::INFINITY)));
                let disk_read = Reading::Value(BytesPerSec::clamped(disk * 1e6));
                WorkloadSample { cpu_wait, disk_read, ..workload(service, used) }
            };
            report.workloads = self.needs.iter().map(used).collect();
            let all: f64 = report.workloads.iter().filter_map(|own| own.cpu.value()).map(|cpu| cpu.percent()).sum();
            report.machine.cpu_foreground = Reading::Value(CoreShare::clamped(all.min(400.0)));
            self.send(Input::Report(Box::new(report)));
            self.send(Input::Tick);
            // On every host at every moment: what was granted fits, and what the volunteer may have fits beside all limits.
            let limits: f64 = self.limits.values().sum();
            let status = |service: &&str| self.bench.controller.application(&name(service));
            // The limits of a released service are its ceilings; of those it counts for what it needs.
            let granted = |(service, limit): (&&'static str, &f64)| {
                let decision = status(service).and_then(|status| status.decision.as_ref());
                let is_released = decision.is_some_and(|decision| decision.reason.starts_with("released"));
                if is_released { limit.min(0.8 * self.needs[service] / 0.9) } else { *limit }
            };
            let granted: f64 = self.limits.iter().map(granted).sum();
            let is_idle = self
                .needs
                .keys()
                .filter_map(status)
                .any(|status| matches!(&status.response, Some((_, ResponseTime::Idle))));
            assert!(granted <= 401.0, "{:?}", self.limits);
            assert!(
                // What an idle service does not use is the volunteer's.
                self.volunteer <= 0.0 || limits + self.volunteer <= 401.0 || is_idle,
                "{:?} and {}",
                self.limits,
                self.volunteer
            );
        }
    }
}

#[test]
fn shares_follow_the_target_through_a_change_of_load() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 40);
    assert!((services.mean_ms("shop") - 100.0).abs() < 10.0, "{}", services.mean_ms("shop"));
    assert!(services.asked >= 39, "{}", services.asked);
    services.needs.insert("shop", 200.0);
    services.seconds(30 * 6);
    assert!(services.mean_ms("shop") < 115.0, "{} ms, {:?}", services.mean_ms("shop"), services.limits);
    let decision = services.bench.controller.application(&name("shop")).unwrap().decision.clone().unwrap();
    assert!(decision.number >= 45 && decision.shares[0].movable && !decision.reason.is_empty());
    let moved = services.events.iter().filter(|event| matches!(event, Event::SharesMoved { .. })).count();
    assert!(moved > 5, "{moved}");
}

#[test]
fn one_share_can_be_left_to_the_fuzzy_controller() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.send(Input::ApplicationApplied(Box::new(ApplicationSpec {
        control: Control::Stfc,
        ..application("shop", 400.0)
    })));
    services.seconds(30 * 40);
    assert!((services.mean_ms("shop") - 100.0).abs() < 12.0, "{}", services.mean_ms("shop"));
    services.needs.insert("shop", 200.0);
    services.seconds(30 * 6);
    assert!(services.mean_ms("shop") < 125.0, "{} ms, {:?}", services.mean_ms("shop"), services.limits);
}

#[test]
fn without_a_response_time_everything_is_held_and_removal_gives_back() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.silent = true;
    services.seconds(62);
    let held = services.limits["shop"];
    services.seconds(90);
    assert!((services.limits["shop"] - held).abs() < 1e-9);
    let status = services.bench.controller.application(&name("shop")).unwrap().clone();
    assert!(status.decision.unwrap().reason.contains("held: its response time is"), "{:?}", status.response);
    services.send(Input::ApplicationRemoved { application: name("shop") });
    services.seconds(1);
    assert!(services.limits.is_empty(), "{:?}", services.limits);
}

/// 0/0 of a source is idleness only where nothing is used up.
#[test]
fn a_service_that_answers_nobody_while_its_share_is_used_up_is_stalled_and_not_idle() {
    for (need, stalled) in [(900.0, true), (50.0, false)] {
        let mut services = Services::new(&[("shop", 100.0)], 400.0);
        services.seconds(30 * 20);
        services.needs.insert("shop", need);
        services.answer = Some(ResponseTime::Idle);
        services.seconds(32);
        let capped = services.limits["shop"];
        services.seconds(30 * 4);
        let status = services.bench.controller.application(&name("shop")).unwrap().clone();
        let seen = status.response.map(|(_, response)| response);
        let wanted = if stalled { ResponseTime::Stalled } else { ResponseTime::Idle };
        assert_eq!((seen, status.decision.map(|own| own.response)), (Some(wanted.clone()), Some(wanted.clone())));
        assert!(if stalled {
            services.limits["shop"] > 399.0
        } else {
            (services.limits["shop"] - capped).abs() < 1e-9
        });
        let changes = services
            .events
            .iter()
            .filter(|event| matches!(event, Event::ResponseTimeChanged { response, .. } if *response == wanted));
        assert_eq!(changes.count(), 1);
    }
}

/// The limit keeps it from the CPU though its use, averaged over an interval, is not all of it.
#[test]
fn a_tier_that_waits_for_the_cpu_as_long_as_it_runs_is_given_more_while_nothing_is_known() {
    for (wait, grows) in [(1.1, true), (0.9, false)] {
        let mut services = Services::new(&[("shop", 100.0)], 400.0);
        services.seconds(30 * 20);
        let capped = services.limits["shop"];
        (services.silent, services.wait) = (true, wait);
        services.seconds(30 * 5);
        assert_eq!(services.limits["shop"] > 1.5 * capped, grows, "{wait}: {capped} to {:?}", services.limits);
    }
}

#[test]
fn an_outage_of_the_source_releases_the_application_until_it_answers_again() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    assert!(services.limits["shop"] < 150.0, "{:?}", services.limits);
    services.silent = true;
    services.seconds(30 * 10);
    let before = services.limits["shop"];
    assert!(before < 150.0, "{:?}", services.limits);
    services.seconds(30 * 3);
    assert!(services.limits["shop"] > 399.0, "to its ceiling: {:?}", services.limits);
    let released =
        |event: &&Event| matches!(event, Event::ApplicationReleased { host: None, silent_s, .. } if *silent_s >= 300.0);
    assert_eq!(services.events.iter().filter(released).count(), 1);
    let status = services.bench.controller.application(&name("shop")).unwrap().clone();
    let reason = status.decision.unwrap().reason;
    assert!(reason.starts_with("released to its ceilings: its source has had no answer for 5 min"), "{reason}");
    // No requests are no outage.
    services.silent = false;
    services.answer = Some(ResponseTime::Idle);
    services.needs.insert("shop", 50.0);
    services.seconds(62);
    assert!((services.limits["shop"] - before).abs() < 1e-6, "it goes on from {before}: {:?}", services.limits);
    services.seconds(30 * 12);
    assert!((services.limits["shop"] - before).abs() < 1e-6, "{:?}", services.limits);
    services.needs.insert("shop", 100.0);
    services.answer = None;
    services.seconds(30 * 20);
    assert!((services.mean_ms("shop") - 100.0).abs() < 10.0, "{}", services.mean_ms("shop"));
}

/// What it had before would starve it.
#[test]
fn a_load_that_grew_while_nobody_saw_it_is_not_cut_back_when_the_source_answers_again() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.silent = true;
    services.seconds(30 * 13);
    assert!(services.limits["shop"] > 399.0, "released: {:?}", services.limits);
    services.needs.insert("shop", 350.0);
    services.seconds(30 * 3);
    services.silent = false;
    for interval in 0..20 {
        services.seconds(30);
        assert!(services.mean_ms("shop") < 125.0, "{interval}: {:?}", services.limits);
    }
    assert!(services.limits["shop"] < 380.0, "it is controlled again: {:?}", services.limits);
}

#[test]
fn what_an_idle_service_does_not_use_is_harvested_until_requests_come() {
    let mut services = Services::new(&[("shop", 350.0)], 400.0);
    services.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    services.seconds(30 * 20);
    assert!(services.limits["shop"] > 300.0 && services.volunteer < 90.0, "{:?}", services.limits);
    services.needs.insert("shop", 5.0);
    services.answer = Some(ResponseTime::Idle);
    services.seconds(32);
    let granted = services.limits["shop"];
    services.seconds(30 * 7);
    assert!((services.limits["shop"] - granted).abs() < 1.0, "its limit stays: {:?}", services.limits);
    assert!(services.volunteer >= 100.0, "{} beside {granted}", services.volunteer);
    services.needs.insert("shop", 350.0);
    services.answer = None;
    services.seconds(32);
    assert!(services.limits["shop"] + services.volunteer <= 401.0, "{:?} and {}", services.limits, services.volunteer);
}

#[test]
fn the_time_while_the_controller_was_away_is_no_outage_of_the_source() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.silent = true;
    services.seconds(30 * 4);
    services.bench.now = services.bench.now.after(Duration::from_secs(3_600));
    services.send(Input::Resumed);
    services.seconds(62);
    assert!(!services.events.iter().any(|event| matches!(event, Event::ApplicationReleased { .. })));
}

/// Neither has ever been asked anything: each may have the whole host, and needs nothing of it.
#[test]
fn idle_services_that_may_have_the_whole_host_each_leave_it_to_the_volunteer() {
    let mut services = Services::new(&[("a", 5.0), ("b", 5.0)], 400.0);
    services.answer = Some(ResponseTime::Idle);
    services.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    services.seconds(30 * 8);
    assert!(services.volunteer >= 100.0, "{} beside {:?}", services.volunteer, services.limits);
}

/// What is pushed is told once: the early question has it, and the one at the end of the interval finds nothing.
#[test]
fn an_early_question_does_not_take_the_intervals_response_time() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.needs.insert("shop", 600.0);
    (services.answer, services.asked) = (Some(ResponseTime::from_ms(99.0)), 0);
    services.pushed = Some((27.0, Timestamp(0)));
    let before = services.events.len();
    services.seconds(30 * 15);
    assert!(services.asked > 20, "{}", services.asked);
    let blind = |event: &&Event| {
        matches!(
            event,
            Event::ApplicationReleased { .. }
                | Event::SurgeRelieved { .. }
                | Event::ResponseTimeChanged { response: ResponseTime::Missing { .. }, .. }
        )
    };
    assert_eq!(services.events[before..].iter().find(blind), None);
}

/// From 120 to 300 % of a core within a control interval.
#[test]
fn a_surge_gets_what_is_free_within_seconds() {
    let relieved = |services: &Services| {
        services.events.iter().filter(|event| matches!(event, Event::SurgeRelieved { .. })).count()
    };
    let mut services = Services::new(&[("shop", 120.0), ("quiet", 80.0)], 400.0);
    services.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
    services.seconds(30 * 30 + 3);
    assert_eq!(relieved(&services), 0, "a steady load is no surge");
    let quiet = services.limits["quiet"];
    assert!(services.limits["shop"] < 160.0, "{:?}", services.limits);
    assert!(services.volunteer >= 100.0, "{} beside {:?}", services.volunteer, services.limits);
    services.needs.insert("shop", 300.0);
    services.seconds(8);
    assert_eq!(relieved(&services), 1);
    assert!(
        services.limits["shop"] > 399.0 - quiet && services.volunteer < 1.0,
        "{:?} {} {quiet}",
        services.limits,
        services.volunteer
    );
    assert!((services.limits["quiet"] - quiet).abs() < 1e-9, "what another has is not free: {:?}", services.limits);
    services.seconds(30 * 3);
    assert!(services.mean_ms("shop") < 125.0, "{} ms, {:?}", services.mean_ms("shop"), services.limits);
}

/// Nine tenths of its CPU are used, and it is fast enough.
#[test]
fn a_service_that_uses_its_share_up_at_its_target_is_no_surge() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    (services.answer, services.wait, services.asked) = (Some(ResponseTime::from_ms(99.0)), 2.0, 0);
    services.seconds(30 * 10);
    assert!(services.asked > 10, "{}", services.asked);
    // Nor is one whose source says nothing of seconds, as long as it does not wait.
    (services.answer, services.wait) = (Some(ResponseTime::Missing { reason: "not yet".into() }), 0.0);
    services.seconds(30 * 2);
    assert!(!services.events.iter().any(|event| matches!(event, Event::SurgeRelieved { .. })));
}

/// Nothing completes, so nothing is known, and the cap is why.
#[test]
fn a_service_too_loaded_to_answer_is_given_what_it_may_have() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    assert!(services.limits["shop"] < 150.0, "{:?}", services.limits);
    services.needs.insert("shop", 900.0);
    services.silent = true;
    services.seconds(30 * 4);
    assert!(services.limits["shop"] > 399.0, "{:?}", services.limits);
    let status = services.bench.controller.application(&name("shop")).unwrap().clone();
    assert!(status.decision.unwrap().reason.contains("held: its response time is"));
    let grew = "what is used up grows and all else is held: its response time is";
    let grows = |event: &Event| matches!(event, Event::SharesMoved { decision } if decision.reason.starts_with(grew));
    assert!(services.events.iter().any(grows));
    // Its host is cut off: nothing is known of it at all.
    services.needs.insert("shop", 100.0);
    services.silent = false;
    services.seconds(30 * 20);
    let capped = services.limits["shop"];
    services.silent = true;
    services.needs.insert("shop", 900.0);
    services.send(Input::HostLost { host: id(), reason: "cut off".into() });
    for _ in 0..120 {
        services.bench.now = services.bench.now.after(Duration::from_secs(1));
        services.send(Input::Tick);
    }
    assert!((services.limits["shop"] - capped).abs() < 1e-9, "{:?}", services.limits);
}

#[test]
fn a_host_without_the_lever_is_said_to_have_none() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.send(Input::HostJoined { host: id(), incarnation: 2, facts: Box::new(facts(true)) });
    services.seconds(40);
    let status = services.bench.controller.application(&name("shop")).unwrap();
    assert!(!status.decision.as_ref().unwrap().shares[0].movable && services.limits.is_empty());
}

#[test]
fn volunteers_have_what_is_left_and_nothing_where_applications_contend() {
    let mut services = Services::new(&[("a", 120.0), ("b", 80.0)], 400.0);
    let job = spec("j", Goal::Cost { budget: None });
    services.send(Input::JobSubmitted(Box::new(job)));
    services.seconds(30 * 30);
    assert!(
        (services.mean_ms("a") - 100.0).abs() < 12.0 && (services.mean_ms("b") - 100.0).abs() < 12.0,
        "{:?}",
        services.limits
    );
    assert!(services.volunteer >= 100.0, "the rest is harvested: {} beside {:?}", services.volunteer, services.limits);
    // Together they want more than there is: the volunteer goes first, then both give up their part.
    (_, _) = (services.needs.insert("a", 300.0), services.needs.insert("b", 200.0));
    services.seconds(30 * 12);
    assert!(services.volunteer <= 0.0, "{}", services.volunteer);
    assert!(services.limits.values().sum::<f64>() > 380.0, "{:?}", services.limits);
    let decision = services.bench.controller.application(&name("a")).unwrap().decision.clone().unwrap();
    assert!(decision.part < 1.0, "{decision:?}");
    // The rush is over: they give back, and the job goes on.
    (_, _) = (services.needs.insert("a", 120.0), services.needs.insert("b", 80.0));
    services.seconds(30 * 25);
    assert!(services.volunteer >= 100.0, "{} beside {:?}", services.volunteer, services.limits);
    assert!(services.mean_ms("a") < 115.0 && services.mean_ms("b") < 115.0, "{:?}", services.limits);
}

#[test]
fn contention_cuts_no_share_below_its_floor_and_says_so_where_floors_do_not_fit() {
    // All ask for far more than there is. With 130 % each the floors of three fit into 400 %, with 160 % they do not.
    for (floor, fits) in [(130.0, true), (160.0, false)] {
        let mut services = Services::new(&[("a", 400.0), ("b", 400.0), ("c", 20.0)], 400.0);
        for service in ["a", "b", "c"] {
            let mut spec = application(service, 400.0);
            spec.tiers[0].cpu_percent = Some(Bounds { floor, ceiling: 400.0 });
            services.send(Input::ApplicationApplied(Box::new(spec)));
        }
        services.seconds(30 * 12);
        let least = if fits { floor } else { 400.0 / 3.0 };
        assert!(services.limits.values().all(|limit| *limit > least - 1e-6), "{:?}", services.limits);
        assert_eq!(services.limits.len(), 3);
        let refused = services.events.iter().find(|event| matches!(event, Event::PlanRejected { .. }));
        assert_eq!(refused, None);
        let decision = services.bench.controller.application(&name("a")).unwrap().decision.clone().unwrap();
        assert_eq!(decision.reason.contains("add up to more than there is: 83 % of each kept"), !fits, "{decision:?}");
        // With one of them gone the floors of the others fit, and hold from the next command on.
        services.send(Input::ApplicationRemoved { application: name("c") });
        services.seconds(1);
        assert!(services.limits.values().all(|limit| *limit > floor - 1e-6), "{:?}", services.limits);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the loads do: grants and the volunteer fit together, every second (see [`Services::seconds`]).
    #[test]
    fn balancing_and_harvesting_never_fight(
        loads in proptest::collection::vec((10.0..400.0_f64, 10.0..400.0_f64, 10.0..400.0_f64), 1..8),
    ) {
        let mut services = Services::new(&[("a", 100.0), ("b", 100.0), ("c", 100.0)], 400.0);
        services.send(Input::JobSubmitted(Box::new(spec("j", Goal::Cost { budget: None }))));
        for (a, b, c) in loads {
            services.needs.extend([("a", a), ("b", b), ("c", c)]);
            services.seconds(30 * 4);
        }
    }
}
