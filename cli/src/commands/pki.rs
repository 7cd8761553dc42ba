//! `gleaner pki`: certificates.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, bail};
use gleaner_common::tls::Authority;

use super::print;
use crate::End;
use crate::args::PkiCommand;

pub(super) fn run(command: &PkiCommand) -> anyhow::Result<End> {
    match command {
        PkiCommand::Init { folder } => {
            make(folder)?;
            if folder.join("ca.key").exists() {
                bail!("{} holds an authority already; a new one would shut every agent out", folder.display());
            }
            let authority = Authority::create()?;
            let (certificate, key) = authority.write(folder)?;
            let (aggregator, _) = authority.issue_aggregator()?.write(folder, "aggregator")?;
            print(&format!(
                "authority   {}\nits key     {}  (keep it safe: who has it can add hosts)\naggregator  {}",
                certificate.display(),
                key.display(),
                aggregator.display()
            ))?;
        }
        PkiCommand::IssueAgent { host, authority, output } => {
            let folder = output.as_ref().unwrap_or(authority);
            make(folder)?;
            let (certificate, key) = Authority::load(authority)?.issue_agent(host)?.write(folder, host.as_str())?;
            let certificate = certificate.display();
            print(&format!(
                "certificate {certificate}\nkey         {}\ncopy both, and ca.crt, to host {host}",
                key.display()
            ))?;
        }
        PkiCommand::IssueAggregator { authority } => {
            let (certificate, key) = Authority::load(authority)?.issue_aggregator()?.write(authority, "aggregator")?;
            print(&format!("certificate {}\nkey         {}", certificate.display(), key.display()))?;
        }
    }
    Ok(End::Good)
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("failed to make the folder {}", folder.display()))
}
