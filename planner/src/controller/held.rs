//! Until when a host is held. In: the orders of operators. Out: an end, which is shown, compared and sent as JSON: a time in
//! milliseconds, or `"released"`. Called by the owner of hosts and by whoever shows hosts.

use std::fmt;

use gleaner_types::text::harmless;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The end of a hold. The later of two ends is the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldUntil {
    /// It ends by itself then.
    Time(Timestamp),
    /// It ends when an operator releases the host, or all hosts.
    Released,
}

/// The word for [`HeldUntil::Released`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Released,
}

impl From<Option<Timestamp>> for HeldUntil {
    /// As orders and events have it: no time is until it is released.
    fn from(until: Option<Timestamp>) -> Self {
        until.map_or(Self::Released, Self::Time)
    }
}

impl fmt::Display for HeldUntil {
    /// What follows "until".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(at) => at.fmt(f),
            Self::Released => f.write_str("released"),
        }
    }
}

impl HeldUntil {
    /// A hold in words, the same wherever one is said: "held by ann until released". Of one host it is not kept who holds it.
    #[must_use]
    pub fn in_words(self, by: Option<&str>) -> String {
        match by {
            Some(by) => format!("held by {} until {self}", harmless(by)),
            None => format!("held until {self}"),
        }
    }
}

impl Serialize for HeldUntil {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Time(at) => at.serialize(serializer),
            Self::Released => Word::Released.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for HeldUntil {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Shown {
            Time(Timestamp),
            Word(Word),
        }
        Ok(match Shown::deserialize(deserializer)? {
            Shown::Time(at) => Self::Time(at),
            Shown::Word(Word::Released) => Self::Released,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_said_in_one_way() {
        assert_eq!(HeldUntil::Released.in_words(Some("a\u{1b}nn")), "held by a?nn until released");
        assert_eq!(HeldUntil::Time(Timestamp(0)).in_words(None), "held until 1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_hold_until_it_is_released_ends_last() {
        assert!(HeldUntil::from(None) > HeldUntil::from(Some(Timestamp(u64::MAX))));
        assert!(HeldUntil::Time(Timestamp(6)) > HeldUntil::Time(Timestamp(5)));
        assert!(Some(HeldUntil::Time(Timestamp(0))) > None, "than none at all");
    }
}
