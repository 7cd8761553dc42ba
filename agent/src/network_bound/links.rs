//! The links that the volunteer shares with the foreground: which they are, what they can carry, and what has crossed
//! them. In: sysfs (`class/net`) and what the config says. Out: a capacity and two counters. Called by `network_bound`.

use std::path::Path;

use gleaner_planner::network_bound::Directions;
use gleaner_types::report::Absence;
use gleaner_types::units::BytesPerSec;

use super::error::LinkError;
use crate::kernel_file::{names, read_short};
use crate::sense::machine::InterfaceReader;

/// Which links there are, as the config has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LinkChoice {
    /// Their names; none for every hardware interface with a carrier and a known speed.
    pub names: Vec<String>,
    /// What each can carry in one direction, in place of what the kernel says.
    pub capacity: Option<BytesPerSec>,
}

/// The links with a carrier.
#[derive(Debug)]
pub(super) struct Links {
    links: Vec<(String, InterfaceReader)>,
    capacity: BytesPerSec,
}

impl Links {
    /// Finds them.
    ///
    /// # Errors
    /// [`LinkError`]: why there are none, with what to do.
    pub(super) fn find(sys: &Path, choice: &LinkChoice) -> Result<Self, LinkError> {
        let folder = sys.join("class/net");
        let text = |name: &str, file: &str| read_short(&folder.join(name).join(file)).ok();
        let carries = |name: &str| text(name, "carrier").is_some_and(|text| text.trim() == "1");
        // In Mbit/s; -1 where it is not known.
        let speed = |name: &str| text(name, "speed")?.trim().parse::<f64>().ok().filter(|mbit| *mbit > 0.0);
        let capacity = |name: &str| choice.capacity.or_else(|| speed(name).map(of_mbit));
        let all = match choice.names.is_empty() {
            true => names(&folder).into_iter().filter(|name| folder.join(name).join("device").exists()).collect(),
            false => choice.names.clone(),
        };
        let mut found = Self { links: Vec::new(), capacity: BytesPerSec::clamped(f64::MAX) };
        for name in all {
            if !choice.names.is_empty() && !folder.join(&name).exists() {
                return Err(LinkError::NoInterface(name));
            }
            if !carries(&name) {
                continue;
            }
            match capacity(&name) {
                Some(capacity) => found.capacity = found.capacity.min(capacity),
                None if choice.names.is_empty() => continue,
                None => return Err(LinkError::UnknownSpeed(name)),
            }
            let reader = InterfaceReader::new(sys, &name);
            found.links.push((name, reader));
        }
        match found.links.is_empty() {
            true if choice.names.is_empty() => Err(LinkError::NoHardware),
            true => Err(LinkError::NoCarrier),
            false => Ok(found),
        }
    }

    /// What they can carry in one direction. Of several links that is the slowest one's: the volunteer's traffic may all
    /// go through any of them.
    pub(super) const fn capacity(&self) -> BytesPerSec {
        self.capacity
    }

    /// Their names.
    pub(super) fn names(&self) -> Vec<&str> {
        self.links.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Bytes that crossed all of them so far.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Directions<u64>, Absence> {
        let mut sum = Directions::<u64>::default();
        for (_, link) in &mut self.links {
            let (received, sent) = link.read(buffer)?;
            sum.received = sum.received.wrapping_add(received);
            sum.sent = sum.sent.wrapping_add(sent);
        }
        Ok(sum)
    }
}

/// Megabits per second in bytes per second.
pub(crate) fn of_mbit(mbit: f64) -> BytesPerSec {
    BytesPerSec::clamped(mbit * 125_000.0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// An interface's files: speed, carrier, whether it is hardware.
    fn interface(sys: &Path, name: &str, speed: &str, carrier: &str, hardware: bool) {
        let folder = sys.join("class/net").join(name);
        fs::create_dir_all(folder.join("statistics")).unwrap();
        fs::write(folder.join("speed"), speed).unwrap();
        fs::write(folder.join("carrier"), carrier).unwrap();
        fs::write(folder.join("statistics/rx_bytes"), "1000\n").unwrap();
        fs::write(folder.join("statistics/tx_bytes"), "20\n").unwrap();
        if hardware {
            fs::create_dir(folder.join("device")).unwrap();
        }
    }

    fn find(sys: &Path, names: &[&str], mbit: Option<f64>) -> Result<(Vec<String>, f64), LinkError> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let found = Links::find(sys, &LinkChoice { names, capacity: mbit.map(of_mbit) })?;
        Ok((found.names().into_iter().map(str::to_owned).collect(), found.capacity().per_sec()))
    }

    #[test]
    fn finds_hardware_with_a_carrier_and_a_speed() {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path();
        assert_eq!(find(sys, &[], None), Err(LinkError::NoHardware));
        interface(sys, "eth0", "1000\n", "1\n", true);
        interface(sys, "eth1", "100\n", "0\n", true);
        interface(sys, "eth2", "10000\n", "1\n", true);
        interface(sys, "eth3", "-1\n", "1\n", true);
        interface(sys, "veth0", "10000\n", "1\n", false);
        // 1,000 Mbit/s are 125 million bytes per second.
        assert_eq!(find(sys, &[], None).unwrap(), (vec!["eth0".into(), "eth2".into()], 125e6), "the slowest counts");
        assert_eq!(find(sys, &[], Some(8.0)).unwrap(), (vec!["eth0".into(), "eth2".into(), "eth3".into()], 1e6));
        assert_eq!(find(sys, &["veth0"], None).unwrap(), (vec!["veth0".into()], 1.25e9));
        assert_eq!(find(sys, &["eth3"], None), Err(LinkError::UnknownSpeed("eth3".into())));
        assert_eq!(find(sys, &["eth1"], None), Err(LinkError::NoCarrier));
        assert_eq!(find(sys, &["eth9"], Some(8.0)), Err(LinkError::NoInterface("eth9".into())));

        let mut links = Links::find(sys, &LinkChoice::default()).unwrap();
        let sum = Directions { sent: 40, received: 2_000 };
        assert_eq!(links.read(&mut Vec::new()).unwrap(), sum);
        fs::write(sys.join("class/net/eth0/statistics/rx_bytes"), "nonsense\n").unwrap();
        assert!(links.read(&mut Vec::new()).is_err());
    }
}
