//! The residual of one host: capacity less predicted demand. In: samples. Out: the forecast of a report, and what outlives a
//! restart. It also judges its own promises once their lookahead has passed.

use gleaner_types::method::MethodName;
use gleaner_types::report::{Bounded, PromiseWindows, Reading, Reason, ResidualForecast};
use gleaner_types::units::{Bytes, CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use super::ForecastSettings;
use super::calibrated::{Bounds, Series, SeriesState, StateError};
use super::forecaster::{Forecaster, Margin};
use super::history::{History, LEAST_SAMPLES};
use super::promises::{Hour, Promises, Windows};
use super::registry::Kind;

/// What a forecaster knows, as plain data that outlives a restart: about 20 KiB in binary and at most 64 KiB as JSON, for a
/// day of CPU and memory. Methods of a short history keep of it only the windows and the memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastState {
    method: MethodName,
    lookahead_s: f64,
    risk: f64,
    cpu: Option<SeriesState>,
    memory: SeriesState,
    hours: Vec<Hour>,
    /// Seconds of the last of them that have passed.
    hour_passed_s: f64,
}

/// What predicts the foreground's CPU.
#[derive(Debug)]
enum Demand {
    Calibrated(Box<Series>),
    OfHistory(Box<History>, Box<dyn Forecaster>),
}

/// Predicts the residual of one host.
#[derive(Debug)]
pub struct ResidualForecaster {
    settings: ForecastSettings,
    method: MethodName,
    clock_s: f64,
    capacity: CoreShare,
    /// Samples of the foreground's CPU since the start, with what is known taken for [`LEAST_SAMPLES`].
    samples: u64,
    demand: Demand,
    /// The foreground's memory, as memory that is not free: the negative of what a volunteer could have.
    memory: Series,
    memory_free: Bytes,
    promises: Promises,
}

impl ResidualForecaster {
    /// A forecaster without history.
    #[must_use]
    pub fn new(settings: ForecastSettings) -> Self {
        let ForecastSettings { history_s, lookahead_s, risk, .. } = settings;
        let demand = match settings.method.kind {
            Kind::Calibrated => Demand::Calibrated(Box::new(Series::new(lookahead_s, risk, Bounds::Mean))),
            Kind::OfHistory(forecaster) => {
                Demand::OfHistory(Box::new(History::new(history_s, lookahead_s)), forecaster(history_s))
            }
        };
        Self {
            settings,
            method: settings.method.reported(),
            clock_s: 0.0,
            capacity: CoreShare::ZERO,
            samples: 0,
            demand,
            memory: Series::new(lookahead_s, risk, Bounds::Largest),
            memory_free: Bytes(0),
            promises: Promises::new(lookahead_s),
        }
    }

    /// Goes on by other settings. The history stays where only the promised standard deviations or the risk are others;
    /// otherwise it begins anew.
    pub fn set_settings(&mut self, settings: ForecastSettings) {
        let ForecastSettings { sigma_k, risk, .. } = settings;
        if (ForecastSettings { sigma_k, risk, ..self.settings }) != settings {
            *self = Self::new(settings);
            return;
        }
        if risk.to_bits() != self.settings.risk.to_bits() {
            self.set_risk(risk);
        }
        self.settings = settings;
    }

    fn set_risk(&mut self, risk: f64) {
        self.memory.set_risk(risk);
        if let Demand::Calibrated(series) = &mut self.demand {
            series.set_risk(risk);
        }
        self.promises.forget_windows();
    }

    /// How the promises of CPU held over the last day, by windows of one lookahead that do not overlap.
    #[must_use]
    pub fn windows(&self) -> Windows {
        self.promises.windows()
    }

    /// What is known, for [`Self::resume`].
    #[must_use]
    pub fn state(&self) -> ForecastState {
        ForecastState {
            method: self.method.clone(),
            lookahead_s: self.settings.lookahead_s,
            risk: self.settings.risk,
            cpu: match &self.demand {
                Demand::Calibrated(series) => Some(series.state()),
                Demand::OfHistory(..) => None,
            },
            memory: self.memory.state(),
            hours: self.promises.hours(),
            hour_passed_s: self.promises.hour_passed_s(),
        }
    }

