//! Files of lines that are only appended to, some of them rotated by size. In: lines of the event log, of the audit log and
//! of jobs' results. Out: files in which a line is whole or absent, whatever the disk does. What a sync has not reached counts
//! as absent: when one fails, all lines since the last are taken back.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{folder_of, make_folders, sync_folder};

/// Bytes read at once in search of the last line end. Chosen.
const BLOCK: usize = 4_096;

/// What the files are called and how much is kept.
#[derive(Debug, Clone)]
pub(crate) struct LineFiles {
    /// Where they are.
    pub(crate) folder: PathBuf,
    /// The current one is `STEM.jsonl`, older ones are `STEM.1.jsonl`, `STEM.2.jsonl`, …
    pub(crate) stem: &'static str,
    /// Who may read a new one, as of chmod(1).
    pub(crate) mode: u32,
    /// A file that has grown to this many bytes is set aside.
    pub(crate) max_bytes: u64,
    /// Files kept beside the current one.
    pub(crate) files: usize,
}

impl LineFiles {
    /// The file that grows.
    pub(crate) fn current(&self) -> PathBuf {
        self.folder.join(format!("{}.jsonl", self.stem))
    }

    fn older(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{}.{number}.jsonl", self.stem))
    }

    /// Each name is on the disk before the next step can take a file from it. A rotation that broke off left a name free:
    /// only the files up to there move, so that trying again and again costs no file but the oldest.
    fn rotate(&self) -> io::Result<()> {
        let last = (1..self.files).find(|number| !self.older(*number).exists()).unwrap_or(self.files);
        for number in (1..last).rev() {
            std::fs::rename(self.older(number), self.older(number + 1))?;
            sync_folder(&self.folder)?;
        }
        std::fs::rename(self.current(), self.older(1))?;
        sync_folder(&self.folder)
    }
}

/// One file of lines.
#[derive(Debug)]
pub(crate) struct LineFile {
    file: File,
    /// Of whole lines, in bytes.
    length: u64,
    /// How much of that is on the disk.
    synced: u64,
    /// Something may be behind the last line.
    torn: bool,
}

impl LineFile {
    /// Opens or makes a file, and cuts off a last line that a crash cut short: that line was not acknowledged. All that is in
    /// it then is on the disk, also what a killed program had written.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).read(true).append(true).mode(mode).open(path)?;
        let length = end_of_whole_lines(&file)?;
        shorten(&file, length)?;
        file.sync_data()?;
        sync_folder(folder_of(path))?;
        Ok(Self { file, length, synced: length, torn: false })
    }

    /// Appends a line, given with its end.
    ///
    /// # Errors
    /// When it cannot; then nothing of the line is there.
    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.whole()?;
        let written = self.file.write_all(line);
        match written {
            Ok(()) => self.length += line.len() as u64,
            // A part of it may be there, even all but its end, and the next line would end it. What cannot be taken back
            // now is before the next, or when the file is opened again.
            Err(_) => self.torn = shorten(&self.file, self.length).is_err(),
        }
        written
    }

    /// Takes back what is behind the last line.
    fn whole(&mut self) -> io::Result<()> {
        if self.torn {
            shorten(&self.file, self.length)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Whether there are lines that may not be on the disk.
    pub(crate) const fn is_behind(&self) -> bool {
        self.synced < self.length
    }

    /// Something is behind the last line that has yet to be taken back.
    pub(crate) const fn is_torn(&self) -> bool {
        self.torn
    }

    /// Puts all lines on the disk.
    ///
    /// # Errors
    /// When some may not be there. Then all since the last sync are taken back, as the kernel will not try them again: now, or
    /// before the next line.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let synced = self.whole().and_then(|()| self.file.sync_data());
        match synced {
            Ok(()) => self.synced = self.length,
            Err(_) => {
                self.length = self.synced;
                self.torn = shorten(&self.file, self.length).is_err();
            }
        }
        synced
    }

    /// For tests of disks that fail.
    #[cfg(test)]
    pub(crate) const fn of(file: File) -> Self {
        Self { file, length: 0, synced: 0, torn: false }
    }
}

/// The files' one writer.
#[derive(Debug)]
pub(crate) struct LineWriter {
    pub(crate) files: LineFiles,
    open: Option<LineFile>,
}

