//! The agent's config file. In: raw keys. Out: validated settings, or all problems at once. The defaults are in this
//! file only. Called by the daemon at its start and on a reload, and by `gleaner-agent join`.

mod domains;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_daemon::config::{Key, Problems, Section, Source};
use gleaner_net::tls::IdentityFiles;
use gleaner_net::transport::DEFAULT_PORT;
use gleaner_planner::disk_floor::DiskFloorSettings;
use gleaner_planner::forecast::{ForecastSettings, METHODS, Method};
use gleaner_planner::guard::GuardSettings;
use gleaner_planner::harm::{Budgets, LARGEST_PAUSE_SHARE};
use gleaner_planner::idle_buffer::BufferSize;
use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_planner::reclaim::ReclaimSettings;
use gleaner_types::error::Chain;
use gleaner_types::id::{HostId, WorkloadId};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, MAX_CORES};

pub use self::domains::VolunteerDomains;
use crate::act::{ActSettings, Bound, CacheChoice, VolunteerChoice, VolunteerProgram};
use crate::discover::Glob;
use crate::guard::DiskWatchSettings;
use crate::harm::HarmSettings;
use crate::launch::User;
use crate::network_bound::{LinkChoice, of_mbit};
use crate::roots::Roots;
use crate::sense::SenseSettings;

/// Where the packaged config lies.
pub const DEFAULT_FILE: &str = "/etc/gleaner/agent.toml";

/// Where the agent keeps its record of what it changed, unless the config says otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/gleaner-agent";

/// Keys that a running agent takes over when it reloads its config; every other one needs a restart.
pub const AT_RUN_TIME: &[&str] = &[
    "foreground.floor_percent",
    "foreground.memory_floor_mib",
    "volunteer.kill_after_ms",
    "foreground.harm_budget",
    "foreground.harm_budgets",
    "guard.pause_share",
    "guard.follow_harm",
    "guard.headroom",
    "guard.growth_per_s",
    "guard.open_above",
    "forecast.method",
    "forecast.history_s",
    "forecast.lookahead_s",
    "forecast.risk",
    "forecast.sigma",
    "sense.sample_period_ms",
    "sense.scan_period_s",
];
/// Most aggregators of an agent.
const MOST_AGGREGATORS: usize = 16;

