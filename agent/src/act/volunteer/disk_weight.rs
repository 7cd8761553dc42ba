//! Whether the volunteer can have the least weight on the disks. In: its cgroup, or where it
//! would be. Out: a sentence for the operator where it cannot. Called by the volunteer and by `gleaner-agent doctor`.

use std::path::Path;

use crate::act::settings::{ActSettings, VolunteerChoice};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::read_short;
use crate::levers::{AnyLever, CgroupFile};

/// Either of them is a weight; which one counts is the disks' scheduler's to say.
pub(in crate::act) const WEIGHTS: [CgroupFile; 2] = [CgroupFile::BfqWeight, CgroupFile::DiskWeight];

/// Why there is no weight. The text completes "because …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDiskWeight {
    /// The hierarchy has none for anybody.
    #[error("no mounted hierarchy has the controller `io`")]
    NoController,
    /// Others would get it too, so the agent does not switch it on.
    #[error(
        "the controller `io` is not switched on for its cgroup, and the agent does not do that for others' cgroups"
    )]
    NotSwitchedOn,
    /// The controller has no such file.
    #[error("the kernel has neither io.cost nor BFQ")]
    NoFile,
    /// The same of version 1, where the first kernels had another scheduler with weights.
    #[error("the kernel has neither BFQ nor CFQ with weights for cgroups of version 1")]
    NoFileOnV1,
}

/// Files of the root of version 1 that schedulers with weights for cgroups have there: BFQ, and CFQ before Linux 5.0. The root
/// itself has no weight.
const ROOT_OF_V1: [&str; 2] = ["blkio.bfq.io_service_bytes", "blkio.leaf_weight"];

impl NoDiskWeight {
    /// It would be in a cgroup with the controller, which can set ceilings without a weight.
    pub(super) const fn has_controller(self) -> bool {
        matches!(self, Self::NoFile | Self::NoFileOnV1)
    }

    /// What that costs and what to do, in a sentence.
    pub(super) fn lacking(self) -> String {
        let enable = match self {
            Self::NoController => "mount version 2 of cgroups with the controller io",
            Self::NotSwitchedOn => {
                "before the agent starts, echo +io >/sys/fs/cgroup/cgroup.subtree_control and the same in each cgroup above \
                 the volunteer's that is there already, or DefaultIOAccounting=yes in systemd's system.conf"
            }
            Self::NoFile => "take a kernel with CONFIG_BLK_CGROUP_IOCOST or CONFIG_BFQ_GROUP_IOSCHED",
            Self::NoFileOnV1 => {
                "load the module bfq before the agent starts (CONFIG_BFQ_GROUP_IOSCHED), and give the disks that scheduler"
            }
        };
        format!(
            "the volunteer has no least weight on the disks, because {self}; it competes for them evenly with the foreground \
             wherever the disk's scheduler does not know the idle I/O class; to have it, {enable}"
        )
    }
}

/// Of a volunteer's cgroup for disks.
pub(super) fn check(io: Option<(&Path, CgroupVersion)>) -> Result<(), NoDiskWeight> {
    let Some((dir, version)) = io else { return Err(NoDiskWeight::NoController) };
    let has = |kind: &CgroupFile| AnyLever::new(dir, version, *kind).exists();
    if WEIGHTS.iter().any(has) {
        return Ok(());
    }
    if version == CgroupVersion::V1 {
        return Err(NoDiskWeight::NoFileOnV1);
    }
    // The controller's own file, whatever else the kernel has.
    Err(if dir.join("io.stat").exists() { NoDiskWeight::NoFile } else { NoDiskWeight::NotSwitchedOn })
}

/// Of a cgroup volunteer that does not exist yet. Nothing is changed.
pub(super) fn foreseen(settings: &ActSettings, hierarchies: &Hierarchies) -> Result<(), NoDiskWeight> {
    if let Some(mount) = hierarchies.v1.get("blkio") {
        let has_weights = ROOT_OF_V1.iter().any(|file| mount.join(file).exists());
        return if has_weights { Ok(()) } else { Err(NoDiskWeight::NoFileOnV1) };
    }
    let Some((mount, true)) = hierarchies.of("io") else { return Err(NoDiskWeight::NoController) };
    let leaf = mount.join(&settings.volunteer_cgroup);
    // The cgroups in between that do not exist yet are the agent's to make, with the controller.
    let there = leaf.ancestors().skip(1).take_while(|dir| dir.starts_with(mount)).filter(|dir| dir.exists());
    match there.into_iter().all(is_switched_on) {
        true => Ok(()),
        false => Err(NoDiskWeight::NotSwitchedOn),
    }
}

/// The children of a cgroup have the controller `io`. What cannot be read counts as that they have not.
fn is_switched_on(dir: &Path) -> bool {
    let text = read_short(&dir.join("cgroup.subtree_control")).unwrap_or_default();
    text.split_whitespace().any(|word| word == "io")
}

