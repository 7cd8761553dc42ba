//! The law of the volunteer's network ceiling: how many bytes per second it may send and receive now. In: the links'
//! capacity, what crossed the links in the last interval, and how much of that was the volunteer's. Out: a ceiling for
//! each direction. The agent's network bound calls it five times a second.
//!
//! The ceiling is what the foreground leaves of the link, less a headroom, so that no queue builds up in front of the
//! foreground's packets. Beside an active foreground it is low, because a foreground that waits for answers suffers from
//! every packet in front of its own, however little of the link it uses. It falls in one step and rises by at most a share
//! of the link per second. It never goes below a floor, so that a worker's connection to its batch system stays alive.
//!
//! The foreground's use is a difference of two large numbers, taken at different places: a foreground smaller than their
//! error is not seen beside a volunteer that uses much. So from time to time the law makes a quiet interval, as
//! IEEE 802.11h does before it measures a channel: it lowers the ceiling to the floor for two intervals, and measures in the
//! second.

use gleaner_types::units::{BytesPerSec, Fraction};
use serde::{Deserialize, Serialize};

/// Constants of the law. Shares are of the link's capacity in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NetworkBoundSettings {
    /// Always left free.
    pub headroom: Fraction,
    /// A foreground that uses more than this in either direction is active.
    pub active_above: Fraction,
    /// The part of the volunteer's own traffic that may be missing in its count: headers of packets that the network
    /// interface divides.
    pub uncounted: Fraction,
    /// The most that the volunteer may use beside an active foreground.
    pub beside: Fraction,
    /// The least that the volunteer may use.
    pub floor: Fraction,
    /// Growth of the ceiling per second.
    pub growth_per_s: Fraction,
    /// Longest interval that earns growth, in seconds.
    pub growth_interval_longest_s: f64,
    /// Time between two quiet intervals, in seconds.
    pub quiet_period_s: f64,
    /// Most that the volunteer is taken to have in queues before the links, in seconds of their capacity.
    pub queue_longest_s: f64,
}

impl Default for NetworkBoundSettings {
    /// Chosen, but for `uncounted`: 14 bytes of Ethernet and 52 of IPv4 and TCP are 4.4 % of a full packet. A quiet
    /// interval takes 0.4 s of 10 s.
    fn default() -> Self {
        Self {
            headroom: Fraction::clamped(0.1),
            active_above: Fraction::clamped(0.005),
            uncounted: Fraction::clamped(0.05),
            beside: Fraction::clamped(0.05),
            floor: Fraction::clamped(0.01),
            growth_per_s: Fraction::clamped(0.1),
            growth_interval_longest_s: 1.0,
            quiet_period_s: 10.0,
            queue_longest_s: 0.05,
        }
    }
}

/// One value for each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directions<T> {
    /// Out of this host.
    pub sent: T,
    /// Into this host.
    pub received: T,
}

impl<T> Directions<T> {
    /// The same for both.
    pub fn both(value: T) -> Self
    where
        T: Clone,
    {
        Self { sent: value.clone(), received: value }
    }

    /// Each made into something else.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Directions<U> {
        Directions { sent: f(self.sent), received: f(self.received) }
    }

    /// The two of one side with the two of another.
    pub fn zip<U>(self, other: Directions<U>) -> Directions<(T, U)> {
        Directions { sent: (self.sent, other.sent), received: (self.received, other.received) }
    }
}

/// What crossed the links over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NetworkSample {
    /// What the links can carry in one direction.
    pub capacity: BytesPerSec,
    /// All traffic of the links.
    pub links: Directions<BytesPerSec>,
    /// The volunteer's part of it.
    pub volunteer: Directions<BytesPerSec>,
}

/// What the volunteer may do until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NetworkVerdict {
    /// The most it may send and receive.
    pub ceiling: Directions<BytesPerSec>,
    /// What the foreground was seen to use.
    pub foreground: Directions<BytesPerSec>,
    /// The foreground is active: the ceiling is at most the share for that.
    pub active: bool,
}

/// Where the law is between two quiet intervals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Quiet {
    /// None; the last one ended so many seconds ago.
    Since(f64),
    /// The ceiling was lowered in the last step: what was sent before may still be on its way.
    Lowered,
    /// The next sample is the one that counts.
    Measuring,
}

/// The law's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkBound {
    settings: NetworkBoundSettings,
    /// The ceiling between quiet intervals, as a share of the capacity.
    share: Directions<f64>,
    quiet: Quiet,
    /// What the volunteer sent and the links had not counted yet: it waited in a queue.
    queued_bytes: f64,
}

