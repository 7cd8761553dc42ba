//! Counters of virtual disks and interfaces that this domain serves to other domains. In: the block backend's
//! statistics in sysfs, and the network backend's interfaces with those of the emulated cards beside them. Out: counters
//! per domain. Called by `domains`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::protocol::{Disk, Network};

/// Bytes of a sector as the block backend counts.
const SECTOR: u64 = 512;
/// Most devices looked at.
const MOST_DEVICES: usize = 16_384;

/// A counter file that stays open.
#[derive(Debug)]
struct Counter(File);

impl Counter {
    fn open(path: &Path) -> Option<Self> {
        File::open(path).ok().map(Self)
    }

    fn read(&self) -> Option<u64> {
        let mut buffer = [0; 32];
        let length = self.0.read_at(&mut buffer, 0).ok()?;
        std::str::from_utf8(buffer.get(..length)?).ok()?.trim().parse().ok()
    }
}

/// Counters of one domain's devices.
#[derive(Debug, Default)]
struct Devices {
    disks: Vec<[Counter; 4]>,
    interfaces: Vec<[Counter; 2]>,
}

/// The devices of all domains.
#[derive(Debug)]
pub(crate) struct Backends {
    sys: PathBuf,
    of_domains: BTreeMap<u16, Devices>,
}

impl Backends {
    pub(crate) fn new(sys: &Path) -> Self {
        Self { sys: sys.to_owned(), of_domains: BTreeMap::new() }
    }

    /// Looks which devices there are now.
    pub(crate) fn rescan(&mut self) {
        self.of_domains.clear();
        let folder = self.sys.join("bus/xen-backend/devices");
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().take(MOST_DEVICES) {
            let name = entry.file_name();
            let Some((kind, domain, device)) = name.to_str().and_then(parse_name) else { continue };
            let devices = self.of_domains.entry(domain).or_default();
            if kind == "vbd" {
                let statistics = entry.path().join("statistics");
                let counter = |name| Counter::open(&statistics.join(name));
                // One that comes or goes just now is seen at the next look, or no longer.
                if let (Some(a), Some(b), Some(c), Some(d)) =
                    (counter("rd_sect"), counter("wr_sect"), counter("rd_req"), counter("wr_req"))
                {
                    devices.disks.push([a, b, c, d]);
                }
            } else if kind == "vif" {
                let name = name_of(&entry.path()).unwrap_or_else(|| format!("vif{domain}.{device}"));
                // The second is of the card that the device model of an HVM domain emulates.
                for end in ["", "-emu"] {
                    let statistics = self.sys.join(format!("class/net/{name}{end}/statistics"));
                    let counter = |name| Counter::open(&statistics.join(name));
                    if let (Some(receive), Some(transmit)) = (counter("rx_bytes"), counter("tx_bytes")) {
                        devices.interfaces.push([receive, transmit]);
                    }
                }
            }
        }
    }

    /// Sums over a domain's disks; none if it has none here, or one cannot be read.
    pub(crate) fn disk(&self, domain: u16) -> Option<Disk> {
        let disks = &self.of_domains.get(&domain).filter(|devices| !devices.disks.is_empty())?.disks;
        disks.iter().try_fold(Disk::default(), |sum, [read, write, reads, writes]| {
            Some(Disk {
                read_bytes: sum.read_bytes.wrapping_add(read.read()?.wrapping_mul(SECTOR)),
                write_bytes: sum.write_bytes.wrapping_add(write.read()?.wrapping_mul(SECTOR)),
                operations: sum.operations.wrapping_add(reads.read()?).wrapping_add(writes.read()?),
            })
        })
    }

    /// Sums over a domain's interfaces, as it sees them: what the backend sends, it receives.
    pub(crate) fn network(&self, domain: u16) -> Option<Network> {
        let interfaces = &self.of_domains.get(&domain).filter(|devices| !devices.interfaces.is_empty())?.interfaces;
        interfaces.iter().try_fold(Network::default(), |sum, [received, sent]| {
            Some(Network {
                receive_bytes: sum.receive_bytes.wrapping_add(sent.read()?),
                transmit_bytes: sum.transmit_bytes.wrapping_add(received.read()?),
            })
        })
    }
}

/// What the interface of a device is called, which `vifname=` can change.
fn name_of(device: &Path) -> Option<String> {
    fs::read_dir(device.join("net")).ok()?.flatten().find_map(|entry| entry.file_name().into_string().ok())
}

/// "vbd-3-51712" is a disk of domain 3, "vif-3-0" an interface.
fn parse_name(name: &str) -> Option<(&str, u16, u32)> {
    let (kind, rest) = name.split_once('-')?;
    let (domain, device) = rest.split_once('-')?;
    Some((kind, domain.parse().ok()?, device.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn sums_over_devices_as_the_domain_sees_them() {
        let root = tempfile::tempdir().unwrap();
        for disk in ["vbd-3-51712", "vbd-3-51728"] {
            for (name, value) in [("rd_sect", "2\n"), ("wr_sect", "4\n"), ("rd_req", "1\n"), ("wr_req", "3\n")] {
                put(root.path(), &format!("bus/xen-backend/devices/{disk}/statistics/{name}"), value);
            }
        }
        fs::create_dir_all(root.path().join("bus/xen-backend/devices/vif-3-0")).unwrap();
        put(root.path(), "class/net/vif3.0/statistics/rx_bytes", "100\n");
        put(root.path(), "class/net/vif3.0/statistics/tx_bytes", "200\n");
        put(root.path(), "class/net/vif3.0-emu/statistics/rx_bytes", "5\n");
        put(root.path(), "class/net/vif3.0-emu/statistics/tx_bytes", "3\n");
        let mut backends = Backends::new(root.path());
        assert_eq!(backends.disk(3), None, "not looked yet");
        backends.rescan();
        assert_eq!(backends.disk(3), Some(Disk { read_bytes: 2_048, write_bytes: 4_096, operations: 8 }));
        assert_eq!(backends.network(3), Some(Network { receive_bytes: 203, transmit_bytes: 105 }));
        assert_eq!(backends.network(4), None);
        fs::create_dir_all(root.path().join("bus/xen-backend/devices/vif-4-0/net/batch0")).unwrap();
        put(root.path(), "class/net/batch0/statistics/rx_bytes", "7\n");
        put(root.path(), "class/net/batch0/statistics/tx_bytes", "8\n");
        backends.rescan();
        assert_eq!(backends.network(4), Some(Network { receive_bytes: 8, transmit_bytes: 7 }), "under another name");
    }

    #[test]
    fn missing_and_hostile_files_are_no_counters() {
        let root = tempfile::tempdir().unwrap();
        for name in ["vbd", "vbd-x-1", "vbd-99999999-1", "console-3-0", "vif-3-0", "vbd-5-1"] {
            fs::create_dir_all(root.path().join("bus/xen-backend/devices").join(name)).unwrap();
        }
        for name in ["rd_sect", "wr_sect", "rd_req", "wr_req"] {
            put(root.path(), &format!("bus/xen-backend/devices/vbd-6-1/statistics/{name}"), "many\n");
        }
        let mut backends = Backends::new(root.path());
        backends.rescan();
        assert_eq!((backends.disk(5), backends.disk(6), backends.network(3)), (None, None, None));
    }
}
