//! A real PostgreSQL that syncs each commit. In: the setup. Out: the times of its transactions, from pgbench's own log.
//! Called by [`super`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::load::Answer;
use super::setup::Setup;
use crate::children::{Owned, ends_with_this};
use crate::network::run_quietly;
use crate::{host, interrupt};

/// Transactions a second, open loop: pgbench counts a latency from when the transaction was due.
const RATE: &str = "40";
const CLIENTS: &str = "4";
/// Scale of pgbench's tables: some 30 MB.
const SCALE: &str = "2";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A server.
pub(super) struct Postgres {
    server: Owned,
    programs: PathBuf,
    folder: PathBuf,
}

/// Where its programs are: the newest version's, or what is in `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.extend(host::program("postgres").and_then(|program| Some(program.parent()?.to_owned())));
    folders
        .into_iter()
        .rev()
        .find(|folder| ["postgres", "initdb", "pgbench"].iter().all(|name| folder.join(name).is_file()))
}

pub(super) fn missing() -> Option<String> {
    if programs().is_none() {
        return Some("no PostgreSQL with initdb and pgbench here".to_owned());
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.lines().any(|line| line.starts_with("postgres:")) {
        return Some("no user `postgres` here, and PostgreSQL does not run as root".to_owned());
    }
    host::program("setpriv").is_none().then(|| "no program `setpriv` here".to_owned())
}

/// A command as the user that PostgreSQL runs as.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command.current_dir("/").stdin(Stdio::null());
    command
}

impl Postgres {
    pub(super) fn start(setup: &Setup) -> anyhow::Result<Self> {
        let programs = programs().context("no PostgreSQL here")?;
        let (data, folder) = (setup.scratch.join("postgres"), setup.folder.join("postgres"));
        let fresh = !data.join("filled").exists();
        if fresh {
            _ = std::fs::remove_dir_all(&data);
        }
        for path in [&data, &folder] {
            std::fs::create_dir_all(path)?;
            run_quietly(Command::new("chown").arg("postgres:").arg(path))?;
            run_quietly(Command::new("chmod").arg("700").arg(path))?;
        }
        if fresh {
            let mut initdb = as_postgres(&programs.join("initdb"));
            initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-D"]).arg(&data);
            run_quietly(&mut initdb)?;
        }
        // What a killed server left.
        _ = std::fs::remove_file(data.join("postmaster.pid"));
        let log = std::fs::File::create(setup.folder.join("postgres.log"))?;
        let mut command = as_postgres(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(&folder);
        for setting in
            ["listen_addresses=", "shared_buffers=32MB", "max_wal_size=64MB", "min_wal_size=32MB", "fsync=on"]
        {
            command.args(["-c", setting]);
        }
        command.stdout(log.try_clone()?).stderr(log);
        ends_with_this(&mut command);
        let server = Owned::start(&mut command).context("failed to start PostgreSQL")?;
        let mut own = Self { server, programs, folder };
        if let Err(error) = own.wait(&setup.folder.join("postgres.log")) {
            // What a full disk or a kill made of the data is not recovered; the next round begins anew.
            _ = std::fs::remove_file(data.join("filled"));
            return Err(error);
        }
        if fresh {
            run_quietly(own.pgbench().args(["-i", "-q", "-s", SCALE]))?;
            std::fs::write(data.join("filled"), "")?;
        }
        Ok(own)
    }

    fn wait(&mut self, log: &Path) -> anyhow::Result<()> {
        let socket = self.folder.join(".s.PGSQL.5432");
        let programs = self.programs.clone();
        let folder = self.folder.clone();
        let server = &mut self.server;
        let answers = || {
            let mut ask = as_postgres(&programs.join("psql"));
            ask.args(["-X", "-q", "-h"]).arg(&folder).args(["-d", "postgres", "-c", "select 1"]);
            socket.exists() && run_quietly(&mut ask).is_ok()
        };
        if !interrupt::until(START_TIMEOUT, || server.ended() || answers())? || server.ended() {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            bail!("PostgreSQL does not start: {}", said.lines().last().unwrap_or_default());
        }
        Ok(())
    }

    fn pgbench(&self) -> Command {
        let mut command = as_postgres(&self.programs.join("pgbench"));
        command.arg("-h").arg(&self.folder).env("PGDATABASE", "postgres").env("PGUSER", "postgres");
        command
    }

    /// Runs pgbench for this long.
    pub(super) fn measure(&mut self, time: Duration) -> anyhow::Result<Answer> {
        let prefix = self.folder.join("latency");
        let seconds = time.as_secs().max(1).to_string();
        let mut command = self.pgbench();
        command.args(["-n", "-l", "-c", CLIENTS, "-R", RATE, "-T", &seconds, "--log-prefix"]).arg(&prefix);
        ends_with_this(&mut command);
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().context("failed to start pgbench")?;
        let mut answer = Answer::default();
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("latency.") {
                read(&std::fs::read_to_string(entry.path())?, &mut answer);
                std::fs::remove_file(entry.path())?;
            }
        }
        // pgbench ends badly when a client lost its connection.
        answer.failures += u64::from(!ended.success());
        answer.killed = self.server.ended();
        Ok(answer)
    }
}

/// Lines of pgbench's log: client, transaction, microseconds or a word, and more.
fn read(log: &str, answer: &mut Answer) {
    for line in log.lines() {
        match line.split_whitespace().nth(2).map(str::parse::<f64>) {
            Some(Ok(microseconds)) => answer.times_ms.push(microseconds / 1_000.0),
            // `failed` or `skipped`.
            Some(Err(_)) => answer.failures += 1,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbenchs_log_is_read() {
        let mut answer = Answer::default();
        read("0 199 2241 0 1175850568 995598 12\n1 3 failed 0 1 2\n0 200 1500 0 1 2 0\ntorn\n", &mut answer);
        assert_eq!((answer.times_ms, answer.failures), (vec![2.241, 1.5], 1));
    }
}
