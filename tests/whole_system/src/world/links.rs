//! The connections between agents and aggregator: opened, lost, detected as lost, opened again. In: messages to send,
//! and cuts. Out: messages delivered, or lost. Called by [`super`].

use gleaner_aggregator::shell::{Arrival, Joined};
use gleaner_net::tls::Validity;
use gleaner_types::time::Timestamp;
use gleaner_wire::{FromAggregator, ProtocolVersion};
use tokio::sync::{mpsc, oneshot};

use super::{Happening, IDLE, OUTGOING, World};
use crate::faults::Time;
use crate::network::{Client, Down, Link, LinkId, Server, Stream, Up};

impl World {
    pub(super) fn is_cut(&self, number: usize) -> bool {
        self.hosts[number].cut_until > self.now
    }

    /// Whether a connection outlives the cut its host suffers; one that does not brings nothing any more.
    pub(super) fn link_survives(&mut self, id: LinkId) -> bool {
        let now = self.now;
        let Some(link) = self.links.get_mut(&id) else { return false };
        link.doomed |= self.hosts[link.host].cut_until - now >= IDLE;
        !link.doomed
    }

    pub(super) fn connect(&mut self, number: usize) {
        let Some(agent) = &self.hosts[number].agent else { return };
        if agent.link.is_some() {
            return;
        }
        if let Some(until) = self.frozen(number) {
            self.at(until, Happening::Connect(number));
            return;
        }
        let id = self.next_link;
        self.next_link += 1;
        self.links.insert(id, Link::new(number));
        if let Some(agent) = self.hosts[number].agent.as_mut() {
            agent.link = Some(id);
        }
        self.send_up(id, Up::Hello);
        self.after(IDLE, Happening::IdleTimeout(id));
    }

    pub(super) fn send_up(&mut self, id: LinkId, message: Up) {
        let stream = if matches!(message, Up::Report(_)) { Stream::Reports } else { Stream::Control };
        let Some(link) = self.links.get_mut(&id) else { return };
        self.messages += 1;
        let in_order = matches!(message, Up::Events(..));
        for at in link.arrivals(stream, in_order, self.now, &self.weather, &mut self.random) {
            self.at(at, Happening::Up(id, message.clone()));
        }
    }

    pub(super) fn send_down(&mut self, id: LinkId, message: Down) {
        let Some(link) = self.links.get_mut(&id) else { return };
        self.messages += 1;
        let in_order =
            matches!(&message, Down::Message(message) if matches!(**message, FromAggregator::EventsThrough(_)));
        for at in link.arrivals(Stream::Down, in_order, self.now, &self.weather, &mut self.random) {
            self.at(at, Happening::Down(id, message.clone()));
        }
    }

    /// When the other end notices.
    pub(super) fn noticed(&mut self) -> Time {
        match self.random.below(3) {
            0 => IDLE,
            1 => self.random.below(3_000) as Time,
            _ => 10,
        }
    }

