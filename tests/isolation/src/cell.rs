//! One measurement. In: a foreground in its cgroups, and an antagonist beside it under one row. Out: the figures of
//! both. Called by [`crate::matrix`].

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::antagonist::Arguments;
use crate::cells::{Antagonist, Cell, Row};
use crate::children::Owned;
use crate::foreground::load::Answer;
use crate::foreground::setup::Setup;
use crate::groups::{Groups, Places};
use crate::host::{self, CpuTime};
use crate::network::Network;
use crate::pair::Pair;
use crate::points::Points;
use crate::scratch::Scratch;
use crate::statistics::{Summary, Times};
use crate::work::{self, Work};
use crate::{foreground, interrupt, suppress};

/// How long a foreground may take to start (a database is made first), and an antagonist.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an agent may hold an antagonist still before that is its result.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after its time a measurement may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks at everything.
const POLL_PERIOD: Duration = Duration::from_millis(50);
/// How often a threshold is looked at; Koordinator's.
const SUPPRESS_PERIOD: Duration = Duration::from_secs(1);

/// What all measurements of a run share.
#[derive(Debug)]
pub struct Bed<'a> {
    /// Where processes go.
    pub groups: &'a Groups,
    /// Where they write.
    pub scratch: &'a Scratch,
    /// The link to the users, if a cell needs it.
    pub network: Option<&'a Network>,
    /// The run's own folder.
    pub folder: &'a Path,
    /// The product.
    pub gleaner: &'a Path,
    /// Memory that the foreground and the antagonist have together, in bytes.
    pub memory: u64,
    /// Rounds of work in 5 ms here.
    pub rounds_of_work: u64,
    /// How long both run before the measurement.
    pub settle: Duration,
    /// How long a measurement takes.
    pub time: Duration,
}

/// What came of one measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The foreground's response times; none if it was killed, or nothing was answered.
    pub responses: Option<Summary>,
    /// Requests that failed.
    pub failures: u64,
    /// The foreground, or its server, was killed.
    pub foreground_killed: bool,
    /// How often the antagonist was killed, or ended.
    pub antagonist_killed: u32,
    /// CPU time of the antagonist, in core seconds of the measurement.
    pub antagonist_cpu_s: f64,
    /// The same of the foreground.
    pub foreground_cpu_s: f64,
    /// What the machine's CPUs were idle, in core seconds.
    pub idle_s: f64,
    /// What others used: neither of the two.
    pub others_cpu_s: f64,
    /// How long it was.
    pub wall_s: f64,
    /// What the antagonist got done meanwhile.
    pub work: Work,
    /// What to know of it, in a sentence.
    pub note: Option<String>,
}

/// How the antagonist runs.
enum Volunteer {
    None,
    Direct { command: Box<Command>, process: Owned },
    Agent { pair: Box<Pair> },
}

/// Removes the groups with all that is in them, however the measurement ends.
struct Emptied<'a>(&'a Groups);

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            eprintln!("isolation: {error:#}");
        }
    }
}

/// What was counted at a moment.
struct Counts {
    at: Instant,
    machine: Option<CpuTime>,
    foreground_s: f64,
    antagonist_s: f64,
    work: Work,
}

