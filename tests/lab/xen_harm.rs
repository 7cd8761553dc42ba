//! The foreground's waits for a CPU and the harm meter, on a real control domain booted under software emulation: a domain
//! beside a volunteer domain on one CPU, guarded and not. The test of `xen.rs` boots the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_agent::act::Actor;
use gleaner_agent::config::Config;
use gleaner_agent::hierarchies::Hierarchies;
use gleaner_agent::host_loop::HostLoop;
use gleaner_agent::outbox::{Outbox, OutboxLimits};
use gleaner_agent::roots::Roots;
use gleaner_daemon::clock::Clock;
use gleaner_test_support::lab;
use gleaner_types::command::{Command, Desired, Quota, Target, Version};
use gleaner_types::event::Event;
use gleaner_types::harm::HarmInterval;
use gleaner_types::report::{AbsenceKind, Reading, WorkloadSample};
use serde_json::Value;

use crate::guests::{PATIENCE, sh, until};
use crate::xen::run;
use crate::xen_volunteer::{Hypervisor, make};

const CONFIG: &str = "state_dir = \"/tmp/harm-state\"\n[act]\nenabled = true\n[foreground]\nmemory_floor_mib = 16\n\
                      [volunteer]\nkind = \"domain\"\ndomains = [\"vol\"]\n[guard]\npause_share = 0.2\n";
/// Over this time waits are compared.
const WINDOW: Duration = Duration::from_secs(2);
/// Trials under which a figure is judged. On a quiet machine they take some 15 s.
const TRIALS: u32 = 8;

/// What a domain did over a window, in percent of one CPU.
#[derive(Debug, Clone, Copy)]
struct Waited {
    cpu: f64,
    wait: f64,
    looks: f64,
}

impl Waited {
    fn per_cpu(self) -> f64 {
        self.wait / self.cpu
    }
}

fn waited(xen: &mut Hypervisor, uuid: &str) -> Waited {
    let mut read = || {
        let answer = xen.ask(r#"{"waits":{}}"#)["waits"].clone();
        let domain = answer["domains"].as_array().unwrap().iter().find(|domain| domain["uuid"] == uuid).cloned();
        let domain = domain.unwrap_or_else(|| panic!("{uuid} is not in {answer}"));
        [&answer["looks"], &answer["looked_ns"], &domain["cpu_ns"], &domain["wait_ns"]].map(|n| n.as_f64().unwrap())
    };
    let before = read();
    // Each question keeps the looks going for two seconds.
    let start = Instant::now();
    while start.elapsed() < WINDOW {
        std::thread::sleep(Duration::from_secs(1));
        read();
    }
    let after = read();
    let [looks, looked, cpu, wait] = [0, 1, 2, 3].map(|index| after[index] - before[index]);
    Waited { cpu: cpu * 100.0 / looked, wait: wait * 100.0 / looked, looks }
}

/// The agent's loop, ticked by hand.
struct Agent {
    host: HostLoop,
    outbox: Arc<Outbox>,
    events: Vec<Event>,
}

impl Agent {
    fn start() -> Self {
        std::fs::write("/tmp/harm.toml", CONFIG).unwrap();
        let config = Config::load("/tmp/harm.toml".as_ref()).unwrap();
        let hierarchies = Hierarchies::of_this_machine();
        let clock = Clock::start();
        let (actor, _) = Actor::open(config.act_settings(), &hierarchies).unwrap();
        let limits = OutboxLimits { reports: 1, events: 256 };
        let outbox = Arc::new(Outbox::new(limits, config.host.clone(), 1));
        let roots = Roots::default();
        let host = HostLoop::open(&config, clock, &hierarchies, Some(actor), Arc::clone(&outbox), roots).unwrap();
        let mut agent = Self { host, outbox, events: Vec::new() };
        let desired = Desired::Run { cap: Quota::Unlimited };
        let version = Version { epoch: 1, number: 1 };
        agent.host.command(&Command { target: Target::Volunteer, version, lease_ms: 600_000, desired });
        agent
    }

    /// A sample of the foreground's domain, and its harm as of now.
    fn tick(&mut self) -> (WorkloadSample, Reading<HarmInterval>) {
        self.host.tick(Instant::now());
        let batch = self.outbox.take();
        self.events.extend(batch.events.into_iter().map(|record| record.event));
        let report = batch.report.unwrap();
        let sample = report.workloads.into_iter().find(|workload| workload.id.as_str() == "front").unwrap();
        let harm = report.harm.workloads.into_iter().find(|workload| workload.workload.as_str() == "front");
        (sample, harm.map_or(report.harm.foreground, |of_front| of_front.harm))
    }

    /// The harm once so many trials tell it.
    fn harm(&mut self, trials: u32) -> HarmInterval {
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let (_, harm) = self.tick();
            match harm {
                Reading::Value(harm) if harm.trials >= trials => return harm,
                Reading::Absent(why) if start.elapsed() > PATIENCE => panic!("{why}"),
                _ => assert!(start.elapsed() < 2 * PATIENCE, "not {trials} trials in time"),
            }
        }
    }
}

