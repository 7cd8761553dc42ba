//! The command line of `gleaner`: clap's definitions. In: arguments. Out: typed commands; and help, completions and
//! manual pages. [`crate::main_from_args`] parses with them, [`crate::commands`] takes what they give, and
//! `gleaner reference` prints them.

mod legend;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use gleaner_api::DEFAULT_SOCKET;
use gleaner_types::id::{ApplicationId, HostId, JobId};
use gleaner_types::job::{Goal, Prices};
use gleaner_types::units::{Bytes, Dollars, DollarsPerHour};

pub(crate) use self::values::Since;
use self::values::{dollars, duration, pause_share, percent, price};
use crate::complete;
use crate::list::ListArgs;

/// The program's name, by which the shell knows it.
pub(crate) const PROGRAM: &str = "gleaner";

/// Harvests the CPU that interactive workloads leave idle, without slowing them down.
///
/// Exit codes: 0 good; 1 failed; 2 wrong usage; 3 a deadline or a budget was missed; 4 some tasks failed;
/// 5 no aggregator answers.
#[derive(Debug, Parser)]
#[command(name = "gleaner", version, after_help = "Start with `gleaner demo`.")]
pub(crate) struct Arguments {
    /// Socket of the aggregator.
    #[arg(long, global = true, value_name = "PATH", env = "GLEANER_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Prints JSON instead of text, for scripts.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Shows CPU in percent of one core instead of cores.
    #[arg(long, global = true)]
    pub(crate) percent: bool,
    /// Colours of states: `auto` shows them on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Colours::Auto)]
    pub(crate) color: Colours,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When colours are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colours {
    Auto,
    Always,
    Never,
}

impl From<Colours> for anstream::ColorChoice {
    fn from(colours: Colours) -> Self {
        match colours {
            Colours::Auto => Self::Auto,
            Colours::Always => Self::Always,
            Colours::Never => Self::Never,
        }
    }
}

/// The whole command line, for manual pages.
#[must_use]
pub fn command_line() -> clap::Command {
    Arguments::command()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows everything on this machine in under three minutes: a foreground to protect, a real job, a deadline.
    ///
    /// Needs no configuration, network or privilege. As root it uses cgroups; otherwise it falls back to
    /// scheduling classes and says which protection is weaker.
    Demo(DemoArgs),
    /// Runs a list of shell commands in this machine's idle CPU.
    ///
    /// One command per line; blank lines and lines that start with # are skipped. Uses the aggregator on the
    /// socket if one runs here with an agent that may act; otherwise it starts a private agent and aggregator for
    /// the time of the job, which decide every 5 s. An agent of the packages runs no tasks until its config has
    /// `tasks.enabled`: beside it, and without --private, the job waits and says so.
    #[command(
        after_help = "Examples:\n  gleaner run tasks.txt --deadline 10m\n  seq 100 | sed 's/.*/convert in-&.png out-&.jpg/' | gleaner run - --max-cost 0.05"
    )]
    Run(RunArgs),
    /// Lists hosts with what they use, what they will leave free, and what part of their promises was broken.
    #[command(after_help = legend::HOSTS)]
    Hosts {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Lists the foreground's workloads by the names that their operators know: of libvirt, OpenStack, Proxmox, QEMU, Xen, systemd.
    ///
    /// (other) is what is neither named as foreground nor the volunteer; it is protected as well. LIMITS are Gleaner's. Below the
    /// list are hosts whose rows are old or missing, and globs of their configs that match nothing; of one HOST also each protection
    /// that it cannot give (with --json on standard error).
    Guests {
        /// Only this host's.
        #[arg(add = ArgValueCandidates::new(complete::hosts))]
        host: Option<HostId>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Invites, revokes and removes hosts; holds a host or all of them, or releases them.
    #[command(subcommand)]
    Host(HostCommand),
    /// Holds response-time targets of applications by moving CPU, memory and disk of their tiers.
    #[command(subcommand)]
    App(AppCommand),
    /// Says how many cores hosts could give for a while, before anything is switched on or submitted.
    ///
    /// The risk is the probability that a host leaves less, in the mean over the time, than its promise. The
    /// aggregator must have observed a host for a while before it promises anything.
    #[command(after_help = legend::ADVISE)]
    Advise(AdviseArgs),
    /// Shows hosts, jobs, applications and events as they change: a screen to keep open; ? explains its keys.
    ///
    /// Where the output is not a terminal it prints the same as plain text, every second.
    Top {
        /// Prints it once as plain text and exits; with --json: hosts, jobs and the aggregator as JSON.
        #[arg(long)]
        once: bool,
        /// Prints plain text every second, on a terminal too.
        #[arg(long)]
        plain: bool,
    },
    /// Prints the event log.
    Events {
        /// Follows: prints new events as they happen.
        #[arg(short, long, conflicts_with_all = ["sort", "limit"])]
        follow: bool,
        /// Shows every event of the guard (`guard_acted`), the part of the agent that takes CPU back from the volunteer. Without it
        /// they are one line a minute and host; with --json they are always all there.
        #[arg(long)]
        details: bool,
        /// Only events since then: a duration such as 10m, or a time such as 2026-01-31T12:00:00Z.
        #[arg(long, value_name = "WHEN")]
        since: Option<Since>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Prints the orders of operators and their results.
    Audit {
        /// Only orders since then: a duration such as 10m, or a time such as 2026-01-31T12:00:00Z.
        #[arg(long, value_name = "WHEN")]
        since: Option<Since>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Submits, lists, shows and cancels jobs.
    #[command(subcommand)]
    Job(JobCommand),
    /// Explains why a job has its size or an application its shares: candidates, scores, and the limit that bound.
    #[command(after_help = legend::EXPLAIN)]
    Explain {
        /// The job or application.
        #[arg(add = ArgValueCandidates::new(complete::jobs_and_applications))]
        name: String,
        /// Reads the records that `gleaner run` left in this folder, instead of asking an aggregator.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
    },
    /// Makes certificates: an authority, and what agents and the aggregator need of it.
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Answers what-if questions about one document, without a daemon.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Runs a scenario of a whole cluster on a virtual clock, with the aggregator's controller.
    Simulate {
        /// The scenario, TOML or JSON; docs/simulator.md describes its fields.
        scenario: PathBuf,
    },
    /// Repeats the experiments of the papers on simulated test beds, and prints the papers' figures beside ours. `harm` is an
    /// experiment of this project's own.
    #[command(subcommand)]
    Reproduce(ReproduceCommand),
    /// Measures this hardware for its models.
    #[command(subcommand)]
    Calibrate(CalibrateCommand),
    /// Runs a journal through the controller again: same outputs, or the first difference (exit code 1).
    Replay {
        /// A journal file, or a folder of them.
        journal: PathBuf,
    },
    /// Prints completions for a shell: commands, options, and the names of hosts, jobs and applications.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Generates reference documentation; for packages and docs/.
    #[command(subcommand, hide = true)]
    Reference(ReferenceCommand),
}

/// `gleaner reference`.
#[derive(Debug, Subcommand)]
pub enum ReferenceCommand {
    /// Writes the man pages of all three programs.
    Man {
        /// Output folder; each program's pages go into a subfolder of its name.
        folder: PathBuf,
    },
    /// Prints docs/configuration.md.
    Configuration,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// How many volunteers a job should have, and which, by the code that the aggregator decides with.
    Size {
        /// The question as JSON, or `-` for standard input; docs/plan.md describes its fields.
        question: PathBuf,
    },
    /// How much CPU one service gets next, by its response times of some control intervals.
    Tune {
        /// The question as JSON, or `-` for standard input; docs/plan.md describes its fields.
        question: PathBuf,
    },
    /// What shares applications with response-time targets request after some control intervals, and what they are granted.
    Balance {
        /// The question as JSON, or `-` for standard input; docs/plan.md describes its fields.
        question: PathBuf,
    },
    /// How a host is divided when the requests of applications exceed it.
    Arbitrate {
        /// The question as JSON, or `-` for standard input; docs/plan.md describes its fields.
        question: PathBuf,
    },
    /// What to start in the gaps between leases of nodes, which nodes get notice, and which jobs are ended for which lease.
    Fill {
        /// The question as JSON, or `-` for standard input; docs/reservations.md describes its fields.
        question: PathBuf,
        /// Takes the leases from this file in place of the question's: CSV with a head line, or JSON; docs/reservations.md describes both.
        #[arg(long, value_name = "FILE")]
        leases: Option<PathBuf>,
    },
    /// How several jobs share a cluster: when each ends beside its fair completion, where its tasks run, and its credit.
    Share {
        /// The question as JSON, or `-` for standard input; docs/plan.md describes its fields.
        question: PathBuf,
    },
    /// How many nodes a running MapReduce job should get or give back to meet a deadline or a cost, by models of its stages.
    Autoscale {
        /// The question as JSON, or `-` for standard input; docs/autoscale.md describes its fields.
        question: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReproduceCommand {
    /// Cluster sizing in residual resources: cost, energy and deadlines against an exhaustive survey, and more.
    Rhic {
        /// Whose jobs: the papers', or any.
        #[arg(long, value_enum, default_value_t = JobsWord::Papers)]
        jobs: JobsWord,
        /// First of the foreground mixes; 1 is the one the jobs are calibrated with. Any jobs are drawn from it.
        #[arg(long, default_value_t = gleaner_experiments::rhic::Options::default().seed)]
        seed: u64,
        /// How many mixes of the papers' jobs; the paper ran everything twice.
        #[arg(long, default_value_t = gleaner_experiments::rhic::Options::default().mixes, value_parser = clap::value_parser!(u64).range(1..=50))]
        mixes: u64,
        /// Folder of real traces for the promises; without one they are judged only on generated sessions.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures.
        #[arg(long)]
        details: bool,
    },
    /// Whether promises hold on every host at the stated risk: the shipped default against what others use, on recorded and
    /// generated hosts. No paper's; docs/forecast.md says what is measured. Takes a minute or two.
    Forecast {
        /// Seed of the generated sessions.
        #[arg(long, default_value_t = gleaner_experiments::forecast::Options::default().seed)]
        seed: u64,
        /// Folder of real traces, or of your own: one CSV per host with the head line `time_s,cpu_percent`. Without one only
        /// generated sessions are judged.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures: each set, lookahead, risk and method.
        #[arg(long)]
        details: bool,
    },
    /// One resource by response time: self-tuning fuzzy control against three other controllers, on a simulated shop.
    Stfc {
        /// First seed of the noise.
        #[arg(long, default_value_t = gleaner_experiments::stfc::Options::default().seed)]
        seed: u64,
        /// Runs of every experiment, over which figures are averaged.
        #[arg(long, default_value_t = gleaner_experiments::stfc::Options::default().runs, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// Folder of real traces, for recorded loads and machine speeds.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures.
        #[arg(long)]
        details: bool,
    },
    /// How a volunteer is held: in the idle class alone, at most three quarters of the machine, or by the harm it does, each
    /// on simulated kernels of four kinds. No paper's: what this project assumes of kernels, and what follows.
    Harm(HarmArgs),
    /// A cluster shared between jobs: credit sharing (CANAL) against Tetris, delay scheduling and others, on jobs of Facebook's
    /// sizes. What their tasks need is chosen here, as the paper does not say it; most of its figures are not reached (docs/plan.md).
    /// A run takes some seconds, and two minutes with a day of recorded jobs.
    Canal {
        /// First seed of the workloads.
        #[arg(long, default_value_t = gleaner_experiments::canal::Options::default().seed)]
        seed: u64,
        /// How many workloads.
        #[arg(long, default_value_t = gleaner_experiments::canal::Options::default().runs, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// Folder of recorded jobs: SWIM's (`swim-facebook`), or Google's cluster trace of 2011 (`machine_events`, `task_events`).
        /// Without one the second simulation is skipped.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Hours of the recorded day that are played, evenly apart; 24 is the whole day.
        #[arg(long, default_value_t = gleaner_experiments::canal::Options::default().hours, value_parser = clap::value_parser!(u32).range(1..=i64::from(gleaner_experiments::canal::DAY)))]
        hours: u32,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures.
        #[arg(long)]
        details: bool,
    },
    /// Nodes added to and removed from MapReduce jobs by gray-box models: the paper's decisions, what comes of them on a simulated
    /// Hadoop cluster, and the models' error. Takes a quarter of a minute.
    Mapreduce {
        /// First seed of the clusters.
        #[arg(long, default_value_t = gleaner_experiments::mapreduce::Options::default().seed)]
        seed: u64,
        /// How many clusters.
        #[arg(long, default_value_t = gleaner_experiments::mapreduce::Options::default().runs, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// Folder of real traces, for recorded runs.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures.
        #[arg(long)]
        details: bool,
    },
    /// Gaps between reservations filled with high-throughput jobs: greedy, CHISim's forecasts and preemption policies, and ours, on the
    /// recorded leases of Chameleon. A run takes some ten seconds.
    Chisim {
        /// Jobs and chance are this seed's.
        #[arg(long, default_value_t = gleaner_experiments::chisim::Options::default().seed)]
        seed: u64,
        /// Forecasters of the paper's predictive filling, with commas between.
        #[arg(long, value_delimiter = ',', default_value = "mean,median,lstm")]
        forecasters: Vec<ForecasterWord>,
        /// Folder of real traces; without the leases of Chameleon in it a cloud is generated.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures.
        #[arg(long)]
        details: bool,
    },
    /// Several resources by response time: balanced configuration against AutoControl, on simulated TPC-W and TPC-C. The default
    /// seeds are ones that nothing was tuned on, and take some six minutes of one CPU; `--runs 20` is faster.
    Bconf {
        /// First seed of the noise.
        #[arg(long, default_value_t = gleaner_experiments::bconf::Options::default().seed)]
        seed: u64,
        /// Runs of every experiment, over which figures are averaged.
        #[arg(long, default_value_t = gleaner_experiments::bconf::Options::default().runs, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// The services have pauses, neighbours that slow them down, and shares that come into force late, as recorded; without it
        /// noise alone, for which the targets are.
        #[arg(long)]
        disturbed: bool,
        /// Folder of real traces, for recorded loads.
        #[arg(long, value_name = "DIR", env = "GLEANER_TRACES")]
        traces: Option<PathBuf>,
        /// Writes plots as SVG into this folder.
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Shows every row behind the figures, and what each constant of the model does at half and at twice its value.
        #[arg(long)]
        details: bool,
    },
}

/// The jobs of `gleaner reproduce rhic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobsWord {
    /// Those of the papers, for the papers' figures.
    Papers,
    /// Twenty that nothing was tuned on, and some that are hard to size: what the sizing costs above the best fixed size.
    Any,
}

/// A forecaster of `gleaner reproduce chisim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForecasterWord {
    /// The rolling mean.
    Mean,
    /// The rolling median.
    Median,
    /// A recurrent network, which learns from the leases before. Training takes some ten seconds.
    Lstm,
}

/// `gleaner reproduce harm`.
#[derive(Debug, Args)]
pub(crate) struct HarmArgs {
    /// First seed of the noise.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Runs of every case, over which figures are averaged.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) runs: u64,
    /// CPUs of the host.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) cpus: u32,
    /// Simulated time of a run, in hours.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) hours: u64,
    /// Part of the time in which the volunteer is held still to measure harm.
    #[arg(long, default_value_t = 0.03, value_parser = pause_share)]
    pub(crate) pause_share: f64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CalibrateCommand {
    /// Fits a power model: watts over CPU utilisation and clock.
    ///
    /// Takes samples from a file of lines `utilisation,ghz,watts` (ghz may be empty), or measures this machine by RAPL
    /// while it loads the CPUs step by step.
    Power {
        /// File of samples, instead of measuring.
        #[arg(long, value_name = "FILE")]
        samples: Option<PathBuf>,
        /// Seconds per step of the measurement.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Holds a host: its volunteer stops at once, jobs wait, and no workload on it is limited.
    ///
    /// With --all it holds every host, also those that join later, until they are released: one command that stops
    /// everything.
    Hold {
        /// The host.
        #[arg(required_unless_present = "all", conflicts_with = "all", add = ArgValueCandidates::new(complete::hosts))]
        host: Option<HostId>,
        /// All hosts, also those that join while this lasts.
        #[arg(long)]
        all: bool,
        /// For how long: 30m, 1h, 2h30m. Without it the hold lasts until it is released.
        #[arg(long = "for", value_name = "TIME", value_parser = duration)]
        time: Option<Duration>,
        /// The host may be one that the aggregator does not know, because it has not joined yet.
        #[arg(long, conflicts_with = "all")]
        unknown: bool,
    },
    /// Releases a held host, or ends the hold of all hosts.
    Release {
        /// The host.
        #[arg(required_unless_present = "all", conflicts_with = "all", add = ArgValueCandidates::new(complete::hosts))]
        host: Option<HostId>,
        /// Ends `hold --all`. Hosts that are held by name stay held.
        #[arg(long)]
        all: bool,
    },
    /// Removes a host that is gone for good from lists, metrics and the stored state.
    ///
    /// The host must not be connected, and no unfinished job may need it. It is listed again when its agent joins again:
    /// its certificate stays valid unless it is revoked.
    Remove {
        /// The host.
        #[arg(add = ArgValueCandidates::new(complete::hosts))]
        host: HostId,
    },
    /// Invites a host: prints a token for `gleaner-agent join` on that host.
    ///
    /// The token can be used once. Whoever has it can join as this host: handle it like a password. A new invitation of
    /// the same host replaces the older one.
    Invite {
        /// The host.
        host: HostId,
        /// Validity of the token: 30m, 1h, 2d; at most 30 days.
        #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "1h")]
        time: Duration,
        /// Address under which the host reaches the aggregator; may be given more than once. Default is `advertise` in the
        /// aggregator's config.
        #[arg(long = "address", value_name = "HOST:PORT")]
        addresses: Vec<String>,
    },
    /// Lists open invitations and revoked hosts.
    Invitations {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Withdraws an invitation.
    Uninvite {
        /// The host.
        #[arg(add = ArgValueCandidates::new(complete::invited))]
        host: HostId,
    },
    /// Revokes a host: none of its present certificates is accepted any more, and its connection ends at once.
    ///
    /// A later invitation lets it join again.
    Revoke {
        /// The host.
        #[arg(add = ArgValueCandidates::new(complete::hosts))]
        host: HostId,
        /// The host may be one that the aggregator does not know: it never joined, or was removed.
        #[arg(long)]
        unknown: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// Applies an application's description, new or changed: its target, the source of its response time, its tiers.
    Apply {
        /// The description, TOML or JSON, or `-` for standard input; docs/applications.md describes its fields.
        file: PathBuf,
    },
    /// Lists applications with their response times, targets and shares.
    #[command(after_help = legend::APPLICATIONS)]
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows one application.
    Show {
        /// The application.
        #[arg(add = ArgValueCandidates::new(complete::applications))]
        application: ApplicationId,
    },
    /// Removes an application: the limits on its tiers return to their original values.
    Remove {
        /// The application.
        #[arg(add = ArgValueCandidates::new(complete::applications))]
        application: ApplicationId,
    },
    /// Sends a mean response time, for an application whose source is `push`.
    Respond {
        /// The application.
        #[arg(add = ArgValueCandidates::new(complete::applications))]
        application: ApplicationId,
        /// The mean since the last one, in milliseconds.
        milliseconds: f64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// For how long: 1m to 6h.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "10m")]
    pub(crate) time: Duration,
    /// Risk that a promise turns out too high: 0.1% to 50%.
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "1%")]
    pub(crate) risk: f64,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Seed of the foreground's trace and of the generated text.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How the volunteer is contained.
    #[arg(long, value_enum, default_value_t = Containment::Auto)]
    pub(crate) volunteer: Containment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Containment {
    /// A cgroup where possible.
    Auto,
    /// A cgroup or failure.
    Cgroup,
    /// Scheduling class and priority only.
    ProcessGroups,
}

impl Containment {
    /// The value in the agent's config.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cgroup => "cgroup",
            Self::ProcessGroups => "process-groups",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Task list, one shell command per line; - is standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// Finish within this time, with as few slots (tasks at once) as that takes: 90s, 10m, 1h30m.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "max_cost")]
    pub(crate) deadline: Option<Duration>,
    /// Finish as early as this many dollars allow. Without a deadline or a budget: as cheaply as possible.
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    pub(crate) max_cost: Option<Dollars>,
    /// Name of the job. A name may be used again once its job has ended.
    #[arg(long)]
    pub(crate) name: Option<JobId>,
    /// Most slots at once; default is the number of CPUs. A slot is room for one task at a time.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Slots it has from its first second on, unless other jobs on the machine come before it; more follow the residual.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) dedicated_slots: u32,
    /// Memory a task needs, such as 512M: bounds the slots.
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(crate) memory_per_task: Bytes,
    /// How often a task that fails is tried.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) attempts: u32,
    /// A task that runs longer is killed and counts as failed.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) task_timeout: Option<Duration>,
    /// Folder for the tasks' output. Default: `gleaner run`: gleaner-output/JOB here, with .run-2 and so on where an earlier job of that name has it; `gleaner job submit`: JOB.output
    /// here, and below the aggregator's state folder for the aggregator's own user.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Price of a dedicated slot in dollars per hour.
    #[arg(long, value_name = "DOLLARS", value_parser = price, default_value = "1.00")]
    pub(crate) price_dedicated: DollarsPerHour,
    /// Price of a volunteer slot in dollars per hour.
    #[arg(long, value_name = "DOLLARS", value_parser = price, default_value = "0.42")]
    pub(crate) price_volunteer: DollarsPerHour,
}

impl JobArgs {
    pub(crate) fn goal(&self) -> Goal {
        match self.deadline {
            Some(within) => Goal::Deadline { within_s: within.as_secs_f64() },
            None => Goal::Cost { budget: self.max_cost },
        }
    }

    pub(crate) const fn prices(&self) -> Prices {
        Prices { dedicated: self.price_dedicated, volunteer: self.price_volunteer }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Starts a private agent and aggregator even if an aggregator answers on the socket.
    #[arg(long)]
    pub(crate) private: bool,
    /// How the private agent's volunteer is contained.
    #[arg(long, value_enum, default_value_t = Containment::Auto)]
    pub(crate) volunteer: Containment,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Submits a task list to the aggregator and returns at once.
    Submit(JobArgs),
    /// Submits a job of a batch system over many hosts, described by a TOML or JSON file (docs/engines.md).
    SubmitCluster {
        /// The file.
        file: PathBuf,
    },
    /// Lists jobs, the newest first; of jobs with one name the newest.
    #[command(after_help = legend::JOBS)]
    List {
        /// Earlier runs of the same names too.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows one job.
    Show {
        /// The job: its name for the newest of that name, or NAME.run-N for another run.
        #[arg(add = ArgValueCandidates::new(complete::jobs))]
        job: JobId,
    },
    /// Ends a job and its running tasks, and says whose it was.
    ///
    /// By its name it ends the run of that name that has not ended yet, whoever submitted it: there is never more than one.
    Cancel {
        /// The job: its name, or NAME.run-N for one run and no other.
        #[arg(add = ArgValueCandidates::new(complete::jobs))]
        job: JobId,
    },
}

/// Validity of certificates in days, by default.
const DAYS: u64 = gleaner_net::tls::CERTIFICATE_LIFETIME.as_secs() / 86_400;

#[derive(Debug, Subcommand)]
pub(crate) enum PkiCommand {
    /// Makes a new authority, and the aggregator's certificate, in a folder.
    Init {
        /// The folder; made if missing.
        folder: PathBuf,
    },
    /// Makes the certificate of a host's agent.
    IssueAgent {
        /// The host.
        host: HostId,
        /// The authority's folder.
        #[arg(long, value_name = "DIR", default_value = "/etc/gleaner")]
        authority: PathBuf,
        /// Output folder of HOST.crt and HOST.key; default is the authority's folder.
        #[arg(long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// Validity in days.
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u64).range(1..=3_650))]
        days: u64,
    },
    /// Makes a new certificate and key for the aggregator. A running aggregator reads them on SIGHUP
    /// (`systemctl reload gleaner-aggregator`); connections stay.
    #[command(alias = "issue-aggregator")]
    RenewAggregator {
        /// The authority's folder.
        #[arg(long, value_name = "DIR", default_value = "/etc/gleaner")]
        authority: PathBuf,
        /// Validity in days.
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u64).range(1..=3_650))]
        days: u64,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
