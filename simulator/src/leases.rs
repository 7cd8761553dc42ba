//! Leases of a cloud over time, and the hosts that it has. In: a recorded trace (see [`crate::traces::leases`]), or a seed. Out: leases and
//! hosts in the order of their times. The reproduction of CHISim plays them.

use crate::random::Random;

/// Seconds of an hour.
const HOUR_S: f64 = 3_600.0;

/// A lease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudLease {
    /// When its user asked for it.
    pub created_s: f64,
    /// When it begins.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
    /// Nodes.
    pub nodes: u32,
}

/// A host comes or goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostChange {
    /// When.
    pub at_s: f64,
    /// Its number, from 0 in the order in which hosts appear.
    pub host: usize,
    /// It comes.
    pub present: bool,
}

/// What happened in a cloud, from second 0 on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CloudTrace {
    /// Leases, in the order of their starts.
    pub leases: Vec<CloudLease>,
    /// Hosts, in the order of times.
    pub hosts: Vec<HostChange>,
    /// How long the trace is.
    pub length_s: f64,
}

impl CloudTrace {
    /// Hosts that it ever has.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.hosts.iter().map(|change| change.host + 1).max().unwrap_or(0)
    }
}

/// Size of a generated cloud.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloudSize {
    /// Hosts.
    pub hosts: u32,
    /// Days.
    pub days: u32,
}

impl CloudSize {
    /// What CHISim simulated: 274 hosts, 119 days.
    pub const PAPER: Self = Self { hosts: 274, days: 119 };
}

/// A cloud of the character of Chameleon's in 2018: two monitors that ask for one node for an hour every third hour, users who ask for one node
/// for a day, and rare users who ask for many for some days. Rates for other numbers of hosts are in proportion.
///
/// The rates are those of the recorded trace, rounded: per day 16 probes of the monitors, 7 leases of one node, 2 of more; of these the
/// number of nodes is log-normal about 10.
#[must_use]
pub fn generate(seed: u64, size: CloudSize) -> CloudTrace {
    let length_s = f64::from(size.days) * 24.0 * HOUR_S;
    let part = f64::from(size.hosts) / f64::from(CloudSize::PAPER.hosts);
    let mut leases = Vec::new();
    for (stream, minute) in [(1, 3.0), (2, 31.0)] {
        let mut random = Random::part(seed, stream);
        for slot in 0..size.days * 8 {
            // A monitor that is down does not ask.
            if random.uniform() < 0.05 {
                continue;
            }
            let start_s = f64::from(slot) * 3.0 * HOUR_S + minute * 60.0;
            leases.push(CloudLease { created_s: start_s, start_s, end_s: start_s + HOUR_S, nodes: 1 });
        }
    }
    for (stream, per_day, many) in [(3, 7.0, false), (4, 2.0, true)] {
        let mut random = Random::part(seed, stream);
        let mut start_s = 0.0;
        loop {
            start_s -= random.uniform().ln() / (per_day * part) * 24.0 * HOUR_S;
            if start_s >= length_s {
                break;
            }
            let nodes =
                if many { (10.0 * random.around_one(1.0)).clamp(2.0, f64::from(size.hosts) / 4.0) } else { 1.0 };
            let hours = if many { 60.0 * random.around_one(1.0) } else { 24.0 };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped above")]
            let nodes = nodes.max(1.0) as u32;
            leases.push(CloudLease { created_s: start_s, start_s, end_s: start_s + hours * HOUR_S, nodes });
        }
    }
    leases.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
    let hosts = (0..size.hosts as usize).map(|host| HostChange { at_s: 0.0, host, present: true }).collect();
    CloudTrace { leases, hosts, length_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_clouds_are_the_seed_s() {
        let trace = generate(1, CloudSize { hosts: 274, days: 30 });
        assert_eq!(trace, generate(1, CloudSize { hosts: 274, days: 30 }));
        assert_ne!(trace, generate(2, CloudSize { hosts: 274, days: 30 }));
        assert_eq!(trace.host_count(), 274);
        assert!(trace.leases.windows(2).all(|pair| pair[0].start_s <= pair[1].start_s));
        assert!(trace.leases.iter().all(|lease| lease.start_s < lease.end_s && lease.nodes >= 1));
        let node_hours: f64 =
            trace.leases.iter().map(|lease| f64::from(lease.nodes) * (lease.end_s - lease.start_s) / HOUR_S).sum();
        let used = node_hours / (274.0 * 30.0 * 24.0);
        assert!((0.1..0.5).contains(&used), "{used}");
    }
}