/// A validated config.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the host, as in its certificate.
    pub host: HostId,
    /// Folder of the record of what was changed, and of the registry of process groups.
    pub state_dir: PathBuf,
    /// Tasks of engine `local` are run.
    pub tasks: bool,
    /// Those of root are run too.
    pub tasks_of_root: bool,
    /// Folder of their records, where it is not the state folder's own.
    pub tasks_folder: Option<PathBuf>,
    /// The aggregator; `None` when the file has no `[aggregator]`, which is enough to observe locally.
    pub aggregator: Option<AggregatorConfig>,
    /// Acting is switched on.
    pub act: bool,
    /// No command is accepted that holds longer than this without renewal.
    pub longest_lease: Duration,
    /// The volunteer never gets more CPU than this.
    pub volunteer_ceiling: Option<CoreShare>,
    /// Bounds without which the volunteer is not activated.
    pub required: Vec<Bound>,
    /// Memory of the host that is kept free of the volunteer; `None` is the default share.
    pub volunteer_memory_floor: Option<Bytes>,
    /// What stays free on the file systems that the volunteer can write.
    pub disks: DiskWatchSettings,
    /// What the volunteer may have of the cache and of the memory bandwidth.
    pub volunteer_cache: CacheChoice,
    /// Most processes and threads of the volunteer.
    pub volunteer_processes: u64,
    /// The links that the volunteer's network ceiling is for.
    pub links: LinkChoice,
    /// Silence of the agent's loop after which the keeper kills it and restores the host.
    pub hung_after: Duration,
    /// Globs of cgroups whose processes are foreground.
    pub foreground_cgroups: Vec<String>,
    /// QEMU guests are foreground.
    pub foreground_qemu: bool,
    /// Least CPU a foreground workload may be limited to.
    pub foreground_floor: CoreShare,
    /// What kind of volunteer to set up.
    pub volunteer: VolunteerChoice,
    /// Path of its cgroup below each hierarchy's root.
    pub volunteer_cgroup: String,
    /// Name of the guest or unit that is the volunteer, where it is one.
    pub volunteer_name: String,
    /// The Xen domains that are the volunteer, where it is such.
    pub volunteer_domains: VolunteerDomains,
    /// The least memory that each of them is shrunk to; `None` is what it was found with.
    pub volunteer_memory_least: Option<Bytes>,
    /// The program that is the volunteer; `None` where others start processes in it.
    pub volunteer_program: Option<VolunteerProgram>,
    /// From the freeze of a stopped volunteer until its processes are killed.
    pub kill_after: Duration,
    /// Time between two steps of the guard.
    pub guard_period: Duration,
    /// CPU the guard always leaves free, as a share of the host.
    pub guard_headroom: f64,
    /// How fast the volunteer may grow, as a share of the host per second.
    pub guard_growth: f64,
    /// Share of the host that the foreground must leave for there to be no quota, where the volunteer yields outright.
    pub guard_open_above: f64,
    /// Part of the time in which the volunteer is held still to measure harm; 0 measures none.
    pub pause_share: f64,
    /// The most harm there should be, as a part of the time the foreground's work takes.
    pub harm_budget: f64,
    /// The same of single workloads.
    pub harm_budgets: BTreeMap<WorkloadId, f64>,
    /// The volunteer's disk traffic has a ceiling.
    pub disk_ceiling: bool,
    /// The volunteer is held by the harm it does.
    pub follow_harm: bool,
    /// The kernel is made to choose anew who runs on each CPU.
    pub scheduling_points: bool,
    /// CPUs that are kept free of the volunteer beyond what the foreground uses; `None` keeps none.
    pub idle_buffer: Option<BufferSize>,
    /// Forecast method.
    pub forecast_method: Method,
    /// History the forecast uses, in seconds.
    pub forecast_history_s: f64,
    /// How far the forecast looks ahead, in seconds.
    pub forecast_lookahead_s: f64,
    /// The part of the forecast's promises that may break.
    pub forecast_risk: f64,
    /// Standard deviations between expectation and safe bound, of methods that state no risk.
    pub forecast_sigma: f64,
    /// Time between two samples.
    pub sample_period: Duration,
    /// Time between two scans for workloads, in seconds.
    pub scan_period_s: f64,
    /// The dm-ioband device that divides a disk between guests, in place of `io.max`.
    pub foreground_ioband: Option<String>,
    /// Least memory a foreground workload may be limited to.
    pub memory_floor: Bytes,
    /// Least disk and network traffic a foreground workload may be limited to.
    pub rate_floor: BytesPerSec,
    /// Ask guests' monitors.
    pub monitors: bool,
    /// Try hardware counters.
    pub counters: bool,
    /// Reports kept while the aggregator cannot be reached.
    pub backlog_reports: usize,
    /// TCP address of the metrics; `None` is no listener.
    pub metrics: Option<SocketAddr>,
}

/// How to reach the aggregator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregatorConfig {
    /// `host:port`; of several, one leads and the others stand by. Empty until this host has joined.
    pub addresses: Vec<String>,
    /// The authority's certificate, this host's, and its key.
    pub files: IdentityFiles,
}

