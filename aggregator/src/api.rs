//! The local API's server.
//!
//! In: requests of operators' tools on the Unix socket ([`gleaner_api`]). Out: each goes to the shell as an
//! [`Arrival::Api`], and its answer back to the client; lines of the event and audit logs are read here. Who may open
//! the socket file may ask; who may order is decided by who the kernel says the client is
//! ([`crate::operators`]), and every order is audited ([`crate::audit`]).

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gleaner_api::{ApiError, Client, ErrorCode, Request, Response};
use gleaner_types::time::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::arrival::Arrival;
use crate::event_log::EventReader;
use crate::operators::{Operator, Operators, Role};
use crate::shell::may_not_read;

/// Longest request: a hundred thousand tasks of some hundred bytes.
const MAX_REQUEST: u64 = 64 << 20;

/// Longer requests than this are only for operators who may act, and few are read at once, so that all of them together
/// stay within some hundred megabytes. (Both chosen.)
const MAX_QUESTION: u64 = 64 << 10;
const LONG_REQUESTS: usize = 2;

/// Most clients at once, and how many of them may be clients that only ask, so that these never exclude others.
const MAX_CLIENTS: (usize, usize) = (64, 48);

/// How long a client may take to send its request, and to take what it is sent.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Another aggregator answers on it.
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
    if let Ok(client) = Client::connect(socket).await
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
    pub(crate) audit_folder: PathBuf,
    pub(crate) operators: Arc<Operators>,
}

/// Serves clients until the task is dropped.
pub(crate) async fn serve(listener: UnixListener, context: Context) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS.0));
    let asking = Arc::new(Semaphore::new(MAX_CLIENTS.1));
    let long = Arc::new(Semaphore::new(LONG_REQUESTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (context, asking, long) = (context.clone(), Arc::clone(&asking), Arc::clone(&long));
                tokio::spawn(async move {
                    // A client that goes away in the middle needs no answer.
                    _ = client(stream, context, &asking, &long).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the API cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn client(stream: UnixStream, context: Context, asking: &Semaphore, long: &Semaphore) -> io::Result<()> {
    let operator = Operator::of(&stream, &context.operators).await?;
    let acting = operator.role == Role::Acting;
    let (read, mut write) = stream.into_split();
    let place = if acting { None } else { asking.try_acquire().ok() };
    if !acting && place.is_none() {
        let message = "too many clients ask at once; try again in a moment".to_owned();
        return answer(&mut write, &Response::Error(ApiError { code: ErrorCode::Unavailable, message })).await;
    }
    let longest = if acting { MAX_REQUEST } else { MAX_QUESTION };
    let mut line = Vec::new();
    let mut reader = BufReader::new(read.take(MAX_QUESTION));
    let whole = async {
        let mut held = None;
        reader.read_until(b'\n', &mut line).await?;
        if acting && !line.ends_with(b"\n") && line.len() as u64 == MAX_QUESTION {
            held = long.acquire().await.ok();
            reader.get_mut().set_limit(MAX_REQUEST - MAX_QUESTION);
            reader.read_until(b'\n', &mut line).await?;
        }
        Ok::<_, io::Error>(held)
    };
    // A long request keeps its permit until it is answered.
    let _held = match tokio::time::timeout(CLIENT_TIMEOUT, whole).await {
        Ok(Ok(held)) => held,
        Err(_) => return Ok(()),
        Ok(Err(error)) => return answer(&mut write, &invalid(error.to_string())).await,
    };
    if line.is_empty() {
        return Ok(());
    }
    if !line.ends_with(b"\n") {
        return answer(&mut write, &invalid(format!("a request is one line of at most {longest} bytes"))).await;
    }
    let request = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => request,
        Err(error) => return answer(&mut write, &invalid(error.to_string())).await,
    };
    drop(line);
    match request {
        Request::Events { .. } | Request::Audit { .. } if operator.role < Role::Reading => {
            answer(&mut write, &Response::Error(may_not_read(&operator))).await
        }
        Request::Audit { since } => audit(&mut write, context.audit_folder, since).await,
        Request::Events { since, follow } => events(&mut write, context, since, follow).await,
        request => {
            let (sender, response) = oneshot::channel();
            let gone = Response::Error(ApiError {
                code: ErrorCode::Unavailable,
                message: "the aggregator is stopping".into(),
            });
            if context.arrivals.send(Arrival::Api { operator, request, answer: sender }).await.is_err() {
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
    send(write, &line).await
}

/// Writes to a client. One that does not read loses its place.
async fn send(write: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    tokio::time::timeout(CLIENT_TIMEOUT, write.write_all(bytes))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Writes the audit log's lines.
async fn audit(write: &mut OwnedWriteHalf, folder: PathBuf, since: Option<Timestamp>) -> io::Result<()> {
    let (sender, mut lines) = mpsc::channel(100);
    tokio::task::spawn_blocking(move || {
        // Ends with the log, or when the client has disconnected.
        crate::audit::lines(&folder, since).try_for_each(|line| sender.blocking_send(line)).ok()
    });
    while let Some(line) = lines.recv().await {
        send(write, format!("{line}\n").as_bytes()).await?;
    }
    Ok(())
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
            send(write, format!("{line}\n").as_bytes()).await?;
        }
        if lines.is_empty() {
            if !follow {
                return Ok(());
            }
            tokio::select! {
                changed = context.log_appended.changed() => if changed.is_err() { return Ok(()) },
                // A client that has disconnected is noticed even without new lines.
                error = write.ready(tokio::io::Interest::ERROR) => { error?; return Ok(()) }
            }
        }
    }
}