impl NetworkBound {
    /// The law at its start: at the floor.
    #[must_use]
    pub fn new(settings: NetworkBoundSettings) -> Self {
        let share = Directions::both(settings.floor.value());
        Self { settings, share, quiet: Quiet::Since(0.0), queued_bytes: 0.0 }
    }

    /// Back to the start, for a volunteer that is stopped or not measured.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }

    /// The ceiling now, of links with this capacity.
    #[must_use]
    pub fn ceiling(&self, capacity: BytesPerSec) -> Directions<BytesPerSec> {
        let floor = self.settings.floor.value();
        let is_quiet = !matches!(self.quiet, Quiet::Since(_));
        self.share.map(|share| BytesPerSec::clamped(capacity.per_sec() * if is_quiet { floor } else { share }))
    }

    /// Takes what crossed the links over the last `interval_s` seconds. For each direction
    /// `foreground = links - volunteer`, `room = capacity - headroom - foreground`, or, beside an active foreground, at
    /// most `capacity * beside`; `ceiling' = max(floor, min(room, ceiling + growth * interval))`. Links without a
    /// capacity have a ceiling of zero.
    pub fn step(&mut self, sample: NetworkSample, interval_s: f64) -> NetworkVerdict {
        let capacity = sample.capacity.per_sec();
        let foreground = self.foreground(&sample, interval_s.max(0.0));
        // What the volunteer had sent before still crosses the links in the first of the two.
        let settling = self.quiet == Quiet::Lowered;
        let active = !settling && self.is_active(&sample, foreground);
        if !settling && capacity > 0.0 {
            let settings = &self.settings;
            let growing = matches!(self.quiet, Quiet::Since(_));
            let earning_s = if growing { interval_s.clamp(0.0, settings.growth_interval_longest_s) } else { 0.0 };
            let most = if active { settings.beside.value() } else { 1.0 };
            self.share = self.share.zip(foreground).map(|(share, foreground)| {
                let room = 1.0 - settings.headroom.value() - foreground.per_sec() / capacity;
                let grown = share + settings.growth_per_s.value() * earning_s;
                grown.min(room).min(most).max(settings.floor.value())
            });
        }
        self.quiet = match self.quiet {
            Quiet::Lowered => Quiet::Measuring,
            Quiet::Measuring => Quiet::Since(0.0),
            // Beside an active foreground the volunteer is small enough not to hide it.
            Quiet::Since(ago_s) if ago_s >= self.settings.quiet_period_s && !active => Quiet::Lowered,
            Quiet::Since(ago_s) => Quiet::Since(ago_s + interval_s.max(0.0)),
        };
        NetworkVerdict { ceiling: self.ceiling(sample.capacity), foreground, active }
    }

    /// What is not the volunteer's. A packet of the volunteer counts as its own when it is sent, and on the link when it
    /// leaves the queue, which may be in the next interval.
    fn foreground(&mut self, sample: &NetworkSample, interval_s: f64) -> Directions<BytesPerSec> {
        let surplus = sample.links.zip(sample.volunteer).map(|(links, own)| links.per_sec() - own.per_sec());
        if interval_s <= 0.0 {
            return surplus.map(BytesPerSec::clamped);
        }
        let sent_bytes = surplus.sent * interval_s - self.queued_bytes;
        let most_bytes = sample.capacity.per_sec() * self.settings.queue_longest_s;
        self.queued_bytes = (-sent_bytes).clamp(0.0, most_bytes);
        Directions { sent: sent_bytes / interval_s, received: surplus.received }.map(BytesPerSec::clamped)
    }