impl Config {
    /// Reads and validates a config file.
    ///
    /// # Errors
    /// All [`Problems`] of the file at once.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        Self::from_source(&Source::read(file)?)
    }

    /// Validates a config.
    ///
    /// # Errors
    /// All [`Problems`] at once.
    pub fn from_source(source: &Source) -> Result<Self, Problems> {
        Self::with_keys(source).map(|(config, _)| config)
    }

    /// Validates a config, and tells the keys it may have.
    ///
    /// # Errors
    /// All [`Problems`] at once.
    pub fn with_keys(source: &Source) -> Result<(Self, Vec<Key>), Problems> {
        let document = source.parse();
        let config = Self::from_root(document.root());
        let keys = document.keys();
        Ok((document.finish(config)?, keys))
    }

    /// Takes over from a reloaded config what can change at run time ([`AT_RUN_TIME`]).
    pub fn take_over(&mut self, new: &Self) {
        self.foreground_floor = new.foreground_floor;
        self.memory_floor = new.memory_floor;
        self.kill_after = new.kill_after;
        self.guard_headroom = new.guard_headroom;
        self.guard_growth = new.guard_growth;
        self.guard_open_above = new.guard_open_above;
        self.pause_share = new.pause_share;
        self.harm_budget = new.harm_budget;
        self.harm_budgets.clone_from(&new.harm_budgets);
        self.follow_harm = new.follow_harm;
        self.forecast_method = new.forecast_method;
        self.forecast_history_s = new.forecast_history_s;
        self.forecast_lookahead_s = new.forecast_lookahead_s;
        self.forecast_risk = new.forecast_risk;
        self.forecast_sigma = new.forecast_sigma;
        self.sample_period = new.sample_period;
        self.scan_period_s = new.scan_period_s;
    }

    fn from_root(mut root: Section<'_>) -> Option<Self> {
        let state_dir = root.path("state_dir", DEFAULT_STATE_DIR);
        let host = host_name(root.section("host"));
        let aggregator = root.has("aggregator").then(|| aggregator(root.section("aggregator")));

        let mut act = root.section("act");
        let mut foreground = root.section("foreground");
        let mut volunteer = root.section("volunteer");
        let mut guard = root.section("guard");
        let mut forecast = root.section("forecast");
        let mut sense = root.section("sense");
        let mut tasks = root.section("tasks");
        let words: Vec<(String, Method)> = METHODS.iter().map(|method| (method.config_word(), *method)).collect();
        let forecast_words: Vec<(&str, Method)> = words.iter().map(|(word, method)| (word.as_str(), *method)).collect();
        let history = forecast.number("history_s", 600.0, 5.0..=3600.0);
        let lookahead = forecast.number("lookahead_s", 300.0, 1.0..=3600.0);
        Some(Self {
            state_dir,
            tasks: tasks.flag("enabled", false),
            tasks_of_root: tasks.flag("root", false),
            tasks_folder: tasks.optional_path("folder"),
            act: act.flag("enabled", false),
            longest_lease: Duration::from_secs_f64(act.number("longest_lease_s", 600.0, 10.0..=86_400.0)),
            volunteer_ceiling: act
                .optional_number("volunteer_ceiling_percent", 1.0..=1_000_000.0)
                .map(CoreShare::clamped),
            required: {
                let words = act.words("require", &Bound::ALL.map(Bound::word), &Bound::DEFAULT.map(Bound::word));
                Bound::ALL.into_iter().filter(|bound| words.contains(&bound.word())).collect()
            },
            volunteer_memory_floor: volunteer.optional_integer("memory_floor_mib", 16..=1 << 24).map(Bytes::from_mib),
            disks: disks(&mut volunteer),
            volunteer_cache: cache(&mut volunteer),
            volunteer_processes: volunteer.integer("processes", 4_096, 16..=1 << 22),
            links: links(&mut act),
            hung_after: Duration::from_secs(act.integer("hung_after_s", 20, 5..=3_600)),
            foreground_cgroups: globs(&mut foreground),
            foreground_qemu: foreground.flag("qemu", true),
            foreground_floor: CoreShare::clamped(foreground.number("floor_percent", 10.0, 1.0..=100_000.0)),
            volunteer_name: adopted_name(&mut volunteer),
            volunteer_domains: domains::of(&mut volunteer),
            volunteer_memory_least: volunteer.optional_integer("memory_least_mib", 16..=1 << 24).map(Bytes::from_mib),
            volunteer_program: program(&mut volunteer),
            volunteer: volunteer.choice(
                "kind",
                VolunteerChoice::Auto,
                &[
                    ("auto", VolunteerChoice::Auto),
                    ("cgroup", VolunteerChoice::Cgroup),
                    ("process-groups", VolunteerChoice::ProcessGroups),
                    ("guest", VolunteerChoice::Guest),
                    ("unit", VolunteerChoice::Unit),
                    ("domain", VolunteerChoice::Domain),
                    ("none", VolunteerChoice::None),
                ],
            ),
            volunteer_cgroup: cgroup_path(&mut volunteer),
            kill_after: Duration::from_millis(volunteer.integer("kill_after_ms", 10_000, 0..=3_600_000)),
            guard_period: Duration::from_millis(guard.integer("period_ms", 50, 10..=100)),
            guard_headroom: guard.number("headroom", 0.05, 0.0..=0.9),
            guard_growth: guard.number("growth_per_s", 0.1, 0.001..=0.1),
            guard_open_above: guard.number("open_above", 0.5, 0.5..=1.0),
            pause_share: guard.number("pause_share", 0.03, 0.0..=LARGEST_PAUSE_SHARE),
            harm_budget: foreground.number("harm_budget", 0.01, 0.0001..=0.5),
            harm_budgets: harm_budgets(&mut foreground),
            disk_ceiling: guard.choice("disk_ceiling", false, &[("off", false), ("auto", true)]),
            follow_harm: guard.flag("follow_harm", false),
            scheduling_points: guard.flag("scheduling_points", false),
            idle_buffer: idle_buffer(&mut guard),
            forecast_method: forecast.choice("method", Method::default(), &forecast_words),
            forecast_history_s: history,
            forecast_lookahead_s: lookahead,
            forecast_risk: forecast.percentage("risk", 0.01, 0.001..=0.2),
            forecast_sigma: forecast.number("sigma", 2.0, 0.0..=10.0),
            sample_period: Duration::from_millis(sense.integer("sample_period_ms", 1_000, 100..=60_000)),
            scan_period_s: sense.number("scan_period_s", 5.0, 0.1..=3600.0),
            foreground_ioband: foreground.optional_text("ioband_device"),
            rate_floor: BytesPerSec::clamped(foreground.number("rate_floor_kib", 64.0, 1.0..=1e9) * 1_024.0),
            memory_floor: Bytes::from_mib(foreground.integer("memory_floor_mib", 256, 16..=1 << 24)),
            monitors: sense.flag("monitors", true),
            counters: sense.flag("counters", true),
            backlog_reports: usize::try_from(sense.integer("backlog_reports", 300, 1..=100_000)).ok()?,
            metrics: root.section("metrics").optional_parsed("listen"),
            host: host?,
            aggregator: match aggregator {
                Some(aggregator) => Some(aggregator?),
                None => None,
            },
        })
    }
}

