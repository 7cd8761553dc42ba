//! What a forecast costs at one sample a second: taking it, and asking for the forecast, on a host that has been watched for a
//! day. In: a made-up foreground. Out: the time of one step, in the mean over many, and the size of the state.
//! Called by `cargo bench`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gleaner_planner::forecast::{ForecastSettings, METHODS, ResidualForecaster};
use gleaner_types::units::{Bytes, CoreShare};

/// A demand that goes up and down within a day, with a burst now and then.
fn step(forecaster: &mut ResidualForecaster, second: u32) {
    let wave = 100.0 * f64::from(second % 86_400) / 86_400.0;
    let burst = if second.wrapping_mul(2_654_435_761) >> 28 == 0 { 200.0 } else { 0.0 };
    let memory = Bytes::from_mib(8_000 - u64::from(second % 3_000));
    forecaster.observe(CoreShare::clamped(400.0), Some(CoreShare::clamped(20.0 + wave + burst)), Some(memory), 1.0);
}

fn forecast(criterion: &mut Criterion) {
    for method in METHODS {
        let mut forecaster =
            ResidualForecaster::new(ForecastSettings { method: *method, ..ForecastSettings::default() });
        let mut second = 0;
        let mut next = |forecaster: &mut ResidualForecaster| {
            step(forecaster, second);
            second += 1;
            black_box(forecaster.forecast())
        };
        (0..86_400).for_each(|_| _ = next(&mut forecaster));
        let state = serde_json::to_string(&forecaster.state()).map_or(0, |json| json.len());
        println!("forecast/state_{}: {state} bytes as JSON", method.name());
        criterion.bench_function(&format!("forecast/step_{}", method.name()), |bencher| {
            bencher.iter(|| next(&mut forecaster))
        });
    }
}

criterion_group!(benches, forecast);
criterion_main!(benches);
