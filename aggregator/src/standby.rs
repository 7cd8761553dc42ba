//! Several aggregators, of which one leads and the others stand by: who leads is decided in etcd, and so is what the
//! next leader goes on with.
//!
//! A leader holds a key that lives by a lease. It stops commanding before the lease can have ended at etcd, counted from
//! the moment its last successful renewal was sent (`Mandate`); every command carries its epoch, larger than any
//! before, and agents refuse older ones. So no two ever command one host: the first rule holds where the leader's clock
//! runs, the second where it does not (a virtual machine that was paused as a whole). What must be said of the second:
//! until the new leader's first command reaches a host, that host obeys the old one, and only that one.
//!
//! A leader that lost its mandate does not stand by again: it ends, and whoever watches over it starts it anew. Nothing
//! of what it had in mind can then come out late.

mod election;
mod etcd;
mod mandate;
mod replica;

use std::path::PathBuf;
use std::time::Duration;

use gleaner_daemon::config::Section;
use gleaner_daemon::metrics::Page;
use gleaner_daemon::service::Watchdog;
use gleaner_planner::controller::Controller;
use gleaner_types::id::HostId;
use gleaner_wire::StandsBy;
use tokio::sync::{mpsc, watch};

use crate::enrolment::Admissions;
use crate::metrics::Pulse;
use crate::shell::{Arrival, Declined, Joining};
pub(crate) use election::{Election, Role, Won};
pub(crate) use etcd::TlsFiles;
use gleaner_api::{ApiError, ErrorCode, Leadership, Overview, Request, Response};
pub(crate) use mandate::Mandate;
pub(crate) use replica::Replica;

/// Most endpoints.
const MOST_ENDPOINTS: usize = 16;

/// How to take part in leading and standing by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbySettings {
    /// etcd's client URLs.
    pub(crate) endpoints: Vec<String>,
    /// This aggregator's name, for people.
    pub(crate) name: HostId,
    /// How long a leader's lease lasts without renewal.
    pub(crate) ttl: Duration,
    /// What all keys begin with.
    pub(crate) prefix: String,
    /// Certificates for `https://` endpoints.
    pub(crate) tls: Option<TlsFiles>,
    /// The leader makes etcd forget what keys held minutes ago.
    pub(crate) compact: bool,
}

impl StandbySettings {
    /// From the config's section, if it is there and good.
    pub(crate) fn from_section(mut section: Section<'_>, local_host: Option<&HostId>) -> Option<Self> {
        let endpoints: Vec<String> =
            section.texts("endpoints").iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        if !(1..=MOST_ENDPOINTS).contains(&endpoints.len()) {
            let count = endpoints.len();
            section.reject("endpoints", format_args!("has {count} entries; it must have 1 to {MOST_ENDPOINTS}"));
        }
        let plain = |url: &str| {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
            (1..=256).contains(&rest.len())
                && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte))
        };
        if let Some(bad) = endpoints.iter().find(|url| !plain(url)) {
            section
                .reject("endpoints", format_args!("holds {bad:?}; it must be http://HOST:PORT or https://HOST:PORT"));
        }
        let ca = section.optional_path("ca");
        let (certificate, key) = (section.optional_path("certificate"), section.optional_path("key"));
        if certificate.is_some() != key.is_some() {
            section.reject("key", "and `certificate` go together");
        }
        let secure = endpoints.iter().any(|url| url.starts_with("https://"));
        if secure != ca.is_some() {
            section.reject("ca", "is needed for endpoints with https://, and only for those");
        }
        let name = section.optional_parsed("name").or_else(|| local_host.cloned());
        let prefix = section.optional_text("prefix").unwrap_or_else(|| "/gleaner".to_owned());
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
        if prefix.is_empty() || prefix.len() > 128 || !prefix.bytes().all(good) {
            section.reject("prefix", format_args!("is {prefix:?}; it must be 1 to 128 letters, digits and /-_."));
        }
        Some(Self {
            endpoints,
            ttl: Duration::from_secs(section.integer("ttl_s", 10, 3..=60)),
            prefix,
            tls: ca.map(|ca: PathBuf| TlsFiles { ca, own: certificate.zip(key) }),
            compact: section.flag("compact", true),
            name: name?,
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// How long one call of etcd may take, per endpoint: an etcd that hangs must leave time for the others.
    fn time_limit(&self) -> Duration {
        self.ttl / 5
    }
}

/// What a leader has, beside what an aggregator alone has.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) name: HostId,
    pub(crate) epoch: u64,
    /// Where its state came from.
    pub(crate) state_from: &'static str,
    pub(crate) replica: Replica,
}

impl Leading {
    /// What the last leader left in etcd; where there is nothing yet, `own` of this aggregator's store, or `fresh`. Blocks.
    ///
    /// # Errors
    /// A state that is there and cannot be read: to lead without it would forget jobs.
    pub(crate) fn take_over(
        settings: &StandbySettings,
        won: &Won,
        own: Option<(Controller, Admissions)>,
        fresh: Controller,
    ) -> Result<(Controller, Admissions, Self), String> {
        let ((mut state, admissions), state_from) = match (replica::load(settings)?, own) {
            (Some(last), _) => (last, "etcd"),
            (None, Some(own)) => (own, "own store"),
            (None, None) => ((fresh, Admissions::default()), "nowhere"),
        };
        state.set_epoch(won.epoch);
        let replica = Replica::start(settings, won)?;
        let leading = Self { name: settings.name.clone(), epoch: won.epoch, state_from, replica };
        Ok((state, admissions, leading))
    }

