//! Predicts what the foreground will leave free: an expected value and a bound that can be promised (RHIC
//! §4.2, "Residual resource prediction"). Fed once a sample, it also judges its own promises afterwards.

mod choice;
mod methods;
mod window;

use std::collections::VecDeque;

use gleaner_types::report::{AbsenceKind, Bounded, ForecastMethod, PromiseRecord, Reading, ResidualForecast};
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use choice::Choice;
use window::{Maximum, Window};

/// Samples needed before anything is predicted. Chosen: below three there is no spread to speak of.
const LEAST_SAMPLES: usize = 3;

/// How often the bound of [`ForecastMethod::Best`] may turn out too low. Chosen: a promise in a hundred.
const VIOLATIONS: f64 = 0.01;

/// Most samples any window keeps, whatever the settings: an hour at 10 Hz.
const MOST_SAMPLES: usize = 36_000;

/// How to predict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ForecastSettings {
    /// Method. The papers found the moving average best on interactive sessions (RHIC Fig. 8).
    pub method: ForecastMethod,
    /// History used, in seconds.
    pub history_s: f64,
    /// How far to look ahead, in seconds.
    pub lookahead_s: f64,
    /// Standard deviations between the expected and the safe demand.
    pub sigma_k: f64,
}

impl Default for ForecastSettings {
    /// 10 minutes of history and 5 of lookahead, as in RHIC §4.2; two standard deviations are chosen.
    fn default() -> Self {
        Self { method: ForecastMethod::MovingAverage, history_s: 600.0, lookahead_s: 300.0, sigma_k: 2.0 }
    }
}

/// A promise whose lookahead has not passed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Promise {
    due_s: f64,
    /// Demand that would just keep the promise: capacity less the safe residual.
    demand: f64,
}

/// Predicts the residual of one host.
#[derive(Debug, Clone)]
pub struct ResidualForecaster {
    settings: ForecastSettings,
    clock_s: f64,
    capacity: CoreShare,
    /// Foreground CPU per sample.
    demand: Window,
    largest: Maximum,
    /// The same over the last lookahead only.
    recent: Window,
    /// Means over a lookahead, one per sample: what a promise is about.
    means: Window,
    /// Memory free for a volunteer.
    memory: Window,
    least_memory: Maximum,
    promises: VecDeque<Promise>,
    record: PromiseRecord,
    /// For the methods that look at the shape of the history.
    choice: Option<Box<Choice>>,
}

impl ResidualForecaster {
    /// A forecaster without history.
    #[must_use]
    pub fn new(settings: ForecastSettings) -> Self {
        Self {
            settings,
            clock_s: 0.0,
            capacity: CoreShare::ZERO,
            demand: Window::new(settings.history_s, MOST_SAMPLES),
            largest: Maximum::new(settings.history_s, MOST_SAMPLES),
            recent: Window::new(settings.lookahead_s, MOST_SAMPLES),
            means: Window::new(settings.history_s, MOST_SAMPLES),
            memory: Window::new(settings.history_s, MOST_SAMPLES),
            least_memory: Maximum::new(settings.history_s, MOST_SAMPLES),
            promises: VecDeque::new(),
            record: PromiseRecord::default(),
            choice: needs_shape(settings.method)
                .then(|| Box::new(Choice::new(settings.history_s, settings.lookahead_s))),
        }
    }

    /// Goes on by other settings. The history stays where only the promised standard deviations are others;
    /// otherwise it begins anew.
    pub fn set_settings(&mut self, settings: ForecastSettings) {
        if (ForecastSettings { sigma_k: settings.sigma_k, ..self.settings }) == settings {
            self.settings = settings;
        } else {
            *self = Self::new(settings);
        }
    }

    /// Takes one sample: the host's capacity, the foreground's CPU, and the memory a volunteer could have. A
    /// missing value leaves a gap. An interval that is not positive is ignored.
    pub fn observe(
        &mut self,
        capacity: CoreShare,
        foreground_cpu: Option<CoreShare>,
        memory_free: Option<Bytes>,
        interval_s: f64,
    ) {
        if !(interval_s > 0.0 && interval_s.is_finite()) {
            return;
        }
        self.clock_s += interval_s;
        self.capacity = capacity;
        if let Some(bytes) = memory_free {
            self.memory.push(self.clock_s, bytes.0 as f64, interval_s);
            self.least_memory.push(self.clock_s, -(bytes.0 as f64));
        }
        if let Some(cpu) = foreground_cpu {
            let cpu = cpu.percent();
            self.demand.push(self.clock_s, cpu, interval_s);
            self.largest.push(self.clock_s, cpu);
            self.recent.push(self.clock_s, cpu, interval_s);
            if self.recent.covers(self.settings.lookahead_s) {
                self.means.push(self.clock_s, self.recent.mean(), interval_s);
            }
            if let Some(choice) = &mut self.choice {
                let recent = self.recent.covers(self.settings.lookahead_s / 2.0).then(|| self.recent.mean());
                choice.push(self.clock_s, cpu, interval_s, recent);
            }
        }
        self.judge();
        let safe = foreground_cpu.and_then(|_| self.cpu_demand()).map(|demand| demand.safe);
        if let Some(safe) = safe.filter(|_| self.promises.len() < MOST_SAMPLES) {
            let due_s = self.clock_s + self.settings.lookahead_s;
            self.promises.push_back(Promise { due_s, demand: safe.min(capacity.percent()) });
        }
    }

