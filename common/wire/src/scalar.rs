//! Scalars, texts and byte strings of the encoding, written and read without the encoding crate: a report has hundreds,
//! and each costs a few nanoseconds here. The bytes are those that `codec` describes; a test compares them with the
//! crate's.
//!
//! In: values, and the bytes of a payload. Out: bytes appended, and values. The schemas in `schema`, `v1` and `v2` call
//! it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{append, prefix};
use crate::rejected::Rejected;

/// The greatest number that is a byte of its own; then the bytes that stand before two, four and eight others.
const ONE_BYTE: u8 = 250;
const TWO_BYTES: u8 = 251;
const FOUR_BYTES: u8 = 252;
const EIGHT_BYTES: u8 = 253;

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

/// What is left to read of a payload or of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// How many bytes are left.
    pub(crate) const fn left(&self) -> usize {
        self.0.len()
    }

    /// A value that the encoding crate reads.
    pub(crate) fn value<T: Deserialize<'a>>(&mut self) -> Result<T, Rejected> {
        let (value, used) = prefix(self.0).map_err(Rejected::invalid)?;
        self.0 = self.0.get(used..).unwrap_or_default();
        Ok(value)
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Rejected> {
        match self.0.split_first_chunk::<N>() {
            Some((first, rest)) => {
                self.0 = rest;
                Ok(*first)
            }
            None => Err(self.ends(N)),
        }
    }

    #[cold]
    #[inline(never)]
    fn ends(&self, wanted: usize) -> Rejected {
        Rejected::invalid(format_args!("the bytes end: {wanted} are wanted, {} are there", self.0.len()))
    }

    /// A byte string behind its length.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Rejected> {
        let length = usize::try_from(self.unsigned::<8>()?).unwrap_or(usize::MAX);
        match self.0.split_at_checked(length) {
            Some((bytes, rest)) => {
                self.0 = rest;
                Ok(bytes)
            }
            None => Err(self.ends(length)),
        }
    }

    /// A whole number that has at most so many bytes.
    #[inline(always)]
    pub(crate) fn unsigned<const BYTES: usize>(&mut self) -> Result<u64, Rejected> {
        match self.0.split_first() {
            Some((&first @ ..=ONE_BYTE, rest)) => {
                self.0 = rest;
                Ok(first.into())
            }
            _ => self.long::<BYTES>(),
        }
    }

    #[inline(never)]
    fn long<const BYTES: usize>(&mut self) -> Result<u64, Rejected> {
        let [first] = self.array::<1>()?;
        match first {
            TWO_BYTES if BYTES >= 2 => self.array().map(|bytes| u16::from_le_bytes(bytes).into()),
            FOUR_BYTES if BYTES >= 4 => self.array().map(|bytes| u32::from_le_bytes(bytes).into()),
            EIGHT_BYTES if BYTES >= 8 => self.array().map(u64::from_le_bytes),
            _ => Err(Rejected::invalid(format_args!("a number of {BYTES} bytes begins with {first}"))),
        }
    }
}

/// Appends a whole number.
#[inline(always)]
pub(crate) fn append_unsigned(number: u64, into: &mut Vec<u8>) {
    match u8::try_from(number) {
        Ok(byte @ ..=ONE_BYTE) => into.push(byte),
        _ => append_long(number, into),
    }
}

#[inline(never)]
fn append_long(number: u64, into: &mut Vec<u8>) {
    if let Ok(number) = u16::try_from(number) {
        into.push(TWO_BYTES);
        into.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = u32::try_from(number) {
        into.push(FOUR_BYTES);
        into.extend_from_slice(&number.to_le_bytes());
    } else {
        into.push(EIGHT_BYTES);
        into.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends what `content` appends, behind its length.
#[inline]
pub(crate) fn append_behind_length<E>(
    into: &mut Vec<u8>,
    content: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let at = into.len();
    // Most lengths are one byte.
    into.push(0);
    content(into)?;
    let length = into.len() - at - 1;
    match u8::try_from(length) {
        Ok(short @ ..=ONE_BYTE) => {
            if let Some(place) = into.get_mut(at) {
                *place = short;
            }
        }
        _ => {
            let mut field = Vec::with_capacity(9);
            append_unsigned(length as u64, &mut field);
            into.splice(at..=at, field);
        }
    }
    Ok(())
}

/// A type that is written and read without the encoding crate.
pub(crate) trait Scalar<'a>: Sized {
    /// Appends it.
    fn append(self, into: &mut Vec<u8>);
    /// Reads it.
    fn read(input: &mut Input<'a>) -> Result<Self, Rejected>;
}

impl Scalar<'_> for bool {
    #[inline]
    fn append(self, into: &mut Vec<u8>) {
        into.push(self.into());
    }
    #[inline]
    fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
        match input.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Rejected::invalid(format_args!("{other} is no truth value"))),
        }
    }
}

