//! Messages of the protocol for tests. In: a type. Out: any message of it; and the same with any number replaced by a
//! value that follows the protocol but fits no real host.
//!
//! The types' own `Deserialize` drives it: it asks for their fields one by one. Every number is unique in its message.
//! So its bytes can be found in the frame and replaced by values that no honest encoder would write.

use gleaner_types::command::{Ack, Command};
use gleaner_types::report::HostReport;
use gleaner_types::task::{TaskJob, TaskOrders};
use gleaner_wire::{
    AgentEvents, FrameError, FromAgent, FromAggregator, GuestNames, Hello, ProtocolVersion, StandsBy, TaskStates,
    Welcome, encode,
};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

type Error = serde::de::value::Error;

/// Decides what is made: some bytes of a fuzzer, and when they are used up, what follows from a number.
#[derive(Debug, Clone)]
pub struct Entropy<'a> {
    bytes: &'a [u8],
    state: Option<u64>,
}

impl<'a> Entropy<'a> {
    /// From a fuzzer's bytes, then zeros.
    #[must_use]
    pub const fn of_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, state: None }
    }

    /// From a seed, without end.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Self {
        Self { bytes: &[], state: Some(seed) }
    }

    /// There is more than zeros to come.
    #[must_use]
    pub const fn is_left(&self) -> bool {
        !self.bytes.is_empty() || self.state.is_some()
    }

    /// A number below `choices`, of which there are 1 to 256.
    pub fn below(&mut self, choices: usize) -> usize {
        let byte = match (self.bytes.split_first(), &mut self.state) {
            (Some((first, rest)), _) => {
                self.bytes = rest;
                usize::from(*first)
            }
            (None, None) => 0,
            (None, Some(state)) => {
                // SplitMix64.
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                usize::try_from((mixed ^ (mixed >> 31)) & 0xffff).unwrap()
            }
        };
        byte % choices
    }
}

/// A number in a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// The names of the fields that lead to it, with dots between.
    pub path: String,
    /// Its bytes in the frame.
    bytes: Vec<u8>,
    /// What it can be replaced by: what it is, and its bytes, as many.
    replacements: Vec<(&'static str, Vec<u8>)>,
}

/// A frame with one of its numbers replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct Altered {
    /// The frame.
    pub frame: Vec<u8>,
    /// The names of the fields that lead to the number, with dots between.
    pub path: String,
    /// What it is now.
    pub number: &'static str,
}

impl Altered {
    /// The innermost name of its field.
    #[must_use]
    pub fn field(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// A message in a frame, and where its numbers are.
#[derive(Debug, Clone)]
pub struct Framed {
    /// The frame.
    pub frame: Vec<u8>,
    leaves: Vec<Leaf>,
}

impl Framed {
    /// Where its numbers are, by the names of the fields that lead to each.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.leaves.iter().map(|leaf| leaf.path.as_str())
    }

    /// The frame with one of its numbers replaced, for every number and everything it can be replaced by.
    pub fn altered(&self) -> impl Iterator<Item = Altered> {
        let place = |leaf: &Leaf| self.frame.windows(leaf.bytes.len()).position(|bytes| bytes == leaf.bytes);
        let placed = self.leaves.iter().filter_map(move |leaf| Some((leaf, place(leaf)?)));
        placed.flat_map(move |(leaf, place)| {
            leaf.replacements.iter().map(move |(number, bytes)| {
                let mut frame = self.frame.clone();
                frame[place..place + bytes.len()].copy_from_slice(bytes);
                Altered { frame, path: leaf.path.clone(), number }
            })
        })
    }

    /// The frame with some of its numbers replaced.
    #[must_use]
    pub fn altered_by(&self, entropy: &mut Entropy<'_>) -> Vec<u8> {
        let mut frame = self.frame.clone();
        for _ in 0..entropy.below(8) {
            let Some(leaf) = self.leaves.get(entropy.below(self.leaves.len().clamp(1, 256))) else { break };
            let (_, bytes) = &leaf.replacements[entropy.below(leaf.replacements.len())];
            if let Some(place) = frame.windows(leaf.bytes.len()).position(|found| found == leaf.bytes) {
                frame[place..place + bytes.len()].copy_from_slice(bytes);
            }
        }
        frame
    }
}

/// One of several things that a message can hold at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The names of the fields that lead to it, with dots between.
    pub path: String,
    /// The names of all.
    pub all: &'static [&'static str],
    /// Which was made.
    pub chosen: &'static str,
}

