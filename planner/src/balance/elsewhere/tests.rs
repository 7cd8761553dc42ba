//! What is given back, what ends it, and what is never touched.

use gleaner_types::units::Fraction;

use super::*;

fn share(resource: Resource, part: f64, used: f64) -> ObservedShare {
    ObservedShare {
        resource,
        share: Share::clamped(part),
        utilisation: Some(Fraction::clamped(used / part)),
        floor: Share::clamped(0.02),
        ceiling: Share::clamped(0.8),
    }
}

fn observation(mean_ms: f64, shares: Vec<ObservedShare>) -> Observation {
    Observation { target_ms: 100.0, mean_ms: Some(mean_ms), unanswered: 0, miss_rate: None, shares }
}

fn cpu(mean_ms: f64, part: f64, used: f64) -> Observation {
    observation(mean_ms, vec![share(Resource::Cpu, part, used)])
}

/// What is asked for where the controller would have a tenth more of everything.
fn judge(own: &mut Elsewhere, observed: &Observation) -> Request {
    let wanted = observed.shares.iter().map(|own| Share::clamped(1.1 * own.share.part())).collect();
    let mut request = Request::without_model(observed, wanted, vec![0.0; observed.shares.len()]);
    own.judge(observed, &mut request);
    request
}

/// What becomes of it when intervals of a response time, a CPU share and its use end.
fn after(own: &mut Elsewhere, intervals: &[(f64, f64, f64)]) -> Request {
    let mut last = None;
    for (mean_ms, part, used) in intervals {
        last = Some(judge(own, &cpu(*mean_ms, *part, *used)));
    }
    last.unwrap()
}

const GROWING: [(f64, f64, f64); 6] = [
    (180.0, 0.3, 0.1),
    (185.0, 0.35, 0.1),
    (178.0, 0.4, 0.101),
    (181.0, 0.45, 0.099),
    (179.0, 0.5, 0.1),
    (180.0, 0.6, 0.1),
];

fn first(request: &Request) -> f64 {
    request.shares[0].part()
}

/// One whose share of 0.6 is given back: 0.54 is asked for.
fn giving_back() -> Elsewhere {
    let mut own = Elsewhere::default();
    let request = after(&mut own, &GROWING);
    assert_eq!(request.give_back, GiveBack::Given);
    assert!((first(&request) - 0.54).abs() < 1e-9, "{request:?}");
    own
}

#[test]
fn shares_that_grow_and_change_nothing_are_given_back_step_by_step() {
    let mut own = giving_back();
    let mut part = 0.54;
    for step in 0..30 {
        let request = after(&mut own, &[(180.0, part, 0.1)]);
        let expected = (0.9 * part).max(0.2);
        assert!((first(&request) - expected).abs() < 1e-9, "{step}: {request:?}");
        assert_eq!(request.give_back, GiveBack::Given);
        part = first(&request);
    }
    assert!((part - 0.2).abs() < 1e-9, "half of it is used then: {part}");
    // At its ceiling from the start, and with a floor.
    let mut own = Elsewhere::default();
    for _ in 0..5 {
        assert_eq!(judge(&mut own, &cpu(180.0, 0.8, 0.1)).give_back, GiveBack::None);
    }
    let floor = Share::clamped(0.7);
    let shares = |part| vec![ObservedShare { floor, ..share(Resource::Cpu, part, 0.1) }];
    let next = first(&judge(&mut own, &observation(180.0, shares(0.8))));
    assert!((next - 0.72).abs() < 1e-9, "{next}");
    assert_eq!(judge(&mut own, &observation(180.0, shares(next))).shares, [floor]);
}

#[test]
fn shares_that_may_matter_are_left_to_the_controller() {
    let last = |last: (f64, f64, f64)| {
        let mut intervals = GROWING;
        intervals[5] = last;
        after(&mut Elsewhere::default(), &intervals)
    };
    // Faster than before, used more, not under-loaded, at its target, grown by less than half, hardly more than it uses.
    for other in [
        (140.0, 0.6, 0.1),
        (180.0, 0.6, 0.14),
        (180.0, 0.6, 0.31),
        (105.0, 0.6, 0.1),
        (180.0, 0.44, 0.1),
        (180.0, 0.6, 0.29),
    ] {
        let request = last(other);
        assert_eq!(request.give_back, GiveBack::None, "{other:?}");
        assert!((first(&request) - 1.1 * other.1).abs() < 1e-9, "{other:?}: {request:?}");
    }
    // Its use is not known.
    let mut own = Elsewhere::default();
    for _ in 0..20 {
        let unknown = ObservedShare { utilisation: None, ..share(Resource::Cpu, 0.8, 0.1) };
        assert_eq!(judge(&mut own, &observation(180.0, vec![unknown])).give_back, GiveBack::None);
    }
}

