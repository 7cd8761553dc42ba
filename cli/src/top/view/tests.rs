use gleaner_api::{HostGuests, Overview};
use gleaner_test_support::report::{report, residual, share};
use gleaner_types::guest::{GuestName, Manager};
use gleaner_types::id::{GuestText, HostId, ReservationId, WorkloadId};
use gleaner_types::job::{EngineProgress, ReservedStage};
use gleaner_types::report::{Protection, Reason, WorkloadKind};
use gleaner_types::units::Bytes;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::state::{News, Snapshot};
use super::*;
use crate::fixtures::{application, host_view, job, progress};

fn host(name: &str, expected: f64) -> HostView {
    let id = HostId::new(name).unwrap();
    let mut report = HostReport { residual: residual(expected, expected - 50.0), ..report(&id, 1) };
    report.machine.cpu_busy = share(120.0);
    report.machine.cpu_foreground = share(110.0);
    report.workloads = vec![workload(if name == "host-1" { "instance-1" } else { "web" }, 90.0)];
    report.volunteer.cpu = share(80.0);
    report.volunteer.allowance = share(150.0);
    HostView { reported: Some(Timestamp(1_000)), ..host_view(report) }
}

fn workload(id: &str, percent: f64) -> WorkloadSample {
    let absent = || Reading::because(Reason::NoGuest);
    let rate = || Reading::Value(BytesPerSec::ZERO);
    WorkloadSample {
        id: WorkloadId::from_untrusted(id),
        kind: WorkloadKind::Qemu,
        cpu: share(percent),
        cpu_vcpu: share(percent),
        cpu_emulator: share(0.0),
        cpu_wait: share(1.0),
        memory: Reading::Value(Bytes::from_mib(256)),
        memory_pressure: Reading::because(Reason::NoGuest),
        disk_read: rate(),
        disk_write: rate(),
        disk_operations: absent(),
        network_receive: Reading::because(Reason::NoGuest),
        network_transmit: Reading::because(Reason::NoGuest),
        llc_references: absent(),
        llc_misses: absent(),
        instructions: absent(),
        cache_occupancy: None,
    }
}

/// What the first host's guest is called; the second's agent says none.
fn names() -> Vec<HostGuests> {
    let text = |text: &str| GuestText::from_untrusted(text);
    let guest = GuestName {
        workload: WorkloadId::from_untrusted("instance-1"),
        manager: Manager::Openstack,
        name: text("shop db").unwrap(),
        title: text("The shop's database"),
        instance: text("instance-1"),
        uuid: None,
        pid: Some(7),
    };
    vec![HostGuests { host: HostId::new("host-1").unwrap(), guests: vec![guest], unmatched: Vec::new() }]
}

fn snapshot(hosts: Vec<HostView>) -> News {
    News::Snapshot(Box::new(Snapshot {
        overview: Overview {
            software: "0.1.0".into(),
            pid: 1,
            started: Timestamp(0),
            now: Timestamp(2_000),
            local_host: HostId::new("host-1").unwrap(),
            hosts_connected: 2,
            jobs_active: 1,
            all_held: None,
            held_ahead: Vec::new(),
            leadership: None,
            event_log_error: None,
            state_error: None,
        },
        hosts,
        names: names(),
        jobs: vec![
            job("running-one", JobPhase::Running),
            job("waiting-one", JobPhase::Waiting { reason: "for a\u{1b}[2J host".into() }),
        ],
        applications: vec![application()],
    }))
}

fn state() -> State {
    let mut state = State::default();
    state.take(snapshot(vec![host("host-1", 280.0), host("host-2", 90.0)]));
    state
}

fn press(state: &mut State, keys: &[KeyCode]) {
    for key in keys {
        state.take(News::Key(KeyEvent::new(*key, KeyModifiers::NONE)));
    }
}

fn type_in(state: &mut State, text: &str) {
    press(state, &text.chars().map(KeyCode::Char).collect::<Vec<_>>());
}

fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(state, frame)).unwrap();
    let cells = terminal.backend().buffer().content();
    let line = |line: &[ratatui::buffer::Cell]| line.iter().map(|cell| cell.symbol()).collect::<String>();
    cells.chunks(usize::from(width)).map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

#[track_caller]
fn shows(screen: &str, parts: &[&str]) {
    for part in parts {
        assert!(screen.contains(part), "{part}\nnot on\n{screen}");
    }
}

