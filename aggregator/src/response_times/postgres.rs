//! Source `postgres`. In: `pg_stat_statements` (PostgreSQL's manual, F.32). Out: the mean execution time of a database's
//! statements between two readings. Gleaner connects as a separate user, whose statements are not counted.

mod connection;
mod encryption;
mod socket;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use connection::{Connection, Statistics, error_text};
use encryption::{Encryption, Words};
use gleaner_types::application::ResponseTime;
use gleaner_types::error::chain;
use gleaner_types::text::duration;
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::answer::{WITHHELD, missing, quoted};
use super::error::{LONGEST_CONNECTION, PostgresError, SourceError};

/// Statements of its own user since the last reading up to which they are all taken for Gleaner's. Chosen: a reading is
/// three, and there may be two aggregators.
const MOST_OWN_CALLS: f64 = 20.0;

/// One database.
#[derive(Debug)]
pub(super) struct Postgres {
    config: Config,
    encryption: Option<Encryption>,
    interval: Duration,
    time_limit: Duration,
    connection: Option<Connection>,
    last: Option<(Statistics, Instant)>,
}

impl Postgres {
    pub(super) fn new(connection: &str, interval: Duration, time_limit: Duration) -> Result<Self, SourceError> {
        // Never quoted: there may be a password in it.
        if connection.len() > LONGEST_CONNECTION {
            return Err(SourceError::ConnectionTooLong { bytes: connection.len() });
        }
        let (connection, words) = Words::split(connection);
        let mut config: Config =
            connection.parse().map_err(|error| SourceError::ConnectionMalformed(error_text(&error)))?;
        for (value, what) in [(config.get_user(), "user"), (config.get_dbname(), "dbname")] {
            if value.is_none_or(|value| value.is_empty() || value.contains('\0')) {
                return Err(SourceError::ConnectionLacks(what));
            }
        }
        let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
        if hosts.len().max(addresses.len()) != 1 || config.get_ports().len() > 1 {
            return Err(SourceError::ConnectionHosts(hosts.len().max(addresses.len())));
        }
        if let [Host::Tcp(name)] = hosts
            && name.is_empty()
        {
            return Err(SourceError::ConnectionEmptyHost);
        }
        let encryption = words.encryption(&mut config)?;
        if config.get_application_name().is_none() {
            config.application_name("gleaner");
        }
        Ok(Self { config, encryption, interval, time_limit, connection: None, last: None })
    }

    pub(super) async fn read(&mut self) -> ResponseTime {
        let statistics = match timeout(self.time_limit, self.statistics()).await {
            Ok(Ok(statistics)) => statistics,
            failed => {
                self.connection = None;
                return match failed {
                    Ok(Err(error)) => missing(chain(&error)),
                    _ => missing(format!("no answer from PostgreSQL within {} s", self.time_limit.as_secs_f64())),
                };
            }
        };
        let now = Instant::now();
        match self.last.replace((statistics.clone(), now)) {
            None => missing("this is the first reading; the next one can tell what was between them"),
            // One reading that failed is bridged; a mean over more intervals is none of the last one.
            Some((_, at)) if now.duration_since(at) > self.interval * 5 / 2 => {
                missing(format!("the last reading was {} ago", duration(now.duration_since(at).as_secs_f64())))
            }
            Some((last, _)) => between(&last, &statistics, self.config.get_user().unwrap_or_default()),
        }
    }

    async fn statistics(&mut self) -> Result<Statistics, PostgresError> {
        let connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => Connection::open(&self.config, self.encryption.as_ref()).await?,
        };
        self.connection.insert(connection).statistics().await
    }
}

/// A connection string without its password. One that has none is shown as it is; of another, which may be written in
/// many ways, what it says is written anew.
pub(super) fn shown(connection: &str) -> String {
    let (rest, encryption) = Words::split(connection);
    let Ok(config) = rest.parse::<Config>() else { return WITHHELD.to_owned() };
    if config.get_password().is_none() {
        return connection.to_owned();
    }
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => format!("host={name}"),
        Host::Unix(folder) => format!("host={}", folder.display()),
    });
    let addresses = config.get_hostaddrs().iter().map(|address| format!("hostaddr={address}"));
    let ports = config.get_ports().iter().map(|port| format!("port={port}"));
    let user = config.get_user().map(|user| format!("user={user}"));
    let database = config.get_dbname().map(|name| format!("dbname={name}"));
    let password = format!("password={WITHHELD}");
    let words: Vec<String> = hosts
        .chain(addresses)
        .chain(ports)
        .chain(user)
        .chain(database)
        .chain([password])
        .chain(encryption.shown())
        .collect();
    words.join(" ")
}

/// What happened between two readings.
fn between(last: &Statistics, statistics: &Statistics, user: &str) -> ResponseTime {
    let (busy_ms, calls) = (statistics.busy_ms - last.busy_ms, statistics.calls - last.calls);
    if statistics.reset != last.reset {
        return missing("statistics were reset");
    }
    // Before the next one, because what is dropped makes the sums go back too.
    if statistics.dropped != last.dropped {
        return missing("pg_stat_statements is full and dropped statements; pg_stat_statements.max must be raised");
    }
    if calls < 0.0 || busy_ms < 0.0 {
        return missing("statistics were reset");
    }
    if calls > 0.0 {
        return ResponseTime::from_ms(busy_ms / calls);
    }
    // A database that has come to a standstill is not idle.
    if statistics.running > 0.0 {
        return ResponseTime::Stalled;
    }
    if statistics.hidden > 0.0 {
        return missing(format!(
            "no statement ended, and whether any runs is hidden: GRANT pg_monitor TO {}",
            quoted(user)
        ));
    }
    if statistics.own_calls - last.own_calls > MOST_OWN_CALLS {
        return missing(format!("all statements are of {}, which must be a user of Gleaner's own", quoted(user)));
    }
    ResponseTime::Idle
}