/// A disk that has not been tried, one that is half used, and memory grow as the controller wants while a CPU share is given back.
#[test]
fn what_was_not_tried_is_not_frozen() {
    let mut own = Elsewhere::default();
    let seen = |cpu: f64, disk: f64, memory: f64| {
        let memory = share(Resource::Memory, memory, memory);
        observation(180.0, vec![share(Resource::Cpu, cpu, 0.1), share(Resource::Disk, disk, 0.04), memory])
    };
    let mut request = judge(&mut own, &seen(0.3, 0.1, 0.3));
    for (_, cpu, _) in &GROWING[1..] {
        request = judge(&mut own, &seen(*cpu, 0.1, 0.3));
    }
    let parts = |request: &Request| request.shares.iter().map(|share| share.part()).collect::<Vec<_>>();
    let asked = parts(&request);
    assert!((asked[0] - 0.54).abs() < 1e-9 && (asked[1] - 0.11).abs() < 1e-9 && (asked[2] - 0.33).abs() < 1e-9);
    // The disk is tried now. It changes nothing either.
    for step in 0..12 {
        let before = parts(&request);
        request = judge(&mut own, &seen(before[0], before[1], before[2]));
        assert_eq!(request.give_back, GiveBack::Given);
        let grew = before[1] < 0.15;
        assert_eq!(request.shares[1].part() > before[1], grew, "{step}: {before:?} to {request:?}");
        assert!(request.shares[2].part() >= before[2], "memory is the controller's");
        if !grew {
            return;
        }
    }
    panic!("the disk goes on growing: {request:?}");
}

#[test]
fn a_share_follows_its_use_at_once_while_it_is_given_back() {
    let mut own = giving_back();
    for part in [0.54, 0.486, 0.4374] {
        after(&mut own, &[(180.0, part, 0.1)]);
    }
    let request = after(&mut own, &[(180.0, 0.39366, 0.25)]);
    assert!((first(&request) - 0.5).abs() < 1e-9, "{request:?}");
    assert_eq!(request.give_back, GiveBack::Given);
    // More than half of what it had.
    let request = after(&mut own, &[(180.0, 0.5, 0.31)]);
    assert_eq!(request.give_back, GiveBack::Restored);
    assert!((first(&request) - 0.6).abs() < 1e-9, "{request:?}");
}

#[test]
fn any_doubt_restores_what_was_given_back() {
    let seen = cpu(180.0, 0.54, 0.1);
    let doubts = [
        ("it is slower", cpu(210.0, 0.54, 0.1)),
        ("it is used up", cpu(180.0, 0.54, 0.5)),
        ("none of its requests was answered", Observation { mean_ms: None, ..seen.clone() }),
        ("intervals are missing, or the controller was away", Observation { unanswered: 1, ..seen.clone() }),
        ("its target was changed", Observation { target_ms: 90.0, ..seen.clone() }),
        ("a surge was relieved", cpu(180.0, 0.7, 0.1)),
    ];
    for (why, doubt) in doubts {
        let mut own = giving_back();
        let request = judge(&mut own, &doubt);
        assert_eq!(request.give_back, GiveBack::Restored, "{why}");
        let expected = 0.6_f64.max(1.1 * doubt.shares[0].share.part());
        assert!((first(&request) - expected).abs() < 1e-9, "{why}: {request:?}");
        assert!(request.bounds[0].1 >= request.shares[0], "{why}");
        // It begins with nothing known.
        let next = judge(&mut own, &cpu(180.0, first(&request), 0.1));
        assert_eq!(next.give_back, GiveBack::None, "{why}");
    }
}

/// Others need what it gives back: it goes on from what contention left it.
#[test]
fn a_cut_by_contention_is_no_doubt() {
    let request = after(&mut giving_back(), &[(180.0, 0.5, 0.1)]);
    assert_eq!(request.give_back, GiveBack::Given);
    assert!((first(&request) - 0.45).abs() < 1e-9, "{request:?}");
}

/// Where nothing is seen of a tier nothing is moved, and what was given back is restored when it is seen again.
#[test]
fn with_a_tier_out_of_sight_nothing_is_moved() {
    let mut own = giving_back();
    let mut away = Observation { mean_ms: None, ..cpu(180.0, 0.54, 0.1) };
    away.shares[0].utilisation = None;
    let mut request = Request::without_model(&away, vec![Share::clamped(0.54)], vec![0.0]);
    own.judge(&away, &mut request);
    assert_eq!((request.give_back, first(&request)), (GiveBack::None, 0.54));
    let request = judge(&mut own, &Observation { unanswered: 1, ..cpu(180.0, 0.54, 0.1) });
    assert_eq!((request.give_back, first(&request)), (GiveBack::Restored, 0.6));
}

