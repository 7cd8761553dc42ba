//! Frames of a hostile agent, for the fuzz target and the tests. In: frames, decoded and checked as the server does and
//! given to a controller with a job, or to the link of tasks. Out: how many were taken and refused. It panics where the
//! rest suffers: when the controller's output is refused by its checker, a counter goes back, an attempt that no job knows
//! is not ended, or the output for operators and monitoring cannot be read. Called by `fuzzing` and by its own test.

use std::path::PathBuf;
use std::time::Duration;

use gleaner_api::Response;
use gleaner_planner::advice::{History, Question};
use gleaner_planner::controller::{Controller, Input, Settings};
use gleaner_types::engine::EngineSpec;
use gleaner_types::event::{EventRecord, EventSource};
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Goal, JobSpec, Prices, SlotSpec, Workers};
use gleaner_types::task::{TaskAttempt, TaskDesired};
use gleaner_types::time::Timestamp;
use gleaner_types::units::Bytes;
use gleaner_wire::{AgentEvents, FromAgent, FromAggregator, ProtocolVersion, TaskStates, Unknowns, decode, encode};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::{Peer, Sent};
use crate::arrival::Arrival;
use crate::engine::TaskLink;
use crate::metrics::{self, Counters, Outgoing, Records};
use crate::standby::LeaderLease;

/// The host whose agent sends the frames; messages about another one are refused.
const HOST: &str = "h1";
/// When all of it begins.
const BEGIN: Timestamp = Timestamp(1_795_132_799_123);

/// What became of some frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Taken by the controller.
    pub(crate) taken: u32,
    /// Refused by the decoder or by the server's checks.
    pub(crate) refused: u32,
    /// States of tasks among those taken.
    pub(crate) states: u32,
}

struct Scene {
    peer: Peer,
    controller: Controller,
    counters: Counters,
    history: History,
    now: Timestamp,
    harvested: f64,
    runtime: Runtime,
    /// What the agent is sent about tasks; both ends, as the link keeps none.
    outgoing: (mpsc::Sender<FromAggregator>, mpsc::Receiver<FromAggregator>),
    /// Attempts that it told of, none of which was ordered, and that were not ended yet.
    foreign: Vec<TaskAttempt>,
    tally: Tally,
}

/// Takes all of the frames, each on the stream it belongs to, as from one agent. Panics where the rest suffers.
pub(crate) fn take_all(version: ProtocolVersion, frames: &[Vec<u8>]) -> Tally {
    let Ok(host) = HostId::new(HOST) else { return Tally::default() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return Tally::default() };
    let (arrivals, _) = mpsc::channel(1);
    let peer = Peer {
        tasks: TaskLink::new(host.clone(), PathBuf::from("/nonexistent")),
        host,
        incarnation: 0,
        connection: 1,
        version,
        arrivals,
        leader_lease: LeaderLease::alone(),
        sent: Sent::default(),
    };
    let mut scene = Scene {
        peer,
        controller: Controller::new(Settings::default(), BEGIN),
        counters: Counters::default(),
        history: History::new(),
        now: BEGIN,
        harvested: 0.0,
        runtime,
        outgoing: mpsc::channel(64),
        foreign: Vec::new(),
        tally: Tally::default(),
    };
    scene.peer.tasks.connected(1, version, None, &scene.outgoing.0);
    scene.submit();
    for frame in frames {
        scene.take(frame);
        scene.tick();
    }
    scene.check();
    scene.tally
}

impl Scene {
    fn decide(&mut self, input: Input) {
        // Outputs that its independent checker refuses become an event, which is a bug in any case.
        let outputs = self.controller.handle(input, self.now);
        let rejected = |output: &gleaner_planner::controller::Output| format!("{output:?}").contains("PlanRejected");
        assert!(!outputs.iter().any(rejected), "{outputs:?}");
    }

    /// A job on the host, which makes it offer its slots.
    fn submit(&mut self) {
        let Ok(id) = JobId::new("job") else { return };
        let host = self.peer.host.clone();
        self.decide(Input::JobSubmitted(Box::new(JobSpec {
            id,
            engine: EngineSpec::without_options("local"),
            workers: Workers::Slots(SlotSpec { host, tasks: 1_000, dedicated_slots: 1, max_slots: None }),
            goal: Goal::Deadline { within_s: 600.0 },
            prices: Prices::default(),
            memory_per_slot: Bytes::from_mib(64),
            set_up_s: 0.0,
            power: None,
            user: None,
        })));
    }

