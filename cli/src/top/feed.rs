//! Asks the aggregator for what the screen shows. In: a client. Out: messages for the screen, also that no answer came;
//! then it asks again. Started by [`super`].

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use gleaner_api::{Client, ClientError, Request, Response};
use gleaner_daemon::clock::Clock;
use gleaner_types::error::chain;
use gleaner_types::event::EventRecord;
use gleaner_types::time::Timestamp;
use tokio::sync::mpsc;

use super::state::{News, Snapshot};

/// Time between two polls.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// Events of this long before the start are shown, in milliseconds.
const HISTORY_MS: u64 = 900_000;

/// Lines by which a line that comes again after a reconnection is known.
const LINES_KNOWN: usize = 2_000;

/// Brings a snapshot every second.
pub(super) async fn snapshots(socket: PathBuf, news: mpsc::Sender<News>) {
    let mut polls = tokio::time::interval(POLL_PERIOD);
    polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        polls.tick().await;
        let update = match snapshot(&socket).await {
            Ok(snapshot) => News::Snapshot(Box::new(snapshot)),
            Err(error) => News::Trouble(chain(&error)),
        };
        if news.send(update).await.is_err() {
            return;
        }
    }
}

async fn snapshot(socket: &std::path::Path) -> Result<Snapshot, ClientError> {
    let client = Client::connect(socket).await?;
    let Response::Overview(overview) = client.call(&Request::Overview).await? else { return Err(unexpected(socket)) };
    let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { return Err(unexpected(socket)) };
    let Response::Jobs(jobs) = client.call(&Request::Jobs).await? else { return Err(unexpected(socket)) };
    let Response::Applications(applications) = client.call(&Request::Applications).await? else {
        return Err(unexpected(socket));
    };
    Ok(Snapshot { overview, hosts, jobs, applications })
}

fn unexpected(socket: &std::path::Path) -> ClientError {
    ClientError::Broken { socket: socket.to_owned(), source: std::io::ErrorKind::InvalidData.into() }
}

/// Brings events as they happen.
pub(super) async fn events(socket: PathBuf, news: mpsc::Sender<News>) {
    let mut since = Timestamp(Clock::start().now().0.saturating_sub(HISTORY_MS));
    let mut known: VecDeque<String> = VecDeque::new();
    while !news.is_closed() {
        // That the aggregator is gone is told by the snapshots.
        _ = follow(&socket, &mut since, &mut known, &news).await;
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

async fn follow(
    socket: &std::path::Path,
    since: &mut Timestamp,
    known: &mut VecDeque<String>,
    news: &mpsc::Sender<News>,
) -> Result<(), ClientError> {
    let mut lines = Client::connect(socket).await?.events(Some(*since), true).await?;
    while let Some(line) = lines.next().await? {
        let Ok(record) = EventRecord::from_json_line(&line) else { continue };
        if known.contains(&line) {
            continue;
        }
        if known.len() >= LINES_KNOWN {
            known.pop_front();
        }
        known.push_back(line);
        *since = (*since).max(record.at);
        if news.send(News::Event(crate::format::event(&record))).await.is_err() {
            break;
        }
    }
    Ok(())
}