impl Config {
    /// Folder of the records of tasks.
    #[must_use]
    pub fn tasks_folder(&self) -> PathBuf {
        self.tasks_folder.clone().unwrap_or_else(|| self.state_dir.join("tasks"))
    }

    /// What to act on and how.
    #[must_use]
    pub fn act_settings(&self) -> ActSettings {
        ActSettings {
            acting: self.act,
            volunteer: self.volunteer,
            volunteer_cgroup: self.volunteer_cgroup.clone(),
            volunteer_name: self.volunteer_name.clone(),
            volunteer_domains: self.volunteer_domains.names.clone(),
            volunteer_memory_least: self.volunteer_memory_least,
            volunteer_program: self.volunteer_program.clone(),
            kill_after: self.kill_after,
            required: self.required.clone(),
            memory_bound: MemoryBoundSettings { floor: self.volunteer_memory_floor, ..MemoryBoundSettings::default() },
            disks: self.disks.clone(),
            cache: self.volunteer_cache,
            processes_most: self.volunteer_processes,
            longest_lease: self.longest_lease,
            volunteer_ceiling: self.volunteer_ceiling,
            follow_harm: self.follow_harm,
            scheduling_points: self.scheduling_points,
            idle_buffer: self.idle_buffer,
            disk_ceiling: self.disk_ceiling,
            links: self.links.clone(),
            foreground_quota_floor: self.foreground_floor,
            foreground_rate_floor: self.rate_floor,
            reclaim: ReclaimSettings { floor: self.memory_floor, ..ReclaimSettings::default() },
            guard_period: self.guard_period,
            guard: GuardSettings {
                headroom: Fraction::clamped(self.guard_headroom),
                growth_per_s: Fraction::clamped(self.guard_growth),
                open_above: Fraction::clamped(self.guard_open_above),
                ..GuardSettings::default()
            },
            ..ActSettings::observing(self.state_dir.clone())
        }
    }

    /// How to measure harm.
    pub(crate) fn harm_settings(&self) -> HarmSettings {
        let own = self.harm_budgets.iter().map(|(workload, budget)| (workload.clone(), budget * 100.0));
        HarmSettings {
            pause_share: self.pause_share,
            budgets: Budgets { all_percent: self.harm_budget * 100.0, own_percent: own.collect() },
            follow: self.follow_harm,
        }
    }

    /// What to sense.
    #[must_use]
    pub fn sense_settings(&self, roots: Roots) -> SenseSettings {
        SenseSettings {
            roots,
            foreground_cgroups: self.foreground_cgroups.clone(),
            qemu: self.foreground_qemu,
            monitors: self.monitors,
            counters: self.counters,
            scan_period_s: self.scan_period_s,
        }
    }

    /// How to predict.
    #[must_use]
    pub fn forecast_settings(&self) -> ForecastSettings {
        ForecastSettings {
            method: self.forecast_method,
            history_s: self.forecast_history_s,
            lookahead_s: self.forecast_lookahead_s,
            sigma_k: self.forecast_sigma,
            risk: self.forecast_risk,
        }
    }
}

fn host_name(mut section: Section<'_>) -> Option<HostId> {
    if let Some(name) = section.optional_text("name") {
        return HostId::new(name).map_err(|e| section.reject("name", e)).ok();
    }
    match HostId::of_this_machine() {
        Ok(host) => Some(host),
        Err(error) => {
            section.reject("name", format_args!("is missing, and the machine's own name does not serve: {error}"));
            None
        }
    }
}

