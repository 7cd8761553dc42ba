//! The aggregator's config file. In: raw keys. Out: validated settings, or all problems at once. The defaults are in
//! this file only. Called by the daemon at its start and on a reload.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_api::DEFAULT_SOCKET;
use gleaner_daemon::config::{Key, Problems, Section, Source};
use gleaner_net::join::is_address;
use gleaner_net::tls::CERTIFICATE_LIFETIME;
use gleaner_net::transport::DEFAULT_PORT;
use gleaner_planner::controller::{DiskCapacities, Settings};
use gleaner_planner::pool::UserShares;
use gleaner_types::id::HostId;

use crate::event_log::EventLogSettings;
use crate::journal::JournalSettings;
use crate::operators::Operators;
use crate::standby::StandbySettings;

/// Path of the packaged config.
pub const DEFAULT_FILE: &str = "/etc/gleaner/aggregator.toml";

/// Keys that a running aggregator applies when it reloads its config; every other one needs a restart.
pub const AT_RUN_TIME: &[&str] = &[
    "controller.evaluation_interval_s",
    "controller.profile_period_s",
    "controller.control_interval_s",
    "controller.response_outage_s",
    "controller.disk_mb_s",
    "controller.command_lease_s",
    "controller.report_stale_after_s",
    "controller.ended_jobs_kept",
    "sharing.users",
    "event_log.max_mib",
    "event_log.files",
    "journal.max_mib",
    "journal.files",
];

/// A validated config.
#[derive(Debug, Clone)]
pub struct Config {
    /// UDP address for agents.
    pub listen: SocketAddr,
    /// The API's socket.
    pub socket: PathBuf,
    /// Its permissions.
    pub socket_mode: u32,
    /// Folder of everything that survives a restart.
    pub state_dir: PathBuf,
    /// The machine the aggregator runs on, by its agent's name.
    pub local_host: HostId,
    /// Most agents.
    pub max_agents: usize,
    /// Certificate of the authority.
    pub ca: PathBuf,
    /// The aggregator's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority's key: only with it hosts can be invited and certificates renewed. Where the config names none,
    /// `ca.key` beside [`Config::ca`] is taken if it is there.
    pub authority_key: Option<PathBuf>,
    /// Lifetime of agents' certificates.
    pub certificate_lifetime: Duration,
    /// Addresses under which agents reach the aggregator, for join tokens.
    pub advertise: Vec<String>,
    /// Who may ask and order what.
    pub operators: Operators,
    /// Times and weights the controller works by.
    pub controller: Settings,
    /// Event log.
    pub event_log: EventLogSettings,
    /// Input journal.
    pub journal: JournalSettings,
    /// TCP address of the metrics; `None` is no listener.
    pub metrics: Option<SocketAddr>,
    /// How to lead or stand by; `None` for an aggregator alone.
    pub standby: Option<StandbySettings>,
}

