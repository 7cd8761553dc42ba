//! A whole run: the bed is made, every round measures every cell under every row, and everything is removed. In: the
//! plan. Out: all measurements, with their figures, table and drawing. Called by `main` and `tests/matrix.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::cell::Bed;
use crate::cells::{Antagonist, Cell, Foreground, Goal, Named, Row};
use crate::groups::Groups;
use crate::leftovers::Run;
use crate::network::Network;
use crate::results::{Figure, Line, Measured, figures, lines};
use crate::scratch::Scratch;
use crate::verdict::{self, Verdict, verdicts};
use crate::{foreground, host, interrupt, order, plot, table};

/// What a measurement takes beyond its time, for the estimate at the start.
const AROUND_S: u64 = 4;
/// Memory of a cell, where nothing is said: little, so that it fills within seconds. (Chosen.)
pub const MEMORY: u64 = 512 << 20;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Cells.
    pub cells: Vec<Cell>,
    /// Rows.
    pub rows: Vec<Row>,
    /// Goals that the product is judged by.
    pub goals: Vec<Goal>,
    /// How many rounds.
    pub rounds: u64,
    /// How long each measurement takes.
    pub time: Duration,
    /// How long the antagonist runs before it.
    pub settle: Duration,
    /// Of the orders and of what foregrounds do.
    pub seed: u64,
    /// The product.
    pub gleaner: PathBuf,
    /// Memory of a cell in bytes; none: all of the machine's, which can then run out of it.
    pub memory_limit: Option<u64>,
    /// Size of the scratch file system.
    pub scratch_mib: u64,
    /// A folder for it instead.
    pub scratch: Option<PathBuf>,
    /// Folder for everything else.
    pub folder: PathBuf,
    /// Where cgroups are mounted.
    pub cgroups: PathBuf,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The machine, in words.
    pub machine: String,
    /// The seed.
    pub seed: u64,
    /// How long each measurement took, in seconds.
    pub seconds: f64,
    /// What was left out or is weaker than it could be, a sentence each.
    pub notes: Vec<String>,
    /// Every measurement.
    pub measured: Vec<Measured>,
    /// Sums.
    pub lines: Vec<Line>,
    /// Figures with names.
    pub figures: Vec<Figure>,
    /// What the sums show, for each cell; older results have none.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
}

/// What this machine can measure of the cells, and for each that it cannot a sentence.
#[must_use]
pub fn possible(cells: &[Cell]) -> (Vec<Cell>, Vec<String>) {
    let mut notes = Vec::new();
    let mut left_out = |what: &str, why: &str| {
        let note = format!("LEFT OUT: {what}: {why}");
        if !notes.contains(&note) {
            notes.push(note);
        }
        false
    };
    let good = cells.iter().copied().filter(|cell| {
        let network = matches!(cell.antagonist, Antagonist::Net | Antagonist::All);
        if let Some(why) = foreground::missing(cell.foreground) {
            return left_out(&format!("foreground {}", cell.foreground), &why);
        }
        match foreground::missing(Foreground::Echo).filter(|_| network) {
            Some(why) => left_out(&format!("antagonist {}", cell.antagonist), &why),
            None => true,
        }
    });
    (good.collect(), notes)
}

/// How long a run takes at least.
#[must_use]
pub fn takes(plan: &Plan) -> Duration {
    let one = plan.time + plan.settle + Duration::from_secs(AROUND_S);
    let count = plan.rounds * plan.cells.len() as u64 * plan.rows.len() as u64;
    one.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The machine in words.
fn machine(groups: &Groups) -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown CPU", |(_, model)| model);
    format!("{} CPUs, {model}, Linux {}, {}", host::cpus(), release.trim(), groups.words())
}

fn checked(plan: &Plan) -> anyhow::Result<()> {
    if plan.rows.iter().any(|row| row.has_agent()) && !plan.gleaner.is_file() {
        bail!(
            "the row `gleaner` needs the program: {} is no file; build it, or give --gleaner PATH",
            plan.gleaner.display()
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: it makes cgroups, namespaces and mounts");
    }
    let memory = host::memory(Path::new("/proc")).context("failed to read /proc/meminfo")?;
    if let Some(limit) = plan.memory_limit.filter(|limit| limit.saturating_mul(2) > memory.1) {
        bail!(
            "a cell may have {} MiB, but only {} MiB are available, of which half has to stay",
            limit >> 20,
            memory.1 >> 20
        );
    }
    Ok(())
}

/// Measures all of a plan; `say` gets a line now and then.
///
/// # Errors
/// The bed cannot be made; interrupted. What is measured until then is lost, and everything is removed.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> anyhow::Result<Outcome> {
    checked(plan)?;
    let run = Run::begin(&plan.folder, &plan.cgroups)?;
    let groups = Groups::new(&plan.cgroups, &run.name(), plan.memory_limit)?;
    let (cells, mut notes) = possible(&plan.cells);
    let scratch = match &plan.scratch {
        Some(folder) => Scratch::given(folder, &run.name()),
        None => Scratch::make(run.folder(), plan.scratch_mib),
    }?;
    let needed = |cell: &Cell| {
        cell.foreground == Foreground::Echo || matches!(cell.antagonist, Antagonist::Net | Antagonist::All)
    };
    let network = if cells.iter().any(needed) { Some(Network::up(run.pid())?) } else { None };
    notes.extend(scratch.weaker.clone().map(|weaker| format!("WEAKER: {weaker}")));
    notes.extend(network.as_ref().and_then(|network| network.weaker.clone()).map(|weaker| format!("WEAKER: {weaker}")));
    let available = host::memory(Path::new("/proc")).map_or(MEMORY, |memory| memory.1);
    let bed = Bed {
        groups: &groups,
        scratch: &scratch,
        network: network.as_ref(),
        folder: run.folder(),
        gleaner: &plan.gleaner,
        memory: plan.memory_limit.unwrap_or(available),
        rounds_of_work: foreground::calibrate(),
        settle: plan.settle,
        time: plan.time,
    };
    say(&machine(&groups));
    for note in &notes {
        say(note);
    }
    let plan_now = Plan { cells: cells.clone(), ..plan.clone() };
    say(&format!(
        "seed {}: {} rounds of {} cells under {} rows, {} s each: at least {} min",
        plan.seed,
        plan.rounds,
        cells.len(),
        plan.rows.len(),
        plan.time.as_secs(),
        takes(&plan_now).as_secs().div_ceil(60)
    ));
    let mut measured = Vec::new();
    for round in 0..plan.rounds {
        for (cell, row) in order::of_round(&cells, &plan.rows, plan.seed, round) {
            let result = bed.measure(cell, row, plan.seed.wrapping_add(round));
            interrupt::check()?;
            let result = result.map_err(|error| format!("{error:#}"));
            say(&format!("round {} of {}: {cell} under {row}: {}", round + 1, plan.rounds, words(&result)));
            measured.push(Measured { round, cell, row, result });
        }
    }
    let lines = lines(&measured, &cells, &plan.rows);
    let figures = figures(&lines);
    notes.extend(table::warnings(&lines));
    let verdicts = verdicts(&lines, &cells, &plan.goals);
    let seconds = plan.time.as_secs_f64();
    Ok(Outcome { machine: machine(&groups), seed: plan.seed, seconds, notes, measured, lines, figures, verdicts })
}

