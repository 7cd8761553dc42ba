//! The antagonists. In: which one, how long, and the cgroups to enter. Out: one resource used as hard as a process can,
//! within bounds that keep the machine alive, until it is killed; and counts of the work done. The program `isolation`
//! starts itself as one, for [`crate::cell`].

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use gleaner_simulator::random::Random;

use crate::cells::{Antagonist, Named};
use crate::children::{Owned, end_with_parent, ends_with_this};
use crate::work::Counter;
use crate::{groups, host, network};

/// Living processes of the fork bomb at most.
const FORKS: usize = 256;
/// What each of them does before it ends.
const FORKED_WORK: Duration = Duration::from_millis(100);
/// A block that is written at a random place.
const BLOCK: usize = 16 << 10;
/// How much is written or read at once otherwise.
const CHUNK: usize = 1 << 20;
/// Size of the file that is written again and again.
const FILE_BYTES: u64 = 128 << 20;
/// Twice the last-level cache of most machines, on each CPU; less where the cell has little memory. Chosen.
const THRASHED_BYTES: usize = 64 << 20;
/// Bytes of a datagram: what fits a frame.
const DATAGRAM: usize = 1400;

/// The command line of an antagonist's process.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Which.
    #[arg(value_parser = crate::cells::by_name::<Antagonist>)]
    pub antagonist: Antagonist,
    /// Folder for its counts.
    #[arg(long)]
    pub work: PathBuf,
    /// Folder to write to.
    #[arg(long)]
    pub scratch: PathBuf,
    /// Memory it takes at most, in bytes.
    #[arg(long)]
    pub memory: u64,
    /// Bytes it streams through the page cache.
    #[arg(long)]
    pub stream: u64,
    /// It takes this nice value.
    #[arg(long)]
    pub nice: Option<i32>,
    /// It enters the scheduling class SCHED_IDLE.
    #[arg(long)]
    pub idle: bool,
    /// Cgroups it enters.
    #[arg(long)]
    pub enter: Vec<PathBuf>,
    /// It ends when the process that started it ends.
    #[arg(long)]
    pub owned: bool,
}

impl Arguments {
    /// The same as words of a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["antagonist".to_owned(), self.antagonist.name().to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--work", self.work.display().to_string());
        option("--scratch", self.scratch.display().to_string());
        option("--memory", self.memory.to_string());
        option("--stream", self.stream.to_string());
        for folder in &self.enter {
            option("--enter", folder.display().to_string());
        }
        if let Some(nice) = self.nice {
            option("--nice", nice.to_string());
        }
        words.extend(self.idle.then(|| "--idle".to_owned()));
        words.extend(self.owned.then(|| "--owned".to_owned()));
        words
    }
}

/// Works until it is killed.
///
/// # Errors
/// It cannot even begin.
pub fn main(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.owned {
        end_with_parent()?;
    }
    groups::enter(&arguments.enter)?;
    if let Some(nice) = arguments.nice {
        rustix::process::nice(nice).context("failed to set the nice value")?;
    }
    if arguments.idle {
        enter_idle_class().context("failed to enter SCHED_IDLE")?;
    }
    let counter = Counter::default();
    if arguments.antagonist != Antagonist::All {
        counter.keep(&arguments.work).context("failed to write counts")?;
    }
    let file = |name: &str| arguments.scratch.join(format!("{name}-{}", std::process::id()));
    match arguments.antagonist {
        Antagonist::Cpu => on_every_cpu(|| {
            loop {
                burn(Duration::from_secs(3600))
            }
        }),
        Antagonist::Memory => memory(arguments.memory, &counter),
        Antagonist::Fork => fork_bomb(&counter),
        Antagonist::WriteSeq => write_sequentially(&file("seq"), false, &counter)?,
        Antagonist::WriteSeqFsync => write_sequentially(&file("seq"), true, &counter)?,
        Antagonist::WriteRand => write_at_random(&file("rand"), false, &counter)?,
        Antagonist::WriteRandFsync => write_at_random(&file("rand"), true, &counter)?,
        Antagonist::CacheStream => stream(&file("stream"), arguments.stream, &counter)?,
        Antagonist::Net => flood(&counter)?,
        Antagonist::Fill => fill(&file("fill"), &counter),
        Antagonist::Thrash => {
            let bytes = thrashed(arguments.memory);
            on_every_cpu(|| thrash(bytes, &counter));
        }
        Antagonist::All => all(arguments)?,
    }
    Ok(())
}

