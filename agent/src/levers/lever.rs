//! What every lever can do. In: a place to look for it, limits, values. Out: the lever, what it should be, what it is.
//! Called through [`super::catalogue::AnyLever`] by the actor, and directly by the volunteer's parts.

use std::fmt;

use gleaner_types::command::Weight;
use gleaner_types::report::Capability;
use gleaner_types::units::Bytes;

use super::error::LeverError;
use super::in_force::InForce;
use super::offer::{Finding, Host};
use super::place::{Found, Place};
use super::plan::{Planned, Wanted, plan};
use super::role::{Kind, Role};
use super::scale::Scale;
use super::value::LeverValue;

/// One thing on a host that can be read, set, read back and put back. Its text names it for people. It is written to the
/// ledger as serde has it, before it is first set.
pub trait Lever: fmt::Display + Sized {
    /// The kinds of lever of this type, for docs/levers.md.
    const KINDS: &'static [Kind];

    /// Which capabilities a host offers by levers of this type, or why it does not; nothing for what only a single workload
    /// can tell. The aggregator commands nothing that the host does not offer. Where several levers offer the same, the first
    /// in the catalogue that is there counts. Changes nothing on the host.
    fn offers(_: &Host<'_>) -> Vec<(Capability, Finding)> {
        Vec::new()
    }

    /// The levers of this type that a workload has.
    fn find(place: &Place<'_>) -> Vec<Found<Self>>;

    /// What of a workload it limits; `None` for a lever of the volunteer alone.
    fn role(&self) -> Option<Role>;

    /// The host offers it.
    fn exists(&self) -> bool;

    /// What it is set to.
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be read or understood.
    fn read(&self) -> Result<LeverValue, LeverError>;

    /// Sets it. A value that is none of this lever's is refused as malformed.
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be written.
    fn write(&self, value: LeverValue) -> Result<(), LeverError>;

    /// What it should be under limits, by what was found before the first change. Pure.
    fn plan(&self, wanted: &Wanted<'_>, found: &LeverValue) -> Planned {
        match self.role() {
            Some(role) => plan(role, |weight| self.weight(weight), wanted, found),
            None => Planned::as_found(found),
        }
    }

    /// Adds what it reads to the limits in force.
    fn add_to(&self, in_force: &mut InForce, value: &LeverValue) {
        if let Some(role) = self.role() {
            in_force.add(role, value, self.as_weight(value));
        }
    }

    /// It reads as it was set from the moment on that it is set.
    fn reads_as_set(&self) -> bool {
        true
    }

    /// Setting it takes several writes, and a crash can come between two of them.
    fn is_written_in_parts(&self) -> bool {
        false
    }

    /// The nearest value it can hold: it reads back what it is then set to.
    fn nearest(&self, value: LeverValue) -> LeverValue {
        value
    }

    /// How its weights count, for a lever that has weights.
    fn scale(&self) -> Scale {
        Scale { least: 1, most: 10_000, normal: 100 }
    }

    /// The lever's value for a weight on the scale of [`Weight`].
    fn weight(&self, weight: Weight) -> LeverValue {
        LeverValue::Weight(self.scale().to_lever(weight))
    }

    /// A value of this lever on the scale of [`Weight`]; `None` for values that are not weights.
    fn as_weight(&self, value: &LeverValue) -> Option<Weight> {
        match value {
            LeverValue::Weight(number) | LeverValue::Share(Some(number)) => self.scale().of_lever(*number),
            _ => None,
        }
    }

    /// All the memory a guest has, where the lever sets that and not what is used of it.
    fn whole_memory(&self, current: &LeverValue) -> Option<Bytes> {
        match current {
            LeverValue::Memory(Some(bytes)) => Some(Bytes(*bytes)),
            _ => None,
        }
    }

    /// Sets it and reads it back.
    ///
    /// # Errors
    /// As [`Lever::read`] and [`Lever::write`], and [`LeverError::NotKept`] when it reads differently.
    fn set(&self, value: LeverValue) -> Result<(), LeverError> {
        self.write(value.clone())?;
        if !self.reads_as_set() {
            return Ok(());
        }
        let found = self.read()?;
        if found == value {
            return Ok(());
        }
        Err(LeverError::NotKept { value: value.to_string(), what: format!("`{self}`"), found: found.to_string() })
    }

    /// Makes it what it was, unless it is that already.
    ///
    /// # Errors
    /// As [`Lever::set`].
    fn undo(&self, found: &LeverValue) -> Result<(), LeverError> {
        if self.read()? == *found { Ok(()) } else { self.set(found.clone()) }
    }
}
