//! A command that is refused. Made by the parts of the actor, answered to the aggregator.

use gleaner_types::command::Refusal;

/// A refusal with its words.
pub(super) type Refused = (Refusal, String);