macro_rules! unsigned {
    ($($type:ty, $bytes:literal;)+) => {$(
        impl Scalar<'_> for $type {
            #[inline(always)]
            fn append(self, into: &mut Vec<u8>) {
                append_unsigned(self.into(), into);
            }
            #[inline(always)]
            fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
                // No more bytes than it has are read.
                input.unsigned::<$bytes>()?.try_into().map_err(Rejected::invalid)
            }
        }
    )+};
}
unsigned! {
    u16, 2;
    u32, 4;
}

impl Scalar<'_> for u64 {
    #[inline(always)]
    fn append(self, into: &mut Vec<u8>) {
        append_unsigned(self, into);
    }
    #[inline(always)]
    fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
        input.unsigned::<8>()
    }
}

impl Scalar<'_> for i32 {
    fn append(self, into: &mut Vec<u8>) {
        // 0, −1, 1, −2, … become 0, 1, 2, 3, …
        let folded = (self << 1) ^ (self >> 31);
        append_unsigned(folded.cast_unsigned().into(), into);
    }
    fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
        let folded = u32::read(input)?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }
}

impl Scalar<'_> for f64 {
    #[inline(always)]
    fn append(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_le_bytes());
    }
    #[inline(always)]
    fn read(input: &mut Input<'_>) -> Result<Self, Rejected> {
        input.array().map(Self::from_le_bytes)
    }
}

impl<'a> Scalar<'a> for &'a str {
    #[inline]
    fn append(self, into: &mut Vec<u8>) {
        append_unsigned(self.len() as u64, into);
        into.extend_from_slice(self.as_bytes());
    }
    #[inline]
    fn read(input: &mut Input<'a>) -> Result<Self, Rejected> {
        std::str::from_utf8(input.bytes()?).map_err(Rejected::invalid)
    }
}

impl<'a> Scalar<'a> for Raw<'a> {
    #[inline]
    fn append(self, into: &mut Vec<u8>) {
        append_unsigned(self.0.len() as u64, into);
        into.extend_from_slice(&self.0);
    }
    #[inline]
    fn read(input: &mut Input<'a>) -> Result<Self, Rejected> {
        input.bytes().map(|bytes| Self(Cow::Borrowed(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    /// Written here and by the crate alike, and read from it by both alike, also where it is cut off.
    fn alike<'a, T: Scalar<'a> + Serialize + Deserialize<'a> + PartialEq + Debug + Copy>(
        value: T,
        room: &'a mut Vec<u8>,
    ) {
        let mut theirs = Vec::new();
        append(&value, &mut theirs).unwrap();
        value.append(room);
        assert_eq!(*room, theirs, "{value:?}");
        let mut input = Input::new(room);
        assert_eq!(T::read(&mut input).unwrap(), value);
        assert_eq!(input.left(), 0);
        assert!(T::read(&mut Input::new(&room[..room.len() - 1])).is_err());
    }

    /// Any bytes are taken by both or by neither, as the same value.
    fn taken_alike<'a, T: Scalar<'a> + Deserialize<'a> + PartialEq + Debug>(bytes: &'a [u8]) {
        let mut input = Input::new(bytes);
        let ours = T::read(&mut input).ok().map(|value| (value, bytes.len() - input.left()));
        assert_eq!(ours, prefix::<T>(bytes).ok(), "{bytes:?}");
    }

    #[test]
    fn the_edges_between_lengths() {
        for number in [0, 1, 250, 251, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            alike(number, &mut Vec::new());
        }
        for number in [0, -1, 1, 125, -125, -126, 126, i32::MIN, i32::MAX] {
            alike(number, &mut Vec::new());
        }
        for length in [0, 1, 250, 251, 65_535, 65_536] {
            let mut bytes = Vec::new();
            append_behind_length(&mut bytes, |into| {
                into.resize(into.len() + length, 7);
                Ok::<_, ()>(())
            })
            .unwrap();
            let mut theirs = Vec::new();
            append(&Raw(Cow::Owned(vec![7; length])), &mut theirs).unwrap();
            assert!(bytes == theirs, "{length}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_the_crates(truth: bool, short: u16, middle: u32, long: u64, signed: i32, number: f64, text in ".{0,300}") {
            alike(truth, &mut Vec::new());
            alike(short, &mut Vec::new());
            alike(middle, &mut Vec::new());
            alike(long, &mut Vec::new());
            alike(signed, &mut Vec::new());
            if !number.is_nan() {
                alike(number, &mut Vec::new());
            }
            let mut room = Vec::new();
            alike(text.as_str(), &mut room);
        }

        #[test]
        fn what_is_taken_is_the_crates(bytes in prop::collection::vec(prop_oneof![0_u8..4, 248_u8..=255, any::<u8>()], 0..12)) {
            taken_alike::<bool>(&bytes);
            taken_alike::<u16>(&bytes);
            taken_alike::<u32>(&bytes);
            taken_alike::<u64>(&bytes);
            taken_alike::<i32>(&bytes);
            taken_alike::<&str>(&bytes);
        }
    }
}
