use gleaner_test_support::report as support;
use gleaner_types::report::{Offer, VolunteerState};

use super::*;

/// A history in which every forecast expected `expected` percent of one core to be left and `demands` were used, minute
/// by minute, on a host of one core.
fn history(expected: f64, demands: &[f64]) -> History {
    let mut history = History::new();
    for (minute, demand) in demands.iter().enumerate() {
        for second in 0..60 {
            let at = Timestamp(minute as u64 * 60_000 + second * 1_000);
            history.sample(at, 1.0, share(100.0), Some(share(*demand)), Some(share(expected)));
        }
    }
    // Only what follows ends the last minute.
    history.sample(Timestamp(demands.len() as u64 * 60_000), 0.0, share(100.0), None, None);
    history
}

fn share(percent: f64) -> CoreShare {
    CoreShare::new(percent).unwrap()
}

#[test]
fn errors_by_hand() {
    // 80 % are expected to be left, so 20 to be used. Windows of two minutes after minutes 0, 1 and 2: 30, 20, 0.
    let seen = history(80.0, &[0.0, 20.0, 40.0, 0.0, 0.0]);
    let errors = seen.errors(2);
    assert_eq!(errors.len(), 3);
    for (error, wanted) in errors.iter().zip([0.1, 0.0, -0.2]) {
        assert!((error - wanted).abs() < 1e-4, "{errors:?}");
    }
    assert_eq!(seen.errors(5), Vec::<f64>::new(), "the fifth minute after the first is not over");
}

#[test]
fn the_allowance_is_an_order_statistic_of_what_was_seen() {
    // Demand minute by minute 0..=98 %, the same again: with windows of a minute 198 − 1 errors.
    let demands: Vec<f64> = (0..199).map(|minute| f64::from(minute * 37 % 99)).collect();
    let seen = history(100.0, &demands);
    let (allowance, basis) = seen.allowance(1, 0.1, 0.0).unwrap();
    assert_eq!(basis, Basis::Observed { windows: 198 });
    // ⌈199 · 0.9⌉ = 180th of 198 errors: every value but the first one comes twice, so 89 or so.
    assert!((0.885..=0.905).contains(&allowance), "{allowance}");
    let (smaller, _) = seen.allowance(1, 0.5, 0.0).unwrap();
    assert!(smaller < allowance);
}

#[test]
fn a_risk_that_was_not_seen_stretches_the_largest_error() {
    // Nine windows of one minute; the largest error is 0.1.
    let seen = history(80.0, &[20.0, 20.0, 30.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0]);
    let (allowance, basis) = seen.allowance(1, 0.01, 0.0).unwrap();
    assert_eq!(basis, Basis::Stretched { windows: 9 });
    // ln 100 / ln 10 = 2.
    assert!((allowance - 0.2).abs() < 1e-3, "{allowance}");
    let (wider, _) = seen.allowance(1, 0.01, 0.15).unwrap();
    assert!((wider - 0.3).abs() < 1e-3, "the forecast's own spread counts where it is larger: {wider}");
    let (seen_enough, basis) = seen.allowance(1, 0.1, 0.15).unwrap();
    assert_eq!(basis, Basis::Observed { windows: 9 }, "0.1 · (9 + 1) = 1");
    assert!((seen_enough - 0.1).abs() < 1e-3, "{seen_enough}");
}

#[test]
fn too_short_a_history_says_how_much_is_missing() {
    let seen = history(80.0, &[20.0; 25]);
    let missing = seen.allowance(10, 0.01, 0.0).unwrap_err();
    assert_eq!(missing.kind, AbsenceKind::NotYet);
    // 15 errors were seen; 21 are three windows that do not overlap.
    assert!(missing.detail().contains("another 6 min 00 s are needed"), "{}", missing.detail());
    assert!(history(80.0, &[20.0; 32]).allowance(10, 0.5, 0.0).is_ok());
}

#[test]
fn gaps_and_clocks_that_go_back_leave_windows_out() {
    let mut seen = History::new();
    let mut second = |s: u64, demand: Option<f64>| {
        seen.sample(Timestamp(s * 1_000), 1.0, share(100.0), demand.map(share), Some(share(80.0)));
    };
    for s in 0..120 {
        second(s, Some(20.0));
    }
    // Nothing for minutes 2 to 9, one minute, then one without readings, then two more.
    for s in 600..660 {
        second(s, Some(20.0));
    }
    for s in 660..720 {
        second(s, None);
    }
    for s in 720..840 {
        second(s, Some(20.0));
    }
    second(5, Some(100.0));
    second(900, Some(20.0));
    assert_eq!(seen.steps.len(), 15);
    // Minute 1 after 0, minute 12 after 11, minute 13 after 12; not 10, whose minute before was not seen.
    assert_eq!(seen.errors(1).len(), 3);
    assert!(seen.errors(1).iter().all(|error| error.abs() < 1e-4));
    // A jump of years is a bounded number of gaps.
    seen.sample(Timestamp(u64::MAX), 1.0, share(100.0), Some(share(1.0)), None);
    assert_eq!((seen.steps.len(), seen.errors(1).len()), (MOST_STEPS, 0));
    // Nor is it for ever.
    for s in 840..960 {
        seen.sample(Timestamp(s * 1_000), 1.0, share(100.0), Some(share(20.0)), Some(share(80.0)));
    }
    assert_eq!((seen.steps.len(), seen.minute), (1, Some(15)));
}

