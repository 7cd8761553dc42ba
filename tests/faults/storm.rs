//! An hour of faults in minutes: processes are killed and stopped, links cut and slowed, and disks filled at random,
//! while a job runs and applications are limited. `GLEANER_FAULT_MINUTES` is how long (1 without it).

use std::io::Write;
use std::time::{Duration, Instant};

use crate::checker::{Checker, Plight};
use crate::fleet::{Fleet, HUNG_AFTER_S, LEASE_S, host};
use crate::groups::differences;
use crate::network::Weather;
use crate::random::{Random, number, seed};

const AGENTS: usize = 12;
/// Tasks of the job that must end with each counted once.
const TASKS: usize = 60;

/// Something that goes wrong, and whom it befalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    AgentKilled(usize),
    /// Longer than a lease, or so long that the keeper steps in.
    AgentStopped(usize),
    LinkCut(usize),
    BadWeather(usize),
    AgentDiskFull,
    AggregatorKilled,
    AggregatorStopped,
    AggregatorDiskFull,
}

impl Fault {
    fn random(random: &mut Random) -> Self {
        let host = usize::try_from(random.below(AGENTS as u64)).unwrap();
        match random.below(100) {
            0..25 => Self::AgentKilled(host),
            25..40 => Self::AgentStopped(host),
            40..60 => Self::LinkCut(host),
            60..80 => Self::BadWeather(host),
            80..85 => Self::AgentDiskFull,
            85..92 => Self::AggregatorKilled,
            92..96 => Self::AggregatorStopped,
            _ => Self::AggregatorDiskFull,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AgentKilled(_) => "agents killed",
            Self::AgentStopped(_) => "agents stopped",
            Self::LinkCut(_) => "links cut",
            Self::BadWeather(_) => "links made slow, lossy, repeating and reordering",
            Self::AgentDiskFull => "an agent's disk filled",
            Self::AggregatorKilled => "aggregator killed",
            Self::AggregatorStopped => "aggregator stopped",
            Self::AggregatorDiskFull => "aggregator's disk filled",
        }
    }

    fn length(self, random: &mut Random) -> Duration {
        let (least, most) = match self {
            Self::AgentKilled(_) | Self::AggregatorKilled => (0, 1_000),
            Self::AgentStopped(_) => (1_000, 1_000 * (HUNG_AFTER_S + 12)),
            Self::LinkCut(_) => (1_000, 1_000 * (LEASE_S + 12)),
            Self::BadWeather(_) => (3_000, 15_000),
            Self::AgentDiskFull | Self::AggregatorDiskFull => (2_000, 10_000),
            Self::AggregatorStopped => (1_000, 1_000 * (LEASE_S + 10)),
        };
        Duration::from_millis(least) + random.pause(Duration::from_millis(most - least))
    }
}

struct Storm {
    fleet: Fleet,
    checker: Checker,
    random: Random,
    active: Vec<(Fault, Instant)>,
    /// Since when each host has had no way to a lease, and since when its agent has been stopped.
    plights: Vec<Plight>,
    counts: std::collections::BTreeMap<&'static str, u32>,
}

impl Storm {
    fn begin(&mut self, fault: Fault) {
        let is_active = |fault| self.active.iter().any(|(active, _)| *active == fault);
        // What is dead cannot be stopped as well.
        let pointless = match fault {
            Fault::AgentStopped(agent) => !self.fleet.agents[agent].runs() || is_active(Fault::AgentKilled(agent)),
            Fault::AggregatorStopped => !self.fleet.aggregator.runs() || is_active(Fault::AggregatorKilled),
            _ => false,
        };
        if pointless || is_active(fault) {
            return;
        }
        if fault == Fault::AggregatorKilled {
            self.active.retain(|(active, _)| *active != Fault::AggregatorStopped);
        }
        match fault {
            Fault::AgentKilled(agent) => self.fleet.agents[agent].signal("KILL"),
            Fault::AgentStopped(agent) => self.fleet.agents[agent].signal("STOP"),
            Fault::LinkCut(agent) => self.fleet.network.set_link(agent, false),
            Fault::BadWeather(agent) => {
                let weather = Weather {
                    lost: self.random.below(40),
                    repeated: self.random.below(20),
                    reordered: self.random.below(30),
                    delay_ms: self.random.below(400),
                };
                self.fleet.relays.set(agent, weather);
            }
            Fault::AgentDiskFull => self.fleet.disks[1].fill(),
            Fault::AggregatorKilled => self.fleet.aggregator.signal("KILL"),
            Fault::AggregatorStopped => self.fleet.aggregator.signal("STOP"),
            Fault::AggregatorDiskFull => self.fleet.disks[0].fill(),
        }
        *self.counts.entry(fault.name()).or_default() += 1;
        let until = Instant::now() + fault.length(&mut self.random);
        self.active.push((fault, until));
        self.tell();
    }

