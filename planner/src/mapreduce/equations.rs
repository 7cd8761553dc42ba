//! The models of a MapReduce job's time as the paper prints them (Gandhi et al., §IV, Eq. 1 to 10, Tables II and III). In:
//! coefficients, the size of a job, cores and slots. Out: seconds. [`fit`](super::fit) and
//! [`estimate`](super::estimate) call it.
//!
//! Input is in MB, of which a block of the paper's file system has 64: its 20 GB of TeraSort make 298 map tasks, so its MB
//! are 2^20 bytes. Numbers of cores may be fractions, as a job of several on the same cores has (§IV-E).

use gleaner_types::text::counted;
use serde::{Deserialize, Serialize};

/// What ⌈x⌉ may be off by when x was a division of whole numbers.
const ROUNDING: f64 = 1e-9;

/// c₀ + c₁x + c₂x², seconds of a task on a core of its own over the MB that it is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Polynomial(pub [f64; 3]);

impl Polynomial {
    /// Its value.
    #[must_use]
    pub fn at(self, x: f64) -> f64 {
        let [c0, c1, c2] = self.0;
        c0 + x * (c1 + x * c2)
    }
}

/// What makes a workload on one kind of cores: the coefficients of Eq. 10.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coefficients {
    /// f (α): seconds of a map task over D/M.
    pub map: Polynomial,
    /// g_f (β): seconds of a reduce task of the first wave after the last map task, over D/R.
    #[serde(default)]
    pub reduce_first: Polynomial,
    /// g_s (γ): seconds of a reduce task of a later wave, over D/R.
    #[serde(default)]
    pub reduce_later: Polynomial,
    /// λ: seconds of shuffling for each map task and reduce task, M/R.
    #[serde(default)]
    pub shuffle: f64,
    /// Seconds of a job before its first map task. Ours; 0 in the paper.
    #[serde(default)]
    pub set_up_s: f64,
    /// Seconds of `map` in which the slot waits for its task and its core is idle, unless another slot has a task there. Ours; 0 in the paper.
    #[serde(default)]
    pub map_wait_s: f64,
    /// Seconds of `reduce_later` for each MB of D/R in which the task copies and its core is idle, unless another slot has a task there. Ours; 0 in
    /// the paper.
    #[serde(default)]
    pub copy: f64,
}

/// Table II. g_s is what the paper gives, though its scenarios have one reduce task.
pub const WORD_COUNT: Coefficients = Coefficients {
    map: Polynomial([6.0, 0.4, 0.0]),
    reduce_first: Polynomial([4.9, 5e-4, 0.0]),
    reduce_later: Polynomial([6.1, 7.3e-3, 0.0]),
    shuffle: 0.1,
    set_up_s: 0.0,
    map_wait_s: 0.0,
    copy: 0.0,
};

/// Table III. f is negative below 48 MB a task, where it was not trained.
pub const TERA_SORT: Coefficients = Coefficients {
    map: Polynomial([-29.0, 0.6, 0.0]),
    reduce_first: Polynomial([16.3, 3.9e-4, 0.0]),
    reduce_later: Polynomial([0.0, 6.2e-2, 5e-6]),
    shuffle: 3.5,
    set_up_s: 0.0,
    map_wait_s: 0.0,
    copy: 0.0,
};

/// The size of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// D, in MB.
    pub input_mb: f64,
    /// M.
    pub maps: u32,
    /// R; 0 for a job of map tasks only.
    pub reduces: u32,
}

/// Cores of a cluster and slots on them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// N_mc: cores with map slots.
    pub map_cores: f64,
    /// n_ms: map slots per core.
    pub map_slots_per_core: u32,
    /// N_rc: cores with reduce slots.
    pub reduce_cores: f64,
    /// n_rs: reduce slots per core.
    pub reduce_slots_per_core: u32,
}

/// The models give no time.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Tasks and no slot for them.
    #[error("there is no {kind} slot for {}", counted(tasks, &format!("{kind} task")))]
    NoSlots {
        /// `map` or `reduce`.
        kind: &'static str,
        /// How many tasks.
        tasks: u32,
    },
    /// The coefficients give a task no time, which no training run can have had.
    #[error("{what} of {per_task_mb} MB is {seconds} s by the coefficients; it must be more than 0")]
    NoTime {
        /// Which function.
        what: &'static str,
        /// Its argument.
        per_task_mb: f64,
        /// Its value.
        seconds: f64,
    },
}

/// ⌈x⌉ of a number of tasks over a number of slots.
fn ceiling(x: f64) -> f64 {
    (x - ROUNDING).ceil().max(0.0)
}

/// Waves of tasks: ⌈tasks / (cores × slots)⌉ (Eq. 4, and N_rw of Eq. 8).
#[must_use]
pub fn waves(tasks: u32, cores: f64, slots_per_core: u32) -> f64 {
    ceiling(f64::from(tasks) / (cores * f64::from(slots_per_core)))
}

