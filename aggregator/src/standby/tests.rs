//! The election and the replica with a real etcd.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use gleaner_daemon::clock::Clock;
use gleaner_planner::controller::{Input, Settings};
use gleaner_types::time::Timestamp;

use super::*;

/// A member of its own; ended when dropped.
struct Server {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(test: &str) -> Option<Self> {
        let ports = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [client, peer] = ports.each_ref().map(|listener| format!("http://{}", listener.local_addr().unwrap()));
        drop(ports);
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("etcd");
        command.args(["--name", "e", "--data-dir"]).arg(folder.path());
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("e={peer}")]);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self { child, url: client, _folder: folder }),
            Err(error) => {
                gleaner_test_support::skipped!("{test}: there is no etcd here (Debian's package etcd-server): {error}");
                None
            }
        }
    }

    fn settings(&self, name: &str) -> StandbySettings {
        StandbySettings {
            endpoints: vec!["http://127.0.0.1:9".into(), self.url.clone()],
            name: HostId::new(name).unwrap(),
            ttl: Duration::from_secs(60),
            prefix: "/test".into(),
            tls: None,
            compact: true,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn stand(settings: &StandbySettings) -> (Election, LeaderLease) {
    let leader_lease = LeaderLease::pending();
    (Election::start(settings, 0, Clock::start(), leader_lease.clone(), Arc::new(Pulse::new())).unwrap(), leader_lease)
}

fn won(election: &mut Election) -> WonElection {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match election.won.try_recv() {
            Ok(won) => return won,
            Err(error) => assert!(Instant::now() < deadline, "not won: {error}; {:?}", *election.role.borrow()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A state that takes several chunks.
fn large(seed: u64) -> Controller {
    let mut state = Controller::new(Settings::default(), Timestamp(7));
    let mut random = seed;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random
    };
    for _ in 0..90_000 {
        let host = HostId::new(format!("h{:016x}{:016x}", next(), next())).unwrap();
        state.handle(Input::HostHeld { host, until: Some(Timestamp(1_000)) }, Timestamp(100));
    }
    state
}

#[test]
fn one_leads_and_writes_and_the_next_goes_on_with_that() {
    let Some(server) = Server::start("one_leads_and_writes_and_the_next_goes_on_with_that") else { return };
    let (settings_a, settings_b) = (server.settings("a"), server.settings("b"));
    let (mut a, lease_a) = stand(&settings_a);
    let won_a = won(&mut a);
    assert!(lease_a.holds());
    let (mut b, lease_b) = stand(&settings_b);
    let deadline = Instant::now() + Duration::from_secs(60);
    while b.role.borrow().leader.is_none() {
        assert!(Instant::now() < deadline, "b sees nobody lead");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(b.role.borrow().leader, Some((HostId::new("a").unwrap(), won_a.epoch)));
    assert!(b.won.try_recv().is_err() && !lease_b.holds());

    // Nothing is there yet: it goes on with its own state.
    let mut admissions = Admissions::default();
    admissions.revoke(&HostId::new("lost-laptop").unwrap(), Timestamp(5)).unwrap();
    let fresh = || Controller::new(Settings::default(), Timestamp(9));
    let own = (large(1), admissions.clone());
    let (state, admitted, leading_a) = Leading::take_over(&settings_a, &won_a, Some(own), fresh()).unwrap();
    assert_eq!(admitted, admissions);
    assert_eq!((leading_a.state_from, state.epoch()), ("own store", won_a.epoch));
    for seed in 1..4 {
        leading_a.replica.save(&large(seed), &admissions, true).unwrap();
    }
    leading_a.replica.save(&state, &admissions, true).unwrap();
    assert_eq!(leading_a.view().error, None);
    assert_eq!(replica::load(&settings_b).unwrap(), Some((state.for_standby(), admissions.clone())));

    a.resign();
    assert!(!lease_a.holds(), "whoever resigns commands no more");
    let won_b = won(&mut b);
    assert!(won_b.epoch > won_a.epoch);
    let (taken, admitted, leading_b) = Leading::take_over(&settings_b, &won_b, None, fresh()).unwrap();
    let mut expected = state.for_standby();
    expected.set_epoch(won_b.epoch);
    assert!(leading_b.state_from == "etcd" && taken == expected && admitted == admissions);
    // What the old one still writes is refused, and changes nothing.
    let refused = leading_a.replica.save(&fresh(), &Admissions::default(), true).unwrap_err();
    let refused = gleaner_types::error::chain(&refused);
    assert!(refused.contains("another aggregator leads"), "{refused}");
    assert_eq!(replica::load(&settings_b).unwrap(), Some((state.for_standby(), admissions.clone())));
    leading_b.replica.save(&taken, &admitted, true).unwrap();
    assert_eq!(replica::load(&settings_a).unwrap(), Some((expected.for_standby(), admissions)));
    b.resign();
}

#[test]
fn a_state_that_cannot_be_read_is_no_fresh_start() {
    let Some(server) = Server::start("a_state_that_cannot_be_read_is_no_fresh_start") else { return };
    let settings = server.settings("a");
    let (mut election, _) = stand(&settings);
    let won = won(&mut election);
    let fresh = || Controller::new(Settings::default(), Timestamp(9));
    let head = |format: u64| {
        format!(r#"{{"format":{format},"software":"8.8","generation":"g","chunks":1,"bytes":1,"crc32":0}}"#)
    };
    let mut etcd = etcd::Etcd::new(&settings.endpoints, None, Duration::from_secs(10)).unwrap();
    for (head, part) in [
        ("nonsense".to_owned(), "cannot be used"),
        (head(99), "has format 99, written by version 8.8"),
        (head(crate::formats::CURRENT), "chunk 0 of 1 is missing"),
    ] {
        let put = etcd::Operation::Put { key: "/test/state", value: head.as_bytes(), lease: 0 };
        assert!(etcd.transact(&etcd::transaction(&[], &[put], &[])).unwrap().succeeded);
        let error = Leading::take_over(&settings, &won, Some((fresh(), Admissions::default())), fresh()).unwrap_err();
        let error = gleaner_types::error::chain(&error);
        assert!(error.contains(part) && error.contains("/test/state"), "{part}\nnot in\n{error}");
    }
    election.resign();
}
