//! The cost of encoding and decoding a report, which every host sends every second. In: synthetic reports of 1 to 50
//! workloads, in every version. Out: times, by Criterion. Run by `cargo xtask bench codec`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_test_support::synthetic::report;
use gleaner_types::id::HostId;
use gleaner_wire::{FromAgent, ProtocolVersion, Unknowns, decode, encode};

fn codec(criterion: &mut Criterion) {
    let host = HostId::new("host-1").expect("a valid name");
    for version in ProtocolVersion::SUPPORTED {
        for workloads in [1, 10, 50] {
            let message = report(&host, 7, workloads);
            let of = format!("a report of {workloads} workloads, version {version}");
            let encoded = || encode(version, black_box(&message)).expect("a report fits a frame");
            let decoded = |frame: &[u8]| {
                decode::<FromAgent>(version, black_box(frame), &mut Unknowns::default()).expect("our own frame")
            };
            criterion.bench_function(&format!("encode + decode {of}"), |bencher| {
                bencher.iter(|| decoded(&encoded()));
            });
            let frame = encoded();
            criterion.bench_function(&format!("encode {of}"), |bencher| bencher.iter(encoded));
            criterion.bench_function(&format!("decode {of}"), |bencher| bencher.iter(|| decoded(&frame)));
        }
    }
}

criterion_group!(benches, codec);
criterion_main!(benches);