/// A measurement in a few words.
fn words(result: &Result<crate::cell::Measurement, String>) -> String {
    match result {
        Ok(one) => {
            let responses = one.responses.map_or_else(
                || if one.foreground_killed { "foreground KILLED".to_owned() } else { "nothing answered".to_owned() },
                |all| format!("mean {:.2} ms, p99 {:.2} ms of {}", all.mean_ms, all.p99_ms, all.count),
            );
            format!("{responses}, {} failed; antagonist {:.1} core seconds", one.failures, one.antagonist_cpu_s)
        }
        Err(error) => format!("FAILED: {error}"),
    }
}

impl Outcome {
    /// Everything for people.
    #[must_use]
    pub fn text(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        let (table, figures) = (table::table(&self.lines), table::figures(&self.figures));
        format!("{}\n{notes}{table}\n{}\n{figures}", self.machine, verdict::text(&self.verdicts))
    }

    /// Writes the results as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Draws the plot.
    ///
    /// # Errors
    /// There is nothing to draw, or the file cannot be written.
    pub fn draw(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, plot::frontier(&self.lines)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }
}

/// The cells that are measured where none are named: each foreground beside what attacks its own resources, and beside everything.
#[must_use]
pub fn usual() -> Vec<Cell> {
    use Antagonist::{
        All, CacheStream, Cpu, Fill, Fork, Memory, Net, Thrash, WriteRand, WriteRandFsync, WriteSeq, WriteSeqFsync,
    };
    let own = |foreground: Foreground| -> &[Antagonist] {
        match foreground {
            Foreground::Cyclic => &[Cpu, Memory, Fork, Thrash, CacheStream, All],
            Foreground::Interactive => &[Cpu, Memory, Fork, All],
            Foreground::Redis => &[Cpu, Memory, CacheStream, Thrash, All],
            Foreground::Postgres => &[Cpu, Memory, WriteSeqFsync, WriteRandFsync, CacheStream, Fill, All],
            Foreground::Echo => &[Cpu, Fork, Net, All],
            Foreground::Disk => &[WriteSeq, WriteSeqFsync, WriteRand, WriteRandFsync, Fill, All],
            Foreground::Guest => &[Cpu, Memory, Thrash, All],
        }
    };
    let cells = |foreground: &Foreground| {
        let foreground = *foreground;
        own(foreground).iter().map(move |&antagonist| Cell { foreground, antagonist })
    };
    Foreground::ALL.iter().flat_map(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(cells: Vec<Cell>) -> Plan {
        Plan {
            cells,
            rows: Row::ALL.to_vec(),
            goals: Vec::new(),
            rounds: 2,
            time: Duration::from_secs(5),
            settle: Duration::from_secs(1),
            seed: 1,
            gleaner: "/nonexistent/gleaner".into(),
            memory_limit: Some(MEMORY),
            scratch_mib: 64,
            scratch: None,
            folder: "/nonexistent".into(),
            cgroups: "/nonexistent".into(),
        }
    }

    #[test]
    fn the_usual_cells_have_every_foreground_and_antagonist() {
        let cells = usual();
        assert!(Foreground::ALL.iter().all(|one| cells.iter().any(|cell| cell.foreground == *one)));
        assert!(Antagonist::ALL.iter().all(|one| cells.iter().any(|cell| cell.antagonist == *one)));
        // 2 rounds × cells × rows × 10 s.
        assert_eq!(takes(&plan(cells.clone())).as_secs(), 20 * (cells.len() * Row::ALL.len()) as u64);
    }

    #[test]
    fn a_plan_without_the_program_is_refused_before_anything_is_made() {
        let error = run(&plan(usual()), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/gleaner is no file"), "{error}");
    }

    #[test]
    fn what_needs_nothing_is_always_possible() {
        let all = crate::cells::cells("cyclic:cpu,disk:fill,interactive:memory").unwrap();
        assert_eq!(possible(&all), (all, Vec::new()));
    }
}
