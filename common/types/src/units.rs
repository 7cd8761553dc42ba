//! Physical quantities as types, so that a percent of a core is never added to bytes per second. In: numbers. Out:
//! checked quantities. Every crate uses them.
//!
//! Every floating-point quantity is finite and at most [`MAX_MAGNITUDE`] by construction: [`NotFinite`] is the error of
//! building one from anything else, and of decoding one from JSON, TOML or the wire.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Largest number that any quantity takes, in its unit. Chosen: far above what any site has (10 million hosts of 1,000
/// cores, or 1 PB/s), and so small that sums and products of thousands of them are still exact enough to be compared.
pub const MAX_MAGNITUDE: f64 = 1e15;

/// Most CPUs a host may have. Chosen: eight times what Linux can be built for.
pub const MAX_CORES: u32 = 65_536;

/// Largest whole number that is taken from another machine: what a JSON number holds exactly. A count of events that a
/// million a second raise reaches it in 285 years.
pub const MAX_COUNT: u64 = 1 << 53;

/// A quantity was built from a NaN, an infinity, a negative number or one above [`MAX_MAGNITUDE`].
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{value:?} is not a valid {quantity}: it must be a finite number of at least 0 and at most {MAX_MAGNITUDE:e}")]
pub struct NotFinite {
    quantity: &'static str,
    value: f64,
}

impl NotFinite {
    /// Checks a plain number, such as a length of time in seconds.
    ///
    /// # Errors
    /// [`NotFinite`] unless it is in `0..=MAX_MAGNITUDE`.
    pub fn check(value: f64, quantity: &'static str) -> Result<f64, Self> {
        if (0.0..=MAX_MAGNITUDE).contains(&value) { Ok(value) } else { Err(Self { quantity, value }) }
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal, $accessor:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);

            /// Builds the quantity from a number.
            ///
            /// # Errors
            /// [`NotFinite`] for a NaN, an infinity, a negative number or one above [`MAX_MAGNITUDE`].
            pub fn new(value: f64) -> Result<Self, NotFinite> {
                NotFinite::check(value, stringify!($name)).map(Self)
            }

            /// Builds the quantity, taking 0 for anything negative or not finite, and [`MAX_MAGNITUDE`] for
            /// anything above. For results of arithmetic on valid quantities, where the bounds are part of the
            /// definition.
            #[must_use]
            pub fn clamped(value: f64) -> Self {
                Self(if value.is_finite() { value.clamp(0.0, MAX_MAGNITUDE) } else { 0.0 })
            }

            #[doc = concat!("The number, in ", $unit, ".")]
            #[must_use]
            pub const fn $accessor(self) -> f64 {
                self.0
            }

