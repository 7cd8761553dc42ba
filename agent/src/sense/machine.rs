//! The machine as a whole. In: `/proc/stat`, `/proc/loadavg`, `/proc/meminfo`, `/proc/pressure/*`, `/proc/diskstats`,
//! `/proc/net/dev` (proc(5) has the formats). Out: raw counters. Called by the sensor; the memory bound and the network
//! bound call parts of it.

use std::path::{Path, PathBuf};

use gleaner_types::report::{Absence, Reading, Reason};
use gleaner_types::units::{Bytes, Fraction};

use super::resctrl::CacheReader;
use crate::facts::{DiskWeighing, Disks};
use crate::kernel_file::{KeptFile, fields, lines, malformed, names, number};
use crate::roots::Roots;

/// Nanoseconds of a clock tick as `/proc/stat` counts them: USER_HZ is 100 on every Linux of the last decades.
const TICK_NS: u64 = 10_000_000;

/// Bytes of a sector as `/proc/diskstats` counts them, whatever the device's own.
const SECTOR: u64 = 512;

/// Most disks and interfaces looked at.
const MOST_DEVICES: usize = 1_024;

/// CPU time of the whole machine since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTimes {
    /// Busy with anything: user, nice, system, irq, softirq; guests are part of user and nice.
    pub(crate) busy_ns: u64,
    /// Taken by the hypervisor below.
    pub(crate) steal_ns: u64,
    /// CPUs online.
    pub(crate) cpus: u32,
}

/// `/proc/stat`.
pub(crate) fn parse_stat(bytes: &[u8]) -> Result<CpuTimes, Absence> {
    let mut total = None;
    let mut cpus = 0;
    for line in lines(bytes) {
        let mut fields = fields(line);
        match fields.next() {
            Some(b"cpu") => {
                let mut ticks = [0_u64; 8];
                let mut count = 0;
                for (slot, field) in ticks.iter_mut().zip(fields) {
                    *slot = number(field).ok_or_else(|| malformed("/proc/stat", line))?;
                    count += 1;
                }
                if count < 4 {
                    return Err(malformed("/proc/stat", line));
                }
                // user nice system idle iowait irq softirq steal
                let [user, nice, system, _, _, irq, softirq, steal] = ticks;
                let busy = [user, nice, system, irq, softirq].iter().try_fold(0_u64, |sum, t| sum.checked_add(*t));
                total = busy.and_then(|busy| Some((busy.checked_mul(TICK_NS)?, steal.checked_mul(TICK_NS)?)));
                if total.is_none() {
                    return Err(malformed("/proc/stat", line));
                }
            }
            Some(name) if name.starts_with(b"cpu") => cpus += 1,
            // The CPU lines come first; the long interrupt line is not worth looking at.
            _ => break,
        }
    }
    let (busy_ns, steal_ns) = total.ok_or_else(|| malformed("/proc/stat", bytes))?;
    if cpus == 0 { Err(malformed("/proc/stat", bytes)) } else { Ok(CpuTimes { busy_ns, steal_ns, cpus }) }
}

/// First number of `/proc/loadavg`.
pub(crate) fn parse_loadavg(bytes: &[u8]) -> Result<f64, Absence> {
    let first = fields(bytes).next().and_then(|field| std::str::from_utf8(field).ok()?.parse::<f64>().ok());
    first.filter(|load| load.is_finite() && *load >= 0.0).ok_or_else(|| malformed("/proc/loadavg", bytes))
}

/// Memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: Bytes,
    pub(crate) available: Bytes,
}

/// `/proc/meminfo`.
pub(crate) fn parse_meminfo(bytes: &[u8]) -> Result<Memory, Absence> {
    let field = |name: &[u8]| {
        let line = lines(bytes).find(|line| line.starts_with(name))?;
        Some(Bytes(number(fields(line).nth(1)?)?.checked_mul(1024)?))
    };
    match (field(b"MemTotal:"), field(b"MemAvailable:")) {
        (Some(total), Some(available)) => Ok(Memory { total, available }),
        _ => Err(malformed("/proc/meminfo", bytes)),
    }
}

