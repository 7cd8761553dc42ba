//! One control interval of an application, and the arbitration of many: the paths that grow with the number of services.
//! clarabel, an interior-point solver, runs on the same programs.
//! In: made-up observations and demands. Out: the time of one step or one arbitration. Called by `cargo bench`.

use std::hint::black_box;

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, ZeroConeT};
use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::balance::application::{Application, Observation, ObservedShare, Settings};
use gleaner_planner::balance::arbitration::{Demand, arbitrate};
use gleaner_planner::balance::model::{Kind, Model, Orders, Sample};
use gleaner_planner::balance::mpc::{Variable, balance};
use gleaner_planner::balance::{NormalShare, Resource, Share};
use gleaner_types::units::Fraction;

const RESOURCES: [Resource; 4] = [Resource::Cpu, Resource::Memory, Resource::Disk, Resource::Network];

/// Pseudo-random numbers in 0..1.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1_u64 << 31) as f64
}

fn variables(count: usize) -> (Vec<Variable>, f64) {
    let mut state = 1;
    let of = NormalShare::clamped;
    let all: Vec<Variable> = (0..count)
        .map(|_| {
            let present = 0.1 + 0.5 * random(&mut state);
            Variable {
                present: of(present),
                gain: 2.0 * random(&mut state),
                lower: of(0.9 * present),
                upper: of(1.1 * present),
            }
        })
        .collect();
    let wanted = all.iter().map(|v| v.gain * v.present.value() * 1.03).sum();
    (all, wanted)
}

fn by_clarabel(variables: &[Variable], wanted: f64, q: f64) -> f64 {
    let n = variables.len();
    let p = CscMatrix::new(n, n, (0..=n).collect(), (0..n).collect(), vec![2.0 * (1.0 + q); n]);
    let linear: Vec<f64> = variables.iter().map(|v| -2.0 * q * v.present.value()).collect();
    let (mut columns, mut rows, mut values) = (vec![0], Vec::new(), Vec::new());
    for (i, v) in variables.iter().enumerate() {
        rows.extend([0, 1 + i, 1 + n + i]);
        values.extend([v.gain, 1.0, -1.0]);
        columns.push(rows.len());
    }
    let a = CscMatrix::new(1 + 2 * n, n, columns, rows, values);
    let bounds = variables.iter().map(|v| v.upper.value()).chain(variables.iter().map(|v| -v.lower.value()));
    let b: Vec<f64> = std::iter::once(wanted).chain(bounds).collect();
    let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
    let cones = [ZeroConeT(1), NonnegativeConeT(2 * n)];
    let Ok(mut solver) = DefaultSolver::new(&p, &linear, &a, &b, &cones, settings) else { return 0.0 };
    solver.solve();
    solver.solution.obj_val
}

fn mpc(c: &mut Criterion) {
    for (tiers, resources) in [(2, 3), (10, 4)] {
        let (variables, wanted) = variables(tiers * resources);
        let mut shares = Vec::new();
        c.bench_function(&format!("balance/program/{tiers}x{resources}"), |b| {
            b.iter(|| balance(black_box(&variables), black_box(wanted), 4.0, &mut shares));
        });
        c.bench_function(&format!("balance/program/{tiers}x{resources}/clarabel"), |b| {
            b.iter(|| by_clarabel(black_box(&variables), black_box(wanted), 4.0));
        });
    }
}

fn observation(tiers: usize, resources: usize, state: &mut u64) -> Observation {
    let share = |index: usize, state: &mut u64| ObservedShare {
        resource: RESOURCES[index % resources],
        share: Share::clamped(0.2 + 0.3 * random(state)),
        utilisation: Some(Fraction::clamped(0.5 + 0.3 * random(state))),
        floor: Share::clamped(0.02),
        ceiling: Share::clamped(1.0),
    };
    Observation {
        target_ms: 100.0,
        mean_ms: Some(60.0 + 80.0 * random(state)),
        unanswered: 0,
        miss_rate: Some(Fraction::clamped(0.1 + 0.2 * random(state))),
        shares: (0..tiers * resources).map(|index| share(index, state)).collect(),
    }
}

fn interval(c: &mut Criterion) {
    for (tiers, resources) in [(2, 3), (3, 3), (10, 4)] {
        let (mut state, mut application) = (5, Application::new(Settings::default()));
        (0..80).for_each(|_| _ = application.step(&observation(tiers, resources, &mut state)));
        let seen = observation(tiers, resources, &mut state);
        c.bench_function(&format!("balance/interval/{tiers}x{resources}"), |b| {
            b.iter(|| application.step(black_box(&seen)))
        });
    }
}

fn update(c: &mut Criterion) {
    for kind in [Kind::Gray, Kind::Black] {
        let (mut state, mut model) = (9, Model::new(kind, Orders::default()));
        let mut sample = || Sample {
            after_gap: false,
            load_changed: false,
            performance: 0.7 + 0.6 * random(&mut state),
            miss_rate: Some(Fraction::clamped(0.1 + 0.2 * random(&mut state))),
            shares: (0..6).map(|_| 0.2 + 0.3 * random(&mut state)).collect(),
            condition: 0,
        };
        (0..80).for_each(|_| model.observe(sample()));
        let next = sample();
        c.bench_function(&format!("balance/model_update/{kind:?}/2x3"), |b| {
            b.iter(|| model.observe(black_box(next.clone())))
        });
    }
}

/// 500 applications of two to five tiers on 1,000 hosts, every fifth host contended.
fn arbitration(c: &mut Criterion) {
    let mut state = 3_u64;
    let mut demands = Vec::new();
    for application in 0..500 {
        let tiers = 2 + application % 4;
        for _ in 0..tiers {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let host = usize::try_from((state >> 33) % 1_000).unwrap_or(0);
            for resource in [Resource::Cpu, Resource::Memory, Resource::Disk] {
                let wanted = Share::clamped(if host.is_multiple_of(5) { 0.4 + 0.5 * random(&mut state) } else { 0.15 });
                let (floor, in_use, gain) = (Share::clamped(0.01), Share::clamped(0.1), random(&mut state));
                demands.push(Demand { application, host, resource, wanted, floor, in_use, gain });
            }
        }
    }
    c.bench_function("balance/arbitration/1000_hosts_500_applications", |b| {
        b.iter(|| arbitrate(black_box(&demands), |_, _| 1.0))
    });
}

criterion_group!(benches, mpc, interval, update, arbitration);
criterion_main!(benches);