    fn take(&mut self, frame: &[u8]) {
        let arrival = match decode::<FromAgent>(self.peer.version, frame, &mut Unknowns::default()) {
            Err(_) => Err(()),
            Ok(None) => return,
            Ok(Some((FromAgent::Hello(hello), _))) if hello.host == self.peer.host => {
                self.peer.incarnation = hello.incarnation;
                let (host, incarnation) = (hello.host, hello.incarnation);
                self.decide(Input::HostJoined { host, incarnation, facts: Box::new(hello.facts) });
                Ok(None)
            }
            Ok(Some((FromAgent::Events(AgentEvents { events }), _))) => {
                // It says of itself when it started.
                if let Some(EventSource::Agent { incarnation, .. }) = events.first().map(|record| &record.source) {
                    self.peer.incarnation = *incarnation;
                }
                self.peer.control_stream(FromAgent::Events(AgentEvents { events })).map_err(drop)
            }
            // As the server does, past the core loop.
            Ok(Some((FromAgent::Tasks(TaskStates { states }), _))) => {
                self.tally.states += u32::try_from(states.len()).unwrap_or(u32::MAX);
                self.foreign.extend(states.iter().map(|state| state.attempt.clone()));
                self.runtime.block_on(self.peer.tasks.states(states));
                Ok(None)
            }
            Ok(Some((message @ FromAgent::Report(_), _))) => self.peer.report_stream(message).map_err(drop),
            Ok(Some((message, _))) => self.peer.control_stream(message).map_err(drop),
        };
        let Ok(arrival) = arrival else {
            self.tally.refused += 1;
            return;
        };
        self.tally.taken += 1;
        match arrival {
            Some(Arrival::Report(mut report)) => {
                let cores = self.controller.host_facts(&report.host).map_or(0, |(facts, _)| facts.cores);
                self.counters.reported(&mut report, cores, self.now);
                self.history.observe(&report);
                self.decide(Input::Report(report));
            }
            Some(Arrival::Acked { host, ack }) => self.decide(Input::Acked { host, ack }),
            Some(Arrival::Events { records, .. }) => {
                for record in records {
                    self.counters.noticed(&record.event);
                    let line = record.to_json_line().ok();
                    let back = line.and_then(|line| EventRecord::from_json_line(&line).ok());
                    assert!(back.is_some(), "{record:?} cannot be read back from the log");
                }
            }
            _ => {}
        }
    }

    /// Time for what waits on it: half of an evaluation interval.
    fn tick(&mut self) {
        self.now = self.now.after(Duration::from_secs(30));
        self.decide(Input::Tick);
        self.peer.tasks.renew(self.now);
        while let Ok(message) = self.outgoing.1.try_recv() {
            assert!(encode(self.peer.version, &message).is_ok(), "{message:?} cannot be sent");
            assert!(matches!(message, FromAggregator::Tasks(_)), "{message:?} is nothing about tasks");
            let FromAggregator::Tasks(orders) = message else { continue };
            for order in orders.orders {
                assert_eq!(order.desired, TaskDesired::Forget, "nothing was to run");
                self.foreign.retain(|attempt| *attempt != order.attempt);
            }
        }
        assert_eq!(self.foreign, [], "attempts that no job knows are ended");
        assert!(self.counters.harvested_core_s() >= self.harvested, "the counter went back");
        self.harvested = self.counters.harvested_core_s();
        let most = 65_536.0 * (self.now.seconds_since(BEGIN) + 3_600.0);
        assert!(self.harvested <= most, "{} core seconds by one host", self.harvested);
    }

    /// What operators and monitoring ask for.
    fn check(&self) {
        let answers =
            [Response::Hosts(self.controller.hosts()), Response::Jobs(self.controller.jobs().cloned().collect())];
        for answer in answers {
            let line = serde_json::to_string(&answer).unwrap_or_default();
            let back = serde_json::from_str::<Response>(&line);
            assert!(back.as_ref().is_ok_and(|back| *back == answer), "{line} is read as {back:?}");
        }
        let question = Question { for_s: 600.0, risk: 0.05 };
        let histories = [(self.peer.host.clone(), self.history.clone())].into();
        let advice = self.controller.advise(question, &histories);
        assert!(!serde_json::to_string(&advice).unwrap_or_default().contains("null,null"), "{advice:?}");
        let records = Records::default();
        let page = metrics::page(&self.controller, &self.counters, &records, &Outgoing::default(), BEGIN, self.now);
        let text = page.text().unwrap_or_default();
        assert!(!text.is_empty() && !text.contains("NaN") && !text.contains("inf\n"), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use gleaner_test_support::generate::{Entropy, Framed, OF_AGENTS, of_agent};

    use super::*;

    /// Messages that follow the protocol, in any order and with any numbers: hundreds of conversations of both versions.
    #[test]
    fn whatever_an_agent_says_the_rest_is_served() {
        let mut all = Tally::default();
        for (seed, spoken) in (0..400).zip((0..2).cycle()) {
            let version = ProtocolVersion::SUPPORTED[spoken];
            let mut entropy = Entropy::of_seed(seed);
            let made = |kind: usize, entropy: &mut Entropy<'_>| of_agent(kind, version, entropy).and_then(Result::ok);
            let kinds = [0, 1, 1, 2, 3, 1, 0, 1, 4, 4, 5].into_iter();
            let messages: Vec<Framed> = kinds.filter_map(|kind| made(kind % OF_AGENTS, &mut entropy)).collect();
            // First as they are, so that the controller has something; then altered.
            let plain = messages.iter().map(|message| message.frame.clone());
            let altered: Vec<Vec<u8>> = messages.iter().map(|message| message.altered_by(&mut entropy)).collect();
            let frames: Vec<Vec<u8>> = plain.chain(altered).collect();
            let tally = take_all(version, &frames);
            (all.taken, all.refused) = (all.taken + tally.taken, all.refused + tally.refused);
            all.states += tally.states;
        }
        eprintln!("{all:?}");
        assert!(all.taken > 500 && all.refused > 500 && all.states > 100, "{all:?}");
    }
}
