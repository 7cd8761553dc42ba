//! What a disk holds after a power cut. In: the system calls of programs, as strace wrote them with times. Out: the
//! files that are left at any moment.
//!
//! Synced data is there. Unsynced data is there by chance. The rules are harsher than a journaling file system's.
//! Content is there once its own file was synced, a name once its folder was; syncing a file does not sync its name.
//! Unsynced writes are kept, dropped or torn between two sectors in any order, and names are made, changed and removed
//! in any order too.

use std::collections::BTreeMap;
use std::path::Path;

use crate::random::Random;

/// What is written in one piece, in bytes.
const SECTOR: usize = 512;

/// What strace is asked for.
pub(crate) const ARGUMENTS: [&str; 14] = [
    "-f",
    "-ff",
    "-z",
    "-y",
    "-xx",
    "-s",
    "16777216",
    "--seccomp-bpf",
    "--quiet=all",
    "--signal=none",
    "--absolute-timestamps=format:unix,precision:ns",
    "--syscall-times=ns",
    "-e",
    "trace=openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,copy_file_range,sendfile,\
     fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat",
];

/// What a call did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A file was opened that there may not have been, or emptied.
    Opened { emptied: bool },
    /// Bytes were written, at a place or at the end.
    Wrote { offset: Option<u64>, bytes: Vec<u8> },
    /// A file got another length.
    Cut { length: u64 },
    /// A file or folder was synced.
    Synced,
    /// A folder was made.
    MadeFolder,
    /// A file has another name now.
    Renamed { to: String },
    /// A name was removed.
    Removed,
    /// Something that the model does not know.
    Unknown(String),
}

/// A call: from when to when, in nanoseconds since 1970, and on which path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) path: String,
    pub(crate) step: Step,
}

/// The calls in a trace, in the order of their beginnings.
pub(crate) fn read_trace(folder: &Path) -> Vec<Call> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut calls: Vec<Call> = files
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            text.lines().filter_map(parse).collect::<Vec<_>>()
        })
        .collect();
    calls.sort_by_key(|call| call.start);
    calls
}

/// A line such as `12.5 write(3<\x2f\x61>, "\x62", 1) = 1 <0.01>`; nothing where it is of no interest.
fn parse(line: &str) -> Option<Call> {
    let (time, rest) = line.split_once(' ')?;
    let (name, rest) = rest.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments: Vec<&str> = arguments.trim_end().strip_suffix(')')?.split(", ").collect();
    let (result, took) = result.rsplit_once(" <")?;
    let start = nanoseconds(time)?;
    let end = start + nanoseconds(took.strip_suffix('>')?)?;
    // A folder and a name in it, or a path.
    let at = |index: usize| {
        let name = quoted(arguments.get(index + 1)?)?;
        let name = String::from_utf8(name).ok()?;
        let folder = || annotated(arguments.get(index)?);
        if name.starts_with('/') { Some(name) } else { Some(format!("{}/{name}", folder()?)) }
    };
    let path = |index: usize| String::from_utf8(quoted(arguments.get(index)?)?).ok();
    let number = |index: usize| arguments.get(index)?.parse::<u64>().ok();
    let (path, step) = match name {
        "openat" | "open" | "creat" => {
            let has = |flag: &str| name == "creat" || arguments.iter().any(|argument| argument.contains(flag));
            if !has("O_CREAT") && !has("O_TRUNC") {
                return None;
            }
            (annotated(result)?, Step::Opened { emptied: has("O_TRUNC") })
        }
        "write" => (annotated(arguments[0])?, Step::Wrote { offset: None, bytes: quoted(arguments[1])? }),
        "pwrite64" => {
            (annotated(arguments[0])?, Step::Wrote { offset: Some(number(3)?), bytes: quoted(arguments[1])? })
        }
        "writev" => {
            let bytes = arguments.iter().filter_map(|argument| quoted(argument.strip_prefix("[").unwrap_or(argument)));
            (annotated(arguments[0])?, Step::Wrote { offset: None, bytes: bytes.flatten().collect() })
        }
        "ftruncate" => (annotated(arguments[0])?, Step::Cut { length: number(1)? }),
        "fsync" | "fdatasync" => (annotated(arguments[0])?, Step::Synced),
        "mkdir" => (path(0)?, Step::MadeFolder),
        "mkdirat" => (at(0)?, Step::MadeFolder),
        "rename" => (path(0)?, Step::Renamed { to: path(1)? }),
        "renameat" | "renameat2" => (at(0)?, Step::Renamed { to: at(2)? }),
        "unlink" | "rmdir" => (path(0)?, Step::Removed),
        "unlinkat" => (at(0)?, Step::Removed),
        other => (path(0).or_else(|| annotated(arguments[0]))?, Step::Unknown(other.to_owned())),
    };
    Some(Call { start, end, path, step })
}

