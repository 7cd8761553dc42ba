//! What is logged, read and followed; full disks, and disks whose syncs fail; hosts that log more than their share.

use std::io::BufReader;

use super::reader::{PART, next_timed};
use super::*;

fn settings(folder: &Path) -> EventLogSettings {
    EventLogSettings { folder: folder.to_owned(), max_bytes: u64::MAX, files: 3 }
}

fn read(folder: &Path, since: Option<Timestamp>) -> Vec<String> {
    EventReader::open(folder, since).next_lines(10_000).unwrap()
}

fn stopped() -> Event {
    Event::AggregatorStopped {}
}

fn agents(sequences: std::ops::RangeInclusive<u64>) -> Vec<EventRecord> {
    let host = HostId::new("h1").unwrap();
    sequences
        .map(|sequence| EventRecord {
            at: Timestamp(sequence),
            source: EventSource::Agent { host: host.clone(), incarnation: 5, sequence },
            event: stopped(),
        })
        .collect()
}

/// Through which number an agent is told that its events are in the log.
fn logged(log: &mut EventLog, records: &[EventRecord]) -> u64 {
    log.append_agents(Timestamp(9), records).unwrap();
    log.sync();
    log.through(&HostId::new("h1").unwrap(), 5)
}

#[test]
fn events_of_a_newer_version_are_shown_as_they_are_and_count() {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2/events.jsonl");
    let mut text = std::fs::read_to_string(golden).unwrap();
    let older = text.lines().count();
    let newer = [
        r#"{"at_ms":1700000000,"format":7,"source":"operator","event":"aggregator_stopped","sequence":9}"#,
        r#"{"agent":"h1","at_ms":1700000000002,"event":"host_dreams","incarnation":5,"sequence":9,"source":"agent"}"#,
    ];
    text.extend(newer.map(|line| format!("{line}\n")));
    std::fs::write(folder.path().join("events.jsonl"), text).unwrap();
    let lines = read(folder.path(), None);
    assert_eq!(lines.len(), older + 2);
    assert_eq!(lines[older..], newer);
    assert!(lines[..older].iter().all(|line| EventRecord::from_json_line(line).is_ok()), "format 1, without a number");
    assert!(matches!(EventRecord::from_json_line(newer[0]), Err(EventLineError::Newer(format)) if format.found == 7));
    // What the first of them gives as its time need not be milliseconds.
    assert_eq!(read(folder.path(), Some(Timestamp(1_700_000_000_002))), newer);
    assert_eq!(read(folder.path(), Some(Timestamp(1_700_000_000_003))), newer[..1]);
    let mut log = EventLog::open(settings(folder.path()));
    assert_eq!(log.through(&HostId::new("i1").unwrap(), 5), 1);
    assert_eq!(logged(&mut log, &agents(9..=10)), 10);
    assert_eq!(read(folder.path(), None).len(), older + 3, "the newer version had logged the ninth");
}

#[test]
fn events_sent_twice_are_logged_once_even_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    assert_eq!(logged(&mut log, &agents(1..=3)), 3);
    assert_eq!(logged(&mut log, &agents(2..=4)), 4);
    drop(log);
    let mut log = EventLog::open(settings(folder.path()));
    assert_eq!(log.through(&HostId::new("h1").unwrap(), 5), 4);
    assert_eq!(logged(&mut log, &agents(3..=5)), 5);
    assert_eq!(read(folder.path(), None).len(), 5);
    assert_eq!(read(folder.path(), Some(Timestamp(4))).len(), 2);
}

#[test]
fn a_torn_line_does_not_swallow_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.append(Timestamp(1), stopped());
    drop(log);
    let file = folder.path().join("events.jsonl");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"at_ms\":2,\"sou");
    std::fs::write(&file, text).unwrap();
    EventLog::open(settings(folder.path())).append(Timestamp(3), stopped());
    assert_eq!(read(folder.path(), None).len(), 2);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend_from_slice(b"\xff\xfe no text\n");
    std::fs::write(&file, bytes).unwrap();
    EventLog::open(settings(folder.path())).append(Timestamp(4), stopped());
    assert_eq!(read(folder.path(), None).len(), 3, "what is no text is passed over");
}

