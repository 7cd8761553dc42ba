//! Limits on levers that are plain files and keep any value: states that no real kernel produces on request.

use super::*;
use crate::hierarchies::CgroupVersion;

/// A state folder and a workload's cgroup.
struct Plain {
    root: tempfile::TempDir,
}

impl Plain {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("guest")).unwrap();
        let plain = Self { root };
        plain.write("cpu.max", "max 100000");
        plain.write("cpu.weight", "100");
        plain
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join("guest").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn settings(&self) -> ActSettings {
        let observing = ActSettings::observing(self.root.path().join("state"));
        // Its files are on no file system of cgroups.
        let roots = Roots { root: self.root.path().to_owned(), ..Roots::default() };
        ActSettings { acting: true, volunteer: VolunteerChoice::None, roots, ..observing }
    }

    fn lever(&self, kind: CgroupFile) -> AnyLever {
        AnyLever::new(&self.root.path().join("guest"), CgroupVersion::V2, kind)
    }

    fn workload(&self) -> WorkloadLevers {
        let levers = [(Role::Quota, CgroupFile::Quota), (Role::Weight, CgroupFile::Weight)];
        let levers = levers.map(|(role, kind)| (role, self.lever(kind))).to_vec();
        WorkloadLevers { cgroups: vec![self.root.path().join("guest")], levers, ..WorkloadLevers::default() }
    }

    fn actor(&self) -> (Actor, RestoreReport) {
        let (mut actor, restored) = Actor::open(self.settings(), &Hierarchies::default()).unwrap();
        actor.set_workloads(BTreeMap::from([(guest(), self.workload())]));
        (actor, restored)
    }

    /// What an earlier run left of a weight of 50, behind a file that cannot be read now.
    fn leave_a_weight_that_cannot_be_put_back(&self) {
        let mut ledger = Ledger::open(&self.settings().state_dir).unwrap();
        let change = [(self.lever(CgroupFile::Weight), LeverValue::Weight(100), LeverValue::Weight(50))];
        ledger.about_to_set(&Target::Workload(guest()), &change).unwrap();
        fs::remove_file(self.file("cpu.weight")).unwrap();
        fs::create_dir(self.file("cpu.weight")).unwrap();
    }

    fn let_it_be_put_back(&self) {
        fs::remove_dir(self.file("cpu.weight")).unwrap();
        self.write("cpu.weight", "50");
    }
}

#[test]
fn what_an_earlier_run_left_is_put_back_as_soon_as_it_can_be() {
    let plain = Plain::new();
    plain.leave_a_weight_that_cannot_be_put_back();
    let (mut actor, restored) = plain.actor();
    assert_eq!((restored.failed.len(), actor.levers_changed()), (1, 1), "{restored:?}");
    // The workload need not be there: its name may be another now.
    actor.set_workloads(BTreeMap::new());
    let events = actor.tick(NOW);
    assert!(matches!(events.as_slice(), [Event::RestoreFailed { .. }]), "{events:?}");
    assert!(actor.tick(NOW).is_empty(), "reported once");

    plain.let_it_be_put_back();
    assert!(actor.tick(NOW).is_empty());
    assert_eq!((plain.read("cpu.weight").as_str(), actor.levers_changed()), ("100", 0));
    assert!(actor.targets.is_empty());
}

#[test]
fn what_was_left_is_not_taken_for_what_was_found() {
    let plain = Plain::new();
    plain.leave_a_weight_that_cannot_be_put_back();
    let (mut actor, _) = plain.actor();
    plain.let_it_be_put_back();
    // Before the first tick: nothing asked of the weight puts it back.
    assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, None), NOW)), None);
    assert_eq!((plain.read("cpu.weight").as_str(), plain.read("cpu.max").as_str()), ("100", "50000 100000"));
    assert!(actor.restore_all().failed.is_empty());
    assert_eq!((plain.read("cpu.weight").as_str(), plain.read("cpu.max").as_str()), ("100", "max 100000"));
}

#[test]
fn a_floor_that_is_raised_puts_back_what_is_below_it() {
    let plain = Plain::new();
    let (mut actor, _) = plain.actor();
    assert_eq!(refusal_of(&actor.apply(&limit(1, 30.0, None), NOW)), None);
    let raised = |percent| ActSettings { foreground_quota_floor: share(percent), ..plain.settings() };
    actor.set_settings(&raised(30.0));
    assert_eq!(plain.read("cpu.max"), "30000 100000");
    actor.set_settings(&raised(40.0));
    assert_eq!((plain.read("cpu.max").as_str(), actor.leases()), ("max 100000", 0));
    assert_eq!(refusal_of(&actor.apply(&limit(1, 30.0, None), NOW)), Some(Refusal::Forbidden), "not renewed");
}

