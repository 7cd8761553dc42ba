//! A separate network, because not every kernel has `sch_netem`. In: a number of agents, and what their links do. Out:
//! a hub with a bridge, a namespace per agent, and between each agent and the aggregator a relay that loses, delays,
//! repeats and reorders datagrams. Called by `fleet` and `storm`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::random::Random;
use gleaner_test_support::bench::text;

/// The aggregator's port on the hub; relays have those from the one after it on.
pub(crate) const PORT: u16 = 7_441;
const HUB: &str = "10.231.0.1";

/// Runs `ip`, and answers what it says if it fails.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", text(&output.stderr).trim())) }
}

/// A hub and its agents' namespaces; gone when dropped.
pub(crate) struct Network {
    prefix: String,
    agents: usize,
}

impl Network {
    /// # Errors
    /// What cannot be had here.
    pub(crate) fn new(agents: usize) -> Result<Self, String> {
        Self::make(agents).map_err(|why| format!("no network namespace can be made here: {why}"))
    }

    fn make(agents: usize) -> Result<Self, String> {
        let network = Self { prefix: format!("gleaner-{}", std::process::id()), agents };
        let hub = network.hub();
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add br0 type bridge"))?;
        ip(&format!("-n {hub} addr add {HUB}/24 dev br0"))?;
        ip(&format!("-n {hub} link set br0 up"))?;
        ip(&format!("-n {hub} link set lo up"))?;
        for agent in 0..agents {
            let own = network.namespace(agent);
            ip(&format!("netns add {own}"))?;
            ip(&format!("-n {hub} link add h{agent} type veth peer name v0 netns {own}"))?;
            ip(&format!("-n {hub} link set h{agent} master br0 up"))?;
            ip(&format!("-n {own} addr add 10.231.0.{}/24 dev v0", 10 + agent))?;
            ip(&format!("-n {own} link set lo up"))?;
            ip(&format!("-n {own} link set v0 up"))?;
        }
        Ok(network)
    }

    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    pub(crate) fn namespace(&self, agent: usize) -> String {
        format!("{}-{agent}", self.prefix)
    }

    /// Cuts an agent's link, or mends it.
    pub(crate) fn set_link(&self, agent: usize, up: bool) {
        ip(&format!("-n {} link set v0 {}", self.namespace(agent), if up { "up" } else { "down" })).unwrap();
    }

    /// Where an agent finds the aggregator: its own relay.
    pub(crate) fn address(agent: usize) -> SocketAddr {
        let port = PORT + 1 + u16::try_from(agent).unwrap();
        SocketAddr::new(HUB.parse().unwrap(), port)
    }

    /// Where the aggregator listens.
    pub(crate) fn listen() -> SocketAddr {
        SocketAddr::new(HUB.parse().unwrap(), PORT)
    }

    /// A command that runs in a namespace. Not by `ip netns exec`, which hides the control groups.
    pub(crate) fn inside(namespace: &str, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(command.get_program());
        inside.args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        inside
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for agent in 0..self.agents {
            _ = ip(&format!("netns del {}", self.namespace(agent)));
        }
        _ = ip(&format!("netns del {}", self.hub()));
    }
}

/// What a relay does to datagrams, in percent of them and in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    /// Held back by up to three times the delay, so that later ones overtake.
    pub(crate) reordered: u64,
    pub(crate) delay_ms: u64,
}

