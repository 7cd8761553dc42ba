//! The harm meter: a thread that compares how long the foreground waits for CPU, disk and memory, and how many cycles its
//! instructions take, with the volunteer and without. In: workloads, from the agent's loop, which starts it; their
//! counters. Out: the host's harm for the report, and an event when a workload's budget is crossed. With
//! `guard.follow_harm`, each trial also goes to [`following`], and the posture that it chooses goes to the guard.
//!
//! For a trial the meter pauses the volunteer for a short window at a random moment. A trial reads the counters four
//! times; in between the thread sleeps. A trial does not count if the guard froze the volunteer during it, or if the
//! volunteer did not run or could not be held.

mod by_hand;
#[cfg(test)]
mod disk_tests;
mod following;
#[cfg(test)]
mod following_tests;
mod holder;
mod record;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::harm::{Budgets, Compared, Crossing, Edge, HarmTracker, SETTLING_TIME, Schedule, Skipped, Trial};
use gleaner_planner::protecting::{Change, Posture};
use gleaner_types::event::Event;
use gleaner_types::id::WorkloadId;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{Absence, Reading, Reason, VolunteerState};

pub use self::by_hand::HarmByHand;
use self::following::{Following, Taken, changed};
pub(crate) use self::holder::{GuardedVolunteer, Holder};
pub(crate) use self::record::{Circumstances, Recalled};
use self::record::{Record, since_boot};
use crate::online_cpus::cpus;
use crate::sense::run_queue::{Counted, OpenCounters, QueueSource, RunQueues, ask_hypervisor, compare, worked};

/// A thread that wakes later than this has lost its trial: the guard lets the volunteer go by itself.
const LATENESS: Duration = Duration::from_millis(400);
/// Least part of a window in which a volunteer that runs uses one CPU.
const RUNS: f64 = 0.01;
/// Most events kept for a caller that does not fetch them.
const EVENTS: usize = 64;
/// While CPUs are kept free of the volunteer, that they still are is checked at least this often.
const SPARE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What is measured, how often, and what follows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HarmSettings {
    /// Part of the time in which the volunteer is held still; 0 measures nothing.
    pub(crate) pause_share: f64,
    /// The most harm there should be.
    pub(crate) budgets: Budgets,
    /// The volunteer is held by the harm it does.
    pub(crate) follow: bool,
}

#[derive(Debug)]
struct State {
    quit: bool,
    settings: HarmSettings,
    /// Raised when the settings change: the next trial is drawn anew.
    generation: u64,
    sources: Vec<(WorkloadId, QueueSource)>,
    harm: HostHarm,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Plain values, valid in any combination.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps; false if the thread must end or the settings changed meanwhile.
    fn sleep(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        let generation = state.generation;
        loop {
            if state.quit || state.generation != generation {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The meter. Dropping it lets the volunteer go and ends the thread.
#[derive(Debug)]
pub(crate) struct HarmMeter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HarmMeter {
    /// Starts the thread, which goes on with what an earlier agent learnt. Equal seeds draw equal moments.
    ///
    /// # Errors
    /// The system's error when no thread can be started.
    pub(crate) fn start(
        settings: HarmSettings,
        holder: Box<dyn Holder>,
        queues: RunQueues,
        seed: u64,
        recalled: Recalled,
    ) -> std::io::Result<Self> {
        let Recalled { record, remembered, warning } = recalled;
        let pause_share = settings.pause_share;
        let state = State {
            quit: false,
            settings,
            generation: 0,
            sources: Vec::new(),
            harm: HostHarm::because(Reason::VolunteerNeverRan),
            events: warning.into_iter().collect(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            holder,
            queues,
            schedule: Schedule::new(seed, pause_share),
            tracker: HarmTracker::default(),
            following: Following { recalled: remembered, ..Following::default() },
            record,
            paused: Duration::ZERO,
            buffer: Vec::new(),
        };
        let thread = thread::Builder::new().name("harm".to_owned()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Goes on with other settings.
    pub(crate) fn set_settings(&self, settings: HarmSettings) {
        let mut state = self.shared.lock();
        if state.settings != settings {
            state.settings = settings;
            state.generation += 1;
            self.shared.changed.notify_all();
        }
    }

    /// What the foreground is from now on.
    pub(crate) fn set_sources(&self, sources: Vec<(WorkloadId, QueueSource)>) {
        self.shared.lock().sources = sources;
    }

    /// What holds the volunteer has changed: the thread checks it at once.
    pub(crate) fn check_holder(&self) {
        self.shared.lock().generation += 1;
        self.shared.changed.notify_all();
    }

    /// The harm as of the last trial.
    pub(crate) fn harm(&self) -> HostHarm {
        self.shared.lock().harm.clone()
    }

    /// What happened since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.lock().events)
    }
}

impl Drop for HarmMeter {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed; the guard lets the volunteer go by itself.
            _ = thread.join();
        }
    }
}

/// Lifts the posture, however the thread ends: nothing else would ever lift it.
impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.holder.protect(Posture::Open);
    }
}

/// What the thread owns.
struct Worker {
    shared: Arc<Shared>,
    holder: Box<dyn Holder>,
    queues: RunQueues,
    schedule: Schedule,
    tracker: HarmTracker,
    /// How the volunteer is held, where that follows the harm.
    following: Following,
    /// Where what is learnt is stored, if it is.
    record: Option<Record>,
    paused: Duration,
    buffer: Vec<u8>,
}

/// One reading of all workloads, and of the volunteer's CPU time.
struct Snapshot {
    counted: Vec<Result<Counted, Absence>>,
    volunteer_ns: Option<u64>,
    at: Instant,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let (settings, quit) = {
                let state = self.shared.lock();
                (state.settings.clone(), state.quit)
            };
            if quit {
                self.remember(true);
                return;
            }
            self.forget_what_does_not_apply(&settings);
            self.follow(&settings);
            self.schedule.set_pause_share(settings.pause_share * self.following.pace(since_boot()));
            self.publish(&settings);
            self.remember(false);
            let Some(trial) = self.schedule.next_trial() else {
                self.shared.sleep(Duration::from_secs(3_600));
                continue;
            };
            if !self.wait(trial.wait, &settings) {
                continue;
            }
            match self.trial(trial) {
                Ok(measured) => {
                    self.weigh(&measured.compared, measured.cores, &settings.budgets);
                    self.tracker.record(since_boot(), measured.compared);
                    if let Some(why) = measured.uncounted {
                        self.tracker.uncounted(why);
                    }
                }
                Err(Some(skipped)) => self.tracker.skip(skipped),
                Err(None) => {}
            }
            self.tracker.forget(since_boot());
        }
    }

