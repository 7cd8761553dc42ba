//! `gleaner top` on a terminal. In: keys, and answers of the aggregator. Out: a screen with the state of the fleet,
//! jobs and applications, and events. [`feed`] asks the aggregator, also after its restart; [`state`] stores the
//! answers and handles keys; [`view`] draws. Called by the command. The terminal is restored on every exit: keys,
//! signals, errors and panics.

mod feed;
mod state;
mod view;

use std::path::Path;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit::End;
use crate::format::CpuUnit;
use state::{News, State};

/// Messages that wait for the screen; when the queue is full the sender waits.
const QUEUE: usize = 256;

/// Time between two checks whether the program has ended, while nobody presses a key.
const KEY_POLL: Duration = Duration::from_millis(250);

/// Restores the terminal, however the function that owns it ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the screen until a key or a signal ends it.
pub(crate) async fn run(socket: &Path, unit: CpuUnit) -> anyhow::Result<End> {
    // Before the screen: whoever has no aggregator learns it as from any other command.
    gleaner_api::Client::connect(socket).await?;
    let (mut terminate, mut interrupt, mut hang_up) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    // It also makes a panic restore the terminal before it is told.
    let restored = Restored;
    let mut terminal = ratatui::try_init()?;
    let (sender, mut news) = mpsc::channel(QUEUE);
    tokio::spawn(feed::snapshots(socket.to_owned(), sender.clone()));
    tokio::spawn(feed::events(socket.to_owned(), sender.clone()));
    std::thread::Builder::new().name("keys".into()).spawn(move || keys(&sender))?;

    let mut state = State::with_unit(unit);
    while !state.over() {
        terminal.draw(|frame| view::draw(&state, frame))?;
        tokio::select! {
            first = news.recv() => {
                let Some(first) = first else { break };
                state.take(first);
                // What came together is drawn once.
                while let Ok(more) = news.try_recv() {
                    state.take(more);
                }
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => break,
        }
    }
    drop(restored);
    Ok(End::Good)
}

/// Reads keys until their receiver is gone, on a thread of its own because reading blocks.
fn keys(news: &mpsc::Sender<News>) {
    while !news.is_closed() {
        let read = match event::poll(KEY_POLL) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let sent = match read {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => news.blocking_send(News::Key(key)),
            Ok(Event::Resize(..)) => news.blocking_send(News::Resized),
            Ok(_) => Ok(()),
            Err(_) => {
                // The terminal is gone.
                _ = news.blocking_send(News::Over);
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
