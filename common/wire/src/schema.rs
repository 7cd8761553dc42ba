//! Conversions between the domain's types and the structs of a version's schema. In: domain types. Out: schema structs
//! that borrow from them; and back, with every rule of the domain applied. Called by `v1` and `v2`.
//!
//! Each version has a schema of its own. So a change of a type here changes a conversion, or does not compile; it never
//! changes bytes. The parts of a report are written from the domain's types, and read into them, directly, in the order
//! of the schema's fields.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use gleaner_types::absence::ReasonText;
use gleaner_types::command::Weight;
use gleaner_types::id::{GuestText, HostId, JobId, WorkloadId};
use gleaner_types::method::MethodName;
use gleaner_types::report::MAX_WORKLOADS;
use gleaner_types::time::Timestamp;
use gleaner_types::units::{
    Bytes, BytesPerSec, CoreShare, Fraction, MAX_CORES, MAX_COUNT, MAX_MAGNITUDE, NotFinite, PerSec,
};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::codec::append;
pub(crate) use crate::rejected::{Rejected, Rejection, named};
pub(crate) use crate::scalar::Raw;
use crate::scalar::{Input, Scalar, append_behind_length, append_unsigned};
use crate::unknown::Unknowns;

/// A value that a version of the protocol has no form for. Behind a pointer, as [`Rejected`] is: so the result of converting a number is
/// returned in registers.
#[derive(Debug, thiserror::Error)]
#[error("version {} of the protocol has no form for {}", .0.0, .0.1)]
pub(crate) struct NotInVersion(Box<(u16, &'static str)>);

impl NotInVersion {
    #[cold]
    pub(crate) fn new(version: u16, what: &'static str) -> Self {
        Self(Box::new((version, what)))
    }
}

/// How a domain type travels.
pub(crate) trait Travels<'a, D>: Sized + Serialize + Deserialize<'a> {
    /// The schema's form of it.
    fn of(domain: &'a D) -> Result<Self, NotInVersion>;
    /// The domain's form. What this release does not know is counted.
    fn into_domain(self, unknown: &mut Unknowns) -> Result<D, Rejected>;

    /// Appends the bytes of the schema's form. A schema that reports are made of does so without making that form.
    fn write(domain: &'a D, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
        // An encoder that appends to memory fails only over its limit, which the frame's limit is far below.
        _ = append(&Self::of(domain)?, into);
        Ok(())
    }

    /// Reads those bytes into the domain's form.
    fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<D, Rejected> {
        input.value::<Self>()?.into_domain(unknown)
    }
}

macro_rules! travels {
    ($($wire:ty, $domain:ty, $of:expr, $into:expr;)+) => {$(
        impl<'a> Travels<'a, $domain> for $wire {
            #[inline]
            fn of(domain: &'a $domain) -> Result<Self, NotInVersion> {
                let of: fn(&'a $domain) -> Self = $of;
                Ok(of(domain))
            }
            #[inline]
            fn into_domain(self, _: &mut Unknowns) -> Result<$domain, Rejected> {
                let into: fn(Self) -> Result<$domain, Rejected> = $into;
                into(self)
            }
            #[inline(always)]
            fn write(domain: &'a $domain, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
                let of: fn(&'a $domain) -> Self = $of;
                of(domain).append(into);
                Ok(())
            }
            #[inline(always)]
            fn read(input: &mut Input<'a>, _: &mut Unknowns) -> Result<$domain, Rejected> {
                let into: fn(Self) -> Result<$domain, Rejected> = $into;
                into(<Self as Scalar>::read(input)?)
            }
        }
    )+};
}

// What is sent is within the bounds of what is taken: a kernel, a monitor or a guest that says more than they allow must not
// cost its host the connection.
travels! {
    bool, bool, |d| *d, Ok;
    u32, u32, |d| *d, Ok;
    u64, u64, |d| (*d).min(MAX_COUNT), |w| at_most(w, MAX_COUNT, "count");
    i32, i32, |d| *d, Ok;
    f64, f64, |d| *d, |w| NotFinite::check(w, "number").map_err(Rejected::invalid);
    u64, Bytes, |d| d.0.min(Bytes::MAX.0), |w| at_most(w, Bytes::MAX.0, "amount of memory or data").map(Bytes);
    u64, Timestamp, |d| d.0.min(LATEST_MS), |w| at_most(w, LATEST_MS, "time in milliseconds").map(Timestamp);
    Cores, u32, |d| Cores((*d).min(MAX_CORES)), |w| at_most(w.0, MAX_CORES, "number of CPUs");
    AnyCount, u64, |d| AnyCount(*d), |w| Ok(w.0);
    Signed, f64, |d| Signed(*d), |w| signed(w.0);
    u32, Weight, |d| d.number(), |w| Weight::new(w).map_err(Rejected::invalid);
    f64, CoreShare, |d| d.min(CoreShare::MOST_OF_A_HOST).percent(), |w| of_one_host(CoreShare::new(w).map_err(Rejected::invalid)?);
    f64, BytesPerSec, |d| d.per_sec(), |w| BytesPerSec::new(w).map_err(Rejected::invalid);
    f64, PerSec, |d| d.per_sec(), |w| PerSec::new(w).map_err(Rejected::invalid);
    f64, Fraction, |d| d.value(), |w| Fraction::new(w).map_err(Rejected::invalid);
    &'a str, String, |d| d, |w| Ok(w.to_owned());
    &'a str, HostId, |d| d.as_str(), |w| HostId::new(w).map_err(Rejected::invalid);
    &'a str, JobId, |d| d.as_str(), |w| JobId::new(w).map_err(Rejected::invalid);
    &'a str, WorkloadId, |d| d.as_str(), |w| WorkloadId::new(w).map_err(Rejected::invalid);
    &'a str, GuestText, |d| d.as_str(), |w| GuestText::new(w).map_err(Rejected::invalid);
    &'a str, MethodName, |d| d.as_str(), |w| MethodName::new(w).map_err(Rejected::invalid);
    &'a str, ReasonText, |d| d.as_str(), |w| Ok(ReasonText::from(w));
    Short<'a>, String, |d| Short(d), |w| Ok(ReasonText::from(w.0).as_str().to_owned());
    Raw<'a>, Vec<u8>, |d| Raw(Cow::Borrowed(d)), |w| Ok(w.0.into_owned());
}

/// Latest time that is taken: in the year 33658.
const LATEST_MS: u64 = 1_000_000_000_000_000;

/// A text of a report, which is only shown: what is behind its first [`ReasonText::MAX`] bytes is cut.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Short<'a>(&'a str);

/// A number of CPUs of a host.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Cores(u32);

/// A count as a kernel or another program gave it, which is only shown.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct AnyCount(u64);

/// A number that may be negative: a difference.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Signed(f64);

impl<'a> Scalar<'a> for Short<'a> {
    fn append(self, into: &mut Vec<u8>) {
        self.0.append(into);
    }
    fn read(input: &mut Input<'a>) -> Result<Self, Rejected> {
        <&str as Scalar>::read(input).map(Self)
    }
}

macro_rules! scalars {
    ($($name:ident: $of:ty;)+) => {$(
        impl Scalar<'_> for $name {
            fn append(self, into: &mut Vec<u8>) {
                self.0.append(into);
            }
            fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
                <$of as Scalar>::read(input).map(Self)
            }
        }
    )+};
}
scalars! {
    Cores: u32;
    AnyCount: u64;
    Signed: f64;
}

fn signed(number: f64) -> Result<f64, Rejected> {
    match number.abs() <= MAX_MAGNITUDE {
        true => Ok(number),
        // A NaN too.
        false => Err(Rejected::invalid(format!("{number} is not a valid number: at most {MAX_MAGNITUDE:e} is taken"))),
    }
}

fn at_most<N: PartialOrd + fmt::Display>(number: N, most: N, what: &str) -> Result<N, Rejected> {
    match number <= most {
        true => Ok(number),
        false => Err(Rejected::invalid(format!("{number} is not a valid {what}: at most {most} is taken"))),
    }
}

/// CPU on the wire is always of one host or of a part of it.
fn of_one_host(cpu: CoreShare) -> Result<CoreShare, Rejected> {
    at_most(cpu.percent(), CoreShare::MOST_OF_A_HOST.percent(), "CPU of a host in percent of one core")?;
    Ok(cpu)
}

impl<'a, D, S: Travels<'a, D>> Travels<'a, Option<D>> for Option<S> {
    fn of(domain: &'a Option<D>) -> Result<Self, NotInVersion> {
        domain.as_ref().map(S::of).transpose()
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<Option<D>, Rejected> {
        self.map(|some| some.into_domain(unknown)).transpose()
    }
}

impl<'a, D, E, S: Travels<'a, D>, T: Travels<'a, E>> Travels<'a, (D, E)> for (S, T) {
    fn of((first, second): &'a (D, E)) -> Result<Self, NotInVersion> {
        Ok((S::of(first)?, T::of(second)?))
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<(D, E), Rejected> {
        Ok((self.0.into_domain(unknown)?, self.1.into_domain(unknown)?))
    }
}

/// Most elements of any list, twice as many as any list needs: [`gleaner_types::report::MAX_WORKLOADS`] of the longest. An
/// empty element is a byte on the wire and many in memory.
const MAX_ELEMENTS: usize = 2 * MAX_WORKLOADS;

/// Most elements that memory is reserved for before they are read: a peer may announce many that are empty.
const MOST_RESERVED: usize = 256;

/// A list of at most [`MAX_ELEMENTS`]: one that announces more is refused before any of them is read. An element about
/// something unknown is counted and left out, so that the others arrive.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct List<S>(Vec<S>);

#[cold]
fn too_many(announced: usize) -> String {
    format!("a list of {announced} elements; at most {MAX_ELEMENTS} are taken")
}

/// An element; `None` if it is about something unknown. Only one in a [`Block`] can be, so that the next one is found.
fn known<D>(element: Result<D, Rejected>, unknown: &mut Unknowns) -> Result<Option<D>, Rejected> {
    match element {
        Ok(domain) => Ok(Some(domain)),
        Err(rejected) => match rejected.why() {
            Rejection::Unknown { what, code } => {
                unknown.code(what, *code);
                Ok(None)
            }
            Rejection::Invalid { .. } => Err(rejected),
        },
    }
}

impl<'de, S: Deserialize<'de>> Deserialize<'de> for List<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<S>(PhantomData<S>);

        impl<'de, S: Deserialize<'de>> Visitor<'de> for Elements<S> {
            type Value = Vec<S>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_ELEMENTS} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<S>, A::Error> {
                let announced = elements.size_hint().unwrap_or(0);
                if announced > MAX_ELEMENTS {
                    return Err(A::Error::custom(too_many(announced)));
                }
                let mut list = Vec::with_capacity(announced.min(MOST_RESERVED));
                while let Some(element) = elements.next_element()? {
                    list.push(element);
                }
                Ok(list)
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData)).map(Self)
    }
}

