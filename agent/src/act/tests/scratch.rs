//! Scratch space with a quota, on a real file system that keeps quotas of projects.

use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gleaner_planner::disk_floor::DiskFloorSettings;
use gleaner_types::units::Fraction;
use rustix::fs::statvfs;

use super::*;
use crate::guard::DiskWatchSettings;
use crate::levers::ScratchLever;
use crate::project_quota::{self, Project};

const MIB: u64 = 1 << 20;
/// What stays free of each file system.
const FLOOR: u64 = 12 * MIB;
const INODES_FLOOR: u64 = 100;
const THEIRS: Project = Project { id: 77, inherited: true };

/// Of 64 MiB and some 1,000 inodes; unmounted with the value.
struct WithQuotas(tempfile::TempDir);

impl WithQuotas {
    /// `None`, said, where there are none.
    fn mount(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
        fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        fs::create_dir(&mount).unwrap();
        let run = |command: &mut Process| command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        let options = "-q -t ext4 -N 1000 -m 0 -O quota,project -E quotatype=prjquota".split(' ');
        let made = run(Process::new("mke2fs").args(options).arg(&image));
        let mounted =
            made && run(Process::new("mount").args(["-t", "ext4", "-o", "loop,prjquota"]).args([&image, &mount]));
        if !mounted {
            gleaner_test_support::skipped!("{test}: no file system with quotas of projects can be mounted");
            return None;
        }
        Some(Self(dir))
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("mnt")
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.root().join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        // So that whoever runs the tasks may come there.
        fs::set_permissions(self.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }
}

impl Drop for WithQuotas {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg(self.root()).status();
    }
}

fn free(path: &Path) -> (u64, u64) {
    let found = statvfs(path).unwrap();
    (found.f_bavail * found.f_frsize, found.f_ffree)
}

fn project(path: &Path) -> Project {
    project_quota::project(&project_quota::open(path).unwrap()).unwrap()
}

fn limits_of(folder: &Path) -> (u64, u64) {
    let quota = project_quota::quota(&project_quota::open(folder).unwrap(), project(folder).id).unwrap();
    (quota.space_kib << 10, quota.inodes)
}

/// The least that was free, as read without a pause from its start on.
struct Least {
    space: AtomicU64,
    inodes: AtomicU64,
    ended: AtomicBool,
}

impl Least {
    fn watch(path: PathBuf) -> Arc<Self> {
        let [space, inodes] = [u64::MAX; 2].map(AtomicU64::new);
        let least = Arc::new(Self { space, inodes, ended: AtomicBool::new(false) });
        let watching = Arc::clone(&least);
        thread::spawn(move || {
            while !watching.ended.load(Ordering::Relaxed) {
                let (space, inodes) = free(&path);
                watching.space.fetch_min(space, Ordering::Relaxed);
                watching.inodes.fetch_min(inodes, Ordering::Relaxed);
            }
        });
        least
    }

    fn end(&self) -> (u64, u64) {
        self.ended.store(true, Ordering::Relaxed);
        (self.space.load(Ordering::Relaxed), self.inodes.load(Ordering::Relaxed))
    }
}

/// A task of a user without rights, in the volunteer.
fn task(actor: &Actor, command: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut task = Process::new("sh");
    task.args(["-c", &format!("read go; {command}")]).uid(65_534).gid(65_534);
    let mut child = task.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for file in procs_files(actor.volunteer_kind()) {
        fs::write(file, child.id().to_string()).unwrap();
    }
    drop(child.stdin.take());
    child
}