/// A disk at its ceiling that is used more and more when a CPU share begins to be given back.
#[test]
fn a_share_that_is_used_more_is_not_given_back() {
    let mut own = Elsewhere::default();
    let mut seen = |interval: u32, cpu: f64| {
        let disk = share(Resource::Disk, 0.8, 0.1 + 0.02 * f64::from(interval));
        judge(&mut own, &observation(180.0, vec![share(Resource::Cpu, cpu, 0.1), disk]))
    };
    for (interval, (_, cpu, _)) in (0..).zip(&GROWING) {
        seen(interval, *cpu);
    }
    let mut part = 0.54;
    for interval in 6..12 {
        let request = seen(interval, part);
        assert_eq!(request.give_back, GiveBack::Given);
        assert!(request.shares[1].part() >= 0.8, "{request:?}");
        part = first(&request);
    }
}

#[test]
fn what_is_met_or_faster_with_less_goes_on_from_there() {
    for mean_ms in [100.0, 150.0] {
        let mut own = giving_back();
        let request = after(&mut own, &[(mean_ms, 0.54, 0.1)]);
        assert_eq!(request.give_back, GiveBack::None);
        assert!((first(&request) - 1.1 * 0.54).abs() < 1e-9, "{request:?}");
    }
}

/// The answer to a share that matters is a slower response. It is not tried again at once, and later each time.
#[test]
fn what_mattered_is_tried_again_later_each_time() {
    let mut own = giving_back();
    let mut waited = Vec::new();
    for _ in 0..6 {
        let request = after(&mut own, &[(230.0, 0.54, 0.1)]);
        assert_eq!(request.give_back, GiveBack::Restored);
        let mut intervals = 1;
        while after(&mut own, &[(180.0, 0.8, 0.1)]).give_back == GiveBack::None {
            intervals += 1;
        }
        waited.push(intervals);
        // What is asked for next is in force in the interval to come.
        own.given.as_mut().unwrap().asked = vec![0.54];
    }
    assert_eq!(waited, [40, 80, 160, 320, 640, 640]);
}

#[test]
fn more_is_tried_again_after_an_hour() {
    let mut own = giving_back();
    let mut part = 0.54;
    let mut intervals = 0;
    loop {
        let request = after(&mut own, &[(180.0, part, 0.1)]);
        part = first(&request);
        intervals += 1;
        if request.give_back == GiveBack::None {
            break;
        }
    }
    assert_eq!(intervals, UNTIL_NEXT);
    assert!((part - 0.22).abs() < 1e-9, "as the controller wants: {part}");
}

#[test]
fn a_host_of_another_size_is_no_doubt() {
    let mut own = giving_back();
    own.rescale(0, 0.5);
    let request = after(&mut own, &[(180.0, 0.27, 0.05)]);
    assert_eq!(request.give_back, GiveBack::Given);
    assert!((first(&request) - 0.243).abs() < 1e-9, "{request:?}");
    let request = after(&mut own, &[(230.0, 0.243, 0.05)]);
    assert!((first(&request) - 0.3).abs() < 1e-9, "{request:?}");
}

/// A course of intervals from the ceiling on: the response time over that at the ceiling, and whether shares were given back.
/// A response has 4 % of noise, the sum of 12 uniform numbers.
fn course(intervals: u32, mean_ms: impl Fn(f64) -> f64, used: impl Fn(f64) -> f64) -> Vec<(f64, bool)> {
    let mut state = 11_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    let (mut own, mut part, mut seen) = (Elsewhere::default(), 0.8, Vec::new());
    for _ in 0..intervals {
        let noise = 1.0 + 0.04 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0);
        let request = judge(&mut own, &cpu(mean_ms(part) * noise, part, used(part)));
        seen.push((mean_ms(part) / mean_ms(0.8), request.give_back == GiveBack::Given));
        part = first(&request).min(0.8);
    }
    seen
}

/// Its use comes in bursts, so that it is under-loaded and more would still help: nothing shows that before it is tried.
#[test]
fn trying_a_share_that_matters_costs_little() {
    let seen = course(2_000, |part| 144.0 / part, |part| 0.4 * part);
    let mean = seen.iter().map(|(ratio, _)| ratio).sum::<f64>() / seen.len() as f64;
    let worst = seen.iter().map(|(ratio, _)| *ratio).fold(0.0, f64::max);
    assert!(mean < 1.003 && worst < 1.38, "{mean} in the mean, {worst} at worst");
    assert!(seen.iter().filter(|(_, given)| *given).count() < 30);
}

#[test]
fn noise_keeps_little_of_what_changes_nothing() {
    let seen = course(2_000, |_| 180.0, |_| 0.1);
    let given = seen.iter().filter(|(_, given)| *given).count();
    assert!(given > 1_400, "{given} of {}", seen.len());
}