/// Everything of a line but its end is no line: else what is sent again would be there twice.
#[test]
fn an_event_cut_before_its_end_is_logged_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.append_agents(Timestamp(9), &agents(1..=2)).unwrap();
    drop(log);
    let file = folder.path().join("events-hosts.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.trim_end()).unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    assert_eq!(log.through(&HostId::new("h1").unwrap(), 5), 1);
    log.append_agents(Timestamp(9), &agents(2..=3)).unwrap();
    assert_eq!(read(folder.path(), None).len(), 3);
}

#[test]
fn a_reader_sees_what_came_in_place_of_a_line_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.append(Timestamp(1), stopped());
    drop(log);
    let mut reader = EventReader::open(folder.path(), None);
    let file = folder.path().join("events.jsonl");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"at_ms\":2,\"sou");
    std::fs::write(&file, text).unwrap();
    assert_eq!(reader.next_lines(10).unwrap().len(), 1);
    EventLog::open(settings(folder.path())).append(Timestamp(3), stopped());
    let lines = reader.next_lines(10).unwrap();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("\"at_ms\":3"), "{lines:?}");
}

#[test]
fn rotates_and_keeps_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
    for at in 0..40 {
        log.append(Timestamp(at), stopped());
    }
    assert_eq!(oldest_first(folder.path(), "events").len(), 4);
    let times: Vec<u64> =
        read(folder.path(), None).iter().map(|line| EventRecord::from_json_line(line).unwrap().at.0).collect();
    assert!(times.is_sorted() && times.last() == Some(&39) && times.len() < 40, "{times:?}");
}

#[test]
fn a_reader_follows_through_rotations() {
    let folder = tempfile::tempdir().unwrap();
    let mut reader = EventReader::open(folder.path(), None);
    assert!(reader.next_lines(10).unwrap().is_empty());
    let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
    let mut seen = 0;
    for at in 0..40 {
        log.append(Timestamp(at), stopped());
        let new = reader.next_lines(10).unwrap().len();
        assert_eq!(new, 1, "a follower sees a line as soon as it is there");
        seen += new;
    }
    assert_eq!(seen, 40);
}

#[test]
fn a_reader_of_the_end_does_not_read_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let max_bytes = 500_000;
    let mut log = EventLog::open(EventLogSettings { max_bytes, files: 8, ..settings(folder.path()) });
    // A minute apart; between them what agents say late, and one whose clock is half an hour ahead.
    const MINUTE: u64 = 60_000;
    for minute in 0..20_000_u64 {
        log.append(Timestamp(minute * MINUTE), stopped());
        if minute % 7 == 0 {
            let mut late = agents(minute + 1..=minute + 1);
            late[0].at = Timestamp((minute + 30).saturating_sub(minute % 3 * 60) * MINUTE);
            log.append_agents(Timestamp(minute * MINUTE), &late).unwrap();
        }
    }
    for since in [0, 1, 7_000, 15_000, 19_000, 19_990, 30_000] {
        let since = Timestamp(since * MINUTE);
        let at = |line: &String| EventStamp::from_json_line(line).unwrap().at;
        let all = EventReader::open(folder.path(), None).next_lines(100_000).unwrap();
        let wanted: Vec<String> = all.into_iter().filter(|line| at(line) >= since).collect();
        let mut reader = EventReader::open(folder.path(), Some(since));
        let ahead = reader.ahead();
        // Where two series are merged, where they begin decides what comes first of what is late.
        let sorted = |mut lines: Vec<String>| {
            lines.sort();
            lines
        };
        assert!(sorted(reader.next_lines(100_000).unwrap()) == sorted(wanted), "{since}");
        let lines = 20_000 - since.0.min(20_000 * MINUTE) / MINUTE;
        assert!(ahead < 8 * 3 * PART + (lines + 120) * 220, "{since}: {ahead} bytes to read");
    }
}

