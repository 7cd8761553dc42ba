//! What hosts have of the event log's first series. In: its lines, as they are written, taken back and rotated away. Out:
//! whether one more of a host's still has room there. Used by the log, which counts again what is there when it is opened.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gleaner_types::id::HostId;
use serde::Deserialize;

/// One host may have one in so many bytes. Chosen: years of what a host says that works, hours of what one can say.
const OF_ONE: u64 = 16;

/// All hosts together may have three in so many bytes; the rest is the aggregator's own.
const OF_ALL: u64 = 4;

/// Events of the aggregator's own that a host can cause as often as it may connect and answer.
const CAUSED: [&str; 6] =
    ["host_joined", "host_lost", "message_refused", "command_refused", "command_shortfall", "certificate_renewed"];

/// The host that a line comes from, or that caused it.
pub(super) fn concerns(line: &str) -> Option<HostId> {
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        event: Cow<'a, str>,
        #[serde(borrow, default)]
        agent: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        host: Option<Cow<'a, str>>,
    }
    let fields: Fields<'_> = serde_json::from_str(line).ok()?;
    let caused = fields.host.filter(|_| CAUSED.contains(&&*fields.event));
    HostId::new(fields.agent.or(caused)?).ok()
}

/// Bytes by host, of each file and of all.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Oldest first; the last is the one that is written.
    files: VecDeque<BTreeMap<HostId, u64>>,
    hosts: BTreeMap<HostId, u64>,
    all: u64,
    /// Hosts with lines that did not fit since the present file was begun.
    beyond: BTreeSet<HostId>,
}

impl Shares {
    /// A new file is begun; so many older ones are kept.
    pub(super) fn begin_file(&mut self, kept: usize) {
        self.files.push_back(BTreeMap::new());
        self.beyond.clear();
        while self.files.len() > kept + 1 {
            for (host, bytes) in self.files.pop_front().into_iter().flatten() {
                self.subtract(&host, bytes);
            }
        }
    }

    /// A line was written to the present file.
    pub(super) fn add(&mut self, host: &HostId, bytes: u64) {
        if self.files.is_empty() {
            self.files.push_back(BTreeMap::new());
        }
        for count in self.files.back_mut().into_iter().chain([&mut self.hosts]) {
            *count.entry(host.clone()).or_default() += bytes;
        }
        self.all += bytes;
    }

    /// A line of the present file was taken back.
    pub(super) fn take_back(&mut self, host: &HostId, bytes: u64) {
        if let Some(count) = self.files.back_mut().and_then(|file| file.get_mut(host)) {
            *count = count.saturating_sub(bytes);
            self.subtract(host, bytes);
        }
    }

    fn subtract(&mut self, host: &HostId, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(count) = self.hosts.get_mut(host) {
            *count = count.saturating_sub(bytes);
            if *count == 0 {
                self.hosts.remove(host);
            }
        }
    }

    /// A line of the host's goes into the present file: it fits, and so did all of its before. A host changes the series
    /// once in a file, and not with every long line.
    pub(super) fn take_in(&mut self, host: &HostId, bytes: u64, capacity: u64) -> bool {
        let fits = !self.beyond.contains(host) && self.fits(host, bytes, capacity);
        if !fits {
            self.beyond.insert(host.clone());
        }
        fits
    }

    /// A line of so many bytes leaves the host, and all hosts, within their parts of what the files hold.
    fn fits(&self, host: &HostId, bytes: u64, capacity: u64) -> bool {
        let of_host = self.hosts.get(host).copied().unwrap_or(0).saturating_add(bytes);
        of_host <= capacity / OF_ONE && self.all.saturating_add(bytes) <= capacity / OF_ALL * (OF_ALL - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rotated_away_or_taken_back_counts_no_more() {
        let [one, other] = ["h1", "h2"].map(|name| HostId::new(name).unwrap());
        let mut shares = Shares::default();
        shares.add(&one, 6);
        shares.begin_file(1);
        shares.add(&one, 3);
        shares.add(&other, 4);
        assert!(shares.fits(&one, 1, 160) && !shares.fits(&one, 2, 160), "a sixteenth for one");
        shares.take_back(&one, 3);
        assert!(shares.fits(&one, 4, 160) && !shares.fits(&one, 5, 160));
        shares.begin_file(1);
        assert!(shares.fits(&one, 10, 160) && !shares.fits(&one, 11, 160));
        for number in 0..12 {
            shares.add(&HostId::new(format!("many-{number}")).unwrap(), 10);
        }
        assert!(!shares.fits(&one, 1, 160), "three quarters for all");
        shares.begin_file(1);
        shares.begin_file(1);
        assert_eq!((shares.all, shares.hosts.len()), (0, 0));
        assert!(
            !shares.take_in(&one, 11, 160) && !shares.take_in(&one, 1, 160),
            "nothing behind a line that does not fit"
        );
        assert!(shares.take_in(&other, 1, 160), "of that host");
        shares.begin_file(1);
        assert!(shares.take_in(&one, 1, 160));
    }

    #[test]
    fn a_line_concerns_the_host_that_said_or_caused_it() {
        let host = |line: &str| concerns(line).map(|host| host.to_string());
        assert_eq!(host(r#"{"agent":"h1","event":"agent_started","host":"h2"}"#).as_deref(), Some("h1"));
        assert_eq!(host(r#"{"event":"host_joined","host":"h2"}"#).as_deref(), Some("h2"));
        for line in [r#"{"event":"host_held","host":"h2"}"#, r#"{"event":"host_joined","host":7}"#, "nothing"] {
            assert_eq!(host(line), None, "{line}");
        }
    }
}