/// Relays between all agents and the aggregator; ended when dropped.
pub(crate) struct Relays {
    weather: Vec<Arc<Mutex<Weather>>>,
    stop: Arc<AtomicBool>,
    pub(crate) passed: Arc<AtomicU64>,
    pub(crate) disturbed: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Relays {
    pub(crate) fn start(network: &Network, seed: u64) -> Self {
        let mut relays = Self {
            weather: Vec::new(),
            stop: Arc::default(),
            passed: Arc::default(),
            disturbed: Arc::default(),
            threads: Vec::new(),
        };
        let hub = std::fs::File::open(format!("/run/netns/{}", network.hub())).unwrap();
        for agent in 0..network.agents {
            let weather = Arc::<Mutex<Weather>>::default();
            let hub = hub.try_clone().unwrap();
            let relay = Relay {
                weather: Arc::clone(&weather),
                stop: Arc::clone(&relays.stop),
                passed: Arc::clone(&relays.passed),
                disturbed: Arc::clone(&relays.disturbed),
                random: Random::new(seed, 10_000 + u64::try_from(agent).unwrap()),
            };
            relays.threads.push(std::thread::spawn(move || {
                // This thread alone moves; its sockets stay where they were made.
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(hub.as_fd(), kind).unwrap();
                let towards_agent = UdpSocket::bind(Network::address(agent)).unwrap();
                let towards_aggregator = UdpSocket::bind((HUB, 0)).unwrap();
                relay.run(&towards_agent, &towards_aggregator);
            }));
            relays.weather.push(weather);
        }
        relays
    }

    pub(crate) fn set(&self, agent: usize, weather: Weather) {
        *self.weather[agent].lock().unwrap() = weather;
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

struct Relay {
    weather: Arc<Mutex<Weather>>,
    stop: Arc<AtomicBool>,
    passed: Arc<AtomicU64>,
    disturbed: Arc<AtomicU64>,
    random: Random,
}

/// A datagram on its way: when it is due, its number among all, whether it goes to the aggregator, and its bytes.
type Due = Reverse<(Instant, u64, bool, Vec<u8>)>;

impl Relay {
    fn run(mut self, towards_agent: &UdpSocket, towards_aggregator: &UdpSocket) {
        let mut due: BinaryHeap<Due> = BinaryHeap::new();
        let mut agent: Option<SocketAddr> = None;
        let (mut number, mut buffer) = (0, vec![0; 65_536]);
        towards_agent.set_nonblocking(true).unwrap();
        towards_aggregator.set_nonblocking(true).unwrap();
        while !self.stop.load(Ordering::Relaxed) {
            let next = due.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
            let wait = next.unwrap_or(Duration::from_millis(200)).min(Duration::from_millis(200));
            let mut sockets = [towards_agent, towards_aggregator].map(|socket| PollFd::new(socket, PollFlags::IN));
            _ = poll(&mut sockets, Some(&Timespec::try_from(wait).unwrap()));
            for (socket, outward) in [(towards_agent, true), (towards_aggregator, false)] {
                // An error is a message from the other end that nobody listens there.
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    if outward {
                        agent = Some(from);
                    }
                    for at in self.fates() {
                        number += 1;
                        due.push(Reverse((at, number, outward, buffer[..length].to_vec())));
                    }
                }
            }
            while due.peek().is_some_and(|Reverse((at, ..))| *at <= Instant::now()) {
                let Some(Reverse((_, _, outward, bytes))) = due.pop() else { break };
                self.passed.fetch_add(1, Ordering::Relaxed);
                _ = match (outward, agent) {
                    (true, _) => towards_aggregator.send_to(&bytes, Network::listen()),
                    (false, Some(agent)) => towards_agent.send_to(&bytes, agent),
                    (false, None) => Ok(0),
                };
            }
        }
    }

    /// When a datagram arrives: never, once or twice.
    fn fates(&mut self) -> Vec<Instant> {
        let weather = *self.weather.lock().unwrap();
        let delay = Duration::from_millis(weather.delay_ms);
        let mut at = Instant::now() + self.random.pause(delay);
        let lost = self.random.percent(weather.lost);
        let repeated = self.random.percent(weather.repeated);
        let reordered = self.random.percent(weather.reordered);
        if reordered {
            at += self.random.pause(3 * delay.max(Duration::from_millis(5)));
        }
        if lost || repeated || reordered {
            self.disturbed.fetch_add(1, Ordering::Relaxed);
        }
        match (lost, repeated) {
            (true, _) => Vec::new(),
            (_, true) => vec![at, at + self.random.pause(Duration::from_millis(50))],
            _ => vec![at],
        }
    }
}