fn nanoseconds(time: &str) -> Option<u64> {
    let (seconds, fraction) = time.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()?)
}

/// The bytes of a string in quotes, each as `\x61`.
fn quoted(text: &str) -> Option<Vec<u8>> {
    hex(text.strip_prefix("{iov_base=").unwrap_or(text).strip_prefix('"')?.split('"').next()?)
}

/// The path behind a descriptor; `None` where its file has no name any more.
fn annotated(text: &str) -> Option<String> {
    let (path, after) = text.split_once('<')?.1.split_once('>')?;
    if after.contains("deleted") {
        return None;
    }
    String::from_utf8(hex(path)?).ok()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    text.split("\\x").skip(1).map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// When something was done.
type Span = (u64, u64);

#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Cut { length: u64 },
}

#[derive(Debug, Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
    Move(String, String, usize),
}

#[derive(Debug)]
enum Node {
    File { synced: Vec<u8>, length: u64, pending: Vec<(Span, Change)> },
    Folder { synced: BTreeMap<String, usize>, pending: Vec<(Span, NameChange)> },
}

/// What is found after a cut: content by path; `None` for a folder.
pub(crate) type Left = BTreeMap<String, Option<Vec<u8>>>;

/// A disk that programs write to.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Folders that are looked at, below a common one.
    watched: Vec<String>,
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
}

impl Disk {
    /// A disk with one empty folder on it, in which programs make those that are `watched`.
    pub(crate) fn new(top: &str, watched: &[String]) -> Self {
        let mut disk = Self { watched: watched.to_vec(), nodes: Vec::new(), names: BTreeMap::new() };
        disk.add(top.to_owned(), Node::Folder { synced: BTreeMap::new(), pending: Vec::new() });
        disk
    }

    pub(crate) fn watches(&self, path: &str) -> bool {
        self.watched
            .iter()
            .any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    fn add(&mut self, path: String, node: Node) -> usize {
        self.nodes.push(node);
        self.names.insert(path, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// The folder of a path, to change a name in it.
    fn folder(&mut self, path: &str) -> Option<(&mut Vec<(Span, NameChange)>, String)> {
        let (folder, name) = path.rsplit_once('/')?;
        match &mut self.nodes[*self.names.get(folder)?] {
            Node::Folder { pending, .. } => Some((pending, name.to_owned())),
            Node::File { .. } => None,
        }
    }

    fn change_name(&mut self, span: Span, path: &str, change: impl FnOnce(String) -> NameChange) {
        let (pending, name) = self.folder(path).unwrap_or_else(|| panic!("{path} is in no folder that was made"));
        pending.push((span, change(name)));
    }

    /// Does what a call did that had begun by `now`.
    pub(crate) fn apply(&mut self, call: &Call, now: u64) {
        let (path, span) = (&call.path, (call.start, call.end));
        if call.step == Step::Synced {
            // One that had not returned promises nothing.
            if call.end <= now
                && let Some(node) = self.names.get(path).copied()
            {
                self.sync(node, call.start);
            }
            return;
        }
        if !self.watches(path) {
            return;
        }
        match &call.step {
            Step::Synced => {}
            Step::Unknown(name) => panic!("the model knows no {name}, of {path}"),
            Step::Opened { emptied } => {
                if !self.names.contains_key(path) {
                    let node = Node::File { synced: Vec::new(), length: 0, pending: Vec::new() };
                    let id = self.add(path.clone(), node);
                    self.change_name(span, path, |name| NameChange::Set(name, id));
                } else if *emptied {
                    self.cut(span, path, 0);
                }
            }
            Step::Wrote { offset, bytes } => {
                // What is removed meanwhile is nobody's.
                let Some(id) = self.names.get(path).copied() else { return };
                let Node::File { length, pending, .. } = &mut self.nodes[id] else { panic!("{path} is a folder") };
                let offset = offset.unwrap_or(*length);
                *length = (*length).max(offset + bytes.len() as u64);
                pending.push((span, Change::Write { offset, bytes: bytes.clone() }));
            }
            Step::Cut { length } => self.cut(span, path, *length),
            Step::MadeFolder => {
                let id = self.add(path.clone(), Node::Folder { synced: BTreeMap::new(), pending: Vec::new() });
                self.change_name(span, path, |name| NameChange::Set(name, id));
            }
            Step::Renamed { to } => {
                let Some(id) = self.names.remove(path) else { panic!("{path} was never made") };
                self.names.insert(to.clone(), id);
                let name = to.rsplit_once('/').map_or(to.as_str(), |(_, name)| name).to_owned();
                assert_eq!(path.rsplit_once('/').map(|at| at.0), to.rsplit_once('/').map(|at| at.0), "within a folder");
                self.change_name(span, path, |from| NameChange::Move(from, name, id));
            }
            Step::Removed => {
                if self.names.remove(path).is_some() {
                    self.change_name(span, path, NameChange::Remove);
                }
            }
        }
    }

    fn cut(&mut self, span: Span, path: &str, to: u64) {
        let Some(id) = self.names.get(path).copied() else { return };
        if let Node::File { length, pending, .. } = &mut self.nodes[id] {
            *length = to;
            pending.push((span, Change::Cut { length: to }));
        }
    }

    /// All that was done by `began` is on the disk.
    fn sync(&mut self, id: usize, began: u64) {
        match &mut self.nodes[id] {
            Node::File { synced, pending, .. } => {
                for (_, change) in pending.extract_if(.., |(span, _)| span.1 <= began) {
                    write(synced, &change);
                }
            }
            Node::Folder { synced, pending } => {
                for (_, change) in pending.extract_if(.., |(span, _)| span.1 <= began) {
                    rename(synced, &change);
                }
            }
        }
    }

    /// Whether chance has something to decide.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.nodes.iter().any(|node| match node {
            Node::File { pending, .. } => !pending.is_empty(),
            Node::Folder { pending, .. } => !pending.is_empty(),
        })
    }

