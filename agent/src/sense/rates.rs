//! Rates from raw counters: pure functions. In: two raw samples and the true interval between them. Out: rates. Called
//! by the sensor.
//!
//! A counter that went back, or whose source vanished, gives a typed absence for that interval, never a huge or
//! negative number. The next interval starts afresh.

use std::collections::BTreeMap;

use gleaner_types::id::WorkloadId;
use gleaner_types::report::{Absence, DiskSample, MachineSample, Reading, Reason, WorkloadKind, WorkloadSample};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, PerSec};

use super::machine::{Disk, RawMachine};
use super::perf::Counts;

/// Raw counters of one workload.
#[derive(Debug, Clone)]
pub(crate) struct RawWorkload {
    pub(crate) cpu_ns: Reading<u64>,
    pub(crate) vcpu_ns: Reading<u64>,
    pub(crate) emulator_ns: Reading<u64>,
    pub(crate) wait_ns: Reading<u64>,
    /// The working set of a cgroup; what is resident of others.
    pub(crate) memory: Reading<Bytes>,
    /// All that counts towards a cgroup's limit on memory, its page cache too; absent for others.
    pub(crate) charged: Reading<Bytes>,
    pub(crate) memory_pressure: Reading<Fraction>,
    pub(crate) disk_read: Reading<u64>,
    pub(crate) disk_write: Reading<u64>,
    pub(crate) disk_operations: Reading<u64>,
    pub(crate) receive: Reading<u64>,
    pub(crate) transmit: Reading<u64>,
    pub(crate) counters: Reading<Counts>,
    /// Read of Xen domains alone; `None` for others, also where everything else is absent.
    pub(crate) cache_occupancy: Option<Reading<Bytes>>,
}

impl RawWorkload {
    /// Everything absent for the same reason.
    pub(crate) fn absent(why: &Absence) -> Self {
        let no = || Reading::Absent(why.clone());
        Self {
            cpu_ns: no(),
            vcpu_ns: no(),
            emulator_ns: no(),
            wait_ns: no(),
            memory: Reading::Absent(why.clone()),
            charged: Reading::Absent(why.clone()),
            memory_pressure: Reading::Absent(why.clone()),
            disk_read: no(),
            disk_write: no(),
            disk_operations: no(),
            receive: no(),
            transmit: no(),
            counters: Reading::Absent(why.clone()),
            cache_occupancy: None,
        }
    }
}

/// Increase of a counter over the interval, per second.
fn rate(previous: Option<&Reading<u64>>, current: &Reading<u64>, interval_s: f64) -> Reading<f64> {
    match (previous, current) {
        (_, Reading::Absent(absence)) => Reading::Absent(absence.clone()),
        (Some(Reading::Value(before)), Reading::Value(now)) if interval_s > 0.0 => match now.checked_sub(*before) {
            Some(increase) => Reading::Value(increase as f64 / interval_s),
            None => Reading::because(Reason::CounterWentBack { before: *before, now: *now }),
        },
        _ => Reading::because(Reason::NeedsTwoSamples),
    }
}

/// CPU of a counter of nanoseconds.
pub(crate) fn cpu(previous: Option<&Reading<u64>>, current: &Reading<u64>, interval_s: f64) -> Reading<CoreShare> {
    rate(previous, current, interval_s).map(|ns_per_s| CoreShare::clamped(ns_per_s / 1e7))
}

fn bytes(previous: Option<&Reading<u64>>, current: &Reading<u64>, interval_s: f64) -> Reading<BytesPerSec> {
    rate(previous, current, interval_s).map(BytesPerSec::clamped)
}

fn events(previous: Option<&Reading<u64>>, current: &Reading<u64>, interval_s: f64) -> Reading<PerSec> {
    rate(previous, current, interval_s).map(PerSec::clamped)
}

/// `of(value)` of a reading without cloning the rest of it.
fn part<T, U>(reading: &Reading<T>, of: impl Fn(&T) -> U) -> Reading<U> {
    match reading {
        Reading::Value(value) => Reading::Value(of(value)),
        Reading::Absent(absence) => Reading::Absent(absence.clone()),
    }
}

