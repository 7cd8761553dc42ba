//! Encoding and decoding a report: what every second of every host costs on the wire.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_test_support::synthetic::report;
use gleaner_types::id::HostId;
use gleaner_wire::{FromAgent, ProtocolVersion, Unknowns, decode, encode};

fn codec(criterion: &mut Criterion) {
    let host = HostId::new("host-1").expect("a valid name");
    for version in ProtocolVersion::SPOKEN {
        for workloads in [1, 10, 50] {
            let message = report(&host, 7, workloads);
            let name = format!("encode + decode a report of {workloads} workloads, version {version}");
            criterion.bench_function(&name, |bencher| {
                bencher.iter(|| {
                    let frame = encode(version, black_box(&message)).expect("a report fits a frame");
                    let mut unknown = Unknowns::default();
                    black_box(decode::<FromAgent>(version, &frame, &mut unknown).expect("our own frame"))
                });
            });
        }
    }
}

criterion_group!(benches, codec);
criterion_main!(benches);
