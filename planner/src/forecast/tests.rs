use gleaner_types::method::MethodName;
use gleaner_types::report::{AbsenceKind, Reading};
use gleaner_types::units::{Bytes, CoreShare};
use proptest::prelude::*;

use super::*;

fn share(percent: f64) -> CoreShare {
    CoreShare::new(percent).unwrap()
}

fn settings(method: &str, history_s: f64, lookahead_s: f64) -> ForecastSettings {
    ForecastSettings { method: Method::named(method).unwrap(), history_s, lookahead_s, ..ForecastSettings::default() }
}

fn forecaster(method: &str, history_s: f64, lookahead_s: f64) -> ResidualForecaster {
    ResidualForecaster::new(settings(method, history_s, lookahead_s))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
fn bytes(of: f64) -> u64 {
    of as u64
}

fn feed(forecaster: &mut ResidualForecaster, demands: &[f64]) {
    for demand in demands {
        forecaster.observe(share(400.0), Some(share(*demand)), Some(Bytes::from_mib(100)), 1.0);
    }
}

/// The own errors of CPU that are kept, newest last.
fn errors(forecaster: &ResidualForecaster) -> Vec<serde_json::Value> {
    let state = serde_json::to_value(forecaster.state()).unwrap();
    state["cpu"]["errors"].as_array().unwrap().clone()
}

fn cpu(forecaster: &ResidualForecaster) -> (f64, f64) {
    let bounded = *forecaster.forecast().cpu.value().unwrap();
    (bounded.expected.percent(), bounded.safe.percent())
}

#[test]
fn nothing_is_predicted_without_history() {
    let mut new = forecaster("moving_average", 10.0, 5.0);
    feed(&mut new, &[50.0, 50.0]);
    let forecast = new.forecast();
    assert!(matches!(forecast.cpu, Reading::Absent(absence) if absence.kind == AbsenceKind::NotYet));
    assert!(matches!(forecast.memory, Reading::Absent(absence) if absence.kind == AbsenceKind::NotYet));
    feed(&mut new, &[50.0]);
    assert!(new.forecast().cpu.value().is_some() && new.forecast().memory.value().is_some());
}

#[test]
fn moving_average_of_the_history_alone() {
    let mut f = forecaster("moving_average", 4.0, 1.0);
    feed(&mut f, &[400.0, 100.0, 200.0, 100.0, 200.0]);
    // The first sample has left the window: mean 150, so 250 of 400 are expected to be free.
    assert!((cpu(&f).0 - 250.0).abs() < 1e-9);
}

#[test]
fn mean_plus_sigma_by_hand() {
    let mut f = forecaster("mean_plus_sigma", 4.0, 1.0);
    feed(&mut f, &[100.0, 200.0, 100.0, 200.0]);
    // Mean 150, deviation 50, two of them: 250 demanded at most, 150 safe.
    let (expected, safe) = cpu(&f);
    assert!((expected - 250.0).abs() < 1e-9 && (safe - 150.0).abs() < 1e-9, "{expected} {safe}");
}

#[test]
fn changed_settings_keep_the_history_where_they_can() {
    let mut f = forecaster("mean_plus_sigma", 4.0, 1.0);
    feed(&mut f, &[100.0, 200.0, 100.0, 200.0]);
    let settings = settings("mean_plus_sigma", 4.0, 1.0);
    f.set_settings(ForecastSettings { sigma_k: 1.0, ..settings });
    // Mean 150, one deviation of 50: 200 safe.
    assert!((cpu(&f).1 - 200.0).abs() < 1e-9, "{:?}", cpu(&f));
    f.set_settings(ForecastSettings { history_s: 8.0, ..settings });
    assert!(f.forecast().cpu.value().is_none(), "another history begins anew");
}

#[test]
fn windowed_maximum_forgets() {
    let mut f = forecaster("windowed_maximum", 3.0, 1.0);
    feed(&mut f, &[390.0, 100.0, 120.0, 110.0]);
    assert_eq!(cpu(&f), (10.0, 10.0));
    feed(&mut f, &[100.0]);
    assert_eq!(cpu(&f), (280.0, 280.0));
}

#[test]
fn intervals_of_different_length_are_weighted() {
    let mut f = forecaster("moving_average", 100.0, 10.0);
    f.observe(share(400.0), Some(share(0.0)), None, 1.0);
    f.observe(share(400.0), Some(share(0.0)), None, 1.0);
    f.observe(share(400.0), Some(share(100.0)), None, 8.0);
    assert!((cpu(&f).0 - 320.0).abs() < 1e-9);
}

#[test]
fn promises_are_judged_when_their_lookahead_has_passed() {
    let mut f = forecaster("moving_average", 20.0, 4.0);
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
fn memory_promises_no_more_than_there_is() {
    let mut f = forecaster("moving_average", 10.0, 10.0);
    for second in 0..4_000 {
        let mib = 300 + 100 * u64::from(second / 20 % 2 == 0);
        f.observe(share(400.0), None, Some(Bytes::from_mib(mib)), 1.0);
    }
    // It goes between 300 and 400 MiB every 20 s.
    let memory = *f.forecast().memory.value().unwrap();
    assert!((Bytes::from_mib(300)..=Bytes::from_mib(400)).contains(&memory.expected), "{memory:?}");
    assert!((Bytes::from_mib(100)..=Bytes::from_mib(300)).contains(&memory.safe), "{memory:?}");
    f.observe(share(400.0), None, Some(Bytes::from_mib(7)), 1.0);
    assert!(f.forecast().memory.value().unwrap().safe <= Bytes::from_mib(7));
}

/// Demands of three kinds after one another: a wave, a level, spikes. Whole numbers by a generator of its own, so that they
/// are the same everywhere.
fn mixed(samples: u32) -> Vec<f64> {
    let mut state = 12_345_u32;
    let mut noise = |most: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from((state >> 16) % most)
    };
    let triangle = |step: u32| f64::from(45_u32.abs_diff(step % 90));
    let demand = |step: u32| match step / 400 % 3 {
        0 => 5.0 * triangle(step) + noise(30),
        1 => 60.0 + noise(20),
        _ => {
            if noise(20) < 1.0 {
                390.0
            } else {
                10.0 + noise(5)
            }
        }
    };
    (0..samples).map(demand).collect()
}

/// What every method of a short history said of the same demands, recorded when methods were still numbers of an enum: expected and safe
/// residual after 300, 900 and 1,500 samples.
#[test]
fn predictions_stay_what_they_were() {
    let recorded: [(&str, [(f64, f64); 3]); 6] = [
        (
            "moving_average",
            [(262.025, 134.832_110_199), (340.558_333_333, 272.082_756_976), (292.566_666_667, 164.046_247_845)],
        ),
        (
            "mean_plus_sigma",
            [(262.025, 137.576_225_398), (340.558_333_333, 116.177_140_444), (292.566_666_667, 157.900_973_601)],
        ),
        ("windowed_maximum", [(156.0, 156.0), (10.0, 10.0), (156.0, 156.0)]),
        (
            "autoregression",
            [
                (279.983_001_662, 152.790_111_861),
                (334.636_772_882, 266.161_196_525),
                (303.609_176_379, 175.088_757_557),
            ],
        ),
        ("autocorrelation", [(257.7, 130.507_110_199), (341.75, 273.274_423_642), (291.65, 163.129_581_178)]),
        (
            "signature",
            [
                (278.284_522_185, 151.091_632_434),
                (347.967_806_503, 279.492_230_145),
                (346.268_954_060, 217.748_536_238),
            ],
        ),
    ];
    let demands = mixed(1_500);
    for (name, wanted) in recorded {
        let mut f = forecaster(name, 120.0, 20.0);
        let mut found = Vec::new();
        for (index, demand) in demands.iter().enumerate() {
            feed(&mut f, &[*demand]);
            if [300, 900, 1_500].contains(&(index + 1)) {
                found.push(cpu(&f));
            }
        }
        for ((expected, safe), (wanted_expected, wanted_safe)) in found.iter().zip(wanted) {
            let same = (expected - wanted_expected).abs() < 1e-6 && (safe - wanted_safe).abs() < 1e-6;
            assert!(same, "{name}: {found:?}");
        }
    }
}

#[test]
fn names_are_valid_and_unique() {
    for (index, method) in METHODS.iter().enumerate() {
        assert_eq!(method.reported().as_str(), method.name());
        assert_eq!(Method::named(method.name()), Some(*method));
        assert!(METHODS[..index].iter().all(|other| other != method), "{method:?} is there twice");
        assert!(!method.meaning().is_empty() && !method.meaning().contains('|'), "it becomes a cell of a table");
    }
    assert_eq!(Method::named("moving-average"), None);
    assert_eq!(Method::named("moving_average").map(Method::config_word), Some("moving-average".to_owned()));
    assert_eq!((Method::default().name(), Method::default().config_word()), ("calibrated", "calibrated".to_owned()));
}

#[test]
fn names_travel_in_binary_whether_they_have_a_number_or_not() {
    // Numbers of the first seven are those of the first release; a name without one follows the next.
    const FIRST: [&str; 7] = [
        "moving_average",
        "mean_plus_sigma",
        "windowed_maximum",
        "autoregression",
        "autocorrelation",
        "signature",
        "best",
    ];
    let names: Vec<MethodName> = METHODS.iter().map(|method| method.reported()).collect();
    for name in names.into_iter().chain(["best", "arima2"].map(|name| MethodName::new(name).unwrap())) {
        let number = FIRST.iter().position(|first| *first == name.as_str()).unwrap_or(FIRST.len());
        let mut bytes = Vec::new();
        gleaner_wire::encode_value(9, &name, &mut bytes).unwrap();
        assert_eq!(gleaner_wire::decode_value::<MethodName>(9, &bytes).unwrap(), name);
        assert_eq!(usize::from(bytes[0]), number, "{name}");
    }
}

#[test]
fn every_method_predicts_a_constant() {
    for method in METHODS {
        let mut f = forecaster(method.name(), 60.0, 10.0);
        feed(&mut f, &[120.0; 300]);
        let (expected, safe) = cpu(&f);
        assert!((expected - 280.0).abs() < 1e-6 && (safe - 280.0).abs() < 1e-3, "{method:?}: {expected} {safe}");
    }
}

#[test]
fn every_method_keeps_its_history_where_only_sigma_changes() {
    for method in METHODS {
        let mut f = forecaster(method.name(), 60.0, 10.0);
        feed(&mut f, &mixed(300));
        let (before, settings) = (cpu(&f), settings(method.name(), 60.0, 10.0));
        f.set_settings(ForecastSettings { sigma_k: 0.0, ..settings });
        let (expected, safe) = cpu(&f);
        assert!((expected - before.0).abs() < 1e-9 && safe >= before.1 - 1e-9, "{method:?}: {expected} {safe}");
        f.set_settings(ForecastSettings { lookahead_s: 11.0, ..settings });
        assert!(f.forecast().cpu.value().is_none(), "{method:?}: another lookahead begins the history anew");
    }
}

#[test]
fn series_that_never_were_are_survived_by_every_method() {
    let hostile: [&dyn Fn(usize) -> f64; 6] = [
        &|_| 0.0,
        &|step| if step == 70 { 1e12 } else { 0.0 },
        &|step| if step % 2 == 0 { 0.0 } else { 1e9 },
        &|step| f64::MIN_POSITIVE * (step % 3) as f64,
        &|step| 1e6 / (step as f64 + 1.0),
        &|step| (step as f64).exp2().min(1e12),
    ];
    for method in METHODS {
        for (number, series) in hostile.iter().enumerate() {
            for interval_s in [1e-3, 1.0, 700.0] {
                let mut f = forecaster(method.name(), 60.0, 20.0);
                for step in 0..200 {
                    f.observe(CoreShare::clamped(1e13), Some(CoreShare::clamped(series(step))), None, interval_s);
                    let forecast = f.forecast();
                    let Reading::Value(cpu) = forecast.cpu else { continue };
                    let bounded = cpu.safe <= cpu.expected && cpu.expected.percent() <= 1e13;
                    assert!(bounded, "{method:?}, series {number}, {interval_s} s, step {step}: {cpu:?}");
                }
            }
        }
    }
}

/// Any of the registry.
fn any_method() -> impl Strategy<Value = Method> {
    (0..METHODS.len()).prop_map(|index| METHODS[index])
}

proptest! {
    #[test]
    fn bounds_hold_for_any_input(
        method in any_method(),
        samples in prop::collection::vec((prop::option::of(0.0..1000.0f64), -1.0..5.0f64), 0..300),
        history in 1.0..60.0f64,
        lookahead in 1.0..60.0f64,
    ) {
        let mut f = forecaster(method.name(), history, lookahead);
        let mut demanded: Vec<f64> = Vec::new();
        for (demand, interval) in samples {
            f.observe(share(1_000.0), demand.map(share), None, interval);
            demanded.extend(demand.filter(|_| interval > 0.0));
            let forecast = f.forecast();
            if let Reading::Value(cpu) = forecast.cpu {
                prop_assert!(cpu.safe <= cpu.expected && cpu.expected <= share(1_000.0));
                // Nothing beyond what was ever demanded is expected.
                let most = demanded.iter().copied().fold(0.0, f64::max);
                prop_assert!(cpu.expected.percent() >= 1_000.0 - most - 1e-3, "{cpu:?}, {most}");
            }
            prop_assert!(forecast.record.broken <= forecast.record.judged);
        }
    }
}

#[test]
fn a_state_goes_on_where_it_was() {
    for (lookahead_s, interval_s) in [(10.0, 1.0), (300.0, 60.0), (600.0, 300.0)] {
        let settings = settings("calibrated", 60.0, lookahead_s);
        let mut f = ResidualForecaster::new(settings);
        for demand in mixed(1_500) {
            f.observe(share(400.0), Some(share(demand)), Some(Bytes(1_000_000_000 - bytes(1e6 * demand))), interval_s);
        }
        let mut bytes = Vec::new();
        gleaner_wire::encode_value(1, &f.state(), &mut bytes).unwrap();
        let state: ForecastState = gleaner_wire::decode_value(1, &bytes).unwrap();
        assert_eq!(state, f.state());
        let mut resumed = ResidualForecaster::resume(settings, state, 0.0).unwrap();
        // How many CPUs there are now is said by the first sample, even one without values.
        resumed.observe(share(400.0), None, None, 1e-9);
        let (before, after) = (f.forecast(), resumed.forecast());
        assert_eq!((before.cpu, resumed.windows(), errors(&resumed)), (after.cpu, f.windows(), errors(&f)));
        assert_eq!(before.memory.value().unwrap().expected, after.memory.value().unwrap().expected);
    }
}

#[test]
fn a_day_of_state_is_small() {
    let settings = settings("calibrated", 600.0, 300.0);
    let mut f = ResidualForecaster::new(settings);
    for (minute, demand) in mixed(3_000).into_iter().enumerate() {
        let demand = demand + (minute as f64).sin().abs();
        let memory = Bytes(7_654_321_987 + bytes(1_234_567.0 * demand));
        f.observe(share(400.0), Some(share(demand.min(400.0))), Some(memory), 60.0);
    }
    let state = f.state();
    let json = serde_json::to_string(&state).unwrap().len();
    let mut binary = Vec::new();
    gleaner_wire::encode_value(1, &state, &mut binary).unwrap();
    assert!(json <= 64 * 1_024 && binary.len() <= 32 * 1_024, "{json} and {}", binary.len());
    // Whole hours: between 23 and 24 of them.
    assert!(errors(&f).len() == 720 && (276..=288).contains(&f.windows().judged), "{:?}", f.windows());
}

#[test]
fn a_gap_is_a_gap() {
    let settings = settings("calibrated", 600.0, 300.0);
    let mut f = ResidualForecaster::new(settings);
    (0..60).for_each(|_| f.observe(share(400.0), Some(share(100.0)), None, 60.0));
    let mut resumed = ResidualForecaster::resume(settings, f.state(), 7_200.0).unwrap();
    assert_eq!(resumed.windows(), f.windows());
    // What it was is expected as soon as there is a bucket, and nothing across the gap is judged.
    assert!(resumed.forecast().cpu.value().is_none());
    resumed.observe(share(400.0), Some(share(100.0)), None, 60.0);
    let (expected, safe) = cpu(&resumed);
    assert!((expected - 300.0).abs() < 1e-3 && (safe - 300.0).abs() < 1e-3, "{expected} {safe}");
    (0..4).for_each(|_| resumed.observe(share(400.0), Some(share(390.0)), None, 60.0));
    assert_eq!(resumed.forecast().record.judged, 0);
    let forgotten = ResidualForecaster::resume(settings, f.state(), 1e9).unwrap();
    assert_eq!(forgotten.windows(), Windows::default());
    assert!(forgotten.forecast().cpu.value().is_none());
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    let settings = settings("calibrated", 600.0, 300.0);
    let mut f = ResidualForecaster::new(settings);
    (0..200).for_each(|minute| f.observe(share(400.0), Some(share(f64::from(minute))), None, 60.0));
    let good = serde_json::to_value(f.state()).unwrap();
    let resume = |value: serde_json::Value| {
        let state: ForecastState = serde_json::from_value(value).ok()?;
        Some(ResidualForecaster::resume(settings, state, 60.0))
    };
    assert!(resume(good.clone()).unwrap().is_ok());
    let faults = [
        ("/method", serde_json::json!("signature")),
        ("/lookahead_s", serde_json::json!(301.0)),
        ("/cpu", serde_json::Value::Null),
        ("/cpu/means", serde_json::json!(vec![1.0; 9_999])),
        ("/cpu/means/0", serde_json::json!(1e300)),
        ("/cpu/errors", serde_json::json!(vec![1.0; 9_999])),
        ("/cpu/errors/0", serde_json::json!(1e6)),
        ("/cpu/error_scales", serde_json::json!([])),
        ("/cpu/error_scales/0", serde_json::json!(9_999)),
        ("/cpu/losses/1", serde_json::json!(-1.0)),
        ("/cpu/lookaheads", serde_json::json!(-1.0)),
        ("/cpu/judged", serde_json::json!(-1.0)),
        ("/cpu/level", serde_json::json!(2.0)),
        ("/cpu/usual/0", serde_json::json!(-1.0)),
        ("/cpu/first/2", serde_json::json!(-1.0)),
        ("/cpu/sampled_s", serde_json::json!(-1.0)),
        ("/cpu/expert_errors/0", serde_json::json!(-1.0)),
        ("/cpu/expert_errors", serde_json::json!([1.0])),
        ("/cpu/products/0", serde_json::json!(1e99)),
        ("/cpu/came", serde_json::json!([])),
        ("/memory/level", serde_json::json!(-9.0)),
        ("/hours", serde_json::json!([{"ago": 1, "judged": 1, "broken": 2}])),
    ];
    for (place, value) in faults {
        let mut state = good.clone();
        *state.pointer_mut(place).unwrap() = value;
        assert!(resume(state).is_none_or(|resumed| resumed.is_err()), "{place}");
    }
    for gap_s in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(ResidualForecaster::resume(settings, f.state(), gap_s).is_err(), "{gap_s}");
    }
}

