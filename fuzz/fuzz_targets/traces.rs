#![no_main]
//! Fuzz target: recorded traces, as files of compressed text. In: any bytes. Out: nothing; no input may make it panic.
//! Started by `fuzz/run.sh`.
use std::io::Write;

use gleaner_simulator::traces::{google, planetlab, services};

const FILES: [&str; 5] = [
    "google-vm-cpu-mem/gcd_shared.csv.gz",
    "planetlab/day.csv.gz",
    "worldcup98/requests_per_min_to_0624.csv.gz",
    "bias-cloud/a_load-test.csv.gz",
    "azure/noise_sysbench_cpu_D8sv5_westus2.csv.gz",
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = std::env::temp_dir().join(format!("gleaner-fuzz-{}", std::process::id()));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    packed.write_all(data).expect("memory");
    let packed = packed.finish().expect("memory");
    for name in FILES {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(&file, &packed).expect("a file");
    }
    _ = google(&folder, 1);
    _ = planetlab(&folder, 10);
    _ = services::worldcup98(&folder);
    _ = services::bias_cloud(&folder);
    _ = services::azure_noise(&folder, services::Benchmark::Cpu);
    std::fs::remove_dir_all(&folder).expect("a folder of our own");
});
