//! How the vocabulary's types become the structs of a version's schema, and back. The schemas of the versions are
//! their own, so that a change of a type here changes nobody's bytes: it changes a conversion, or does not compile.
//!
//! In: domain types; out: schema structs that borrow from them, and back with every rule of the domain applied.

use std::borrow::Cow;
use std::marker::PhantomData;

use gleaner_types::absence::ReasonText;
use gleaner_types::command::Weight;
use gleaner_types::id::{HostId, JobId, WorkloadId};
use gleaner_types::method::MethodName;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, PerSec};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{append, prefix};
use crate::unknown::Unknowns;

/// A value cannot be said in a version.
#[derive(Debug, thiserror::Error)]
#[error("version {version} of the protocol cannot say {what}")]
pub(crate) struct Unsayable {
    pub(crate) version: u16,
    pub(crate) what: &'static str,
}

/// What came is not taken.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// It breaks a rule.
    Invalid(String),
    /// It is about something that only a newer release knows.
    Unknown { what: &'static str, code: u16 },
}

impl Rejected {
    pub(crate) fn invalid(error: impl std::fmt::Display) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// How a domain type travels.
pub(crate) trait Travels<'a, D>: Sized {
    /// The schema's form of it.
    fn of(domain: &'a D) -> Result<Self, Unsayable>;
    /// The domain's form. What is not known is counted.
    fn into_domain(self, unknown: &mut Unknowns) -> Result<D, Rejected>;
}

macro_rules! travels {
    ($($wire:ty, $domain:ty, $of:expr, $into:expr;)+) => {$(
        impl<'a> Travels<'a, $domain> for $wire {
            #[inline]
            fn of(domain: &'a $domain) -> Result<Self, Unsayable> {
                let of: fn(&'a $domain) -> Self = $of;
                Ok(of(domain))
            }
            #[inline]
            fn into_domain(self, _: &mut Unknowns) -> Result<$domain, Rejected> {
                let into: fn(Self) -> Result<$domain, Rejected> = $into;
                into(self)
            }
        }
    )+};
}

travels! {
    bool, bool, |d| *d, Ok;
    u32, u32, |d| *d, Ok;
    u64, u64, |d| *d, Ok;
    i32, i32, |d| *d, Ok;
    f64, f64, |d| *d, Ok;
    u64, Bytes, |d| d.0, |w| Ok(Bytes(w));
    u64, Timestamp, |d| d.0, |w| Ok(Timestamp(w));
    u32, Weight, |d| d.number(), |w| Weight::new(w).map_err(Rejected::invalid);
    f64, CoreShare, |d| d.percent(), |w| CoreShare::new(w).map_err(Rejected::invalid);
    f64, BytesPerSec, |d| d.per_sec(), |w| BytesPerSec::new(w).map_err(Rejected::invalid);
    f64, PerSec, |d| d.per_sec(), |w| PerSec::new(w).map_err(Rejected::invalid);
    f64, Fraction, |d| d.value(), |w| Fraction::new(w).map_err(Rejected::invalid);
    &'a str, String, |d| d, |w| Ok(w.to_owned());
    &'a str, HostId, |d| d.as_str(), |w| HostId::new(w).map_err(Rejected::invalid);
    &'a str, JobId, |d| d.as_str(), |w| JobId::new(w).map_err(Rejected::invalid);
    &'a str, WorkloadId, |d| d.as_str(), |w| WorkloadId::new(w).map_err(Rejected::invalid);
    &'a str, MethodName, |d| d.as_str(), |w| MethodName::new(w).map_err(Rejected::invalid);
    &'a str, ReasonText, |d| d.as_str(), |w| Ok(ReasonText::from(w));
    Raw<'a>, Vec<u8>, |d| Raw(Cow::Borrowed(d)), |w| Ok(w.0.into_owned());
}

impl<'a, D, S: Travels<'a, D>> Travels<'a, Option<D>> for Option<S> {
    fn of(domain: &'a Option<D>) -> Result<Self, Unsayable> {
        domain.as_ref().map(S::of).transpose()
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<Option<D>, Rejected> {
        self.map(|some| some.into_domain(unknown)).transpose()
    }
}

impl<'a, D, E, S: Travels<'a, D>, T: Travels<'a, E>> Travels<'a, (D, E)> for (S, T) {
    fn of((first, second): &'a (D, E)) -> Result<Self, Unsayable> {
        Ok((S::of(first)?, T::of(second)?))
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<(D, E), Rejected> {
        Ok((self.0.into_domain(unknown)?, self.1.into_domain(unknown)?))
    }
}

/// Most elements that memory is reserved for before they are read: a peer may announce many that are empty.
const MOST_RESERVED: usize = 256;

impl<'a, D, S: Travels<'a, D>> Travels<'a, Vec<D>> for Vec<S> {
    fn of(domain: &'a Vec<D>) -> Result<Self, Unsayable> {
        // Not `collect`: into a `Result` it does not know how many there will be, and grows the list while it goes.
        let mut list = Self::with_capacity(domain.len());
        for one in domain {
            list.push(S::of(one)?);
        }
        Ok(list)
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<Vec<D>, Rejected> {
        let mut list = Vec::with_capacity(self.len().min(MOST_RESERVED));
        for one in self {
            list.push(one.into_domain(unknown)?);
        }
        Ok(list)
    }
}

/// A byte string.
#[derive(Debug, Clone)]
pub(crate) struct Raw<'a>(pub(crate) Cow<'a, [u8]>);

impl Raw<'_> {
    /// The bytes of a value. The values of the schemas can always be encoded.
    pub(crate) fn of_value<T: Serialize>(value: &T) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // An encoder that appends to memory fails only over its limit, which the frame's limit is far below.
        _ = append(value, &mut bytes);
        Self(Cow::Owned(bytes))
    }
}

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de [u8]>::deserialize(deserializer).map(|bytes| Self(Cow::Borrowed(bytes)))
    }
}