/// Broken windows among those of a series at one value a minute, five minutes ahead.
fn windows_of(series: impl Iterator<Item = f64>, risk: f64) -> (u64, u64) {
    let settings = ForecastSettings { risk, ..settings("calibrated", 600.0, 300.0) };
    let mut f = ResidualForecaster::new(settings);
    let (mut judged, mut broken) = (0, 0);
    for (minute, demand) in series.enumerate() {
        f.observe(share(400.0), Some(share(demand.clamp(0.0, 400.0))), None, 60.0);
        if minute % 1_380 == 1_379 {
            judged += f.windows().judged;
            broken += f.windows().broken;
        }
    }
    (judged, broken)
}

#[test]
fn the_stated_share_breaks_where_regimes_switch() {
    // Levels of two and of five hours, with noise; three days.
    let noise = mixed(4_320);
    for hours in [2, 5] {
        let demand = |(minute, noise): (usize, &f64)| {
            f64::from(u32::from(minute / (60 * hours) % 2 == 0)) * 200.0 + 40.0 + noise / 4.0
        };
        for (risk, most) in [(0.01, 0.03), (0.05, 0.06)] {
            let (judged, broken) = windows_of(noise.iter().enumerate().map(demand), risk);
            assert!(broken as f64 <= most * judged as f64, "{hours} h at {risk}: {broken} of {judged}");
        }
    }
}

