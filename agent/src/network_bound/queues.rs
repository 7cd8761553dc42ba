//! The queues in which packets wait to be sent on the links. In: the links, and the kernel's word of every interface's root
//! queue. Out: what waits and what was dropped since the last look, or why that is not known. Called by the thread of the
//! network bound with each of its samples.
//!
//! The kernel answers under its lock of all interfaces. After an answer that had to be waited for it is not asked for a
//! minute, because the bytes on the links are to be followed meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use gleaner_planner::network_bound::LinkQueue;
use gleaner_types::report::{Absence, AbsenceKind};

use super::links::LinkName;
use crate::netlink::{RootQueue, TrafficControl};

/// An answer that takes longer delays the samples. (Chosen: a quarter of the time between two of them.)
const SLOW: Duration = Duration::from_millis(50);
/// Between a slow answer, or none, and the next question. (Chosen.)
const PAUSE: Duration = Duration::from_mins(1);

/// One look at the queues.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Look {
    /// Of the links whose queue the kernel tells; `None` where there is no such link.
    pub(super) queue: Option<LinkQueue>,
    /// Why that is not all of them.
    pub(super) lacking: Option<Absence>,
}

/// What is kept between two looks.
#[derive(Debug, Default)]
pub(super) struct Queues {
    control: Option<TrafficControl>,
    paused: Option<(Instant, Absence)>,
    /// By the interface's number, packets dropped so far.
    dropped: BTreeMap<u32, u32>,
}

impl Queues {
    /// Looks now. What was dropped before the first look, or before [`Queues::forget`], does not count.
    pub(super) fn look(&mut self, links: &[LinkName], now: Instant) -> Look {
        if let Some((until, why)) = &self.paused {
            if now < *until {
                return Look { queue: None, lacking: Some(why.clone()) };
            }
            self.paused = None;
            // What was dropped since then is not one interval's.
            self.forget();
        }
        let asked = Instant::now();
        let answer = self.ask();
        let pause = |why: String| Some((now + PAUSE, Absence::described(AbsenceKind::Vanished, why)));
        match answer {
            Ok(queues) => {
                if asked.elapsed() > SLOW {
                    self.paused = pause("the kernel's answer about the links' queues took too long".to_owned());
                }
                self.take(links, &queues)
            }
            Err(error) => {
                // What is left of a late answer would be taken for the next one's.
                self.control = None;
                self.forget();
                self.paused = pause(format!("the kernel does not tell of the links' queues: {error}"));
                Look { queue: None, lacking: self.paused.as_ref().map(|(_, why)| why.clone()) }
            }
        }
    }

    /// The next look is the first again.
    pub(super) fn forget(&mut self) {
        self.dropped.clear();
    }

    fn ask(&mut self) -> io::Result<Vec<RootQueue>> {
        let control = match self.control.take() {
            Some(control) => control,
            None => TrafficControl::open()?,
        };
        self.control.insert(control).root_queues()
    }

    fn take(&mut self, links: &[LinkName], queues: &[RootQueue]) -> Look {
        let mut look = Look::default();
        for link in links {
            match counters(link, queues) {
                Ok((interface, backlog_bytes, dropped)) => {
                    // Lower than before: another queue, which begins anew.
                    let before = self.dropped.insert(interface, dropped);
                    let more = before.and_then(|before| dropped.checked_sub(before)).unwrap_or(0);
                    let sum = look.queue.get_or_insert_default();
                    sum.backlog_bytes = sum.backlog_bytes.max(u64::from(backlog_bytes));
                    sum.dropped_packets = sum.dropped_packets.saturating_add(u64::from(more));
                }
                Err(why) => {
                    look.lacking.get_or_insert(why);
                }
            }
        }
        look
    }
}