    /// Judges the promises that are due: broken when the mean demand over the lookahead exceeded what was
    /// left to the foreground. A lookahead seen less than half is not judged.
    fn judge(&mut self) {
        while let Some(promise) = self.promises.front().copied().filter(|promise| promise.due_s <= self.clock_s) {
            self.promises.pop_front();
            if self.recent.covers(self.settings.lookahead_s / 2.0) {
                self.record.judged += 1;
                // A hundredth of a percent of a core is below what the kernel's counters resolve.
                self.record.broken += u64::from(self.recent.mean() > promise.demand + 0.01);
            }
        }
    }

    /// Expected and safe foreground CPU, in percent of one core; the safe one is the larger.
    fn cpu_demand(&self) -> Option<Bounded<f64>> {
        if self.demand.len() < LEAST_SAMPLES {
            return None;
        }
        let (mean, k) = (self.demand.mean(), self.settings.sigma_k);
        Some(match self.settings.method {
            ForecastMethod::MovingAverage => Bounded { expected: mean, safe: mean + k * self.deviation_of_means() },
            ForecastMethod::Autoregression => self.shaped(mean, Some(1)),
            ForecastMethod::Autocorrelation => self.shaped(mean, Some(2)),
            ForecastMethod::Signature => self.shaped(mean, Some(3)),
            ForecastMethod::Best => {
                let shaped = self.shaped(mean, None);
                match self.choice.as_ref().and_then(|choice| choice.allowance(VIOLATIONS)) {
                    Some(allowance) => Bounded { safe: shaped.expected + allowance, ..shaped },
                    None => shaped,
                }
            }
            ForecastMethod::MeanPlusSigma => Bounded { expected: mean, safe: mean + k * self.demand.deviation() },
            ForecastMethod::WindowedMaximum => {
                let largest = self.largest.value().unwrap_or(mean);
                Bounded { expected: largest, safe: largest }
            }
        })
    }

    /// The prediction of a method that looks at the shape of the history, with the spread of the history's means.
    fn shaped(&self, mean: f64, method: Option<usize>) -> Bounded<f64> {
        let expected = self.choice.as_ref().and_then(|choice| choice.predicted(method)).unwrap_or(mean);
        Bounded { expected, safe: expected + self.settings.sigma_k * self.deviation_of_means() }
    }

    /// Standard deviation of the difference between the next lookahead's mean and the history's. A promise is
    /// about a mean over the lookahead, which spreads less than single seconds do, so its bound is built on the
    /// spread of such means, widened because the history's mean is itself an estimate from history/lookahead
    /// windows. With less than two lookaheads of history the single seconds' spread stands in: too careful.
    fn deviation_of_means(&self) -> f64 {
        let (history, lookahead) = (self.demand.span_s(), self.settings.lookahead_s);
        if self.means.covers(lookahead) && self.means.len() >= LEAST_SAMPLES {
            self.means.deviation() * (1.0 + lookahead / history).sqrt()
        } else {
            self.demand.deviation()
        }
    }

    /// The forecast now.
    #[must_use]
    pub fn forecast(&self) -> ResidualForecast {
        let left = |demand: f64| CoreShare::clamped(self.capacity.percent() - demand);
        let cpu = match self.cpu_demand() {
            Some(demand) => Reading::Value(Bounded { expected: left(demand.expected), safe: left(demand.safe) }),
            None => Reading::absent(
                AbsenceKind::NotYet,
                format!("the foreground's CPU was sampled {} times; {LEAST_SAMPLES} are needed", self.demand.len()),
            ),
        };
        let memory = match self.least_memory.value() {
            Some(negative) => {
                Reading::Value(Bounded { expected: whole_bytes(self.memory.mean()), safe: whole_bytes(-negative) })
            }
            None => Reading::absent(AbsenceKind::NotYet, "no sample of available memory has been taken"),
        };
        ResidualForecast {
            method: self.settings.method,
            history_s: self.demand.span_s(),
            lookahead_s: self.settings.lookahead_s,
            cpu,
            memory,
            record: self.record,
        }
    }
}

fn needs_shape(method: ForecastMethod) -> bool {
    use ForecastMethod::{
        Autocorrelation, Autoregression, Best, MeanPlusSigma, MovingAverage, Signature, WindowedMaximum,
    };
    match method {
        Autoregression | Autocorrelation | Signature | Best => true,
        MovingAverage | MeanPlusSigma | WindowedMaximum => false,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, as wanted")]
fn whole_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}

#[cfg(test)]
mod tests;
