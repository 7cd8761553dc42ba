//! The local API's server.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gleaner_common::clock::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::{ApiError, ErrorCode, Request, Response};
use crate::event_log::EventReader;
use crate::shell::Arrival;

/// Longest request: a hundred thousand tasks of some hundred bytes.
const MAX_REQUEST: u64 = 64 << 20;

/// Most clients at once.
const MAX_CLIENTS: usize = 64;

/// The socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers on it.
    #[error("another aggregator (process {pid}) answers on {}", socket.display())]
    Taken {
        /// The socket.
        socket: PathBuf,
        /// The other's process id.
        pid: u32,
    },
    /// It cannot be made.
    #[error("failed to open the socket {}", socket.display())]
    Open {
        /// The socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Opens the socket, replacing one that a dead aggregator left behind.
///
/// # Errors
/// [`SocketError`].
pub(crate) async fn listen(socket: &Path, mode: u32) -> Result<UnixListener, SocketError> {
    if let Ok(client) = super::Client::connect(socket).await
        && let Ok(Response::Overview(overview)) = client.call(&Request::Overview).await
    {
        return Err(SocketError::Taken { socket: socket.to_owned(), pid: overview.pid });
    }
    let open = || {
        if let Some(folder) = socket.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))?;
        Ok(listener)
    };
    open().map_err(|source| SocketError::Open { socket: socket.to_owned(), source })
}

/// What every client's task needs.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) arrivals: mpsc::Sender<Arrival>,
    pub(crate) log_folder: PathBuf,
    pub(crate) log_appended: watch::Receiver<u64>,
}

/// Serves clients until the task is dropped.
pub(crate) async fn serve(listener: UnixListener, context: Context) {
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(place) = std::sync::Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let context = context.clone();
                tokio::spawn(async move {
                    // A client that goes away in the middle needs no answer.
                    _ = client(stream, context).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the API cannot be accepted");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn client(stream: UnixStream, context: Context) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(MAX_REQUEST));
    match tokio::time::timeout(std::time::Duration::from_secs(30), reader.read_line(&mut line)).await {
        Ok(Ok(0)) | Err(_) => return Ok(()),
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return answer(&mut write, &invalid(error.to_string())).await,
    }
    if !line.ends_with('\n') {
        return answer(&mut write, &invalid(format!("a request is one line of at most {MAX_REQUEST} bytes"))).await;
    }
    let request = match serde_json::from_str::<Request>(&line) {
        Ok(request) => request,
        Err(error) => return answer(&mut write, &invalid(error.to_string())).await,
    };
    match request {
        Request::Events { since, follow } => events(&mut write, context, since, follow).await,
        request => {
            let (sender, response) = oneshot::channel();
            let gone = Response::Error(ApiError {
                code: ErrorCode::Unavailable,
                message: "the aggregator is stopping".into(),
            });
            if context.arrivals.send(Arrival::Api { request, answer: sender }).await.is_err() {
                return answer(&mut write, &gone).await;
            }
            answer(&mut write, &response.await.unwrap_or(gone)).await
        }
    }
}

fn invalid(message: String) -> Response {
    Response::Error(ApiError {
        code: ErrorCode::Invalid,
        message: format!("the request cannot be understood: {message}"),
    })
}

async fn answer(write: &mut OwnedWriteHalf, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    write.write_all(&line).await
}

async fn events(
    write: &mut OwnedWriteHalf,
    mut context: Context,
    since: Option<Timestamp>,
    follow: bool,
) -> io::Result<()> {
    let folder = context.log_folder.clone();
    let mut reader = tokio::task::spawn_blocking(move || EventReader::open(&folder, since)).await?;
    loop {
        context.log_appended.mark_unchanged();
        let lines;
        (reader, lines) = tokio::task::spawn_blocking(move || {
            let lines = reader.next_lines(500);
            (reader, lines)
        })
        .await?;
        let lines = lines?;
        for line in &lines {
            write.write_all(line.as_bytes()).await?;
            write.write_all(b"\n").await?;
        }
        if lines.is_empty() {
            if !follow {
                return Ok(());
            }
            tokio::select! {
                changed = context.log_appended.changed() => if changed.is_err() { return Ok(()) },
                // A client that has gone away is noticed even while nothing happens.
                error = write.ready(tokio::io::Interest::ERROR) => { error?; return Ok(()) }
            }
        }
    }
}
