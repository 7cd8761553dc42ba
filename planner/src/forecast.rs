//! Predicts what the foreground will leave free: an expected value and a bound that can be promised (RHIC §4.2, "Residual
//! resource prediction").
//!
//! In: a sample a second of the foreground's demand and of free memory, from the agent (or the simulator). Out: a
//! [`ResidualForecast`](gleaner_types::report::ResidualForecast) for its report, with the record of how such promises held.
//! [`ResidualForecaster`] keeps the history and the promises; what the demand will be is said by a [`Forecaster`], one
//! file and one line of [`METHODS`] each.

mod forecaster;
mod history;
#[macro_use]
mod registry;
mod residual;
mod steps;
mod window;

pub use forecaster::{Forecaster, Margin, Past, Prediction};
pub use registry::Method;
pub use residual::ResidualForecaster;

use forecaster::Setup;
use registry::Role;

// In the order in which docs and tables list them; the first is the default, which `best` compares the others with.
methods! {
    moving_average: Competes, "the mean of the history; the papers' choice (RHIC §4.2)";
    mean_plus_sigma: Alone, "the mean of the history, promised with `sigma` standard deviations of single samples";
    windowed_maximum: Alone, "the largest demand of the history";
    autoregression: Competes, "an autoregression of the history (RHIC §4.2)";
    autocorrelation: Competes, "the history's last period again, or its mean where it has none (RHIC §4.2)";
    signature: Competes, "the history's typical period again, or a Markov chain where it has none (RHIC §4.2)";
    best: Alone, "whichever of these has proven best on this host, with a bound from its own past errors";
}

/// How to predict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ForecastSettings {
    /// Method.
    pub method: Method,
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
        Self { method: Method::default(), history_s: 600.0, lookahead_s: 300.0, sigma_k: 2.0 }
    }
}

impl Method {
    /// The method of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        METHODS.iter().copied().find(|method| method.name == name)
    }

    /// A forecaster of this method, knowing nothing yet.
    fn start(self, history_s: f64, lookahead_s: f64) -> Box<dyn Forecaster> {
        let alone = Setup { history_s, lookahead_s, competitors: &Vec::new };
        let competing = METHODS.iter().filter(|method| method.role == Role::Competes);
        let competitors = || competing.clone().map(|method| (method.forecaster)(&alone)).collect();
        (self.forecaster)(&Setup { competitors: &competitors, ..alone })
    }
}

impl Default for Method {
    /// The first of the registry: the moving average, which the papers found best on interactive sessions (RHIC Fig. 8).
    fn default() -> Self {
        METHODS[0]
    }
}

#[cfg(test)]
mod tests;