/// Of the volunteer that the config asks for.
pub(super) fn foreseen_lack(settings: &ActSettings, hierarchies: &Hierarchies) -> Option<NoDiskWeight> {
    match settings.volunteer {
        VolunteerChoice::Auto | VolunteerChoice::Cgroup => foreseen(settings, hierarchies).err(),
        // What was there before has the controllers that whoever made it chose; process groups have none, which they say.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_cgroup_lacks_is_known_by_its_files() {
        use CgroupVersion::{V1, V2};
        let cases: [(&[&str], CgroupVersion, Result<(), NoDiskWeight>); 9] = [
            (&["io.stat", "io.max", "io.weight"], V2, Ok(())),
            (&["io.stat", "io.bfq.weight"], V2, Ok(())),
            (&["io.stat", "io.max"], V2, Err(NoDiskWeight::NoFile)),
            (&["io.pressure"], V2, Err(NoDiskWeight::NotSwitchedOn)),
            (&[], V2, Err(NoDiskWeight::NotSwitchedOn)),
            (&["blkio.weight"], V1, Ok(())),
            (&["blkio.bfq.weight"], V1, Ok(())),
            (&["blkio.throttle.write_bps_device"], V1, Err(NoDiskWeight::NoFileOnV1)),
            (&[], V1, Err(NoDiskWeight::NoFileOnV1)),
        ];
        for (files, version, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                fs::write(dir.path().join(file), "default 100\n").unwrap();
            }
            assert_eq!(check(Some((dir.path(), version))), expected, "{files:?}");
        }
        assert_eq!(check(None), Err(NoDiskWeight::NoController));
    }

    #[test]
    fn what_a_host_would_lack_is_foreseen_from_the_cgroups_that_are_there() {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("cg");
        fs::create_dir_all(&mount).unwrap();
        let switch = |dir: &str, text: &str| fs::write(mount.join(dir).join("cgroup.subtree_control"), text).unwrap();
        let with = |controllers: &[&str]| Hierarchies {
            v2: Some(mount.clone()),
            v2_controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
            ..Hierarchies::default()
        };
        let observing = ActSettings::observing(root.path().join("state"));
        let settings = ActSettings { volunteer_cgroup: "machine.slice/g/v".to_owned(), ..observing };
        assert_eq!(foreseen(&settings, &with(&["cpu"])), Err(NoDiskWeight::NoController));
        let hierarchies = with(&["cpu", "io"]);
        assert_eq!(foreseen(&settings, &hierarchies), Err(NoDiskWeight::NotSwitchedOn), "no file to read");
        switch("", "cpu memory\n");
        assert_eq!(foreseen(&settings, &hierarchies), Err(NoDiskWeight::NotSwitchedOn));
        switch("", "cpu io memory\n");
        assert_eq!(foreseen(&settings, &hierarchies), Ok(()), "the rest is the agent's to make");
        // One that systemd made on the way hands nothing down.
        fs::create_dir(mount.join("machine.slice")).unwrap();
        switch("machine.slice", "cpu\n");
        assert_eq!(foreseen(&settings, &hierarchies), Err(NoDiskWeight::NotSwitchedOn));
        switch("machine.slice", "io\n");
        assert_eq!(foreseen(&settings, &hierarchies), Ok(()));
        let mut hybrid = with(&[]);
        let blkio = root.path().join("blkio");
        fs::create_dir(&blkio).unwrap();
        hybrid.v1.insert("blkio".to_owned(), blkio.clone());
        fs::write(blkio.join("blkio.throttle.write_bps_device"), "").unwrap();
        assert_eq!(foreseen(&settings, &hybrid), Err(NoDiskWeight::NoFileOnV1));
        fs::write(blkio.join("blkio.bfq.io_service_bytes"), "").unwrap();
        assert_eq!(foreseen(&settings, &hybrid), Ok(()), "version 1 with BFQ");
    }

    #[test]
    fn a_lack_says_why_what_it_costs_and_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let observing = ActSettings::observing(root.path().join("state"));
        let settings = ActSettings { volunteer: VolunteerChoice::Auto, ..observing };
        let said = foreseen_lack(&settings, &Hierarchies::default()).unwrap().lacking();
        assert!(said.contains("because no mounted hierarchy has the controller `io`; it competes"), "{said}");
        let said = NoDiskWeight::NotSwitchedOn.lacking();
        assert!(said.contains("not switched on") && said.contains("echo +io") && said.contains("evenly"), "{said}");
        let groups = ActSettings { volunteer: VolunteerChoice::ProcessGroups, ..settings };
        assert_eq!(foreseen_lack(&groups, &Hierarchies::default()), None);
    }
}
