//! The simulated network: messages between agents and aggregator, and the state of their connections. In: a message's
//! stream, the weather and random numbers. Out: when the message arrives: never, once or twice. Called by
//! [`crate::world`].
//!
//! Messages in flight are lost when their connection ends. The transport keeps the order of each stream and loses
//! nothing on a live connection, and events rely on that. Reports, commands and their answers must not rely on it: the
//! simulation loses and reorders them.

use gleaner_simulator::random::Random;
use gleaner_types::command::Ack;
use gleaner_types::event::EventRecord;
use gleaner_types::report::HostReport;
use gleaner_wire::FromAggregator;
use tokio::sync::mpsc;

use crate::faults::{Time, Weather};

/// A connection's number; unique in a world.
pub type LinkId = u64;

/// Something under way to the aggregator.
#[derive(Debug, Clone)]
pub enum Up {
    /// The first word of a connection.
    Hello,
    /// An answer to a command.
    Ack(Ack),
    /// Events, and how many such messages were sent on the connection before: they come in order.
    Events(u64, Vec<EventRecord>),
    /// A report.
    Report(Box<HostReport>),
    /// The agent closed the connection, or is gone.
    Closed,
}

/// Something under way to an agent.
#[derive(Debug, Clone)]
pub enum Down {
    /// The answer to a hello: events through this number are in the log.
    Welcome(u64),
    /// Anything else.
    Message(Box<FromAggregator>),
    /// The aggregator closed the connection, or is gone.
    Closed,
}

/// The aggregator's end of a connection.
#[derive(Debug)]
pub enum Server {
    /// No hello came yet.
    Waiting,
    /// This is sent on it.
    Open(mpsc::Receiver<FromAggregator>),
    /// It is over.
    Ended,
}

/// The agent's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// No welcome came yet.
    Waiting,
    /// In use.
    Open,
    /// It is over.
    Ended,
}

/// One connection. Its ends notice by themselves that it is over.
#[derive(Debug)]
pub struct Link {
    /// The host's number.
    pub host: usize,
    /// The agent's end.
    pub client: Client,
    /// The aggregator's end.
    pub server: Server,
    /// It will not outlive a cut.
    pub doomed: bool,
    /// Messages with events that were sent, and that arrived.
    pub events: (u64, u64),
    /// When the last message of each stream arrives: down, up on the control stream, reports.
    last: [Time; 3],
}

/// A stream of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Stream {
    /// To the agent.
    Down,
    /// To the aggregator: acknowledgements and events.
    Control,
    /// To the aggregator: reports.
    Reports,
}

impl Link {
    /// A connection that an agent has begun.
    #[must_use]
    pub const fn new(host: usize) -> Self {
        Self { host, client: Client::Waiting, server: Server::Waiting, doomed: false, events: (0, 0), last: [0; 3] }
    }

    /// When a message that is sent now arrives: never, once or twice.
    pub fn arrivals(
        &mut self,
        stream: Stream,
        in_order: bool,
        now: Time,
        weather: &Weather,
        random: &mut Random,
    ) -> Vec<Time> {
        if random.uniform() < weather.loss && !in_order {
            return Vec::new();
        }
        let delay = 1 + random.below(usize::try_from(weather.delay).unwrap_or(1)) as Time;
        let last = &mut self.last[stream as usize];
        let at = match random.uniform() < weather.overtaking && !in_order {
            true => now + 1 + random.below(2_000) as Time,
            false => {
                *last = (*last).max(now + delay);
                *last
            }
        };
        if random.uniform() < weather.twice { vec![at, at + random.below(3_000) as Time] } else { vec![at] }
    }
}
