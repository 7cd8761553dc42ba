//! What a cgroup used. In: version 1 `cpuacct`, `memory`, `blkio`; version 2 `cpu.stat`, `memory.current`, `memory.stat`,
//! `io.stat`, `cpu.pressure`. Out: raw counters. Called by the sensor, and by the reader of the volunteer.

use std::path::Path;

use gleaner_types::report::{Absence, Reading, Reason};
use gleaner_types::units::Bytes;

use super::machine::parse_pressure;
use super::perf::{Counters, parse_cpu_list};
use super::rates::RawWorkload;
use crate::hierarchies::Hierarchies;
use crate::kernel_file::{KeptFile, fields, keyed_number, lines, malformed, number};

/// The files of one cgroup.
#[derive(Debug)]
pub(crate) struct CgroupReader {
    kind: Files,
    counters: Reading<Counters>,
}

#[derive(Debug)]
enum Files {
    V1 { cpu: Option<KeptFile>, memory: Option<Memory>, disk: Option<[KeptFile; 2]> },
    V2 { cpu: KeptFile, pressure: [KeptFile; 2], memory: Memory, disk: KeptFile, block_devices: std::path::PathBuf },
}

/// What is charged to a cgroup, and of what that consists.
#[derive(Debug)]
struct Memory {
    charged: KeptFile,
    stat: KeptFile,
    /// Key of the pages of files that were not used again of late, of all cgroups below it too.
    inactive_file: &'static str,
}

impl Memory {
    /// The working set, and all that is charged. The working set is what is left without pages of files that were not used again
    /// of late: the kernel takes those back first and at no cost, and they fill whatever memory there is. Where the kernel does
    /// not tell them apart, all counts.
    fn read(&mut self, buffer: &mut Vec<u8>) -> [Reading<Bytes>; 2] {
        let charged = single(Some(&mut self.charged), "memory", buffer);
        let inactive = self.stat.read(buffer).ok().and_then(|stat| keyed_number(stat, self.inactive_file));
        let working_set = charged.clone().map(|all| Bytes(all.saturating_sub(inactive.unwrap_or(0))));
        [working_set, charged.map(Bytes)]
    }
}

/// `cpu.stat` of version 2.
pub(crate) fn parse_cpu_stat(bytes: &[u8]) -> Result<u64, Absence> {
    keyed_number(bytes, "usage_usec")
        .and_then(|usec| usec.checked_mul(1_000))
        .ok_or_else(|| malformed("cpu.stat", bytes))
}

/// Total time in which some task waited, of a pressure file, in ns.
pub(crate) fn parse_pressure_total(bytes: &[u8]) -> Result<u64, Absence> {
    lines(bytes)
        .find(|line| line.starts_with(b"some "))
        .and_then(|line| fields(line).find_map(|field| number(field.strip_prefix(b"total=")?)))
        .and_then(|usec| usec.checked_mul(1_000))
        .ok_or_else(|| malformed("cpu.pressure", bytes))
}

/// Sums of "MAJ:MIN Read N" and "MAJ:MIN Write N" lines of a version 1 blkio file.
pub(crate) fn parse_blkio(bytes: &[u8]) -> Result<(u64, u64), Absence> {
    let (mut read, mut write) = (0_u64, 0_u64);
    for line in lines(bytes) {
        let mut fields = fields(line);
        let (_, operation, count) = (fields.next(), fields.next(), fields.next().map(number));
        match (operation, count) {
            (Some(b"Read"), Some(Some(count))) => read = read.wrapping_add(count),
            (Some(b"Write"), Some(Some(count))) => write = write.wrapping_add(count),
            (_, Some(None)) => return Err(malformed("a blkio file", line)),
            _ => {}
        }
    }
    Ok((read, write))
}

/// Counters of version 2 `io.stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IoStat {
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
}

/// `io.stat`, only devices `counted`: one write shows both on a mapped device and on the disk below it.
pub(crate) fn parse_io_stat(bytes: &[u8], counted: impl Fn(&str) -> bool) -> Result<IoStat, Absence> {
    let mut sums = IoStat::default();
    for line in lines(bytes) {
        let mut fields = fields(line);
        let device = fields.next().and_then(|device| std::str::from_utf8(device).ok());
        if !device.is_some_and(&counted) {
            continue;
        }
        for field in fields {
            let Some(equals) = field.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = field.split_at(equals);
            let sum = match key {
                b"rbytes" => &mut sums.read_bytes,
                b"wbytes" => &mut sums.write_bytes,
                b"rios" | b"wios" => &mut sums.operations,
                _ => continue,
            };
            *sum = sum.wrapping_add(number(&value[1..]).ok_or_else(|| malformed("io.stat", line))?);
        }
    }
    Ok(sums)
}