#[test]
fn xen_harm_from_inside() {
    if !lab::inside() {
        return;
    }
    let start = Instant::now();
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    sh("for domain in one two; do xl destroy $domain 2>/dev/null || true; done");
    let volunteer = make("vol");
    sh("mkdom front duty=60 && xl vcpu-pin Domain-0 all 0 && xl vcpu-pin vol all 1 && xl vcpu-pin front all 1");
    let front = sh("xl vm-list | awk '$3 == \"front\" { print $1 }'");
    let xen = &mut Hypervisor::open();
    xen.ask(r#"{"waits":{}}"#);
    std::thread::sleep(Duration::from_millis(200));

    let alone = waited(xen, &front);
    xen.pause(&volunteer, false);
    let beside = waited(xen, &front);
    // One line of the toolstack, and nothing else.
    sh(&format!("xl sched-{scheduler} -d vol -w 1"));
    let weighed = waited(xen, &front);
    sh(&format!("xl sched-{scheduler} -d vol -w 256"));
    println!(
        "{scheduler}: percent of one CPU by looks: alone {alone:.1?}, beside a volunteer of its own weight {beside:.1?}, of \
         weight 1 {weighed:.1?}"
    );
    assert!(alone.looks > 20.0 && beside.looks > 30.0, "{alone:?}, {beside:?}");
    assert!(alone.per_cpu() < 0.15, "{alone:?}");
    assert!(beside.per_cpu() > 0.2 + 3.0 * alone.per_cpu(), "alone {alone:?}, beside {beside:?}");

    let doctor = run(&["doctor"]);
    let cache = doctor.lines().find(|line| line.contains("psr_cmt_op")).unwrap_or_else(|| panic!("{doctor}"));
    println!("{}", cache.trim());
    assert!(
        cache.contains("does not monitor the cache") && cache.contains("psr_alloc: "),
        "emulated CPUs have none: {cache}"
    );
    let sampled = xen.ask(r#"{"sample":{}}"#)["sample"]["domains"].clone();
    let none = |domain: &Value| domain["cache_occupancy"]["error"]["kind"] == "unsupported";
    assert!(sampled.as_array().is_some_and(|domains| domains.len() >= 3 && domains.iter().all(none)), "{sampled}");

    let mut agent = Agent::start();
    agent.tick();
    std::thread::sleep(Duration::from_secs(1));
    if scheduler == "credit" {
        let start = Instant::now();
        until("the guard caps it while the others wait", || xen.state(&volunteer)["cap_percent"] != 0);
        println!("{scheduler}: the guard has capped the volunteer after {} ms", start.elapsed().as_millis());
    }
    let guarded = waited(xen, &front);
    // The helper's answer may be late once.
    let (mut sample, _) = agent.tick();
    until("a sample has the waits", || {
        if sample.cpu_wait.value().is_none() {
            sample = agent.tick().0;
        }
        sample.cpu_wait.value().is_some()
    });
    println!(
        "{scheduler}: beside a guarded one {guarded:.1?}; the agent's own sample: CPU {:?}, waits {:?}",
        sample.cpu.value(),
        sample.cpu_wait.value()
    );
    let Some(Reading::Absent(why)) = &sample.cache_occupancy else { panic!("{:?}", sample.cache_occupancy) };
    println!("{scheduler}: the cache that it occupies is not known, because {why}");
    let says = why.detail().contains("psr_cmt_op: No such device");
    assert!(says && why.kind == AbsenceKind::NotSupported, "the hypervisor's own answer: {why:?}");
    assert!(guarded.per_cpu() < 0.7 * beside.per_cpu(), "beside {beside:?}, guarded {guarded:?}");

    // How the meter counts has nothing to do with the scheduler, so it is tried under one of the two.
    if scheduler == "credit2" {
        let harm = agent.harm(TRIALS);
        println!("harm beside a guarded volunteer {harm}, by {} trials", harm.trials);
        // Somebody gives it a weight that hurts, which Gleaner tells and leaves: the meter must show it. A new agent counts
        // trials anew.
        drop(agent);
        xen.pause(&volunteer, false);
        agent = Agent::start();
        sh("xl sched-credit2 -d vol -w 1024");
        let hurt = agent.harm(TRIALS);
        println!("harm beside a volunteer of four times its weight {hurt}, by {} trials", hurt.trials);
        assert!(hurt.low_percent > harm.mean_percent.max(1.0), "{hurt} against {harm}");
        let over = agent.events.iter().any(|event| matches!(event, Event::HarmOverBudget { .. }));
        assert!(over, "{:?}", agent.events);
    }
    drop(agent);
    sh("xl destroy vol && xl destroy front && xl vcpu-pin Domain-0 all all");
    println!("{scheduler}: waits and harm took {:.0} s", start.elapsed().as_secs_f64());
}
