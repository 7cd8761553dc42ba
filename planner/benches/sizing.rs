//! The sizing search: 36 hosts as in the papers' test bed, and 10,000; what a job's stages say of its sizes; and advice, which the core
//! loop gives too.
//! In: made-up hosts and jobs. Out: the time of one search. Called by `cargo bench`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::advice::{History, Question};
use gleaner_planner::goal::Margins;
use gleaner_planner::io_model::{IoModel, IoPoint};
use gleaner_planner::mapreduce::stages::{Seen, Worker};
use gleaner_planner::progress::Tail;
use gleaner_planner::selection::{Offer, ranked};
use gleaner_planner::sizing::stages::{Asked, consult};
use gleaner_planner::sizing::{Response, Sizing};
use gleaner_planner::snapshot::{Dedicated, Interactive, JobState, Observation, Search, SizeQuestion, VERSION, size};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Goal, PowerModel, PowerModels, Prices};
use gleaner_types::report::Bounded;
use gleaner_types::stages::{Stage, StageOnHost, StageOpinion, StagesSeen};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare, Dollars, DollarsPerHour, Fraction};

fn offers(hosts: u32) -> Vec<Offer> {
    (0..hosts)
        .map(|i| Offer {
            host: HostId::new(format!("host-{i}")).expect("a valid name"),
            slots: 16,
            potential: CoreShare::clamped(f64::from(i * 7_919 % 1_600)),
        })
        .collect()
}

fn search(criterion: &mut Criterion) {
    for hosts in [36, 10_000] {
        let pool = offers(hosts);
        criterion.bench_function(&format!("rank and size {hosts} hosts"), |bencher| {
            bencher.iter_batched(
                || pool.clone(),
                |pool| {
                    let offers = ranked(pool);
                    let sizing = Sizing {
                        goal: Goal::Deadline { within_s: 1_800.0 },
                        deadline_in_s: Some(1_800.0),
                        evaluation_interval_s: 60.0,
                        margins: Margins::CLUSTER,
                        prices: Prices::default(),
                        spent: Dollars::ZERO,
                        remaining: Fraction::clamped(0.8),
                        rate: 1e-8,
                        response: Response::Yield(0.9),
                        energy: None,
                        mean_task_s: 20.0,
                        tail: Tail { mean_s: 20.0, variation: 0.5, sure: 0.9, lost_s: 0.0 },
                        unfinished: u32::MAX,
                        dedicated_slots: 96,
                        set_up_s: 10.0,
                        dedicated: 6,
                        dedicated_potential: CoreShare::clamped(9_600.0),
                        offers: &offers,
                        current: 12,
                        useful: u32::MAX,
                    };
                    black_box(sizing.decide())
                },
                criterion::BatchSize::LargeInput,
            );
        });
    }
}

/// The I/O model at its fullest: 1,000 points of a saturating cluster.
fn model() -> IoModel {
    let mut model = IoModel::default();
    for i in 0..1_000_u32 {
        let potential = f64::from(9_600 + i * 7_919 % 50_000);
        let noise = f64::from(i * 104_729 % 1_000) - 500.0;
        model.observe(IoPoint {
            at_s: f64::from(i) * 1.5,
            potential: CoreShare::clamped(potential),
            actual: CoreShare::clamped((potential * 0.95).min(31_000.0) + noise),
            disk: Some(Fraction::clamped((potential / 33_000.0).min(1.0))),
        });
    }
    model
}

fn io_model(criterion: &mut Criterion) {
    let model = model();
    criterion.bench_function("mean shift and curve of 1000 points", |bencher| {
        bencher.iter(|| black_box(model.curve(1_500.0)));
    });
}

/// A whole decision as the controller takes it: ranking, I/O model, energy, goal.
fn decision(criterion: &mut Criterion) {
    for hosts in [36_u32, 10_000] {
        let question = question(hosts);
        criterion.bench_function(&format!("whole decision about {hosts} hosts"), |bencher| {
            bencher.iter(|| black_box(size(&question)));
        });
    }
}

fn question(hosts: u32) -> SizeQuestion {
    let name = |kind: &str, i: u32| HostId::new(format!("{kind}-{i}")).expect("a valid name");
    let power =
        PowerModel { idle_w: 175.0, per_load_w: 163.0, per_load_squared_w: -10.0, per_load_ghz_w: 0.0, base_ghz: 2.0 };
    SizeQuestion {
        version: VERSION,
        job: JobState {
            goal: Goal::Energy,
            prices: Prices::default(),
            elapsed_s: 1_500.0,
            done: 0.4,
            cpu_percent_s: 3e7,
            spent: 2.0,
            spent_wh: 500.0,
            mean_task_s: 40.0,
            task_deviation_s: Some(8.0),
            tasks_left: Some(100_000),
            loss: 0.1,
            set_up_s: 5.0,
            memory_per_slot_mib: 376,
            max_volunteers: None,
        },
        dedicated: (0..6)
            .map(|i| Dedicated {
                host: name("dedicated", i),
                cores: 16,
                class: String::new(),
                disk: 1.0,
                disk_utilisation: Some(0.3),
            })
            .collect(),
        interactive: (0..hosts)
            .map(|i| Interactive {
                host: name("host", i),
                cores: 16,
                class: String::new(),
                foreground_percent: f64::from(i * 7_919 % 1_600),
                memory_mib: Some(6_000),
                in_use: i % 3 == 0,
            })
            .collect(),
        observations: model()
            .points()
            .map(|point| Observation {
                at_s: point.at_s,
                potential_percent: point.potential.percent(),
                actual_percent: point.actual.percent(),
                disk_utilisation: point.disk.map(Fraction::value),
            })
            .collect(),
        efficiency: BTreeMap::new(),
        power: Some(PowerModels { dedicated: power, interactive: power }),
        evaluation_interval_s: 60.0,
        search: Search::Exhaustive,
    }
}

