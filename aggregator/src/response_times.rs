//! Response times of applications: one reader per source, asked once per control interval. In: an application's source.
//! Out: one [`ResponseTime`] per question. `applications` calls it.
//!
//! A reader never guesses. An error becomes the [`ResponseTime`] that says so, with a reason of at most
//! [`LONGEST_REASON`] characters. Every reading is bounded in time and in size. `docs/applications.md` defines what each
//! source counts as a mean, as idle and as late.

mod access;
mod answer;
mod error;
mod exec;
mod http;
mod openmetrics;
mod postgres;
mod prometheus;
mod push;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_types::application::{ResponseSource, ResponseTime};

use answer::missing;

pub use answer::LONGEST_REASON;
pub use error::{PushError, SourceError};
pub use push::Pushed;

/// How long a reading may take, if the interval is not shorter. Chosen: enough for a slow program or a starved database,
/// and a third of the usual interval.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Reads the response time of one application.
#[derive(Debug)]
pub struct ResponseReader {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Push(Pushed),
    Prometheus(Arc<prometheus::Prometheus>),
    Http(Arc<http::Document>),
    Openmetrics(Box<openmetrics::Openmetrics>),
    Postgres(Box<postgres::Postgres>),
    Exec(exec::Program),
}

impl ResponseReader {
    /// A reader that is asked once per `interval`; a value older than that is late.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn new(source: &ResponseSource, interval: Duration) -> Result<Self, SourceError> {
        Self::with_time_limit(source, interval, TIME_LIMIT.min(interval))
    }

    fn with_time_limit(source: &ResponseSource, interval: Duration, time_limit: Duration) -> Result<Self, SourceError> {
        let source = match source {
            ResponseSource::Push => Source::Push(Pushed::new(interval)),
            ResponseSource::Prometheus { url, query, access } => {
                Source::Prometheus(Arc::new(prometheus::Prometheus::new(url, access, query, interval, time_limit)?))
            }
            ResponseSource::Http { url, pointer, unit, access } => {
                Source::Http(Arc::new(http::Document::new(url, access, pointer, *unit, interval, time_limit)?))
            }
            ResponseSource::Openmetrics { url, metric, labels, in_flight, unit, access } => {
                let (metric, labels, in_flight) = (metric.clone(), labels.clone(), in_flight.clone());
                let selection = openmetrics::Selection { metric, labels, in_flight, unit: *unit };
                let source = openmetrics::Openmetrics::new(url, access, selection, interval, time_limit)?;
                Source::Openmetrics(Box::new(source))
            }
            ResponseSource::Postgres { connection } => {
                Source::Postgres(Box::new(postgres::Postgres::new(connection, interval, time_limit)?))
            }
            ResponseSource::Exec { program } => Source::Exec(exec::Program::new(program, time_limit)?),
        };
        Ok(Self { source })
    }

    /// Where values for this reader are pushed; `None` if it reads a source.
    #[must_use]
    pub fn pushed(&self) -> Option<Pushed> {
        match &self.source {
            Source::Push(pushed) => Some(pushed.clone()),
            _ => None,
        }
    }

    /// The response time since the last call. Takes at most 10 s or an interval, whichever is shorter.
    pub async fn read(&mut self) -> ResponseTime {
        match &mut self.source {
            Source::Push(pushed) => pushed.take(),
            Source::Prometheus(prometheus) => {
                let prometheus = Arc::clone(prometheus);
                blocking(move || prometheus.read()).await.unwrap_or_else(|broken_off| broken_off)
            }
            Source::Http(document) => {
                let document = Arc::clone(document);
                blocking(move || document.read()).await.unwrap_or_else(|broken_off| broken_off)
            }
            Source::Openmetrics(openmetrics) => {
                let exposition = openmetrics.exposition();
                let totals = blocking(move || exposition.read()).await.flatten();
                openmetrics.take(totals, Instant::now())
            }
            Source::Postgres(postgres) => postgres.read().await,
            Source::Exec(program) => program.read().await,
        }
    }
}

/// Checks a source's description, without asking the source.
///
/// # Errors
/// [`SourceError`]: the field that is wrong, its value and what it must be.
pub fn check(source: &ResponseSource) -> Result<(), SourceError> {
    ResponseReader::new(source, TIME_LIMIT).map(|_| ())
}

/// A source as it is shown: without secrets, which are a password and the query of an address. A token is in a file.
pub(crate) fn shown(source: &ResponseSource) -> ResponseSource {
    let mut source = source.clone();
    match &mut source {
        ResponseSource::Http { url, .. } | ResponseSource::Openmetrics { url, .. } => *url = http::shown(url),
        ResponseSource::Postgres { connection } => *connection = postgres::shown(connection),
        ResponseSource::Push | ResponseSource::Prometheus { .. } | ResponseSource::Exec { .. } => {}
    }
    source
}

/// Reads where waiting blocks nobody.
async fn blocking<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, ResponseTime> {
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| missing(format!("the reading broke off: {error}")))
}

/// The parsers of sources' answers, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    exec::fuzz(data);
    http::fuzz(data);
    openmetrics::fuzz(data);
    prometheus::fuzz(data);
}