fn aggregator(mut section: Section<'_>) -> Option<AggregatorConfig> {
    let several = section.has("addresses");
    let addresses = match several {
        true => section.texts("addresses"),
        false => section.optional_text("address").into_iter().collect(),
    };
    if several && section.has("address") {
        section.reject("address", "and `addresses` say the same thing; leave one out");
    }
    let config = AggregatorConfig {
        files: IdentityFiles {
            ca: section.path("ca", "/etc/gleaner/ca.crt"),
            certificate: section.path("certificate", "/etc/gleaner/agent.crt"),
            key: section.path("key", "/etc/gleaner/agent.key"),
        },
        addresses,
    };
    let key = if several { "addresses" } else { "address" };
    if several && !(1..=MOST_AGGREGATORS).contains(&config.addresses.len()) {
        section
            .reject(key, format_args!("has {} entries; it must have 1 to {MOST_AGGREGATORS}", config.addresses.len()));
    }
    let has_port = |address: &&String| {
        address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    if let Some(bad) = config.addresses.iter().find(|address| !has_port(address)) {
        section.reject(key, format_args!("is {bad:?}; it must be HOST:PORT, such as \"10.0.0.5:{DEFAULT_PORT}\""));
        return None;
    }
    Some(config)
}

/// What stays free on disks, and where besides the usual folders.
fn disks(section: &mut Section<'_>) -> DiskWatchSettings {
    let share = |percent: f64| Fraction::clamped(percent / 100.0);
    let floor = DiskFloorSettings {
        share: share(section.number("disk_floor_percent", 5.0, 0.0..=90.0)),
        most: Bytes::from_mib(section.integer("disk_floor_most_mib", 4_096, 1..=1 << 30)),
        inodes: share(section.number("disk_floor_inodes_percent", 5.0, 0.0..=90.0)),
    };
    let folders = section.texts("disk_floor_folders");
    if let Some(bad) = folders.iter().find(|folder| !Path::new(folder).is_absolute()) {
        section.reject("disk_floor_folders", format_args!("has {bad:?}; each must be an absolute path"));
    }
    DiskWatchSettings { floor, folders: folders.into_iter().map(PathBuf::from).collect() }
}

/// How many CPUs are kept free of the volunteer beyond what the foreground uses.
fn idle_buffer(section: &mut Section<'_>) -> Option<BufferSize> {
    let words = [("off", None), ("follow", Some(BufferSize::Follow))];
    section.choice_or_integer("idle_buffer", None, &words, 1..=MAX_CORES.into(), |cpus| {
        Some(BufferSize::Fixed(u32::try_from(cpus).unwrap_or(u32::MAX)))
    })
}

/// What the volunteer may have of the cache and of the memory bandwidth.
fn cache(section: &mut Section<'_>) -> CacheChoice {
    let mut number = |key, most| section.optional_integer(key, 1..=most).and_then(|n| u32::try_from(n).ok());
    CacheChoice { ways: number("cache_ways", 64), bandwidth_percent: number("memory_bandwidth_percent", 100) }
}

/// Workloads with a budget of their own, as `NAME=PART`.
fn harm_budgets(section: &mut Section<'_>) -> BTreeMap<WorkloadId, f64> {
    let mut budgets = BTreeMap::new();
    for text in section.texts("harm_budgets") {
        let one = text.rsplit_once('=').and_then(|(name, part)| {
            let part: f64 = part.trim().parse().ok()?;
            let within = (0.0001..=0.5).contains(&part);
            within.then_some((WorkloadId::new(name.trim()).ok()?, part))
        });
        match one {
            Some((workload, part)) => _ = budgets.insert(workload, part),
            None => section.reject(
                "harm_budgets",
                format_args!(
                    "has {text:?}; it must be WORKLOAD=PART, such as \"guest-1=0.05\", with a part from 0.0001 to 0.5"
                ),
            ),
        }
    }
    budgets
}

/// Globs of cgroups, each checked as the sensor will.
fn globs(section: &mut Section<'_>) -> Vec<String> {
    let globs = section.texts("cgroups");
    for error in globs.iter().filter_map(|text| Glob::new(text).err()) {
        section.reject("cgroups", format_args!("{error}"));
    }
    globs
}

/// Names of links, and what they can carry if the config says so.
fn links(section: &mut Section<'_>) -> LinkChoice {
    let capacity = section.optional_number("link_mbit", 0.1..=10_000_000.0).map(of_mbit);
    LinkChoice { names: section.texts("links"), capacity }
}

/// `guest` or `unit`, whichever the kind asks for.
fn adopted_name(section: &mut Section<'_>) -> String {
    let (guest, unit) = (section.optional_text("guest"), section.optional_text("unit"));
    let kind = section.optional_text("kind").unwrap_or_default();
    let name = match kind.as_str() {
        "guest" => guest,
        "unit" => unit,
        _ => return String::new(),
    };
    let name = name.unwrap_or_default();
    if name.is_empty() || name.contains('/') {
        section.reject("kind", format_args!("is \"{kind}\", so `{kind}` must name the {kind} that is the volunteer"));
    }
    name
}

/// A program by its absolute path, its arguments, and whom it runs as. It needs a cgroup to run in.
fn program(section: &mut Section<'_>) -> Option<VolunteerProgram> {
    let (words, user) = (section.texts("command"), section.optional_text("user"));
    let program = words.first()?;
    if !Path::new(program).is_absolute() || words.iter().any(|word| word.contains('\0')) {
        section
            .reject("command", format_args!("begins with {program:?}; it must be an absolute path and its arguments"));
    }
    let kind = section.optional_text("kind").unwrap_or_default();
    if !matches!(kind.as_str(), "" | "auto" | "cgroup") {
        section.reject("command", format_args!("needs a volunteer in a cgroup, and `kind` is \"{kind}\""));
    }
    match program_user(user.as_deref(), User::own()) {
        Ok(user) => Some(VolunteerProgram { words, user }),
        Err(problem) => {
            section.reject("user", Chain(&problem));
            None
        }
    }
}

/// The volunteer's program cannot run as the user in the config. The texts follow the key's name.
#[derive(Debug, thiserror::Error)]
enum ProgramUserError {
    #[error(
        "is missing: the agent runs as root, and `volunteer.command` must name the user that its program runs as, such as \
         user = \"gleaner-volunteer\", which the package makes; \"root\" only for a program that cannot work otherwise"
    )]
    Missing,
    #[error("is {name:?}, which cannot be looked up")]
    Database { name: String, source: io::Error },
    #[error(
        "is {0:?}, and this host has no such user; name one that it has (the package makes gleaner-volunteer: \
         systemd-sysusers gleaner-agent.conf)"
    )]
    Unknown(String),
    #[error("is {0:?}, which is another name of root; say \"root\" if that is meant")]
    OtherNameOfRoot(String),
    #[error(
        "is {name:?}, and the agent, which runs as {own} and not as root, can start programs as that user only; leave it out"
    )]
    OtherUser { name: String, own: String },
}

