//! Rounds figures for interfaces that take whole numbers. In: a float. Out: an integer. Called where values are made
//! for the kernel or for people.

/// The nearest whole number. A negative or huge one saturates, which the callers' clamps then bound.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as documented")]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}