impl Config {
    /// Reads and validates a config file.
    ///
    /// # Errors
    /// All [`Problems`] of the file at once.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        Self::from_source(&Source::read(file)?)
    }

    /// Validates a config.
    ///
    /// # Errors
    /// All [`Problems`] at once.
    pub fn from_source(source: &Source) -> Result<Self, Problems> {
        Self::with_keys(source).map(|(config, _)| config)
    }

    /// Validates a config, and returns the keys it may have.
    ///
    /// # Errors
    /// All [`Problems`] at once.
    pub fn with_keys(source: &Source) -> Result<(Self, Vec<Key>), Problems> {
        let document = source.parse();
        let config = Self::from_root(document.root());
        let keys = document.keys();
        Ok((document.finish(config)?, keys))
    }

    fn from_root(mut root: Section<'_>) -> Option<Self> {
        let listen = root.parsed("listen", SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)));
        let socket = root.path("socket", DEFAULT_SOCKET);
        let socket_mode = root.choice("socket_mode", 0o660, &[("0600", 0o600), ("0660", 0o660), ("0666", 0o666)]);
        let state_dir = root.path("state_dir", "/var/lib/gleaner");
        let max_agents = usize::try_from(root.integer("max_agents", 10_000, 1..=1_000_000)).ok()?;
        let local_host = match root.optional_parsed("local_host") {
            Some(host) => Some(host),
            None if root.has("local_host") => None,
            None => HostId::of_this_machine()
                .map_err(|e| {
                    root.reject(
                        "local_host",
                        format_args!("is missing, and the machine's own name does not serve: {e}"),
                    )
                })
                .ok(),
        };
        let advertise = advertise(&mut root, listen);
        let standby =
            root.has("standby").then(|| StandbySettings::from_section(root.section("standby"), local_host.as_ref()));
        let mut tls = root.section("tls");
        let ca = tls.path("ca", "/etc/gleaner/ca.crt");
        let authority_key = tls.optional_path("authority_key");
        let mut log = root.section("event_log");
        let mut journal = root.section("journal");
        let mut metrics = root.section("metrics");
        Some(Self {
            listen,
            socket,
            socket_mode,
            max_agents,
            ca,
            authority_key,
            certificate_lifetime: Duration::from_secs_f64(
                tls.number("certificate_lifetime_h", CERTIFICATE_LIFETIME.as_secs_f64() / 3_600.0, 0.005..=87_600.0)
                    * 3_600.0,
            ),
            advertise,
            certificate: tls.path("certificate", "/etc/gleaner/aggregator.crt"),
            key: tls.path("key", "/etc/gleaner/aggregator.key"),
            operators: Operators::from_section(root.section("operators")),
            controller: Settings { users: users(root.section("sharing")), ..controller(root.section("controller")) },
            event_log: EventLogSettings {
                folder: log.path("folder", &state_dir.join("events").display().to_string()),
                max_bytes: log.integer("max_mib", 16, 1..=4_096) << 20,
                files: usize::try_from(log.integer("files", 8, 1..=1_000)).ok()?,
            },
            journal: JournalSettings {
                folder: journal.path("folder", &state_dir.join("journal").display().to_string()),
                max_bytes: journal.integer("max_mib", 64, 1..=4_096) << 20,
                files: usize::try_from(journal.integer("files", 4, 1..=1_000)).ok()?,
            },
            metrics: metrics.optional_parsed("listen"),
            standby: match standby {
                Some(standby) => Some(standby?),
                None => None,
            },
            state_dir,
            local_host: local_host?,
        })
    }
}

/// Addresses for join tokens: those of the config, or the one it listens on, or this machine's name.
fn advertise(root: &mut Section<'_>, listen: SocketAddr) -> Vec<String> {
    let addresses = root.texts("advertise");
    if let Some(bad) = addresses.iter().find(|address| !is_address(address)) {
        root.reject(
            "advertise",
            format_args!("has {bad:?}; it must be HOST:PORT, such as \"10.0.0.5:{DEFAULT_PORT}\""),
        );
    }
    if !addresses.is_empty() {
        return addresses;
    }
    if !listen.ip().is_unspecified() {
        return vec![listen.to_string()];
    }
    HostId::of_this_machine().map(|name| format!("{name}:{}", listen.port())).into_iter().collect()
}

fn controller(mut section: Section<'_>) -> Settings {
    let defaults = Settings::default();
    Settings {
        evaluation_interval_s: section.number("evaluation_interval_s", defaults.evaluation_interval_s, 1.0..=3_600.0),
        profile_period_s: section.number("profile_period_s", defaults.profile_period_s, 1.0..=3_600.0),
        control_interval_s: section.number("control_interval_s", defaults.control_interval_s, 1.0..=3_600.0),
        response_outage_s: section.number("response_outage_s", defaults.response_outage_s, 10.0..=86_400.0),
        command_lease_s: section.number("command_lease_s", defaults.command_lease_s, 3.0..=600.0),
        report_stale_after_s: section.number("report_stale_after_s", defaults.report_stale_after_s, 2.0..=600.0),
        ended_jobs_kept: u32::try_from(section.integer(
            "ended_jobs_kept",
            defaults.ended_jobs_kept.into(),
            0..=100_000,
        ))
        .unwrap_or(defaults.ended_jobs_kept),
        users: UserShares::EQUAL,
        disks: DiskCapacities::from_entries(&section.texts("disk_mb_s")).unwrap_or_else(|problem| {
            section.reject("disk_mb_s", problem);
            DiskCapacities::NONE
        }),
    }
}

