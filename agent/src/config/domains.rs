//! The keys of a volunteer that is Xen domains. In: the section `volunteer`. Out: the domains' names, the config files of those
//! that Gleaner makes, and what becomes of these. Called by the config.

use std::path::Path;

use gleaner_daemon::config::Section;
use gleaner_types::error::Chain;

use crate::made_domains::{AtRestore, DomainConfig};

/// Most Xen domains of a volunteer: each is asked for its state at every step of the guard.
const MOST: usize = 16;

/// The Xen domains of a volunteer; empty where it is none of such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolunteerDomains {
    /// Names and UUIDs of all of them.
    pub names: Vec<String>,
    /// Those that Gleaner makes.
    pub configs: Vec<DomainConfig>,
    /// What becomes of these when the host is restored.
    pub at_restore: AtRestore,
}

/// `domains`, `domain_configs` and `domains_at_restore`, if the kind asks for them.
pub(super) fn of(section: &mut Section<'_>) -> VolunteerDomains {
    let (mut names, files) = (section.texts("domains"), section.texts("domain_configs"));
    let at_restore = section.choice("domains_at_restore", AtRestore::default(), &AtRestore::WORDS);
    if section.optional_text("kind").as_deref() != Some("domain") {
        return VolunteerDomains::default();
    }
    if files.len() > MOST {
        section.reject("domain_configs", format_args!("has {} entries; it must have at most {MOST}", files.len()));
        return VolunteerDomains::default();
    }
    let mut configs: Vec<DomainConfig> = Vec::new();
    for file in &files {
        match DomainConfig::read(Path::new(file)) {
            Ok(config) => match configs.iter().find(|other| other.name == config.name) {
                Some(other) => section.reject(
                    "domain_configs",
                    format_args!(
                        "has {file:?} and {:?}, which both make a domain {:?}; leave one out",
                        other.file.display().to_string(),
                        config.name
                    ),
                ),
                None => configs.push(config),
            },
            Err(error) => section.reject("domain_configs", format_args!("has {file:?}: {}", Chain(&error))),
        }
    }
    for config in &configs {
        if !names.contains(&config.name) {
            names.push(config.name.clone());
        }
    }
    // A file that cannot be used is told, and needs no second complaint.
    let count = names.len() + (files.len() - configs.len());
    if !(1..=MOST).contains(&count) || names.iter().any(String::is_empty) {
        section.reject(
            "kind",
            format_args!(
                "is \"domain\", so `domains` must name 1 to {MOST} Xen domains, or `domain_configs` their files; there are \
                 {count}"
            ),
        );
    }
    VolunteerDomains { names, configs, at_restore }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gleaner_daemon::config::Source;

    use crate::act::VolunteerChoice;
    use crate::config::Config;
    use crate::made_domains::AtRestore;

    fn of(text: &str) -> Result<Config, String> {
        let text = format!("[host]\nname = 'h1'\n[volunteer]\n{text}\n");
        Config::from_source(&Source::from_text("agent.toml".as_ref(), &text)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_volunteer_of_xen_domains_names_them() {
        let config = of("kind = 'domain'\ndomains = ['batch-1', 'batch-2']").unwrap();
        assert_eq!((config.volunteer, config.volunteer_domains.names.len()), (VolunteerChoice::Domain, 2));
        assert_eq!(config.volunteer_domains.at_restore, AtRestore::Leave);
        assert!(of("domains = ['batch-1']").unwrap().volunteer_domains.names.is_empty(), "not used");
        for bad in ["", "domains = []", "domains = ['']"] {
            let said = of(&format!("kind = 'domain'\n{bad}")).unwrap_err();
            assert!(said.contains("agent.toml:4: `volunteer.kind` is \"domain\", so `domains` must name"), "{said}");
        }
    }

    #[test]
    fn or_the_files_they_are_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (one, same) = (file("one.cfg", "name = 'batch-1'"), file("same.cfg", "name = \"batch-1\""));
        let (two, bad) = (file("two.cfg", "name = 'batch-2'"), file("bad.cfg", "memory = 8"));
        let text = format!(
            "kind = 'domain'\ndomains = ['batch-0', 'batch-2']\ndomain_configs = ['{one}', '{two}']\ndomains_at_restore = 'destroy'"
        );
        let config = of(&text).unwrap();
        assert_eq!(config.volunteer_domains.names, ["batch-0", "batch-2", "batch-1"], "each once");
        assert_eq!(
            (config.volunteer_domains.configs.len(), config.volunteer_domains.at_restore),
            (2, AtRestore::Destroy)
        );
        assert_eq!(config.act_settings().volunteer_domains, config.volunteer_domains.names);
        let of_files = |files: &str| of(&format!("kind = 'domain'\ndomain_configs = [{files}]")).unwrap_err();
        for (files, part) in [
            (
                format!("'{bad}'"),
                format!("agent.toml:5: `volunteer.domain_configs` has \"{bad}\": it has no line such as name"),
            ),
            (
                format!("'{one}', '{same}'"),
                format!("has \"{same}\" and \"{one}\", which both make a domain \"batch-1\""),
            ),
            ("'one.cfg'".to_owned(), "has \"one.cfg\": it must be an absolute path".to_owned()),
            ("'/nowhere/x.cfg'".to_owned(), "has \"/nowhere/x.cfg\": it cannot be used: No such file".to_owned()),
            (vec!["'/x'"; 17].join(","), "has 17 entries; it must have at most 16".to_owned()),
        ] {
            let said = of_files(&files);
            assert!(said.contains(&part) && said.matches("agent.toml").count() == 1, "{part}\nnot alone in\n{said}");
        }
        let said = of("kind = 'domain'\ndomains = ['a']\ndomains_at_restore = 'stop'").unwrap_err();
        assert!(
            said.contains("`volunteer.domains_at_restore` is \"stop\"; it must be one of \"leave\", \"destroy\""),
            "{said}"
        );
    }
}