    /// Waits for the next trial; false as of [`Shared::sleep`]. CPUs that are no longer kept free are not counted on meanwhile.
    fn wait(&mut self, duration: Duration, settings: &HarmSettings) -> bool {
        let until = Instant::now() + duration;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let spares = self.following.posture().spare_cpus() > 0;
            if !self.shared.sleep(if spares { left.min(SPARE_CHECK_INTERVAL) } else { left }) {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            if spares && !self.holder.can_spare() {
                self.follow(settings);
                self.publish(settings);
            }
        }
    }

    /// Begins or ceases to hold the volunteer by its harm, as the settings say, and takes the steps that are due by
    /// time alone.
    fn follow(&mut self, settings: &HarmSettings) {
        // Without trials nothing would ever be learnt.
        let wanted = settings.follow && settings.pause_share > 0.0;
        let change = self.following.follow(wanted, &*self.holder, cpus(), since_boot());
        self.tell(change);
    }

    /// What follows from a trial.
    fn weigh(&mut self, compared: &[Compared], cores: f64, budgets: &Budgets) {
        let now = since_boot();
        let change = self.following.trial(&Taken { compared, cores, budgets }, &*self.holder, cpus(), now);
        self.tell(change);
    }

    /// What an earlier agent learnt and no longer applies to this host is not used any more. Its file is removed, and nothing
    /// more is stored until the next start.
    fn forget_what_does_not_apply(&mut self, settings: &HarmSettings) {
        if let Some(record) = self.record.take_if(|record| !record.applies(cpus(), &settings.budgets)) {
            record.remove();
            self.following.forget_recalled();
        }
    }

    /// Stores what is learnt.
    fn remember(&mut self, at_end: bool) {
        if let (Some(record), Some(remembered)) = (&mut self.record, self.following.to_remember()) {
            record.save(&remembered, since_boot(), at_end);
        }
    }

    /// Makes an event of a change of posture.
    fn tell(&self, change: Option<Change>) {
        let Some(change) = change else { return };
        let mut state = self.shared.lock();
        if state.events.len() < EVENTS {
            state.events.push(changed(&change));
        }
    }

