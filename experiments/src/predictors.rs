//! How well the predictors do (RHIC §4.2 and Fig. 8): on generated sessions second by second, and on recorded traces.
//! In: a seed, how much to judge, and a folder of traces if there is one. Out: a row for each predictor, history,
//! lookahead and set of data. Called by [`crate::rhic`].
//!
//! A recorded trace has one value per 300 s. Each is fed to the forecaster as five samples of 60 s, so that 10 minutes
//! of history are two values of the trace; nothing else is made up. What was promised is compared with the mean demand
//! of the lookahead that followed.

use std::path::Path;

use gleaner_planner::forecast::{ForecastSettings, METHODS, Method, ResidualForecaster};
use gleaner_types::units::CoreShare;

use gleaner_simulator::foreground::{Session, SessionTrace};
use gleaner_simulator::traces::{STEP_S, TraceError, google, planetlab};

/// Minutes of history.
const HISTORIES: [u32; 4] = [10, 20, 30, 60];
/// Minutes of lookahead.
const LOOKAHEADS: [u32; 2] = [5, 10];
/// Seconds of a sample of a recorded trace.
const SAMPLE_S: f64 = 60.0;
/// Seconds of each generated session.
const SESSION_S: usize = 7_200;

/// Who predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predictor {
    /// One of the forecaster's methods.
    Method(Method),
    /// The history's mean plus five standard deviations.
    MeanPlusFiveSigma,
    /// The last value plus ten points.
    LastPlusTen,
}

impl Predictor {
    /// All that are compared: the forecaster's methods but the bounds without an estimate of their own, and two fixed margins.
    fn all() -> impl Iterator<Item = Self> {
        let bounds = ["mean_plus_sigma", "windowed_maximum"];
        let methods = METHODS.iter().filter(move |method| !bounds.contains(&method.name())).copied().map(Self::Method);
        methods.chain([Self::MeanPlusFiveSigma, Self::LastPlusTen])
    }

    /// Name for tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Method(method) => method.name().replace('_', " "),
            Self::MeanPlusFiveSigma => "mean + 5σ".to_owned(),
            Self::LastPlusTen => "last + 10 points".to_owned(),
        }
    }
}

/// The default method, and the one that chooses among the others.
pub(crate) fn average_and_best() -> (Method, Method) {
    (Method::default(), Method::named("best").unwrap_or_default())
}

/// How one did on one set of series.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Series.
    pub data: &'static str,
    /// Who predicted.
    pub predictor: Predictor,
    /// Minutes of history and of lookahead.
    pub history_min: u32,
    /// Likewise.
    pub lookahead_min: u32,
    /// Mean absolute error of the expected demand, in points of the host.
    pub error: f64,
    /// How often the demand exceeded what was left to it by the promise, in percent.
    pub violations: f64,
    /// How much of what was really free was promised, in percent.
    pub offered: f64,
    /// Predictions judged.
    pub judged: u64,
}

#[derive(Debug, Default)]
struct Sums {
    error: f64,
    violations: u64,
    promised: f64,
    free: f64,
    judged: u64,
}

/// Judges one predictor on one series in percent of a host.
fn judge(
    values: &[f64],
    sample_s: f64,
    repeat: usize,
    predictor: Predictor,
    settings: ForecastSettings,
    sums: &mut Sums,
) {
    let whole = CoreShare::clamped(100.0);
    let mut forecaster = ResidualForecaster::new(settings);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred samples")]
    let ahead = ((settings.lookahead_s / (sample_s * repeat as f64)).round() as usize).max(1);
    for (at, value) in values.iter().enumerate() {
        for _ in 0..repeat {
            forecaster.observe(whole, Some(CoreShare::clamped(*value)), None, sample_s);
        }
        // A history that is half there says what a new host would.
        let Some(future) = values.get(at + 1..=at + ahead) else { break };
        if (at + 1) as f64 * sample_s * (repeat as f64) < settings.history_s {
            continue;
        }
        let forecast = forecaster.forecast();
        let Some(cpu) = forecast.cpu.value() else { continue };
        let actual = future.iter().sum::<f64>() / ahead as f64;
        let (expected, safe) = match predictor {
            Predictor::LastPlusTen => (100.0 - value, 90.0 - value),
            _ => (cpu.expected.percent(), cpu.safe.percent()),
        };
        let safe = safe.max(0.0);
        sums.judged += 1;
        sums.error += (100.0 - expected - actual).abs();
        sums.violations += u64::from(100.0 - actual + 0.01 < safe);
        sums.promised += safe.min(100.0 - actual);
        sums.free += 100.0 - actual;
    }
}

fn settings(predictor: Predictor, history_min: u32, lookahead_min: u32) -> ForecastSettings {
    let (method, sigma_k) = match predictor {
        Predictor::Method(method) => (method, ForecastSettings::default().sigma_k),
        Predictor::MeanPlusFiveSigma => (Method::named("mean_plus_sigma").unwrap_or_default(), 5.0),
        Predictor::LastPlusTen => (Method::default(), 0.0),
    };
    ForecastSettings {
        method,
        risk: ForecastSettings::default().risk,
        sigma_k,
        history_s: f64::from(history_min) * 60.0,
        lookahead_s: f64::from(lookahead_min) * 60.0,
    }
}

