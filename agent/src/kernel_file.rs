//! Kernel files: read within bounds, written in one call, or kept open and read again and again. In: a path. Out:
//! bytes, or why there are none. Called by what senses, probes or changes the host.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gleaner_types::report::{Absence, AbsenceKind, Reason};

/// Most processes and threads that Linux has at once (PID_MAX_LIMIT of include/linux/threads.h).
pub(crate) const MOST_TASKS: usize = 4 << 20;

/// Longest list of processes or threads that Linux writes: so many numbers of seven digits, each with its line end.
pub(crate) const TASK_LIST: usize = 8 * MOST_TASKS;

/// Most that is read of a file that stays open: such a list. A longer one is said to be unreadable, never cut.
const MAX_BYTES: usize = TASK_LIST;

/// Longest text of a single-valued kernel file that is looked at.
const SHORT: u64 = 4096;
/// A kernel file that stays open.
#[derive(Debug)]
pub(crate) struct KeptFile {
    path: PathBuf,
    file: Option<File>,
}

impl KeptFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), file: None }
    }

    /// The file's bytes, read into `buffer`. A file that cannot be opened is tried again every time, one whose
    /// object is gone (`ESRCH`, `ENODEV`) is opened afresh the next time.
    pub(crate) fn read<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Absence> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path).map_err(|error| absence(&self.path, &error))?),
        };
        match read_from_start(file, buffer) {
            Ok(length) => Ok(&buffer[..length]),
            Err(error) => {
                self.file = None;
                Err(absence(&self.path, &error))
            }
        }
    }
}

fn read_from_start(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    if buffer.len() < 4096 {
        buffer.resize(4096, 0);
    }
    let mut length = 0;
    loop {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => return Ok(length),
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == buffer.len() {
            if length >= MAX_BYTES {
                buffer.truncate(4096);
                buffer.shrink_to_fit();
                return Err(too_long(MAX_BYTES as u64));
            }
            buffer.resize(length * 2, 0);
        }
    }
}

/// The text of a small file; more than 4 KiB is not valid data.
pub(crate) fn read_short(path: &Path) -> io::Result<String> {
    read_bounded(path, SHORT)
}

/// The text of a file of at most `most` bytes. Never follows a symbolic link in the last place and never
/// waits on a pipe.
pub(crate) fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most { Err(too_long(most)) } else { Ok(text) }
}

fn too_long(most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("longer than {most} bytes"))
}

/// Writes a file that must exist, in one call, as kernel files want it. Never follows a symbolic link in the last place.
pub(crate) fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOFOLLOW);
    // Only a plain file, as in tests, keeps an old longer value otherwise; kernel files ignore it.
    options.truncate(true);
    options.open(path)?.write_all(value.as_bytes())
}

/// Most names of a folder looked at. No folder of processes or threads is read so: see `numbers`.
const MOST_NAMES: usize = 65_536;

/// Names in a folder, sorted; none if it cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).take(MOST_NAMES).collect();
    names.sort();
    names
}

/// The numbers among the names in a folder of processes or threads, sorted; none if it cannot be read. All of them: the kernel
/// lists them in their order, so that a cut would hide the newest.
pub(crate) fn numbers(folder: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<i32> = numbers.take(MOST_TASKS).collect();
    numbers.sort_unstable();
    numbers
}

/// What an error of reading a kernel file means.
pub(crate) fn absence(path: &Path, error: &io::Error) -> Absence {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => AbsenceKind::Denied,
        io::ErrorKind::NotFound => AbsenceKind::NotSupported,
        _ => match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENODEV) => AbsenceKind::Vanished,
            _ => AbsenceKind::NotSupported,
        },
    };
    let file = path.display().to_string();
    let reason = match error.raw_os_error() {
        Some(errno) => Reason::Unreadable { file: file.into(), errno },
        None => Reason::Described(format!("{file} cannot be read: {error}").into()),
    };
    Absence { kind, reason }
}

/// That a file holds something unexpected.
pub(crate) fn malformed(what: &str, text: &[u8]) -> Absence {
    let shown: String = String::from_utf8_lossy(text).chars().take(60).collect();
    Absence::because(Reason::Unexpected { what: what.into(), shown: shown.into() })
}

/// Lines of a kernel file.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// Fields of a line, separated by any white space.
pub(crate) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// The number of the first line `KEY NUMBER`.
pub(crate) fn keyed_number(bytes: &[u8], key: &str) -> Option<u64> {
    lines(bytes).find_map(|line| number(line.strip_prefix(key.as_bytes())?.strip_prefix(b" ")?.trim_ascii()))
}

/// A decimal number without sign; `None` for anything else, or more than fits.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_again_what_changed_and_says_why_it_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let (mut kept, mut buffer) = (KeptFile::new(&path), Vec::new());
        assert_eq!(kept.read(&mut buffer).unwrap_err().kind, AbsenceKind::NotSupported);
        std::fs::write(&path, "1").unwrap();
        assert_eq!(kept.read(&mut buffer).unwrap(), b"1");
        let long = vec![b'y'; 10_000];
        std::fs::write(&path, &long).unwrap();
        assert_eq!(kept.read(&mut buffer).unwrap(), long);
    }

    #[test]
    fn a_list_of_many_processes_is_read_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cgroup.procs");
        // More than fit into a MiB.
        let list: String = (1_000_000..1_200_000).map(|pid| format!("{pid}\n")).collect();
        std::fs::write(&path, &list).unwrap();
        let (mut kept, mut buffer) = (KeptFile::new(&path), Vec::new());
        assert_eq!(lines(kept.read(&mut buffer).unwrap()).count(), 200_000);
        assert_eq!(read_bounded(&path, TASK_LIST as u64).unwrap().lines().next_back(), Some("1199999"));
        File::options().write(true).open(&path).unwrap().set_len(TASK_LIST as u64 + 1).unwrap();
        let absence = kept.read(&mut buffer).unwrap_err();
        assert!(absence.to_string().contains("longer than"), "{absence}");
        assert!(buffer.len() <= 4096);
        std::fs::write(&path, "7\n").unwrap();
        assert_eq!(kept.read(&mut buffer).unwrap(), b"7\n");
    }

    #[test]
    fn no_process_is_left_out_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let pids: Vec<i32> = (4_120_000..4_190_000).collect();
        pids.iter().for_each(|pid| _ = File::create(folder.path().join(pid.to_string())).unwrap());
        File::create(folder.path().join("self")).unwrap();
        assert!(pids.len() > MOST_NAMES);
        assert_eq!(numbers(folder.path()), pids);
        assert!(numbers(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn does_not_read_pipes_links_or_endless_files() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("link")).unwrap();
        assert!(read_short(&root.path().join("link")).is_err());
        assert!(read_short(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn does_not_write_through_links() {
        let root = tempfile::tempdir().unwrap();
        let (file, link) = (root.path().join("file"), root.path().join("link"));
        std::fs::write(&file, "found").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(write_existing(&link, "x").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "found");
    }

    #[test]
    fn numbers_are_strict() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"-1", b"1 ", b"18446744073709551616", b"0x1"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }
}
