//! What the workloads of a host are called by whoever manages them. Data only. The agent makes it of libvirt's and
//! Proxmox's run-time files, command lines and paths of cgroups; `gleaner guests` and `gleaner top` show it.

use serde::{Deserialize, Serialize};

use crate::id::{GuestText, WorkloadId};

/// Who manages a workload, and so whose words its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manager {
    /// OpenStack's Nova, through libvirt.
    Openstack,
    /// libvirt.
    Libvirt,
    /// Proxmox VE.
    Proxmox,
    /// Whoever started QEMU.
    Qemu,
    /// Xen's tools.
    Xen,
    /// systemd: it is a unit's cgroup.
    Systemd,
    /// Whoever made the cgroup.
    Cgroup,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// What a workload is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestName {
    /// The workload, as reports and commands name it.
    pub workload: WorkloadId,
    /// Whose words these are.
    pub manager: Manager,
    /// Its name, as its operator knows it: of OpenStack the display name.
    pub name: GuestText,
    /// Its title (libvirt).
    pub title: Option<GuestText>,
    /// What its manager tells it by beside the name: Proxmox's VMID, libvirt's name of an OpenStack instance, a cgroup's path.
    pub instance: Option<GuestText>,
    /// Its UUID.
    pub uuid: Option<GuestText>,
    /// The process, of a QEMU guest.
    pub pid: Option<u32>,
}

impl GuestName {
    /// Bytes of its texts.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let more = [&self.title, &self.instance, &self.uuid].into_iter().flatten().map(|text| text.as_str().len());
        self.workload.as_str().len() + self.name.as_str().len() + more.sum::<usize>()
    }
}
