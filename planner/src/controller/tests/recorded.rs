//! What the controller put out for a long, varied life, recorded: jobs of both kinds, applications that contend, hosts
//! that come, go, fall silent, refuse and are held, restarts. A change of structure changes none of the numbers below.
//! After a deliberate change of behaviour: `cargo test -p gleaner-planner recorded` prints the new ones.

use gleaner_types::application::{ApplicationSpec, Bounds, Control, ResponseSource, ResponseTime, TierSpec};
use gleaner_types::id::{ApplicationId, TierId, WorkloadId};
use gleaner_types::job::{ClusterSpec, DedicatedHost, PowerModel, PowerModels, WorkerProgress};
use gleaner_types::report::{Capability, DiskSample, Offer};
use gleaner_types::units::Dollars;

use super::*;
use gleaner_test_support::report::{nothing, workload};

/// Digest of the outputs of each seed.
const RECORDED: [u64; 8] = [
    10_859_813_201_383_334_797,
    18_402_535_634_988_522_051,
    11_564_852_322_808_427_893,
    7_381_868_426_983_680_463,
    18_408_989_316_789_246_307,
    346_209_349_231_222_047,
    17_843_739_182_317_939_776,
    16_174_742_614_140_788_331,
];
const SECONDS: u32 = 500;