#[test]
fn a_limit_ends_when_another_workload_comes_into_its_cgroup() {
    let plain = Plain::new();
    let (mut actor, _) = plain.actor();
    assert_eq!(refusal_of(&actor.apply(&limit(1, 30.0, None), NOW)), None);
    let elsewhere = WorkloadLevers { cgroups: vec![plain.root.path().join("other")], ..WorkloadLevers::default() };
    let with = |other: WorkloadLevers| {
        BTreeMap::from([(guest(), plain.workload()), (WorkloadId::new("other").unwrap(), other)])
    };
    actor.set_workloads(with(elsewhere));
    assert_eq!(plain.read("cpu.max"), "30000 100000");
    actor.set_workloads(with(plain.workload()));
    assert_eq!((plain.read("cpu.max").as_str(), actor.leases()), ("max 100000", 0));
    let refused = actor.apply(&limit(1, 30.0, None), NOW);
    assert_eq!(refusal_of(&refused), Some(Refusal::Forbidden), "not renewed: {refused:?}");
}

#[test]
fn a_limit_ends_when_another_domain_has_the_name_and_the_levers() {
    let plain = Plain::new();
    let (mut actor, _) = plain.actor();
    let of = |uuid: &str| {
        let levers = WorkloadLevers { domain: Some(uuid.to_owned()), ..plain.workload() };
        BTreeMap::from([(guest(), levers)])
    };
    actor.set_workloads(of("u"));
    assert_eq!(refusal_of(&actor.apply(&limit(1, 30.0, None), NOW)), None);
    actor.set_workloads(of("u"));
    assert_eq!((plain.read("cpu.max").as_str(), actor.leases()), ("30000 100000", 1), "the same domain");
    actor.set_workloads(of("v"));
    assert_eq!((plain.read("cpu.max").as_str(), actor.leases(), actor.levers_changed()), ("max 100000", 0, 0));
    assert_eq!(refusal_of(&actor.apply(&limit(1, 40.0, None), NOW)), None, "nobody has commanded it yet");
}

#[test]
fn a_lease_is_as_long_as_the_host_allows_and_no_longer() {
    let plain = Plain::new();
    let (mut actor, _) = plain.actor();
    let longest = u32::try_from(plain.settings().longest_lease.as_millis()).unwrap();
    let of = |number, lease_ms| Command { lease_ms, ..limit(number, 50.0, None) };
    assert_eq!(refusal_of(&actor.apply(&of(1, longest + 1), NOW)), Some(Refusal::Forbidden));
    assert_eq!(refusal_of(&actor.apply(&of(1, longest), NOW)), None);
    assert_eq!((actor.leases(), actor.levers_changed(), actor.epoch()), (1, 1, 1));
    assert!(actor.tick(later(u64::from(longest) - 1)).is_empty());
    assert_eq!(plain.read("cpu.max"), "50000 100000");
    let events = actor.tick(later(longest.into()));
    assert!(matches!(events.as_slice(), [Event::LeaseExpired { .. }]), "{events:?}");
    assert_eq!((actor.leases(), actor.levers_changed(), actor.epoch()), (0, 0, 1));
    assert_eq!(plain.read("cpu.max"), "max 100000");
}

#[test]
fn so_many_targets_are_commanded_and_no_more() {
    let plain = Plain::new();
    let (mut actor, _) = plain.actor();
    // All workloads there can be, and the volunteer.
    let most = MAX_WORKLOADS + 1;
    let id = |number: usize| WorkloadId::new(format!("vm-{number}")).unwrap();
    actor.set_workloads((0..=most).map(|number| (id(number), WorkloadLevers::default())).collect());
    let mut release =
        |number| refusal_of(&actor.apply(&command(Target::Workload(id(number)), 1, Desired::Release), NOW));
    for number in 0..most {
        assert_eq!(release(number), None, "{number}");
    }
    assert_eq!(release(most), Some(Refusal::Forbidden));
    assert_eq!(release(7), None, "it is known already");
}