    fn end(&mut self, fault: Fault) {
        self.active.retain(|(active, _)| *active != fault);
        // The checker first: from here on there may be a lease.
        self.tell();
        match fault {
            Fault::AgentStopped(agent) => self.fleet.agents[agent].signal("CONT"),
            Fault::LinkCut(agent) => self.fleet.network.set_link(agent, true),
            Fault::BadWeather(agent) => self.fleet.relays.set(agent, Weather::default()),
            Fault::AgentDiskFull => self.fleet.disks[1].empty(),
            Fault::AggregatorStopped => self.fleet.aggregator.signal("CONT"),
            Fault::AggregatorDiskFull => self.fleet.disks[0].empty(),
            // The supervisor starts them again.
            Fault::AgentKilled(_) | Fault::AggregatorKilled => {}
        }
    }

    /// Tells the checker who can have no lease.
    fn tell(&mut self) {
        let is_active = |fault| self.active.iter().any(|(active, _)| *active == fault);
        let nobody = is_active(Fault::AggregatorKilled) || is_active(Fault::AggregatorStopped);
        for agent in 0..AGENTS {
            let stopped = is_active(Fault::AgentStopped(agent));
            let cut = nobody || stopped || is_active(Fault::LinkCut(agent));
            let now = Instant::now();
            let plight = &mut self.plights[agent];
            if plight.stopped.is_some() && !stopped {
                // It runs again and needs a moment for what it has missed.
                plight.cut = None;
            }
            plight.cut = cut.then(|| plight.cut.unwrap_or(now));
            plight.stopped = stopped.then(|| plight.stopped.unwrap_or(now));
            self.checker.set(agent, *plight);
        }
    }