/// One interval of a workload.
pub(crate) fn workload(
    id: &WorkloadId,
    kind: WorkloadKind,
    previous: Option<&RawWorkload>,
    current: &RawWorkload,
    interval_s: f64,
) -> WorkloadSample {
    let cpu = |of: fn(&RawWorkload) -> &Reading<u64>| cpu(previous.map(of), of(current), interval_s);
    let bytes = |of: fn(&RawWorkload) -> &Reading<u64>| bytes(previous.map(of), of(current), interval_s);
    let counter = |of: fn(&Counts) -> u64| {
        let before = previous.map(|raw| part(&raw.counters, of));
        events(before.as_ref(), &part(&current.counters, of), interval_s)
    };
    WorkloadSample {
        id: id.clone(),
        kind,
        cpu: cpu(|raw| &raw.cpu_ns),
        cpu_vcpu: cpu(|raw| &raw.vcpu_ns),
        cpu_emulator: cpu(|raw| &raw.emulator_ns),
        cpu_wait: cpu(|raw| &raw.wait_ns),
        memory: current.memory.clone(),
        memory_pressure: current.memory_pressure.clone(),
        disk_read: bytes(|raw| &raw.disk_read),
        disk_write: bytes(|raw| &raw.disk_write),
        disk_operations: events(previous.map(|raw| &raw.disk_operations), &current.disk_operations, interval_s),
        network_receive: bytes(|raw| &raw.receive),
        network_transmit: bytes(|raw| &raw.transmit),
        llc_references: counter(|counts| counts.llc_references),
        llc_misses: counter(|counts| counts.llc_misses),
        instructions: counter(|counts| counts.instructions),
        cache_occupancy: current.cache_occupancy.clone(),
    }
}

/// One interval of the machine. `volunteer` is the CPU of the volunteer over the same interval, zero if there is none.
pub(crate) fn machine(
    previous: Option<&RawMachine>,
    current: &RawMachine,
    volunteer: &Reading<CoreShare>,
    interval_s: f64,
) -> MachineSample {
    let capacity = CoreShare::from_cores(current.cpu.value().map_or(0, |times| times.cpus));
    let counter = |of: fn(&super::machine::CpuTimes) -> u64| {
        let before = previous.map(|raw| part(&raw.cpu, of));
        // The kernel counts ticks of 10 ms on each CPU, so an interval may seem to hold a tick too many.
        cpu(before.as_ref(), &part(&current.cpu, of), interval_s).map(|share| share.min(capacity))
    };
    let busy = counter(|times| times.busy_ns);
    let foreground = match (&busy, volunteer) {
        (Reading::Value(busy), Reading::Value(volunteer)) => Reading::Value(busy.saturating_sub(*volunteer)),
        (Reading::Value(_), Reading::Absent(absence)) | (Reading::Absent(absence), _) => {
            Reading::Absent(absence.clone())
        }
    };
    let network = |of: fn(&(u64, u64)) -> u64| {
        let before = previous.map(|raw| part(&raw.network, of));
        bytes(before.as_ref(), &part(&current.network, of), interval_s)
    };
    let [cpu_pressure, memory_pressure, io_pressure] = current.pressure.clone();
    MachineSample {
        cpu_capacity: capacity,
        cpu_busy: busy,
        cpu_foreground: foreground,
        cpu_steal: counter(|times| times.steal_ns),
        load_1min: current.load.clone(),
        cpu_pressure,
        memory_pressure,
        io_pressure,
        memory_total: part(&current.memory, |memory| memory.total),
        memory_available: part(&current.memory, |memory| memory.available),
        cache_occupancy: current.cache_occupancy.clone(),
        memory_bandwidth: bytes(previous.map(|raw| &raw.memory_traffic), &current.memory_traffic, interval_s),
        disks: disks(previous, current, interval_s),
        network_receive: network(|counters| counters.0),
        network_transmit: network(|counters| counters.1),
    }
}

