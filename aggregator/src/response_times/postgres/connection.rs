//! A connection to PostgreSQL. In: an address. Out: a connection on which no more is read than a reading needs. Called
//! by the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

use super::super::answer::quoted;
use super::super::error::PostgresError;
use super::encryption::Encryption;
use super::socket::{Bounded, LONGEST_READING};

/// What the statistics say at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Statistics {
    /// Execution time of all statements since the reset, in milliseconds, and how many they are.
    pub(super) busy_ms: f64,
    pub(super) calls: f64,
    /// Statements of Gleaner's own user.
    pub(super) own_calls: f64,
    /// When the statistics were reset, and how often statements were dropped; from version 1.9 of the extension.
    pub(super) reset: Option<String>,
    pub(super) dropped: Option<String>,
    /// Statements that run now, and backends that do not show what they do.
    pub(super) running: f64,
    pub(super) hidden: f64,
}

/// A session that is logged in, in a database that has the statistics.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    driver: JoinHandle<()>,
    left: Arc<AtomicU64>,
    query: String,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects, and finds where the statistics are.
    pub(super) async fn open(config: &Config, encryption: Option<&Encryption>) -> Result<Self, PostgresError> {
        let left = Arc::new(AtomicU64::new(LONGEST_READING));
        let (client, driver) = match encryption {
            None => {
                let socket = Bounded::open(config, &left).await?;
                let (client, driver) = config.connect_raw(socket, NoTls).await.map_err(client)?;
                // It ends with the client, or when the server goes.
                (client, tokio::spawn(async move { _ = driver.await }))
            }
            Some(encryption) => {
                let connector = encryption.connector().await?;
                let socket = Bounded::open(config, &left).await?;
                let (client, driver) = config.connect_raw(socket, connector).await.map_err(client)?;
                (client, tokio::spawn(async move { _ = driver.await }))
            }
        };
        let mut connection = Self { client, driver, left, query: String::new() };
        connection.query = connection.find().await?;
        Ok(connection)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) async fn statistics(&self) -> Result<Statistics, PostgresError> {
        let row = self.ask(&self.query).await?.ok_or(PostgresError::NoRow)?;
        let number = |column| {
            let text = row.try_get(column).ok().flatten().unwrap_or("nothing");
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            number.ok_or_else(|| PostgresError::NoNumber { column, found: quoted(text) })
        };
        let text = |name: &str| row.try_get(name).ok().flatten().map(|text| text.chars().take(64).collect());
        Ok(Statistics {
            busy_ms: number("busy_ms")?,
            calls: number("calls")?,
            own_calls: number("own_calls")?,
            reset: text("reset"),
            dropped: text("dropped"),
            running: number("running")?,
            hidden: number("hidden")?,
        })
    }

    /// The query of a reading, for this server.
    async fn find(&self) -> Result<String, PostgresError> {
        let found = self
            .ask(
                "SET statement_timeout = '10s'; \
                 SELECT current_database() AS database, extversion AS version, quote_ident(nspname) AS schema \
                 FROM (SELECT 1) AS always LEFT JOIN (pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace) \
                 ON extname = 'pg_stat_statements'",
            )
            .await?
            .ok_or(PostgresError::NoRow)?;
        let field = |name| found.try_get(name).ok().flatten();
        let (Some(version), Some(schema)) = (field("version"), field("schema")) else {
            return Err(PostgresError::NoExtension { database: quoted(field("database").unwrap_or_default()) });
        };
        let parts: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
        if parts < vec![1, 8] {
            return Err(PostgresError::OldExtension(quoted(version)));
        }
        Ok(query(schema, parts >= vec![1, 9]))
    }

    /// The last row of an answer.
    async fn ask(&self, query: &str) -> Result<Option<SimpleQueryRow>, PostgresError> {
        self.left.store(LONGEST_READING, Ordering::Relaxed);
        let messages = self.client.simple_query(query).await.map_err(client)?;
        Ok(messages.into_iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        }))
    }
}

/// `recent` is from version 1.9 of the extension (PostgreSQL 14), which tells resets, losses and nested statements.
fn query(schema: &str, recent: bool) -> String {
    let (information, outermost) = match recent {
        true => (
            format!(
                "(SELECT stats_reset FROM {schema}.pg_stat_statements_info) AS reset, \
                 (SELECT dealloc FROM {schema}.pg_stat_statements_info) AS dropped"
            ),
            "AND toplevel",
        ),
        false => ("NULL AS reset, NULL AS dropped".to_owned(), ""),
    };
    let me = "(SELECT oid FROM pg_roles WHERE rolname = current_user)";
    let here = "(SELECT oid FROM pg_database WHERE datname = current_database())";
    let others = format!("FROM pg_stat_activity WHERE datid = {here} AND usesysid <> {me}");
    format!(
        "SELECT coalesce(sum(total_exec_time) FILTER (WHERE userid <> {me}), 0) AS busy_ms, \
         coalesce(sum(calls) FILTER (WHERE userid <> {me}), 0) AS calls, \
         coalesce(sum(calls) FILTER (WHERE userid = {me}), 0) AS own_calls, {information}, \
         (SELECT count(*) {others} AND state = 'active') AS running, \
         (SELECT count(*) {others} AND state IS NULL AND query = '<insufficient privilege>') AS hidden \
         FROM {schema}.pg_stat_statements WHERE dbid = {here} {outermost}"
    )
}

fn client(error: tokio_postgres::Error) -> PostgresError {
    PostgresError::Client(error_text(&error))
}

/// An error of the client, with what the server said.
pub(super) fn error_text(error: &tokio_postgres::Error) -> String {
    if let Some(server_error) = error.as_db_error() {
        let hint = server_error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return format!("PostgreSQL says: {}{hint}", server_error.message());
    }
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
