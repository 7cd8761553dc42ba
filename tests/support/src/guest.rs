//! Real QEMU guests that cost next to nothing to start. In: a folder, and QEMU's arguments. Out: a process whose virtual
//! CPU loops or halts. Called by tests that look at guests from outside.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::bench::Running;

/// A boot sector: eight bytes of machine code, then nothing, then the mark that makes it one.
fn sector(code: [u8; 8]) -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[..8].copy_from_slice(&code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// QEMU is there.
#[must_use]
pub fn has_qemu() -> bool {
    Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Starts a guest with 8 MiB, by software emulation. Its virtual CPU loops for ever if it is `busy`, else halts for ever.
#[must_use]
pub fn start(folder: &Path, image: &str, busy: bool, arguments: &[&str]) -> Running {
    // jmp to itself; or cli, hlt, and back to hlt.
    let code = if busy { [0xeb, 0xfe, 0, 0, 0, 0, 0, 0] } else { [0xfa, 0xf4, 0xeb, 0xfd, 0, 0, 0, 0] };
    let image = folder.join(image);
    std::fs::write(&image, sector(code)).unwrap();
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-m", "8", "-display", "none", "-nodefaults", "-no-reboot"]).args(arguments);
    command.arg("-drive").arg(format!("file={},format=raw,if=ide,index=0", image.display()));
    command.stdin(Stdio::null());
    Running::start(command)
}