impl<'a, D, S: Travels<'a, D>> Travels<'a, Vec<D>> for List<S> {
    fn of(domain: &'a Vec<D>) -> Result<Self, NotInVersion> {
        // Not `collect`: into a `Result` it does not know how many there will be, and grows the list while it goes.
        let mut list = Vec::with_capacity(domain.len());
        for one in domain {
            list.push(S::of(one)?);
        }
        Ok(Self(list))
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<Vec<D>, Rejected> {
        let mut list = Vec::with_capacity(self.0.len().min(MOST_RESERVED));
        for one in self.0 {
            list.extend(known(one.into_domain(unknown), unknown)?);
        }
        Ok(list)
    }
    fn write(domain: &'a Vec<D>, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
        append_unsigned(domain.len() as u64, into);
        domain.iter().try_for_each(|one| S::write(one, into))
    }
    fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<Vec<D>, Rejected> {
        let announced = usize::try_from(input.unsigned::<8>()?).unwrap_or(usize::MAX);
        if announced > MAX_ELEMENTS {
            return Err(Rejected::invalid(too_many(announced)));
        }
        let mut list = Vec::with_capacity(announced.min(MOST_RESERVED));
        for _ in 0..announced {
            list.extend(known(S::read(input, unknown), unknown)?);
        }
        Ok(list)
    }
}

