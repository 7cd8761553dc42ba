//! CPU that a guest's emulator gets on top of the guest's ceiling. In: a ceiling as asked or as set. Out: the other
//! one. Called where ceilings are planned and where they are reported.

use gleaner_types::units::CoreShare;

/// CPU a QEMU process gets on top of a ceiling asked for its guest, for the emulator and I/O threads in the
/// same cgroup: 5 % of the ceiling, at least 10 % of a core (chosen). Without it a guest at its ceiling
/// would starve its own disk and network.
#[must_use]
pub fn with_emulator_headroom(ceiling: CoreShare) -> CoreShare {
    ceiling + (ceiling * 0.05).max(CoreShare::clamped(10.0))
}

/// What a guest's ceiling was asked to be, from what was set with [`with_emulator_headroom`].
#[must_use]
pub fn without_emulator_headroom(set: CoreShare) -> CoreShare {
    // The headroom is a tenth of a core up to a ceiling of two cores, and 5 % from there on.
    if set.percent() <= 210.0 { set.saturating_sub(CoreShare::clamped(10.0)) } else { set * (1.0 / 1.05) }
}
