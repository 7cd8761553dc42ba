//! The cost of one step of the guard: reading this machine's counters and stepping the law. In: the counters, by each
//! way to read the volunteer's CPU time that this machine has. Out: times, by Criterion. Run by
//! `cargo xtask bench guard`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_agent::act::volunteer::VolunteerUsage;
use gleaner_agent::guard::{Meter, MeterPaths};
use gleaner_agent::hierarchies::Hierarchies;
use gleaner_planner::guard::{Guard, GuardSettings};
use gleaner_planner::idle_buffer::{BufferSample, BufferSize, IdleBuffer};

fn guard_step(criterion: &mut Criterion) {
    let root = Path::new("/");
    let found = Hierarchies::detect(Path::new("/proc/self"), root);
    let none = Hierarchies::default();
    let accounting = found.v1.get("cpuacct").map(|mount| VolunteerUsage::CpuacctUsage(mount.join("cpuacct.usage")));
    let unified = found.v2.as_ref().map(|mount| VolunteerUsage::CpuStat(mount.join("cpu.stat")));
    let cases = [
        ("guard_step/cpuacct", &found, accounting),
        ("guard_step/cpu_stat", &found, unified),
        ("guard_step/proc_stat", &none, Some(VolunteerUsage::NiceTime)),
    ];
    for (name, hierarchies, usage) in cases {
        let meter = usage.and_then(|usage| Meter::open(&MeterPaths::detect(hierarchies, root), &usage).ok());
        let Some(mut meter) = meter else {
            eprintln!("{name}: skipped, this machine does not have these counters");
            continue;
        };
        let mut law = Guard::new(GuardSettings::default());
        let mut buffer = IdleBuffer::new(BufferSize::Follow);
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                // A counter that goes back costs the same as one that does not.
                let sample = meter.sample(Instant::now()).ok().flatten();
                sample.map(|(sample, interval_s)| {
                    let idle = BufferSample { cpus: 2, foreground: sample.foreground, volunteer_most: 2 };
                    // A look each 50 ms, whose seconds pass.
                    black_box(buffer.step(black_box(idle), 0.05));
                    law.step(black_box(sample), interval_s)
                })
            });
        });
    }
}

criterion_group!(benches, guard_step);
criterion_main!(benches);