fn disks(previous: Option<&RawMachine>, current: &RawMachine, interval_s: f64) -> Vec<DiskSample> {
    let empty = Vec::new();
    let before: BTreeMap<&str, &Disk> = previous
        .and_then(|raw| raw.disks.value())
        .unwrap_or(&empty)
        .iter()
        .map(|disk| (disk.name.as_str(), disk))
        .collect();
    let one = |disk: &Disk| {
        let before = before.get(disk.name.as_str());
        let counter = |of: fn(&Disk) -> u64| {
            rate(before.map(|disk| Reading::Value(of(disk))).as_ref(), &Reading::Value(of(disk)), interval_s)
        };
        DiskSample {
            name: disk.name.clone(),
            read: counter(|disk| disk.read_bytes).map(BytesPerSec::clamped),
            write: counter(|disk| disk.write_bytes).map(BytesPerSec::clamped),
            operations: counter(|disk| disk.operations).map(PerSec::clamped),
            // As iostat's %util: milliseconds with work per second, at most all of it.
            utilisation: counter(|disk| disk.busy_ms).map(|ms_per_s| Fraction::clamped((ms_per_s / 1_000.0).min(1.0))),
        }
    };
    current.disks.value().unwrap_or(&empty).iter().map(one).collect()
}

/// Why the workloads' CPU cannot be right: together they used more than the machine has. A twentieth more is allowed,
/// for clocks that differ. `None` if it can be right.
pub(crate) fn implausible(machine: &MachineSample, workloads: &[WorkloadSample]) -> Option<Absence> {
    let sum: CoreShare = workloads.iter().filter_map(|workload| workload.cpu.value().copied()).sum();
    (sum > machine.cpu_capacity * 1.05).then(|| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, as wanted")]
        let percent = |share: CoreShare| share.percent().round() as u64;
        let (used_percent, capacity_percent) = (percent(sum), percent(machine.cpu_capacity));
        Absence::because(Reason::OverCapacity { used_percent, capacity_percent })
    })
}

/// The name of everything that is not the volunteer.
pub(super) fn remainder_id() -> WorkloadId {
    WorkloadId::from_untrusted("everything-else")
}