    /// What is left when power is cut now.
    pub(crate) fn left(&self, random: &mut Random) -> Left {
        let mut left = Left::new();
        let top = self.names.iter().find(|(_, id)| **id == 0).map(|(path, _)| path.clone()).unwrap_or_default();
        self.visit(0, &top, random, &mut left);
        left.remove(&top);
        left
    }

    fn visit(&self, id: usize, path: &str, random: &mut Random, left: &mut Left) {
        match &self.nodes[id] {
            Node::File { synced, pending, .. } => {
                let mut content = synced.clone();
                let kept = Kept::draw(random);
                for (index, (_, change)) in pending.iter().enumerate() {
                    if kept.keeps(index, pending.len(), random) {
                        tear(&mut content, change, kept, random);
                    }
                }
                left.insert(path.to_owned(), Some(content));
            }
            Node::Folder { synced, pending } => {
                let (mut names, kept) = (synced.clone(), Kept::draw(random));
                let keeps: Vec<bool> =
                    (0..pending.len()).map(|index| kept.keeps(index, pending.len(), random)).collect();
                pending
                    .iter()
                    .zip(keeps)
                    .filter(|(_, kept)| *kept)
                    .for_each(|((_, change), _)| rename(&mut names, change));
                left.insert(path.to_owned(), None);
                for (name, id) in names {
                    self.visit(id, &format!("{path}/{name}"), random, left);
                }
            }
        }
    }
}

/// How much is kept of what was not synced.
#[derive(Debug, Clone, Copy)]
enum Kept {
    Nothing,
    All,
    /// So many thousandths, the oldest.
    First(u64),
    /// Each or not.
    Some,
}

impl Kept {
    fn draw(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Nothing,
            1 => Self::All,
            2 => Self::First(random.below(1_000)),
            _ => Self::Some,
        }
    }

    fn keeps(self, index: usize, of: usize, random: &mut Random) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::First(thousandths) => (index as u64) * 1_000 < thousandths * of as u64,
            Self::Some => random.percent(50),
        }
    }
}

fn write(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes } => {
            let start = usize::try_from(*offset).unwrap();
            let end = start + bytes.len();
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(bytes);
        }
        Change::Cut { length } => content.resize(usize::try_from(*length).unwrap(), 0),
    }
}

