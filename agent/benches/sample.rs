//! The cost of one sample of a host with many workloads. In: a tree of files like the kernel's, with 2 to 500
//! workloads. Out: times, by Criterion. Run by `cargo xtask bench sample`.
#![expect(clippy::expect_used, reason = "a bench may stop on a broken fixture")]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_agent::hierarchies::Hierarchies;
use gleaner_agent::roots::Roots;
use gleaner_agent::sense::{SenseSettings, Sensor, VolunteerTrace};

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
    std::fs::write(path, text).expect("a file");
}

/// Half QEMU guests with four vCPU and two other threads each, half version 2 cgroups.
fn tree(root: &Path, workloads: u32) {
    write(root, "proc/stat", "cpu 100 0 0 900 0 0 0 0\ncpu0 1\ncpu1 1\nintr 1\n");
    write(root, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 5 kB\nMemAvailable: 400 kB\n");
    write(root, "proc/loadavg", "0.1 0.1 0.1 1/1 1\n");
    for kind in ["cpu", "memory", "io"] {
        write(root, &format!("proc/pressure/{kind}"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    }
    write(root, "proc/diskstats", "8 0 sda 1 1 1 1 1 1 1 1 1 1 1\n");
    write(root, "proc/net/dev", "a\nb\neth0: 1 0 0 0 0 0 0 0 1\n");
    write(root, "sys/block/sda/size", "1");
    write(root, "sys/class/net/eth0/device/x", "1");
    for number in 0..workloads / 2 {
        let pid = 1_000 + number * 10;
        write(root, &format!("proc/{pid}/cmdline"), &format!("qemu-system-x86_64\0-name\0guest-{number}\0"));
        write(root, &format!("proc/{pid}/status"), "Uid:\t0\t0\t0\t0\n");
        write(
            root,
            &format!("proc/{pid}/stat"),
            &format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {pid} 1 7 0"),
        );
        write(root, &format!("proc/{pid}/statm"), "9 3 0\n");
        write(root, &format!("proc/{pid}/io"), "rchar: 1\nread_bytes: 1\nwrite_bytes: 1\n");
        for thread in 0..6 {
            let name = if thread < 4 { format!("CPU {thread}/KVM\n") } else { "worker\n".to_owned() };
            write(root, &format!("proc/{pid}/task/{}/comm", pid + thread), &name);
            write(root, &format!("proc/{pid}/task/{}/schedstat", pid + thread), "123456789 1234 77\n");
        }
        let group = format!("cg/machine/vm-{number}");
        write(root, &format!("{group}/cpu.stat"), "usage_usec 123456\nuser_usec 1\nsystem_usec 1\n");
        write(root, &format!("{group}/cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=55\n");
        write(root, &format!("{group}/memory.current"), "123456\n");
        let before: String = (0..20).map(|key| format!("key_{key} 123456789\n")).collect();
        write(root, &format!("{group}/memory.stat"), &format!("{before}inactive_file 23456\nactive_file 1\n"));
        write(root, &format!("{group}/io.stat"), "8:0 rbytes=1 wbytes=1 rios=1 wios=1 dbytes=0 dios=0\n");
    }
}

fn sample(criterion: &mut Criterion) {
    for workloads in [2, 10, 50, 100, 500] {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        tree(root, workloads);
        let settings = SenseSettings {
            roots: Roots { proc: root.join("proc"), sys: root.join("sys"), root: root.to_owned() },
            foreground_cgroups: vec!["machine/*".into()],
            qemu: true,
            monitors: false,
            counters: false,
            scan_period_s: 1e9,
        };
        let hierarchies = Hierarchies { v2: Some(root.join("cg")), ..Hierarchies::default() };
        let mut sensor = Sensor::open(settings, &hierarchies, VolunteerTrace::None, &[]).expect("a sensor");
        let mut now = Instant::now();
        assert_eq!(sensor.sample(now).workloads.len(), workloads as usize);
        criterion.bench_function(&format!("sample a host with {workloads} workloads"), |bencher| {
            bencher.iter(|| {
                now += Duration::from_secs(1);
                black_box(sensor.sample(now))
            });
        });
    }
}

criterion_group!(benches, sample);
criterion_main!(benches);