/// Swap of the host; nothing where the kernel has none.
pub(crate) fn parse_swap(bytes: &[u8]) -> Bytes {
    let line = lines(bytes).find(|line| line.starts_with(b"SwapTotal:"));
    let kib = line.and_then(|line| number(fields(line).nth(1)?));
    Bytes(kib.unwrap_or(0).saturating_mul(1024))
}

/// The share of the last 10 s some task waited, of a pressure file: "some avg10=0.12 avg60=… total=…".
pub(crate) fn parse_pressure(bytes: &[u8]) -> Result<Fraction, Absence> {
    let percent = lines(bytes)
        .find(|line| line.starts_with(b"some "))
        .and_then(|line| fields(line).find_map(|field| field.strip_prefix(b"avg10=")))
        .and_then(|text| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
    percent.and_then(|percent| Fraction::new(percent / 100.0).ok()).ok_or_else(|| malformed("a pressure file", bytes))
}

/// Counters of one disk since boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
    /// Time the device had work.
    pub(crate) busy_ms: u64,
}

/// `/proc/diskstats`, only devices `wanted`.
pub(crate) fn parse_diskstats(bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<Disk>, Absence> {
    let mut disks = Vec::new();
    for line in lines(bytes).take(MOST_DEVICES) {
        let bad = || malformed("/proc/diskstats", line);
        let mut fields = fields(line).skip(2);
        let name = fields.next().and_then(|name| std::str::from_utf8(name).ok()).ok_or_else(bad)?;
        if !wanted(name) {
            continue;
        }
        let mut counters = [0_u64; 10];
        for counter in &mut counters {
            *counter = fields.next().and_then(number).ok_or_else(bad)?;
        }
        // reads merged sectors ms writes merged sectors ms in-flight busy-ms
        let [reads, _, read_sectors, _, writes, _, write_sectors, _, _, busy_ms] = counters;
        disks.push(Disk {
            name: name.to_owned(),
            read_bytes: read_sectors.wrapping_mul(SECTOR),
            write_bytes: write_sectors.wrapping_mul(SECTOR),
            operations: reads.wrapping_add(writes),
            busy_ms,
        });
    }
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(disks)
}

/// Bytes received and sent by interfaces `wanted`, of `/proc/net/dev`.
pub(crate) fn parse_netdev(bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<(u64, u64), Absence> {
    let (mut received, mut sent) = (0_u64, 0_u64);
    for line in lines(bytes).skip(2).take(MOST_DEVICES) {
        let bad = || malformed("/proc/net/dev", line);
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(bad)?;
        let (name, counters) = line.split_at(colon);
        let name = std::str::from_utf8(name).map_err(|_| bad())?.trim();
        if !wanted(name) {
            continue;
        }
        let mut counters = fields(&counters[1..]).map(number);
        let own_received = counters.next().flatten().ok_or_else(bad)?;
        let own_sent = counters.nth(7).flatten().ok_or_else(bad)?;
        received = received.wrapping_add(own_received);
        sent = sent.wrapping_add(own_sent);
    }
    Ok((received, sent))
}

/// Raw counters of the machine at one moment.
#[derive(Debug, Clone)]
pub(crate) struct RawMachine {
    pub(crate) cpu: Reading<CpuTimes>,
    pub(crate) load: Reading<f64>,
    pub(crate) memory: Reading<Memory>,
    pub(crate) pressure: [Reading<Fraction>; 3],
    pub(crate) disks: Reading<Vec<Disk>>,
    pub(crate) network: Reading<(u64, u64)>,
    pub(crate) cache_occupancy: Reading<Bytes>,
    pub(crate) memory_traffic: Reading<u64>,
}

/// The machine's files, kept open, and which devices are its own.
#[derive(Debug)]
pub(crate) struct MachineReader {
    roots: Roots,
    stat: KeptFile,
    loadavg: KeptFile,
    meminfo: KeptFile,
    pressure: [KeptFile; 3],
    diskstats: KeptFile,
    netdev: KeptFile,
    cache: CacheReader,
    disks: Vec<String>,
    interfaces: Vec<String>,
}

impl MachineReader {
    pub(crate) fn new(roots: &Roots) -> Self {
        let file = |name: &str| KeptFile::new(roots.proc.join(name));
        let mut reader = Self {
            roots: roots.clone(),
            stat: file("stat"),
            loadavg: file("loadavg"),
            meminfo: file("meminfo"),
            pressure: [file("pressure/cpu"), file("pressure/memory"), file("pressure/io")],
            diskstats: file("diskstats"),
            netdev: file("net/dev"),
            cache: CacheReader::new(&roots.sys),
            disks: Vec::new(),
            interfaces: Vec::new(),
        };
        reader.rescan();
        reader
    }

    /// Finds the disks and interfaces anew.
    pub(crate) fn rescan(&mut self) {
        self.cache.rescan();
        self.disks = names(&self.roots.sys.join("block"));
        self.disks.retain(|name| {
            !["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"].iter().any(|virtual_| name.starts_with(virtual_))
        });
        let folder = self.roots.sys.join("class/net");
        let all = names(&folder);
        let is_hardware = |name: &String| folder.join(name).join("device").exists();
        self.interfaces = all.iter().filter(|name| is_hardware(name)).cloned().collect();
        if self.interfaces.is_empty() {
            // A machine without hardware interfaces (a container, some clouds): everything that is no
            // loopback, tap, bridge or half of a pair counts.
            self.interfaces = all;
            self.interfaces.retain(|name| {
                !["lo", "tap", "vnet", "vif", "veth", "br", "virbr", "docker"]
                    .iter()
                    .any(|inner| name.starts_with(inner))
            });
        }
    }

    /// The whole disks, as far as limiting them goes. `io_cost` is the text of the root cgroup's `io.cost.qos`.
    pub(crate) fn limitable_disks(&self, io_cost: &str) -> Disks {
        let read = |name: &String, file: &str| {
            std::fs::read_to_string(self.roots.sys.join("block").join(name).join(file)).ok()
        };
        let number = |name: &String| read(name, "dev")?.parse().ok();
        let scheduled_by = |word: &str| {
            self.disks.iter().any(|name| read(name, "queue/scheduler").is_some_and(|text| text.contains(word)))
        };
        let weighed_by = if scheduled_by("[bfq]") {
            Some(DiskWeighing::Bfq)
        } else if scheduled_by("[cfq]") || io_cost.split_whitespace().any(|word| word == "enable=1") {
            Some(DiskWeighing::CostOrCfq)
        } else {
            None
        };
        Disks { numbers: self.disks.iter().filter_map(number).collect(), weighed_by }
    }

    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> RawMachine {
        let (disks, interfaces) = (&self.disks, &self.interfaces);
        let (cache_occupancy, memory_traffic) = self.cache.read(buffer);
        RawMachine {
            cache_occupancy: cache_occupancy.into(),
            memory_traffic: memory_traffic.into(),
            cpu: self.stat.read(buffer).and_then(parse_stat).into(),
            load: self.loadavg.read(buffer).and_then(parse_loadavg).into(),
            memory: self.meminfo.read(buffer).and_then(parse_meminfo).into(),
            pressure: self.pressure.each_mut().map(|file| file.read(buffer).and_then(parse_pressure).into()),
            disks: self
                .diskstats
                .read(buffer)
                .and_then(|bytes| parse_diskstats(bytes, |name| disks.iter().any(|disk| disk == name)))
                .into(),
            network: match interfaces.is_empty() {
                true => Reading::because(Reason::NoNetworkInterface),
                false => self
                    .netdev
                    .read(buffer)
                    .and_then(|bytes| parse_netdev(bytes, |name| interfaces.iter().any(|own| own == name)))
                    .into(),
            },
        }
    }
}

/// Counter files of one network interface.
#[derive(Debug)]
pub(crate) struct InterfaceReader {
    receive: KeptFile,
    transmit: KeptFile,
}

impl InterfaceReader {
    pub(crate) fn new(sys: &Path, name: &str) -> Self {
        let folder: PathBuf = sys.join("class/net").join(name).join("statistics");
        Self { receive: KeptFile::new(folder.join("rx_bytes")), transmit: KeptFile::new(folder.join("tx_bytes")) }
    }

    /// Bytes received and sent by the interface itself; a tap's guest sees them the other way round.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<(u64, u64), Absence> {
        let mut one = |file: &mut KeptFile| {
            let bytes = file.read(buffer)?;
            number(bytes.trim_ascii()).ok_or_else(|| malformed("an interface counter", bytes))
        };
        Ok((one(&mut self.receive)?, one(&mut self.transmit)?))
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::AbsenceKind;

    use super::*;

    #[test]
    fn stat_by_hand() {
        let text = b"cpu  100 10 50 1000 5 1 4 7 30 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n";
        // Busy: 100 + 10 + 50 + 1 + 4 ticks; the 30 guest ticks are inside user. Stolen: 7.
        let times = parse_stat(text).unwrap();
        assert_eq!(times, CpuTimes { busy_ns: 1_650_000_000, steal_ns: 70_000_000, cpus: 2 });
        for bad in [
            &b""[..],
            b"cpu 1 2\ncpu0 1\n",
            b"cpu a b c d\ncpu0\n",
            b"cpu 1 2 3 4\n",
            b"cpu 18446744073709551615 1 1 1 1 1\ncpu0",
        ] {
            assert!(parse_stat(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn meminfo_loadavg_pressure() {
        let memory = parse_meminfo(b"MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n").unwrap();
        assert_eq!(memory, Memory { total: Bytes(2 << 20), available: Bytes(1 << 20) });
        assert_eq!(parse_meminfo(b"MemTotal: 2048 kB\n").unwrap_err().kind, AbsenceKind::Malformed);
        assert_eq!(parse_swap(b"MemTotal: 2048 kB\nSwapTotal:       512 kB\n"), Bytes(512 << 10));
        assert_eq!((parse_swap(b"MemTotal: 1 kB\n"), parse_swap(b"SwapTotal: x kB\n")), (Bytes(0), Bytes(0)));
        assert_eq!(parse_loadavg(b"0.25 0.1 0.0 1/77 1530\n"), Ok(0.25));
        assert!(parse_loadavg(b"NaN 1 1").is_err());
        let pressure = parse_pressure(b"some avg10=12.50 avg60=1.00 avg300=0.12 total=2018657\nfull avg10=0.00\n");
        assert_eq!(pressure, Ok(Fraction::new(0.125).unwrap()));
        assert!(parse_pressure(b"some avg10=-1 total=1").is_err());
    }

    #[test]
    fn diskstats_takes_whole_disks() {
        let text = b" 254 0 vda 10 1 100 5 20 2 200 9 0 33 14\n 254 1 vda1 1 1 1 1 1 1 1 1 1 1 1\n";
        let disks = parse_diskstats(text, |name| name == "vda").unwrap();
        let expected =
            Disk { name: "vda".into(), read_bytes: 51_200, write_bytes: 102_400, operations: 30, busy_ms: 33 };
        assert_eq!(disks, [expected]);
        assert!(parse_diskstats(b" 254 0 vda 10 1\n", |_| true).is_err());
    }

    #[test]
    fn netdev_sums_wanted_interfaces() {
        let text = b"Inter-|   Receive\n face |bytes\n    lo: 5 0 0 0 0 0 0 0 5 0\n  eth0: 100 1 0 0 0 0 0 0 200 2 0\neth1:1 0 0 0 0 0 0 0 2 0\n";
        assert_eq!(parse_netdev(text, |name| name != "lo"), Ok((101, 202)));
        assert!(parse_netdev(b"a\nb\nnonsense\n", |_| true).is_err());
    }

    #[test]
    fn this_machine_can_be_read() {
        let mut reader = MachineReader::new(&Roots::default());
        let raw = reader.read(&mut Vec::new());
        let cpus = std::thread::available_parallelism().unwrap().get();
        assert!(raw.cpu.value().unwrap().cpus as usize >= cpus);
        let memory = raw.memory.value().unwrap();
        assert!(memory.available.0 > 0 && memory.available < memory.total);
        assert!(raw.disks.value().is_some());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(bytes in "(cpu|some avg10=|MemTotal:|MemAvailable:|[ a-z0-9:=.\n-]){0,60}") {
            let bytes = bytes.as_bytes();
            _ = parse_stat(bytes);
            _ = parse_loadavg(bytes);
            _ = parse_meminfo(bytes);
            _ = parse_pressure(bytes);
            _ = parse_diskstats(bytes, |_| true);
            _ = parse_netdev(bytes, |_| true);
        }
    }
}
