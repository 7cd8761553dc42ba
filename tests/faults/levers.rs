//! What a power cut may do to the agent's ledger. In: the calls of an agent that limits workloads, and what is left of
//! its state folder. Out: problems.
//!
//! A reboot undoes all limits. Here they survive the cut, which is harsher: each limit that was written by then must be
//! restored from what is left of the record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_agent::act::ledger::{Ledger, LedgerError};
use gleaner_agent::act::{ActSettings, Actor, VolunteerChoice, restore_state_dir_on};
use gleaner_agent::hierarchies::{CgroupVersion, Hierarchies};
use gleaner_agent::levers::{AnyLever, CgroupFile, Role, WorkloadLevers};
use gleaner_agent::roots::Roots;
use gleaner_daemon::clock::Clock;
use gleaner_types::command::{Command, Desired, Limits, Quota, Target, Version, Weight};
use gleaner_types::id::WorkloadId;
use gleaner_types::units::CoreShare;

use crate::power::{Call, Left, Step};

/// Workloads that are limited.
const GUESTS: u64 = 3;
/// Their levers: the role, the kind, the file, and what is found in it.
const LEVERS: [(Role, CgroupFile, &str, &str); 2] = [
    (Role::Quota, CgroupFile::Quota, "cpu.max", "max 100000"),
    (Role::Weight, CgroupFile::Weight, "cpu.weight", "100"),
];
/// Between two commands.
const COMMAND_INTERVAL: Duration = Duration::from_millis(25);
/// One in five commands takes the limits away again.
const TURNS_PER_RELEASE: u64 = 5;
/// Some leases end before the next command for the same workload.
const LEASE_MS: u32 = 60;

/// The workloads' cgroups, as plain files, in a folder that stands for the machine.
#[derive(Debug, Clone)]
pub(crate) struct Levers {
    machine: PathBuf,
}

impl Levers {
    pub(crate) fn new(dir: &str) -> Self {
        Self { machine: Path::new(dir).join("machine") }
    }

    fn guest(&self, number: u64) -> PathBuf {
        self.machine.join(format!("guest{number}"))
    }

    /// Every lever's file, and what was found in it.
    fn originals(&self) -> BTreeMap<String, String> {
        let files = |number| LEVERS.map(|(_, _, file, found)| (self.guest(number).join(file), found));
        (0..GUESTS).flat_map(files).map(|(file, found)| (file.display().to_string(), found.to_owned())).collect()
    }

    /// Makes all levers as they are found.
    pub(crate) fn make(&self) {
        (0..GUESTS).for_each(|number| std::fs::create_dir_all(self.guest(number)).unwrap());
        self.originals().iter().for_each(|(file, found)| std::fs::write(file, found).unwrap());
    }

    fn workloads(&self) -> BTreeMap<WorkloadId, WorkloadLevers> {
        let one = |number| {
            let guest = self.guest(number);
            let levers = LEVERS.map(|(role, kind, ..)| (role, AnyLever::new(&guest, CgroupVersion::V2, kind)));
            let levers = WorkloadLevers { cgroups: vec![guest], levers: levers.to_vec(), ..WorkloadLevers::default() };
            (name(number), levers)
        };
        (0..GUESTS).map(one).collect()
    }

    /// Limits the workloads now so, now so, as an agent with this state folder, until the process is ended.
    pub(crate) fn act(&self, state: &Path) {
        let roots = Roots { root: self.machine.clone(), ..Roots::default() };
        let observing = ActSettings::observing(state.to_owned());
        let settings = ActSettings { acting: true, volunteer: VolunteerChoice::None, roots, ..observing };
        let (mut actor, _) = Actor::open(settings, &Hierarchies::default()).unwrap();
        assert_eq!(actor.refused(), None, "what a cut leaves is no broken record");
        actor.set_workloads(self.workloads());
        let clock = Clock::start();
        let epoch = clock.now().0;
        for turn in 1_u64.. {
            let quota = Quota::AtMost(CoreShare::clamped(20.0 + (turn % 60) as f64));
            let weight = Weight::new(50 + u32::try_from(turn % 40).unwrap()).ok();
            let desired = match turn % TURNS_PER_RELEASE {
                0 => Desired::Release,
                _ => Desired::Limit(Limits { quota, weight, ..Limits::NONE }),
            };
            let target = Target::Workload(name(turn % GUESTS));
            let command = Command { target, version: Version { epoch, number: turn }, lease_ms: LEASE_MS, desired };
            actor.apply(&command, clock.now());
            actor.tick(clock.now());
            std::thread::sleep(COMMAND_INTERVAL);
        }
    }

    /// What the levers held at a moment. A write that had begun counts.
    pub(crate) fn at(&self, calls: &[Call], now: u64) -> BTreeMap<String, String> {
        let mut held = self.originals();
        for call in calls.iter().take_while(|call| call.start <= now) {
            if let (Step::Wrote { bytes, .. }, Some(value)) = (&call.step, held.get_mut(&call.path)) {
                *value = String::from_utf8_lossy(bytes).trim().to_owned();
            }
        }
        held
    }

    /// Some of these values are not those that were found.
    pub(crate) fn are_changed(&self, held: &BTreeMap<String, String>) -> bool {
        *held != self.originals()
    }

    /// Puts the levers back with what is left of the state folder, in a folder for that. The problems there are.
    pub(crate) fn check(&self, held: &BTreeMap<String, String>, state: &str, left: &Left, copy: &Path) -> Vec<String> {
        let ledger = left.get(&format!("{state}/ledger.json")).cloned().flatten();
        let begin = |content: Option<&[u8]>| {
            _ = std::fs::remove_dir_all(copy);
            std::fs::create_dir(copy).unwrap();
            if let Some(content) = content {
                std::fs::write(copy.join("ledger.json"), content).unwrap();
            }
        };
        let mut problems = Vec::new();
        // A record of which a part is missing, which no cut may leave, is refused and not begun anew.
        if let Some(whole) = &ledger {
            begin(Some(&whole[..whole.len() / 2]));
            match Ledger::open_on(copy, &self.machine) {
                Err(LedgerError::Broken { .. }) => {}
                other => problems.push(format!("half a ledger is not refused: {other:?}")),
            }
        }
        begin(ledger.as_deref());
        held.iter().for_each(|(file, value)| std::fs::write(file, value).unwrap());
        match restore_state_dir_on(copy, &self.machine) {
            Ok(report) if report.failed.is_empty() => {}
            Ok(report) => problems.push(format!("levers cannot be put back: {:?}", report.failed)),
            Err(error) => problems.push(format!("the ledger is refused: {error:?}")),
        }
        for (file, found) in self.originals() {
            let now = std::fs::read_to_string(&file).unwrap();
            if now.trim() != found {
                problems.push(format!("{file} was written and is not on record: it stays at {}", now.trim()));
            }
        }
        problems
    }
}

fn name(number: u64) -> WorkloadId {
    WorkloadId::new(format!("guest{number}")).unwrap()
}
