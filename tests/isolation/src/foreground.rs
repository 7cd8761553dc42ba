//! A foreground: a process that serves, sends requests to itself, and says how long each took.
//!
//! In: the command line, and then a line `measure SECONDS` on its input. Out: the line `ready` once it serves, and the
//! answer as JSON. The program `isolation` starts itself as one, for [`crate::cell`]. It works from its start on, so
//! that whoever protects it has seen it before it is measured.

mod cyclic;
mod disk;
mod echo;
mod guest;
pub mod load;
mod postgres;
mod redis;
pub mod setup;

pub use cyclic::calibrate;

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::Context;

use self::load::{Answer, Load, Seat};
use self::setup::Setup;
use crate::cells::Foreground;
use crate::children::{Owned, end_with_parent};
use crate::{groups, host};

/// What works and what it asks.
enum Service {
    /// Requests by this process, and the server that it asks if there is one.
    Seats(Vec<Seat>, Option<Owned>),
    /// pgbench asks.
    Postgres(postgres::Postgres),
}

/// What this foreground needs and this machine lacks.
#[must_use]
pub fn missing(foreground: Foreground) -> Option<String> {
    let programs: &[&str] = match foreground {
        Foreground::Cyclic | Foreground::Interactive | Foreground::Disk => &[],
        Foreground::Redis => &["redis-server"],
        Foreground::Postgres => return postgres::missing(),
        Foreground::Echo => &["ip", "nsenter"],
        Foreground::Guest => &["qemu-system-x86_64", "as", "ld"],
    };
    let missing = programs.iter().find(|name| host::program(name).is_none())?;
    Some(format!("no program `{missing}` here"))
}

/// Serves until it has been measured once.
///
/// # Errors
/// It cannot be started; what it needs.
pub fn main(setup: &Setup) -> anyhow::Result<()> {
    end_with_parent()?;
    groups::enter(&setup.enter)?;
    let service = match setup.foreground {
        Foreground::Cyclic => Service::Seats(cyclic::cyclic(setup), None),
        Foreground::Interactive => Service::Seats(cyclic::interactive(setup), None),
        Foreground::Disk => Service::Seats(disk::seats(setup)?, None),
        Foreground::Echo => Service::Seats(echo::seats(setup)?, None),
        Foreground::Redis => redis::start(setup).map(|(seats, server)| Service::Seats(seats, Some(server)))?,
        Foreground::Guest => guest::start(setup).map(|(seats, guest)| Service::Seats(seats, Some(guest)))?,
        Foreground::Postgres => Service::Postgres(postgres::Postgres::start(setup)?),
    };
    let answer = match service {
        Service::Seats(seats, mut server) => {
            let load = Load::start(seats);
            let mut answer = load.measure(seconds_to_measure()?);
            answer.killed = server.as_mut().is_some_and(Owned::ended);
            answer
        }
        Service::Postgres(mut postgres) => postgres.measure(seconds_to_measure()?)?,
    };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// Prints that it is ready, and reads for how long to measure.
fn seconds_to_measure() -> anyhow::Result<Duration> {
    println!("ready");
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let seconds = line.trim().strip_prefix("measure ").and_then(|seconds| seconds.parse().ok());
    let seconds: f64 = seconds.with_context(|| format!("read `{}` instead of `measure SECONDS`", line.trim()))?;
    Duration::try_from_secs_f64(seconds).context("a time to measure must be positive")
}

/// The answer in a line that a foreground wrote. Nothing if it is another line.
#[must_use]
pub fn answer(line: &str) -> Option<Answer> {
    serde_json::from_str(line).ok()
}