/// Slots of each host of the job with stages.
const SLOTS: u32 = 4;

/// A running job of two stages, with half of the hosts at work: the first stage is half done and runs on all their slots, the second waits.
fn two_stages(hosts: &[Worker]) -> StagesSeen {
    let count = u32::try_from(hosts.len()).expect("a small number");
    let own = StageOnHost { done: 10, ended: 10, task_s: 400.0, running: SLOTS, running_done: Fraction::clamped(0.3) };
    let first = Stage {
        id: 0,
        tasks: 20 * count,
        done: 10 * count,
        runs: 10 * count,
        shuffle_written: Bytes::from_mib(1_000),
        hosts: hosts.iter().map(|worker| (worker.host.clone(), own)).collect(),
        ..Stage::default()
    };
    let second = Stage { id: 1, tasks: 10 * count, ..Stage::default() };
    StagesSeen { stages: vec![first, second], hands_over: Some(false) }
}

/// The consultation of the model of stages, as the controller does it after each choice by the rate.
fn stages(criterion: &mut Criterion) {
    let job = JobId::new("sort").expect("a valid name");
    for hosts in [30_u32, 1_000] {
        let offer = |i: u32| Offer {
            host: HostId::new(format!("host-{i}")).expect("a valid name"),
            slots: SLOTS,
            potential: CoreShare::from_cores(SLOTS),
        };
        let offers: Vec<Offer> = (0..hosts).map(offer).collect();
        let worker = |host: HostId, is_volunteer| Worker {
            host,
            slots: SLOTS,
            potential: CoreShare::from_cores(SLOTS),
            is_volunteer,
            price: DollarsPerHour::clamped(1.0),
        };
        let current = hosts / 2;
        let mut working = vec![worker(HostId::new("dedicated").expect("a valid name"), false)];
        working.extend(offers.iter().take(current as usize).map(|offer| worker(offer.host.clone(), true)));
        let seen = two_stages(&working);
        let at_work = CoreShare::from_cores(SLOTS * (1 + current));
        let tasks_left = 20 * (1 + current);
        let sizing = Sizing {
            goal: Goal::Deadline { within_s: 300.0 },
            deadline_in_s: Some(300.0),
            evaluation_interval_s: 0.0,
            margins: Margins::CLUSTER,
            prices: Prices::default(),
            spent: Dollars::ZERO,
            remaining: Fraction::clamped(0.66),
            // All hosts at work take the 200 s that five rounds of tasks of 40 s take.
            rate: 0.66 / (200.0 * at_work.percent()),
            response: Response::Yield(1.0),
            energy: None,
            mean_task_s: 40.0,
            tail: Tail { mean_s: 40.0, variation: 0.2, sure: 0.9, lost_s: 0.0 },
            unfinished: tasks_left,
            dedicated_slots: SLOTS,
            set_up_s: 10.0,
            dedicated: 1,
            dedicated_potential: CoreShare::from_cores(SLOTS),
            offers: &offers,
            current,
            useful: u32::MAX,
        };
        let asked = Asked {
            seen: Seen { job: &job, stages: &seen, tasks_left, mean_task_s: Some(40.0), working: &working },
            waiting_s: 0.0,
        };
        let by_rate = sizing.decide();
        let weighed = consult(&sizing, by_rate.clone(), asked);
        assert!(matches!(weighed.stages, Some(StageOpinion::Predicted(_))), "{:?}", weighed.stages);
        criterion.bench_function(&format!("two stages of a job on {hosts} hosts"), |bencher| {
            bencher.iter_batched(
                || by_rate.clone(),
                |choice| black_box(consult(black_box(&sizing), choice, asked)),
                criterion::BatchSize::LargeInput,
            );
        });
    }
}

/// What a host may promise, from a day of its forecasts.
fn advice(criterion: &mut Criterion) {
    let capacity = CoreShare::clamped(1_600.0);
    let mut history = History::new();
    for minute in 0..1_500_u32 {
        let foreground = CoreShare::clamped(f64::from(minute * 7_919 % 1_600));
        let at = Timestamp(u64::from(minute) * 60_000);
        history.sample(at, 60.0, capacity, Some(foreground), Some(CoreShare::clamped(800.0)));
    }
    let forecast = Bounded { expected: CoreShare::clamped(800.0), safe: CoreShare::clamped(600.0) };
    let question = Question { for_s: 600.0, risk: 0.05 };
    criterion.bench_function("advice about a host", |bencher| {
        bencher.iter(|| black_box(history.promise(black_box(&question), capacity, forecast)));
    });
}

criterion_group!(benches, search, io_model, decision, stages, advice);
criterion_main!(benches);