    /// Goes on from a state of `gap_s` seconds ago. What happened since is a gap: a lookahead that spans it is not judged, and
    /// after a gap nothing is promised before there is a sample again. What was promised at another risk does not count.
    ///
    /// # Errors
    /// [`StateError`] for a state of another method or lookahead, and for the first value that cannot be.
    pub fn resume(settings: ForecastSettings, state: ForecastState, gap_s: f64) -> Result<Self, StateError> {
        let mut forecaster = Self::new(settings);
        if state.method != forecaster.method {
            let (found, wanted) = (state.method.to_string(), forecaster.method.to_string());
            return Err(StateError::OtherMethod { found, wanted });
        }
        if state.lookahead_s.to_bits() != settings.lookahead_s.to_bits() {
            return Err(StateError::OtherLookahead { found: state.lookahead_s, wanted: settings.lookahead_s });
        }
        if !(gap_s.is_finite() && gap_s >= 0.0) {
            return Err(StateError::Value { field: "gap_s", value: gap_s });
        }
        let ForecastSettings { lookahead_s, risk, .. } = settings;
        forecaster.memory = Series::resume(lookahead_s, risk, Bounds::Largest, state.memory, gap_s)?;
        match (&mut forecaster.demand, state.cpu) {
            (Demand::Calibrated(series), Some(cpu)) => {
                **series = Series::resume(lookahead_s, risk, Bounds::Mean, cpu, gap_s)?;
                // What is known says more than a few samples would.
                forecaster.samples = LEAST_SAMPLES as u64;
            }
            (Demand::Calibrated(_), None) => return Err(StateError::Value { field: "cpu", value: 0.0 }),
            (Demand::OfHistory(..), _) => {}
        }
        if !forecaster.promises.restore(&state.hours, state.hour_passed_s, gap_s) {
            return Err(StateError::Value { field: "hours", value: state.hours.len() as f64 });
        }
        if state.risk.to_bits() != risk.to_bits() {
            forecaster.set_risk(risk);
        }
        Ok(forecaster)
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
        self.memory.observe(memory_free.map(|bytes| -(bytes.0 as f64)), interval_s);
        self.memory_free = memory_free.unwrap_or(self.memory_free);
        let cpu = foreground_cpu.map(CoreShare::percent);
        self.samples += u64::from(cpu.is_some());
        match &mut self.demand {
            Demand::Calibrated(series) => series.observe(cpu, interval_s),
            Demand::OfHistory(history, forecaster) => {
                if let Some(cpu) = cpu {
                    history.push(self.clock_s, cpu, interval_s);
                    forecaster.observe(&history.past());
                }
            }
        }
        self.promises.observe(cpu, interval_s);
        if let Some(demand) = cpu.and_then(|_| self.cpu_demand()) {
            self.promises.push(demand.safe.min(capacity.percent()));
        }
    }

    /// Expected and safe foreground CPU, in percent of one core; the safe one is the larger.
    fn cpu_demand(&self) -> Option<Bounded<f64>> {
        if self.samples < LEAST_SAMPLES as u64 {
            return None;
        }
        match &self.demand {
            Demand::Calibrated(series) => {
                series.outlook().map(|outlook| Bounded { expected: outlook.expected, safe: outlook.bound })
            }
            Demand::OfHistory(history, forecaster) => {
                let prediction = forecaster.predict(&history.past());
                let margin = match prediction.margin {
                    Margin::Usual => self.settings.sigma_k * history.deviation_of_means(),
                    Margin::Deviations(deviation) => self.settings.sigma_k * deviation,
                    Margin::Above(margin) => margin,
                };
                Some(Bounded { expected: prediction.expected, safe: prediction.expected + margin })
            }
        }
    }

    /// The forecast now.
    #[must_use]
    pub fn forecast(&self) -> ResidualForecast {
        let left = |demand: f64| CoreShare::clamped(self.capacity.percent() - demand);
        let cpu = match self.cpu_demand() {
            Some(demand) => Reading::Value(Bounded { expected: left(demand.expected), safe: left(demand.safe) }),
            // After a gap until a bucket of time has ended.
            None => Reading::because(Reason::MoreSamplesNeeded {
                taken: self.samples,
                needed: (LEAST_SAMPLES as u64).max(self.samples.saturating_add(1)),
            }),
        };
        let (taken, needed) = (self.memory.first_samples(), LEAST_SAMPLES as u64);
        let memory = match self.memory.outlook() {
            Some(_) if taken < needed => Reading::because(Reason::MoreSamplesNeeded { taken, needed }),
            Some(outlook) => {
                let expected = whole_bytes(-outlook.expected);
                // No more is promised than there is.
                let safe = whole_bytes(-outlook.bound).min(self.memory_free).min(expected);
                Reading::Value(Bounded { expected, safe })
            }
            None => Reading::because(Reason::NoMemorySample),
        };
        ResidualForecast {
            method: self.method.clone(),
            history_s: match &self.demand {
                Demand::Calibrated(series) => series.known_s(),
                Demand::OfHistory(history, _) => history.span_s(),
            },
            lookahead_s: self.settings.lookahead_s,
            cpu,
            memory,
            record: self.promises.record(),
            windows: self.stated_windows(),
        }
    }

    /// The last day's windows beside the risk, where the method states one.
    fn stated_windows(&self) -> Option<PromiseWindows> {
        let Demand::Calibrated(_) = self.demand else { return None };
        let Windows { judged, broken } = self.windows();
        let most = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).min(PromiseWindows::MOST);
        PromiseWindows::new(Fraction::clamped(self.settings.risk), most(judged), most(broken)).ok()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, as wanted")]
fn whole_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}
