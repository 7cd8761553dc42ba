//! The aggregator's config file: raw keys in, validated settings out, defaults in this one place.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use gleaner_common::config::{Problems, Section, Source};
use gleaner_common::id::HostId;
use gleaner_common::transport::DEFAULT_PORT;
use gleaner_planner::controller::Settings;

use crate::event_log::EventLogSettings;
use crate::journal::JournalSettings;

/// Where the packaged config lies.
pub const DEFAULT_FILE: &str = "/etc/gleaner/aggregator.toml";

/// Where the API's socket lies, unless the config says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/gleaner/aggregator.sock";

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
    /// Times the controller works by.
    pub controller: Settings,
    /// Event log.
    pub event_log: EventLogSettings,
    /// Input journal.
    pub journal: JournalSettings,
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
        let document = source.parse();
        let config = Self::from_root(document.root());
        document.finish(config)
    }

    fn from_root(mut root: Section<'_>) -> Option<Self> {
        let listen = root.parsed("listen", SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)));
        let socket = root.path("socket", DEFAULT_SOCKET);
        let socket_mode = root.choice("socket_mode", 0o660, &[("0600", 0o600), ("0660", 0o660)]);
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
        let mut tls = root.section("tls");
        let mut log = root.section("event_log");
        let mut journal = root.section("journal");
        Some(Self {
            listen,
            socket,
            socket_mode,
            max_agents,
            ca: tls.path("ca", "/etc/gleaner/ca.crt"),
            certificate: tls.path("certificate", "/etc/gleaner/aggregator.crt"),
            key: tls.path("key", "/etc/gleaner/aggregator.key"),
            controller: controller(root.section("controller")),
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
            state_dir,
            local_host: local_host?,
        })
    }
}

fn controller(mut section: Section<'_>) -> Settings {
    let defaults = Settings::default();
    Settings {
        evaluation_interval_s: section.number("evaluation_interval_s", defaults.evaluation_interval_s, 1.0..=3_600.0),
        profile_period_s: section.number("profile_period_s", defaults.profile_period_s, 1.0..=3_600.0),
        control_interval_s: section.number("control_interval_s", defaults.control_interval_s, 1.0..=3_600.0),
        command_lease_s: section.number("command_lease_s", defaults.command_lease_s, 3.0..=600.0),
        report_stale_after_s: section.number("report_stale_after_s", defaults.report_stale_after_s, 2.0..=600.0),
        ended_jobs_kept: u32::try_from(section.integer(
            "ended_jobs_kept",
            defaults.ended_jobs_kept.into(),
            0..=100_000,
        ))
        .unwrap_or(defaults.ended_jobs_kept),
    }
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
        let shown: String = text
            .lines()
            .map(|line| line.strip_prefix("#").filter(|l| l.contains(" = ") && !l.starts_with(' ')).unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(format!("{:?}", load(&shown).unwrap()), format!("{config:?}"));
    }

    #[test]
    fn several_mistakes_are_reported_together() {
        let said =
            load("listen = 'everywhere'\nsocket = 'a.sock'\n[controller]\nevaluation_interval_s = 0\nlease = 3\n")
                .unwrap_err()
                .to_string();
        for part in [
            "aggregator.toml:1: `listen` is \"everywhere\"",
            "aggregator.toml:2: `socket`",
            "aggregator.toml:4: `controller.evaluation_interval_s` is 0",
            "aggregator.toml:5: `controller.lease` is unknown",
        ] {
            assert!(said.contains(part), "{part}\nnot in\n{said}");
        }
    }
}
