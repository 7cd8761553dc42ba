//! What everybody whose doings fill the event log has of it, day by day. In: lines, as they are written and taken back. Out:
//! whether one more of somebody's still has room in its place. Used by the log, which counts again what is there when it is
//! opened.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use serde::Deserialize;

/// Of the bytes of one file: a host, a user or all strangers may have one in so many a day. Chosen: with the defaults 1 MiB,
/// months of what a host says that works, an hour of what one can say. So many hosts fill a file in a day, not one.
const OF_ONE: u64 = 16;

/// The same for all decisions together. Chosen: they share their files with the aggregator's own lines, which are few.
const OF_DECISIONS: u64 = 4;

/// Events of the aggregator's own that a host can cause as often as it may connect and answer.
const BY_HOSTS: [&str; 9] = [
    "host_joined",
    "host_lost",
    "host_left",
    "message_refused",
    "command_refused",
    "command_shortfall",
    "certificate_renewed",
    "promises_broken",
    "promises_kept",
];

/// Those that anybody causes who reaches the port.
const BY_STRANGERS: [&str; 2] = ["peer_refused", "join_refused"];

/// Those that the loops log as often as what hosts, jobs and services say makes them decide.
const DECISIONS: [&str; 18] = [
    "job_submitted",
    "job_waiting",
    "job_profiling",
    "job_sized",
    "goal_at_risk",
    "goal_back_in_reach",
    "job_ended",
    "task_failed",
    "application_applied",
    "application_removed",
    "response_time_changed",
    "shares_moved",
    "target_missed",
    "target_met",
    "application_released",
    "surge_relieved",
    "bottleneck_elsewhere",
    "plan_rejected",
];

/// Whose doings a line tells of, beside the aggregator's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A host said or caused it.
    Host(HostId),
    /// A user other than root gave an order.
    User(u32),
    /// Somebody without a certificate.
    Strangers,
    /// The loops decided.
    Decisions,
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(formatter, "{host}"),
            Self::User(uid) => write!(formatter, "user {uid}"),
            Self::Strangers => formatter.write_str("strangers"),
            Self::Decisions => formatter.write_str("decisions"),
        }
    }
}

impl Subject {
    /// Of a line of the log, if anybody's share is meant; and when it was logged.
    pub(super) fn of(line: &str) -> Option<(Self, Timestamp)> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(borrow)]
            event: Cow<'a, str>,
            at_ms: u64,
            #[serde(default)]
            logged_ms: Option<u64>,
            #[serde(borrow, default)]
            agent: Option<Cow<'a, str>>,
            #[serde(borrow, default)]
            host: Option<Cow<'a, str>>,
            #[serde(default)]
            uid: Option<u32>,
        }
        let fields: Fields<'_> = serde_json::from_str(line).ok()?;
        let event = &*fields.event;
        let host = |name: Cow<'_, str>| HostId::new(name).ok().map(Self::Host);
        let subject = match (fields.agent, fields.host, fields.uid) {
            (Some(agent), ..) => host(agent),
            (None, Some(caused), _) if BY_HOSTS.contains(&event) => host(caused),
            (None, _, Some(uid)) if event == "operator_request" && uid != 0 => Some(Self::User(uid)),
            _ if BY_STRANGERS.contains(&event) => Some(Self::Strangers),
            _ if DECISIONS.contains(&event) => Some(Self::Decisions),
            _ => None,
        };
        Some((subject?, Timestamp(fields.logged_ms.unwrap_or(fields.at_ms))))
    }

    /// Bytes that it may have a day, where a file is so large.
    const fn share(&self, of_file: u64) -> u64 {
        match self {
            Self::Decisions => of_file / OF_DECISIONS,
            Self::Host(_) | Self::User(_) | Self::Strangers => of_file / OF_ONE,
        }
    }
}

/// What somebody has of one day.
#[derive(Debug, Default)]
struct Day {
    /// Days since the Unix epoch.
    day: u64,
    bytes: u64,
    /// A line did not fit, which was said. All that come after it on this day go where it went.
    is_beyond: bool,
}

/// Bytes by subject, of the last day on which it had any.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<Subject, Day>);

const DAY_MS: u64 = 24 * 3_600_000;

impl Shares {
    fn day(&mut self, subject: &Subject, now: Timestamp) -> &mut Day {
        let today = now.0 / DAY_MS;
        let day = self.0.entry(subject.clone()).or_default();
        if day.day != today {
            *day = Day { day: today, ..Day::default() };
        }
        day
    }