impl LineWriter {
    /// A writer that opens the current file with the first line.
    pub(crate) const fn new(files: LineFiles) -> Self {
        Self { files, open: None }
    }

    /// Puts on the disk what an earlier run wrote; it may have been killed before it could.
    ///
    /// # Errors
    /// When some of it may not be there.
    pub(crate) fn sync_earlier(&mut self) -> io::Result<()> {
        if self.files.current().exists() {
            self.open_current()?;
        }
        Ok(())
    }

    fn open_current(&mut self) -> io::Result<&mut LineFile> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                make_folders(&self.files.folder, 0o777)?;
                LineFile::open(&self.files.current(), self.files.mode)?
            }
        };
        Ok(self.open.insert(open))
    }

    /// The next line begins a new file. What is in this one must be on the disk by then.
    pub(crate) fn is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.length >= self.files.max_bytes)
    }

    /// Appends a line, given without its end; with `sync` it is on the disk on return.
    ///
    /// # Errors
    /// When it is not there; then nothing of it is.
    pub(crate) fn append(&mut self, mut line: Vec<u8>, sync: bool) -> io::Result<()> {
        line.push(b'\n');
        // Opened first: it may be full since an earlier run, or since a rotation that failed.
        self.open_current()?;
        if self.is_full() {
            self.sync()?;
            self.open = None;
            self.files.rotate()?;
        }
        self.open_current()?.append(&line)?;
        if sync { self.sync() } else { Ok(()) }
    }

    /// Flushes what was appended to the disk.
    ///
    /// # Errors
    /// When some of it may not be there; then all since the last time is taken back.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let synced = open.sync();
        // What could not be taken back would count when it is opened anew.
        if synced.is_err() && !open.is_torn() {
            self.open = None;
        }
        synced
    }

    /// Writes to this file from now on: for tests of disks that fail.
    #[cfg(test)]
    pub(crate) fn write_to(&mut self, file: File) {
        self.open = Some(LineFile::of(file));
    }
}

/// Never makes it longer: another program may have emptied it.
fn shorten(file: &File, length: u64) -> io::Result<()> {
    if file.metadata()?.len() > length { file.set_len(length) } else { Ok(()) }
}

