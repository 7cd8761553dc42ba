//! Advice before acting: how many cores hosts could give for a time at a risk. In: reports, for each host's [`History`],
//! and an operator's [`Question`]. Out: [`Advice`] for `gleaner advise`. The aggregator's shell keeps the histories. Ours;
//! the papers size jobs by the expected residual and never say what could be promised.
//!
//! The risk is the probability that a host's mean residual over the time is below the promise. A host's promise is its
//! forecast minus an allowance for the forecast's error. The allowance is a quantile of the errors that this host's
//! forecasts had over windows of that length. Order statistics of past errors hold with probability 1 − r for any
//! distribution of the errors, if r·(n + 1) ≥ 1 for n windows that do not overlap and the future is like the past
//! (conformal prediction: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005, §2.2). With fewer
//! windows the largest error is extrapolated, and the answer says so.
//!
//! Where the agent's own promise is for as long and at the same risk, that one is used (`forecast.lookahead_s`,
//! `forecast.risk`). It serves no other length and risk, so the history stays.
//!
//! Promises are per host. Their sum has the same risk when all hosts fail together, and a smaller one otherwise.

use std::collections::VecDeque;

use gleaner_types::id::{HostId, JobId};
use gleaner_types::report::{
    Absence, AbsenceKind, Bounded, Capability, HostFacts, HostReport, Reading, ResidualForecast, VolunteerKind,
};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use crate::broken_promises::{Verdict, verdict};
use crate::controller::HeldUntil;

/// Length of a step of a history, in milliseconds.
const STEP_MS: u64 = 60_000;
/// Minutes by which a report may be older than the last one; of an older one the clock was ahead before. Chosen.
const MOST_BEHIND: u64 = 60;
/// Steps kept: a day, enough for a risk of 1 % over 10 minutes.
const MOST_STEPS: usize = 1_440;
/// Shares are kept as parts of the host's capacity in so many parts: two bytes each, for fleets of ten thousand hosts.
const PARTS: f64 = 60_000.0;
/// Stands for a step without a sample.
const UNSEEN: u16 = u16::MAX;
/// Windows needed before anything is promised. Chosen: two differ by chance.
const LEAST_WINDOWS: usize = 3;

/// Windows needed before a host's own promise counts. Chosen; likewise.
const LEAST_STATED: u32 = 3;

/// Shortest and longest time that can be asked about, in seconds. The longest leaves four windows in a whole history.
pub const FOR_S: (f64, f64) = (60.0, 21_600.0);
/// Least and largest risk that can be asked about.
pub const RISK: (f64, f64) = (0.001, 0.5);

/// Digits of a step in [`KeptHistory`].
const STEP_DIGITS: usize = 8;

/// A [`History`] as it is kept over a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptHistory {
    /// Number, since the Unix epoch, of the minute that follows the last step.
    pub minute: u64,
    /// The steps, the oldest first: of each the foreground's mean CPU and what was expected from there on, in parts of
    /// the host (60,000 is all of it, 65,535 is not known), as four hexadecimal digits each.
    pub steps: String,
}

impl KeptHistory {
    /// Nothing in it counts any more at this time.
    #[must_use]
    pub const fn is_over(&self, now: Timestamp) -> bool {
        (now.0 / STEP_MS).saturating_sub(self.minute) > MOST_STEPS as u64
    }
}

