//! What workloads are called, in version 2. In: domain types. Out: their schemas, and back. Called by `v2`.

use gleaner_types::guest;
use gleaner_types::guest::Manager;

use super::variant::{Code, codes};
use crate::message;
use crate::schema::{Block, List, appended, schema};

codes! {
    Manager, "manager of guests" {
        1 = Openstack, 2 = Libvirt, 3 = Proxmox, 4 = Qemu, 5 = Xen, 6 = Systemd, 7 = Cgroup,
    }
}

schema! {
    GuestName<'a> = guest::GuestName {
        workload: &'a str,
        manager: Code,
        name: &'a str,
        title: Option<&'a str>,
        instance: Option<&'a str>,
        uuid: Option<&'a str>,
        pid: Option<u32>,
    }
}
schema! {
    /// What the workloads of a host are called.
    GuestNames<'a> = message::GuestNames { guests: List<Block<'a, GuestName<'a>>> } lacks { unmatched: Vec::new() }
}
appended! {
    /// What was appended to the names.
    GuestNamesAppended<'a> = message::GuestNames { unmatched: List<&'a str> }
}