impl Bed<'_> {
    /// Measures. `seed` is the round's, so that all rows of a cell ask the same.
    ///
    /// # Errors
    /// Something did not start; interrupted.
    pub fn measure(&self, cell: Cell, row: Row, seed: u64) -> anyhow::Result<Measurement> {
        let by_weight = !matches!(row, Row::Nice | Row::Idle | Row::Points);
        // Before the pair and the processes, so that it is dropped after them.
        let emptied = Emptied(self.groups);
        let places = self.groups.make(by_weight, row.has_agent())?;
        if row == Row::Quota {
            places.set_quota(suppress::fixed_quota_us(host::cpus()), suppress::PERIOD_US)?;
        }
        let work_folder = self.folder.join("work");
        _ = std::fs::remove_dir_all(&work_folder);
        std::fs::create_dir_all(&work_folder)?;
        let written = self.scratch.empty()?;

        let mut foreground = Client::start(&self.setup(cell, &places, seed)?)?;
        foreground.wait_until_ready()?;
        let mut volunteer = self.volunteer(cell.antagonist, row, &places, &work_folder, &written)?;
        let note = self.wait_until_at_work(row, &volunteer, &work_folder)?;
        let points = (row == Row::Points).then(Points::start).transpose()?;
        let mut suppressed = Suppression::new(row == Row::Threshold, &places);
        let tend = |volunteer: &mut Volunteer, suppressed: &mut Suppression| -> anyhow::Result<()> {
            volunteer.tend()?;
            suppressed.tend(&places)
        };
        let settled = Instant::now() + self.settle;
        while Instant::now() < settled && !foreground.process.ended() {
            tend(&mut volunteer, &mut suppressed)?;
            interrupt::pause(POLL_PERIOD)?;
        }
        let before = count(&places, &work_folder);
        foreground.ask(self.time);
        let answer = foreground.answer(Instant::now() + self.time + END_TIMEOUT, || {
            tend(&mut volunteer, &mut suppressed)?;
            Ok(interrupt::pause(POLL_PERIOD)?)
        })?;
        let after = count(&places, &work_folder);
        let (_, starts) = work::done(&work_folder);
        let expected = match (row, cell.antagonist) {
            (Row::Alone, _) => 0,
            (_, Antagonist::All) => 11,
            _ => 1,
        };
        drop(points);
        drop(volunteer);
        drop(foreground);
        drop(emptied);
        let antagonist_killed = u32::saturating_sub(starts, expected);
        Ok(Measurement { note, ..measurement(answer, &before, &after, antagonist_killed) })
    }

    fn setup(&self, cell: Cell, places: &Places, seed: u64) -> anyhow::Result<Setup> {
        let (folder, scratch) = (self.folder.join("foreground"), self.scratch.folder().join("foreground"));
        for path in [&folder, &scratch] {
            std::fs::create_dir_all(path).with_context(|| format!("failed to make {}", path.display()))?;
        }
        Ok(Setup {
            foreground: cell.foreground,
            seed,
            rounds: self.rounds_of_work,
            // More than half: of two that want all of it, the one that the kernel's choice by size would hit.
            memory: self.memory / 100 * 55,
            folder,
            scratch,
            users: self.network.map(Network::users),
            enter: places.foreground.clone(),
        })
    }

    fn volunteer(
        &self,
        antagonist: Antagonist,
        row: Row,
        places: &Places,
        work: &Path,
        scratch: &Path,
    ) -> anyhow::Result<Volunteer> {
        if row == Row::Alone {
            return Ok(Volunteer::None);
        }
        let agent = row.has_agent();
        let arguments = Arguments {
            antagonist,
            work: work.to_owned(),
            scratch: scratch.to_owned(),
            memory: self.memory.saturating_mul(4),
            stream: self.memory / 4 * 5,
            nice: (row == Row::Nice).then_some(19),
            idle: matches!(row, Row::Idle | Row::Points | Row::Quota),
            enter: if agent { Vec::new() } else { places.antagonist.clone() },
            owned: !agent,
        };
        let program = std::env::current_exe().context("failed to find this program's own file")?;
        if agent {
            let volunteer = self.groups.volunteer();
            let mut pair =
                Pair::start(row, self.gleaner, &self.folder.join("pair"), &volunteer, scratch, self.network)?;
            let words: Vec<String> = arguments.words().iter().map(|word| quoted(word)).collect();
            let task = format!("{} {}", quoted(&program.display().to_string()), words.join(" "));
            if let Err(error) = pair.submit(&task) {
                let logs = pair.logs();
                pair.stop();
                return Err(error.context(logs));
            }
            return Ok(Volunteer::Agent { pair: Box::new(pair) });
        }
        let mut command = Box::new(Command::new(program));
        command.args(arguments.words()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Owned::start(&mut command).context("failed to start the antagonist")?;
        Ok(Volunteer::Direct { command, process })
    }

    /// Where an agent holds the antagonist still because nothing is left over, that is a result, and a sentence.
    fn wait_until_at_work(&self, row: Row, volunteer: &Volunteer, folder: &Path) -> anyhow::Result<Option<String>> {
        let at_work = || row == Row::Alone || work::done(folder).1 > 0;
        let Volunteer::Agent { pair } = volunteer else {
            let came = interrupt::until(START_TIMEOUT, at_work)?;
            return if came {
                Ok(None)
            } else {
                bail!("the antagonist did not start in {} s", START_TIMEOUT.as_secs())
            };
        };
        let weaknesses = pair.weaknesses();
        if interrupt::until(AGENT_TIMEOUT, at_work)? {
            let weaker = format!("weaker protection, says the agent: {}", weaknesses.join("; "));
            return Ok((!weaknesses.is_empty()).then_some(weaker));
        }
        let job = pair.job();
        if job["status"]["progress"]["tasks_running"].as_u64().unwrap_or(0) == 0 {
            bail!(
                "the job has no task after {} s: {}. {}",
                AGENT_TIMEOUT.as_secs(),
                job["status"]["phase"],
                pair.logs()
            );
        }
        Ok(Some(format!(
            "the agent held the antagonist still for its first {} s: nothing was left over",
            AGENT_TIMEOUT.as_secs()
        )))
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl Volunteer {
    /// An antagonist that was killed is started again, as a job's task is.
    fn tend(&mut self) -> anyhow::Result<()> {
        if let Self::Direct { command, process } = self
            && process.ended()
        {
            *process = Owned::start(command).context("failed to start the antagonist again")?;
        }
        Ok(())
    }
}

fn count(places: &Places, work_folder: &Path) -> Counts {
    let (foreground_s, antagonist_s) = places.used_s();
    Counts {
        at: Instant::now(),
        machine: host::cpu_time(Path::new("/proc")),
        foreground_s,
        antagonist_s,
        work: work::done(work_folder).0,
    }
}

fn measurement(answer: Option<Answer>, before: &Counts, after: &Counts, antagonist_killed: u32) -> Measurement {
    let killed = answer.as_ref().is_none_or(|answer| answer.killed);
    let answer = answer.unwrap_or_default();
    let (foreground_s, antagonist_s) =
        (after.foreground_s - before.foreground_s, after.antagonist_s - before.antagonist_s);
    let machine = before.machine.zip(after.machine);
    let (busy_s, idle_s) =
        machine.map_or((0.0, 0.0), |(then, now)| (now.busy_s - then.busy_s, now.idle_s - then.idle_s));
    Measurement {
        responses: Times::new(answer.times_ms).summary().filter(|_| !killed),
        failures: answer.failures,
        foreground_killed: killed,
        antagonist_killed,
        antagonist_cpu_s: antagonist_s.max(0.0),
        foreground_cpu_s: foreground_s.max(0.0),
        idle_s: idle_s.max(0.0),
        others_cpu_s: (busy_s - foreground_s - antagonist_s).max(0.0),
        wall_s: after.at.duration_since(before.at).as_secs_f64(),
        work: Work {
            bytes: after.work.bytes.saturating_sub(before.work.bytes),
            forks: after.work.forks.saturating_sub(before.work.forks),
        },
        note: None,
    }
}

/// The threshold row's loop.
struct Suppression {
    on: bool,
    next: Instant,
    last: (Instant, Option<CpuTime>, f64),
}

impl Suppression {
    fn new(on: bool, places: &Places) -> Self {
        let now = Instant::now();
        Self { on, next: now + SUPPRESS_PERIOD, last: (now, host::cpu_time(Path::new("/proc")), places.used_s().1) }
    }

    fn tend(&mut self, places: &Places) -> anyhow::Result<()> {
        let now = Instant::now();
        if !self.on || now < self.next {
            return Ok(());
        }
        self.next = now + SUPPRESS_PERIOD;
        let (machine, antagonist_s) = (host::cpu_time(Path::new("/proc")), places.used_s().1);
        let (then, before, before_s) = std::mem::replace(&mut self.last, (now, machine, antagonist_s));
        let Some((before, machine)) = before.zip(machine) else { return Ok(()) };
        let time_s = now.duration_since(then).as_secs_f64();
        let cores = |used_s: f64| used_s / time_s;
        let quota =
            suppress::quota_us(host::cpus(), cores(machine.busy_s - before.busy_s), cores(antagonist_s - before_s));
        places.set_quota(quota, suppress::PERIOD_US)
    }
}

/// A foreground's process.
struct Client {
    process: Owned,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Client {
    fn start(setup: &Setup) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("failed to find this program's own file")?;
        let log = setup.folder.join("log");
        let mut command = Command::new(program);
        command.args(setup.words()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log)?);
        let mut process = Owned::start(&mut command).context("failed to start the foreground")?;
        let (sender, lines) = channel();
        if let Some(output) = process.0.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { process, lines, log })
    }

    /// The next line, or nothing if it ended.
    fn line(
        &self,
        until: Instant,
        mut meanwhile: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<String>> {
        loop {
            match self.lines.try_recv() {
                Ok(line) => return Ok(Some(line)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) if Instant::now() > until => bail!("the foreground does not answer"),
                Err(TryRecvError::Empty) => meanwhile()?,
            }
        }
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        match self.line(Instant::now() + START_TIMEOUT, || Ok(interrupt::pause(POLL_PERIOD)?))? {
            Some(line) if line == "ready" => Ok(()),
            _ => {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the foreground does not start: {}", said.trim())
            }
        }
    }

    fn ask(&mut self, time: Duration) {
        // One that was killed does not read; its answer is that there is none.
        if let Some(input) = &mut self.process.0.stdin {
            _ = writeln!(input, "measure {}", time.as_secs_f64());
        }
    }

    fn answer(&self, until: Instant, meanwhile: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Option<Answer>> {
        let line = self.line(until, meanwhile)?;
        Ok(line.and_then(|line| foreground::answer(&line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(machine: (f64, f64), foreground_s: f64, antagonist_s: f64, bytes: u64) -> Counts {
        Counts {
            at: Instant::now(),
            machine: Some(CpuTime { busy_s: machine.0, idle_s: machine.1 }),
            foreground_s,
            antagonist_s,
            work: Work { bytes, forks: 0 },
        }
    }

    #[test]
    fn a_measurement_is_the_difference_of_two_counts() {
        let answer = Answer { times_ms: vec![1.0, 3.0], failures: 2, killed: false };
        let one = measurement(Some(answer), &counts((10.0, 5.0), 1.0, 2.0, 7), &counts((30.0, 6.0), 4.0, 12.0, 17), 1);
        assert_eq!((one.foreground_cpu_s, one.antagonist_cpu_s, one.others_cpu_s, one.idle_s), (3.0, 10.0, 7.0, 1.0));
        assert_eq!((one.work.bytes, one.failures, one.antagonist_killed), (10, 2, 1));
        assert!((one.responses.unwrap().mean_ms - 2.0).abs() < 1e-9);
        let killed = measurement(None, &counts((0.0, 0.0), 0.0, 0.0, 0), &counts((0.0, 0.0), 0.0, 0.0, 0), 0);
        assert!(killed.foreground_killed && killed.responses.is_none());
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
