//! The local API's client. In: a request. Out: the aggregator's answer, or a stream of lines, from its Unix socket.
//! Called by operators' tools.

use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::time::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;

use crate::{ApiError, Request, Response};

/// A request got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers.
    #[error("no aggregator answers on {}; start one (gleaner-aggregator), or say where it is with --socket", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection broke, or the answer makes no sense.
    #[error("the aggregator's answer on {} cannot be read", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The aggregator says no.
    #[error(transparent)]
    Refused(#[from] ApiError),
}

/// A client of the aggregator on a socket. Each call is a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client; checks that somebody listens.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let client = Self { socket: socket.to_owned() };
        client.open().await.map(|_| client)
    }

    async fn open(&self) -> Result<UnixStream, ClientError> {
        UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Unreachable { socket: self.socket.clone(), source })
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), source }
    }

    async fn send(&self, request: &Request) -> Result<Lines<BufReader<UnixStream>>, ClientError> {
        let mut stream = self.open().await?;
        let mut line = serde_json::to_vec(request).map_err(|e| self.broken(e.into()))?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(|e| self.broken(e))?;
        Ok(BufReader::new(stream).lines())
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn call(&self, request: &Request) -> Result<Response, ClientError> {
        let mut lines = self.send(request).await?;
        let line = lines.next_line().await.map_err(|e| self.broken(e))?;
        let line = line.ok_or_else(|| self.broken(io::ErrorKind::UnexpectedEof.into()))?;
        match serde_json::from_str(&line).map_err(|e| self.broken(e.into()))? {
            Response::Error(error) => Err(error.into()),
            response => Ok(response),
        }
    }

    /// Lines of the audit log, oldest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn audit(&self, since: Option<Timestamp>) -> Result<EventLines, ClientError> {
        let lines = self.send(&Request::Audit { since }).await?;
        Ok(EventLines { lines, socket: self.socket.clone() })
    }

    /// Lines of the event log, as they are and, with `follow`, as they come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn events(&self, since: Option<Timestamp>, follow: bool) -> Result<EventLines, ClientError> {
        let lines = self.send(&Request::Events { since, follow }).await?;
        Ok(EventLines { lines, socket: self.socket.clone() })
    }
}

/// A stream of lines of a log.
#[derive(Debug)]
pub struct EventLines {
    lines: Lines<BufReader<UnixStream>>,
    socket: PathBuf,
}

impl EventLines {
    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        let broken = |source| ClientError::Broken { socket: self.socket.clone(), source };
        let line = self.lines.next_line().await.map_err(broken)?;
        // In place of lines there may be one answer: no.
        match line.as_deref().map(serde_json::from_str::<Response>) {
            Some(Ok(Response::Error(error))) => Err(error.into()),
            _ => Ok(line),
        }
    }
}