impl CgroupReader {
    /// The cgroup with this path below the root of every hierarchy it is on.
    pub(crate) fn new(path: &Path, hierarchies: &Hierarchies, sys: &Path, use_counters: bool) -> Self {
        let counters = match use_counters {
            true => counters(path, hierarchies, sys).into(),
            false => Reading::because(Reason::CountersNotUsed),
        };
        Self { kind: Files::new(path, hierarchies, sys), counters }
    }

    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> RawWorkload {
        let mut raw = self.kind.read(buffer);
        raw.counters = match &mut self.counters {
            Reading::Value(counters) => counters.read().into(),
            Reading::Absent(absence) => Reading::Absent(absence.clone()),
        };
        raw
    }
}

/// Counters on a cgroup, through version 2 or the `perf_event` hierarchy.
fn counters(path: &Path, hierarchies: &Hierarchies, sys: &Path) -> Result<Counters, Absence> {
    let mount = hierarchies
        .v1
        .get("perf_event")
        .or(hierarchies.v2.as_ref())
        .ok_or(Absence::because(Reason::CountersNeedCgroups))?;
    let folder = mount.join(path);
    let open = std::fs::File::open(&folder).map_err(|error| crate::kernel_file::absence(&folder, &error))?;
    let online = sys.join("devices/system/cpu/online");
    let text = std::fs::read_to_string(&online).map_err(|error| crate::kernel_file::absence(&online, &error))?;
    let cpus = parse_cpu_list(&text).ok_or_else(|| malformed("the list of CPUs online", text.as_bytes()))?;
    Counters::of_cgroup(&open, &cpus)
}

impl Files {
    fn new(path: &Path, hierarchies: &Hierarchies, sys: &Path) -> Self {
        if hierarchies.v1.contains_key("cpuacct") {
            let file = |controller: &str, name: &str| {
                hierarchies.v1.get(controller).map(|mount| KeptFile::new(mount.join(path).join(name)))
            };
            let disk = [file("blkio", "blkio.throttle.io_service_bytes"), file("blkio", "blkio.throttle.io_serviced")];
            let disk = match disk {
                [Some(bytes), Some(operations)] => Some([bytes, operations]),
                _ => None,
            };
            let memory = match [file("memory", "memory.usage_in_bytes"), file("memory", "memory.stat")] {
                [Some(charged), Some(stat)] => Some(Memory { charged, stat, inactive_file: "total_inactive_file" }),
                _ => None,
            };
            Self::V1 { cpu: file("cpuacct", "cpuacct.usage"), memory, disk }
        } else {
            let group = hierarchies.v2.clone().unwrap_or_default().join(path);
            let file = |name: &str| KeptFile::new(group.join(name));
            Self::V2 {
                cpu: file("cpu.stat"),
                pressure: [file("cpu.pressure"), file("memory.pressure")],
                memory: Memory {
                    charged: file("memory.current"),
                    stat: file("memory.stat"),
                    inactive_file: "inactive_file",
                },
                disk: file("io.stat"),
                block_devices: sys.join("dev/block"),
            }
        }
    }

