//! One line of the audit log. Data only. The aggregator's shell makes it and its audit log writes it; `gleaner audit`
//! reads it.

use serde::{Deserialize, Serialize};

/// One line of the audit log. An order has two with the same `id`: one before it is done, one with its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// When, as RFC 3339 in UTC.
    pub time: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The order; counts up.
    pub id: u64,
    /// Who: the user's number.
    pub uid: u32,
    /// The user's name.
    pub user: String,
    /// The process that asked.
    pub pid: Option<i32>,
    /// What, in the words of the command line.
    pub request: String,
    /// `asked`, `done`, or `refused: ` with the reason.
    pub outcome: String,
}
