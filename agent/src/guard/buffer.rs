//! CPUs that stay idle beyond what the foreground uses, with `guard.idle_buffer`. In: the guard's samples. Out: how many CPUs are
//! to be kept free of the volunteer, by the law in `gleaner_planner::idle_buffer`, and what a report says of it. Called by the
//! guard, which sets them.

use std::time::{Duration, Instant};

use gleaner_planner::guard::GuardSample;
use gleaner_planner::idle_buffer::{BufferSample, BufferSize, IdleBuffer};
use gleaner_types::error::chain;
use gleaner_types::report::Protection;
use gleaner_types::text::counted;

use crate::act::volunteer::SpareError;

/// Where CPUs could not be kept free it is tried again after so long. (Chosen.)
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The law, and what came of it.
#[derive(Debug)]
pub(super) struct Buffer {
    law: IdleBuffer,
    /// CPUs of the host, as of the last look.
    cpus: u32,
    /// CPUs to be kept free, of those that the volunteer could run on.
    spare: u32,
    /// Both as they were when CPUs were last set.
    set: Option<(u32, u32)>,
    /// Why they could not be, and since when.
    refused: Option<(Instant, String)>,
}

impl Buffer {
    pub(super) fn new(size: BufferSize) -> Self {
        Self { law: IdleBuffer::new(size), cpus: 0, spare: 0, set: None, refused: None }
    }

    /// The volunteer was stopped, or nothing was measured for a while.
    pub(super) fn reset(&mut self) {
        self.law.reset();
    }

    /// CPUs to be kept free.
    pub(super) const fn spare_cpus(&self) -> u32 {
        self.spare
    }

    /// Takes a look of the guard's at a volunteer that could run on so many CPUs, where that is known. Returns whether CPUs are to
    /// be set now.
    pub(super) fn look(&mut self, sample: GuardSample, available: Option<u32>, interval_s: f64, now: Instant) -> bool {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let cpus = sample.capacity.cores().round() as u32;
        let volunteer_most = available.unwrap_or(cpus);
        let sample = BufferSample { cpus, foreground: sample.foreground, volunteer_most };
        let kept_to = self.law.step(sample, interval_s);
        (self.cpus, self.spare) = (cpus, volunteer_most.saturating_sub(kept_to));
        match &self.refused {
            Some((since, _)) => now.saturating_duration_since(*since) >= RETRY_INTERVAL,
            None => self.set != Some((self.cpus, self.spare)),
        }
    }

    /// CPUs were set, at least those that it wants free, or could not be.
    pub(super) fn was_set(&mut self, result: Result<(), &SpareError>, now: Instant) {
        self.set = (self.cpus > 0).then_some((self.cpus, self.spare));
        let before = self.refused.take();
        if let Err(error) = result {
            let why = chain(error);
            if before.is_none() {
                tracing::warn!(error = why, "no CPUs are kept idle (guard.idle_buffer)");
            }
            self.refused = Some((now, why));
        } else if before.is_some() {
            tracing::info!("CPUs are kept idle again (guard.idle_buffer)");
        }
    }

    /// What it does, for a report. `is_ours`: nobody else has set the volunteer's CPUs, as far as last seen.
    pub(super) fn status(&self, is_ours: bool) -> Protection {
        let none =
            |why: &str| (0, format!("no CPU is kept free of the volunteer, although guard.idle_buffer is set, {why}"));
        let (spare_cpus, reason) = match (&self.refused, self.set, self.spare) {
            (Some((_, why)), ..) => none(&format!("because {why}")),
            (None, None, _) => none("because it has not run yet"),
            (None, Some((..=1, _)), _) => none("because this host has one CPU"),
            (None, Some(_), 0) => none("because those that it may not run on suffice"),
            _ if !is_ours => none("because somebody else has set its CPUs, or they cannot be set any more"),
            (None, Some(_), spare) => {
                let (idle, size) = (counted(self.law.buffer(), "CPU"), self.law.size());
                let as_many = if size == BufferSize::Follow { ", as many as its bursts take" } else { "" };
                let reason = format!(
                    "the volunteer has all CPUs but {spare}, because {idle} beyond what the foreground uses should be idle{as_many} \
                     (guard.idle_buffer)"
                );
                (spare, reason)
            }
        };
        Protection { spare_cpus, share_percent: 100.0, reason }
    }
}

