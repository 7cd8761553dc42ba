//! A refused command. In: the reason, from the parts of the actor. Out: the answer to the aggregator.

use gleaner_types::command::Refusal;

/// A refusal with its words.
pub(super) type Refused = (Refusal, String);
