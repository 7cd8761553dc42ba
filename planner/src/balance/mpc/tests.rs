//! The balancer against clarabel, an interior-point solver of convex programs, on random programs.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus, ZeroConeT};
use proptest::prelude::*;

use super::*;

fn solve(variables: &[Variable], wanted: f64, stability: f64) -> (Reach, Vec<f64>) {
    let mut shares = Vec::new();
    let reach = balance(variables, wanted, stability, &mut shares);
    (reach, shares.into_iter().map(NormalShare::value).collect())
}

fn variable(present: f64, gain: f64, lower: f64, upper: f64) -> Variable {
    let of = NormalShare::clamped;
    Variable { present: of(present), gain, lower: of(lower), upper: of(upper) }
}

/// The same program by clarabel: ½wᵀPw + cᵀw with Aw + s = b.
fn oracle(variables: &[Variable], wanted: f64, q: f64) -> Option<Vec<f64>> {
    let n = variables.len();
    let diagonal: Vec<f64> = vec![2.0 * (1.0 + q); n];
    let p = CscMatrix::new(n, n, (0..=n).collect(), (0..n).collect(), diagonal);
    let linear: Vec<f64> = variables.iter().map(|v| -2.0 * q * v.present.value()).collect();
    // Per column: the equation, the upper and the lower bound.
    let (mut columns, mut rows, mut values) = (vec![0], Vec::new(), Vec::new());
    for (i, v) in variables.iter().enumerate() {
        rows.extend([0, 1 + i, 1 + n + i]);
        values.extend([v.gain, 1.0, -1.0]);
        columns.push(rows.len());
    }
    let a = CscMatrix::new(1 + 2 * n, n, columns, rows, values);
    let upper = variables.iter().map(|v| v.upper.value());
    let lower = variables.iter().map(|v| -v.lower.value());
    let b: Vec<f64> = std::iter::once(wanted).chain(upper).chain(lower).collect();
    let settings = DefaultSettings {
        verbose: false,
        tol_gap_abs: 1e-10,
        tol_gap_rel: 1e-10,
        tol_feas: 1e-10,
        ..DefaultSettings::default()
    };
    let cones = [ZeroConeT(1), NonnegativeConeT(2 * n)];
    let mut solver = DefaultSolver::new(&p, &linear, &a, &b, &cones, settings).unwrap();
    solver.solve();
    (solver.solution.status == SolverStatus::Solved).then(|| solver.solution.x.clone())
}

#[test]
fn without_bounds_in_the_way_it_is_the_closed_form() {
    // min w₁² + w₂² with w₁ + 3·w₂ = 1 and q = 0: w = d/‖d‖².
    let free = [variable(0.5, 1.0, 0.0, 1.0), variable(0.5, 3.0, 0.0, 1.0)];
    let (reach, shares) = solve(&free, 1.0, 0.0);
    assert_eq!(reach, Reach::Met);
    assert!((shares[0] - 0.1).abs() < 1e-12 && (shares[1] - 0.3).abs() < 1e-12, "{shares:?}");
    // A large q keeps what is, moved only as far as the target needs.
    let (_, shares) = solve(&[variable(0.2, 1.0, 0.0, 1.0), variable(0.2, 1.0, 0.0, 1.0)], 0.5, 1e6);
    assert!(shares.iter().all(|share| (share - 0.25).abs() < 1e-6), "{shares:?}");
}

#[test]
fn a_target_out_of_reach_is_approached_and_what_brings_nothing_is_kept_cheap() {
    let variables = [variable(0.4, 2.0, 0.3, 0.5), variable(0.4, 0.0, 0.1, 0.6)];
    let (reach, shares) = solve(&variables, 9.0, 4.0);
    // Of the share without gain, the least penalty: q·v/(1 + q).
    assert!(
        reach == Reach::TooFarAbove && (shares[0] - 0.5).abs() < 1e-12 && (shares[1] - 0.32).abs() < 1e-12,
        "{shares:?}"
    );
    let (reach, shares) = solve(&variables, 0.1, 4.0);
    assert!(reach == Reach::TooFarBelow && (shares[0] - 0.3).abs() < 1e-12, "{shares:?}");
    assert_eq!(solve(&variables, f64::NAN, 4.0).0, Reach::TooFarBelow);
    assert_eq!(solve(&[], 1.0, 4.0), (Reach::TooFarAbove, vec![]));
    // Bounds that leave no room, met to the last bit.
    assert_eq!(solve(&[variable(0.5, 1.0, 0.5, 0.5)], 0.5, 4.0), (Reach::Met, vec![0.5]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_optimum_is_clarabels(
        of in proptest::collection::vec((0.0..1.0_f64, prop_oneof![Just(0.0), 0.0..4.0_f64, -1.0..4.0_f64], 0.0..1.0_f64, 0.0..0.5_f64), 1..40),
        part in 0.02..0.98_f64,
        stability in prop_oneof![Just(0.0), Just(4.0), 0.0..20.0_f64],
    ) {
        let variables: Vec<Variable> =
            of.iter().map(|(present, gain, lower, width)| variable(*present, *gain, *lower, lower + width)).collect();
        let end = |high: bool| -> f64 {
            let bound = |v: &Variable| if (v.gain > 0.0) == high { v.upper.value() } else { v.lower.value() };
            variables.iter().map(|v| v.gain * bound(v)).sum()
        };
        let wanted = end(false) + part * (end(true) - end(false));
        let (reach, shares) = solve(&variables, wanted, stability);
        prop_assert_eq!(reach, Reach::Met);
        let sum: f64 = variables.iter().zip(&shares).map(|(v, share)| v.gain * share).sum();
        prop_assert!((sum - wanted).abs() < 1e-9 * (1.0 + wanted.abs()), "{} is not {}", sum, wanted);
        if let Some(expected) = oracle(&variables, wanted, stability) {
            for (own, other) in shares.iter().zip(&expected) {
                // An interior point ends a little short of a bound: a cost off by 1e-10 leaves a share off by 1e-5.
                prop_assert!((own - other).abs() < 1e-3, "{:?} and {:?}", shares, expected);
            }
            let cost = |w: &[f64]| -> f64 {
                w.iter().zip(&variables).map(|(w, v)| w * w + stability * (w - v.present.value()).powi(2)).sum()
            };
            prop_assert!(cost(&shares) <= cost(&expected) + 1e-7);
        }
    }

    #[test]
    fn any_numbers_give_an_answer_within_the_bounds(
        of in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::NORMAL, 0.0..2.0_f64, 0.0..2.0_f64), 0..10),
        wanted in proptest::num::f64::ANY,
    ) {
        let variables: Vec<Variable> = of.iter().map(|(present, gain, lower, upper)| variable(*present, *gain, *lower, *upper)).collect();
        let (_, shares) = solve(&variables, wanted, 4.0);
        prop_assert_eq!(shares.len(), variables.len());
        for (v, share) in variables.iter().zip(shares) {
            prop_assert!(share >= v.lower.value() && share <= v.upper.value().max(v.lower.value()), "{}", share);
        }
    }
}