/// Writes, or a part of the sectors of a longer write.
fn tear(content: &mut Vec<u8>, change: &Change, kept: Kept, random: &mut Random) {
    let Change::Write { offset, bytes } = change else { return write(content, change) };
    if !matches!(kept, Kept::Some) || random.percent(50) {
        return write(content, change);
    }
    let mut place = usize::try_from(*offset).unwrap();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (sector, after) = rest.split_at(rest.len().min(SECTOR - place % SECTOR));
        if random.percent(50) {
            write(content, &Change::Write { offset: place as u64, bytes: sector.to_vec() });
        }
        (place, rest) = (place + sector.len(), after);
    }
}

fn rename(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Set(name, id) => _ = names.insert(name.clone(), *id),
        NameChange::Remove(name) => _ = names.remove(name),
        NameChange::Move(from, to, id) => {
            if names.get(from) == Some(id) {
                names.remove(from);
            }
            names.insert(to.clone(), *id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as strace writes it, with every byte of names and contents as `\x61`.
    fn line(text: &str) -> String {
        let mut line = String::new();
        for (index, part) in text.split('\'').enumerate() {
            match index % 2 {
                0 => line.push_str(part),
                _ => part.bytes().for_each(|byte| line.push_str(&format!("\\x{byte:02x}"))),
            }
        }
        line
    }

    fn lefts(trace: &[&str], now: u64) -> Vec<Left> {
        let mut disk = Disk::new("/d", &["/d/s".to_owned()]);
        for text in trace {
            let call = parse(&line(text)).unwrap();
            if call.start <= now {
                disk.apply(&call, now);
            }
        }
        (0..200).map(|cut| disk.left(&mut Random::new(1, cut))).collect()
    }

    const WRITTEN: [&str; 3] = [
        "0.000000010 mkdir(\"'/d/s'\", 0700) = 0 <0.000000005>",
        "0.000000020 openat(AT_FDCWD<'/'>, \"'/d/s/a'\", O_WRONLY|O_CREAT, 0600) = 3<'/d/s/a'> <0.000000005>",
        "0.000000030 write(3<'/d/s/a'>, \"'ab'\", 2) = 2 <0.000000005>",
    ];
    const SYNCED: [&str; 3] = [
        "0.000000040 fdatasync(3<'/d/s/a'>) = 0 <0.000000005>",
        "0.000000050 fsync(4<'/d/s'>) = 0 <0.000000005>",
        "0.000000060 fsync(4<'/d'>) = 0 <0.000000005>",
    ];

    #[test]
    fn what_was_synced_is_there_and_the_rest_as_chance_has_it() {
        let all = [WRITTEN, SYNCED].concat();
        let whole = |left: &Left| left.get("/d/s/a") == Some(&Some(b"ab".to_vec()));
        assert!(lefts(&all, 70).iter().all(whole), "all is synced");
        // Without the last sync, or when power is cut within it, the folder's own name is not.
        for now in [55, 62] {
            let left = lefts(&all, now);
            assert!(left.iter().any(whole) && left.iter().any(BTreeMap::is_empty), "{now}");
        }
        let named: Vec<Option<Vec<u8>>> =
            lefts(&WRITTEN, 70).iter().filter_map(|left| left.get("/d/s/a").cloned().flatten().map(Some)).collect();
        assert!(
            named.contains(&Some(Vec::new())) && named.contains(&Some(b"ab".to_vec())),
            "a name without its content"
        );
    }

    #[test]
    fn a_new_name_may_come_without_the_content_and_the_old_one_may_stay() {
        let rename = "0.000000070 rename(\"'/d/s/b'\", \"'/d/s/a'\") = 0 <0.000000005>";
        let new = [
            "0.000000062 openat(AT_FDCWD<'/'>, \"'/d/s/b'\", O_WRONLY|O_CREAT, 0600) = 3<'/d/s/b'> <0.000000001>",
            "0.000000065 write(3<'/d/s/b'>, \"'new'\", 3) = 3 <0.000000001>",
        ];
        let trace = [WRITTEN.as_slice(), &SYNCED, &new, &[rename]].concat();
        let found: std::collections::BTreeSet<Option<Vec<u8>>> =
            lefts(&trace, 80).into_iter().map(|left| left.get("/d/s/a").cloned().flatten()).collect();
        for content in [b"ab".as_slice(), b"new", b""] {
            assert!(found.contains(&Some(content.to_vec())), "{content:?} of {found:?}");
        }
    }
}
