//! Output of a program in the volunteer. In: a pipe that is its standard output and error. Out: a limited number of
//! lines in the agent's log. Called by the program of `volunteer.command`.
//!
//! A thread of its own reads the pipe, a hundred times a second at most, and drops what exceeds the limit. A program
//! that prints without end waits for that thread, and costs the agent little.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_types::text::harmless;
use rustix::fs::Mode;
use tracing::{info, warn};

/// Most lines that are logged at once. (Chosen.)
const BURST: f64 = 100.0;
/// Most lines that are logged in a second, in the long run. (Chosen.)
const PER_S: f64 = 10.0;
/// Longest line that is logged, in bytes; the rest of it is left out.
const LONGEST: usize = 1_000;
/// Bytes read at once: what a pipe holds.
const READ: usize = 64 << 10;
/// The pause after every read, however little it brought: the program can make the pipe hold less. So 6 MiB a second
/// are taken at most. (All chosen.)
const READ_PAUSE: Duration = Duration::from_millis(10);

/// The pipe. One serves every start of a program: what an earlier one left running may still write to it.
#[derive(Debug)]
pub(crate) struct LogPipe(PipeWriter);

impl LogPipe {
    /// Makes the pipe, and the thread that reads it. The thread ends when every writer has closed the pipe.
    pub(crate) fn open() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // Who has it open as another user may also open it by its name: `echo >/dev/stderr`.
        rustix::fs::fchmod(&writer, Mode::from_raw_mode(0o622))?;
        thread::Builder::new().name("volunteer-log".into()).spawn(move || copy(reader))?;
        Ok(Self(writer))
    }

    /// An end to write to.
    pub(crate) fn writer(&self) -> io::Result<PipeWriter> {
        self.0.try_clone()
    }
}

fn copy(mut pipe: PipeReader) {
    let (mut lines, mut buffer) = (Lines::new(Instant::now()), vec![0; READ]);
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                lines.take(&buffer[..count], Instant::now(), say);
                thread::sleep(READ_PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.finish(say);
}

fn say(said: Entry) {
    match said {
        Entry::Line(line) => info!(line, "output of the volunteer's program"),
        Entry::LeftOut(lines) => warn!(lines, "output of the volunteer's program was left out, because it is too much"),
    }
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Line(String),
    /// So many lines were not logged.
    LeftOut(u64),
}

/// Bytes become lines, within the limit.
#[derive(Debug)]
struct Lines {
    begun: Vec<u8>,
    /// Lines that may still be logged.
    may: f64,
    at: Instant,
    left_out: u64,
}

impl Lines {
    fn new(now: Instant) -> Self {
        Self { begun: Vec::new(), may: BURST, at: now, left_out: 0 }
    }

    fn take(&mut self, bytes: &[u8], now: Instant, mut say: impl FnMut(Entry)) {
        self.may = (self.may + now.duration_since(self.at).as_secs_f64() * PER_S).min(BURST);
        self.at = now;
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = LONGEST.saturating_sub(self.begun.len());
            self.begun.extend(&part[..part.len().min(room)]);
            if parts.peek().is_some() {
                self.end_line(&mut say);
            }
        }
    }

    fn end_line(&mut self, say: &mut impl FnMut(Entry)) {
        let line = std::mem::take(&mut self.begun);
        if self.may < 1.0 {
            self.left_out += 1;
            return;
        }
        if self.left_out > 0 {
            self.may -= 1.0;
            say(Entry::LeftOut(std::mem::take(&mut self.left_out)));
        }
        self.may -= 1.0;
        say(Entry::Line(harmless(String::from_utf8_lossy(&line).trim_end())));
    }

    fn finish(mut self, mut say: impl FnMut(Entry)) {
        if !self.begun.is_empty() {
            self.end_line(&mut say);
        }
        if self.left_out > 0 {
            say(Entry::LeftOut(self.left_out));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(text: &str) -> Entry {
        Entry::Line(text.to_owned())
    }

    #[test]
    fn lines_come_whole_harmless_and_in_limited_number() {
        let now = Instant::now();
        let (mut lines, mut said) = (Lines::new(now), Vec::new());
        lines.take(b"one\ntw", now, |what| said.push(what));
        lines.take(b"o\r\n\x1b[2J\xff\n", now, |what| said.push(what));
        assert_eq!(said, [line("one"), line("two"), line("?[2J\u{fffd}")]);
        said.clear();
        lines.take(&[b'x'; 5_000], now, |what| said.push(what));
        lines.take(b"y\n", now, |what| said.push(what));
        assert_eq!(said, [line(&"x".repeat(LONGEST))]);
        said.clear();
        lines.take(&b"z\n".repeat(1_000), now, |what| said.push(what));
        assert_eq!(said.len(), 96, "the burst, less the four before");
        said.clear();
        lines.take(b"later\n", now + Duration::from_secs(1), |what| said.push(what));
        assert_eq!(said, [Entry::LeftOut(904), line("later")]);
        said.clear();
        lines.take(b"no end", now + Duration::from_secs(1), |what| said.push(what));
        lines.finish(|what| said.push(what));
        assert_eq!(said, [line("no end")]);
    }

    #[test]
    fn whoever_prints_without_end_is_read_and_the_reader_ends_with_the_last_writer() {
        let log = LogPipe::open().unwrap();
        let mut writer = log.writer().unwrap();
        // Far more than a pipe holds; without a reader this would never end.
        (0..64).for_each(|_| writer.write_all(&[b'\n'; READ]).unwrap());
    }
}