/// What one host's foreground used and was expected to use, minute by minute over the last day.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Mean foreground CPU of a minute, and what the forecast at its end expected from there on.
    steps: VecDeque<(u16, u16)>,
    /// Number of the current minute.
    minute: Option<u64>,
    /// Seconds sampled in it, and their weighted sum of parts.
    seen: (f64, f64),
    /// What the last forecast in it expected.
    expected: Option<f64>,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is to be kept over a restart: the minutes that are over. `None` before the first report.
    #[must_use]
    pub fn kept(&self) -> Option<KeptHistory> {
        let mut steps = String::with_capacity(self.steps.len() * STEP_DIGITS);
        for (demand, expected) in &self.steps {
            steps.push_str(&format!("{demand:04x}{expected:04x}"));
        }
        Some(KeptHistory { minute: self.minute?, steps })
    }

    /// A history that goes on from what was kept. The minutes until the next report are a gap in it. `None` for what
    /// [`kept`](Self::kept) never gives.
    #[must_use]
    pub fn resumed(kept: &KeptHistory) -> Option<Self> {
        let is_share = |number: &u16| f64::from(*number) <= PARTS || *number == UNSEEN;
        let share = |digits: &str| u16::from_str_radix(digits, 16).ok().filter(is_share);
        let text = &kept.steps;
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || text.len() > MOST_STEPS * STEP_DIGITS {
            return None;
        }
        let places = (0..text.len()).step_by(STEP_DIGITS);
        let step = |place: usize| Some((share(text.get(place..place + 4)?)?, share(text.get(place + 4..place + 8)?)?));
        let steps = places.map(step).collect::<Option<VecDeque<_>>>()?;
        Some(Self { steps, minute: Some(kept.minute), ..Self::default() })
    }

    /// Takes a report. One without foreground CPU leaves a gap; one from before the last is ignored.
    pub fn observe(&mut self, report: &HostReport) {
        let forecast = report.residual.cpu.value().map(|cpu| cpu.expected);
        let foreground = report.machine.cpu_foreground.value().copied();
        self.sample(report.at, report.interval_s, report.machine.cpu_capacity, foreground, forecast);
    }

    /// The same from plain values: foreground CPU over the interval, and the residual that is expected now.
    pub fn sample(
        &mut self,
        at: Timestamp,
        interval_s: f64,
        capacity: CoreShare,
        foreground: Option<CoreShare>,
        residual: Option<CoreShare>,
    ) {
        let minute = at.0 / STEP_MS;
        match self.minute {
            // What was seen while the clock was ahead is of times that nobody knows.
            Some(going_on) if going_on - minute.min(going_on) > MOST_BEHIND => *self = Self::default(),
            Some(going_on) if minute < going_on => return,
            Some(going_on) if minute > going_on => self.turn(minute - going_on),
            _ => {}
        }
        self.minute = Some(minute);
        if capacity <= CoreShare::ZERO {
            return;
        }
        let part = |share: CoreShare| (share.percent() / capacity.percent()).clamp(0.0, 1.0);
        if let Some(foreground) = foreground {
            let interval_s = if interval_s.is_finite() { interval_s.clamp(0.0, 60.0) } else { 0.0 };
            self.seen.0 += interval_s;
            self.seen.1 += interval_s * part(foreground);
        }
        if let Some(residual) = residual {
            self.expected = Some(1.0 - part(residual));
        }
    }

    /// Lower bound of the mean CPU that a host will leave, by its present forecast and the errors of its past ones.
    ///
    /// # Errors
    /// [`Absence`] saying how much longer it must be watched.
    pub fn promise(
        &self,
        question: &Question,
        capacity: CoreShare,
        forecast: Bounded<CoreShare>,
    ) -> Result<(CoreShare, Basis), Absence> {
        let spread = (forecast.expected - forecast.safe) / capacity.percent().max(f64::MIN_POSITIVE);
        let (allowance, basis) = self.allowance(question.window(), question.risk, spread)?;
        let promised = CoreShare::clamped(forecast.expected.percent() - allowance * capacity.percent());
        Ok((promised.min(capacity), basis))
    }

    /// A minute is over, `passed` of them before the next sample.
    fn turn(&mut self, passed: u64) {
        // Half a minute of samples represents the whole.
        let mean = (self.seen.0 >= 30.0).then(|| stored(self.seen.1 / self.seen.0));
        let expected = self.expected.take().map(stored);
        self.push((mean.unwrap_or(UNSEEN), expected.unwrap_or(UNSEEN)));
        self.seen = (0.0, 0.0);
        for _ in 1..passed.min(MOST_STEPS as u64) {
            self.push((UNSEEN, UNSEEN));
        }
    }

    fn push(&mut self, step: (u16, u16)) {
        if self.steps.len() >= MOST_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// By how much the mean demand of the `window` minutes after each minute exceeded what was expected at its end, in
    /// parts of the host: overlapping, in order of time. A window with a gap is left out.
    fn errors(&self, window: usize) -> Vec<f64> {
        let mut errors = Vec::new();
        let (mut sum, mut seen) = (0.0, 0);
        for end in 0..self.steps.len() {
            let demand = |place: usize| Some(self.steps[place].0).filter(|demand| *demand != UNSEEN).map(f64::from);
            if let Some(demand) = demand(end) {
                sum += demand;
                seen += 1;
            }
            if end < window {
                continue;
            }
            // Minutes end - window + 1 ..= end follow the forecast of minute end - window.
            let start = end - window;
            if let Some(demand) = demand(start) {
                sum -= demand;
                seen -= 1;
            }
            let expected = self.steps[start].1;
            if seen == window && expected != UNSEEN {
                errors.push((sum / window as f64 - f64::from(expected)) / PARTS);
            }
        }
        errors
    }

    /// What the mean demand over `window` minutes will exceed the forecast by with probability `risk` at most, in parts
    /// of the host; `spread` is what the forecast itself keeps between what it expects and what it promises.
    fn allowance(&self, window: usize, risk: f64, spread: f64) -> Result<(f64, Basis), Absence> {
        let mut errors = self.errors(window);
        // Overlapping windows add no information to those that do not overlap.
        let windows = errors.len().div_ceil(window);
        if windows < LEAST_WINDOWS {
            let minutes = (LEAST_WINDOWS - 1) * window + 1;
            // A forecast is judged when its window is over.
            let before_the_first = window.saturating_sub(self.steps.len());
            let left = (minutes + before_the_first).saturating_sub(errors.len());
            let left = duration(left as f64 * STEP_MS as f64 / 1_000.0);
            let detail = format!("its forecasts were not watched for long enough; another {left} are needed");
            return Err(not_yet(detail));
        }
        let n = windows as f64;
        // The ⌈(n + 1)(1 − r)⌉-th of n errors; past the last, only a guess remains.
        let rank = ((n + 1.0) * (1.0 - risk)).ceil();
        if rank <= n {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the errors' number")]
            let place = ((errors.len() as f64 * rank / n).ceil() as usize).clamp(1, errors.len());
            // Thousands of hosts are asked at once, in the core loop: an order statistic needs no sorting.
            let (_, allowance, _) = errors.select_nth_unstable_by(place - 1, f64::total_cmp);
            return Ok((*allowance, Basis::Observed { windows: count(windows) }));
        }
        let largest = errors.into_iter().max_by(f64::total_cmp).unwrap_or(0.0);
        // An exponential tail through the largest: heavier than a normal one.
        let stretch = (1.0 / risk).ln() / (n + 1.0).ln();
        Ok((largest.max(spread) * stretch.max(1.0), Basis::Stretched { windows: count(windows) }))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn stored(part: f64) -> u16 {
    (part.clamp(0.0, 1.0) * PARTS).round() as u16
}

fn count(windows: usize) -> u32 {
    u32::try_from(windows).unwrap_or(u32::MAX)
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// For how long, in seconds; [`FOR_S`]. Counted in whole minutes, rounded up.
    pub for_s: f64,
    /// Probability that a promise may turn out too high; [`RISK`].
    pub risk: f64,
}

/// A question that is out of bounds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuestionError {
    /// The time.
    #[error("for_s: is {0}; it must be 60 to 21600 seconds (1 minute to 6 hours)")]
    For(f64),
    /// The risk.
    #[error("risk: is {0}; it must be 0.001 to 0.5 (0.1 % to 50 %)")]
    Risk(f64),
}

impl Question {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`QuestionError`] naming the field.
    pub fn check(&self) -> Result<(), QuestionError> {
        if !(FOR_S.0..=FOR_S.1).contains(&self.for_s) {
            return Err(QuestionError::For(self.for_s));
        }
        if !(RISK.0..=RISK.1).contains(&self.risk) {
            return Err(QuestionError::Risk(self.risk));
        }
        Ok(())
    }

    fn window(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 6 hours")]
        let minutes = (self.for_s.clamp(FOR_S.0, FOR_S.1) / 60.0).ceil() as usize;
        minutes
    }
}

