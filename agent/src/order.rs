//! What the agent's loop is asked to do. In: commands from the link, changed configs and the end from the daemon. Out: to
//! [`crate::host_loop`], which does it.

use gleaner_types::command::Command;

use crate::config::Config;

/// What others ask of the loop.
#[derive(Debug)]
pub enum Order {
    /// A command of the aggregator.
    Command(Command),
    /// Work by a changed config, as far as a running agent can.
    Reload(Box<Config>),
    /// Restore the host and end.
    Stop,
}