    fn is_active(&self, sample: &NetworkSample, foreground: Directions<BytesPerSec>) -> bool {
        let least = sample.capacity.per_sec() * self.settings.active_above.value();
        let each = foreground
            .zip(sample.volunteer)
            .map(|(foreground, own)| foreground.per_sec() > least + own.per_sec() * self.settings.uncounted.value());
        each.sent || each.received
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes per second of a link of 100 Mbit/s.
    const LINK: f64 = 12_500_000.0;
    const STEP_S: f64 = 0.2;

    /// The same in both directions, in percent of the link.
    fn sample(foreground: f64, volunteer: f64) -> NetworkSample {
        let of = |percent: f64| Directions::both(BytesPerSec::clamped(LINK * percent / 100.0));
        NetworkSample {
            capacity: BytesPerSec::clamped(LINK),
            links: of(foreground + volunteer),
            volunteer: of(volunteer),
        }
    }

    fn percent(verdict: &NetworkVerdict) -> f64 {
        verdict.ceiling.sent.per_sec() / LINK * 100.0
    }

    /// After ten seconds beside nobody, as if a quiet interval had just ended.
    fn grown() -> NetworkBound {
        let mut bound = NetworkBound::new(NetworkBoundSettings::default());
        for _ in 0..48 {
            bound.step(sample(0.0, 0.0), STEP_S);
        }
        bound.quiet = Quiet::Since(0.0);
        bound
    }

    #[test]
    fn grows_a_tenth_of_the_link_per_second_from_the_floor_to_the_headroom() {
        let mut bound = NetworkBound::new(NetworkBoundSettings::default());
        // 1 % at first, 2 % more with each 0.2 s.
        assert!((percent(&bound.step(sample(0.0, 0.0), STEP_S)) - 3.0).abs() < 1e-9);
        assert!((percent(&bound.step(sample(0.0, 0.0), STEP_S)) - 5.0).abs() < 1e-9);
        assert!((percent(&grown().step(sample(0.0, 0.0), STEP_S)) - 90.0).abs() < 1e-9);
    }

    #[test]
    fn gives_way_to_an_active_foreground_in_one_step() {
        let mut bound = grown();
        // 8 % of foreground beside 80 %: more than 0.5 % and 5 % of 80 %.
        let verdict = bound.step(sample(8.0, 80.0), STEP_S);
        assert!(verdict.active && (percent(&verdict) - 5.0).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.foreground.sent.per_sec() / LINK - 0.08).abs() < 1e-9);
        // One that leaves less than that.
        assert!((percent(&bound.step(sample(88.0, 5.0), STEP_S)) - 2.0).abs() < 1e-9);
        assert!((percent(&bound.step(sample(100.0, 5.0), STEP_S)) - 1.0).abs() < 1e-9, "the floor stays");
        // It is gone: slowly up again.
        assert!((percent(&bound.step(sample(0.0, 1.0), STEP_S)) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_the_volunteers_count_may_miss_is_no_foreground() {
        let mut bound = grown();
        // 4.4 % of the volunteer's 80 % are headers that its count does not have.
        let verdict = bound.step(sample(3.5, 80.0), STEP_S);
        assert!(!verdict.active && percent(&verdict) > 86.0, "{verdict:?}");
    }

    #[test]
    fn activity_in_one_direction_lowers_both() {
        let mut bound = grown();
        let mut sample = sample(0.0, 10.0);
        sample.links.received = BytesPerSec::clamped(LINK * 0.5);
        let verdict = bound.step(sample, STEP_S);
        assert!(verdict.active && (percent(&verdict) - 5.0).abs() < 1e-9, "{verdict:?}");
    }

    #[test]
    fn a_quiet_interval_finds_a_foreground_that_the_volunteer_hides() {
        let mut bound = grown();
        // 1 % of foreground: less than what the count of 80 % may miss.
        let mut wide = 0;
        let mut verdict = bound.step(sample(1.0, 80.0), STEP_S);
        while percent(&verdict) > 80.0 {
            assert!(!verdict.active);
            verdict = bound.step(sample(1.0, 80.0), STEP_S);
            wide += 1;
            assert!(wide < 60, "no quiet interval within 12 s");
        }
        assert!((percent(&verdict) - 1.0).abs() < 1e-9, "at the floor: {verdict:?}");
        // What was queued still leaves in the first interval, and says nothing.
        verdict = bound.step(sample(20.0, 1.0), STEP_S);
        assert!(!verdict.active && (percent(&verdict) - 1.0).abs() < 1e-9, "{verdict:?}");
        verdict = bound.step(sample(1.0, 1.0), STEP_S);
        assert!(verdict.active && (percent(&verdict) - 5.0).abs() < 1e-9, "{verdict:?}");
        for _ in 0..100 {
            verdict = bound.step(sample(1.0, 5.0), STEP_S);
            assert!(verdict.active && (percent(&verdict) - 5.0).abs() < 1e-9, "{verdict:?}");
        }
    }

    #[test]
    fn a_quiet_interval_without_a_foreground_costs_two_samples() {
        let mut bound = grown();
        let quiet = (0..500).filter(|_| percent(&bound.step(sample(0.0, 80.0), STEP_S)) < 80.0).count();
        // 100 s, a quiet interval every 10 s and a bit.
        assert!((18..=20).contains(&quiet), "{quiet}");
    }

    #[test]
    fn a_burst_that_leaves_the_queue_an_interval_later_is_the_volunteers() {
        let mut bound = NetworkBound::new(NetworkBoundSettings::default());
        let of = |percent: f64| Directions::both(BytesPerSec::clamped(LINK * percent / 100.0));
        let sent = |links: f64, own: f64| NetworkSample {
            links: Directions { sent: of(links).sent, received: BytesPerSec::ZERO },
            volunteer: Directions { sent: of(own).sent, received: BytesPerSec::ZERO },
            ..sample(0.0, 0.0)
        };
        assert!(!bound.step(sent(2.0, 5.0), STEP_S).active);
        assert!(!bound.step(sent(5.0, 2.0), STEP_S).active, "3 % were queued");
        assert!(bound.step(sent(5.0, 2.0), STEP_S).active, "3 % are somebody else's");
    }

    proptest! {
        #[test]
        fn bounded_slow_to_rise_and_low_beside_the_foreground(
            capacity in 1e3_f64..1e11,
            steps in prop::collection::vec((0.0_f64..2.0, 0.0_f64..2.0, 0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..3.0), 1..200),
        ) {
            let settings = NetworkBoundSettings::default();
            let mut bound = NetworkBound::new(settings);
            let rate = |share: f64| BytesPerSec::clamped(capacity * share);
            let mut highest = settings.floor.value();
            for (sent, received, own_sent, own_received, interval_s) in steps {
                let sample = NetworkSample {
                    capacity: rate(1.0),
                    links: Directions { sent: rate(sent), received: rate(received) },
                    volunteer: Directions { sent: rate(own_sent), received: rate(own_received) },
                };
                let verdict = bound.step(sample, interval_s);
                highest += settings.growth_per_s.value() * interval_s;
                for (ceiling, foreground) in [
                    (verdict.ceiling.sent, verdict.foreground.sent),
                    (verdict.ceiling.received, verdict.foreground.received),
                ] {
                    let share = ceiling.per_sec() / capacity;
                    let floor = settings.floor.value();
                    prop_assert!(share >= floor - 1e-9, "never under the floor: {}", share);
                    prop_assert!(share <= highest + 1e-9, "never faster than the rate");
                    let settling = bound.quiet == Quiet::Measuring;
                    let room = 1.0 - settings.headroom.value() - foreground.per_sec() / capacity;
                    prop_assert!(settling || share <= room.max(floor) + 1e-9, "{} of {}", share, room);
                    prop_assert!(!verdict.active || share <= settings.beside.value() + 1e-9);
                }
            }
        }

        #[test]
        fn more_foreground_never_gives_the_volunteer_more(
            foregrounds in prop::collection::vec((0.0_f64..100.0, 0.0_f64..20.0), 1..60),
        ) {
            let mut less = NetworkBound::new(NetworkBoundSettings { quiet_period_s: 1e9, ..NetworkBoundSettings::default() });
            let mut more = less.clone();
            for (foreground, extra) in foregrounds {
                let one = less.step(sample(foreground, 3.0), STEP_S);
                let other = more.step(sample(foreground + extra, 3.0), STEP_S);
                prop_assert!(percent(&other) <= percent(&one) + 1e-9);
            }
        }

        #[test]
        fn settles_without_swinging_on_constant_use(foreground in 0.0_f64..120.0) {
            let mut bound = NetworkBound::new(NetworkBoundSettings { quiet_period_s: 1e9, ..NetworkBoundSettings::default() });
            let mut last = bound.step(sample(foreground, 0.0), STEP_S);
            for _ in 0..60 {
                let next = bound.step(sample(foreground, percent(&last)), STEP_S);
                prop_assert!(percent(&next) >= percent(&last) - 1e-9 || next.active != last.active, "{:?} {:?}", last, next);
                last = next;
            }
            let next = bound.step(sample(foreground, percent(&last)), STEP_S);
            prop_assert!((percent(&next) - percent(&last)).abs() < 1e-9, "settled after 12 s");
        }
    }

    #[test]
    fn links_without_a_capacity_carry_nothing() {
        let mut bound = grown();
        let sample = NetworkSample { capacity: BytesPerSec::ZERO, ..sample(0.0, 0.0) };
        assert_eq!(bound.step(sample, STEP_S).ceiling, Directions::both(BytesPerSec::ZERO));
    }
}