#[test]
fn few_samples_promise_less_than_many_of_the_same_spread() {
    // One value a minute, and within a lookahead, so that nothing was judged.
    let left_out = |samples: usize| {
        let mut f = forecaster("calibrated", 600.0, 1_800.0);
        for minute in 0..samples {
            f.observe(share(400.0), Some(share(if minute % 2 == 0 { 90.0 } else { 110.0 })), None, 60.0);
        }
        let (expected, safe) = cpu(&f);
        expected - safe
    };
    assert!(left_out(4) > 1.3 * left_out(20), "{} {}", left_out(4), left_out(20));
}

#[test]
fn of_memory_less_is_promised_at_first_than_of_cpu() {
    let mut f = forecaster("calibrated", 600.0, 1_800.0);
    for minute in 0..10 {
        let demand = if minute % 2 == 0 { 90.0 } else { 110.0 };
        f.observe(share(400.0), Some(share(demand)), Some(Bytes(100_000 - bytes(10.0 * demand))), 60.0);
    }
    let (expected, safe) = cpu(&f);
    let memory = *f.forecast().memory.value().unwrap();
    let of_memory = (memory.expected.0 - memory.safe.0) as f64 / 10.0;
    assert!(of_memory > 2.0 * (expected - safe), "{of_memory} {expected} {safe}");
}