/// A struct behind its length in bytes, as those bytes: it is made and read one at a time, where it is converted, so
/// that a list of large ones is not moved about. What a newer release appended to it is skipped. A field appended in
/// this one goes into `More`, which stays at its default where the bytes of an older release end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "'de: 'a"))]
pub(crate) struct Block<'a, T, More = Nothing> {
    bytes: Raw<'a>,
    #[serde(skip)]
    content: PhantomData<fn() -> (T, More)>,
}

/// No field was appended yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Nothing;

/// What a block holds.
#[derive(Debug)]
pub(crate) struct Content<T, More = Nothing> {
    pub(crate) base: T,
    #[expect(dead_code, reason = "no field was appended yet")]
    pub(crate) more: More,
    /// Bytes behind the last known field.
    pub(crate) extra: usize,
}

impl<'de, T: Deserialize<'de>, More: Deserialize<'de> + Default> Content<T, More> {
    /// Reads a block whose end is the bytes' end.
    pub(crate) fn read(bytes: &'de [u8]) -> Result<Self, crate::codec::CodecError> {
        let (base, used) = prefix(bytes)?;
        let rest = bytes.get(used..).unwrap_or_default();
        let (more, used) = if rest.is_empty() { (More::default(), 0) } else { prefix(rest)? };
        Ok(Self { base, more, extra: rest.len() - used })
    }
}

impl<T> Content<T> {
    /// The domain's form. Bytes behind the last known field are counted.
    pub(crate) fn into_domain<'a, D>(self, unknown: &mut Unknowns) -> Result<D, Rejected>
    where
        T: Travels<'a, D>,
    {
        if self.extra > 0 {
            unknown.fields(self.extra);
        }
        self.base.into_domain(unknown)
    }
}

impl<'a, D, S: Travels<'a, D> + Serialize + Deserialize<'a>> Travels<'a, D> for Block<'a, S> {
    fn of(domain: &'a D) -> Result<Self, Unsayable> {
        Ok(Self { bytes: Raw::of_value(&S::of(domain)?), content: PhantomData })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<D, Rejected> {
        match self.bytes.0 {
            Cow::Borrowed(bytes) => Content::<S>::read(bytes).map_err(Rejected::invalid)?.into_domain(unknown),
            // What was received always borrows from its payload.
            Cow::Owned(_) => Err(Rejected::invalid("a block that was made here")),
        }
    }
}

/// A struct of a schema: its fields in the order they travel in, named as the domain names them.
macro_rules! schema {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> = $domain:ty { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, serde::Serialize, serde::Deserialize)]
        #[serde(bound(deserialize = "'de: 'a"))]
        pub(crate) struct $name<$life> { $(pub(crate) $field: $type,)+ }

        $crate::schema::schema!(@convert $name<$life>, $life, $domain { $($field),+ });
    };
    ($(#[$doc:meta])* $name:ident = $domain:ty { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, serde::Serialize, serde::Deserialize)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)+ }

        $crate::schema::schema!(@convert $name, 'a, $domain { $($field),+ });
    };
    (@convert $name:ty, $life:lifetime, $domain:ty { $($field:ident),+ }) => {
        impl<$life> $crate::schema::Travels<$life, $domain> for $name {
            fn of(domain: &$life $domain) -> Result<Self, $crate::schema::Unsayable> {
                Ok(Self { $($field: $crate::schema::Travels::of(&domain.$field)?,)+ })
            }
            fn into_domain(
                self,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                type Domain = $domain;
                Ok(Domain { $($field: $crate::schema::Travels::into_domain(self.$field, unknown)?,)+ })
            }
        }
    };
}
pub(crate) use schema;