/// What a promise rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The host's own promise, which its agent makes for as long and at the same risk as was asked, and judges itself.
    Stated {
        /// Windows of the last day that it was judged by.
        windows: u32,
    },
    /// Past errors of this host's forecasts suffice for the risk.
    Observed {
        /// Windows of the asked length that do not overlap.
        windows: u32,
    },
    /// There are fewer windows than the risk needs: the largest error was extrapolated along an exponential tail. A
    /// conservative guess.
    Stretched {
        /// Windows of the asked length that do not overlap.
        windows: u32,
    },
}

/// What can be promised of one host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// Mean CPU it will leave at least, with probability 1 − risk.
    pub cpu: CoreShare,
    /// Mean CPU it is expected to leave.
    pub expected: CoreShare,
    /// Memory that its forecast promises.
    pub memory: Option<Bytes>,
    /// What the promise rests on.
    pub basis: Basis,
}

/// Whether a host may act now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its volunteer may run.
    Ready,
    /// Its agent observes only. Its promise is available once acting is switched on.
    Observing {
        /// What acting would need there, and which protections are missing, in sentences.
        needs: Vec<String>,
    },
    /// An operator holds it.
    Held {
        /// Until when.
        until: HeldUntil,
    },
    /// Its agent acts, but it can give nothing.
    Unable {
        /// Why.
        reason: String,
    },
}