#[expect(unsafe_code, reason = "no safe wrapper sets a scheduling class")]
fn enter_idle_class() -> std::io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a value that lives through the call; 0 is this thread, the only one yet.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Runs the same on a thread per CPU, for ever.
fn on_every_cpu(work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..host::cpus() {
            scope.spawn(&work);
        }
    });
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    let mut state = 1_u64;
    while Instant::now() < end {
        for round in 0..10_000 {
            state = std::hint::black_box(state.rotate_left(5) ^ round);
        }
    }
}

/// Takes memory step by step and keeps all of it in use.
fn memory(bytes: u64, counter: &Counter) {
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        if (held.len() as u64) * (CHUNK as u64) < bytes {
            // Not zero, or the kernel would not have to give a page.
            held.push(vec![1; CHUNK]);
            counter.bytes(CHUNK);
            continue;
        }
        for chunk in &mut held {
            for page in chunk.iter_mut().step_by(4096) {
                *page = page.wrapping_add(1);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Forks without end; each child works a moment. Bounded in the number of children alive.
#[expect(unsafe_code, reason = "a fork without exec has no safe wrapper")]
fn fork_bomb(counter: &Counter) {
    let mut alive = 0;
    loop {
        // SAFETY: this process has another thread, so the child may only do what is safe in a signal handler: it computes, reads the
        // clock, and ends by `_exit`. It takes no lock and allocates nothing.
        match unsafe { libc::fork() } {
            0 => {
                burn(FORKED_WORK);
                // SAFETY: ends this process without running anything of it.
                unsafe { libc::_exit(0) }
            }
            // No process to be had: wait for one to end.
            -1 => {}
            _ => {
                counter.fork();
                alive += 1;
            }
        }
        loop {
            let options = if alive >= FORKS { 0 } else { libc::WNOHANG };
            // SAFETY: no status is asked for, so no pointer is followed.
            if unsafe { libc::waitpid(-1, std::ptr::null_mut(), options) } <= 0 {
                break;
            }
            alive -= 1;
        }
    }
}

/// A failed write (a full disk) is tried again a little later: an antagonist does not give up.
fn again<T>(result: std::io::Result<T>) -> bool {
    if result.is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    result.is_ok()
}

fn write_sequentially(path: &Path, sync: bool, counter: &Counter) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("failed to make {}", path.display()))?;
    let chunk = vec![0xA5; CHUNK];
    let mut written = 0_u64;
    loop {
        if written >= FILE_BYTES {
            again(file.seek(SeekFrom::Start(0)));
            written = 0;
        }
        if again(file.write_all(&chunk)) {
            written += CHUNK as u64;
            counter.bytes(CHUNK);
        }
        if sync {
            again(file.sync_data());
        }
    }
}

fn write_at_random(path: &Path, sync: bool, counter: &Counter) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("failed to make {}", path.display()))?;
    let (block, mut random) = (vec![0x5A; BLOCK], Random::new(std::process::id().into()));
    let blocks = usize::try_from(FILE_BYTES)? / BLOCK;
    loop {
        let place = (random.below(blocks) * BLOCK) as u64;
        if again(file.write_all_at(&block, place)) {
            counter.bytes(BLOCK);
        }
        if sync {
            again(file.sync_data());
        }
    }
}