/// Weights of users and of groups of users, as `NAME=WEIGHT`.
fn users(mut section: Section<'_>) -> UserShares {
    let entries = section.texts("users");
    UserShares::from_entries(&entries).unwrap_or_else(|problems| {
        problems.iter().for_each(|problem| section.reject("users", problem));
        UserShares::EQUAL
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, Problems> {
        Config::from_source(&Source::from_text(Path::new("aggregator.toml"), text))
    }

    #[test]
    fn the_packaged_config_is_valid_and_shows_the_defaults() {
        let text = include_str!("../../systemd/aggregator.toml");
        let config = load(text).unwrap();
        let shown = |text: &str| {
            let shown = |line| str::strip_prefix(line, "#").filter(|own| own.contains(" = ") && !own.starts_with(' '));
            text.lines().map(|line| shown(line).unwrap_or(line)).collect::<Vec<_>>().join("\n")
        };
        let (always, standby) = text.split_once("#[standby]").unwrap();
        assert_eq!(format!("{:?}", load(&shown(always)).unwrap()), format!("{config:?}"));
        // A section that is there or not: its endpoints have no default.
        let with = |keys: &str| format!("{:?}", load(&format!("local_host = 'a'\n[standby]\n{keys}")).unwrap());
        let shown = shown(standby);
        let endpoints = shown.lines().find(|line| line.starts_with("endpoints")).unwrap();
        assert_eq!(with(&shown), with(endpoints));
    }

    #[test]
    fn what_a_reload_takes_over_are_keys_there_are() {
        let (_, keys) = Config::with_keys(&Source::from_text(Path::new("aggregator.toml"), "")).unwrap();
        for key in AT_RUN_TIME {
            assert!(keys.iter().any(|known| known.path == *key), "{key}");
        }
    }

    #[test]
    fn several_mistakes_are_reported_together() {
        let message =
            load("listen = 'everywhere'\nsocket = 'a.sock'\n[controller]\nevaluation_interval_s = 0\nlease = 3\n")
                .unwrap_err()
                .to_string();
        for part in [
            "aggregator.toml:1: `listen` is \"everywhere\"",
            "aggregator.toml:2: `socket`",
            "aggregator.toml:4: `controller.evaluation_interval_s` is 0",
            "aggregator.toml:5: `controller.lease` is unknown",
        ] {
            assert!(message.contains(part), "{part}\nnot in\n{message}");
        }
    }

    #[test]
    fn weights_of_users_that_cannot_be_are_reported_with_what_they_are() {
        let users = |list: &str| load(&format!("local_host = 'a'\n[sharing]\nusers = [{list}]\n"));
        let good = users("'bob=0.5', 'physics/anna=3', 'physics=2'").unwrap();
        let expected = UserShares::new([("physics", 2.0), ("physics/anna", 3.0), ("bob", 0.5)]).unwrap();
        assert_eq!(good.controller.users, expected);
        for (list, said) in [
            ("'bob'", "has \"bob\"; it must be NAME=WEIGHT"),
            ("'bob=much'", "has \"bob=much\"; it must be NAME=WEIGHT"),
            ("'bob=NaN'", "gives \"bob\" the weight NaN; it must be 0.01 to 100"),
            ("'bob=0'", "gives \"bob\" the weight 0; it must be"),
            ("'bob=-1'", "gives \"bob\" the weight -1; it must be"),
            ("\"b\\u001bob=1\"", "user name \"b\\u{1b}ob\" is not valid"),
            ("'physics//anna=1'", "user name \"\" is not valid"),
            ("'physics/anna=1'", "has \"physics/anna\", and there is no group \"physics\""),
            ("'bob=1', 'bob=2'", "names \"bob\" twice"),
            ("'a=1', 'b=1', 'a/bob=1', 'b/bob=1'", "has user \"bob\" as \"a/bob\" and as \"b/bob\""),
        ] {
            let message = users(list).unwrap_err().to_string();
            let whole = format!("aggregator.toml:3: `sharing.users` {said}");
            let named = message.contains(&whole)
                || (message.contains("aggregator.toml:3: `sharing.users` has") && message.contains(said));
            assert!(named, "{said}\nnot in\n{message}");
        }
    }
}