    /// A line was written.
    pub(super) fn add(&mut self, subject: &Subject, now: Timestamp, bytes: u64) {
        self.day(subject, now).bytes += bytes;
    }

    /// A line that was written at `then` was taken back.
    pub(super) fn take_back(&mut self, subject: &Subject, then: Timestamp, bytes: u64) {
        if let Some(day) = self.0.get_mut(subject).filter(|day| day.day == then.0 / DAY_MS) {
            day.bytes = day.bytes.saturating_sub(bytes);
        }
    }

    /// Whether a line of so many bytes fits, and so did all of its subject's before on this day.
    pub(super) fn fit(&mut self, subject: &Subject, now: Timestamp, bytes: u64, of_file: u64) -> Fit {
        let day = self.day(subject, now);
        if day.is_beyond {
            Fit::Beyond
        } else if day.bytes.saturating_add(bytes) <= subject.share(of_file) {
            Fit::Within
        } else {
            Fit::FirstBeyond
        }
    }

    /// It was said that the subject's share of this day is used up.
    pub(super) fn exceeded(&mut self, subject: &Subject, now: Timestamp) {
        self.day(subject, now).is_beyond = true;
    }
}

/// Where a line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has room in its place.
    Within,
    /// It has none, which is to be said.
    FirstBeyond,
    /// Nor has it.
    Beyond,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Subject {
        Subject::Host(HostId::new(name).unwrap())
    }

    #[test]
    fn a_share_is_a_days_and_what_is_taken_back_counts_no_more() {
        let [one, other] = ["h1", "h2"].map(host);
        let mut shares = Shares::default();
        let (today, tomorrow) = (Timestamp(DAY_MS - 1), Timestamp(DAY_MS));
        shares.add(&one, today, 6);
        shares.add(&one, today, 3);
        shares.take_back(&one, today, 3);
        shares.take_back(&one, tomorrow, 6);
        assert_eq!(shares.fit(&one, today, 4, 160), Fit::Within, "a sixteenth");
        assert_eq!(shares.fit(&one, today, 5, 160), Fit::FirstBeyond);
        shares.exceeded(&one, today);
        assert_eq!(shares.fit(&one, today, 1, 160), Fit::Beyond, "nothing comes before a line that did not fit");
        assert_eq!(shares.fit(&other, today, 10, 160), Fit::Within, "of that host");
        assert_eq!(shares.fit(&Subject::Decisions, today, 40, 160), Fit::Within, "a quarter");
        assert_eq!(shares.fit(&Subject::Decisions, today, 41, 160), Fit::FirstBeyond);
        assert_eq!(shares.fit(&one, tomorrow, 10, 160), Fit::Within);
        shares.add(&one, tomorrow, 10);
        assert_eq!(shares.fit(&one, tomorrow, 1, 160), Fit::FirstBeyond, "it is said each day");
    }

    #[test]
    fn a_line_has_the_subject_that_said_or_caused_it() {
        let of = |line: &str| Subject::of(line);
        let said = r#"{"agent":"h1","at_ms":5,"event":"agent_started","host":"h2","logged_ms":7}"#;
        assert_eq!(of(said), Some((host("h1"), Timestamp(7))));
        for (line, subject) in [
            (r#"{"at_ms":5,"event":"host_joined","host":"h2"}"#, host("h2")),
            (r#"{"at_ms":5,"event":"operator_request","uid":1000,"user":"a"}"#, Subject::User(1_000)),
            (r#"{"at_ms":5,"event":"peer_refused","peer":"a"}"#, Subject::Strangers),
            (r#"{"at_ms":5,"event":"shares_moved","decision":{}}"#, Subject::Decisions),
        ] {
            assert_eq!(of(line), Some((subject, Timestamp(5))), "{line}");
        }
        for line in [
            r#"{"at_ms":5,"event":"host_held","host":"h2"}"#,
            r#"{"at_ms":5,"event":"operator_request","uid":0}"#,
            r#"{"at_ms":5,"event":"host_joined","host":7}"#,
            r#"{"event":"host_joined","host":"h2"}"#,
            "nothing",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    /// A name in a list that no event has would hold nothing.
    #[test]
    fn the_lists_name_events_that_exist() {
        let names = serde_json::from_str::<gleaner_types::event::Event>(r#"{"none":{}}"#).unwrap_err().to_string();
        for name in BY_HOSTS.iter().chain(&BY_STRANGERS).chain(&DECISIONS) {
            assert!(names.contains(&format!("`{name}`")), "{name}");
        }
    }
}