/// The foreground when it is "everything that is not the volunteer".
pub(crate) fn remainder(machine: &MachineSample, volunteer_memory: &Reading<Bytes>) -> WorkloadSample {
    let sum = |of: fn(&DiskSample) -> &Reading<BytesPerSec>| {
        let values: Option<Vec<BytesPerSec>> = machine.disks.iter().map(|disk| of(disk).value().copied()).collect();
        match values {
            Some(values) => Reading::Value(values.into_iter().sum()),
            None => Reading::because(Reason::NeedsTwoDiskSamples),
        }
    };
    let memory = match (&machine.memory_total, &machine.memory_available) {
        (Reading::Value(total), Reading::Value(available)) => {
            let held = volunteer_memory.value().copied().unwrap_or_default();
            Reading::Value(total.saturating_sub(*available).saturating_sub(held))
        }
        (Reading::Absent(absence), _) | (_, Reading::Absent(absence)) => Reading::Absent(absence.clone()),
    };
    WorkloadSample {
        id: remainder_id(),
        kind: WorkloadKind::Remainder,
        cpu: machine.cpu_foreground.clone(),
        cpu_vcpu: Reading::because(Reason::NoGuest),
        cpu_emulator: Reading::because(Reason::NoGuest),
        cpu_wait: Reading::because(Reason::VolunteerNotApart),
        memory,
        memory_pressure: machine.memory_pressure.clone(),
        // Volunteers have scratch space only (RHIC §3), so the disks' traffic is nearly all foreground.
        disk_read: sum(|disk| &disk.read),
        disk_write: sum(|disk| &disk.write),
        disk_operations: Reading::because(Reason::VolunteerNotApart),
        network_receive: machine.network_receive.clone(),
        network_transmit: machine.network_transmit.clone(),
        llc_references: Reading::because(Reason::VolunteerNotApart),
        llc_misses: Reading::because(Reason::VolunteerNotApart),
        instructions: Reading::because(Reason::VolunteerNotApart),
        cache_occupancy: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{CpuTimes, Memory};
    use gleaner_types::report::AbsenceKind;

    use super::*;

    fn raw(busy_ns: u64, busy_ms: u64) -> RawMachine {
        let absent = || Reading::absent(AbsenceKind::NotSupported, "test");
        RawMachine {
            cpu: Reading::Value(CpuTimes { busy_ns, steal_ns: 0, cpus: 4 }),
            load: Reading::absent(AbsenceKind::NotSupported, "test"),
            memory: Reading::Value(Memory { total: Bytes(1000), available: Bytes(400) }),
            pressure: [absent(), absent(), absent()],
            disks: Reading::Value(vec![Disk {
                name: "sda".into(),
                read_bytes: 0,
                write_bytes: busy_ms * 100,
                operations: busy_ms,
                busy_ms,
            }]),
            network: Reading::Value((0, 0)),
            cache_occupancy: Reading::absent(AbsenceKind::NotSupported, "test"),
            memory_traffic: Reading::Value(busy_ms * 10),
        }
    }

    fn percent(reading: &Reading<CoreShare>) -> f64 {
        reading.value().unwrap().percent()
    }

    #[test]
    fn machine_rates_by_hand() {
        // 3 s of CPU and 1 s of disk work in 2 s; the volunteer had half a core of it.
        let volunteer = Reading::Value(CoreShare::clamped(50.0));
        let sample = machine(Some(&raw(0, 0)), &raw(3_000_000_000, 1_000), &volunteer, 2.0);
        assert!((percent(&sample.cpu_busy) - 150.0).abs() < 1e-9);
        assert!((percent(&sample.cpu_foreground) - 100.0).abs() < 1e-9);
        assert_eq!(sample.disks[0].utilisation, Reading::Value(Fraction::clamped(0.5)));
        assert_eq!(sample.disks[0].write, Reading::Value(BytesPerSec::clamped(50_000.0)));
        assert_eq!(sample.memory_bandwidth, Reading::Value(BytesPerSec::clamped(5_000.0)));
        let rest = remainder(&sample, &Reading::Value(Bytes(100)));
        assert_eq!(rest.memory, Reading::Value(Bytes(500)));
        assert!((percent(&rest.cpu) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn workloads_cannot_use_more_than_there_is() {
        let volunteer = Reading::Value(CoreShare::ZERO);
        let sample = machine(Some(&raw(0, 0)), &raw(3_000_000_000, 1_000), &volunteer, 2.0);
        let rest = remainder(&sample, &Reading::Value(Bytes(0)));
        assert_eq!(implausible(&sample, &[rest.clone(), rest.clone()]), None, "300 % of 400 %");
        let three = [rest.clone(), rest.clone(), rest];
        assert!(implausible(&sample, &three).unwrap().detail().contains("450 % of 400 %"));
    }

    #[test]
    fn first_sample_counter_back_and_vanished() {
        let kind = |reading: &Reading<CoreShare>| match reading {
            Reading::Absent(absence) => absence.kind,
            Reading::Value(value) => panic!("{value:?}"),
        };
        assert_eq!(kind(&cpu(None, &Reading::Value(5), 1.0)), AbsenceKind::NotYet);
        assert_eq!(kind(&cpu(Some(&Reading::Value(9)), &Reading::Value(5), 1.0)), AbsenceKind::WentBack);
        let gone = Reading::absent(AbsenceKind::Vanished, "test");
        assert_eq!(kind(&cpu(Some(&Reading::Value(9)), &gone, 1.0)), AbsenceKind::Vanished);
        assert_eq!(kind(&cpu(Some(&gone), &Reading::Value(9), 1.0)), AbsenceKind::NotYet);
        assert_eq!(kind(&cpu(Some(&Reading::Value(5)), &Reading::Value(9), 0.0)), AbsenceKind::NotYet);
    }

    proptest::proptest! {
        #[test]
        fn any_two_counters_give_a_sane_share(before in 0..u64::MAX, now in 0..u64::MAX, interval_s in 0.001..1e6f64) {
            let share = cpu(Some(&Reading::Value(before)), &Reading::Value(now), interval_s);
            proptest::prop_assert_eq!(share.value().is_some(), now >= before);
        }
    }
}
