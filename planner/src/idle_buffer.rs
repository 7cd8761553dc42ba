//! The law of the idle buffer: to how many CPUs the volunteer is kept, so that beyond what the foreground uses now some are
//! always idle and its next burst finds one. In: the CPU that the foreground used since the last look. Out: CPUs for the
//! volunteer. The agent's guard calls it at each of its looks, with `guard.idle_buffer`.
//!
//! It is the rule of PerfIso (USENIX ATC 2018): with fewer idle CPUs than the buffer the volunteer loses the missing ones at
//! once, with more it gets one back at a time. A look sees the mean over its interval and not each moment, as PerfIso does,
//! so the buffer also has to hold the rise from one look to the next. With [`BufferSize::Follow`] it is as large as the
//! largest such rise of the last 30 s.
//!
//! At first nothing is known of the foreground's bursts, and the volunteer has one CPU.

use std::collections::VecDeque;

use gleaner_types::units::CoreShare;

/// Bursts count for so many seconds. (Chosen.)
const BURSTS_KEPT_S: usize = 30;
/// Less than this part of a CPU needs none of its own: some daemon always runs. (Chosen.)
const SLACK_CORES: f64 = 0.1;
/// For so long more CPUs than the buffer have to be idle before one is given back. (Chosen: a foreground that comes and goes
/// within a second moves nothing.)
const SETTLED_S: f64 = 1.0;
/// The next ones follow by this share of the host's CPUs a second, and by one CPU a second at least: the growth of the guard's
/// law.
const GROWTH_PER_S: f64 = 0.1;
/// Longest interval that counts as settled, as in the guard's law.
const INTERVAL_LONGEST_S: f64 = 0.2;

/// How many CPUs stay idle beyond what the foreground uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferSize {
    /// As many as its bursts of the last 30 s took, one at least.
    Follow,
    /// Always so many.
    Fixed(u32),
}

/// What the host did over one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BufferSample {
    /// CPUs of the host.
    pub cpus: u32,
    /// CPU used by everything that is not the volunteer.
    pub foreground: CoreShare,
    /// CPUs that the volunteer could run on without this law.
    pub volunteer_most: u32,
}

/// The law's state.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleBuffer {
    size: BufferSize,
    bursts: Bursts,
    kept_to: u32,
    /// Time for which more CPUs than the buffer have been idle, in seconds.
    settled_s: f64,
}

/// The foreground's largest rise in each of the last seconds.
#[derive(Debug, Clone, PartialEq)]
struct Bursts {
    last: Option<CoreShare>,
    /// Latest first.
    rises: VecDeque<CoreShare>,
    /// How much of the latest second has passed.
    into_s: f64,
}

impl Bursts {
    fn new() -> Self {
        Self { last: None, rises: VecDeque::from([CoreShare::ZERO]), into_s: 0.0 }
    }

    fn take(&mut self, foreground: CoreShare, interval_s: f64) {
        // After so long nothing is left of what was before.
        self.into_s += interval_s.clamp(0.0, BURSTS_KEPT_S as f64);
        while self.into_s >= 1.0 {
            self.into_s -= 1.0;
            self.rises.push_front(CoreShare::ZERO);
        }
        self.rises.truncate(BURSTS_KEPT_S);
        let rise = self.last.map_or(CoreShare::ZERO, |last| foreground.saturating_sub(last));
        if let Some(latest) = self.rises.front_mut() {
            *latest = latest.max(rise);
        }
        self.last = Some(foreground);
    }

    fn largest(&self) -> CoreShare {
        self.rises.iter().copied().fold(CoreShare::ZERO, CoreShare::max)
    }
}

impl IdleBuffer {
    /// The law at its start: one CPU.
    #[must_use]
    pub fn new(size: BufferSize) -> Self {
        Self { size, bursts: Bursts::new(), kept_to: 1, settled_s: 0.0 }
    }

    /// Back to the start, for a volunteer that was stopped.
    pub fn reset(&mut self) {
        *self = Self::new(self.size);
    }

    /// How its size is chosen.
    #[must_use]
    pub fn size(&self) -> BufferSize {
        self.size
    }

    /// CPUs that should be idle beyond what the foreground uses now.
    #[must_use]
    pub fn buffer(&self) -> u32 {
        match self.size {
            BufferSize::Follow => whole_cpus(self.bursts.largest()).max(1),
            BufferSize::Fixed(cpus) => cpus,
        }
    }