#[test]
fn bursts_that_say_nothing_of_those_to_come_are_allowed_for_at_all_times() {
    // Bursts of five minutes in the midst of quiet hours: what was usual lately is small when one comes.
    let bursts = |minute: usize| if minute / 5 % 25 == 24 { 200.0 } else { 20.0 + (minute % 3) as f64 };
    let mut f = forecaster("calibrated", 600.0, 300.0);
    (0..2_880).for_each(|minute| f.observe(share(400.0), Some(share(bursts(minute))), None, 60.0));
    let losses = serde_json::to_value(f.state()).unwrap()["cpu"]["losses"].clone();
    assert!(losses[1].as_f64() < losses[0].as_f64(), "{losses}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn scale_and_shift_do_not_matter(
        demands in prop::collection::vec(0.0..300.0f64, 30..200), scale in 0.5..8.0f64, shift in 0.0..200.0f64,
    ) {
        let (mut plain, mut scaled, mut shifted) = (
            forecaster("calibrated", 60.0, 20.0), forecaster("calibrated", 60.0, 20.0), forecaster("calibrated", 60.0, 20.0),
        );
        for demand in demands {
            plain.observe(share(400.0), Some(share(demand)), None, 1.0);
            scaled.observe(share(400.0 * scale), Some(share(demand * scale)), None, 1.0);
            shifted.observe(share(400.0 + shift), Some(share(demand + shift)), None, 1.0);
        }
        let (plain, scaled, shifted) = (cpu(&plain), cpu(&scaled), cpu(&shifted));
        prop_assert!((plain.0 * scale - scaled.0).abs() < 0.5 && (plain.1 * scale - scaled.1).abs() < 20.0, "{plain:?} {scaled:?}");
        prop_assert!((plain.0 - shifted.0).abs() < 0.5 && (plain.1 - shifted.1).abs() < 10.0, "{plain:?} {shifted:?}");
    }

    #[test]
    fn the_pace_of_samples_does_not_matter(
        minutes in prop::collection::vec(0.0..300.0f64, 60..120), parts in 1_u32..20,
    ) {
        let (mut slow, mut fast) = (forecaster("calibrated", 600.0, 300.0), forecaster("calibrated", 600.0, 300.0));
        for demand in minutes {
            slow.observe(share(400.0), Some(share(demand)), None, 60.0);
            for _ in 0..parts {
                fast.observe(share(400.0), Some(share(demand)), None, 60.0 / f64::from(parts));
            }
        }
        let (slow, fast) = (cpu(&slow), cpu(&fast));
        prop_assert!((slow.0 - fast.0).abs() < 0.1, "{slow:?} {fast:?}");
        prop_assert!((slow.1 - fast.1).abs() < 30.0, "{slow:?} {fast:?}");
    }
}

#[test]
fn memory_is_promised_where_samples_are_as_far_apart_as_the_lookahead() {
    let mut host = forecaster("calibrated", 600.0, 300.0);
    for sample in 1..10 {
        host.observe(share(400.0), Some(share(50.0)), Some(Bytes::from_mib(1_000)), 300.0);
        assert_eq!(host.forecast().memory.value().is_some(), sample >= 3, "sample {sample}");
    }
}

#[test]
fn another_risk_judges_both_bounds_anew() {
    let mut host = forecaster("calibrated", 600.0, 300.0);
    let losses = |host: &ResidualForecaster| serde_json::to_value(host.state()).unwrap()["cpu"]["losses"].clone();
    (0..60).for_each(|minute| {
        host.observe(share(400.0), Some(share(50.0 + f64::from(minute % 7))), None, 60.0);
    });
    assert!(losses(&host)[0].as_f64() > Some(0.0));
    host.set_settings(ForecastSettings { risk: 0.05, ..settings("calibrated", 600.0, 300.0) });
    assert_eq!(losses(&host), serde_json::json!([0.0, 0.0]));
}