fn facts(acting: bool) -> HostFacts {
    let offers = vec![
        Offer { capability: Capability::CpuQuota, state: Reading::Value("cpu.max".into()) },
        Offer {
            capability: Capability::Freezer,
            state: Reading::absent(AbsenceKind::NotSupported, "there is no cgroup.freeze"),
        },
    ];
    HostFacts { cores: 1, memory: Bytes::from_mib(1_024), offers, ..support::facts(acting) }
}

fn report(expected: f64) -> HostReport {
    let residual = support::residual(expected, expected);
    let mut report = HostReport { residual, ..support::report(&HostId::new("h1").unwrap(), 1) };
    report.machine.cpu_capacity = share(100.0);
    report.volunteer.state = VolunteerState::Latent;
    report
}

#[test]
fn hosts_are_distinguished_by_what_they_may_do() {
    let question = Question { for_s: 60.0, risk: 0.1 };
    let id = HostId::new("h1").unwrap();
    let (seen, now) = (history(80.0, &[20.0, 20.0, 30.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0]), report(70.0));
    let (acting, observing) = (facts(true), facts(false));
    let ready = Candidate {
        host: &id,
        facts: &acting,
        report: Some(&now),
        history: Some(&seen),
        left: Ok(share(100.0)),
        held_until: None,
        job: None,
    };
    let own = about(&question, &ready);
    assert_eq!(own.standing, Standing::Ready);
    // 70 are expected; 10 were the largest error.
    let promise = *own.promise.value().unwrap();
    assert!((promise.cpu.percent() - 60.0).abs() < 0.01, "{promise:?}");
    let tight = about(&question, &Candidate { left: Ok(share(25.0)), ..ready });
    assert_eq!(tight.promise.value().unwrap().cpu, share(25.0), "applications come first");
    let contended = about(&question, &Candidate { left: Err("applications contend for its CPU"), ..ready });
    assert!(matches!(contended.standing, Standing::Unable { .. }));
    let held = about(&question, &Candidate { held_until: Some(HeldUntil::Released), ..ready });
    assert_eq!(held.standing, Standing::Held { until: HeldUntil::Released });
    let watching = about(&question, &Candidate { facts: &observing, ..ready });
    let Standing::Observing { needs } = &watching.standing else { panic!("{:?}", watching.standing) };
    assert!(needs[0].contains("act.enabled") && needs[1].contains("there is no cgroup.freeze"), "{needs:?}");
    assert_eq!(needs.len(), 2, "what the host offers is no need: {needs:?}");
    let gone = about(&question, &Candidate { report: None, ..ready });
    let new = about(&question, &Candidate { history: None, ..ready });
    let Reading::Absent(absence) = &new.promise else { panic!("{:?}", new.promise) };
    assert!(absence.detail().contains("not watched yet"));
    assert!(gone.promise.value().is_none());

    let all = total(question, vec![own, held, watching, gone, new]);
    assert!((all.ready.unwrap().percent() - 60.0).abs() < 0.01, "{all:?}");
    assert!((all.observing.unwrap().percent() - 60.0).abs() < 0.01, "{all:?}");
}