/// FNV-1a.
fn digest(seed: u64, text: &str) -> u64 {
    text.bytes().fold(seed, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Marsaglia's xorshift64*: the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn percent(&mut self, most: u32) -> f64 {
        f64::from(u32::try_from(self.below(u64::from(most) * 10)).unwrap()) / 10.0
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

const HOSTS: [&str; 8] = ["d1", "d2", "h1", "i1", "i2", "i3", "i4", "i5"];
const JOBS: [&str; 5] = ["a", "b", "c", "local", "other"];

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

/// One life of a controller.
struct Life {
    random: Random,
    controller: Controller,
    now: Timestamp,
    sequence: u64,
    connected: Vec<&'static str>,
    slots: BTreeMap<JobId, BTreeMap<HostId, u32>>,
    done: BTreeMap<JobId, f64>,
    digest: u64,
    outputs: usize,
}

impl Life {
    fn new(seed: u64) -> Self {
        let settings = Settings {
            evaluation_interval_s: 10.0,
            profile_period_s: 10.0,
            control_interval_s: 7.0,
            ended_jobs_kept: 4,
            ..Settings::default()
        };
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            controller: Controller::new(settings, Timestamp(1)),
            now: Timestamp(1_000_000),
            sequence: 0,
            connected: Vec::new(),
            slots: BTreeMap::new(),
            done: BTreeMap::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            outputs: 0,
        }
    }

    fn send(&mut self, input: Input) {
        let outputs = self.controller.handle(input, self.now);
        self.digest = digest(self.digest, &format!("{:?} {outputs:?}", self.now));
        self.outputs += outputs.len();
        for output in outputs {
            match output {
                Output::Engine { job, action: EngineAction::SetSlots(slots) } => _ = self.slots.insert(job, slots),
                Output::Engine { job, action: EngineAction::Cancel } => _ = self.slots.remove(&job),
                Output::Command { host, command } => {
                    let outcome = match self.random.below(40) {
                        0 => Outcome::Refused { reason: Refusal::Failed, detail: "the write failed".into() },
                        1..5 => continue,
                        _ => Outcome::Applied { limits: gleaner_types::command::Limits::NONE, shortfalls: vec![] },
                    };
                    let ack = Ack { target: command.target, version: command.version, outcome };
                    self.send(Input::Acked { host, ack });
                }
                Output::AskResponseTime { application } => self.respond(application),
                Output::Event(Event::PlanRejected { violation }) => panic!("rejected: {violation}"),
                Output::Event(_) => {}
            }
        }
    }

    fn respond(&mut self, application: ApplicationId) {
        let response = match self.random.below(8) {
            0 => ResponseTime::Idle,
            1 => ResponseTime::Missing { reason: "nobody answers".into() },
            _ => ResponseTime::from_ms(50.0 + self.random.percent(100)),
        };
        self.send(Input::Responded { application, response });
    }

    fn join(&mut self, name: &'static str) {
        let mut facts = facts(!name.starts_with('d'));
        if name == "i5" {
            (facts.cores, facts.cpu_model) = (8, "another".into());
        }
        let offers = [Capability::CpuQuota, Capability::MemoryLimit];
        facts.offers =
            offers.map(|capability| Offer { capability, state: Reading::Value("here".into()) }).into_iter().collect();
        self.connected.retain(|known| *known != name);
        self.connected.push(name);
        self.send(Input::HostJoined { host: host(name), incarnation: 1, facts: Box::new(facts) });
    }

    fn lose(&mut self, name: &'static str) {
        self.connected.retain(|known| *known != name);
        self.send(Input::HostLost { host: host(name), reason: "test".into() });
    }

    fn cluster(&mut self, name: &str) -> JobSpec {
        let all: [&[&str]; 4] = [&["d1"], &["d2"], &["d1", "d2"], &["d1", "i1"]];
        let dedicated = *self.random.pick::<&[&str]>(&all);
        let goal = *self.random.pick(&[
            Goal::Deadline { within_s: 300.0 },
            Goal::Deadline { within_s: 120.0 },
            Goal::Cost { budget: None },
            Goal::Cost { budget: Some(Dollars::clamped(0.2)) },
            Goal::Energy,
        ]);
        let watts = PowerModel {
            idle_w: 100.0,
            per_load_w: 150.0,
            per_load_squared_w: -10.0,
            per_load_ghz_w: 0.0,
            base_ghz: 2.0,
        };
        let workers = Workers::Hosts(ClusterSpec {
            dedicated: dedicated.iter().map(|name| DedicatedHost { host: host(name), disk: 1.0 }).collect(),
            max_volunteers: *self.random.pick(&[None, Some(3)]),
            max_slots_per_host: *self.random.pick(&[None, Some(2)]),
            weight: 1.0,
        });
        let power = Some(PowerModels { dedicated: watts, interactive: watts });
        JobSpec { workers, power, set_up_s: 2.0, ..spec(name, goal) }
    }

    fn application(&mut self, name: &str) -> ApplicationSpec {
        let control = *self.random.pick(&[Control::Balance, Control::Balance, Control::Stfc]);
        let memory = *self.random.pick(&[None, Some(Bounds { floor: 256.0, ceiling: 2_048.0 })]);
        let on: &str = self.random.pick::<&str>(&["h1", "i1"]);
        let tier = TierSpec {
            name: TierId::new("db").unwrap(),
            host: host(on),
            workload: WorkloadId::new(name).unwrap(),
            cpu_percent: Some(Bounds { floor: 20.0, ceiling: 300.0 }),
            memory_mib: memory.filter(|_| control == Control::Balance),
            disk_mb_s: None,
        };
        ApplicationSpec {
            name: ApplicationId::new(name).unwrap(),
            target_ms: 100.0,
            response_time: ResponseSource::Push,
            control,
            tiers: vec![tier],
        }
    }

    /// Something out of the ordinary.
    fn happening(&mut self) {
        let name = *self.random.pick(&HOSTS);
        let job = *self.random.pick(&JOBS);
        let id = JobId::new(job).unwrap();
        match self.random.below(16) {
            0..4 => self.join(name),
            4 => self.lose(name),
            5..9 => {
                let spec =
                    if job.len() > 1 { spec(job, Goal::Deadline { within_s: 200.0 }) } else { self.cluster(job) };
                self.done.entry(id).or_default();
                self.send(Input::JobSubmitted(Box::new(spec)));
            }
            9 => self.send(Input::JobCancelled { job: id }),
            10 => {
                let until = self.now.after(Duration::from_secs(self.random.below(40)));
                self.send(Input::HostHeld { host: host(name), until: Some(until) });
            }
            11 => self.send(Input::HostReleased { host: host(name) }),
            12 | 13 => {
                let name = *self.random.pick(&["shop", "wiki"]);
                let spec = self.application(name);
                self.send(Input::ApplicationApplied(Box::new(spec)));
            }
            14 if self.random.below(3) == 0 => {
                self.send(Input::ApplicationRemoved { application: ApplicationId::new("wiki").unwrap() });
            }
            15 if self.random.below(6) == 0 => {
                self.connected.clear();
                self.slots.clear();
                self.send(Input::Resumed);
                HOSTS.into_iter().skip(usize::from(job == "a")).for_each(|name| self.join(name));
            }
            // It hangs: no report for a while.
            _ => self.now = self.now.after(Duration::from_secs(self.random.below(8))),
        }
    }

    fn second(&mut self) {
        self.now = self.now.after(Duration::from_secs(1));
        if self.random.below(8) == 0 {
            self.happening();
        }
        for name in self.connected.clone() {
            self.sequence += 1;
            let (foreground, used) = (self.random.percent(150), self.random.percent(250));
            let mut report = HostReport { host: host(name), ..report(self.sequence, 400.0 - foreground, used) };
            report.machine.cpu_busy = Reading::Value(CoreShare::clamped(foreground + used));
            report.machine.cpu_foreground = Reading::Value(CoreShare::clamped(foreground));
            let utilisation = Reading::Value(Fraction::clamped(self.random.percent(100) / 100.0));
            report.machine.disks = vec![DiskSample {
                name: "sda".into(),
                read: nothing(),
                write: nothing(),
                operations: nothing(),
                utilisation,
            }];
            report.workloads = ["shop", "wiki"].map(|name| workload(name, self.random.percent(200))).into();
            self.send(Input::Report(Box::new(report)));
        }
        for (job, slots) in self.slots.clone() {
            let done = self.done.entry(job.clone()).or_default();
            let running: u32 = slots.values().sum();
            *done += f64::from(running) * 5e-4;
            let part = *done;
            let mut progress = progress(part, running);
            (progress.tasks_total, progress.task_deviation_s) = (200, Some(0.3));
            let worker = |slots: u32| WorkerProgress { tasks_running: slots, done: Fraction::clamped(part / 8.0) };
            progress.workers = slots.into_iter().map(|(host, slots)| (host, worker(slots))).collect();
            for name in HOSTS {
                if self.random.below(4) == 0 {
                    progress.workers.entry(host(name)).or_insert(worker(1));
                }
            }
            if part >= 1.0 {
                self.slots.remove(&job);
                let end = EngineEnd::CompletedWithFailures { failed: 1 };
                self.send(Input::EngineEnded { job, end, progress: Some(progress) });
            } else {
                self.send(Input::Progress { job, progress });
            }
        }
        self.send(Input::Tick);
    }
}

#[test]
fn outputs_are_those_recorded() {
    let live = |seed: u64| {
        let mut life = Life::new(seed);
        ["d1", "d2", "h1", "i1", "i2", "i3", "i5"].into_iter().for_each(|name| life.join(name));
        (0..SECONDS).for_each(|_| life.second());
        assert!(life.outputs > 400, "a life with something in it: {}", life.outputs);
        life.digest
    };
    let digests: Vec<u64> = (1..=8).map(live).collect();
    assert_eq!(digests, RECORDED, "outputs changed");
}