/// Older versions had all in one series, and did not say when an agent's line was logged.
#[test]
fn the_next_line_of_known_time_is_found_behind_others_and_only_nearby() {
    let folder = tempfile::tempdir().unwrap();
    let own = |at| EventRecord { at: Timestamp(at), source: EventSource::Aggregator, event: stopped() };
    let mut records = vec![own(1)];
    records.extend(agents(1..=3));
    records.push(own(2));
    records.extend(agents(4..=1_000));
    let line = |record: &EventRecord| record.to_json_line().unwrap() + "\n";
    let mut text: String = records.iter().map(line).collect();
    text += &(agents(7..=7)[0].to_logged_line(Timestamp(3)).unwrap() + "\n");
    let file = folder.path().join("events.jsonl");
    std::fs::write(&file, &text).unwrap();
    let mut reader = BufReader::new(File::open(&file).unwrap());
    let mut next = |start: usize| next_timed(&mut reader, start as u64, text.len() as u64).unwrap();
    let begin = |number: usize| text.split_inclusive('\n').take(number).map(str::len).sum::<usize>();
    // From within the first line, from its last byte, and from within an agent's.
    for start in [5, begin(1) - 1, begin(2) + 5] {
        assert_eq!(next(start), Some((begin(4) as u64, Timestamp(2))), "{start}");
    }
    let last = begin(1_001 + 1);
    assert!(last > begin(4) + 10 + usize::try_from(PART).unwrap());
    assert_eq!(next(begin(4) + 10), None, "it is further away");
    assert_eq!(next(last - 1_000), Some((last as u64, Timestamp(3))));
    assert_eq!(read(folder.path(), None).len(), 1_003);
    assert_eq!(EventLog::open(settings(folder.path())).through(&HostId::new("h1").unwrap(), 5), 1_000);
}

#[test]
fn lines_come_in_the_order_in_which_they_were_logged_whatever_clocks_agents_have() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    for (minute, clock) in [(1, 90), (2, 3), (3, 50), (4, 0)] {
        let mut records = agents(minute..=minute);
        records[0].at = Timestamp(clock);
        log.append(Timestamp(minute), stopped());
        log.append_agents(Timestamp(minute), &records).unwrap();
    }
    let expected: Vec<(u64, bool)> = (1..=4).flat_map(|minute| [(minute, true), (minute, false)]).collect();
    let lines = read(folder.path(), None);
    let stamps = lines.iter().map(|line| EventStamp::from_json_line(line).unwrap());
    let found = stamps.map(|stamp| (stamp.logged.unwrap().0, stamp.source == EventSource::Aggregator));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn events_that_did_not_reach_the_disk_are_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.append(Timestamp(1), stopped());
    log.sync();
    assert_eq!(log.error(), None);
    // A device without storage takes lines but refuses to be synced.
    log.write_to(&File::options().write(true).open("/dev/null").unwrap());
    log.append(Timestamp(2), stopped());
    assert_eq!(logged(&mut log, &agents(1..=2)), 0);
    assert!(log.error().is_some_and(|error| error.contains("cannot be written")), "{:?}", log.error());
    assert_eq!(log.waiting(), 3);
    // An agent that connects anew meanwhile sends them again.
    log.append_agents(Timestamp(3), &agents(1..=3)).unwrap();
    assert_eq!(logged(&mut log, &agents(1..=3)), 3);
    let lines = read(folder.path(), None);
    assert_eq!((log.error(), log.waiting(), lines.len()), (None, 0, 6), "one about the failure: {lines:?}");
}