fn rows(data: &'static str, series: &[Vec<f64>], sample_s: f64, repeat: usize, extent: Extent) -> Vec<Row> {
    let full = extent == Extent::Full;
    let (average, best) = average_and_best();
    let mut cases = Vec::new();
    for lookahead_min in LOOKAHEADS.into_iter().take(if full { LOOKAHEADS.len() } else { 1 }) {
        for history_min in HISTORIES.into_iter().take(if full { HISTORIES.len() } else { 1 }) {
            let short = |predictor: &Predictor| {
                let Predictor::Method(method) = predictor else { return *predictor == Predictor::MeanPlusFiveSigma };
                *method == average || *method == best
            };
            for predictor in Predictor::all().filter(|predictor| full || short(predictor)) {
                cases.push((predictor, history_min, lookahead_min));
            }
        }
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(&(predictor, history_min, lookahead_min)) = cases.get(index) else { return done };
            let mut sums = Sums::default();
            for values in series {
                judge(values, sample_s, repeat, predictor, settings(predictor, history_min, lookahead_min), &mut sums);
            }
            let judged = sums.judged.max(1) as f64;
            let row = Row {
                data,
                predictor,
                history_min,
                lookahead_min,
                error: sums.error / judged,
                violations: sums.violations as f64 / judged * 100.0,
                offered: if sums.free > 0.0 { sums.promised / sums.free * 100.0 } else { 0.0 },
                judged: sums.judged,
            };
            done.push((index, row));
        }
    };
    let mut done: Vec<(usize, Row)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, row)| row).collect()
}

/// How much to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The default history and lookahead, the moving average and ours, some of the recorded series: seconds.
    Short,
    /// Every predictor with every history and lookahead: minutes.
    Full,
}

/// Judges predictors on all data there is: generated sessions always, recorded traces where the folder has them.
///
/// # Errors
/// [`TraceError`] for a trace that is there and cannot be read.
pub fn table(traces: Option<&Path>, seed: u64, extent: Extent) -> Result<Vec<Row>, TraceError> {
    let sessions: Vec<Vec<f64>> =
        Session::ALL.iter().map(|session| SessionTrace::new(*session, seed).take(SESSION_S).collect()).collect();
    let mut all = rows("sessions", &sessions, 1.0, 1, extent);
    if let Some(folder) = traces {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "five")]
        let repeat = (STEP_S / SAMPLE_S) as usize;
        let values = |series: Vec<gleaner_simulator::traces::Series>| {
            series.into_iter().map(|series| series.values).collect::<Vec<_>>()
        };
        let (every, most) = if extent == Extent::Full { (16, 12) } else { (50, 4) };
        all.extend(rows("google", &values(google(folder, every)?), SAMPLE_S, repeat, extent));
        all.extend(rows("planetlab", &values(planetlab(folder, most)?), SAMPLE_S, repeat, extent));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_their_names() {
        assert_eq!(average_and_best().1.name(), "best");
        let five_sigma = settings(Predictor::MeanPlusFiveSigma, 10, 5);
        assert_eq!((five_sigma.method.name(), five_sigma.sigma_k), ("mean_plus_sigma", 5.0));
        assert_eq!(Predictor::all().count(), METHODS.len());
    }

    #[test]
    fn a_constant_demand_is_predicted_and_promised_whole() {
        for row in rows("constant", &[vec![20.0; 500]], SAMPLE_S, 1, Extent::Full) {
            let best = match row.predictor {
                Predictor::LastPlusTen => 87.5,
                _ => 100.0,
            };
            assert!(row.error < 1e-9 && row.violations == 0.0, "{row:?}");
            assert!((row.offered - best).abs() < 1e-6, "{row:?}");
        }
    }

    #[test]
    fn real_traces_where_there_are_some() {
        let Some(folder) = std::env::var_os("GLEANER_TRACES") else {
            _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIPPED: real_traces_where_there_are_some: GLEANER_TRACES names no folder of traces\n",
            );
            return;
        };
        let folder = Path::new(&folder);
        // How much there is depends on the copy at hand; every VM of it would take minutes in a debug build.
        let (google, planetlab) = (google(folder, 150).unwrap(), planetlab(folder, 1).unwrap());
        assert!(!google.is_empty() && !planetlab.is_empty(), "{} and {}", google.len(), planetlab.len());
        let values: Vec<Vec<f64>> = google.into_iter().chain(planetlab).map(|series| series.values).collect();
        let of = |method| {
            let mut sums = Sums::default();
            let predictor = Predictor::Method(method);
            for values in &values {
                judge(values, SAMPLE_S, 5, predictor, settings(predictor, 60, 5), &mut sums);
            }
            sums
        };
        let (average, best) = average_and_best();
        let (average, best) = (of(average), of(best));
        assert!(average.judged > 2_000);
        assert!(best.error <= 1.02 * average.error, "{} against {}", best.error, average.error);
    }
}
