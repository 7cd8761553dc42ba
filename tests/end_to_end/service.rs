//! The daemons as services: their notifications to systemd, and reloads of their configs.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use gleaner_test_support::bench::{Running, kill, text, until};
use gleaner_test_support::pair::{HOST, Pair};

/// A daemon of a pair under what looks to it like systemd with `WatchdogSec=3`; its log is the file `DAEMON.log`.
fn start(pair: &Pair, daemon: &str) -> (Running, UnixDatagram) {
    let socket = pair.bench.path(&format!("{daemon}.notify"));
    let notifications = UnixDatagram::bind(&socket).unwrap();
    notifications.set_read_timeout(Some(gleaner_test_support::bench::TIMEOUT)).unwrap();
    let config = pair.bench.path(&format!("{daemon}.toml"));
    let mut command = pair.bench.gleaner(&["daemon", daemon, "--config", config.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", Duration::from_secs(3).as_micros().to_string());
    command.stdout(File::create(pair.bench.path("out")).unwrap());
    command.stderr(File::create(pair.bench.path(&format!("{daemon}.log"))).unwrap());
    (Running(command.spawn().unwrap()), notifications)
}

fn next(notifications: &UnixDatagram) -> String {
    let mut buffer = [0; 100];
    let length = notifications.recv(&mut buffer).unwrap();
    text(&buffer[..length])
}

/// It is ready, and says again and again that it works.
fn works(notifications: &UnixDatagram) {
    // The loops of both may have said that they work before everything is ready.
    until("it is ready", || next(notifications) == "READY=1");
    for _ in 0..2 {
        assert_eq!(next(notifications), "WATCHDOG=1");
    }
}

#[test]
fn both_daemons_tell_systemd_how_they_are_and_reload() {
    let pair = Pair::new(&[HOST, "host-2"]);
    let (aggregator, of_aggregator) = start(&pair, "aggregator");
    works(&of_aggregator);
    let (agent, of_agent) = start(&pair, "agent");
    works(&of_agent);

    let log = |daemon: &str| std::fs::read_to_string(pair.bench.path(&format!("{daemon}.log"))).unwrap();
    let config = |daemon: &str| std::fs::read_to_string(pair.bench.path(&format!("{daemon}.toml"))).unwrap();
    let reload = |running: &Running, daemon: &str, text: &str, said: &str| {
        pair.bench.write(&format!("{daemon}.toml"), text);
        kill(running.0.id(), "HUP");
        until(said, || log(daemon).contains(said));
    };
    let changed = format!("max_agents = 7\n{}control_interval_s = 4\n[journal]\nfiles = 2\n", config("aggregator"));
    reload(
        &aggregator,
        "aggregator",
        &changed,
        "taken over: controller.control_interval_s, journal.files; needs a restart: max_agents",
    );
    let changed = format!("{}[forecast]\nsigma = 3\n[guard]\nperiod_ms = 20\nheadroom = 0.2\n", config("agent"));
    let said = "taken over: guard.headroom, forecast.sigma; needs a restart: guard.period_ms";
    reload(&agent, "agent", &changed, said);
    reload(&agent, "agent", "[guard]\nheadroom = 2\n", "`guard.headroom` is 2; it must be a number from 0 to 0.9");
    assert!(log("agent").contains("the changed config is not taken over"), "{}", log("agent"));

    // They work on, and the journal, which is begun anew for the changed settings, replays.
    let journal = pair.bench.path("state/journal");
    until("another journal file is begun", || std::fs::read_dir(&journal).unwrap().count() == 2);
    until("the agent reports", || {
        pair.hosts().iter().any(|host| host["connected"] == true && !host["report"].is_null())
    });
    for (running, notifications) in [(&agent, &of_agent), (&aggregator, &of_aggregator)] {
        kill(running.0.id(), "TERM");
        until("it says that it stops", || next(notifications) == "STOPPING=1");
    }
    drop((agent, aggregator));
    let replay = pair.bench.run(&["replay", journal.to_str().unwrap()]);
    assert!(replay.status.success(), "{}{}", text(&replay.stdout), text(&replay.stderr));
}