/// How many tasks a core runs at once: min(⌈tasks / cores⌉, slots) (the last factor of Eq. 3, 6 and 7).
#[must_use]
pub fn tasks_per_core(tasks: u32, cores: f64, slots_per_core: u32) -> f64 {
    ceiling(f64::from(tasks) / cores).min(f64::from(slots_per_core))
}

/// Time of a task that shares its core with `at_once - 1` others: Eq. 3, but that waits for tasks overlap.
#[must_use]
pub fn sharing_s(alone_s: f64, wait_s: f64, at_once: f64) -> f64 {
    if at_once > 1.0 { alone_s.max(at_once * (alone_s - wait_s)) } else { alone_s * at_once }
}

fn slots(kind: &'static str, tasks: u32, cores: f64, slots_per_core: u32) -> Result<(), ModelError> {
    if cores > 0.0 && cores.is_finite() && slots_per_core > 0 {
        Ok(())
    } else {
        Err(ModelError::NoSlots { kind, tasks })
    }
}

fn positive(what: &'static str, per_task_mb: f64, seconds: f64) -> Result<f64, ModelError> {
    if seconds > 0.0 && seconds.is_finite() {
        return Ok(seconds);
    }
    Err(ModelError::NoTime { what, per_task_mb, seconds })
}

impl Coefficients {
    /// f(D/M): a map task on a core of its own.
    ///
    /// # Errors
    /// [`ModelError::NoTime`].
    pub fn map_alone_s(&self, work: Work) -> Result<f64, ModelError> {
        let part = work.input_mb / f64::from(work.maps);
        positive("a map task", part, self.map.at(part))
    }

    /// g_f(D/R) and g_s(D/R): reduce tasks of the first and of later waves on a core of their own. One task has no later wave, so
    /// its g_s is not asked for.
    ///
    /// # Errors
    /// [`ModelError::NoTime`].
    pub fn reduce_alone_s(&self, work: Work) -> Result<(f64, f64), ModelError> {
        let part = work.input_mb / f64::from(work.reduces);
        let first = positive("a reduce task of the first wave", part, self.reduce_first.at(part))?;
        if work.reduces == 1 {
            return Ok((first, first));
        }
        Ok((first, positive("a reduce task of a later wave", part, self.reduce_later.at(part))?))
    }

    /// λ·M/R: what shuffling adds after the last map task.
    #[must_use]
    pub fn shuffle_s(&self, work: Work) -> f64 {
        if work.reduces == 0 { 0.0 } else { self.shuffle * f64::from(work.maps) / f64::from(work.reduces) }
    }

    /// Part of g_s(D/R) in which the task copies.
    #[must_use]
    pub fn copy_s(&self, work: Work) -> f64 {
        if work.reduces == 0 { 0.0 } else { self.copy * work.input_mb / f64::from(work.reduces) }
    }

    /// T_mt: a map task (Eq. 3).
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn map_task_s(&self, work: Work, on: Layout) -> Result<f64, ModelError> {
        slots("map", work.maps, on.map_cores, on.map_slots_per_core)?;
        let at_once = tasks_per_core(work.maps, on.map_cores, on.map_slots_per_core);
        Ok(sharing_s(self.map_alone_s(work)?, self.map_wait_s, at_once))
    }

    /// T_ms: from the start of the first map task to the end of the last (Eq. 2 and 5).
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn map_stage_s(&self, work: Work, on: Layout) -> Result<f64, ModelError> {
        if work.maps == 0 {
            return Ok(0.0);
        }
        Ok(self.map_task_s(work, on)? * waves(work.maps, on.map_cores, on.map_slots_per_core))
    }

    /// T_rs: from the end of the last map task to that of the last reduce task (Eq. 6 to 9).
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn reduce_stage_s(&self, work: Work, on: Layout) -> Result<f64, ModelError> {
        if work.reduces == 0 {
            return Ok(0.0);
        }
        slots("reduce", work.reduces, on.reduce_cores, on.reduce_slots_per_core)?;
        let (first, later) = self.reduce_alone_s(work)?;
        let shared = tasks_per_core(work.reduces, on.reduce_cores, on.reduce_slots_per_core);
        let waves = waves(work.reduces, on.reduce_cores, on.reduce_slots_per_core);
        let later = sharing_s(later, self.copy_s(work), shared);
        Ok(first * shared + later * (waves - 1.0) + self.shuffle_s(work))
    }

