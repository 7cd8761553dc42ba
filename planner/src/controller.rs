//! The controller: the one state machine that decides. Production, replay and simulation all drive
//! [`Controller::handle`]; equal inputs at equal times give equal outputs, byte for byte.

mod interface;

pub use interface::{HostView, Input, Output, Settings};