/// On a real full disk: a tiny tmpfs.
#[test]
fn a_full_disk_delays_own_events_and_refuses_agents() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(disk).output();
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        gleaner_test_support::skipped!("no full disk to test on: a tmpfs cannot be mounted here");
        return;
    }
    let mut log = EventLog::open(settings(disk));
    log.append(Timestamp(1), stopped());
    // The disk fills up behind the log's back.
    _ = std::fs::write(disk.join("ballast"), vec![0; 1 << 20]);
    for at in 2..200 {
        log.append(Timestamp(at), stopped());
    }
    let error = log.error().map(str::to_owned);
    let refused = log.append_agents(Timestamp(300), &agents(1..=1));
    std::fs::remove_file(disk.join("ballast")).unwrap();
    let accepted = log.append_agents(Timestamp(301), &agents(1..=1)).map_err(|e| e.to_string());
    let lines = read(disk, None);
    drop(log);
    assert!(std::process::Command::new("umount").arg(disk).status().unwrap().success());
    assert!(error.is_some_and(|error| error.contains("cannot be written")));
    assert!(refused.is_err(), "what is not written must not be acknowledged");
    assert_eq!(accepted, Ok(()));
    let recovered = lines.iter().filter(|line| line.contains("event_log_recovered")).count();
    assert_eq!((recovered, lines.len()), (1, 201), "199 own, one of the agent, one about the delay");
}

fn device(name: &str) -> File {
    File::options().write(true).open(Path::new("/dev").join(name)).unwrap()
}

#[test]
fn own_events_that_find_no_room_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    let appended = log.appended();
    log.write_to(&device("full"));
    for at in 0..MAX_WAITING as u64 + 5 {
        log.append(Timestamp(at), stopped());
    }
    assert_eq!((log.waiting(), log.lost()), (MAX_WAITING, 5));
    log.write_to(&File::options().create(true).append(true).open(folder.path().join("events.jsonl")).unwrap());
    let before = *appended.borrow();
    log.retry(Timestamp(9));
    assert_eq!((log.error(), log.waiting(), log.lost()), (None, 0, 5));
    // One is about the failure.
    assert_eq!(*appended.borrow() - before, MAX_WAITING as u64 + 1);
    let lines = EventReader::open(folder.path(), None).next_lines(MAX_WAITING + 1).unwrap();
    let recovered = EventRecord::from_json_line(lines.last().unwrap()).unwrap().event;
    let Event::EventLogRecovered { delayed, lost, .. } = recovered else { panic!("{recovered:?}") };
    assert_eq!((delayed, lost), (MAX_WAITING as u64, 5));
}

#[test]
fn events_that_only_agents_could_not_write_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.write_to(&device("full"));
    assert!(log.append_agents(Timestamp(1), &agents(1..=1)).is_err());
    assert!(log.error().is_some() && log.waiting() == 0);
    log.write_to(&File::options().create(true).append(true).open(folder.path().join("events.jsonl")).unwrap());
    assert_eq!(logged(&mut log, &agents(1..=1)), 1);
    assert_eq!(log.error(), None);
    let lines = read(folder.path(), None);
    assert!(lines.len() == 2 && lines[0].contains("event_log_recovered"), "{lines:?}");
}

#[test]
fn a_file_is_set_aside_only_with_all_of_it_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
    // It takes lines but no sync, so that the first file cannot be finished.
    log.write_to(&device("null"));
    assert!(log.append_agents(Timestamp(1), &agents(1..=10)).is_err());
    assert!(log.waiting() > 1, "those that were written wait");
    log.set_size(u64::MAX, 3);
    log.retry(Timestamp(2));
    assert_eq!(logged(&mut log, &agents(1..=10)), 10);
    let lines = read(folder.path(), None);
    assert_eq!(lines.iter().filter(|line| line.contains("\"agent\":\"h1\"")).count(), 10, "{lines:?}");
}

#[test]
fn many_events_are_on_the_disk_before_any_more_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    let most = MAX_UNSYNCED as u64;
    let through = |log: &EventLog| log.through(&HostId::new("h1").unwrap(), 5);
    log.append_agents(Timestamp(1), &agents(1..=most)).unwrap();
    assert_eq!(through(&log), 0, "one sync is for many");
    log.append_agents(Timestamp(1), &agents(most + 1..=most + 1)).unwrap();
    assert_eq!(through(&log), most);
    log.sync();
    assert_eq!(through(&log), most + 1);
}

