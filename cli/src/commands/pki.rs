//! `gleaner pki`: certificates. In: a folder. Out: an authority and certificates in it. Called by [`super`].

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::service::forbid_dumps;
use gleaner_net::tls::{Authority, Validity};

use crate::args::PkiCommand;
use crate::documents::print;
use crate::exit::End;

pub(super) fn run(command: &PkiCommand) -> anyhow::Result<End> {
    // The authority's key is in its memory from here on.
    forbid_dumps();
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
                "authority   {}\nits key     {}  (keep it safe: who has it can add hosts)\naggregator  {}\n\
                 next        `gleaner host invite NAME`, once the aggregator runs with these",
                certificate.display(),
                key.display(),
                aggregator.display()
            ))?;
        }
        PkiCommand::IssueAgent { host, authority, output, days } => {
            let folder = output.as_ref().unwrap_or(authority);
            make(folder)?;
            let issued = Authority::load(authority)?.issue_agent_for(host, validity(*days))?;
            let (certificate, key) = issued.write(folder, host.as_str())?;
            let certificate = certificate.display();
            print(&format!(
                "certificate {certificate}\nkey         {}\ncopy both, and ca.crt, to host {host}",
                key.display()
            ))?;
        }
        PkiCommand::RenewAggregator { authority, days } => {
            let issued = Authority::load(authority)?.issue_aggregator_for(validity(*days))?;
            let (certificate, key) = issued.write(authority, "aggregator")?;
            print(&format!(
                "certificate {}\nkey         {}\nnext        `systemctl reload gleaner-aggregator`",
                certificate.display(),
                key.display()
            ))?;
        }
    }
    Ok(End::Good)
}

fn validity(days: u64) -> Validity {
    Validity::starting(Clock::start().now(), Duration::from_secs(days * 86_400))
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("failed to make the folder {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::HostId;
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};

    use super::*;

    #[test]
    fn a_process_that_makes_certificates_cannot_be_dumped() {
        let folder = tempfile::tempdir().unwrap();
        let (authority, pair) = (folder.path().join("pki"), folder.path().join("pair"));
        std::fs::create_dir(&pair).unwrap();
        let host = HostId::new("h1").unwrap();
        let issue = PkiCommand::IssueAgent { host: host.clone(), authority: authority.clone(), output: None, days: 1 };
        let renew = PkiCommand::RenewAggregator { authority: authority.clone(), days: 1 };
        let commands = [PkiCommand::Init { folder: authority }, issue, renew];
        let mut all: Vec<Box<dyn Fn()>> = Vec::new();
        for command in commands {
            all.push(Box::new(move || _ = run(&command).unwrap()));
        }
        all.push(Box::new(move || crate::stack::write_certificates(&pair, &host).unwrap()));
        for step in all {
            set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
            step();
            assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        }
    }
}