/// Bytes up to and with the last end of a line.
fn end_of_whole_lines(file: &File) -> io::Result<u64> {
    let mut block = [0; BLOCK];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        let part = &mut block[..usize::try_from(end - start).unwrap_or(BLOCK)];
        file.read_exact_at(part, start)?;
        if let Some(last) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The files of a log, oldest first; the last is the current one, which need not be there.
pub(crate) fn oldest_first(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let mut older: Vec<(usize, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_prefix(stem)?.strip_prefix('.')?;
            let number = name.strip_suffix(".jsonl")?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    older.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    older.into_iter().map(|(_, path)| path).chain([folder.join(format!("{stem}.jsonl"))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(folder: &Path) -> LineWriter {
        let folder = folder.to_owned();
        LineWriter::new(LineFiles { folder, stem: "log", mode: 0o600, max_bytes: u64::MAX, files: 3 })
    }

    #[test]
    fn a_line_cut_short_is_cut_off_wherever_it_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log.jsonl");
        let (first, second) = (format!("{}\n", "a".repeat(3 * BLOCK)), format!("{}\n", "b".repeat(2 * BLOCK)));
        for cut in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK] {
            std::fs::write(&file, format!("{first}{}", &second[..cut])).unwrap();
            writer(folder.path()).append(b"c".to_vec(), false).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{first}c\n"), "cut after {cut}");
        }
        std::fs::write(&file, "no end at all").unwrap();
        writer(folder.path()).append(b"c".to_vec(), false).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "c\n");
    }

    /// On a real full disk, a tiny tmpfs, that ends at each byte of a line in turn: before its end too.
    #[test]
    fn nothing_is_left_of_a_line_that_found_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(disk).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            gleaner_test_support::skipped!("no full disk to test on: a tmpfs cannot be mounted here");
            return;
        }
        let line = "0123456789";
        let mut failures = 0;
        for room in 0..=line.len() {
            let mut log = writer(disk);
            // Room is given in pages: what is left of the last one is what a line still finds.
            let before = "x".repeat(4_096 - room - 1);
            log.append(before.clone().into_bytes(), false).unwrap();
            _ = std::fs::write(disk.join("ballast"), vec![0; 1 << 20]);
            let refused = log.append(line.into(), false).is_err();
            let left = std::fs::read_to_string(log.files.current()).unwrap();
            std::fs::remove_file(disk.join("ballast")).unwrap();
            log.append(line.into(), false).unwrap();
            let whole = std::fs::read_to_string(log.files.current()).unwrap();
            std::fs::remove_file(log.files.current()).unwrap();
            failures += usize::from(refused && left == format!("{before}\n"));
            assert_eq!(whole, format!("{before}\n{line}\n"), "{room} bytes of room");
        }
        assert!(std::process::Command::new("umount").arg(disk).status().unwrap().success());
        assert_eq!(failures, line.len() + 1);
    }

    #[test]
    fn a_line_that_did_not_reach_the_disk_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = writer(folder.path());
        log.append(b"a".to_vec(), true).unwrap();
        // A device without storage takes lines but no sync.
        log.write_to(OpenOptions::new().write(true).open("/dev/null").unwrap());
        log.append(b"b".to_vec(), true).unwrap_err();
        log.append(b"c".to_vec(), true).unwrap();
        assert_eq!(std::fs::read_to_string(log.files.current()).unwrap(), "a\nc\n");
    }

    #[test]
    fn what_is_behind_the_last_line_is_taken_back_before_the_next_and_before_a_sync() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let torn = || {
            std::fs::write(&path, "a\nbb").unwrap();
            let file = OpenOptions::new().append(true).open(&path).unwrap();
            LineFile { file, length: 2, synced: 0, torn: true }
        };
        let mut file = torn();
        assert!(file.is_torn() && file.is_behind());
        file.append(b"c\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nc\n");
        assert!(!file.is_torn() && file.is_behind());
        file.sync().unwrap();
        assert!(!file.is_behind());
        let mut file = torn();
        file.sync().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n");
        assert!(!file.is_torn() && !file.is_behind());
    }

    #[test]
    fn an_older_file_that_cannot_be_moved_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = writer(folder.path());
        (log.files.max_bytes, log.files.files) = (1, 2);
        log.append(b"a".to_vec(), true).unwrap();
        log.append(b"b".to_vec(), true).unwrap();
        // A folder is in the way of the oldest.
        std::fs::create_dir(folder.path().join("log.2.jsonl")).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        for _ in 0..3 {
            log.append(b"c".to_vec(), true).unwrap_err();
            assert_eq!(
                (read("log.1.jsonl"), read("log.jsonl")),
                ("a\n".to_owned(), "b\n".to_owned()),
                "it does not grow"
            );
        }
        std::fs::remove_dir(folder.path().join("log.2.jsonl")).unwrap();
        log.append(b"c".to_vec(), true).unwrap();
        let names = oldest_first(folder.path(), "log");
        let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["log.2.jsonl", "log.1.jsonl", "log.jsonl"]);
        let lines: Vec<String> = names.into_iter().map(read).collect();
        assert_eq!(lines, ["a\n", "b\n", "c\n"]);
    }

    #[test]
    fn a_file_that_an_earlier_run_filled_is_set_aside_first() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        for line in ["a", "b"] {
            let mut log = writer(folder.path());
            log.files.max_bytes = 1;
            log.append(line.into(), true).unwrap();
        }
        assert_eq!((read("log.1.jsonl"), read("log.jsonl")), ("a\n".to_owned(), "b\n".to_owned()));
    }

    #[test]
    fn a_rotation_that_broke_off_is_finished_without_losing_another_file() {
        let folder = tempfile::tempdir().unwrap();
        // The oldest is gone, and the one before it took its name.
        for (name, line) in [("log.3.jsonl", "b\n"), ("log.1.jsonl", "c\n"), ("log.jsonl", "d\n")] {
            std::fs::write(folder.path().join(name), line).unwrap();
        }
        let mut log = writer(folder.path());
        log.files.max_bytes = 1;
        log.append(b"e".to_vec(), true).unwrap();
        let lines = oldest_first(folder.path(), "log").into_iter().map(|file| std::fs::read_to_string(file).unwrap());
        assert_eq!(lines.collect::<Vec<_>>(), ["b\n", "c\n", "d\n", "e\n"]);
    }
}