fn stream(path: &Path, bytes: u64, counter: &Counter) -> anyhow::Result<()> {
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let mut chunk = vec![0x3C; CHUNK];
    // It is after the page cache alone: the file system is not to be full.
    let free = rustix::fs::fstatvfs(&file).map_or(u64::MAX, |system| system.f_bavail.saturating_mul(system.f_frsize));
    for _ in 0..bytes.min(free / 4 * 3) / CHUNK as u64 {
        again(file.write_all(&chunk));
    }
    loop {
        again(file.seek(SeekFrom::Start(0)));
        while let Ok(read @ 1..) = file.read(&mut chunk) {
            counter.bytes(read);
        }
    }
}

fn flood(counter: &Counter) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let datagram = [0_u8; DATAGRAM];
    loop {
        match socket.send_to(&datagram, (network::USERS, 9)) {
            Ok(sent) => counter.bytes(sent),
            // The answer to an earlier datagram, or a full queue.
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// Fills the file system; once it is full it tries on.
fn fill(path: &Path, counter: &Counter) {
    let chunk = vec![0xC3; CHUNK];
    let mut file = None;
    loop {
        if file.is_none() {
            file = File::create(path).ok();
        }
        if let Some(file) = &mut file
            && again(file.write_all(&chunk))
        {
            counter.bytes(CHUNK);
        }
    }
}

/// What a thread walks through. All of them together take at most three tenths of the cell's memory, of which `memory` is four times:
/// this antagonist is after the cache alone.
fn thrashed(memory: u64) -> usize {
    let most = usize::try_from(memory / 4 * 3 / 10).unwrap_or(usize::MAX) / host::cpus();
    THRASHED_BYTES.min(most).max(CHUNK)
}

fn thrash(bytes: usize, counter: &Counter) {
    let mut memory = vec![1_u8; bytes];
    let mut random = Random::new(7);
    loop {
        for _ in 0..10_000 {
            let at = random.below(bytes);
            memory[at] = memory[at].wrapping_add(1);
        }
        counter.bytes(10_000);
    }
}

/// All others, each as a process of its own; one that was killed is started again.
fn all(arguments: &Arguments) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let mut running: Vec<(Antagonist, Option<Owned>)> = Vec::new();
    running.extend(Antagonist::ALL.iter().filter(|one| **one != Antagonist::All).map(|one| (*one, None)));
    loop {
        for (antagonist, process) in &mut running {
            if process.as_mut().is_some_and(|process| !process.ended()) {
                continue;
            }
            // Groups, class and nice value are inherited.
            let own = Arguments {
                antagonist: *antagonist,
                enter: Vec::new(),
                nice: None,
                idle: false,
                owned: true,
                ..arguments.clone()
            };
            let mut command = Command::new(&program);
            ends_with_this(command.args(own.words()));
            *process = Owned::start(&mut command).ok();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn its_command_line_reads_back() {
        let all = Arguments {
            antagonist: Antagonist::WriteRandFsync,
            work: "/w".into(),
            scratch: "/s".into(),
            memory: 5,
            stream: 7,
            nice: Some(19),
            idle: true,
            enter: vec!["/a".into(), "/b".into()],
            owned: true,
        };
        // The first word is the subcommand, which stands for the program's name here.
        let read = Line::try_parse_from(all.words()).unwrap().arguments;
        assert_eq!(read.words(), all.words());
    }

    #[test]
    fn a_walk_leaves_most_of_the_memory() {
        assert!(thrashed(4 << 30) * host::cpus() <= 308 << 20);
        assert_eq!(thrashed(0), CHUNK);
        assert_eq!(thrashed(u64::MAX), THRASHED_BYTES);
    }

    #[test]
    fn a_bounded_file_is_written_at_random_places() {
        let folder = tempfile::tempdir().unwrap();
        let (path, counter) = (folder.path().join("rand"), Counter::default());
        let (shared, at) = (counter.clone(), path.clone());
        // Ends with this process.
        std::thread::spawn(move || write_at_random(&at, false, &shared));
        counter.keep(folder.path()).unwrap();
        let written =
            crate::interrupt::until(Duration::from_secs(60), || crate::work::done(folder.path()).0.bytes > 1 << 20);
        assert!(written.unwrap());
        assert!(std::fs::metadata(path).unwrap().len() <= FILE_BYTES);
    }
}