#[test]
fn every_tab_fits_80_by_24() {
    let mut state = state();
    let fleet = screen(&state, 80, 24);
    shows(&fleet, &["gleaner 0.1.0 on host-1", "00:00:02", "2 of 2 hosts connected", "host-2", "acting", "active"]);
    shows(
        &fleet,
        &["2.8 / 2.3", "sum: foreground 1.8, other 0.4, residual 3.7/2.7, volunteers 1.6 of 3.0 allowed", "q quit"],
    );
    press(&mut state, &[KeyCode::Tab]);
    shows(&screen(&state, 80, 24), &["host-1  2.8 expected, 2.3 promised of 4", "█"]);
    press(&mut state, &[KeyCode::Tab]);
    shows(&screen(&state, 80, 24), &["running-one", "running", "4 min 58 s", "within 10 min 00 s"]);
    press(&mut state, &[KeyCode::Down]);
    shows(&screen(&state, 80, 24), &["for a?[2J host"]);
    press(&mut state, &[KeyCode::Tab]);
    shows(&screen(&state, 80, 24), &["shop", "100 ms", "250 ms", "250 %"]);
    press(&mut state, &[KeyCode::Tab]);
    shows(&screen(&state, 80, 24), &["no events"]);
    state.take(News::Event("one event".to_owned()));
    shows(&screen(&state, 80, 24), &["one event"]);
    press(&mut state, &[KeyCode::Tab]);
    shows(
        &screen(&state, 80, 24),
        &["shop db", "web", "0.90", "256.0 MiB", "(other)", "0.20", "yes", "openstack instance-1"],
    );
    press(&mut state, &[KeyCode::Tab]);
    assert_eq!(state.tab, Tab::Fleet, "round again");
    press(&mut state, &[KeyCode::BackTab]);
    assert_eq!(state.tab, Tab::Guests);
}

#[test]
fn enter_on_a_host_shows_its_guests_and_esc_goes_back() {
    let mut state = state();
    press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
    let guests = screen(&state, 100, 24);
    shows(&guests, &["host-2", "web", "its name is not reported by this agent's version"]);
    assert!(!guests.contains("shop db"), "{guests}");
    press(&mut state, &[KeyCode::Esc, KeyCode::Up, KeyCode::Enter]);
    let guests = screen(&state, 100, 24);
    shows(&guests, &["shop db", "shop db (The shop's database): openstack instance-1; limits none"]);
    assert!(!guests.contains("web"), "{guests}");
    type_in(&mut state, "u");
    shows(&screen(&state, 100, 24), &["90 %"]);
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(state.tab, Tab::Fleet);
    shows(&screen(&state, 100, 24), &["OTHER", "280 % / 230 %", "20 %"]);
    type_in(&mut state, "6/DATABASE");
    press(&mut state, &[KeyCode::Enter]);
    let found = screen(&state, 100, 24);
    assert!(found.contains("shop db") && !found.contains("web"), "{found}");
}

#[test]
fn the_selected_host_says_how_its_volunteer_is_held_and_why() {
    let mut held = host("host-2", 90.0);
    let reason = "the volunteer has at most 50 % of the machine, because the foreground was\u{1b} slower".to_owned();
    let protection = Protection { spare_cpus: 0, share_percent: 50.0, reason };
    held.report.as_mut().unwrap().harm.protection = Some(protection);
    let mut state = State::default();
    state.take(snapshot(vec![host("host-1", 280.0), held]));
    assert!(!screen(&state, 80, 24).contains("at most 50 %"));
    press(&mut state, &[KeyCode::Down]);
    let shown = screen(&state, 80, 24);
    shows(&shown, &["host-2: the volunteer has at most 50 % of the machine, because", "was? slower", "sum: "]);
}

/// A node with a lease of two minutes that begins some seconds after what [`snapshot`] calls now.
fn lease(node: &str, name: &str, begins_in_s: u64, stage: ReservedStage, tasks: u32) -> ReservedNode {
    let begins = Timestamp(2_000 + begins_in_s * 1_000);
    let (node, lease) = (HostId::new(node).unwrap(), ReservationId::new(name).unwrap());
    ReservedNode { node, lease, begins, ends: Timestamp(begins.0 + 120_000), stage, tasks }
}

/// The tab of jobs, with the first job's leases.
fn with_leases(leases: Vec<ReservedNode>) -> State {
    let mut state = state();
    state.snapshot.as_mut().unwrap().jobs[0].progress = Some(EngineProgress { leases, ..progress(0) });
    type_in(&mut state, "3");
    state
}

#[test]
fn leases_of_the_selected_job_and_what_fills_them_are_shown() {
    let leases =
        vec![lease("n1", "course", 0, ReservedStage::Leased, 0), lease("n2", "exam", 300, ReservedStage::Draining, 7)];
    let mut state = with_leases(leases);
    let shown = screen(&state, 80, 24);
    shows(&shown, &["running-one: ", "2 leases", "NODE", "BEGINS IN", "MEANWHILE"]);
    // Every lease has its own line, with the tasks that fill it.
    let line = |node: &str| shown.lines().find(|line| line.starts_with(node)).unwrap().split_whitespace();
    let words = |node: &str| line(node).collect::<Vec<_>>().join(" ");
    assert_eq!(words("n1"), "n1 course begun 2 min 00 s 0 has begun", "{shown}");
    assert_eq!(words("n2"), "n2 exam 5 min 00 s 7 min 00 s 7 none starts any more", "{shown}");
    press(&mut state, &[KeyCode::Down]);
    let other = screen(&state, 80, 24);
    assert!(!other.contains("exam") && !other.contains("MEANWHILE"), "{other}");
}