    /// Takes what the host did over the last `interval_s` seconds. Returns how many CPUs the volunteer is kept to: never more than
    /// it could run on, nor fewer than one, because the guard's own law freezes a volunteer to which nothing is left.
    pub fn step(&mut self, sample: BufferSample, interval_s: f64) -> u32 {
        self.bursts.take(sample.foreground, interval_s);
        let needed = whole_cpus(sample.foreground).saturating_add(self.buffer());
        let room = sample.cpus.saturating_sub(needed).clamp(1, sample.volunteer_most.max(1));
        if room <= self.kept_to {
            self.kept_to = room;
            self.settled_s = 0.0;
            return room;
        }
        self.settled_s += interval_s.clamp(0.0, INTERVAL_LONGEST_S);
        if self.settled_s >= SETTLED_S {
            self.kept_to += 1;
            let growth_per_s = (f64::from(sample.cpus) * GROWTH_PER_S).max(1.0);
            self.settled_s = SETTLED_S - 1.0 / growth_per_s;
        }
        self.kept_to
    }
}

/// CPUs that hold this much use.
fn whole_cpus(used: CoreShare) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let cpus = (used.cores() - SLACK_CORES).ceil().max(0.0) as u32;
    cpus
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOOK_S: f64 = 0.05;

    fn sample(cpus: u32, foreground: f64) -> BufferSample {
        BufferSample { cpus, foreground: CoreShare::clamped(foreground), volunteer_most: cpus }
    }

    /// So many seconds of looks; what the volunteer is kept to after each.
    fn run(law: &mut IdleBuffer, cpus: u32, foreground: f64, seconds: f64) -> Vec<u32> {
        let looks = (0..).map(|look| f64::from(look) * LOOK_S).take_while(|at| at + 1e-9 < seconds);
        looks.map(|_| law.step(sample(cpus, foreground), LOOK_S)).collect()
    }

    fn settled(size: BufferSize, cpus: u32) -> IdleBuffer {
        let mut law = IdleBuffer::new(size);
        run(&mut law, cpus, 0.0, 60.0);
        law
    }

    #[test]
    fn the_missing_cpus_are_taken_at_once_and_given_back_one_at_a_time() {
        // 8 CPUs, 2 of them always idle.
        let mut law = settled(BufferSize::Fixed(2), 8);
        assert_eq!(law.step(sample(8, 0.0), LOOK_S), 6);
        // 2.5 CPUs need three; with two idle, three are left.
        assert_eq!(law.step(sample(8, 250.0), LOOK_S), 3);
        assert_eq!(law.step(sample(8, 700.0), LOOK_S), 1, "the guard's own law freezes it");
        let back = run(&mut law, 8, 0.0, 5.9);
        let moves: Vec<usize> = (1..back.len()).filter(|at| back[*at] != back[at - 1]).collect();
        assert_eq!(moves.iter().map(|at| back[*at]).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        assert_eq!(
            moves.iter().map(|at| (at + 10) / 20).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5],
            "one a second: {moves:?}"
        );
    }

    #[test]
    fn a_large_host_gets_a_tenth_of_its_cpus_back_in_a_second() {
        let mut law = IdleBuffer::new(BufferSize::Fixed(1));
        let back = run(&mut law, 100, 0.0, 2.0);
        // 1 s to settle, and then one every 100 ms, which are two looks.
        assert_eq!((back[18], back[19], back[39]), (1, 2, 12), "{back:?}");
    }

    #[test]
    fn the_buffer_is_the_largest_rise_of_the_last_30_seconds() {
        let mut law = settled(BufferSize::Follow, 16);
        assert_eq!((law.buffer(), law.step(sample(16, 5.0), LOOK_S)), (1, 15), "a daemon needs no CPU of its own");
        // Two CPUs and a half more from one look to the next.
        law.step(sample(16, 255.0), LOOK_S);
        assert_eq!(law.buffer(), 3);
        // A slower rise to more is no larger burst.
        for used in [300.0, 400.0, 500.0] {
            law.step(sample(16, used), LOOK_S);
        }
        assert_eq!((law.buffer(), law.step(sample(16, 500.0), LOOK_S)), (3, 8));
        run(&mut law, 16, 0.0, 29.0);
        assert_eq!((law.buffer(), law.step(sample(16, 0.0), LOOK_S)), (3, 13), "it may come again");
        run(&mut law, 16, 0.0, 1.5);
        assert_eq!(law.buffer(), 1);
        run(&mut law, 16, 0.0, 3.0);
        assert_eq!(law.step(sample(16, 0.0), LOOK_S), 15);
    }

    #[test]
    fn of_two_cpus_one_is_kept_free() {
        let mut law = settled(BufferSize::Follow, 2);
        for foreground in [0.0, 40.0, 120.0, 200.0] {
            assert_eq!(law.step(sample(2, foreground), LOOK_S), 1);
        }
        assert_eq!(settled(BufferSize::Follow, 1).step(sample(1, 0.0), LOOK_S), 1);
    }

    #[test]
    fn one_that_may_run_on_few_cpus_keeps_them_while_enough_others_are_idle() {
        let mut law = IdleBuffer::new(BufferSize::Fixed(2));
        let of = |foreground| BufferSample { volunteer_most: 3, ..sample(8, foreground) };
        (0..200).for_each(|_| _ = law.step(of(0.0), LOOK_S));
        assert_eq!(law.step(of(300.0), LOOK_S), 3);
        assert_eq!(law.step(of(400.0), LOOK_S), 2);
    }

    #[test]
    fn what_was_seen_before_a_long_time_counts_no_more_and_says_little_of_now() {
        let mut law = settled(BufferSize::Follow, 8);
        law.step(sample(8, 400.0), LOOK_S);
        assert_eq!(law.buffer(), 4);
        law.step(sample(8, 0.0), LOOK_S);
        let kept_to = law.step(sample(8, 0.0), 1e9);
        assert_eq!((law.buffer(), kept_to), (1, 1), "one look earns no CPU");
        law.reset();
        assert_eq!(law, IdleBuffer::new(BufferSize::Follow));
    }

    #[test]
    fn a_foreground_that_comes_and_goes_within_a_second_finds_idle_cpus_and_moves_nothing() {
        // Four CPUs for 200 ms of each 800 ms.
        let mut law = settled(BufferSize::Follow, 16);
        let mut used = [vec![400.0; 4], vec![0.0; 12]].concat().into_iter().cycle();
        let mut kept_to = Vec::new();
        for _ in 0..400 {
            kept_to.push(law.step(sample(16, used.next().unwrap()), LOOK_S));
        }
        // The first burst met one idle CPU. Every later one meets eight, of which it uses four.
        assert!(kept_to.iter().all(|cpus| *cpus == 8), "{kept_to:?}");
    }

    /// Part of the host that a foreground uses at each look, and the time since the last.
    fn looks() -> impl Strategy<Value = Vec<(f64, f64)>> {
        prop::collection::vec((0.0_f64..1.3, 0.0_f64..0.3), 1..300)
    }

    fn sizes() -> impl Strategy<Value = BufferSize> {
        prop_oneof![Just(BufferSize::Follow), (1_u32..300).prop_map(BufferSize::Fixed)]
    }

    proptest! {
        #[test]
        fn within_one_look_the_buffer_is_idle_and_nothing_comes_back_faster_than_the_rate(
            cpus in 1_u32..256,
            most in 1_u32..256,
            size in sizes(),
            looks in looks(),
        ) {
            let mut law = IdleBuffer::new(size);
            let (mut before, mut passed_s, mut given) = (1, 0.0, 0);
            for (part, interval_s) in looks {
                let foreground = CoreShare::clamped(f64::from(cpus) * 100.0 * part);
                let kept_to = law.step(BufferSample { cpus, foreground, volunteer_most: most }, interval_s);
                prop_assert!((1..=cpus.min(most).max(1)).contains(&kept_to));
                let idle = f64::from(cpus) - foreground.cores() - f64::from(kept_to);
                prop_assert!(kept_to == 1 || idle + SLACK_CORES + 1e-9 >= f64::from(law.buffer()), "{idle} idle");
                prop_assert!(kept_to <= before + 1, "one at a time");
                passed_s += interval_s;
                given += u32::from(kept_to > before);
                prop_assert!(f64::from(given) <= passed_s * (f64::from(cpus) * GROWTH_PER_S).max(1.0) + 1e-6);
                before = kept_to;
            }
        }

        #[test]
        fn a_burst_no_larger_than_those_of_the_last_29_seconds_finds_idle_cpus(
            cpus in 2_u32..128,
            uses in prop::collection::vec((0.0_f64..1.0, prop::bool::weighted(0.1)), 2..900),
        ) {
            let mut law = IdleBuffer::new(BufferSize::Follow);
            let (mut rises, mut last, mut kept_to) = (Vec::<f64>::new(), 0.0_f64, 1);
            for (part, moves) in uses {
                let used = if moves { part * f64::from(cpus) } else { last };
                let rise = (used - last).max(0.0);
                let known = rises.iter().rev().take(29 * 20).copied().fold(0.0_f64, f64::max);
                let idle = f64::from(cpus) - last - f64::from(kept_to);
                prop_assert!(kept_to == 1 || rise > known || idle + 2.0 * SLACK_CORES + 1e-9 >= rise, "{rise} of {idle} idle");
                kept_to = law.step(sample(cpus, used * 100.0), LOOK_S);
                // The law knows of none at its first look.
                rises.push(if rises.is_empty() { 0.0 } else { rise });
                last = used;
            }
        }

        #[test]
        fn settles_without_swinging_on_constant_demand(cpus in 1_u32..64, load in 0.0_f64..1.2, size in sizes()) {
            let mut law = settled(size, cpus);
            let host = f64::from(cpus) * 100.0;
            let mut last = law.step(sample(cpus, host * load), LOOK_S);
            for _ in 0..2_000 {
                let next = law.step(sample(cpus, host * load), LOOK_S);
                prop_assert!(next >= last, "constant demand takes nothing back");
                last = next;
            }
            prop_assert_eq!(law.step(sample(cpus, host * load), LOOK_S), last, "settled after 100 s");
        }
    }
}