/// Kinds of messages of agents with numbers in them.
pub const OF_AGENTS: usize = 6;

/// The same of aggregators.
pub const OF_AGGREGATORS: usize = 6;

/// A message of an agent, of one of [`OF_AGENTS`] kinds: hello, report, answer to a command, events, states of tasks,
/// names of guests.
///
/// # Errors
/// [`FrameError`] where the version has no form for it; `None` where the types refuse it.
pub fn of_agent(
    kind: usize,
    version: ProtocolVersion,
    entropy: &mut Entropy<'_>,
) -> Option<Result<Framed, FrameError>> {
    let mut made = Made::default();
    let message = agent_message(kind, &mut made, entropy)?;
    Some(encode(version, &message).map(|frame| Framed { frame, leaves: made.leaves }))
}

/// What is chosen on the way to the same message of an agent, whether a version has a form for it or not.
#[must_use]
pub fn choices_of_agent(kind: usize, entropy: &mut Entropy<'_>) -> Option<Vec<Choice>> {
    let mut made = Made::default();
    agent_message(kind, &mut made, entropy).map(|_| made.choices)
}

/// The same of an aggregator.
#[must_use]
pub fn choices_of_aggregator(kind: usize, entropy: &mut Entropy<'_>) -> Option<Vec<Choice>> {
    let mut made = Made::default();
    aggregator_message(kind, &mut made, entropy).map(|_| made.choices)
}

fn agent_message(kind: usize, made: &mut Made, entropy: &mut Entropy<'_>) -> Option<FromAgent> {
    Some(match kind % OF_AGENTS {
        0 => FromAgent::Hello(Box::new(make::<Hello>(made, entropy)?)),
        1 => FromAgent::Report(Box::new(make::<HostReport>(made, entropy)?)),
        2 => FromAgent::Ack(make::<Ack>(made, entropy)?),
        3 => FromAgent::Events(AgentEvents { events: make(made, entropy)? }),
        4 => FromAgent::Tasks(make::<TaskStates>(made, entropy)?),
        _ => FromAgent::Guests(make::<GuestNames>(made, entropy)?),
    })
}

fn aggregator_message(kind: usize, made: &mut Made, entropy: &mut Entropy<'_>) -> Option<FromAggregator> {
    Some(match kind % OF_AGGREGATORS {
        0 => FromAggregator::Command(make::<Command>(made, entropy)?),
        1 => FromAggregator::Welcome(make::<Welcome>(made, entropy)?),
        2 => FromAggregator::EventsThrough(make(made, entropy)?),
        3 => FromAggregator::StandsBy(make::<StandsBy>(made, entropy)?),
        4 => FromAggregator::TaskJob(Box::new(make::<TaskJob>(made, entropy)?)),
        _ => FromAggregator::Tasks(make::<TaskOrders>(made, entropy)?),
    })
}

/// A message of an aggregator, of one of [`OF_AGGREGATORS`] kinds: command, welcome, how far events are logged, that it
/// stands by, what a job's tasks have in common, orders about tasks.
///
/// # Errors
/// As [`of_agent`].
pub fn of_aggregator(
    kind: usize,
    version: ProtocolVersion,
    entropy: &mut Entropy<'_>,
) -> Option<Result<Framed, FrameError>> {
    let mut made = Made::default();
    let message = aggregator_message(kind, &mut made, entropy)?;
    Some(encode(version, &message).map(|frame| Framed { frame, leaves: made.leaves }))
}

fn make<T: DeserializeOwned>(made: &mut Made, entropy: &mut Entropy<'_>) -> Option<T> {
    T::deserialize(Maker { made, entropy }).ok()
}

/// What was made so far.
#[derive(Default)]
struct Made {
    path: Vec<&'static str>,
    leaves: Vec<Leaf>,
    choices: Vec<Choice>,
}

impl Made {
    fn choice(&mut self, all: &'static [&'static str], index: usize) {
        self.choices.push(Choice { path: self.path.join("."), all, chosen: all[index] });
    }

    fn field(&self) -> &'static str {
        self.path.last().copied().unwrap_or_default()
    }

    /// How many numbers there are already.
    fn number(&self) -> u32 {
        u32::try_from(self.leaves.len()).unwrap()
    }

    fn leaf(&mut self, bytes: Vec<u8>, replacements: Vec<(&'static str, Vec<u8>)>) {
        self.leaves.push(Leaf { path: self.path.join("."), bytes, replacements });
    }
}

/// A whole number in four or eight bytes, as bincode writes those that need so many.
fn whole(first: u8, bytes: &[u8]) -> Vec<u8> {
    [&[first], bytes].concat()
}