/// A struct behind its length in bytes, as those bytes: it is made and read one at a time, where it is converted, so
/// that a list of large ones is not moved about. What a newer release appended to it is skipped. A field appended in
/// this one goes into `More` ([`appended`]), and stays at its default where the bytes of an older release end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "'de: 'a"))]
pub(crate) struct Block<'a, T, More = Nothing> {
    bytes: Raw<'a>,
    #[serde(skip)]
    content: PhantomData<fn() -> (T, More)>,
}

#[cfg(test)]
impl<T, More> Block<'_, T, More> {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes.0
    }
}

/// No field was appended yet.
#[derive(Debug)]
pub(crate) struct Nothing;

/// The fields that were appended to a block, by one release or by several.
pub(crate) trait Appended<'a, D> {
    /// Appends them up to the last that is not at its default: the block then ends as that of an older release does.
    fn write(domain: &'a D, into: &mut Vec<u8>) -> Result<(), NotInVersion>;
    /// Sets those that are there in what the block's other fields gave.
    fn read(input: &mut Input<'a>, domain: &mut D, unknown: &mut Unknowns) -> Result<(), Rejected>;
}

impl<'a, D> Appended<'a, D> for Nothing {
    #[inline(always)]
    fn write(_: &'a D, _: &mut Vec<u8>) -> Result<(), NotInVersion> {
        Ok(())
    }
    #[inline(always)]
    fn read(_: &mut Input<'a>, _: &mut D, _: &mut Unknowns) -> Result<(), Rejected> {
        Ok(())
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The fields appended to a block, in the order in which they came.
macro_rules! appended {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> = $domain:ty { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl<$life> $crate::schema::Appended<$life, $domain> for $name {
            fn write(domain: &$life $domain, into: &mut Vec<u8>) -> Result<(), $crate::schema::NotInVersion> {
                let mut end = into.len();
                $(
                    <$type as $crate::schema::Travels<$life, _>>::write(&domain.$field, into)?;
                    if !$crate::schema::is_default(&domain.$field) {
                        end = into.len();
                    }
                )+
                into.truncate(end);
                Ok(())
            }
            fn read(
                input: &mut $crate::scalar::Input<$life>,
                domain: &mut $domain,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<(), $crate::schema::Rejected> {
                $(if input.left() > 0 {
                    domain.$field = $crate::schema::named(
                        stringify!($field),
                        <$type as $crate::schema::Travels<$life, _>>::read(input, unknown),
                    )?;
                })+
                Ok(())
            }
        }
    };
}
pub(crate) use appended;

impl<'a, T, More> Block<'a, T, More> {
    /// Reads a block that ends where the bytes end.
    fn read_content<D>(bytes: &'a [u8], unknown: &mut Unknowns) -> Result<D, Rejected>
    where
        T: Travels<'a, D>,
        More: Appended<'a, D>,
    {
        let mut content = Input::new(bytes);
        let mut domain = T::read(&mut content, unknown)?;
        More::read(&mut content, &mut domain, unknown)?;
        if content.left() > 0 {
            unknown.fields(content.left());
        }
        Ok(domain)
    }
}

impl<'a, D, S, More> Travels<'a, D> for Block<'a, S, More>
where
    S: Travels<'a, D> + Serialize + Deserialize<'a>,
    More: Appended<'a, D>,
{
    fn of(domain: &'a D) -> Result<Self, NotInVersion> {
        let mut bytes = Raw::of_value(&S::of(domain)?);
        More::write(domain, bytes.0.to_mut())?;
        Ok(Self { bytes, content: PhantomData })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<D, Rejected> {
        match self.bytes.0 {
            Cow::Borrowed(bytes) => Self::read_content(bytes, unknown),
            // What was received always borrows from its payload.
            Cow::Owned(_) => Err(Rejected::invalid("a block that was made here")),
        }
    }
    fn write(domain: &'a D, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
        append_behind_length(into, |into| {
            S::write(domain, into)?;
            More::write(domain, into)
        })
    }
    fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<D, Rejected> {
        Self::read_content(input.bytes()?, unknown)
    }
}

/// A struct of a schema: its fields in the order they travel in, named as the domain names them. What a version lacks, or
/// appended to the struct's block ([`appended`]), has the same value always.
macro_rules! schema {
    ($(#[$doc:meta])* $name:ident<$life:lifetime> = $domain:ty { $($field:ident: $type:ty),+ $(,)? }
     $(lacks { $($lacking:ident: $always:expr),+ })?) => {
        $(#[$doc])*
        #[derive(Debug, serde::Serialize, serde::Deserialize)]
        #[serde(bound(deserialize = "'de: 'a"))]
        pub(crate) struct $name<$life> { $(pub(crate) $field: $type,)+ }

        $crate::schema::schema!(@convert $name<$life>, $life, $domain { $($field: $type),+ }
            { $($($lacking: $always),+)? });
    };
    ($(#[$doc:meta])* $name:ident = $domain:ty { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, serde::Serialize, serde::Deserialize)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)+ }

        $crate::schema::schema!(@convert $name, 'a, $domain { $($field: $type),+ } {});
    };
    (@convert $name:ty, $life:lifetime, $domain:ty { $($field:ident: $type:ty),+ }
     { $($lacking:ident: $always:expr),* }) => {
        impl<$life> $crate::schema::Travels<$life, $domain> for $name {
            fn of(domain: &$life $domain) -> Result<Self, $crate::schema::NotInVersion> {
                Ok(Self { $($field: $crate::schema::Travels::of(&domain.$field)?,)+ })
            }
            fn into_domain(
                self,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                type Domain = $domain;
                Ok(Domain {
                    $($field: $crate::schema::named(
                        stringify!($field),
                        $crate::schema::Travels::into_domain(self.$field, unknown),
                    )?,)+
                    $($lacking: $always,)*
                })
            }
            fn write(domain: &$life $domain, into: &mut Vec<u8>) -> Result<(), $crate::schema::NotInVersion> {
                $(<$type as $crate::schema::Travels<$life, _>>::write(&domain.$field, into)?;)+
                Ok(())
            }
            fn read(
                input: &mut $crate::scalar::Input<$life>,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                type Domain = $domain;
                Ok(Domain {
                    $($field: $crate::schema::named(
                        stringify!($field),
                        <$type as $crate::schema::Travels<$life, _>>::read(input, unknown),
                    )?,)+
                    $($lacking: $always,)*
                })
            }
        }
    };
}
pub(crate) use schema;