    /// One trial; the volunteer is let go in every case. `Err(None)`: it was interrupted, or came too late.
    fn trial(&mut self, trial: Trial) -> Result<Measured, Option<Skipped>> {
        let (state, freezes) = self.holder.runs();
        Self::unless_frozen(state)?;
        let sources = self.shared.lock().sources.clone();
        let mut open = self.queues.open(&sources, Instant::now());
        let with_from = self.snapshot(&mut open);
        self.sleep(trial.window)?;
        let with_to = self.snapshot(&mut open);
        self.check_guard(freezes)?;
        let ran = volunteer_share(&with_from, &with_to).ok_or(Some(Skipped::NotRunning))?;
        if ran < RUNS {
            return Err(Some(Skipped::NotRunning));
        }
        let begin = Instant::now();
        let until = begin + trial.held() + LATENESS;
        if !self.holder.hold(until) {
            return Err(Some(Skipped::NotHeld));
        }
        let window = self.held(trial, &mut open);
        self.holder.release();
        self.paused += begin.elapsed();
        let (from, to) = window?;
        if to.at >= until {
            return Err(None);
        }
        self.check_guard(freezes)?;
        let ran_on = volunteer_share(&from, &to).unwrap_or(0.0);
        if self.holder.counts_alone() && ran_on > ran / 2.0 {
            return Err(Some(Skipped::NotHeld));
        }
        let counts = with_from.counted.iter().zip(&with_to.counted).zip(from.counted.iter().zip(&to.counted));
        let mut uncounted = None;
        let mut compared = |((a, b), (c, d)): Quadruple<'_>| -> Result<_, Absence> {
            let of = |counted: &'_ Result<Counted, Absence>| counted.clone();
            let readings = [of(a)?, of(b)?, of(c)?, of(d)?];
            if let Err(why) = worked(readings.each_ref()) {
                uncounted.get_or_insert(why);
            }
            compare(readings.each_ref())
        };
        let ids = sources.into_iter().map(|(id, _)| id);
        let compared = ids.zip(counts.map(&mut compared)).collect();
        Ok(Measured { compared, cores: ran, uncounted })
    }

    /// The window without the volunteer.
    fn held(
        &mut self,
        trial: Trial,
        open: &mut [(WorkloadId, OpenCounters)],
    ) -> Result<(Snapshot, Snapshot), Option<Skipped>> {
        self.sleep(SETTLING_TIME)?;
        let from = self.snapshot(open);
        self.sleep(trial.window)?;
        Ok((from, self.snapshot(open)))
    }

    fn sleep(&self, duration: Duration) -> Result<(), Option<Skipped>> {
        if self.shared.sleep(duration) { Ok(()) } else { Err(None) }
    }

    const fn unless_frozen(state: VolunteerState) -> Result<(), Option<Skipped>> {
        match state {
            VolunteerState::Active => Ok(()),
            VolunteerState::Frozen => Err(Some(Skipped::HeldByGuard)),
            _ => Err(Some(Skipped::NotRunning)),
        }
    }

    /// The guard has not frozen the volunteer since the trial began. It looks at the foreground alike with the volunteer
    /// and without, so what is left out this way is left out of both sides.
    fn check_guard(&self, freezes: u64) -> Result<(), Option<Skipped>> {
        let (state, now) = self.holder.runs();
        Self::unless_frozen(state)?;
        if now == freezes { Ok(()) } else { Err(Some(Skipped::HeldByGuard)) }
    }

    fn snapshot(&mut self, open: &mut [(WorkloadId, OpenCounters)]) -> Snapshot {
        let volunteer_ns = self.holder.cpu_ns();
        let waits = ask_hypervisor(open);
        let counted = open.iter_mut().map(|(_, queue)| queue.read(&mut self.buffer, &waits)).collect();
        Snapshot { counted, volunteer_ns, at: Instant::now() }
    }

    /// Stores what is known, for [`HarmMeter::harm`].
    fn publish(&mut self, settings: &HarmSettings) {
        let foreground = match settings.pause_share > 0.0 {
            true => self.tracker.foreground(),
            false => Reading::because(Reason::PausesSwitchedOff),
        };
        let crossings = self.tracker.crossings(&settings.budgets);
        let harm = HostHarm {
            foreground,
            workloads: self.tracker.workloads(),
            budget_percent: settings.budgets.all_percent,
            paused_s: self.paused.as_secs_f64(),
            protection: self.following.protection(),
            // The guard forces them, and says so.
            scheduling_points: None,
            cpi: (settings.pause_share > 0.0).then(|| self.tracker.cpi()),
        };
        let mut state = self.shared.lock();
        state.harm = harm;
        for crossing in crossings {
            tracing::info!(workload = %crossing.workload, harm = %crossing.harm, edge = ?crossing.edge, "harm crossed the budget");
            if state.events.len() < EVENTS {
                let budget_percent = settings.budgets.of(&crossing.workload);
                state.events.push(event(crossing, budget_percent));
            }
        }
    }
}

/// What a trial measured.
struct Measured {
    compared: Vec<Compared>,
    /// CPUs that the volunteer used before it was held.
    cores: f64,
    /// Why the CPU's counters say nothing of some workload.
    uncounted: Option<Absence>,
}

/// A workload's four readings.
type Quadruple<'a> = (
    (&'a Result<Counted, Absence>, &'a Result<Counted, Absence>),
    (&'a Result<Counted, Absence>, &'a Result<Counted, Absence>),
);

/// CPUs that the volunteer used on average between two snapshots.
fn volunteer_share(from: &Snapshot, to: &Snapshot) -> Option<f64> {
    let used = to.volunteer_ns?.saturating_sub(from.volunteer_ns?);
    let window_s = to.at.duration_since(from.at).as_secs_f64();
    (window_s > 0.0).then(|| used as f64 / 1e9 / window_s)
}

fn event(crossing: Crossing, budget_percent: f64) -> Event {
    let Crossing { workload, harm, edge } = crossing;
    let (mean_percent, low_percent, high_percent) = (harm.mean_percent, harm.low_percent, harm.high_percent);
    match edge {
        Edge::Over => Event::HarmOverBudget { workload, mean_percent, low_percent, high_percent, budget_percent },
        Edge::Within => Event::HarmWithinBudget { workload, mean_percent, low_percent, high_percent, budget_percent },
    }
}