    fn run(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            // Minding starts what was killed; whoever is started may have a lease at once.
            let killed: Vec<Fault> =
                self.active.iter().filter(|(_, until)| *until <= Instant::now()).map(|a| a.0).collect();
            killed.into_iter().for_each(|fault| self.end(fault));
            if !self.active.iter().any(|(fault, _)| *fault == Fault::AggregatorKilled) {
                self.fleet.aggregator.mind(&self.fleet.bench);
            }
            for agent in 0..AGENTS {
                if !self.fleet.agents[agent].runs() && self.active.iter().any(|a| a.0 == Fault::AgentStopped(agent)) {
                    // Its keeper has killed it, or this test has.
                    self.end(Fault::AgentStopped(agent));
                }
                if !self.active.iter().any(|(fault, _)| *fault == Fault::AgentKilled(agent)) {
                    self.fleet.agents[agent].mind(&self.fleet.bench);
                }
            }
            if self.active.len() < 6 && self.random.percent(40) {
                let fault = Fault::random(&mut self.random);
                self.begin(fault);
            }
            self.work();
            std::thread::sleep(Duration::from_millis(100));
        }
        let active: Vec<Fault> = self.active.iter().map(|(fault, _)| *fault).collect();
        active.into_iter().for_each(|fault| self.end(fault));
    }

    /// Response times, so that shares move.
    fn work(&mut self) {
        let agent = usize::try_from(self.random.below(AGENTS as u64)).unwrap();
        self.fleet.respond(agent, 50.0 + self.random.below(150) as f64);
    }

    fn all_are_limited(&mut self, what: &str) -> Duration {
        let (checker, random) = (&self.checker, &mut self.random);
        self.fleet.until(what, |fleet| {
            fleet.respond(usize::try_from(random.below(AGENTS as u64)).unwrap(), 120.0);
            fleet.connected() == AGENTS && (0..AGENTS).all(|agent| checker.limited(agent))
        })
    }

    /// One fault at a time, with the time until what had to happen did.
    fn recoveries(&mut self, rounds: usize) -> Vec<(String, Duration)> {
        let mut times = Vec::new();
        let free = |fleet: &mut Fleet, checker: &Checker, agent: usize, what: &str| {
            let started = Instant::now();
            while checker.limited(agent) {
                assert!(
                    started.elapsed() < gleaner_test_support::bench::TIMEOUT,
                    "{what}: host {agent} is still limited"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            _ = fleet.connected();
            started.elapsed()
        };
        for agent in 2..2 + rounds {
            self.all_are_limited("all are limited");
            self.fleet.agents[agent].signal("KILL");
            let freed = free(&mut self.fleet, &self.checker, agent, "an agent killed");
            times.push(("agent killed: its keeper has put the limits back".to_owned(), freed));
            let again = self.all_are_limited("limits again");
            times.push(("agent started again (after 0.5 s): its host is limited again".to_owned(), again));

            self.fleet.network.set_link(agent, false);
            let freed = free(&mut self.fleet, &self.checker, agent, "a link cut");
            times.push(("link cut: the agent has put the limits back".to_owned(), freed));
            self.fleet.network.set_link(agent, true);
            let again = self.all_are_limited("limits again");
            times.push(("link mended: the host is limited again".to_owned(), again));

            self.fleet.agents[agent].signal("STOP");
            let freed = free(&mut self.fleet, &self.checker, agent, "an agent stopped");
            times.push((
                format!("agent stopped (hung_after_s = {HUNG_AFTER_S}): its keeper has put the limits back"),
                freed,
            ));
            self.all_are_limited("limits again");
        }
        for _ in 0..rounds {
            self.fleet.aggregator.signal("KILL");
            self.fleet.aggregator.start(&self.fleet.bench);
            let again = self.fleet.until("all are back", |fleet| fleet.connected() == AGENTS);
            times.push((format!("aggregator killed and started at once: all {AGENTS} hosts report again"), again));
            let reset = |agent| {
                let log = std::fs::read_to_string(self.fleet.bench.path(&format!("{}.log", host(agent))));
                log.is_ok_and(|log| log.contains("reset by peer"))
            };
            assert!((0..AGENTS).any(reset), "agents are told at once that their connections are gone");
            self.all_are_limited("limits again");
        }
        self.fleet.aggregator.signal("STOP");
        let started = Instant::now();
        while (0..AGENTS).any(|agent| self.checker.limited(agent)) {
            assert!(started.elapsed() < gleaner_test_support::bench::TIMEOUT, "limits stay without an aggregator");
            std::thread::sleep(Duration::from_millis(5));
        }
        times.push((format!("aggregator stopped: all {AGENTS} hosts have put their limits back"), started.elapsed()));
        self.fleet.aggregator.signal("CONT");
        times
    }
}

/// Past the harness, which would swallow it.
fn say(what: &str) {
    _ = writeln!(std::io::stderr(), "{what}");
}

#[test]
fn an_hour_of_faults_in_minutes_hurts_no_foreground_and_loses_nothing() {
    if !gleaner_test_support::beds::wanted("an_hour_of_faults_in_minutes_hurts_no_foreground_and_loses_nothing") {
        return;
    }
    let test = "an_hour_of_faults_in_minutes_hurts_no_foreground_and_loses_nothing";
    if !gleaner_test_support::bench::cgroups_writable(test) {
        return;
    }
    let _machine = crate::machine();
    let (minutes, seed) = (number("GLEANER_FAULT_MINUTES").unwrap_or(1), seed());
    let fleet = match Fleet::start(AGENTS, seed) {
        Ok(fleet) => fleet,
        Err(why) => return gleaner_test_support::skipped!("{test}: {why}"),
    };
    say(&format!("{minutes} minutes of faults with GLEANER_FAULT_SEED={seed}"));
    let before: Vec<_> = fleet.groups.iter().map(crate::groups::Groups::snapshot).collect();
    let checker = Checker::start(&fleet.groups);
    let plights = vec![Plight::default(); AGENTS];
    let random = Random::new(seed, 1);
    let mut storm = Storm { fleet, checker, random, active: Vec::new(), plights, counts: Default::default() };
    storm.fleet.aggregator.start(&storm.fleet.bench);
    for agent in &mut storm.fleet.agents {
        agent.start(&storm.fleet.bench);
    }
    storm.fleet.until("all hosts report", |fleet| fleet.connected() == AGENTS);
    storm.fleet.give_work(TASKS);
    storm.all_are_limited("all hosts are limited");

    storm.run(Duration::from_secs(60 * minutes));

    let back = storm.all_are_limited("all hosts are limited again after the faults");
    say(&format!("after the last fault all hosts were limited again in {:.1} s", back.as_secs_f64()));
    for (what, time) in storm.recoveries(if minutes > 1 { 3 } else { 1 }) {
        say(&format!("{:6.2} s  {what}", time.as_secs_f64()));
    }
    // What can finish does, with every task counted once.
    storm.fleet.bench.write("enough", "");
    for job in ["local", "wide"] {
        storm.fleet.until("the job is complete", |fleet| {
            let phase = fleet.job(job)["status"]["phase"].clone();
            assert!(phase != "failed" && phase != "cancelled", "{job}: {}", fleet.job(job));
            phase == "completed"
        });
    }
    let progress = storm.fleet.job("local")["status"]["progress"].clone();
    assert_eq!((&progress["tasks_done"], &progress["tasks_failed"]), (&TASKS.into(), &0.into()), "{progress}");
    let mut finished = storm.fleet.bench.lines("finished");
    let runs = finished.len();
    finished.sort();
    finished.dedup();
    assert_eq!(finished.len(), TASKS, "every task ran");
    say(&format!("{TASKS} tasks counted once each; {runs} runs came to their last line"));

    // Every event that agents were told is in the log is there, once.
    storm.fleet.until("all hosts report", |fleet| fleet.connected() == AGENTS);
    let (acknowledged, (logged, twice)) = (storm.fleet.acknowledged(), storm.fleet.logged());
    let mut promised = 0;
    for ((host, incarnation), through) in &acknowledged {
        let have = logged.get(&(host.clone(), *incarnation));
        let missing: Vec<u64> = (1..=*through).filter(|n| !have.is_some_and(|have| have.contains(n))).collect();
        assert!(
            missing.is_empty(),
            "{host} ({incarnation}) got an acknowledgement of {missing:?}, which are not in the log"
        );
        promised += through;
    }
    assert!(promised > 0, "no agent's log says that events are in the log");
    assert!(twice.is_empty(), "logged twice: {twice:#?}");
    say(&format!(
        "{promised} events of {} runs of agents were acknowledged, and all of them are in the log",
        acknowledged.len()
    ));

    // Nothing of Gleaner's stays behind.
    for (agent, daemon) in storm.fleet.agents.iter_mut().enumerate() {
        assert!(daemon.finish(), "{} did not end in order", host(agent));
    }
    let Storm { fleet, checker, counts, .. } = storm;
    let seen = checker.finish();
    say(&format!("faults: {counts:?}"));
    let starts: u32 = fleet.agents.iter().map(|agent| agent.starts).sum();
    say(&format!(
        "agents started {starts} times, the aggregator {}; relays passed {} datagrams and disturbed {}; {} looks at control \
         groups, {} of them at hosts that had to be free",
        fleet.aggregator.starts,
        fleet.relays.passed.load(std::sync::atomic::Ordering::Relaxed),
        fleet.relays.disturbed.load(std::sync::atomic::Ordering::Relaxed),
        seen.looks,
        seen.had_to_be_free,
    ));
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    assert_eq!(seen.limited.len(), AGENTS, "limits were in force on every host");
    // Which hosts a job gets, and how many, is the plan's and the faults'.
    assert!(seen.volunteered.len() >= AGENTS / 4, "volunteers ran: {:?}", seen.volunteered);
    for (groups, before) in fleet.groups.iter().zip(&before) {
        let left = differences(before, &groups.snapshot());
        assert!(left.is_empty(), "{left:#?}");
    }
}