            /// `self - other`, but never below zero.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self::clamped(self.0 - other.0)
            }

            /// The smaller of the two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// The larger of the two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// A total order (the values are never NaN).
            #[must_use]
            pub fn total_cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl TryFrom<f64> for $name {
            type Error = NotFinite;
            fn try_from(value: f64) -> Result<Self, NotFinite> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> f64 {
                quantity.0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self::clamped(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        /// Signed difference, as a bare number in the quantity's unit.
        impl Sub for $name {
            type Output = f64;
            fn sub(self, other: Self) -> f64 {
                self.0 - other.0
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self::clamped(self.0 * factor)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
                parts.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity! {
    /// CPU in percent of one core, as in the papers: 400 is four cores. Also the unit of productivity.
    CoreShare, "percent of one core", percent
}
quantity! {
    /// A rate of bytes.
    BytesPerSec, "bytes per second", per_sec
}
quantity! {
    /// A rate of events (operations, misses, instructions, …).
    PerSec, "events per second", per_sec
}
quantity! {
    /// A part of a whole, in 0..=1 where it is a utilisation; a slowdown or ratio may exceed 1.
    Fraction, "parts of one", value
}
quantity! {
    /// An amount of money.
    Dollars, "dollars", amount
}
quantity! {
    /// A price of one worker.
    DollarsPerHour, "dollars per hour", per_hour
}

impl CoreShare {
    /// `cores` whole cores.
    #[must_use]
    pub fn from_cores(cores: u32) -> Self {
        Self(f64::from(cores) * 100.0)
    }

    /// The most that a host can have: [`MAX_CORES`].
    pub const MOST_OF_A_HOST: Self = Self(6_553_600.0);

    /// CPU time used over an interval, at most [`CoreShare::MOST_OF_A_HOST`]. An empty interval gives zero.
    #[must_use]
    pub fn from_cpu_time(used_ns: u64, interval_ns: u64) -> Self {
        if interval_ns == 0 {
            return Self::ZERO;
        }
        Self::clamped(used_ns as f64 * 100.0 / interval_ns as f64).min(Self::MOST_OF_A_HOST)
    }

    /// The same in cores: 250 % is 2.5.
    #[must_use]
    pub fn cores(self) -> f64 {
        self.0 / 100.0
    }
}

impl DollarsPerHour {
    /// What `workers` workers cost over `seconds`, counted to the second.
    #[must_use]
    pub fn over(self, seconds: f64, workers: f64) -> Dollars {
        Dollars::clamped(self.0 * workers * seconds / 3600.0)
    }
}

impl fmt::Display for CoreShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} %", self.0)
    }
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${:.4}", self.0)
    }
}

/// An amount of memory or data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// None.
    pub const ZERO: Self = Self(0);
    /// Most memory, or size of anything, that is taken from another machine: 8 PiB.
    pub const MAX: Self = Self(8 << 50);

    /// `n` mebibytes.
    #[must_use]
    pub const fn from_mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `self - other`, but never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A text that is not an amount of memory or data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no amount of memory; write 512M or 2G")]
pub struct InvalidBytes(String);

/// A whole number, with K, M, G or T for powers of 1,024.
impl FromStr for Bytes {
    type Err = InvalidBytes;
    fn from_str(text: &str) -> Result<Self, InvalidBytes> {
        let bad = || InvalidBytes(text.to_owned());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {}", UNITS[unit]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_a_number() {
        assert!(CoreShare::new(f64::NAN).is_err());
        assert!(CoreShare::new(f64::INFINITY).is_err());
        assert!(CoreShare::new(-1.0).is_err());
        assert!(CoreShare::new(MAX_MAGNITUDE).is_ok() && CoreShare::new(1.1e15).is_err());
        assert_eq!(CoreShare::clamped(1.7e308), CoreShare::clamped(MAX_MAGNITUDE));
        let error = serde_json::from_str::<CoreShare>("-3.5").unwrap_err().to_string();
        assert!(error.contains("-3.5 is not a valid CoreShare"), "{error}");
    }

    #[test]
    fn cpu_time_over_an_interval_is_percent_of_one_core() {
        // 1.5 s of CPU in 1 s of wall time: one and a half cores.
        let share = CoreShare::from_cpu_time(1_500_000_000, 1_000_000_000);
        assert_eq!(share, CoreShare::new(150.0).unwrap());
        assert_eq!(CoreShare::from_cpu_time(5, 0), CoreShare::ZERO);
        assert_eq!(CoreShare::from_cpu_time(u64::MAX, 1), CoreShare::from_cores(MAX_CORES));
    }

    #[test]
    fn cost_is_counted_to_the_second() {
        // 6 dedicated hosts at $1.00/h for 30 min.
        let price = DollarsPerHour::new(1.0).unwrap();
        assert_eq!(price.over(1800.0, 6.0), Dollars::new(3.0).unwrap());
    }

    #[test]
    fn bytes_are_read() {
        assert_eq!("512M".parse(), Ok(Bytes::from_mib(512)));
        assert_eq!("7".parse(), Ok(Bytes(7)));
        for bad in ["", "M", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes::from_mib(1536).to_string(), "1.5 GiB");
    }
}
