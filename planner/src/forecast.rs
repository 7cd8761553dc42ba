//! Predicts what the foreground will leave free: an expected value and a bound that can be promised (RHIC §4.2, "Residual
//! resource prediction").
//!
//! In: a sample a second of the foreground's demand and of free memory, from the agent (or the simulator). Out: a
//! [`ResidualForecast`](gleaner_types::report::ResidualForecast) for its report, with the record of how such promises held.
//! [`ResidualForecaster`] keeps what is known and judges its promises. What the demand will be is said by one of
//! [`METHODS`]: the default learns for a day and calibrates its promises to the stated risk (docs/forecast.md); the others
//! look at a short history, and each is a [`Forecaster`], one file and one line of [`METHODS`].

mod forecaster;
mod history;
mod promises;
#[macro_use]
mod registry;
mod residual;
mod steps;
mod window;

pub use calibrated::StateError;
pub use forecaster::{Forecaster, Margin, Past, Prediction};
pub use promises::Windows;
pub use registry::Method;
pub use residual::{ForecastState, ResidualForecaster};

// In the order in which docs and tables list them; the first is the default.
methods! {
    calibrated: "a mixture of averages, an autoregression and yesterday, promised so that about `risk` of the promises break at most";
    moving_average: "the mean of the history; the papers' choice (RHIC §4.2)";
    mean_plus_sigma: "the mean of the history, promised with `sigma` standard deviations of single samples";
    windowed_maximum: "the largest demand of the history";
    autoregression: "an autoregression of the history (RHIC §4.2)";
    autocorrelation: "the history's last period again, or its mean where it has none (RHIC §4.2)";
    signature: "the history's typical period again, or a Markov chain where it has none (RHIC §4.2)";
}

/// How to predict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForecastSettings {
    /// Method.
    pub method: Method,
    /// History used, in seconds, by the methods of a short history. The default method learns for a day.
    pub history_s: f64,
    /// How far to look ahead, in seconds.
    pub lookahead_s: f64,
    /// Part of the promises that may break, over a day, by the default method; between 0 and 1.
    pub risk: f64,
    /// Standard deviations between the expected and the safe demand, by the methods of a short history.
    pub sigma_k: f64,
}

impl Default for ForecastSettings {
    /// 10 minutes of history and 5 of lookahead, as in RHIC §4.2; the risk of a hundredth and two standard deviations are chosen.
    fn default() -> Self {
        Self { method: Method::default(), history_s: 600.0, lookahead_s: 300.0, risk: 0.01, sigma_k: 2.0 }
    }
}

impl Method {
    /// The method of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        METHODS.iter().copied().find(|method| method.name == name)
    }
}

impl Default for Method {
    /// The first of the registry.
    fn default() -> Self {
        METHODS[0]
    }
}

#[cfg(test)]
mod tests;