#[test]
fn questions_have_bounds() {
    assert!(Question { for_s: 600.0, risk: 0.01 }.check().is_ok());
    for (for_s, risk, part) in [
        (0.0, 0.1, "for_s: is 0"),
        (f64::NAN, 0.1, "for_s"),
        (90_000.0, 0.1, "for_s"),
        (60.0, 0.0, "risk: is 0"),
        (60.0, 0.9, "risk"),
    ] {
        let said = Question { for_s, risk }.check().unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(Question { for_s: 61.0, risk: 0.1 }.window(), 2);
}

proptest::proptest! {
    #[test]
    fn a_smaller_risk_never_promises_more(
        demands in proptest::collection::vec(0.0..100.0f64, 5..200), window in 1..12usize,
        spread in 0.0..0.5f64, a in 0.001..0.5f64, b in 0.001..0.5f64,
    ) {
        let seen = history(80.0, &demands);
        let (low, high) = (a.min(b), a.max(b));
        if let (Ok((careful, _)), Ok((bold, _))) = (seen.allowance(window, low, spread), seen.allowance(window, high, spread)) {
            proptest::prop_assert!(careful >= bold - 1e-12, "{careful} at {low}, {bold} at {high}");
        }
    }

    #[test]
    fn no_history_makes_it_panic(
        steps in proptest::collection::vec((0..10_000_000u64, -1.0..1e9f64, 0.0..1e6f64, 0.0..1e6f64), 0..200), window in 1..400usize,
    ) {
        let mut seen = History::new();
        for (at, interval, demand, residual) in steps {
            let both = (Some(CoreShare::clamped(demand)), Some(CoreShare::clamped(residual)));
            seen.sample(Timestamp(at), interval, CoreShare::clamped(demand / 2.0), both.0, both.1);
        }
        if let Ok((allowance, _)) = seen.allowance(window, 0.01, 0.0) {
            proptest::prop_assert!(allowance.is_finite());
        }
    }
}

#[test]
fn what_was_kept_goes_on_with_a_gap() {
    let demands: Vec<f64> = (0..40).map(|minute| f64::from(minute % 7) * 10.0).collect();
    let seen = history(80.0, &demands);
    let kept = seen.kept().unwrap();
    let resumed = History::resumed(&kept).unwrap();
    assert_eq!(resumed.kept(), Some(kept.clone()));
    assert_eq!(resumed.errors(3), seen.errors(3));
    // Two minutes in which nobody watched: the windows that would reach over them are left out, the others count.
    let mut resumed = resumed;
    for second in 0..=120 {
        let at = Timestamp(42 * 60_000 + second * 1_000);
        resumed.sample(at, 1.0, share(100.0), Some(share(20.0)), Some(share(80.0)));
    }
    assert_eq!(resumed.errors(1).len(), seen.errors(1).len() + 1);
    assert!(!kept.is_over(Timestamp(40 * 60_000)) && kept.is_over(Timestamp(2 * 86_400_000)));
    assert_eq!(History::new().kept(), None);
}

#[test]
fn what_was_never_kept_is_refused() {
    let kept = |steps: &str| History::resumed(&KeptHistory { minute: 7, steps: steps.to_owned() });
    assert!(kept("").is_some() && kept("0000ea60ffffffff").is_some());
    for steps in ["0", "0000ea6", "0000ea61", "0000zzzz", "+000+000", "00é0000"] {
        assert!(kept(steps).is_none(), "{steps}");
    }
    assert!(kept(&"00000000".repeat(MOST_STEPS + 1)).is_none());
}

#[test]
fn what_is_not_known_is_no_nothing() {
    let own = |standing: Standing, known: bool| HostAdvice {
        host: HostId::new("h").unwrap(),
        standing,
        promise: Reading::absent(AbsenceKind::NotYet, "21 more minutes are needed"),
        in_use: known.then_some(CoreShare::ZERO),
        job: None,
    };
    let question = Question { for_s: 600.0, risk: 0.01 };
    let advice = total(question, vec![own(Standing::Ready, false)]);
    assert_eq!((advice.ready, advice.in_use, advice.observing), (None, None, Some(CoreShare::ZERO)));
    let advice = total(question, vec![own(Standing::Ready, false), own(Standing::Ready, true)]);
    assert_eq!((advice.ready, advice.in_use), (None, Some(CoreShare::ZERO)));
}

/// What is promised of a host of one core whose agent promises 60 % of it for five minutes at 1 %, of whose windows so many
/// broke.
fn own_promise(for_s: f64, risk: f64, judged: u32, broken: u32) -> Reading<Promise> {
    let id = HostId::new("h1").unwrap();
    let mut report = support::report(&id, 1);
    report.machine.cpu_capacity = share(100.0);
    report.residual = ResidualForecast {
        lookahead_s: 300.0,
        windows: gleaner_types::report::PromiseWindows::new(
            gleaner_types::units::Fraction::clamped(0.01),
            judged,
            broken,
        )
        .ok(),
        ..support::residual(80.0, 60.0)
    };
    let own = facts(true);
    let history = history(80.0, &[20.0; 1_440]);
    let candidate = Candidate {
        host: &id,
        facts: &own,
        report: Some(&report),
        history: Some(&history),
        left: Ok(share(100.0)),
        held_until: None,
        job: None,
    };
    about(&Question { for_s, risk }, &candidate).promise
}

#[test]
fn what_an_agent_promises_all_the_time_is_what_is_advised_for_that_time_and_risk() {
    let of = |promise: Reading<Promise>| promise.value().map(|own| (own.cpu, own.basis)).unwrap();
    assert_eq!(of(own_promise(300.0, 0.01, 288, 2)), (share(60.0), Basis::Stated { windows: 288 }));
    for (for_s, risk, judged, broken) in
        [(600.0, 0.01, 288, 2), (300.0, 0.05, 288, 2), (300.0, 0.01, 2, 0), (300.0, 0.01, 288, 100)]
    {
        let (cpu, basis) = of(own_promise(for_s, risk, judged, broken));
        assert!(matches!(basis, Basis::Observed { .. } | Basis::Stretched { .. }), "{basis:?}");
        assert!((cpu.percent() - 80.0).abs() < 0.1, "of a history without an error: {cpu}");
    }
}
