use proptest::prelude::*;

use super::*;

fn share(percent: f64) -> CoreShare {
    CoreShare::new(percent).unwrap()
}

fn disk(value: f64) -> Option<Fraction> {
    Some(Fraction::new(value).unwrap())
}

#[test]
fn eq_2_to_4_by_hand() {
    // A disk used to 25 % by 1,600 % feeds three times as much besides; six hosts six times that.
    let found = saturation(Fraction::new(0.25).unwrap(), share(1_600.0), 6, 1.0).unwrap();
    assert_eq!((found.worst, found.best), (share(4_800.0), share(28_800.0)));
    // Disks half as fast as the base class feed half.
    let slow = saturation(Fraction::new(0.25).unwrap(), share(1_600.0), 6, 0.5).unwrap();
    assert_eq!(slow.best, share(14_400.0));
    assert_eq!(saturation(Fraction::ZERO, share(1_600.0), 6, 1.0), None, "idle disks limit nothing");
    let full = saturation(Fraction::new(1.5).unwrap(), share(1_600.0), 6, 1.0).unwrap();
    assert_eq!(full.best, CoreShare::ZERO);
}

fn view(current: f64, most: f64, now: f64) -> GrowthView {
    let saturation = saturation(Fraction::new(0.25).unwrap(), share(1_600.0), 6, 1.0);
    GrowthView { saturation, most: share(most), current: share(current), disk: disk(now), profile_disk: disk(0.25) }
}

#[test]
fn algorithm_1_by_hand() {
    let mut growth = Growth::default();
    assert_eq!(growth.next(view(0.0, 50_000.0, 0.25)), Some(share(4_800.0)), "line 10");
    assert_eq!(growth.next(view(4_800.0, 50_000.0, 0.35)), Some(share(16_800.0)), "line 12");
    // Line 18: from 0.25 to 0.65 with 16,800 %: full at 0.75/0.4 × 16,800.
    assert_eq!(growth.next(view(16_800.0, 50_000.0, 0.65)), Some(share(31_500.0)));
    assert_eq!(growth.next(view(31_500.0, 50_000.0, 0.9)), Some(share(36_300.0)), "line 21");
    assert_eq!(growth.next(view(36_300.0, 50_000.0, 0.96)), None, "saturated");
    assert!(growth.is_over());
}

#[test]
fn growth_stops_where_more_would_not_pay() {
    let mut growth = Growth::default();
    assert_eq!(growth.next(view(0.0, 3_000.0, 0.25)), Some(share(3_000.0)));
    assert_eq!(growth.next(view(3_000.0, 3_000.0, 0.3)), None);
    let mut growth = Growth { period: 2, over: false };
    assert_eq!(growth.next(view(16_800.0, 20_000.0, 0.5)), Some(share(20_000.0)), "line 15");
    let mut idle = Growth::default();
    assert_eq!(idle.next(GrowthView { saturation: None, ..view(0.0, 9e4, 0.0) }), None, "no disk limits anything");
}

fn point(at_s: f64, potential: f64, actual: f64, used: f64) -> IoPoint {
    IoPoint { at_s, potential: share(potential), actual: share(actual), disk: disk(used) }
}

#[test]
fn the_curve_goes_through_the_centres() {
    let mut model = IoModel::default();
    assert_eq!(model.curve(0.0), None);
    for noise in [-20.0, 0.0, 20.0] {
        model.observe(point(0.0, 10_000.0 + noise, 9_000.0 + noise, 0.3));
        model.observe(point(0.0, 20_000.0 + noise, 15_000.0 - noise, 0.8));
    }
    let curve = model.curve(0.0).unwrap();
    assert_eq!(curve.knots().len(), 2);
    let at = |x: f64| curve.actual(share(x)).percent();
    assert!((at(5_000.0) - 4_500.0).abs() < 1e-6, "in proportion before the first");
    assert!((at(10_000.0) - 9_000.0).abs() < 1e-6 && (at(15_000.0) - 12_000.0).abs() < 1e-6);
    // Past the last: 60 % of what is added, as between the knots, up to 15,000 / 0.8.
    assert!((at(24_000.0) - 17_400.0).abs() < 1e-6);
    assert!((at(90_000.0) - 18_750.0).abs() < 1e-6);
}

#[test]
fn fresh_points_outweigh_old_ones() {
    let mut model = IoModel::default();
    model.observe(point(0.0, 10_000.0, 9_000.0, 0.3));
    model.observe(point(3_000.0, 10_000.0, 6_000.0, 1.0));
    let at = model.curve(3_000.0).unwrap().actual(share(10_000.0)).percent();
    assert!((6_000.0..6_100.0).contains(&at), "five half-lives: {at}");
    // Thirty half-lives after a third one there is nothing of the first, and what is known of another size stays.
    model.observe(point(3_000.0, 5_000.0, 4_900.0, 0.9));
    model.observe(point(21_000.0, 10_000.0, 6_000.0, 1.0));
    let curve = model.curve(21_000.0).unwrap();
    assert!((curve.actual(share(10_000.0)).percent() - 6_000.0).abs() < 0.01);
    assert!((curve.actual(share(5_000.0)).percent() - 4_900.0).abs() < 1e-6);
}

#[test]
fn mean_shift_finds_what_scikit_learn_finds() {
    // sklearn.cluster.MeanShift(bandwidth=2) on these gives the centres (1, 1) and (9, 8.5).
    let at = |x: f64, y: f64| Weighted { x, y, disk: f64::NAN, weight: 1.0 };
    let points = vec![at(0.0, 1.0), at(1.0, 0.0), at(2.0, 1.0), at(1.0, 2.0), at(9.0, 8.0), at(9.0, 9.0)];
    let mut found = clusters(points, 2.0);
    found.sort_by(|a, b| a.x.total_cmp(&b.x));
    let centres: Vec<(f64, f64)> = found.iter().map(|mode| (mode.x, mode.y)).collect();
    assert_eq!(centres, [(1.0, 1.0), (9.0, 8.5)]);
}

#[test]
fn volunteers_go_round_in_proportion_to_the_disks() {
    assert_eq!(assign(4, &[1.0, 1.0]), [0, 1, 0, 1]);
    let assigned = assign(30, &[1.0, 2.0]);
    assert_eq!(assigned.iter().filter(|host| **host == 1).count(), 20);
    assert_eq!(assign(3, &[]), [] as [usize; 0]);
}

proptest! {
    #[test]
    fn no_points_make_a_curve_that_lies(
        points in prop::collection::vec((0.0..1e5f64, 0.0..1.2f64, 0.0..1.1f64, 0.0..5_000.0f64), 0..60),
        ask in 0.0..2e5f64,
    ) {
        let mut model = IoModel::default();
        for (potential, part, used, at_s) in points {
            model.observe(point(at_s, potential, potential * part, used));
        }
        if let Some(curve) = model.curve(5_000.0) {
            let actual = curve.actual(share(ask));
            prop_assert!(actual <= share(ask));
            prop_assert!(curve.actual(CoreShare::ZERO) == CoreShare::ZERO);
        }
    }

    #[test]
    fn growth_always_ends(used in 0.01..1.0f64, most in 0.0..1e5f64) {
        let mut growth = Growth::default();
        let saturation = saturation(Fraction::clamped(used), share(1_600.0), 6, 1.0);
        let mut current = 0.0;
        for step in 0.. {
            prop_assert!(step < 20_000);
            let view = GrowthView { saturation, ..view(current, most, used) };
            let Some(next) = growth.next(view) else { break };
            prop_assert!(next.percent() <= most && next.percent() > current);
            current = next.percent();
        }
    }
}
