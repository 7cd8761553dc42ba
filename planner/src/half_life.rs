//! How much something old still counts: half as much after every half-life. In: an age and a half-life, in the same unit. Out:
//! a weight. The I/O model, the yield of volunteers and the choice among forecasters call it.

/// `0.5^(age / half_life)`, from 1 for what is new towards 0.
///
/// As `exp2` and not as `0.5.powf`: an optimised build makes the first of the second, an unoptimised one does not, and they
/// differ in the last bit now and then. So a journal replays alike in both.
pub(crate) fn weight(age: f64, half_life: f64) -> f64 {
    (-age / half_life).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_after_each_half_life() {
        let weights = [0.0, 60.0, 120.0, 600.0].map(|age| weight(age, 60.0));
        assert_eq!(weights.map(f64::to_bits), [1.0, 0.5, 0.25, 1.0 / 1024.0].map(f64::to_bits));
    }
}