    /// How it is shown.
    pub(crate) fn view(&self) -> Leadership {
        let leader = Some(self.name.clone());
        Leadership {
            name: self.name.clone(),
            leads: true,
            leader,
            epoch: Some(self.epoch),
            error: self.replica.error(),
        }
    }
}

/// Who leads, in words.
fn who_leads(role: &Role) -> String {
    match (&role.leader, &role.error) {
        (Some((leader, _)), _) => format!("{leader} leads; ask there"),
        (None, Some(error)) => format!("who leads is not known: {error}"),
        (None, None) => "nobody leads yet".to_owned(),
    }
}

/// Answers whatever arrives while this aggregator stands by, until it is dropped.
pub(crate) async fn stand_by(
    arrivals: &mut mpsc::Receiver<Arrival>,
    name: &HostId,
    role: &watch::Receiver<Role>,
    pulse: &Pulse,
    configured: &mut Option<Arrival>,
    overview: impl Fn(Leadership) -> Overview,
) -> std::convert::Infallible {
    let mut watchdog = Watchdog::of_this_process();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        let arrival = tokio::select! {
            arrival = arrivals.recv() => arrival,
            _ = ticks.tick() => {
                watchdog.works();
                pulse.stands_by(format!("this aggregator ({name}) stands by; {}", who_leads(&role.borrow())));
                continue;
            }
        };
        let Some(arrival) = arrival else { return std::future::pending().await };
        let role = role.borrow().clone();
        let message = format!("this aggregator ({name}) stands by; {}", who_leads(&role));
        let Role { leader, error } = role;
        let (leader, epoch) = leader.unzip();
        match arrival {
            // Whoever asks may have gone away, and needs no answer then.
            Arrival::Joined(joined) => {
                _ = joined.events_through.send(Err(Declined::StandsBy(StandsBy { leader })));
            }
            Arrival::Joining(Joining { answer, .. }) => _ = answer.send(Err(message)),
            Arrival::Api { request: Request::Overview, answer, .. } => {
                let view = Leadership { name: name.clone(), leads: false, leader, epoch, error };
                _ = answer.send(Response::Overview(overview(view)));
            }
            Arrival::Api { answer, .. } => {
                _ = answer.send(Response::Error(ApiError { code: ErrorCode::Unavailable, message }));
            }
            // What there is to tell is its readiness.
            Arrival::Scraped { answer } => _ = answer.send(Page::default()),
            changed @ Arrival::Configured { .. } => *configured = Some(changed),
            _ => {}
        }
    }
}

/// Answers of etcd and a state from it, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    etcd::fuzz(data);
    replica::fuzz(data);
}

#[cfg(test)]
pub(crate) use replica::write_golden;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod config_tests {
    use std::path::Path;

    use gleaner_daemon::config::Source;

    use super::*;

    fn load(keys: &str) -> Result<StandbySettings, String> {
        let source = Source::from_text(Path::new("a.toml"), &format!("[standby]\n{keys}\n"));
        let document = source.parse();
        let mut root = document.root();
        let settings = StandbySettings::from_section(root.section("standby"), HostId::new("m1").ok().as_ref());
        drop(root);
        document.finish(settings).map_err(|problems| problems.to_string())
    }

    #[test]
    fn the_least_config_names_endpoints() {
        let settings = load("endpoints = ['http://10.0.0.1:2379/', 'http://[::1]:2379']").unwrap();
        assert_eq!(settings.endpoints, ["http://10.0.0.1:2379", "http://[::1]:2379"]);
        assert_eq!((settings.name.as_str(), settings.ttl.as_secs(), settings.tls), ("m1", 10, None));
        assert_eq!(settings.prefix, "/gleaner");
        let secure =
            load("endpoints = ['https://e:1']\nca = '/ca'\ncertificate = '/c'\nkey = '/k'\nname = 'b'").unwrap();
        assert_eq!(secure.tls.unwrap().own, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn mistakes_are_named() {
        for (keys, part) in [
            ("", "`standby.endpoints` has 0 entries"),
            ("endpoints = ['10.0.0.1:2379']", "holds \"10.0.0.1:2379\"; it must be http://HOST:PORT"),
            ("endpoints = ['http://u@h:1/x']", "it must be http://HOST:PORT"),
            ("endpoints = ['https://h:1']", "`standby.ca` is needed"),
            ("endpoints = ['http://h:1']\nca = '/ca'", "`standby.ca` is needed"),
            ("endpoints = ['https://h:1']\nca = '/ca'\nkey = '/k'", "`standby.key` and `certificate` go together"),
            ("endpoints = ['http://h:1']\nttl_s = 1", "`standby.ttl_s` is 1"),
            ("endpoints = ['http://h:1']\nprefix = 'a b'", "`standby.prefix` is \"a b\""),
            ("endpoints = ['http://h:1']\nname = 'A B'", "`standby.name`"),
        ] {
            let said = load(keys).unwrap_err();
            assert!(said.contains(part), "{part}\nnot in\n{said}");
        }
    }
}