/// What holds the volunteer for its harm, and what its idle buffer does, as one.
pub(crate) fn together(chosen: Option<Protection>, buffer: Option<Protection>) -> Option<Protection> {
    match (chosen, buffer) {
        (Some(chosen), Some(buffer)) => Some(Protection {
            spare_cpus: chosen.spare_cpus.max(buffer.spare_cpus),
            share_percent: chosen.share_percent,
            reason: format!("{}; {}", chosen.reason, buffer.reason),
        }),
        (chosen, buffer) => chosen.or(buffer),
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::CoreShare;

    use super::*;

    fn sample(cpus: u32, foreground: f64) -> GuardSample {
        let (capacity, foreground) = (CoreShare::from_cores(cpus), CoreShare::clamped(foreground));
        GuardSample { capacity, foreground, waits: None, volunteer_most: None }
    }

    #[test]
    fn cpus_are_set_when_they_change_and_what_was_refused_is_tried_again_after_a_while() {
        let (mut buffer, start) = (Buffer::new(BufferSize::Follow), Instant::now());
        let at = |s: f64| start + Duration::from_secs_f64(s);
        assert_eq!(buffer.status(true).spare_cpus, 0);
        assert!(buffer.look(sample(4, 0.0), None, 0.05, at(0.0)));
        assert_eq!(buffer.spare_cpus(), 3);
        buffer.was_set(Ok(()), at(0.0));
        assert!(!buffer.look(sample(4, 0.0), None, 0.05, at(0.1)));
        assert!(buffer.look(sample(8, 0.0), None, 0.05, at(0.2)), "there are more CPUs");
        buffer.was_set(Err(&SpareError::ProcessGroups), at(0.2));
        let told = buffer.status(true);
        assert_eq!(told.spare_cpus, 0);
        assert!(told.reason.ends_with("although guard.idle_buffer is set, because process groups are in no cgroup"));
        assert!(!buffer.look(sample(4, 0.0), None, 0.05, at(10.1)));
        assert!(buffer.look(sample(4, 0.0), None, 0.05, at(10.2)));
        buffer.was_set(Ok(()), at(10.2));
        let told = buffer.status(true);
        assert!(told.spare_cpus == 3 && told.reason.contains("1 CPU beyond"), "{told:?}");
        assert!(buffer.status(false).reason.contains("because somebody else has set its CPUs"));
    }

    #[test]
    fn a_report_has_what_both_keep_free() {
        let of = |spare_cpus, share_percent, reason: &str| {
            Some(Protection { spare_cpus, share_percent, reason: reason.to_owned() })
        };
        let (share, buffer) = (of(0, 50.0, "by its harm"), of(2, 100.0, "by the buffer"));
        assert_eq!(together(share.clone(), buffer.clone()), of(2, 50.0, "by its harm; by the buffer"));
        assert_eq!(together(share.clone(), None), share);
        assert_eq!(together(None, buffer.clone()), buffer);
    }

    #[test]
    fn of_one_cpu_none_is_kept_free_nor_of_those_that_suffice() {
        let (mut buffer, now) = (Buffer::new(BufferSize::Fixed(2)), Instant::now());
        assert!(buffer.look(sample(1, 0.0), None, 0.05, now));
        buffer.was_set(Ok(()), now);
        assert!(buffer.spare_cpus() == 0 && buffer.status(true).reason.ends_with("because this host has one CPU"));
        // It may run on one CPU of four.
        assert!(buffer.look(sample(4, 0.0), Some(1), 0.05, now));
        buffer.was_set(Ok(()), now);
        assert!(buffer.spare_cpus() == 0 && buffer.status(true).reason.contains("may not run on suffice"));
    }
}
