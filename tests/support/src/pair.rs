//! An aggregator with agents on this machine, as separate processes. In: names of hosts, and parts of their configs.
//! Out: the processes, and the answers of `gleaner` commands to them. Called by the tests in `tests/` that take both
//! daemons.

use std::net::UdpSocket;

use crate::bench::{Bench, Running, text, until};

/// An aggregator with its agent, both as separate processes with their own configs.
///
/// They end before their folder goes, in which an agent finds what it has to restore.
#[derive(Debug)]
pub struct Pair {
    /// The agent, once started.
    pub agent: Option<Running>,
    /// The aggregator, once started.
    pub aggregator: Option<Running>,
    /// Folder and binary.
    pub bench: Bench,
    /// The aggregator's port for agents.
    pub port: u16,
}

/// The host of the agent.
pub const HOST: &str = "host-1";

impl Pair {
    /// For these hosts; decisions every two seconds.
    #[must_use]
    pub fn new(hosts: &[&str]) -> Self {
        Self::with_controller(hosts, "evaluation_interval_s = 2\nprofile_period_s = 2\n")
    }

    /// For these hosts, with this section `controller`.
    #[must_use]
    pub fn with_controller(hosts: &[&str], controller: &str) -> Self {
        let bench = Bench::new();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let pki = bench.path("pki");
        let pki = pki.to_str().unwrap();
        assert!(bench.run(&["pki", "init", pki]).status.success());
        for host in hosts {
            assert!(bench.run(&["pki", "issue-agent", host, "--authority", pki]).status.success());
        }
        let pair = Self { bench, port, aggregator: None, agent: None };
        let dir = pair.bench.folder.path().display();
        pair.bench.write(
            "aggregator.toml",
            &format!(
                "listen = '127.0.0.1:{port}'\nsocket = '{dir}/a.sock'\nstate_dir = '{dir}/state'\nlocal_host = '{HOST}'\n\
                 [tls]\nca = '{dir}/pki/ca.crt'\ncertificate = '{dir}/pki/aggregator.crt'\nkey = '{dir}/pki/aggregator.key'\n\
                 [controller]\n{controller}"
            ),
        );
        pair.agent_config("agent.toml", HOST, HOST, "");
        pair
    }

    /// A config of an agent that calls itself `name` and shows the certificate of `certificate`. More of the section
    /// `volunteer`, and sections after it, may follow.
    pub fn agent_config(&self, file: &str, name: &str, certificate: &str, more: &str) {
        let (dir, port) = (self.bench.folder.path().display(), self.port);
        let text = format!(
            "state_dir = '{dir}/{file}-state'\n[host]\nname = '{name}'\n[aggregator]\naddress = '127.0.0.1:{port}'\n\
             ca = '{dir}/pki/ca.crt'\ncertificate = '{dir}/pki/{certificate}.crt'\nkey = '{dir}/pki/{certificate}.key'\n\
             [tasks]\nenabled = true\nroot = true\n\
             [volunteer]\ncgroup = 'gleaner-e2e-{port}/volunteer-{name}'\nkill_after_ms = 200\n{more}"
        );
        self.bench.write(file, &text);
    }

    /// Starts the aggregator and waits until it answers.
    pub fn start_aggregator(&mut self) {
        let config = self.bench.path("aggregator.toml");
        let command = self.bench.gleaner(&["daemon", "aggregator", "--config", config.to_str().unwrap()]);
        self.aggregator = Some(Running::start(command));
        until("the aggregator answers", || self.ask(&["job", "list"]).status.success());
    }

    /// Starts the agent and waits for its first report.
    pub fn start_agent(&mut self, arguments: &[&str]) {
        let config = self.bench.path("agent.toml");
        let all: Vec<&str> = ["daemon", "agent", "--config", config.to_str().unwrap()]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        self.agent = Some(Running::start(self.bench.gleaner(&all)));
        until("the agent reports", || {
            self.hosts().iter().any(|host| host["connected"] == true && !host["report"].is_null())
        });
    }

    /// Runs `gleaner` against this aggregator.
    #[must_use]
    pub fn ask(&self, arguments: &[&str]) -> std::process::Output {
        let socket = self.bench.path("a.sock");
        let all: Vec<&str> =
            ["--socket", socket.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        self.bench.run(&all)
    }

    /// `gleaner hosts`.
    #[must_use]
    pub fn hosts(&self) -> Vec<serde_json::Value> {
        serde_json::from_slice(&self.ask(&["hosts", "--json"]).stdout).unwrap_or_default()
    }

    /// `gleaner job show`.
    #[must_use]
    pub fn job(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&self.ask(&["job", "show", name, "--json"]).stdout).unwrap_or_default()
    }

    /// `gleaner events`.
    #[must_use]
    pub fn events(&self) -> String {
        text(&self.ask(&["events", "--json"]).stdout)
    }
}