#[test]
fn of_many_leases_those_that_fit_are_shown_and_the_others_counted() {
    let name = |number: u64| format!("n{number:03}");
    let many = (0..200).map(|number| lease(&name(number), "course", 60 * number, ReservedStage::Open, 1));
    let state = with_leases(many.collect());
    let shown = screen(&state, 80, 24);
    // Of 21 lines two jobs and their head have three, the detail three, the leases' head one and the last line one.
    shows(&shown, &["running-one", "waiting-one", "200 leases", "n000", "n012", "187 more"]);
    assert!(!shown.contains("n013"), "{shown}");
    for (width, height) in [(1, 1), (2, 3), (10, 4), (40, 7), (40, 10), (300, 100), (5, 80)] {
        _ = screen(&state, width, height);
    }
}

#[test]
fn any_size_is_drawn() {
    let mut all = state();
    for line in 0..100 {
        all.take(News::Event(format!("event {line}")));
    }
    all.take(News::Trouble("nobody answers".to_owned()));
    for tab in '1'..='6' {
        type_in(&mut all, &tab.to_string());
        for help in [false, true] {
            all.help = help;
            for (width, height) in [(1, 1), (2, 3), (10, 4), (40, 10), (80, 24), (81, 25), (300, 100), (5, 80)] {
                _ = screen(&all, width, height);
            }
        }
        all.help = false;
    }
}

#[test]
fn a_filter_a_pause_and_help() {
    let mut state = state();
    type_in(&mut state, "/HOST-2");
    shows(&screen(&state, 80, 24), &["filter: HOST-2"]);
    press(&mut state, &[KeyCode::Enter]);
    let filtered = screen(&state, 80, 24);
    assert!(!filtered.contains("\nhost-1"), "{filtered}");
    shows(&filtered, &["host-2", "only \"HOST-2\""]);
    type_in(&mut state, "/zzz");
    press(&mut state, &[KeyCode::Enter]);
    shows(&screen(&state, 80, 24), &["nothing passes the filter"]);
    press(&mut state, &[KeyCode::Esc]);
    shows(&screen(&state, 80, 24), &["host-1", "host-2"]);

    type_in(&mut state, "p");
    state.take(snapshot(vec![host("host-3", 10.0)]));
    state.take(News::Event("while paused".to_owned()));
    let paused = screen(&state, 80, 24);
    shows(&paused, &["PAUSED", "host-2"]);
    assert!(!paused.contains("host-3"), "{paused}");
    type_in(&mut state, "p5");
    shows(&screen(&state, 80, 24), &["while paused"]);

    type_in(&mut state, "?");
    shows(&screen(&state, 80, 24), &["another tab", "ctrl-c"]);
    type_in(&mut state, "x");
    assert!(!state.help && !state.over());
    type_in(&mut state, "q");
    assert!(state.over());
    let mut state = self::state();
    type_in(&mut state, "/");
    state.take(News::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(state.over(), "control-c ends it whatever it does");
}

#[test]
fn a_long_list_keeps_what_is_selected_in_view() {
    let mut state = State::default();
    let hosts = (0..100).map(|number| host(&format!("host-{number:03}"), 200.0)).collect();
    state.take(snapshot(hosts));
    press(&mut state, &[KeyCode::End]);
    shows(&screen(&state, 80, 24), &["host-099"]);
    type_in(&mut state, "2");
    press(&mut state, &[KeyCode::End]);
    shows(&screen(&state, 80, 24), &["host-099"]);
    press(&mut state, &[KeyCode::Home]);
    shows(&screen(&state, 80, 24), &["host-000"]);
    for line in 0..100 {
        state.take(News::Event(format!("event {line:03}")));
    }
    type_in(&mut state, "5");
    shows(&screen(&state, 80, 24), &["event 099"]);
    press(&mut state, &[KeyCode::Home]);
    let oldest = screen(&state, 80, 24);
    shows(&oldest, &["event 000"]);
    state.take(News::Event("one more".to_owned()));
    assert_eq!(screen(&state, 80, 24), oldest, "who reads an old event goes on reading it");
    press(&mut state, &[KeyCode::End]);
    shows(&screen(&state, 80, 24), &["one more"]);
}

#[test]
fn an_aggregator_that_is_gone_is_said_and_forgotten_when_it_is_back() {
    let mut state = state();
    state.take(News::Trouble("no aggregator answers on\u{7} /x".to_owned()));
    let gone = screen(&state, 80, 24);
    shows(&gone, &["NO ANSWER, trying again: no aggregator answers on? /x", "host-1"]);
    state.take(snapshot(vec![host("host-1", 280.0)]));
    assert!(!screen(&state, 80, 24).contains("NO ANSWER"));
    let mut lost = host("host-1", 280.0);
    lost.connected = false;
    state.take(snapshot(vec![lost]));
    shows(&screen(&state, 80, 24), &["lost"]);
    type_in(&mut state, "6");
    shows(&screen(&state, 80, 24), &["1 s old"]);
    // Its curve has gaps where nothing was known, and hosts that are gone leave no curve.
    assert_eq!(state.residual.len(), 1);
    assert_eq!(state.residual.values().next().unwrap().iter().filter(|seen| seen.is_none()).count(), 1);
}
