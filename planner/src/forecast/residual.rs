//! The residual of one host: capacity less predicted demand. In: samples. Out: the forecast of a report. It also judges
//! its own promises once their lookahead has passed.

use std::collections::VecDeque;

use gleaner_types::method::MethodName;
use gleaner_types::report::{Bounded, PromiseRecord, Reading, Reason, ResidualForecast};
use gleaner_types::units::{Bytes, CoreShare};

use super::ForecastSettings;
use super::forecaster::{Forecaster, Margin};
use super::history::{History, LEAST_SAMPLES};
use super::window::{MOST_SAMPLES, Maximum, Window};

/// A promise whose lookahead has not passed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Promise {
    due_s: f64,
    /// Demand that would just keep the promise: capacity less the safe residual.
    demand: f64,
}

/// Predicts the residual of one host.
#[derive(Debug)]
pub struct ResidualForecaster {
    settings: ForecastSettings,
    method: MethodName,
    clock_s: f64,
    capacity: CoreShare,
    /// Foreground CPU.
    demand: History,
    forecaster: Box<dyn Forecaster>,
    /// Memory free for a volunteer.
    memory: Window,
    least_memory: Maximum,
    promises: VecDeque<Promise>,
    record: PromiseRecord,
}

impl ResidualForecaster {
    /// A forecaster without history.
    #[must_use]
    pub fn new(settings: ForecastSettings) -> Self {
        Self {
            settings,
            method: settings.method.reported(),
            clock_s: 0.0,
            capacity: CoreShare::ZERO,
            demand: History::new(settings.history_s, settings.lookahead_s),
            forecaster: settings.method.start(settings.history_s, settings.lookahead_s),
            memory: Window::new(settings.history_s),
            least_memory: Maximum::new(settings.history_s),
            promises: VecDeque::new(),
            record: PromiseRecord::default(),
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
            self.demand.push(self.clock_s, cpu.percent(), interval_s);
            self.forecaster.observe(&self.demand.past());
        }
        self.judge();
        let safe = foreground_cpu.and_then(|_| self.cpu_demand()).map(|demand| demand.safe);
        if let Some(safe) = safe.filter(|_| self.promises.len() < MOST_SAMPLES) {
            let due_s = self.clock_s + self.settings.lookahead_s;
            self.promises.push_back(Promise { due_s, demand: safe.min(capacity.percent()) });
        }
    }

    /// Judges the promises that are due: broken when the mean demand over the lookahead exceeded what was
    /// left to the foreground. A lookahead of which less than half was sampled is not judged.
    fn judge(&mut self) {
        while let Some(promise) = self.promises.front().copied().filter(|promise| promise.due_s <= self.clock_s) {
            self.promises.pop_front();
            if let Some(actual) = self.demand.recent_mean() {
                self.record.judged += 1;
                // A hundredth of a percent of a core is below what the kernel's counters resolve.
                self.record.broken += u64::from(actual > promise.demand + 0.01);
            }
        }
    }

    /// Expected and safe foreground CPU, in percent of one core; the safe one is the larger.
    fn cpu_demand(&self) -> Option<Bounded<f64>> {
        if self.demand.len() < LEAST_SAMPLES {
            return None;
        }
        let prediction = self.forecaster.predict(&self.demand.past());
        let margin = match prediction.margin {
            Margin::Usual => self.settings.sigma_k * self.demand.deviation_of_means(),
            Margin::Deviations(deviation) => self.settings.sigma_k * deviation,
            Margin::Above(margin) => margin,
        };
        Some(Bounded { expected: prediction.expected, safe: prediction.expected + margin })
    }

    /// The forecast now.
    #[must_use]
    pub fn forecast(&self) -> ResidualForecast {
        let left = |demand: f64| CoreShare::clamped(self.capacity.percent() - demand);
        let cpu = match self.cpu_demand() {
            Some(demand) => Reading::Value(Bounded { expected: left(demand.expected), safe: left(demand.safe) }),
            None => Reading::because(Reason::MoreSamplesNeeded {
                taken: self.demand.len() as u64,
                needed: LEAST_SAMPLES as u64,
            }),
        };
        let memory = match self.least_memory.value() {
            Some(negative) => {
                Reading::Value(Bounded { expected: whole_bytes(self.memory.mean()), safe: whole_bytes(-negative) })
            }
            None => Reading::because(Reason::NoMemorySample),
        };
        ResidualForecast {
            method: self.method.clone(),
            history_s: self.demand.span_s(),
            lookahead_s: self.settings.lookahead_s,
            cpu,
            memory,
            record: self.record,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, as wanted")]
fn whole_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}
