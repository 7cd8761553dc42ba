//! Seeded random numbers in the distributions that the models need. In: a seed. Out: the same numbers on every machine.
//! Every model calls it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A stream of its own for one part of what a seed stands for, such as one host.
    #[must_use]
    pub fn part(seed: u64, part: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(part);
        Self(random)
    }

    /// Uniform in (0, 1].
    pub fn uniform(&mut self) -> f64 {
        // 53 bits are what a double holds.
        ((self.0.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A seed for a stream of its own.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than n, which is a usize")]
        let value = (self.0.next_u64() % n as u64) as usize;
        value
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), self.uniform());
        radius * (std::f64::consts::TAU * angle).cos()
    }

    /// Normal, drawn again until it is at least `least`.
    pub fn normal_at_least(&mut self, mean: f64, deviation: f64, least: f64) -> f64 {
        for _ in 0..100 {
            let value = mean + deviation * self.normal();
            if value >= least {
                return value;
            }
        }
        least.max(mean)
    }

    /// Log-normal with mean 1 and this coefficient of variation.
    pub fn around_one(&mut self, variation: f64) -> f64 {
        let variance = (1.0 + variation * variation).ln();
        (variance.sqrt() * self.normal() - variance / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let (mut random, n) = (Random::new(3), 200_000);
        let (mut normal, mut squares, mut around) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let value = random.normal();
            normal += value / f64::from(n);
            squares += value * value / f64::from(n);
            around += random.around_one(0.5) / f64::from(n);
        }
        assert!(normal.abs() < 0.01 && (squares - 1.0).abs() < 0.02 && (around - 1.0).abs() < 0.01);
        assert!(random.normal_at_least(0.0, 1.0, 3.0) >= 3.0);
        assert_ne!(Random::part(1, 1).seed(), Random::part(1, 2).seed());
    }
}
