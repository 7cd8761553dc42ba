//! Levers: whatever on a host can be read, set, read back and put back. In: what sensing knows of a workload
//! ([`crate::facts`]). Out: the levers it has ([`catalogue`]), and what each should be under limits. One file per
//! interface, each with an `impl` of [`lever::Lever`]. Called by [`crate::act`].

mod affinity;
pub mod catalogue;
pub mod cgroup;
pub mod domain;
pub mod domain_disk;
pub mod domain_most;
mod error;
pub mod headroom;
pub mod in_force;
pub mod ioband;
pub mod ioband_table;
pub mod lever;
pub mod link;
pub mod monitor;
pub mod offer;
pub mod place;
pub mod plan;
pub mod process;
pub mod resctrl;
pub mod role;
pub mod scale;
mod value;

pub use affinity::AffinityLever;
pub(crate) use catalogue::is_known;
pub use catalogue::{AnyLever, WorkloadLevers};
pub use cgroup::{CgroupFile, CgroupLever};
pub use domain::{DomainKind, DomainLever};
pub use domain_disk::DomainDiskLever;
pub use domain_most::DomainMostLever;
pub use error::{Fault, LeverError};
pub use ioband::IobandLever;
pub use ioband_table::IobandPolicy;
pub use lever::Lever;
pub use link::LinkLever;
pub use monitor::{MonitorKind, MonitorLever};
pub use process::ProcessLever;
pub use resctrl::ResctrlLever;
pub use role::Role;
pub use value::{LeverValue, QUOTA_LEAST_US, Throttle};