/// What a task says that ends by itself.
fn said(mut task: Child) -> String {
    eventually("the task has ended", || task.try_wait().unwrap().is_some());
    let output = task.wait_with_output().unwrap();
    [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
}

#[test]
fn a_task_that_fills_scratch_space_with_a_quota_never_goes_below_the_floor() {
    let test = "a_task_that_fills_scratch_space_with_a_quota_never_goes_below_the_floor";
    let Some(disk) = WithQuotas::mount(test) else { return };
    let Some(scene) = Scene::open(test) else { return };
    let (root, scratch) = (disk.root(), disk.folder("scratch"));
    let (theirs, full) = (disk.folder("theirs"), disk.folder("full"));
    project_quota::set_project(&project_quota::open(&theirs).unwrap(), THEIRS).unwrap();
    fs::write(full.join("table"), "of a database").unwrap();
    let floor = DiskFloorSettings { share: Fraction::clamped(0.5), most: Bytes(FLOOR), inodes: Fraction::clamped(0.1) };
    let folders = [&root, &scratch, &theirs, &full].map(PathBuf::clone).to_vec();
    let settings = ActSettings { disks: DiskWatchSettings { floor, folders }, ..scene.settings() };
    let (mut actor, _) = Actor::open(settings.clone(), &scene.hierarchies).unwrap();
    let weaknesses = actor.levers().weaknesses.join("\n");
    for (folder, why) in [
        (&root, "it is the root of its file system"),
        (&theirs, "somebody else's (project 77)"),
        (&full, "`table` is in it"),
    ] {
        let sentence = format!("scratch space in `{}` is only watched, because", folder.display());
        assert!(weaknesses.contains(&sentence) && weaknesses.contains(why), "{why} in {weaknesses}");
    }
    assert!(!weaknesses.contains(&scratch.display().to_string()), "{weaknesses}");
    assert!(project(&scratch).inherited && project(&scratch).id != 0);
    assert_eq!((project(&theirs), project(&full)), (THEIRS, Project::default()), "left alone");

    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    // The foreground takes some, which lowers the limit.
    let before = limits_of(&scratch);
    fs::write(root.join("foreground"), vec![1; 8 << 20]).unwrap();
    eventually("the limit is lowered", || limits_of(&scratch).0 + 7 * MIB < before.0);

    let least = Least::watch(root.clone());
    let shown = scratch.display();
    let files = said(task(&actor, &format!("i=0; while : >{shown}/$i; do i=$((i+1)); done")));
    assert!(files.contains("quota"), "{files}");
    let (_, inodes) = free(&root);
    assert!((INODES_FLOOR..2 * INODES_FLOOR).contains(&inodes), "{inodes}: it has what is above the floor");
    said(task(&actor, &format!("rm -f {shown}/*")));
    let bytes = said(task(&actor, &format!("dd if=/dev/zero of={shown}/big bs=256k")));
    assert!(bytes.contains("quota"), "{bytes}");
    let (space, _) = free(&root);
    let (least_space, least_inodes) = least.end();
    eprintln!(
        "{test}: {space} bytes are left, never less than {least_space}, of which {FLOOR} are kept free, and never less than \
         {least_inodes} inodes of {INODES_FLOOR}"
    );
    assert!(least_space >= FLOOR && least_inodes >= INODES_FLOOR, "{least_space} bytes, {least_inodes} inodes");
    assert!(space < FLOOR + 4 * MIB, "{space}: it has what is above the floor");
    assert_eq!(
        actor.guard_status().unwrap().held,
        None,
        "nothing is short, also not as the kernel tells it within the folder"
    );

    // What the foreground takes beyond is seen as ever.
    fs::write(root.join("more"), vec![1; 4 << 20]).unwrap();
    eventually("it is held", || actor.guard_status().unwrap().held.is_some());

    let report = actor.restore_all();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    let lever = AnyLever::Scratch(ScratchLever { folder: scratch.clone() });
    assert_eq!(lever.read().unwrap(), ScratchLever::none());
    assert_eq!((project(&scratch), project(&theirs)), (Project::default(), THEIRS));
    fs::write(scratch.join("after"), vec![1; 64 << 10]).unwrap();
    assert_eq!(project(&scratch.join("after")), Project::default());
    drop(actor);
    assert!(Ledger::open(scene.state.path()).unwrap().contents().is_empty());

    // Killed, it leaves the folder marked, which the next one puts back and takes again. What is of no project stands in the way.
    let (actor, _) = Actor::open(settings.clone(), &scene.hierarchies).unwrap();
    assert!(actor.levers().weaknesses.join("\n").contains("`after` is in it"), "{:?}", actor.levers());
    drop(actor);
    fs::remove_file(scratch.join("after")).unwrap();
    let (actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
    assert!(project(&scratch).inherited, "what tasks have left is of the project, and so no obstacle");
    drop(actor);
    assert!(project(&scratch).inherited, "as after a kill");
    // Somebody else takes the folder: it is theirs.
    project_quota::set_project(&project_quota::open(&scratch).unwrap(), THEIRS).unwrap();
    let report = restore_state_dir(scene.state.path()).unwrap();
    assert!(report.foreign.len() == 1 && report.failed.is_empty(), "{report:?}");
    assert_eq!(project(&scratch), THEIRS);
}