#[test]
fn an_older_incarnation_is_forgotten_and_other_hosts_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    let of = |name: &str, incarnation, sequence| {
        let host = HostId::new(name).unwrap();
        let source = EventSource::Agent { host, incarnation, sequence };
        [EventRecord { at: Timestamp(1), source, event: stopped() }]
    };
    for (name, incarnation) in [("h1", 5), ("h2", 3), ("h1", 5), ("h1", 6), ("h3", 9)] {
        log.append_agents(Timestamp(1), &of(name, incarnation, 7)).unwrap();
        log.sync();
    }
    let through = |name: &str, incarnation| log.through(&HostId::new(name).unwrap(), incarnation);
    let found = [("h1", 5), ("h1", 6), ("h2", 3), ("h3", 9)].map(|(name, incarnation)| through(name, incarnation));
    assert_eq!(found, [0, 7, 7, 7]);
    assert_eq!(read(folder.path(), None).len(), 4, "what h1 sent again was there");
}

#[test]
fn an_older_file_that_the_disk_does_not_give_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    log.append(Timestamp(1), stopped());
    log.sync();
    // Opening it works, reading it does not.
    std::fs::create_dir(folder.path().join("events.7.jsonl")).unwrap();
    assert_eq!(read(folder.path(), None).len(), 1);
    assert_eq!(read(folder.path(), Some(Timestamp(1))).len(), 1);
    // The current one of another series.
    std::fs::create_dir(folder.path().join("events-excess.jsonl")).unwrap();
    assert_eq!(read(folder.path(), None).len(), 1);
}

#[test]
fn a_host_that_counts_backwards_does_not_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    let host = HostId::new("h1").unwrap();
    for incarnation in (1..=100).rev() {
        let source = EventSource::Agent { host: host.clone(), incarnation, sequence: 1 };
        log.append_agents(Timestamp(1), &[EventRecord { at: Timestamp(1), source, event: stopped() }]).unwrap();
    }
    log.sync();
    assert_eq!((log.written.len(), log.synced.len()), (9, 9));
    assert_eq!((log.through(&host, 1), log.through(&host, 9), log.through(&host, 10)), (1, 1, 0));
}

#[test]
fn what_another_run_wrote_counts_only_once_it_is_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.path().join("events.jsonl")).unwrap();
    let log = EventLog::open(settings(folder.path()));
    assert!(log.error().is_some_and(|error| error.contains("cannot be written")), "{:?}", log.error());
}

#[test]
fn a_new_size_holds_from_the_next_line_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(settings(folder.path()));
    for at in 0..20 {
        log.append(Timestamp(at), stopped());
    }
    assert_eq!(oldest_first(folder.path(), "events").len(), 1);
    log.set_size(1, 2);
    for at in 20..25 {
        log.append(Timestamp(at), stopped());
    }
    assert_eq!(oldest_first(folder.path(), "events").len(), 3);
    assert_eq!(read(folder.path(), None).len(), 3);
    assert_eq!(EventReader::open(folder.path(), None).next_lines(2).unwrap().len(), 2, "no more than asked for");
}

fn of_host(host: &str, sequence: u64, bytes: usize) -> EventRecord {
    let source = EventSource::Agent { host: HostId::new(host).unwrap(), incarnation: 5, sequence };
    let event = Event::RestoreFailed { knob: "x".repeat(bytes), wanted: String::new(), error: String::new() };
    EventRecord { at: Timestamp(sequence), source, event }
}

const DAY_MS: u64 = 24 * 3_600_000;

