//! The sizing search: 36 hosts as in the papers' test bed, and 10,000.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_common::id::HostId;
use gleaner_common::job::{Goal, Prices};
use gleaner_common::units::{CoreShare, Dollars, Fraction};
use gleaner_planner::goal::Margins;
use gleaner_planner::selection::{Offer, ranked};
use gleaner_planner::sizing::{Response, Sizing};

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
                        tail_s: 20.0,
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

criterion_group!(benches, search);
criterion_main!(benches);