    fn read(&mut self, buffer: &mut Vec<u8>) -> RawWorkload {
        let mut raw = RawWorkload::absent(&Absence::because(Reason::NotByCgroups));
        match self {
            Self::V1 { cpu, memory, disk } => {
                raw.cpu_ns = single(cpu.as_mut(), "cpuacct", buffer);
                raw.wait_ns = Reading::because(Reason::WaitNotByCgroups);
                [raw.memory, raw.charged] = match memory {
                    Some(memory) => memory.read(buffer),
                    None => {
                        std::array::from_fn(|_| Reading::because(Reason::NoHierarchy { controller: "memory".into() }))
                    }
                };
                match disk {
                    Some([bytes, operations]) => {
                        let moved: Reading<(u64, u64)> = bytes.read(buffer).and_then(parse_blkio).into();
                        let counted: Reading<(u64, u64)> = operations.read(buffer).and_then(parse_blkio).into();
                        raw.disk_read = moved.clone().map(|(read, _)| read);
                        raw.disk_write = moved.map(|(_, write)| write);
                        raw.disk_operations = counted.map(|(reads, writes)| reads.wrapping_add(writes));
                    }
                    None => {
                        let absent = || Reading::because(Reason::NoBlkio);
                        (raw.disk_read, raw.disk_write, raw.disk_operations) = (absent(), absent(), absent());
                    }
                }
            }
            Self::V2 { cpu, pressure, memory, disk, block_devices } => {
                raw.cpu_ns = cpu.read(buffer).and_then(parse_cpu_stat).into();
                let [of_cpu, of_memory] = pressure;
                raw.wait_ns = of_cpu.read(buffer).and_then(parse_pressure_total).into();
                raw.memory_pressure = of_memory.read(buffer).and_then(parse_pressure).into();
                [raw.memory, raw.charged] = memory.read(buffer);
                let at_the_bottom = |device: &str| {
                    let below = block_devices.join(device).join("slaves");
                    std::fs::read_dir(below).map_or(true, |mut entries| entries.next().is_none())
                };
                let counters: Reading<IoStat> =
                    disk.read(buffer).and_then(|bytes| parse_io_stat(bytes, at_the_bottom)).into();
                raw.disk_read = counters.clone().map(|io| io.read_bytes);
                raw.disk_write = counters.clone().map(|io| io.write_bytes);
                raw.disk_operations = counters.map(|io| io.operations);
            }
        }
        raw
    }
}

/// A file that holds one number.
fn single(file: Option<&mut KeptFile>, controller: &str, buffer: &mut Vec<u8>) -> Reading<u64> {
    let Some(file) = file else {
        return Reading::because(Reason::NoHierarchy { controller: controller.into() });
    };
    file.read(buffer)
        .and_then(|bytes| number(bytes.trim_ascii()).ok_or_else(|| malformed("a cgroup file", bytes)))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_files() {
        assert_eq!(parse_cpu_stat(b"usage_usec 1500\nuser_usec 1000\n"), Ok(1_500_000));
        assert!(parse_cpu_stat(b"user_usec 1000\n").is_err());
        assert_eq!(parse_pressure_total(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=25\n"), Ok(25_000));
        let text = b"253:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0\n8:0 rbytes=10 wbytes=20 rios=1 wios=2\n7:0 \n";
        let stat = parse_io_stat(text, |device| device == "8:0").unwrap();
        assert_eq!(stat, IoStat { read_bytes: 10, write_bytes: 20, operations: 3 });
        assert!(parse_io_stat(b"8:0 rbytes=x\n", |_| true).is_err());
    }

    #[test]
    fn the_working_set_is_without_pages_that_were_not_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let mut memory = Memory {
            charged: KeptFile::new(folder.path().join("memory.current")),
            stat: KeptFile::new(folder.path().join("memory.stat")),
            inactive_file: "inactive_file",
        };
        let mut read = || memory.read(&mut Vec::new()).map(|reading| reading.value().copied());
        assert_eq!(read(), [None, None]);
        // Without their breakdown all of it counts.
        write("memory.current", "1000\n");
        assert_eq!(read(), [Some(Bytes(1000)); 2]);
        write("memory.stat", "anon 300\nfile 700\nworkingset_inactive_file 5\ninactive_file 600\nactive_file 100\n");
        assert_eq!(read(), [Some(Bytes(400)), Some(Bytes(1000))]);
        // The two are not read at once.
        write("memory.stat", "inactive_file 2000\n");
        assert_eq!(read(), [Some(Bytes(0)), Some(Bytes(1000))]);
        write("memory.stat", "inactive_file many\n");
        assert_eq!(read(), [Some(Bytes(1000)); 2]);
    }

    #[test]
    fn version_1_blkio() {
        let text = b"254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n254:0 Total 12288\n8:0 Read 4\nTotal 12292\n";
        assert_eq!(parse_blkio(text), Ok((4100, 8192)));
        assert_eq!(parse_blkio(b"Total 0\n"), Ok((0, 0)));
        assert!(parse_blkio(b"8:0 Read many\n").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(8:0 |rbytes=|Read |usage_usec |some total=|[ a-z0-9:=\n]){0,40}") {
            _ = parse_cpu_stat(text.as_bytes());
            _ = keyed_number(text.as_bytes(), "usage_usec");
            _ = parse_pressure_total(text.as_bytes());
            _ = parse_blkio(text.as_bytes());
            _ = parse_io_stat(text.as_bytes(), |_| true);
        }
    }
}
