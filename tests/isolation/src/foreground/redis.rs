//! A real redis-server, asked over a Unix socket. In: the setup. Out: its process, and seats for [`super::load`].
//! Called by [`super`].

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use gleaner_simulator::random::Random;

use super::load::{Schedule, Seat};
use super::setup::Setup;
use crate::children::{Owned, ends_with_this};
use crate::interrupt;

/// Connections that ask, each this often.
const CLIENTS: u32 = 2;
const PERIOD: Duration = Duration::from_millis(4);
/// Size of a value.
const VALUE: u64 = 1_024;
/// An answer that takes longer counts as missing.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long the server may take to start, and to make its values.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn start(setup: &Setup) -> anyhow::Result<(Vec<Seat>, Owned)> {
    let socket = setup.folder.join("redis.sock");
    _ = std::fs::remove_file(&socket);
    let log = std::fs::File::create(setup.folder.join("redis.log"))?;
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "local"]);
    command.arg("--unixsocket").arg(&socket).arg("--dir").arg(&setup.folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    ends_with_this(&mut command);
    let mut server = Owned::start(&mut command).context("failed to start redis-server")?;
    if !interrupt::until(START_TIMEOUT, || server.ended() || UnixStream::connect(&socket).is_ok())? || server.ended() {
        bail!("redis-server does not start; see {}", setup.folder.join("redis.log").display());
    }
    // A value takes some hundred bytes more than its size.
    let keys = setup.memory / (VALUE + 200);
    let mut first = Client::connect(&socket, START_TIMEOUT)?;
    let populate = ["DEBUG", "POPULATE", &keys.to_string(), "key", &VALUE.to_string()];
    first.call(&populate).context("redis-server does not take its values")?;
    let keys = usize::try_from(keys.max(1))?;
    let seats = (0..CLIENTS)
        .map(|seat| {
            let schedule = Schedule::Every { period: PERIOD, offset: PERIOD * seat / CLIENTS };
            let (mut random, socket) = (Random::part(setup.seed, seat.into()), socket.clone());
            let mut client = None;
            let request = move || ask(&socket, &mut client, random.below(keys), random.below(2) == 0).is_ok();
            Seat { schedule, request: Box::new(request) }
        })
        .collect();
    Ok((seats, server))
}

fn ask(socket: &Path, client: &mut Option<Client>, key: usize, write: bool) -> std::io::Result<()> {
    let mut connected = match client.take() {
        Some(client) => client,
        None => Client::connect(socket, TIMEOUT)?,
    };
    let key = format!("key:{key}");
    if write {
        connected.call(&["SET", &key, &"v".repeat(1_024)])?;
    } else {
        connected.call(&["GET", &key])?;
    }
    // After a failure it connects anew: a late answer must not be taken for the next one's.
    *client = Some(connected);
    Ok(())
}

/// A connection that speaks RESP.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path, timeout: Duration) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn call(&mut self, words: &[&str]) -> std::io::Result<()> {
        self.0.get_mut().write_all(&encoded(words))?;
        answered(&mut self.0)
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    request.into_bytes()
}

/// Reads one answer, whatever it says, unless it is an error.
fn answered(from: &mut impl BufRead) -> std::io::Result<()> {
    let mut line = String::new();
    if from.take(1 << 16).read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    if line.starts_with('-') {
        return Err(std::io::Error::other(line.to_owned()));
    }
    if let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<u64>().ok()) {
        let mut value = Vec::new();
        from.take(length + 2).read_to_end(&mut value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_by_hand() {
        assert_eq!(encoded(&["GET", "k"]), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        let answer = |text: &str| answered(&mut text.as_bytes());
        for good in ["+OK\r\n", "$3\r\nabc\r\n", "$-1\r\n", ":5\r\n"] {
            assert!(answer(good).is_ok(), "{good}");
        }
        assert_eq!(answer("-OOM command not allowed\r\n").unwrap_err().to_string(), "-OOM command not allowed");
        assert!(answer("").is_err());
        let mut two = "$2\r\nab\r\n+OK\r\n".as_bytes();
        assert!(answered(&mut two).is_ok() && two == b"+OK\r\n");
    }
}