/// Each writes more in a day than the log holds, with restarts of the aggregator in between.
#[test]
fn hosts_that_flood_push_out_nothing_of_others_and_all_hosts_nothing_of_the_aggregators() {
    let folder = tempfile::tempdir().unwrap();
    let small = || EventLogSettings { max_bytes: 100_000, ..settings(folder.path()) };
    let mut log = EventLog::open(small());
    let has = |part: &str| read(folder.path(), None).iter().filter(|line| line.contains(part)).count();
    log.append(Timestamp(1), stopped());
    log.append_agents(Timestamp(1), &[of_host("good", 1, 10)]).unwrap();
    let flood = |log: &mut EventLog, name: &str, now: Timestamp, sequences: std::ops::RangeInclusive<u64>| {
        for sequence in sequences {
            // Its connections are its own doing too.
            let host = HostId::new(name).unwrap();
            log.append(now, Event::HostLost { host, reason: "y".repeat(500) });
            log.append_agents(now, &[of_host(name, sequence, 1_000)]).unwrap();
        }
    };
    // Many on one day.
    for host in 0..40 {
        let name = format!("bad-{host}");
        flood(&mut log, &name, Timestamp(1), 1..=60);
        log.sync();
        let through = log.through(&HostId::new(name).unwrap(), 5);
        assert_eq!(through, 60, "what is logged beside is acknowledged too");
        log = EventLog::open(small());
    }
    assert_eq!(has("event_share_exceeded"), 40);
    // A host that joins after all that has room.
    log.append_agents(Timestamp(1), &[of_host("late", 1, 10)]).unwrap();
    flood(&mut log, "bad-0", Timestamp(1), 61..=400);
    assert_eq!((has("aggregator_stopped"), has("\"good\""), has("\"late\"")), (1, 1, 1));
    // One on many days: it would have filled the log four times in each.
    let mut after = 400;
    for day in 1..=10 {
        flood(&mut log, "bad-0", Timestamp(day * DAY_MS), after + 1..=after + 300);
        after += 300;
        log.sync();
        log = EventLog::open(small());
    }
    assert_eq!((has("aggregator_stopped"), has("\"good\""), has("\"late\"")), (1, 1, 1));
}

#[test]
fn what_decisions_users_and_strangers_fill_pushes_out_no_order_and_is_kept_beside() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(EventLogSettings { max_bytes: 20_000, ..settings(folder.path()) });
    let order =
        |uid| Event::OperatorRequest { uid, user: "somebody".into(), request: "z".repeat(200), outcome: "done".into() };
    log.append(Timestamp(1), order(0));
    for second in 1..=1_000 {
        let now = Timestamp(second * 1_000);
        log.append(now, Event::GoalBackInReach { job: gleaner_types::id::JobId::new("j").unwrap() });
        log.append(now, order(1_000));
        log.append(now, Event::PeerRefused { peer: "p".repeat(200), reason: String::new() });
    }
    let lines = read(folder.path(), None);
    let has = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!((has("\"uid\":0"), has("event_share_exceeded")), (1, 3));
    assert!(has("\"uid\":1000") > 50 && has("goal_back_in_reach") > 50 && has("peer_refused") > 50);
    assert!(lines.last().unwrap().contains("peer_refused"), "the latest are there");
}

/// A loss of power may keep one file's last lines and not the other's.
#[test]
fn lines_of_a_host_wait_for_the_disk_in_one_series_only() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(EventLogSettings { max_bytes: 40_000, ..settings(folder.path()) });
    let mut seen = [0, 0];
    // Ten a day, which is more than its share of one.
    for sequence in 1..=400 {
        let now = Timestamp(sequence * DAY_MS / 10);
        log.append_agents(now, &[of_host("h1", sequence, 500)]).unwrap();
        log.append(now, stopped());
        let mut series: Vec<Series> = log
            .unsynced
            .iter()
            .filter(|line| line.record.source != EventSource::Aggregator)
            .map(|line| line.series)
            .collect();
        series.dedup();
        assert!(series.len() <= 1, "event {sequence}: {series:?}");
        series.iter().for_each(|series| seen[usize::from(*series == Series::Excess)] += 1);
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}
