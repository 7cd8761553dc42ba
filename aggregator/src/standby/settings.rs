//! The section `[standby]` of the config. In: the section. Out: [`StandbySettings`], or what is wrong with it. Called by
//! the config; the election and the replica work by it.

use std::path::PathBuf;
use std::time::Duration;

use gleaner_daemon::config::Section;
use gleaner_types::id::HostId;

use crate::http::TlsFiles;

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
        let prefix = section.parsed("prefix", "/gleaner".to_owned());
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
        if prefix.is_empty() || prefix.len() > 128 || !prefix.bytes().all(good) {
            section.reject("prefix", format_args!("is {prefix:?}; it must be 1 to 128 letters, digits and /-_."));
        }
        Some(Self {
            endpoints,
            ttl: Duration::from_secs(section.integer("ttl_s", 10, 3..=60)),
            prefix,
            tls: ca.map(|ca: PathBuf| TlsFiles { ca: Some(ca), client: certificate.zip(key) }),
            compact: section.flag("compact", true),
            name: name?,
        })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// How long one call of etcd may take, per endpoint: an etcd that hangs must leave time for the others.
    pub(super) fn time_limit(&self) -> Duration {
        self.ttl / 5
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_daemon::config::{Problems, Source};

    use super::*;

    fn load(keys: &str) -> Result<StandbySettings, Problems> {
        let source = Source::from_text(Path::new("a.toml"), &format!("[standby]\n{keys}\n"));
        let document = source.parse();
        let mut root = document.root();
        let settings = StandbySettings::from_section(root.section("standby"), HostId::new("m1").ok().as_ref());
        drop(root);
        document.finish(settings)
    }

    #[test]
    fn the_least_config_names_endpoints() {
        let settings = load("endpoints = ['http://10.0.0.1:2379/', 'http://[::1]:2379']").unwrap();
        assert_eq!(settings.endpoints, ["http://10.0.0.1:2379", "http://[::1]:2379"]);
        assert_eq!((settings.name.as_str(), settings.ttl.as_secs(), settings.tls), ("m1", 10, None));
        assert_eq!(settings.prefix, "/gleaner");
        let secure =
            load("endpoints = ['https://e:1']\nca = '/ca'\ncertificate = '/c'\nkey = '/k'\nname = 'b'").unwrap();
        assert_eq!(secure.tls.unwrap().client, Some(("/c".into(), "/k".into())));
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
            let problems = load(keys).unwrap_err().to_string();
            assert!(problems.contains(part), "{part}\nnot in\n{problems}");
        }
    }
}