    /// The agent's end of a connection is over.
    pub(super) fn end_client(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id).filter(|link| link.client != Client::Ended) else { return };
        link.client = Client::Ended;
        let number = link.host;
        if let Some(agent) = self.hosts[number].agent.as_mut().filter(|agent| agent.link == Some(id)) {
            agent.link = None;
            agent.outbox.disconnected();
            let pause = 200 + self.random.below(1_000) as Time;
            self.after(pause, Happening::Connect(number));
        }
        let delay = self.noticed();
        self.after(delay, Happening::Up(id, Up::Closed));
        self.forget_link(id);
    }

    /// The aggregator's end of a connection is over.
    pub(super) fn end_server(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id).filter(|link| !matches!(link.server, Server::Ended)) else { return };
        let open = matches!(std::mem::replace(&mut link.server, Server::Ended), Server::Open(_));
        let host = self.hosts[link.host].id.clone();
        let delay = self.noticed();
        self.after(delay, Happening::Down(id, Down::Closed));
        self.forget_link(id);
        if open {
            self.tell_shell(Arrival::Lost {
                host,
                connection: id,
                reason: "the connection ended".to_owned(),
                left: false,
            });
        }
    }

    pub(super) fn forget_link(&mut self, id: LinkId) {
        let over = |link: &Link| link.client == Client::Ended && matches!(link.server, Server::Ended);
        if self.links.get(&id).is_some_and(over) {
            self.links.remove(&id);
        }
    }

    pub(super) fn up(&mut self, id: LinkId, message: Up) {
        let Some(link) = self.links.get(&id) else { return };
        let number = link.host;
        if self.aggregator.frozen_until > self.now {
            self.at(self.aggregator.frozen_until, Happening::Up(id, message));
            return;
        }
        let doomed = link.doomed;
        if matches!(message, Up::Closed) || self.aggregator.core.is_none() {
            self.end_server(id);
            return;
        }
        if doomed {
            self.after(IDLE, Happening::Up(id, Up::Closed));
            return;
        }
        if self.is_cut(number) {
            // It is sent again, unless the end gives up before.
            match self.link_survives(id) {
                true => self.at(self.hosts[number].cut_until, Happening::Up(id, message)),
                false => self.after(IDLE, Happening::Up(id, Up::Closed)),
            }
            return;
        }
        let host = self.hosts[number].id.clone();
        let Some(link) = self.links.get(&id) else { return };
        if let Up::Events(number, records) = &message {
            let (number, length) = (*number, records.len());
            if number > link.events.1 {
                // The one before it is still under way.
                self.after(1, Happening::Up(id, message));
                return;
            }
            let host = link.host;
            self.say(|| format!("{length} events of h{host} arrive"));
        }
        match (&link.server, message) {
            (Server::Waiting, Up::Hello) => self.hello(id, number),
            (Server::Open(_), Up::Ack(ack)) => self.tell_shell(Arrival::Acked { host, ack }),
            (Server::Open(_), Up::Events(number, records)) => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.events.1 = link.events.1.max(number + 1);
                }
                self.tell_shell(Arrival::Events { host, connection: id, records });
            }
            (Server::Open(_), Up::Report(report)) => {
                let sequence = report.sequence;
                self.tell_shell(Arrival::Report(report));
                let Some(core) = &self.aggregator.core else { return };
                let stored = core.shell.controller().hosts().into_iter().find(|view| view.host == host);
                let stored = stored.and_then(|view| view.report);
                self.checks.stored(&self.hosts[number], sequence, stored.as_ref());
            }
            // Before the hello or after the end nobody listens.
            _ => {}
        }
    }

    pub(super) fn hello(&mut self, id: LinkId, number: usize) {
        let Some(agent) = self.hosts[number].agent.as_ref().filter(|agent| agent.link == Some(id)) else { return };
        let (sender, outgoing) = mpsc::channel(OUTGOING);
        let (events_through, mut answer) = oneshot::channel();
        // An end in another way than by the end of the sender is not simulated: nobody is shut out here.
        let (closer, _) = oneshot::channel();
        let joined = Joined {
            host: self.hosts[number].id.clone(),
            incarnation: agent.incarnation,
            facts: Box::new(agent.facts.clone()),
            tasks_of_root: None,
            connection: id,
            version: ProtocolVersion::CURRENT,
            certificate: Validity { from: Timestamp(0), until: Timestamp(u64::MAX) },
            sender,
            closer,
            events_through,
        };
        if let Some(link) = self.links.get_mut(&id) {
            link.server = Server::Open(outgoing);
        }
        self.tell_shell_quietly(Arrival::Joined(joined));
        if let Ok(Ok(through)) = answer.try_recv() {
            self.send_down(id, Down::Welcome(through));
        }
        self.pump();
    }

    pub(super) fn down(&mut self, id: LinkId, message: Down) {
        let Some(link) = self.links.get(&id) else { return };
        let (number, client, doomed) = (link.host, link.client, link.doomed);
        if let Some(until) = self.frozen(number) {
            self.at(until, Happening::Down(id, message));
            return;
        }
        if matches!(message, Down::Closed) {
            self.end_client(id);
            return;
        }
        if doomed {
            self.after(IDLE, Happening::Down(id, Down::Closed));
            return;
        }
        if self.is_cut(number) {
            match self.link_survives(id) {
                true => self.at(self.hosts[number].cut_until, Happening::Down(id, message)),
                false => self.after(IDLE, Happening::Down(id, Down::Closed)),
            }
            return;
        }
        let now = self.now;
        let Some(agent) = self.hosts[number].awake(now).filter(|agent| agent.link == Some(id)) else { return };
        match (client, message) {
            (Client::Waiting, Down::Welcome(through)) => {
                agent.outbox.connected(through);
                self.say(|| format!("h{number} is welcome, its events through {through} are in the log"));
                self.checks.acknowledged(&self.hosts[number], through);
                if let Some(link) = self.links.get_mut(&id) {
                    link.client = Client::Open;
                }
            }
            (Client::Open, Down::Message(message)) => match *message {
                FromAggregator::Command(command) => {
                    let time = self.hosts[number].agent_time(now).unwrap_or_default();
                    self.checks.commanded(number, &self.hosts[number], &command, time);
                    self.say(|| format!("h{number} is told {command:?}"));
                    if let Some(agent) = self.hosts[number].awake(now) {
                        agent.host_loop.command(&command);
                    }
                    self.checks.floors(&self.hosts[number]);
                }
                FromAggregator::EventsThrough(through) => {
                    agent.outbox.acknowledged(through);
                    self.say(|| format!("h{number} is told that its events through {through} are in the log"));
                    self.checks.acknowledged(&self.hosts[number], through);
                }
                FromAggregator::Refused(_) | FromAggregator::Welcome(_) | FromAggregator::StandsBy(_) => {
                    self.end_client(id)
                }
                // No certificates are simulated.
                FromAggregator::TaskJob(_)
                | FromAggregator::Tasks(_)
                | FromAggregator::Certificate(_)
                | FromAggregator::CertificateRefused(_)
                | FromAggregator::Unknown { .. } => {}
            },
            // Nothing counts before the welcome, which comes once.
            _ => {}
        }
        self.send_reports(number);
    }
}
