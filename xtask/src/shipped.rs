//! Checks of the Debian packages' contents. In: their lists of files. Out: links in documents that lead to no file of
//! the same package, and faults of units and users that can be found without building a package. Compiled for
//! `cargo test` alone, as tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The packages, and the folders of the manifests that say what is in them.
const PACKAGES: [(&str, &str); 3] =
    [("gleaner-agent", "agent"), ("gleaner-aggregator", "aggregator"), ("gleaner", "cli/gleaner")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Files whose names end like a pattern `FOLDER/*.md`, or the one file that it names.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let Some(end) = pattern.file_name().unwrap().to_str().unwrap().strip_prefix('*') else {
        return vec![pattern.into()];
    };
    let folder = std::fs::read_dir(pattern.parent().unwrap()).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    files.filter(|file| file.is_file() && file.to_str().unwrap().ends_with(end)).collect()
}

/// Sources by where a package installs them, of all below its folder of documents.
fn documents(package: &str, manifest: &str) -> BTreeMap<PathBuf, PathBuf> {
    let text = std::fs::read_to_string(root().join(manifest).join("Cargo.toml")).unwrap();
    let folder = format!("usr/share/doc/{package}/");
    let mut documents = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split('"').collect();
        let [_, source, _, to, ..] = words[..] else { continue };
        let Some(to) = to.strip_prefix(&folder) else { continue };
        let sources = match source {
            // build-debs.sh makes these of the originals.
            "target/release/packaging/docs/*.md" => {
                let others = ["README.md", "ARCHITECTURE.md"].map(|name| root().join(name));
                [matching(&root().join("docs/*.md")), others.to_vec()].concat()
            }
            source => matching(&root().join(manifest).join(source)),
        };
        documents.extend(sources.into_iter().map(|file| (Path::new(to).join(file.file_name().unwrap()), file)));
    }
    documents
}

/// A document as it is installed.
fn installed(source: &Path) -> String {
    let made = Command::new("sed").args(["-E", "-f", "packaging/shipped.sed"]).arg(source).current_dir(root()).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap()
}

/// Where the links of a document lead that stay on the machine, without the places within.
fn links(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    links
        .filter(|link| !link.contains("://") && !link.starts_with('#'))
        .map(|link| link.split('#').next().unwrap())
        .collect()
}

/// `folder/../file` is `file`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if plain.pop() => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn links_in_installed_documents_lead_to_installed_files() {
    let mut broken = BTreeSet::new();
    for (package, manifest) in PACKAGES {
        let documents = documents(package, manifest);
        let leads = |to: &Path| documents.keys().any(|file| file.starts_with(to));
        let pages: Vec<_> =
            documents.iter().filter(|(to, _)| to.extension().is_some_and(|kind| kind == "md")).collect();
        assert!(pages.len() > 20 && leads(Path::new("README.md")), "{package}: {documents:?}");
        for (page, source) in pages {
            let text = installed(source);
            let links = links(&text).into_iter().map(|link| plain(&page.with_file_name("").join(link)));
            broken.extend(
                links.filter(|to| !leads(to)).map(|to| format!("{package}: {} to {}", page.display(), to.display())),
            );
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_units_and_the_users_are_as_the_agent_needs_them() {
    let checked = Command::new("packaging/check-units.sh").current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    if let Some(skipped) = said.lines().find(|line| line.starts_with("SKIPPED: ")) {
        eprintln!("{skipped}");
    }
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
}
