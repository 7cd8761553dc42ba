use proptest::prelude::*;

use super::*;

/// Pseudo-random numbers in 0..1, the same everywhere.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1_u64 << 31) as f64
}

/// Nearly normal: mean 0, variance 1.
fn normal(state: &mut u64) -> f64 {
    (0..12).map(|_| random(state)).sum::<f64>() - 6.0
}

/// A service with gains 2 and 0.5 whose level takes steps of this deviation, beside noise of that one.
struct Service {
    state: u64,
    level: f64,
    noise: f64,
    step: f64,
}

impl Service {
    fn new(state: u64, noise: f64, step: f64) -> Self {
        Self { state, level: -0.4, noise, step }
    }

    fn row(&mut self, varied: f64) -> ([f64; 2], f64) {
        self.level += self.step * normal(&mut self.state);
        let mut vary = |middle: f64| middle * (1.0 + varied * (2.0 * random(&mut self.state) - 1.0));
        let shares = [vary(0.5), vary(0.4)];
        (shares, 2.0 * shares[0] + 0.5 * shares[1] + self.level + self.noise * normal(&mut self.state))
    }

    fn rows(&mut self, count: usize, varied: f64) -> Rows {
        let mut rows = Rows::new(2, count, Constants::default());
        for index in 0..count {
            let (shares, value) = self.row(varied);
            rows.add(&shares, value, Before::Intervals(1), count - 1 - index);
        }
        rows
    }
}

/// As a model does: in every interval, from the variances of the one before.
fn fitted(rows: &Rows) -> Fit {
    let mut found = fit(rows, &[0.9, 1.1], Variances::default(), &[]);
    for _ in 0..4 {
        found = fit(rows, &[0.9, 1.1], found.variances, &found.values);
    }
    found
}

#[test]
fn gains_and_variances_are_recovered() {
    let (mut noises, mut steps) = (Vec::new(), Vec::new());
    for seed in 1..=20 {
        let found = fitted(&Service::new(seed, 0.05, 0.0).rows(60, 0.4));
        let off = (found.values[0] - 2.0).abs().max((found.values[1] - 0.5).abs());
        assert!(off < 0.5, "seed {seed}: {found:?}");
        noises.push(found.variances.noise.sqrt());
        let moving = fitted(&Service::new(seed, 0.05, 0.05).rows(60, 0.4));
        assert!((moving.values[0] - 2.0).abs() < 0.8, "seed {seed}: {moving:?}");
        steps.push((found.variances.steps, moving.variances.steps));
    }
    let mean = noises.iter().sum::<f64>() / 20.0;
    assert!((mean - 0.05).abs() < 0.01, "{mean}");
    let told_apart = steps.iter().filter(|(still, moving)| still < moving).count();
    assert!(told_apart >= 16, "{steps:?}");
}

#[test]
fn without_noise_the_data_decide() {
    let found = fitted(&Service::new(3, 0.0, 0.0).rows(60, 0.1));
    assert!((found.values[0] - 2.0).abs() < 0.1 && (found.values[1] - 0.5).abs() < 0.1, "{found:?}");
}

/// Shares that never move tell nothing of their gains.
#[test]
fn shares_that_are_constant_stay_at_the_prior() {
    let found = fitted(&Service::new(4, 0.03, 0.0).rows(60, 0.0));
    assert!((found.values[0] - 0.9).abs() < 1e-6 && (found.values[1] - 1.1).abs() < 1e-6, "{found:?}");
    let none = fit(&Rows::new(2, 0, Constants::default()), &[0.9, 1.1], Variances::default(), &[]);
    assert_eq!(none.variances, Variances::default());
}

#[test]
fn a_change_of_the_load_is_told_from_noise_and_does_not_bend_the_gains() {
    for seed in 1..=10 {
        let mut service = Service::new(seed, 0.03, 0.0);
        let mut rows = service.rows(40, 0.4);
        let before = fitted(&rows);
        let (shares, value) = service.row(0.4);
        let mut same = rows.clone();
        same.add(&shares, value, Before::Intervals(1), 0);
        assert!(!is_change(&same, &before.values, before.variances), "seed {seed}");
        service.level -= 0.5;
        let (shares, value) = service.row(0.4);
        rows.add(&shares, value, Before::Intervals(1), 0);
        assert!(is_change(&rows, &before.values, before.variances), "seed {seed}");
        rows.change();
        let after = fitted(&rows);
        let moved = (after.values[0] - before.values[0]).abs();
        assert!(moved < 0.05, "seed {seed}: {before:?}, {after:?}");
    }
}

/// The first row and one after a change are all that is known of the level; later the noise is averaged.
#[test]
fn the_level_is_known_the_better_the_longer_it_is_seen() {
    let mut level = Level::default();
    assert_eq!(level.step(Before::Intervals(1), 0.2), None);
    let (variance, gain) = level.step(Before::Intervals(1), 0.2).unwrap();
    assert!((variance - 2.2).abs() < 1e-12 && (gain - 1.2 / 2.2).abs() < 1e-12);
    let (_, later) = (0..50).filter_map(|_| level.step(Before::Intervals(1), 0.2)).last().unwrap();
    // Where it settles: K²/(1 − K) = 0.2.
    assert!((later * later / (1.0 - later) - 0.2).abs() < 1e-9);
    assert!(level.step(Before::Intervals(10), 0.2).unwrap().1 > later);
    assert_eq!(level.step(Before::Nothing, 0.2), None);
}

#[test]
fn numbers_that_are_not_finite_never_enter() {
    let mut rows = Service::new(6, 0.03, 0.0).rows(20, 0.4);
    let clean = rows.clone();
    rows.add(&[f64::NAN, 0.1], 1.0, Before::Intervals(1), 0);
    rows.add(&[0.1, 0.1], f64::INFINITY, Before::Intervals(1), 0);
    rows.add(&[0.1], 1.0, Before::Intervals(1), 0);
    assert_eq!(rows, clean);
    for odd in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let odd = Variances { noise: odd, ..Variances::default() };
        assert_eq!(fit(&rows, &[0.9, 1.1], odd, &[]), fit(&rows, &[0.9, 1.1], Variances::default(), &[]));
    }
}

proptest! {
    /// Whatever comes, what is found is finite, no gain is negative and no variance is none.
    #[test]
    fn what_is_found_is_usable(
        data in proptest::collection::vec((0.0..1.0_f64, 0.0..1.0_f64, -10.0..10.0_f64, 0..4_usize), 0..30),
        prior in (0.0..50.0_f64, 0.0..50.0_f64),
    ) {
        let mut rows = Rows::new(2, data.len(), Constants::default());
        for (index, (a, b, value, apart)) in data.iter().enumerate() {
            let before = if *apart == 0 { Before::Nothing } else { Before::Intervals(*apart) };
            rows.add(&[*a, *b], *value, before, data.len() - 1 - index);
        }
        let found = fit(&rows, &[prior.0, prior.1], Variances::default(), &[]);
        prop_assert!(found.values.iter().all(|value| value.is_finite() && *value >= 0.0), "{found:?}");
        prop_assert!(found.variances.noise > 0.0 && found.variances.noise.is_finite(), "{found:?}");
    }
}
