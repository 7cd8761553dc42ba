//! Asks the aggregator for what the screen shows. In: a client. Out: messages for the screen, also that no answer came;
//! then it asks again. Started by [`super`].

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use gleaner_api::{Client, ClientError, Request, Response};
use gleaner_daemon::clock::Clock;
use gleaner_types::error::chain;
use gleaner_types::event::{EventRecord, EventSource};
use gleaner_types::time::Timestamp;
use tokio::sync::mpsc;

use super::state::{News, Snapshot};
use crate::guests;

/// Time between two polls.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// Events of this long before the start are shown, in milliseconds.
const HISTORY_MS: u64 = 900_000;

/// How many last lines are kept, to recognise a line that comes again after a reconnection.
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
    let names = guests::names(&client).await?;
    Ok(Snapshot { overview: *overview, hosts, names, jobs, applications })
}

fn unexpected(socket: &std::path::Path) -> ClientError {
    ClientError::Broken { socket: socket.to_owned(), source: std::io::ErrorKind::InvalidData.into() }
}

/// From when on events are asked for after a reconnection. By the aggregator's clock alone: a host that dates an event into
/// the future would keep all others from being shown.
fn logged_after(since: Timestamp, record: &EventRecord) -> Timestamp {
    match record.source {
        EventSource::Aggregator => since.max(record.at),
        EventSource::Agent { .. } => since,
    }
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
        *since = logged_after(*since, &record);
        // The screen has colours of its own.
        let text = anstream::adapter::strip_str(&crate::events::event(&record)).to_string();
        if news.send(News::Event(text)).await.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gleaner_types::event::Event;
    use gleaner_types::id::HostId;

    use super::*;

    #[test]
    fn no_hosts_clock_moves_what_is_asked_for() {
        let record = |source, at| EventRecord { at: Timestamp(at), source, event: Event::AggregatorStopped {} };
        let host = HostId::new("h1").unwrap();
        let agent = EventSource::Agent { host, incarnation: 1, sequence: 1 };
        assert_eq!(logged_after(Timestamp(5), &record(agent, u64::MAX)), Timestamp(5));
        assert_eq!(logged_after(Timestamp(5), &record(EventSource::Aggregator, 7)), Timestamp(7));
        assert_eq!(logged_after(Timestamp(5), &record(EventSource::Aggregator, 3)), Timestamp(5));
    }
}
