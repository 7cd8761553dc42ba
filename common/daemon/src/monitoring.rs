//! The daemons' small HTTP listener for monitoring systems. In: requests for `/metrics`, `/healthz` and `/readyz`. Out:
//! the page or the health that the daemon gives. Both daemons start it. Off unless configured; plain HTTP without
//! authentication, so it belongs on loopback or on a network for monitoring.
//!
//! Requests are bounded in size, time and number. A connection serves one request, and a body is never read. The
//! listener runs on the caller's runtime and starts no thread. This module is the only one that knows the HTTP crate.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gleaner_types::error::Chain;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::{self, Page};

/// Most connections at once; more are closed at once.
const MOST_CONNECTIONS: usize = 16;
/// Longest a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest a client may take for its request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest request; the least that the crate allows.
const MOST_REQUEST_BYTES: usize = 8_192;

/// The health of a daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Nothing is wrong.
    pub ok: bool,
    /// What is wrong, in sentences.
    pub problems: Vec<String>,
    /// What an operator should know although the daemon can do its work.
    pub warnings: Vec<String>,
}

impl Health {
    /// The health of a daemon with these problems.
    #[must_use]
    pub fn of(problems: Vec<String>) -> Self {
        Self { ok: problems.is_empty(), problems, warnings: Vec::new() }
    }
}

/// There is no page of metrics now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The daemon ends.
    #[error("the aggregator is stopping")]
    Stopping,
    /// Its core loop does not answer.
    #[error("the core loop does not answer in {} s", .0.as_secs())]
    Timeout(Duration),
    /// A metric cannot be written.
    #[error("a metric cannot be written")]
    Format(#[from] std::fmt::Error),
}

/// What the listener asks its daemon.
pub trait Monitored: Send + Sync + 'static {
    /// Everything there is to measure.
    fn page(&self) -> impl Future<Output = Result<Page, PageError>> + Send;
    /// The daemon is alive: its main loop runs.
    fn health(&self) -> Health;
    /// The daemon can do its work.
    fn readiness(&self) -> Health;
}

/// Opens the listener. Call it before the daemon touches anything: an address that is taken is a mistake in the config.
///
/// # Errors
/// The system's error, naming the address.
pub fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let named = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("failed to listen on `metrics.listen` {address}: {error}"))
    };
    let listener = std::net::TcpListener::bind(address).map_err(named)?;
    listener.set_nonblocking(true).map_err(named)?;
    Ok(listener)
}

/// Serves until the task is dropped.
///
/// # Errors
/// The system's error when the listener cannot be used in this runtime.
pub async fn serve(listener: std::net::TcpListener, daemon: Arc<impl Monitored>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: trying again at once would only burn CPU.
                tracing::warn!(%error, "a client of the metrics cannot be accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let daemon = Arc::clone(&daemon);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, Arc::clone(&daemon)));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ_TIMEOUT)
                .max_buf_size(MOST_REQUEST_BYTES)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A client that disconnects, is too slow or sends nonsense harms only itself.
            _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(place);
        });
    }
}

async fn answer<B>(request: Request<B>, daemon: Arc<impl Monitored>) -> Result<Response<String>, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    Ok(match request.uri().path() {
        "/metrics" => match daemon.page().await.and_then(|page| Ok(page.text()?)) {
            Ok(page) => with_type(StatusCode::OK, page, metrics::CONTENT_TYPE),
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{}\n", Chain(&error))),
        },
        "/healthz" => health(&daemon.health()),
        "/readyz" => health(&daemon.readiness()),
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"),
    })
}

fn health(health: &Health) -> Response<String> {
    let status = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_string(health).unwrap_or_default() + "\n";
    with_type(status, body, "application/json")
}

fn text(status: StatusCode, text: &str) -> Response<String> {
    with_type(status, text.to_owned(), "text/plain; charset=utf-8")
}

fn with_type(status: StatusCode, body: String, kind: &'static str) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Daemon;

    impl Monitored for Daemon {
        async fn page(&self) -> Result<Page, PageError> {
            let mut page = Page::default();
            page.gauge("gleaner_x", "X.", 1.0);
            Ok(page)
        }

        fn health(&self) -> Health {
            Health::of(Vec::new())
        }

        fn readiness(&self) -> Health {
            Health::of(vec!["the disk is full".to_owned()])
        }
    }

    async fn started() -> SocketAddr {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(Daemon)));
        address
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // What is refused may be cut off.
        _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn every_path_answers() {
        let address = started().await;
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let metrics = ask(address, &get("/metrics?x=1")).await;
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains(metrics::CONTENT_TYPE), "{metrics}");
        assert!(metrics.ends_with("gleaner_x 1.0\n# EOF\n"), "{metrics}");
        let health = ask(address, &get("/healthz")).await;
        assert!(health.starts_with("HTTP/1.1 200") && health.contains(r#"{"ok":true"#), "{health}");
        let ready = ask(address, &get("/readyz")).await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("the disk is full"), "{ready}");
        assert!(ask(address, &get("/other")).await.starts_with("HTTP/1.1 404"));
        let posted = ask(address, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello").await;
        assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
    }

    #[tokio::test]
    async fn what_is_too_large_too_slow_or_too_many_is_not_served() {
        let address = started().await;
        let large = format!("GET /metrics HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(100_000));
        let answer = ask(address, &large).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        assert!(!ask(address, "GARBAGE\r\n\r\n").await.contains("200 OK"));
        // Silent clients take all places. They are closed after the timeout, and others are served again.
        let mut silent = Vec::new();
        for _ in 0..MOST_CONNECTIONS + 4 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut first = silent.swap_remove(0);
        let mut rest = Vec::new();
        _ = tokio::time::timeout(Duration::from_secs(60), first.read_to_end(&mut rest)).await.expect("closed in time");
        let served = async {
            while !ask(address, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.starts_with("HTTP/1.1 200") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), served).await.expect("others are served again");
    }
}
