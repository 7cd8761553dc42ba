//! What the harm meter and the posture do to a volunteer. In: holds, releases, postures. Out: whether they are in force.
//! Implemented by the guard's volunteer and by tests' ones.

use std::time::Instant;

use gleaner_planner::protecting::Posture;
use gleaner_types::report::VolunteerState;

use crate::guard::ProtectError;

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
