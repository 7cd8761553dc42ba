//! Errors of a source. In: a description's field, or a failure on a connection. Out: errors whose texts are bounded and
//! hold no secrets. Each source makes them; `applications` shows them to operators.

use std::io;

use gleaner_types::application::ResponseTime;

use crate::http::TlsError;

/// Longest query, in bytes: what fits into an address everywhere.
pub(super) const LONGEST_QUERY: usize = 4_096;
/// Longest name of a metric or a label and longest value of a label, in bytes, and most labels of a selection.
pub(super) const LONGEST_METRIC: usize = 256;
pub(super) const LONGEST_LABEL: usize = 1_024;
pub(super) const MOST_LABELS: usize = 32;
/// Longest connection string, in bytes.
pub(super) const LONGEST_CONNECTION: usize = 2_048;
/// Most values between two readings. Chosen: some 300 a second at the usual interval.
pub(super) const MOST_VALUES: usize = 10_000;
/// Most arguments, and their most bytes together.
pub(super) const MOST_ARGUMENTS: usize = 64;
pub(super) const LONGEST_ARGUMENTS: usize = 16 << 10;

/// A source's description cannot be used. The text begins with the field; values are quoted, shortened and without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// An address that cannot be asked.
    #[error("url: is {url}; it must {rule}")]
    Url {
        /// The address, as it may be shown.
        url: String,
        /// What it must do or be.
        rule: &'static str,
    },
    /// A file of an access that cannot be meant.
    #[error("access.{field}: is {value}; it must {rule}")]
    Access {
        /// The field.
        field: &'static str,
        /// Its value, quoted.
        value: String,
        /// What it must do or be.
        rule: &'static str,
    },
    /// A pointer into a JSON document that is none.
    #[error("pointer: is {0}; it must begin with `/` and have at most 2048 bytes")]
    Pointer(String),
    /// A query of no or of too many bytes.
    #[error("query: is {0}; it must have 1 to {LONGEST_QUERY} bytes")]
    Query(String),
    /// A metric's name that none can have.
    #[error(
        "{field}: is {name}; it must be a metric's name, such as `http_request_duration_seconds`, of at most \
         {LONGEST_METRIC} bytes"
    )]
    Metric {
        /// The field.
        field: &'static str,
        /// The name, quoted.
        name: String,
    },
    /// Labels that no series can have.
    #[error(
        "labels: is {0}; there may be {MOST_LABELS}, with names such as `path` and values of at most {LONGEST_LABEL} bytes"
    )]
    Labels(String),
    /// A connection string that is too long.
    #[error("connection: has {bytes} bytes; at most {LONGEST_CONNECTION} are allowed")]
    ConnectionTooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// A connection string that PostgreSQL's client does not take.
    #[error("connection: {0}")]
    ConnectionMalformed(String),
    /// A connection string without a user or without a database.
    #[error("connection: has no {0}; it must be such as `host=/run/postgresql user=gleaner dbname=shop`")]
    ConnectionLacks(&'static str),
    /// A connection string for no host or for several.
    #[error("connection: has {0} hosts; it must have one, and one port")]
    ConnectionHosts(usize),
    /// A connection string whose host has no name.
    #[error("connection: has an empty host")]
    ConnectionEmptyHost,
    /// An encrypted connection to a server that is not verified.
    #[error("connection: sslmode: must be `verify-full`, or `disable`: a server that is not verified may be anybody")]
    ConnectionUnverified,
    /// A file for an encrypted connection that cannot be meant.
    #[error("connection: {word}: must {rule}")]
    ConnectionFile {
        /// The word of the connection string.
        word: &'static str,
        /// What it must do or be.
        rule: &'static str,
    },
    /// A socket on this machine is not encrypted.
    #[error("connection: sslmode: is `verify-full`; a Unix socket needs none, give a host's name or leave it out")]
    ConnectionSocket,
    /// A host that no certificate can be of.
    #[error("connection: host: is {0}; it must be a name or an address to be verified")]
    ConnectionName(String),
    /// No program.
    #[error("program: is empty; it must be a program by its absolute path, and its arguments")]
    NoProgram,
    /// A program that depends on a search path.
    #[error("program: is {0}; it must be an absolute path")]
    RelativeProgram(String),
    /// Too much on a program's command line.
    #[error(
        "program: has {arguments} arguments and {bytes} bytes; it may have {MOST_ARGUMENTS} and {LONGEST_ARGUMENTS}"
    )]
    LongProgram {
        /// How many arguments.
        arguments: usize,
        /// Their bytes and the program's.
        bytes: usize,
    },
    /// What the kernel cannot take.
    #[error("program: {0} or an argument contains a NUL")]
    NulInProgram(String),
}

/// A value was pushed that is not taken.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PushError {
    /// It cannot be a response time. The next reading says so as well.
    #[error("milliseconds: is {0:?}; it must be more than 0 and at most {max}", max = ResponseTime::LONGEST_MS)]
    Absurd(f64),
    /// Too many since the last reading.
    #[error("at most {MOST_VALUES} values are taken per interval")]
    TooMany,
}

/// A reading of PostgreSQL's statistics failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresError {
    /// There is no way to the server.
    #[error("failed to connect to {to}")]
    Connect {
        /// The address and port, or the socket.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// Certificates for it cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The connection string names no host.
    #[error("there is no host to connect to")]
    NoHost,
    /// The client's error, or what the server said, as one line.
    #[error("{0}")]
    Client(String),
    /// An answer without a row.
    #[error("PostgreSQL answered with no row")]
    NoRow,
    /// A column that is no number, or not there.
    #[error("{column}: is {found} in PostgreSQL's statistics")]
    NoNumber {
        /// Which.
        column: &'static str,
        /// Its value, quoted.
        found: String,
    },
    /// The database has no statistics of statements.
    #[error("run CREATE EXTENSION pg_stat_statements in database {database}, and have it in shared_preload_libraries")]
    NoExtension {
        /// Its name, quoted.
        database: String,
    },
    /// The extension is too old to have the columns.
    #[error("pg_stat_statements has version {0}; it must be 1.8 or later: ALTER EXTENSION pg_stat_statements UPDATE")]
    OldExtension(String),
}