/// Advice about one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostAdvice {
    /// The host.
    pub host: HostId,
    /// Whether it may act now.
    pub standing: Standing,
    /// What can be promised of it, or why nothing can.
    pub promise: Reading<Promise>,
    /// What its volunteer uses of that already; `None` where it is not known.
    pub in_use: Option<CoreShare>,
    /// The job its volunteer works for.
    pub job: Option<JobId>,
}

/// Advice about a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What was asked.
    pub question: Question,
    /// Promised by hosts that may act now, where it is known; `None` where it is known of none of them.
    pub ready: Option<CoreShare>,
    /// In use by their volunteers already; likewise.
    pub in_use: Option<CoreShare>,
    /// Promised by hosts that observe only; likewise.
    pub observing: Option<CoreShare>,
    /// The hosts, by name.
    pub hosts: Vec<HostAdvice>,
}

/// Everything known of a host when advice is requested.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The host.
    pub host: &'a HostId,
    /// Static facts.
    pub facts: &'a HostFacts,
    /// Its last report, unless it is disconnected or silent.
    pub report: Option<&'a HostReport>,
    /// The errors of its forecasts.
    pub history: Option<&'a History>,
    /// What applications with response-time targets leave of it, or why nothing.
    pub left: Result<CoreShare, &'a str>,
    /// An operator holds it.
    pub held_until: Option<HeldUntil>,
    /// The job its volunteer works for.
    pub job: Option<&'a JobId>,
}

/// Advice about one host.
#[must_use]
pub fn about(question: &Question, candidate: &Candidate<'_>) -> HostAdvice {
    let used = candidate.report.and_then(|report| report.volunteer.cpu.value().copied());
    HostAdvice {
        host: candidate.host.clone(),
        standing: standing(candidate),
        promise: promise(question, candidate).into(),
        in_use: used,
        job: candidate.job.cloned(),
    }
}

/// Adds up advice about hosts.
#[must_use]
pub fn total(question: Question, hosts: Vec<HostAdvice>) -> Advice {
    // Nothing is the sum of no hosts, but not of hosts of which nothing is known.
    let sum = |wanted: fn(&Standing) -> bool, of: fn(&HostAdvice) -> Option<CoreShare>| {
        let mut shares = hosts.iter().filter(|own| wanted(&own.standing)).map(of).peekable();
        let none = shares.peek().is_none();
        let known: Vec<CoreShare> = shares.flatten().collect();
        (none || !known.is_empty()).then(|| known.into_iter().sum())
    };
    let promised = |own: &HostAdvice| own.promise.value().map(|promise| promise.cpu);
    let is_ready = |standing: &Standing| *standing == Standing::Ready;
    let ready = sum(is_ready, promised);
    let observing = sum(|standing| matches!(standing, Standing::Observing { .. }), promised);
    let in_use = sum(is_ready, |own| own.in_use);
    Advice { question, ready, in_use, observing, hosts }
}

