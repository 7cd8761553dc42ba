use proptest::prelude::*;

use super::*;

fn share(percent: f64) -> CoreShare {
    CoreShare::new(percent).unwrap()
}

fn forecaster(method: ForecastMethod, history_s: f64, lookahead_s: f64) -> ResidualForecaster {
    ResidualForecaster::new(ForecastSettings { method, history_s, lookahead_s, sigma_k: 2.0 })
}

fn feed(forecaster: &mut ResidualForecaster, demands: &[f64]) {
    for demand in demands {
        forecaster.observe(share(400.0), Some(share(*demand)), Some(Bytes::from_mib(100)), 1.0);
    }
}

fn cpu(forecaster: &ResidualForecaster) -> (f64, f64) {
    let bounded = *forecaster.forecast().cpu.value().unwrap();
    (bounded.expected.percent(), bounded.safe.percent())
}

#[test]
fn nothing_is_predicted_without_history() {
    let mut new = forecaster(ForecastMethod::MovingAverage, 10.0, 5.0);
    feed(&mut new, &[50.0, 50.0]);
    let forecast = new.forecast();
    assert!(matches!(forecast.cpu, Reading::Absent(absence) if absence.kind == AbsenceKind::NotYet));
}

#[test]
fn moving_average_of_the_history_alone() {
    let mut f = forecaster(ForecastMethod::MovingAverage, 4.0, 1.0);
    feed(&mut f, &[400.0, 100.0, 200.0, 100.0, 200.0]);
    // The first sample has left the window: mean 150, so 250 of 400 are expected to be free.
    assert!((cpu(&f).0 - 250.0).abs() < 1e-9);
}

#[test]
fn mean_plus_sigma_by_hand() {
    let mut f = forecaster(ForecastMethod::MeanPlusSigma, 4.0, 1.0);
    feed(&mut f, &[100.0, 200.0, 100.0, 200.0]);
    // Mean 150, deviation 50, two of them: 250 demanded at most, 150 safe.
    let (expected, safe) = cpu(&f);
    assert!((expected - 250.0).abs() < 1e-9 && (safe - 150.0).abs() < 1e-9, "{expected} {safe}");
}

#[test]
fn changed_settings_keep_the_history_where_they_can() {
    let mut f = forecaster(ForecastMethod::MeanPlusSigma, 4.0, 1.0);
    feed(&mut f, &[100.0, 200.0, 100.0, 200.0]);
    let settings = f.settings;
    f.set_settings(ForecastSettings { sigma_k: 1.0, ..settings });
    // Mean 150, one deviation of 50: 200 safe.
    assert!((cpu(&f).1 - 200.0).abs() < 1e-9, "{:?}", cpu(&f));
    f.set_settings(ForecastSettings { history_s: 8.0, ..settings });
    assert!(f.forecast().cpu.value().is_none(), "another history begins anew");
}

#[test]
fn windowed_maximum_forgets() {
    let mut f = forecaster(ForecastMethod::WindowedMaximum, 3.0, 1.0);
    feed(&mut f, &[390.0, 100.0, 120.0, 110.0]);
    assert_eq!(cpu(&f), (10.0, 10.0));
    feed(&mut f, &[100.0]);
    assert_eq!(cpu(&f), (280.0, 280.0));
}

#[test]
fn intervals_of_different_length_are_weighted() {
    let mut f = forecaster(ForecastMethod::MovingAverage, 100.0, 10.0);
    f.observe(share(400.0), Some(share(0.0)), None, 1.0);
    f.observe(share(400.0), Some(share(0.0)), None, 1.0);
    f.observe(share(400.0), Some(share(100.0)), None, 8.0);
    assert!((cpu(&f).0 - 320.0).abs() < 1e-9);
}

#[test]
fn promises_are_judged_when_their_lookahead_has_passed() {
    let mut f = forecaster(ForecastMethod::MovingAverage, 20.0, 4.0);
    feed(&mut f, &[100.0; 20]);
    let calm = f.forecast().record;
    assert!(calm.judged >= 12 && calm.broken == 0, "{calm:?}");
    // A foreground that doubles breaks the promises made before it did.
    feed(&mut f, &[200.0; 4]);
    let record = f.forecast().record;
    assert!(record.broken >= 3, "{record:?}");
    assert_eq!(record.judged, calm.judged + 4);
}

#[test]
fn memory_promises_the_least_of_the_history() {
    let mut f = forecaster(ForecastMethod::MovingAverage, 10.0, 4.0);
    for mib in [300, 100, 200] {
        f.observe(share(400.0), None, Some(Bytes::from_mib(mib)), 1.0);
    }
    let memory = *f.forecast().memory.value().unwrap();
    assert_eq!(memory, Bounded { expected: Bytes::from_mib(200), safe: Bytes::from_mib(100) });
}

proptest! {
    #[test]
    fn bounds_hold_for_any_input(
        method in prop_oneof![
            Just(ForecastMethod::MovingAverage), Just(ForecastMethod::MeanPlusSigma), Just(ForecastMethod::WindowedMaximum),
            Just(ForecastMethod::Autoregression), Just(ForecastMethod::Signature), Just(ForecastMethod::Best)
        ],
        samples in prop::collection::vec((prop::option::of(0.0..1000.0f64), -1.0..5.0f64), 0..300),
        history in 1.0..60.0f64,
        lookahead in 1.0..60.0f64,
    ) {
        let mut f = forecaster(method, history, lookahead);
        for (demand, interval) in samples {
            f.observe(share(400.0), demand.map(share), None, interval);
            let forecast = f.forecast();
            if let Reading::Value(cpu) = forecast.cpu {
                prop_assert!(cpu.safe <= cpu.expected && cpu.expected <= share(400.0));
            }
            prop_assert!(forecast.record.broken <= forecast.record.judged);
        }
    }

    #[test]
    fn running_sums_match_the_definition(values in prop::collection::vec(0.0..1000.0f64, 5000..5100)) {
        let mut f = forecaster(ForecastMethod::MeanPlusSigma, 50.0, 10.0);
        feed(&mut f, &values);
        let last = &values[values.len() - 50..];
        let mean = last.iter().sum::<f64>() / 50.0;
        prop_assert!((f.demand.mean() - mean).abs() < 1e-6);
    }
}
