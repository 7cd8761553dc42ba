//! What the ledger holds, and whether a text is such a ledger. In: the file's text. Out: its contents, or why they
//! cannot be used. Nothing is read or written here but what the paths in it are. Called by the ledger.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gleaner_types::command::Target;
use gleaner_types::format::UnknownFormat;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::act::trust;
use crate::levers::{AnyLever, LeverValue, is_known};

/// Folder of registered process groups.
pub(in crate::act) const REGISTRY: &str = "volunteer";
/// Format that this agent writes. It reads that one: format 1 was never released. A change of what the ledger holds
/// raises it, and [`Contents::understand`] then converts the one before. A new lever does not: [`unknown_lever`].
pub(super) const FORMAT: u32 = 2;

/// What is known of one changed lever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose it is.
    pub target: Target,
    /// The lever. Written as "knob", the word of format 2.
    #[serde(rename = "knob")]
    pub lever: AnyLever,
    /// What was found.
    pub original: LeverValue,
    /// What Gleaner set or was about to set, oldest first. Empty for a lever the guard writes many times a
    /// second, and for one that does not read as it was set: there every value counts as Gleaner's own.
    pub ours: Vec<LeverValue>,
}

impl Record {
    /// Whether a value read from the lever can be Gleaner's doing. A lever of several files, left by a crash between two
    /// of them, holds a part of one value and a part of another.
    #[must_use]
    pub fn is_ours(&self, value: &LeverValue) -> bool {
        let mixed = || {
            let known: Vec<&LeverValue> = self.ours.iter().chain([&self.original]).collect();
            self.lever.is_written_in_parts() && value.is_mixture_of(&known)
        };
        self.ours.is_empty() || self.ours.contains(value) || self.is_of_a_made_group() || mixed()
    }

    /// Of a resctrl group that was not there before: all that it holds is Gleaner's doing, since it is Gleaner's as a whole.
    /// A new one holds the kernel's default until it is written, and a cache that goes offline leaves its schemata.
    fn is_of_a_made_group(&self) -> bool {
        matches!(self.lever, AnyLever::Resctrl(_)) && self.original == LeverValue::Text(String::new())
    }

    /// Why it names a cgroup that cannot be of the disks of a Xen domain: what is in such a one is moved out, and it is removed.
    fn no_group_of_a_domain(&self) -> Option<String> {
        let AnyLever::DomainDisk(lever) = &self.lever else { return None };
        let is_ours = lever.is_in_place();
        (!is_ours).then(|| format!("the cgroup `{}` in it is not one that Gleaner made", lever.group.display()))
    }

    /// Why it names a resctrl group that cannot be Gleaner's.
    fn no_group_of_ours(&self, root: &Path) -> Option<String> {
        let AnyLever::Resctrl(lever) = &self.lever else { return None };
        let group = lever.group();
        if lever.sys() != root.join("sys") {
            return Some(format!("the resctrl group `{}` in it is not of this host's sysfs", group.display()));
        }
        if !self.is_of_a_made_group() {
            return Some(format!("the resctrl group `{}` in it is not one that Gleaner made", group.display()));
        }
        trust::no_resctrl(&group, root)
    }
}

/// Controllers that were switched on for the children of a version 2 cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enabled {
    /// The cgroup.
    pub cgroup: PathBuf,
    /// The controllers.
    pub controllers: Vec<String>,
}

/// What the ledger holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    pub(super) format: u32,
    pub(super) boot_id: String,
    /// Levers.
    pub records: Vec<Record>,
    /// Cgroups made, parents first.
    pub created: Vec<PathBuf>,
    /// Controllers switched on, parents first.
    pub enabled: Vec<Enabled>,
    /// Cgroups of the volunteer: whatever runs in them is Gleaner's to end.
    pub volunteer: Vec<PathBuf>,
    /// Folder of registered process groups, whose members are Gleaner's to end.
    pub registry: Option<PathBuf>,
}

impl Contents {
    /// Nothing is left to restore.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.created.is_empty()
            && self.enabled.is_empty()
            && self.volunteer.is_empty()
            && self.registry.is_none()
    }

    /// The contents that a text of this format stands for.
    ///
    /// # Errors
    /// `InvalidData` with what is wrong with it.
    pub(super) fn understand(text: &str) -> io::Result<Self> {
        let contents: Self = serde_json::from_str(text).map_err(io::Error::from)?;
        if contents.format != FORMAT {
            let message = format!("its format is {}, this agent knows format {FORMAT}", contents.format);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let paths = contents.created.iter().chain(&contents.volunteer).chain(&contents.registry);
        let paths = paths.chain(contents.records.iter().filter_map(|record| record.lever.cgroup()));
        match paths.chain(contents.enabled.iter().map(|enabled| &enabled.cgroup)).find(|path| !path.is_absolute()) {
            None => Ok(contents),
            Some(path) => {
                let message = format!("the path `{}` in it is not absolute", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    /// Why something in the ledger of the state folder `dir` cannot be Gleaner's doing.
    pub(super) fn out_of_place(&self, dir: &Path, root: &Path) -> Option<String> {
        let levers = self.records.iter().filter_map(|record| record.lever.cgroup());
        let cgroups = self.created.iter().chain(&self.volunteer).chain(levers);
        let place = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        let is_own = |path: &Path| {
            path.file_name().is_some_and(|name| name == REGISTRY) && path.parent().and_then(place) == place(dir)
        };
        let registry = self.registry.as_ref().filter(|registry| !is_own(registry));
        registry
            .map(|path| format!("the folder `{}` in it is not `{REGISTRY}` beside it", path.display()))
            .or_else(|| cgroups.into_iter().find_map(|path| trust::no_cgroup(path, root)))
            .or_else(|| {
                // Controllers are switched on at the root of a hierarchy too.
                self.enabled.iter().find_map(|enabled| trust::no_cgroup_or_root(&enabled.cgroup, root))
            })
            .or_else(|| self.records.iter().find_map(|record| record.no_group_of_ours(root)))
            .or_else(|| self.records.iter().find_map(Record::no_group_of_a_domain))
    }
}

/// A ledger that cannot be understood still says that it is of another boot.
pub(super) fn is_of_another_boot(text: &str, boot_id: &str) -> bool {
    let named = text.split_once("\"boot_id\": \"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    named.is_some_and(|named| !named.is_empty() && named != boot_id)
}

/// The name of a lever in a ledger of this format that this agent does not know: a newer agent has it. Without it the
/// rest cannot be restored in order, so nothing of such a ledger is used.
pub(super) fn unknown_lever(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        format: u32,
        records: Vec<NamedRecord>,
    }
    #[derive(Deserialize)]
    struct NamedRecord {
        knob: BTreeMap<String, IgnoredAny>,
    }
    let Named { format, records } = serde_json::from_str(text).ok()?;
    let names = records.into_iter().flat_map(|record| record.knob.into_keys());
    (format == FORMAT).then(|| names.into_iter().find(|name| !is_known(name))).flatten()
}

/// That a newer agent wrote a ledger. Looks only at what no format changes.
pub(super) fn newer(text: &str) -> Option<UnknownFormat> {
    #[derive(Deserialize)]
    struct Common {
        format: u64,
        software: Option<String>,
    }
    let Common { format, software } = serde_json::from_str(text).ok()?;
    let known = u64::from(FORMAT);
    let found = UnknownFormat::unless_within("ledger", known..=known, format, software.as_deref());
    found.err().filter(UnknownFormat::is_newer)
}
