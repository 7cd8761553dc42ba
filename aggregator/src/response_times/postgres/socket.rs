//! The socket that PostgreSQL is spoken to over. In: an address. Out: a socket on which no more is read than a reading needs.
//! Called by the connection, which may encrypt it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::super::answer::quoted;
use super::super::error::PostgresError;

/// Most that is read from the server in one reading. Chosen: a reading needs some 500 bytes, connecting some 1,000.
pub(super) const LONGEST_READING: u64 = 256 << 10;

async fn socket(config: &Config) -> Result<Socket, PostgresError> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let failed = |to: String| move |source| PostgresError::Connect { to, source };
    if let [address, ..] = config.get_hostaddrs() {
        let socket = TcpStream::connect((*address, port)).await;
        return socket.map(Socket::Tcp).map_err(failed(format!("{address} port {port}")));
    }
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => {
            let socket = TcpStream::connect((host.as_str(), port)).await;
            socket.map(Socket::Tcp).map_err(failed(format!("{} port {port}", quoted(host))))
        }
        Some(Host::Unix(folder)) => {
            let path = folder.join(format!(".s.PGSQL.{port}"));
            let socket = UnixStream::connect(&path).await;
            socket.map(Socket::Unix).map_err(failed(quoted(&path.display().to_string())))
        }
        None => Err(PostgresError::NoHost),
    }
}

/// What PostgreSQL is spoken to over.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that gives no more than is left.
pub(super) struct Bounded {
    socket: Socket,
    left: Arc<AtomicU64>,
}

impl Bounded {
    /// Connects to the host of a connection string.
    ///
    /// # Errors
    /// There is no way to it.
    pub(super) async fn open(config: &Config, left: &Arc<AtomicU64>) -> Result<Self, PostgresError> {
        Ok(Self { socket: socket(config).await?, left: Arc::clone(left) })
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(cx, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(cx, buffer),
        };
        let read = buffer.filled().len().saturating_sub(before).try_into().unwrap_or(u64::MAX);
        let take = |left: u64| left.checked_sub(read);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => polled,
            Err(_) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the server sends more than {LONGEST_READING} bytes"),
            ))),
        }
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            Socket::Unix(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
