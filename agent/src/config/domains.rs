//! The keys of a volunteer that is Xen domains. In: the section `volunteer`. Out: the domains' names, the config files of those
//! that Gleaner makes, and what becomes of these. Called by the config.

use std::path::Path;

use gleaner_daemon::config::Section;
use gleaner_types::error::chain;

use crate::made_domains::{AtRestore, DomainConfig, DomainConfigError, UnusableFile};

/// Most Xen domains of a volunteer: each is asked for its state at every step of the guard.
const MOST: usize = 16;

/// The Xen domains of a volunteer; none where it is no such.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolunteerDomains {
    /// Names and UUIDs of all of them. The path of a file that cannot be used stands for the name that nobody knows, so that it is
    /// awaited as one that is not there, unless a domain was made from it before.
    pub names: Vec<String>,
    /// Those that Gleaner makes.
    pub configs: Vec<DomainConfig>,
    /// Files of `domain_configs` of which none can be made now.
    pub unusable: Vec<UnusableFile>,
    /// What becomes of those that Gleaner made when the host is restored, also where the volunteer is something else by now.
    pub at_restore: AtRestore,
}

/// `domains` and `domain_configs`, if the kind asks for them, and `domains_at_restore`.
pub(super) fn of(section: &mut Section<'_>) -> VolunteerDomains {
    let (mut names, files) = (section.texts("domains"), section.texts("domain_configs"));
    let at_restore = section.choice("domains_at_restore", AtRestore::default(), &AtRestore::WORDS);
    let none = VolunteerDomains { at_restore, ..VolunteerDomains::default() };
    if section.optional_text("kind").as_deref() != Some("domain") {
        return none;
    }
    if files.len() > MOST {
        section.reject("domain_configs", format_args!("has {} entries; it must have at most {MOST}", files.len()));
        return none;
    }
    let (mut configs, mut unusable): (Vec<DomainConfig>, Vec<UnusableFile>) = (Vec::new(), Vec::new());
    let mut add_name = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for file in files {
        match DomainConfig::read(Path::new(&file)) {
            Ok(config) => match configs.iter().find(|other| other.name == config.name) {
                Some(other) => {
                    let why =
                        format!("it makes a domain {:?}, as {} does; leave one out", config.name, other.file.display());
                    unusable.push(UnusableFile { file: file.into(), why });
                }
                None => {
                    add_name(config.name.clone());
                    configs.push(config);
                }
            },
            Err(error @ DomainConfigError::Relative) => {
                section.reject("domain_configs", format_args!("has {file:?}: {error}"));
                add_name(file);
            }
            Err(error) => {
                add_name(file.clone());
                unusable.push(UnusableFile { file: file.into(), why: chain(&error) });
            }
        }
    }
    let count = names.len();
    if !(1..=MOST).contains(&count) || names.iter().any(String::is_empty) {
        section.reject(
            "kind",
            format_args!(
                "is \"domain\", so `domains` must name 1 to {MOST} Xen domains, or `domain_configs` their files; there are \
                 {count}"
            ),
        );
    }
    VolunteerDomains { names, configs, unusable, at_restore }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gleaner_daemon::config::Source;

    use super::VolunteerDomains;
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
        let config = of("kind = 'none'\ndomain_configs = ['/x']\ndomains_at_restore = 'destroy'").unwrap();
        let none = VolunteerDomains { at_restore: AtRestore::Destroy, ..VolunteerDomains::default() };
        assert_eq!(config.volunteer_domains, none, "it is for those that were made before");
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
        let of_files = |files: &str| of(&format!("kind = 'domain'\ndomain_configs = [{files}]"));
        for (files, names, whose, why) in [
            (format!("'{bad}', '{two}'"), vec![bad.as_str(), "batch-2"], &bad, "it has no line such as name"),
            (format!("'{one}', '{same}'"), vec!["batch-1"], &same, "it makes a domain \"batch-1\", as "),
            (
                "'/nowhere/x.cfg'".to_owned(),
                vec!["/nowhere/x.cfg"],
                &"/nowhere/x.cfg".to_owned(),
                "it cannot be used: No such file",
            ),
        ] {
            let domains = of_files(&files).unwrap().volunteer_domains;
            assert_eq!(domains.names, names, "the rest of the config can be used");
            assert_eq!(domains.unusable.len(), 1, "{domains:?}");
            let said = domains.unusable[0].to_string();
            assert!(said.starts_with(&format!("`volunteer.domain_configs` has \"{whose}\": {why}")), "{said}");
        }
        for (files, part) in [
            ("'one.cfg'".to_owned(), "has \"one.cfg\": it must be an absolute path".to_owned()),
            (vec!["'/x'"; 17].join(","), "has 17 entries; it must have at most 16".to_owned()),
        ] {
            let said = of_files(&files).unwrap_err();
            assert!(said.contains(&part) && said.matches("agent.toml").count() == 1, "{part}\nnot alone in\n{said}");
        }
        let said = of("kind = 'domain'\ndomains = ['a']\ndomains_at_restore = 'stop'").unwrap_err();
        assert!(
            said.contains("`volunteer.domains_at_restore` is \"stop\"; it must be one of \"leave\", \"destroy\""),
            "{said}"
        );
    }
}
