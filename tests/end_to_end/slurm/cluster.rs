//! A real Slurm cluster in a folder, of Debian's packages: munged, slurmctld, a slurmd for each dedicated host and, where asked
//! for, the accounting that Slurm's own fair share takes. Called by the beds of [`super`].

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gleaner_test_support::bench::{Running, text, until};

use super::{DEDICATED, INTERACTIVE};

/// Of the controller, the nodes, the accounting and its database.
const PORTS: usize = 7;
/// CPUs of each node.
const CPUS: u32 = 4;

/// Who says which array goes first, but for Gleaner.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// The first come.
    Submission,
    /// Slurm's fair share between users, counted anew each minute, the shortest period there is. Takes accounting.
    FairShare,
}

/// An array of one user: tasks that sleep for some seconds, and say so at their end.
pub(super) struct Submitted {
    pub(super) user: &'static str,
    tasks: usize,
    pub(super) id: u64,
    at: f64,
}

/// A cluster in a folder. All its daemons are children of this process.
pub(super) struct Slurm {
    folder: tempfile::TempDir,
    order: Order,
    ports: [u16; PORTS],
    daemons: Vec<Running>,
}

pub(super) fn now_s() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

impl Slurm {
    /// What is missing on this machine.
    pub(super) fn missing(order: Order) -> Option<&'static str> {
        let is_root = text(&Command::new("id").arg("-u").output().unwrap().stdout).trim() == "0";
        if !is_root {
            return Some("Slurm's daemons take root");
        }
        let programs =
            ["/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch", "/usr/bin/squeue"];
        let accounting = ["/usr/sbin/slurmdbd", "/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"];
        let accounting = accounting.into_iter().filter(|_| order == Order::FairShare);
        programs.into_iter().chain(accounting).find(|program| !Path::new(program).exists())
    }

    /// Starts the controller and the nodes of dedicated hosts.
    pub(super) fn start(order: Order) -> Self {
        // Its users must be able to come here, and a volunteer has a /tmp of its own.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = folder.path().to_owned();
        for (name, mode) in [("", 0o755), ("munge", 0o755), ("state", 0o755), ("spool", 0o755), ("out", 0o1777)] {
            let folder = dir.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        }
        let listeners = [(); PORTS].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
        let mut slurm = Self { folder, order, ports, daemons: Vec::new() };
        let key = dir.join("munge/key");
        fs::write(&key, "a key that is no secret, of thirty-two bytes or more").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(dir.join("slurm.conf"), slurm.settings()).unwrap();
        let own = |name: &str| format!("{}/munge/{name}", dir.display());
        slurm.daemon(
            "/usr/sbin/munged",
            &[
                "-F",
                &format!("--socket={}", own("socket")),
                &format!("--key-file={}", own("key")),
                &format!("--pid-file={}", own("pid")),
                &format!("--seed-file={}", own("seed")),
                &format!("--log-file={}", own("log")),
            ],
        );
        until("munged is there", || dir.join("munge/socket").exists());
        if order == Order::FairShare {
            slurm.start_accounting();
        }
        slurm.daemon("/usr/sbin/slurmctld", &["-D", "-i"]);
        // Tasks outlive their slurmd, unless it has a namespace of its own.
        let own = ["--pid", "--fork", "--kill-child", "--mount-proc", "/usr/sbin/slurmd", "-D", "-N"];
        for node in DEDICATED {
            slurm.daemon("/usr/bin/unshare", &[&own[..], &[node]].concat());
        }
        until("the dedicated nodes are there", || {
            slurm.ask("sinfo", &["-h", "-N", "-o", "%N %t"]).lines().filter(|line| line.ends_with(" idle")).count() == 2
        });
        slurm
    }

    /// As the docs have it, and quick.
    fn settings(&self) -> String {
        let dir = self.folder.path().display();
        let [port, ports @ .., accounting, _] = self.ports;
        let host = text(&Command::new("uname").arg("-n").output().unwrap().stdout);
        let host = host.trim().split('.').next().unwrap_or_default().to_owned();
        let names: Vec<&str> = DEDICATED.into_iter().chain(INTERACTIVE).collect();
        let nodes: String = names
            .iter()
            .zip(ports)
            .map(|(name, port)| {
                format!("NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=1000\n")
            })
            .collect();
        let order = match self.order {
            Order::Submission => {
                "AccountingStorageType=accounting_storage/none\nPriorityWeightPartition=1000000\n".to_owned()
            }
            Order::FairShare => format!(
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
                 AccountingStoragePass={dir}/munge/socket\n\
                 AccountingStoragePort={accounting}\nPriorityWeightFairshare=1000000\nPriorityCalcPeriod=1\n"
            ),
        };
        format!(
            "ClusterName=bed\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={port}\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket,cred_expire=15\nCredType=cred/munge\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool/%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/%n.pid\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/%n.log\n\
             SlurmdParameters=config_overrides\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             MpiDefault=none\nSwitchType=switch/none\nReturnToService=2\n\
             SlurmdTimeout=20\nMessageTimeout=5\nTCPTimeout=2\nKillWait=2\n\
             {order}PriorityType=priority/multifactor\nSchedulerType=sched/backfill\n\
             SchedulerParameters=sched_interval=1,sched_min_interval=2,batch_sched_delay=0,default_queue_depth=1000,\
             bf_interval=1,bf_max_job_test=1000\n{nodes}PartitionName=all Nodes={} Default=YES MaxTime=INFINITE State=UP\n",
            names.join(",")
        )
    }

    /// The database, slurmdbd, and the three users of the beds as equals in one account.
    fn start_accounting(&mut self) {
        let dir = self.folder.path().to_owned();
        let data = dir.join("data");
        let [.., accounting, database] = self.ports;
        let own = |option: &str| format!("--{option}={}", data.display());
        let made = Command::new("/usr/bin/mariadb-install-db")
            .args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal", &own("datadir")])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        let socket = own("socket") + "/socket";
        self.daemon(
            "/usr/sbin/mariadbd",
            &[
                "--no-defaults",
                "--user=root",
                "--skip-grant-tables",
                "--bind-address=127.0.0.1",
                "--innodb-buffer-pool-size=64M",
                "--innodb-lock-wait-timeout=900",
                &own("datadir"),
                &socket,
                &format!("--port={database}"),
            ],
        );
        let answers = |port: u16| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        until("the database is there", || answers(database));
        let settings = dir.join("slurmdbd.conf");
        let dir = dir.display();
        let text = format!(
            "AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket\nDbdHost=localhost\nDbdAddr=127.0.0.1\n\
             DbdPort={accounting}\nSlurmUser=root\nLogFile={dir}/slurmdbd.log\nPidFile={dir}/slurmdbd.pid\n\
             StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={database}\nStorageUser=root\n\
             StorageLoc=accounting\n"
        );
        fs::write(&settings, text).unwrap();
        fs::set_permissions(&settings, fs::Permissions::from_mode(0o600)).unwrap();
        self.daemon("/usr/sbin/slurmdbd", &["-D"]);
        until("the accounting is there", || answers(accounting));
        self.ask("sacctmgr", &["-i", "add", "cluster", "bed"]);
        self.ask("sacctmgr", &["-i", "add", "account", "users"]);
        for user in ["daemon", "games", "nobody"] {
            self.ask("sacctmgr", &["-i", "add", "user", user, "account=users", "fairshare=1"]);
        }
    }

    /// Where tasks may write.
    pub(super) fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub(super) fn conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        self.daemons.push(Running::start(command));
    }

    pub(super) fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("/usr/bin/".to_owned() + program);
        let output = command.args(arguments).env("SLURM_CONF", self.conf()).current_dir("/").output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Submits an array as a user would.
    pub(super) fn submit(&self, user: &'static str, tasks: usize, task_s: f64, more: &[&str]) -> Submitted {
        let out = self.folder.path().join("out");
        let script = format!(
            "sleep {task_s}; echo $(date +%s.%N) $SLURMD_NODENAME >> {}/$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID",
            out.display()
        );
        let (array, wrap) = (format!("--array=1-{tasks}"), format!("--wrap={script}"));
        let uid = format!("--uid={user}");
        let arguments = ["--parsable", &uid, &array, "--output=/dev/null", "--requeue", "--chdir=/", &wrap];
        let id = self.ask("sbatch", &[&arguments[..], more].concat());
        Submitted { user, tasks, id: id.trim().parse().unwrap(), at: now_s() }
    }

    /// The tasks of an array that have ended: when, and on which node. One may have ended on a host that was lost before Slurm was
    /// told, and once more elsewhere.
    pub(super) fn ended(&self, array: &Submitted) -> Vec<(f64, String)> {
        let mut ended = Vec::new();
        for task in 1..=array.tasks {
            let file = self.folder.path().join(format!("out/{}.{task}", array.id));
            let said = fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
            if let Some(((at, node), before)) = lines.split_last() {
                let lost = before.iter().all(|(_, node)| INTERACTIVE.contains(node));
                assert!(lost, "task {task} of {} ended twice: {said}", array.user);
                ended.push((at.parse().unwrap(), (*node).to_owned()));
            }
        }
        ended
    }

    pub(super) fn is_done(&self, array: &Submitted) -> bool {
        self.ended(array).len() == array.tasks
    }

    /// Seconds from its submission to its last task.
    pub(super) fn took_s(&self, array: &Submitted) -> f64 {
        self.ended(array).iter().map(|(at, _)| at - array.at).fold(0.0, f64::max)
    }

    /// What users' arrays show of Gleaner: bounds and nice values, while tasks wait.
    pub(super) fn bounds(&self) -> String {
        self.ask("squeue", &["-h", "-t", "PD", "-o", "%F %K %y"])
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // The nodes first; each takes its tasks along.
        self.daemons.iter().rev().for_each(|daemon| daemon.kill(daemon.0.id()));
    }
}