/// Whom the volunteer's program runs as, of an agent that runs as `own`: root must say it, nobody else can be another.
fn program_user(name: Option<&str>, own: User) -> Result<User, ProgramUserError> {
    let Some(name) = name.map(str::to_owned) else {
        return if own.is_root() { Err(ProgramUserError::Missing) } else { Ok(own) };
    };
    let user = match User::named(&name) {
        Ok(Some(user)) => user,
        Ok(None) => return Err(ProgramUserError::Unknown(name)),
        Err(source) => return Err(ProgramUserError::Database { name, source }),
    };
    if user.is_root() && name != "root" {
        return Err(ProgramUserError::OtherNameOfRoot(name));
    }
    if !own.is_root() && user.uid != own.uid {
        return Err(ProgramUserError::OtherUser { name, own: own.name });
    }
    Ok(user)
}

/// A relative path that cannot leave the hierarchy and is at least two levels deep, so that the volunteer's
/// parent is Gleaner's own too.
fn cgroup_path(section: &mut Section<'_>) -> String {
    let path = section.parsed("cgroup", "gleaner/volunteer".to_owned());
    let parts: Vec<_> = path.split('/').collect();
    let plain = |part: &&str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if parts.len() < 2 || !parts.iter().all(plain) {
        section.reject(
            "cgroup",
            format_args!(
                "is {path:?}; it must be a relative path of two or more plain names, such as \"gleaner/volunteer\""
            ),
        );
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, Problems> {
        Config::from_source(&Source::from_text(Path::new("agent.toml"), text))
    }

    #[test]
    fn the_packaged_config_is_valid_and_only_observes() {
        let text = include_str!("../../systemd/agent.toml");
        let config = load(text).unwrap();
        assert!(!config.act);
        assert!(config.aggregator.is_some());
        // What the file shows as defaults, commented out, is what the code has.
        let shown: String = text
            .lines()
            .map(|line| line.strip_prefix("#").filter(|l| l.contains(" = ") && !l.starts_with(' ')).unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(load(&shown).unwrap(), config);
    }

    #[test]
    fn a_reload_takes_over_what_it_says_and_nothing_else() {
        let all = "state_dir = '/x'\n[act]\nenabled = true\n[foreground]\nfloor_percent = 20\nmemory_floor_mib = 512\nharm_budget = 0.02\n\
                   harm_budgets = ['guest-1=0.05']\n\
                   [volunteer]\nkill_after_ms = 1\n[guard]\nperiod_ms = 20\nheadroom = 0.2\ngrowth_per_s = 0.02\nopen_above = 0.7\npause_share = 0.1\nfollow_harm = true\n\
                   [forecast]\nmethod = 'moving-average'\nhistory_s = 60\nlookahead_s = 30\nrisk = '5%'\nsigma = 3\n\
                   [sense]\nsample_period_ms = 500\nscan_period_s = 2\ncounters = false\n";
        let keys = |text: &str| Config::with_keys(&Source::from_text(Path::new("agent.toml"), text)).unwrap();
        let (mut config, before) = keys("");
        let (new, after) = keys(all);
        let changes = gleaner_daemon::config::Running::new(before, AT_RUN_TIME).take_over(after);
        assert_eq!(changes.taken_over.len(), AT_RUN_TIME.len(), "{changes}");
        assert_eq!(changes.need_restart, ["state_dir", "act.enabled", "guard.period_ms", "sense.counters"]);

        config.take_over(&new);
        let kept = load("").unwrap();
        let expected = Config {
            state_dir: kept.state_dir,
            act: kept.act,
            guard_period: kept.guard_period,
            counters: kept.counters,
            ..new
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn bounds_are_what_the_file_says_and_without_it_those_that_save_the_host() {
        let config = load("").unwrap();
        assert_eq!(config.required, [Bound::Memory, Bound::Pids]);
        assert_eq!(
            (config.volunteer_ceiling, config.volunteer_memory_floor, config.links.capacity),
            (None, None, None)
        );
        assert_eq!(config.disks.floor, DiskFloorSettings::default());
        let text =
            "[act]\nrequire = ['network']\n[volunteer]\ndisk_floor_percent = 2.5\ndisk_floor_folders = ['/srv']\n";
        let config = load(text).unwrap();
        assert_eq!((config.required, config.disks.folders), (vec![Bound::Network], vec![PathBuf::from("/srv")]));
        assert_eq!(config.disks.floor.share, Fraction::clamped(0.025));
        let said = load("[volunteer]\ndisk_floor_folders = ['srv']\n").unwrap_err().to_string();
        assert!(said.contains("`volunteer.disk_floor_folders` has \"srv\"; each must be an absolute path"), "{said}");
    }

    #[test]
    fn an_idle_buffer_follows_has_a_size_or_is_off() {
        let of = |value: &str| {
            load(&format!("[guard]\nidle_buffer = {value}\n")).map(|config| config.act_settings().idle_buffer)
        };
        assert_eq!(load("").unwrap().act_settings().idle_buffer, None);
        assert_eq!(of("'off'").unwrap(), None);
        assert_eq!(of("'follow'").unwrap(), Some(BufferSize::Follow));
        assert_eq!(of("3").unwrap(), Some(BufferSize::Fixed(3)));
        let said = of("0").unwrap_err().to_string();
        assert!(
            said.contains("`guard.idle_buffer` is 0; it must be one of \"off\", \"follow\", or a whole number"),
            "{said}"
        );
    }

    #[test]
    fn aggregators_may_be_one_or_several() {
        let addresses = |text: &str| load(text).map(|config| config.aggregator.unwrap().addresses);
        let text = |keys: &str| format!("[host]\nname = 'h1'\n[aggregator]\n{keys}\n");
        assert_eq!(addresses(&text("address = 'a:1'")).unwrap(), ["a:1"]);
        assert_eq!(addresses(&text("addresses = ['a:1', 'b:2']")).unwrap(), ["a:1", "b:2"]);
        for (keys, part) in [
            ("addresses = []", "`aggregator.addresses` has 0 entries; it must have 1 to 16"),
            ("addresses = ['a:1', 'b']", "`aggregator.addresses` is \"b\"; it must be HOST:PORT"),
            ("address = 'a:1'\naddresses = ['b:2']", "`aggregator.address` and `addresses` say the same thing"),
        ] {
            let message = addresses(&text(keys)).unwrap_err().to_string();
            assert!(message.contains(part), "{part}\nnot in\n{message}");
        }
    }

    #[test]
    fn commands_that_need_no_aggregator_take_a_config_without_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let load = |keys: &str| {
            std::fs::write(&file, format!("[host]\nname = 'h1'\n[aggregator]\n{keys}\n")).unwrap();
            Config::load(&file).map(|config| config.aggregator.unwrap())
        };
        let found = load("ca = '/x/ca.crt'").unwrap();
        assert_eq!((found.addresses, found.files.ca), (Vec::<String>::new(), PathBuf::from("/x/ca.crt")));
        assert!(
            load("address = 'b'").unwrap_err().to_string().contains("it must be HOST:PORT"),
            "a wrong one is wrong"
        );
        assert!(load("addresses = []").is_err());
    }

    #[test]
    fn a_volunteers_program_runs_as_root_only_when_that_is_said() {
        let user = |name: &str, uid| User { name: name.into(), uid, gid: uid, groups: vec![uid], home: "/".into() };
        let (root, alice) = (user("root", 0), user("alice", 4_000_000_000));
        let missing = program_user(None, root.clone()).unwrap_err().to_string();
        assert!(missing.contains("is missing") && missing.contains("gleaner-volunteer"), "{missing}");
        assert!(program_user(Some("root"), root.clone()).unwrap().is_root());
        let unknown = program_user(Some("gleaner-nobody-has-this-name"), root).unwrap_err().to_string();
        assert!(unknown.contains("no such user"), "{unknown}");
        assert_eq!(program_user(None, alice.clone()).unwrap(), alice);
        let other = program_user(Some("root"), alice).unwrap_err().to_string();
        assert!(other.contains("runs as alice and not as root"), "{other}");

        let of = |text: &str| load(&format!("[host]\nname = 'h1'\n[volunteer]\n{text}\n"));
        let name = User::own().name;
        let program = of(&format!("command = ['/bin/true']\nuser = '{name}'")).unwrap().volunteer_program.unwrap();
        assert_eq!((program.words, program.user), (vec!["/bin/true".to_owned()], User::own()));
        assert_eq!(of("user = 'gleaner-nobody-has-this-name'").unwrap().volunteer_program, None, "it is not used");
        let said = of("command = ['/bin/true']\nuser = 'gleaner-nobody-has-this-name'").unwrap_err().to_string();
        assert!(said.contains("agent.toml:5: `volunteer.user` is"), "{said}");
        if User::own().is_root() {
            let said = of("command = ['/bin/true']").unwrap_err().to_string();
            assert!(said.contains("`volunteer.user` is missing: the agent runs as root"), "{said}");
        }
    }

    #[test]
    fn a_workload_may_have_a_budget_of_its_own() {
        let text = |list: &str| format!("[foreground]\nharm_budgets = [{list}]\n");
        let config = load(&text("'guest-1=0.05', 'a=b=0.002'")).unwrap();
        let budgets = config.harm_settings().budgets;
        let of = |name: &str| budgets.of(&WorkloadId::new(name).unwrap());
        assert_eq!((of("guest-1"), of("a=b"), of("guest-2")), (5.0, 0.2, 1.0));
        for bad in ["'guest-1'", "'guest-1=5'", "'=0.1'", "'guest-1=NaN'"] {
            let said = load(&text(bad)).unwrap_err().to_string();
            assert!(said.contains("agent.toml:2: `foreground.harm_budgets` has"), "{said}");
        }
    }

    #[test]
    fn several_mistakes_are_reported_together() {
        let message = load(
            "[host]\nname = 'Lab 1'\n[aggregator]\naddress = 'here'\n[guard]\nperiod_ms = 500\ngrowth = 1\n[volunteer]\ncgroup = '../x'\nkind = 'vm'\ncommand = ['worker', '-x']\n",
        )
        .unwrap_err()
        .to_string();
        for part in [
            "agent.toml:2: `host.name`",
            "agent.toml:4: `aggregator.address` is \"here\"; it must be HOST:PORT",
            "agent.toml:6: `guard.period_ms` is 500; it must be a whole number from 10 to 100",
            "agent.toml:7: `guard.growth` is unknown",
            "agent.toml:9: `volunteer.cgroup`",
            "agent.toml:10: `volunteer.kind` is \"vm\"; it must be one of \"auto\"",
            "agent.toml:11: `volunteer.command` begins with \"worker\"; it must be an absolute path",
            "agent.toml:11: `volunteer.command` needs a volunteer in a cgroup, and `kind` is \"vm\"",
        ] {
            assert!(message.contains(part), "{part}\nnot in\n{message}");
        }
    }
}
