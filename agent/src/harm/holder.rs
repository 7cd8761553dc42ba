//! What the harm meter and the posture do to a volunteer. In: holds, releases, postures. Out: whether they are in force.
//! The volunteer of a guard is one, and so are
//! tests' ones.

use std::time::Instant;

use gleaner_planner::protecting::Posture;
use gleaner_types::report::VolunteerState;

use crate::guard::{GuardView, ProtectError, VolunteerClock};

/// The volunteer, as far as it must be held still.
pub(crate) trait Holder: Send {
    /// It may run now: active, and not frozen by the guard. The number changes when the guard freezes it.
    fn runs(&self) -> (VolunteerState, u64);
    /// CPU time it used so far, in ns; `None` if that cannot be read.
    fn cpu_ns(&self) -> Option<u64>;
    /// What [`Holder::cpu_ns`] counts is the volunteer's alone.
    fn counts_alone(&self) -> bool;
    /// Holds it still until told otherwise, or until then. False if it could not be held.
    fn hold(&self, until: Instant) -> bool;
    /// Lets it go.
    fn release(&self);
    /// CPUs can be kept free of it: nobody else has set them, as far as last seen.
    fn can_spare(&self) -> bool;
    /// Scheduling points can be forced beside it, and are not forced anyway.
    fn can_force_points(&self) -> bool;
    /// Holds it so from now on.
    ///
    /// # Errors
    /// [`ProtectError`] when CPUs cannot be kept free, or points not forced.
    fn protect(&self, posture: Posture) -> Result<(), ProtectError>;
}

/// The volunteer that a guard holds.
#[derive(Debug)]
pub(crate) struct GuardedVolunteer {
    pub(crate) guard: GuardView,
    /// Its CPU time; `None` where that is made up, as in simulations.
    pub(crate) clock: Option<VolunteerClock>,
}

impl Holder for GuardedVolunteer {
    fn runs(&self) -> (VolunteerState, u64) {
        let status = self.guard.status();
        (status.state, status.freezes)
    }

    fn cpu_ns(&self) -> Option<u64> {
        self.clock.as_ref()?.read_ns().ok()
    }

    fn counts_alone(&self) -> bool {
        self.clock.as_ref().is_some_and(VolunteerClock::is_its_own)
    }

    fn hold(&self, until: Instant) -> bool {
        self.guard.hold(until)
    }

    fn release(&self) {
        self.guard.release();
    }

    fn can_spare(&self) -> bool {
        self.guard.can_spare()
    }

    fn can_force_points(&self) -> bool {
        self.guard.can_force_points()
    }

    fn protect(&self, posture: Posture) -> Result<(), ProtectError> {
        self.guard.protect(posture)
    }
}
