//! Values on the command line that are not plain numbers: durations, times, percentages, money. In: a word. Out: the
//! value, or the mistake and the correct form. Called by clap.

use std::str::FromStr;
use std::time::Duration;

use gleaner_planner::harm::LARGEST_PAUSE_SHARE;
use gleaner_types::units::{Dollars, DollarsPerHour, NotFinite};
use time::format_description::well_known::Rfc3339;

/// A word is not the value that it should be.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("{0:?} is no duration; write 90s, 10m or 1h30m")]
    Duration(String),
    #[error("{0:?} is no time at all")]
    Zero(String),
    #[error("{0:?} is neither a duration (10m) nor a time (2026-01-31T12:00:00Z)")]
    Moment(String),
    #[error("is before 1970")]
    Before1970,
    #[error("{0:?} is no percentage; write 1%")]
    Percent(String),
    #[error(
        "{0:?} is no part of the time that can be spent on pauses; write a number above 0, at most {LARGEST_PAUSE_SHARE}"
    )]
    PauseShare(String),
    #[error("{0:?} is no amount of money")]
    Money(String),
    #[error(transparent)]
    Amount(#[from] NotFinite),
}

/// A moment: a duration back from now, or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    Ago(Duration),
    /// Milliseconds since the Unix epoch.
    At(u64),
}

impl FromStr for Since {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Ok(ago) = duration(text) {
            return Ok(Self::Ago(ago));
        }
        let at = time::OffsetDateTime::parse(text, &Rfc3339).map_err(|_| ValueError::Moment(text.to_owned()))?;
        u64::try_from(at.unix_timestamp_nanos() / 1_000_000).map(Self::At).map_err(|_| ValueError::Before1970)
    }
}

/// A duration: numbers with units s, m, h or d, such as 1h30m; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::Duration(text.to_owned());
    let (mut total_s, mut number, mut bare) = (0.0, String::new(), true);
    for c in text.trim().chars() {
        if c.is_ascii_digit() || c == '.' {
            number.push(c);
            continue;
        }
        let unit_s = match c {
            's' => 1.0,
            'm' => 60.0,
            'h' => 3_600.0,
            'd' => 86_400.0,
            _ => return Err(bad()),
        };
        total_s += number.parse::<f64>().map_err(|_| bad())? * unit_s;
        number.clear();
        bare = false;
    }
    if bare {
        total_s = number.parse().map_err(|_| bad())?;
    } else if !number.is_empty() {
        return Err(bad());
    }
    let duration = Duration::try_from_secs_f64(total_s).map_err(|_| bad())?;
    if duration.is_zero() { Err(ValueError::Zero(text.to_owned())) } else { Ok(duration) }
}

/// A part of the time, such as 0.03.
pub(crate) fn pause_share(text: &str) -> Result<f64, ValueError> {
    let share = text.trim().parse().ok().filter(|share| *share > 0.0 && *share <= LARGEST_PAUSE_SHARE);
    share.ok_or_else(|| ValueError::PauseShare(text.to_owned()))
}

/// A part of one, written in percent, such as 1%.
pub(crate) fn percent(text: &str) -> Result<f64, ValueError> {
    let bad = || ValueError::Percent(text.to_owned());
    let number = text.trim().strip_suffix('%').ok_or_else(bad)?.trim();
    let part = number.parse::<f64>().map_err(|_| bad())? / 100.0;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err(bad()) }
}

pub(crate) fn dollars(text: &str) -> Result<Dollars, ValueError> {
    let number: f64 = text.trim_start_matches('$').parse().map_err(|_| ValueError::Money(text.to_owned()))?;
    Ok(Dollars::new(number)?)
}

pub(crate) fn price(text: &str) -> Result<DollarsPerHour, ValueError> {
    dollars(text).map(|dollars| DollarsPerHour::clamped(dollars.amount()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in [("90s", 90.0), ("10m", 600.0), ("1h30m", 5_400.0), ("45", 45.0), ("1.5m", 90.0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for bad in ["", "m", "10x", "1h30", "0s", "-5s", "1e999s", "nan"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("1%"), Ok(0.01));
        assert_eq!(percent(" 12.5 %"), Ok(0.125));
        for bad in ["", "1", "%", "-1%", "101%", "nan%", "1%%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn money() {
        assert_eq!(dollars("$2.50"), Ok(Dollars::clamped(2.5)));
        assert!(dollars("-1").is_err() && dollars("NaN").is_err());
    }

    #[test]
    fn since() {
        assert_eq!("10m".parse(), Ok(Since::Ago(Duration::from_secs(600))));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Since::At(1_000)));
        assert!("yesterday".parse::<Since>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,20}") {
            _ = duration(&text);
            _ = dollars(&text);
            _ = text.parse::<Since>();
        }
    }
}