    /// T_job: the whole job (Eq. 1 and 10), with [`set_up_s`](Self::set_up_s).
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn job_s(&self, work: Work, on: Layout) -> Result<f64, ModelError> {
        Ok(self.set_up_s + self.map_stage_s(work, on)? + self.reduce_stage_s(work, on)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(map_cores: f64, map_slots_per_core: u32, reduce_cores: f64, reduce_slots_per_core: u32) -> Layout {
        Layout { map_cores, map_slots_per_core, reduce_cores, reduce_slots_per_core }
    }

    /// §IV-A: three map tasks on four cores of two slots take f, five take 2 f.
    #[test]
    fn a_core_shared_by_slots_as_in_the_paper_s_example() {
        let of = |maps| Work { input_mb: 64.0 * f64::from(maps), maps, reduces: 0 };
        let f = 0.4 * 64.0 + 6.0;
        for (maps, times) in [(3, 1.0), (5, 2.0), (8, 2.0), (9, 4.0)] {
            let found = WORD_COUNT.map_stage_s(of(maps), on(4.0, 2, 0.0, 0)).unwrap();
            assert!((found - times * f).abs() < 1e-9, "{maps}: {found}");
        }
        // §IV-E: two slots of a core, half of it: every task has half of a core.
        let half = WORD_COUNT.map_stage_s(of(4), on(0.5, 2, 0.0, 0)).unwrap();
        assert!((half - 4.0 * 2.0 * f).abs() < 1e-9, "{half}");
    }

    /// With a wait of 6.6 of 31.6 s two slots of a core work 2 × 25 s at once, and one slot takes 31.6 s; where the wait is most of a task, the slots do not
    /// hold each other up. The same of copying in later waves of reduce tasks, and not in the first.
    #[test]
    fn what_waits_leaves_its_core_to_others() {
        let own = Coefficients { map_wait_s: 6.6, ..WORD_COUNT };
        let work = Work { input_mb: 640.0, maps: 10, reduces: 4 };
        for (slots, map_s) in [(1, 10.0 * 31.6), (2, 5.0 * 50.0), (5, 2.0 * 125.0)] {
            let found = own.map_stage_s(work, on(1.0, slots, 1.0, 1)).unwrap();
            assert!((found - map_s).abs() < 1e-9, "{slots}: {found}");
        }
        assert!((sharing_s(10.0, 9.0, 2.0) - 10.0).abs() < 1e-9);
        let copies = Coefficients { copy: 0.01, ..WORD_COUNT };
        let (first_s, later_s) = WORD_COUNT.reduce_alone_s(work).unwrap();
        let two = 2.0 * first_s + 2.0 * (later_s - 1.6) + WORD_COUNT.shuffle_s(work);
        assert!((copies.reduce_stage_s(work, on(1.0, 1, 1.0, 2)).unwrap() - two).abs() < 1e-9);
        let one = on(1.0, 1, 1.0, 1);
        assert_eq!(copies.reduce_stage_s(work, one), WORD_COUNT.reduce_stage_s(work, one));
    }

    /// WordCount of §V-A by hand: 12 GB in 190 tasks on one map node take 190 × 31.87 s, and one reduce task 30 s.
    #[test]
    fn word_count_of_12_gb() {
        let work = Work { input_mb: 12_288.0, maps: 190, reduces: 1 };
        let one = on(1.0, 1, 1.0, 1);
        let f = 0.4 * 12_288.0 / 190.0 + 6.0;
        assert!((WORD_COUNT.map_stage_s(work, one).unwrap() - 190.0 * f).abs() < 1e-6);
        let reduce = 4.9 + 5e-4 * 12_288.0 + 0.1 * 190.0;
        assert!((WORD_COUNT.reduce_stage_s(work, one).unwrap() - reduce).abs() < 1e-9);
        assert!((WORD_COUNT.job_s(work, one).unwrap() - (190.0 * f + reduce)).abs() < 1e-6);
    }

    /// TeraSort of §V-A: with one reduce node it misses 2000 s "albeit barely", with two it ends before.
    #[test]
    fn tera_sort_of_10_gb() {
        let work = Work { input_mb: 10e9 / f64::from(1 << 20), maps: 149, reduces: 12 };
        let of = |reduce_cores| TERA_SORT.job_s(work, on(1.0, 1, reduce_cores, 1)).unwrap();
        assert!((2_000.0..2_060.0).contains(&of(1.0)), "{}", of(1.0));
        assert!(of(2.0) < 1_800.0, "{}", of(2.0));
        let per_task = work.input_mb / 12.0;
        let later = 6.2e-2 * per_task + 5e-6 * per_task * per_task;
        let by_hand = (16.3 + 3.9e-4 * per_task) + 5.0 * later + 3.5 * 149.0 / 12.0;
        assert!((TERA_SORT.reduce_stage_s(work, on(1.0, 1, 2.0, 1)).unwrap() - by_hand).abs() < 1e-9);
    }

    #[test]
    fn what_has_no_time_is_an_error() {
        let work = Work { input_mb: 640.0, maps: 20, reduces: 1 };
        let none = TERA_SORT.map_stage_s(work, on(1.0, 1, 1.0, 1)).unwrap_err();
        assert!(none.to_string().starts_with("a map task of 32 MB is -9.8"), "{none}");
        for cores in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let none = WORD_COUNT.map_stage_s(work, on(cores, 1, 1.0, 1)).unwrap_err();
            assert_eq!(none.to_string(), "there is no map slot for 20 map tasks");
            assert!(WORD_COUNT.reduce_stage_s(work, on(1.0, 1, cores, 1)).is_err());
        }
    }
}