fn standing(candidate: &Candidate<'_>) -> Standing {
    let levers = &candidate.facts.levers;
    if let Some(until) = candidate.held_until {
        return Standing::Held { until };
    }
    if !levers.acting {
        return Standing::Observing { needs: needs(candidate.facts) };
    }
    if levers.volunteer == VolunteerKind::None {
        let why = levers.weaknesses.first().cloned().unwrap_or_else(|| "it has no volunteer".to_owned());
        return Standing::Unable { reason: why };
    }
    match candidate.left {
        Err(reason) => Standing::Unable { reason: reason.to_owned() },
        Ok(_) => Standing::Ready,
    }
}

/// What acting would need, by what the agent found on the host.
fn needs(facts: &HostFacts) -> Vec<String> {
    let mut needs = vec!["set act.enabled in its agent.toml, or start its agent with --act".to_owned()];
    let wanted = [
        (Capability::CpuQuota, "without a ceiling on CPU the volunteer is held by stopping it whole"),
        (Capability::CpuIdle, "without the idle class for groups the volunteer competes at the least weight"),
        (Capability::Freezer, "without a freezer the volunteer's processes are stopped one by one"),
    ];
    for (capability, consequence) in wanted {
        let offer = facts.offers.iter().find(|offer| offer.capability == capability);
        if let Some(Reading::Absent(absence)) = offer.map(|offer| &offer.state) {
            needs.push(format!("{consequence} ({})", absence.detail()));
        }
    }
    needs.extend(facts.levers.weaknesses.iter().cloned());
    needs
}

fn not_yet(detail: impl Into<String>) -> Absence {
    Absence::described(AbsenceKind::NotYet, detail)
}

fn promise(question: &Question, candidate: &Candidate<'_>) -> Result<Promise, Absence> {
    let gone = || Absence::described(AbsenceKind::Vanished, "its agent is not connected or has not reported lately");
    let report = candidate.report.ok_or_else(gone)?;
    let cpu = match &report.residual.cpu {
        Reading::Value(cpu) => *cpu,
        Reading::Absent(absence) => return Err(absence.clone()),
    };
    let capacity = report.machine.cpu_capacity;
    if capacity <= CoreShare::ZERO {
        return Err(Absence::described(AbsenceKind::Malformed, "it reports no CPU"));
    }
    let (promised, basis) = match stated(question, &report.residual) {
        Some(windows) => (cpu.safe.min(capacity), Basis::Stated { windows }),
        None => {
            let history = candidate.history.ok_or_else(|| not_yet("its forecasts were not watched yet"))?;
            history.promise(question, capacity, cpu)?
        }
    };
    let left = candidate.left.unwrap_or(CoreShare::ZERO);
    Ok(Promise {
        cpu: promised.min(left),
        expected: cpu.expected.min(left),
        memory: report.residual.memory.value().map(|memory| memory.safe),
        basis,
    })
}

/// The windows by which a host's own promise is judged, where it is a promise of what is asked: for as long, at the same
/// risk, and by a host of whose promises no larger part broke.
fn stated(question: &Question, forecast: &ResidualForecast) -> Option<u32> {
    let windows = forecast.windows?;
    let same = |one: f64, other: f64| (one - other).abs() <= 1e-6 * other.abs();
    let is_asked = same(forecast.lookahead_s, question.for_s) && same(windows.risk.value(), question.risk);
    let few_and_whole = windows.judged >= LEAST_STATED && windows.broken == 0;
    let holds = few_and_whole || verdict(&windows) == Verdict::Kept;
    (is_asked && holds).then_some(windows.judged)
}

#[cfg(test)]
mod tests;