/// A link's number, what waits before it and what was dropped so far.
fn counters(link: &LinkName, queues: &[RootQueue]) -> Result<(u32, u32, u32), Absence> {
    let LinkName { name, index } = link;
    let absent =
        |kind, why: &str| Absence::described(kind, format!("the queue of the link `{name}` is not seen: {why}"));
    let index = index.ok_or_else(|| absent(AbsenceKind::Malformed, "the number of the interface cannot be read"))?;
    let queue = queues.iter().find(|queue| queue.interface == index);
    let queue = queue.ok_or_else(|| absent(AbsenceKind::Vanished, "the kernel names none"))?;
    if queue.kind == "noqueue" {
        return Err(absent(
            AbsenceKind::NotSupported,
            "it has none (noqueue); name the interface behind it in act.links",
        ));
    }
    let counted = queue.counters.ok_or_else(|| absent(AbsenceKind::NotSupported, "the kernel does not count it"))?;
    // What waits for its time does not wait for the line.
    let backlog_bytes = if queue.paces { 0 } else { counted.backlog_bytes };
    Ok((index, backlog_bytes, counted.dropped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::QueueCounters;

    fn link(name: &str, index: u32) -> LinkName {
        LinkName { name: name.to_owned(), index: Some(index) }
    }

    fn root(interface: u32, backlog_bytes: u32, dropped: u32) -> RootQueue {
        let counters = QueueCounters { backlog_bytes, dropped };
        RootQueue { interface, kind: "fq_codel".to_owned(), counters: Some(counters), paces: false }
    }

    #[test]
    fn packets_that_wait_for_their_time_do_not_wait_for_the_line() {
        let mut queues = Queues::default();
        let mut look = |told: RootQueue| queues.take(&[link("eth0", 2)], &[told]).queue.unwrap();
        assert_eq!(look(RootQueue { paces: true, ..root(2, 70_000, 1) }).backlog_bytes, 0);
        let dropped = look(RootQueue { paces: true, ..root(2, 70_000, 3) });
        assert_eq!((dropped.backlog_bytes, dropped.dropped_packets), (0, 2), "drops are drops");
    }

    #[test]
    fn the_longest_queue_and_what_was_dropped_since_the_last_look() {
        let (mut queues, links) = (Queues::default(), [link("eth0", 2), link("eth1", 3)]);
        let mut look = |told: &[RootQueue]| {
            let Look { queue, lacking } = queues.take(&links, told);
            assert_eq!(lacking, None);
            queue.map(|queue| (queue.backlog_bytes, queue.dropped_packets))
        };
        let other = root(9, 99_999, 99);
        assert_eq!(look(&[root(2, 10, 5), root(3, 70, 1_000), other.clone()]), Some((70, 0)), "before the first look");
        assert_eq!(look(&[root(2, 80, 6), root(3, 0, 1_002), other.clone()]), Some((80, 3)));
        assert_eq!(look(&[root(2, 0, 6), root(3, 0, 7), other.clone()]), Some((0, 0)), "a queue made anew");
        assert_eq!(look(&[root(2, 0, 6), root(3, 0, 8), other]), Some((0, 1)));
    }

    #[test]
    fn a_link_without_a_queue_is_told_and_not_counted_as_an_empty_one() {
        let mut queues = Queues::default();
        let none = RootQueue { kind: "noqueue".to_owned(), ..root(2, 0, 0) };
        let untold = RootQueue { counters: None, ..root(2, 0, 0) };
        let unknown = LinkName { name: "eth0".to_owned(), index: None };
        for (link, told, kind, why) in [
            (link("eth0", 2), vec![none.clone()], AbsenceKind::NotSupported, "noqueue"),
            (link("eth0", 2), vec![untold], AbsenceKind::NotSupported, "does not count"),
            (link("eth0", 2), vec![root(3, 0, 0)], AbsenceKind::Vanished, "names none"),
            (unknown, vec![root(2, 0, 0)], AbsenceKind::Malformed, "number"),
        ] {
            let look = queues.take(&[link], &told);
            let lacking = look.lacking.unwrap();
            assert_eq!((look.queue, lacking.kind), (None, kind));
            assert!(lacking.detail().contains("eth0") && lacking.detail().contains(why), "{lacking:?}");
        }
        // The other link is followed all the same.
        let look = queues.take(&[link("br0", 2), link("eth0", 3)], &[none, root(3, 40, 0)]);
        assert_eq!(look.queue, Some(LinkQueue { backlog_bytes: 40, dropped_packets: 0 }));
        assert!(look.lacking.is_some_and(|why| why.detail().contains("br0")));
    }

    #[test]
    fn the_kernel_is_not_asked_again_at_once_after_it_gave_no_answer() {
        let why = Absence::described(AbsenceKind::Vanished, "slow".to_owned());
        let (now, links) = (Instant::now(), [link("none", u32::MAX)]);
        let mut queues = Queues { paused: Some((now + PAUSE, why.clone())), ..Queues::default() };
        assert_eq!(queues.look(&links, now).lacking, Some(why.clone()));
        let later = queues.look(&links, now + PAUSE).lacking;
        assert!(later.is_some_and(|later| later != why), "asked again");
    }
}
