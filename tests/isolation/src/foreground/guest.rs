//! A real QEMU guest under software emulation. In: the setup. Out: its process, and seats for [`super::load`]: it works
//! when it is asked on its serial line, and answers there. Called by [`super`].

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::load::{Schedule, Seat};
use super::setup::Setup;
use crate::children::{Owned, ends_with_this};
use crate::interrupt;
use crate::network::run_quietly;

/// The guest's only sector, in assembly.
const SECTOR: &str = include_str!("guest.S");
const PERIOD: Duration = Duration::from_millis(50);
/// An answer that takes longer counts as missing.
const TIMEOUT: Duration = Duration::from_secs(1);
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn start(setup: &Setup) -> anyhow::Result<(Vec<Seat>, Owned)> {
    let (image, socket) = (setup.folder.join("guest.img"), setup.folder.join("guest.sock"));
    build(&setup.folder, &image)?;
    _ = std::fs::remove_file(&socket);
    let log = std::fs::File::create(setup.folder.join("guest.log"))?;
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-name", "guest=isolation,debug-threads=on", "-accel", "tcg", "-m", "8", "-display", "none"]);
    command.args(["-nodefaults", "-no-reboot", "-serial"]).arg(format!("unix:{},server=on,wait=off", socket.display()));
    command.arg("-drive").arg(format!("file={},format=raw,if=ide,index=0", image.display()));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    ends_with_this(&mut command);
    let mut guest = Owned::start(&mut command).context("failed to start QEMU")?;
    let mut line = None;
    let answered = interrupt::until(START_TIMEOUT, || {
        if line.is_none() {
            line = UnixStream::connect(&socket).ok();
        }
        // What comes before the guest has set up its line is lost, so it is asked until it answers.
        let answers = line.as_mut().is_some_and(|line| ask(line, Duration::from_millis(300)).is_ok());
        answers || guest.ended()
    })?;
    let Some(mut line) = line.filter(|_| answered && !guest.ended()) else {
        bail!("the guest does not answer; see {}", setup.folder.join("guest.log").display());
    };
    let request = move || ask(&mut line, TIMEOUT).is_ok();
    let schedule = Schedule::Every { period: PERIOD, offset: Duration::ZERO };
    Ok((vec![Seat { schedule, request: Box::new(request) }], guest))
}

fn build(folder: &Path, image: &Path) -> anyhow::Result<()> {
    let (source, object) = (folder.join("guest.S"), folder.join("guest.o"));
    std::fs::write(&source, SECTOR)?;
    run_quietly(Command::new("as").args(["--32", "-o"]).arg(&object).arg(&source))?;
    let mut link = Command::new("ld");
    link.args(["-m", "elf_i386", "--oformat", "binary", "-Ttext", "0x7c00", "-o"]).arg(image).arg(&object);
    run_quietly(&mut link)
}

/// Sends a byte and waits for it.
fn ask(line: &mut UnixStream, timeout: Duration) -> std::io::Result<()> {
    // An answer that came too late is not the next one's.
    line.set_nonblocking(true)?;
    let mut late = [0; 64];
    while matches!(line.read(&mut late), Ok(1..)) {}
    line.set_nonblocking(false)?;
    line.set_read_timeout(Some(timeout))?;
    line.write_all(b"x")?;
    line.read_exact(&mut [0])
}