struct Maker<'a, 'e> {
    made: &'a mut Made,
    entropy: &'a mut Entropy<'e>,
}

impl<'a, 'e> Maker<'a, 'e> {
    fn again(&mut self) -> Maker<'_, 'e> {
        Maker { made: self.made, entropy: self.entropy }
    }

    fn text(&mut self) -> &'static str {
        match self.made.field() {
            "method" => "best",
            "host" | "leader" => "h1",
            _ => ["h1", "a", "text", ""][self.entropy.below(4)],
        }
    }
}

impl<'de> Deserializer<'de> for Maker<'_, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("a type that does not say what it is"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.entropy.below(2) == 0)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u8(u8::try_from(self.entropy.below(256)).unwrap())
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u16(u16::try_from(1_000 + self.entropy.below(256)).unwrap())
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = self.made.number();
        let value = match self.made.field() {
            "cores" | "spare_cpus" => 65_536,
            "weight" | "disk_weight" => 5_000 + number,
            _ => 70_000 + number,
        };
        match u16::try_from(value) {
            Ok(short) => {
                let most = whole(251, &u16::MAX.to_le_bytes());
                self.made.leaf(whole(251, &short.to_le_bytes()), vec![("65535", most)]);
            }
            Err(_) => {
                let most = |value: u32| whole(252, &value.to_le_bytes());
                self.made.leaf(most(value), vec![("2^32-1", most(u32::MAX)), ("2^31", most(1 << 31))]);
            }
        }
        visitor.visit_u32(value)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i32([0, -1, 13, i32::MAX, i32::MIN][self.entropy.below(5)])
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = (1 << 33) + u64::from(self.made.number());
        let long = |value: u64| whole(253, &value.to_le_bytes());
        let replacements = [("2^64-1", u64::MAX), ("2^63", 1 << 63), ("2^62", 1 << 62)];
        self.made.leaf(long(value), replacements.map(|(name, value)| (name, long(value))).to_vec());
        visitor.visit_u64(value)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = f64::from(self.made.number());
        let value = match self.made.field() {
            "risk" => 0.25 + number / 1e6,
            _ => 1_000.5 + number,
        };
        let replacements = [
            ("NaN", f64::NAN),
            ("inf", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
            ("-1", -1.0),
            ("1.7e308", f64::MAX),
            ("1e16", 1e16),
        ];
        let replacements = replacements.map(|(name, value)| (name, value.to_le_bytes().to_vec())).to_vec();
        self.made.leaf(value.to_le_bytes().to_vec(), replacements);
        visitor.visit_f64(value)
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is_there = self.entropy.below(4) != 3;
        self.made.choice(&["absent", "there"], usize::from(is_there));
        if is_there { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.entropy.below(3);
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.entropy.below(3);
        visitor.visit_map(Elements { maker: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Fields { maker: self, fields: fields.iter() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(Variant { maker: self, variants })
    }

    forward_to_deserialize_any! {
        i8 i16 i64 i128 u128 f32 char bytes byte_buf unit_struct tuple_struct identifier ignored_any
    }
}

struct Elements<'a, 'e> {
    maker: Maker<'a, 'e>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(self.maker.again()).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.maker.again())
    }
}

struct Fields<'a, 'e> {
    maker: Maker<'a, 'e>,
    fields: std::slice::Iter<'static, &'static str>,
}

impl<'de> SeqAccess<'de> for Fields<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(field) = self.fields.next() else { return Ok(None) };
        self.maker.made.path.push(field);
        let value = seed.deserialize(self.maker.again())?;
        self.maker.made.path.pop();
        Ok(Some(value))
    }
}

struct Variant<'a, 'e> {
    maker: Maker<'a, 'e>,
    variants: &'static [&'static str],
}

impl<'de, 'a, 'e> EnumAccess<'de> for Variant<'a, 'e> {
    type Error = Error;
    type Variant = Maker<'a, 'e>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), Error> {
        // Readings are mostly there: that is where the numbers are.
        let first = self.variants == ["value", "absent"] && self.maker.entropy.below(8) > 0;
        let index = if first { 0 } else { self.maker.entropy.below(self.variants.len().min(256)) };
        self.maker.made.choice(self.variants, index);
        let name: StrDeserializer<'_, Error> = self.variants[index].into_deserializer();
        Ok((seed.deserialize(name)?, self.maker))
    }
}

impl<'de> VariantAccess<'de> for Maker<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Fields { maker: self, fields: fields.iter() })
    }
}
