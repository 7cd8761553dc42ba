//! The state in etcd from which the next leader continues. In: the controller's state, and who may join. Out: the same,
//! read by the next leader. Called by the core loop.
//!
//! The state is compressed and cut into chunks below etcd's limit of 1.5 MiB for a request. The last chunk and the head
//! that makes the whole valid are written in one transaction. Every transaction requires that the leader's key is the
//! one that this leader made, so a deposed leader overwrites nothing. It also requires the head that the leader knows,
//! so a request that was delayed in the network undoes no later one.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use gleaner_planner::controller::Controller;
use gleaner_types::error::chain;
use gleaner_types::format::UnknownFormat;
use gleaner_wire::{FrameError, MAX_STORED, encode_value};
use serde::{Deserialize, Serialize};

use super::election::{StartError, WonElection};
use super::etcd::{Compare, Etcd, EtcdError, Operation, transaction};
use super::settings::StandbySettings;
use crate::enrolment::Admissions;
use crate::formats::{self, CURRENT, Document, ReadError};
use crate::http::TlsError;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;
/// Most chunks.
const MOST_CHUNKS: usize = 128;
/// States that wait for the writing thread; of more the newest is left to the next save.
const WAITING: usize = 16;
/// Attempts to write a state on a head that is not the one expected.
const MOST_ATTEMPTS: u32 = 3;
/// How long what keys held is kept in etcd. A state a second would fill it otherwise. Chosen; what reads here reads
/// what is newest.
const HISTORY: Duration = Duration::from_secs(60);

/// What is in etcd is no state that this program can use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// etcd does not give it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Its head is none.
    #[error(transparent)]
    Head(#[from] serde_json::Error),
    /// Another version wrote it, in a format that this one does not read.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// Its head counts more chunks than any state has.
    #[error("it has {chunks} chunks, and no state has more than {MOST_CHUNKS}")]
    ManyChunks {
        /// How many.
        chunks: usize,
    },
    /// A chunk is not there.
    #[error("chunk {index} of {chunks} is missing")]
    Missing {
        /// Which one.
        index: usize,
        /// How many there should be.
        chunks: usize,
    },
    /// Its bytes are others than its head says.
    #[error("it is damaged: {found} bytes of {expected}")]
    Damaged {
        /// Bytes that are there.
        found: usize,
        /// Bytes by the head.
        expected: usize,
    },
    /// It is not compressed as it should be.
    #[error("it is damaged")]
    NotDeflated(#[source] io::Error),
    /// It is longer than any state.
    #[error("it has more than {MAX_STORED} bytes")]
    TooLong,
    /// Its format says something else.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The state that the last leader left cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It is there, perhaps, and cannot be used.
    #[error("the state in etcd ({key}) cannot be used")]
    Unusable {
        /// The key of its head.
        key: String,
        /// Why.
        source: StateError,
    },
}

/// A state is not written to etcd.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// It cannot be compressed.
    #[error(transparent)]
    Compress(#[from] io::Error),
    /// Its head cannot be encoded.
    #[error(transparent)]
    Head(#[from] serde_json::Error),
    /// It is larger than what is kept there.
    #[error("the state is too large for etcd: {bytes} bytes, compressed")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// This aggregator was deposed.
    #[error("another aggregator leads")]
    Deposed,
    /// Somebody else writes there.
    #[error("its head in etcd changes all the time")]
    Contended,
    /// etcd does not take it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// A state is not in etcd, or not known to be.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum SaveError {
    /// It cannot be encoded.
    #[error(transparent)]
    Encode(Arc<FrameError>),
    /// It, or the answer, takes longer than may be waited for.
    #[error("etcd takes too long")]
    Slow,
    /// It was not written.
    #[error("the state cannot be written to etcd")]
    Write(#[source] Arc<WriteError>),
}

/// What makes the chunks a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    /// As in an aggregator's own store.
    format: u64,
    /// Version of the software that wrote it, for people.
    software: String,
    generation: String,
    chunks: usize,
    /// Of all chunks together.
    bytes: usize,
    crc32: u32,
}

/// A state as it is written.
struct Packed {
    head: Head,
    data: Vec<u8>,
}

impl Packed {
    fn new(state: &[u8], generation: String) -> Result<Self, WriteError> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let data = encoder.write_all(state).and_then(|()| encoder.finish())?;
        let chunks = data.len().div_ceil(CHUNK).max(1);
        if chunks > MOST_CHUNKS {
            return Err(WriteError::TooLarge { bytes: data.len() });
        }
        let (software, crc32) = (env!("CARGO_PKG_VERSION").to_owned(), crc32fast::hash(&data));
        Ok(Self { head: Head { format: CURRENT, software, generation, chunks, bytes: data.len(), crc32 }, data })
    }

    fn chunk(&self, index: usize) -> &[u8] {
        self.data.chunks(CHUNK).nth(index).unwrap_or_default()
    }
}

/// The state of a head and its chunks.
fn unpack(head: &Head, data: &[u8]) -> Result<Vec<u8>, StateError> {
    if data.len() != head.bytes || crc32fast::hash(data) != head.crc32 {
        return Err(StateError::Damaged { found: data.len(), expected: head.bytes });
    }
    let mut state = Vec::new();
    let limit = MAX_STORED as u64 + 1;
    DeflateDecoder::new(data).take(limit).read_to_end(&mut state).map_err(StateError::NotDeflated)?;
    if state.len() > MAX_STORED {
        return Err(StateError::TooLong);
    }
    Ok(state)
}

/// The head of a state of a format that this program reads.
fn read_head(bytes: &[u8]) -> Result<Head, StateError> {
    /// What no format changes.
    #[derive(Deserialize)]
    struct Common {
        format: u64,
        software: Option<String>,
    }
    let common: Common = serde_json::from_slice(bytes)?;
    formats::check(common.format, common.software.as_deref())?;
    let head: Head = serde_json::from_slice(bytes)?;
    if head.chunks > MOST_CHUNKS {
        return Err(StateError::ManyChunks { chunks: head.chunks });
    }
    Ok(head)
}

/// The keys of a state.
#[derive(Debug, Clone)]
struct Keys {
    leader: String,
    head: String,
    chunks: String,
}

impl Keys {
    fn new(settings: &StandbySettings) -> Self {
        Self { leader: settings.key("leader"), head: settings.key("state"), chunks: settings.key("chunk/") }
    }

    fn chunk(&self, generation: &str, index: usize) -> String {
        format!("{}{generation}/{index:04}", self.chunks)
    }
}

/// Reads the state that the last leader left; `None` where there never was one. Blocks. Only the leader may: before it
/// leads, another may be writing.
///
/// # Errors
/// [`LoadError`].
pub(super) fn load(settings: &StandbySettings) -> Result<Option<(Controller, Admissions)>, LoadError> {
    let keys = Keys::new(settings);
    let mut etcd = Etcd::new(&settings.endpoints, settings.tls.as_ref(), settings.time_limit())?;
    read_all(&mut etcd, &keys).map_err(|source| LoadError::Unusable { key: keys.head.clone(), source })
}

fn read_all(etcd: &mut Etcd, keys: &Keys) -> Result<Option<(Controller, Admissions)>, StateError> {
    let Some(head) = etcd.get(&keys.head)? else { return Ok(None) };
    let head = read_head(&head.value)?;
    let mut data = Vec::new();
    for index in 0..head.chunks {
        let chunk = etcd.get(&keys.chunk(&head.generation, index))?;
        let chunk = chunk.ok_or(StateError::Missing { index, chunks: head.chunks })?;
        data.extend_from_slice(&chunk.value);
    }
    let state = unpack(&head, &data)?;
    drop(data);
    Ok(Some(formats::read(Document::Replicated, head.format, &state)?))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    _ = read_head(data);
    let head = Head {
        format: CURRENT,
        software: String::new(),
        generation: String::new(),
        chunks: 1,
        bytes: data.len(),
        crc32: crc32fast::hash(data),
    };
    // Deflated as it is stored, and plain, which mutations reach further into.
    for state in [unpack(&head, data).unwrap_or_default().as_slice(), data] {
        for format in [2, 3, CURRENT] {
            _ = formats::read::<(Controller, Admissions)>(Document::Replicated, format, state);
        }
    }
}

/// Writes states.
#[derive(Debug)]
struct Writer {
    etcd: Etcd,
    keys: Keys,
    epoch: u64,
    created: i64,
    /// Revision of the head as last seen.
    head: i64,
    sequence: u64,
    /// When which revision was the newest, since the last compaction.
    mark: Option<(Instant, i64)>,
    compact: bool,
}

impl Writer {
    fn write(&mut self, state: &[u8]) -> Result<(), WriteError> {
        self.sequence += 1;
        let packed = Packed::new(state, format!("{:020}-{:020}", self.epoch, self.sequence))?;
        for _ in 0..MOST_ATTEMPTS {
            if self.attempt(&packed)? {
                self.compact();
                return Ok(());
            }
        }
        Err(WriteError::Contended)
    }

    /// Writes all chunks and the head; false where the head was another than the one last seen.
    fn attempt(&mut self, packed: &Packed) -> Result<bool, WriteError> {
        let Head { generation, chunks, .. } = &packed.head;
        let ours = Compare::Created(&self.keys.leader, self.created);
        let last = chunks - 1;
        for index in 0..last {
            let key = self.keys.chunk(generation, index);
            let put = Operation::Put { key: &key, value: packed.chunk(index), lease: 0 };
            let outcome = self.etcd.transact(&transaction(&[ours], &[put], &[]))?;
            if !outcome.succeeded {
                return Err(WriteError::Deposed);
            }
        }
        let head = serde_json::to_vec(&packed.head)?;
        let (key, first) = (self.keys.chunk(generation, last), self.keys.chunk(generation, 0));
        let body = transaction(
            &[ours, Compare::Modified(&self.keys.head, self.head)],
            &[
                // All generations before this one.
                Operation::Delete { from: &self.keys.chunks, before: &first },
                Operation::Put { key: &key, value: packed.chunk(last), lease: 0 },
                Operation::Put { key: &self.keys.head, value: &head, lease: 0 },
            ],
            &[Operation::Get { key: &self.keys.leader }, Operation::Get { key: &self.keys.head }],
        );
        let outcome = self.etcd.transact(&body)?;
        if outcome.succeeded {
            self.head = outcome.revision;
            return Ok(true);
        }
        let mut found = outcome.found.into_iter();
        let (leader, head) = (found.next().flatten(), found.next().flatten());
        if leader.is_none_or(|leader| leader.created != self.created) {
            return Err(WriteError::Deposed);
        }
        // A write of ours whose answer got lost; perhaps this very one, which is then written once more.
        self.head = head.map_or(0, |head| head.modified);
        Ok(false)
    }

    /// Lets etcd forget what keys held more than a minute ago.
    fn compact(&mut self) {
        match self.mark {
            _ if !self.compact => {}
            None => self.mark = Some((Instant::now(), self.head)),
            Some((at, revision)) if at.elapsed() >= HISTORY => {
                self.mark = Some((Instant::now(), self.head));
                if let Err(error) = self.etcd.compact(revision) {
                    tracing::debug!(%error, "etcd's history is not compacted");
                }
            }
            Some(_) => {}
        }
    }
}

/// A state to be written, and who waits for it.
pub(crate) struct Work {
    state: Vec<u8>,
    done: Option<SyncSender<Result<(), SaveError>>>,
}

/// Hands states to the thread that writes them. Of several that wait only the newest is written.
#[derive(Debug)]
pub(crate) struct Replica {
    work: SyncSender<Work>,
    error: Arc<Mutex<Option<String>>>,
    timeout: Duration,
}

impl Replica {
    /// # Errors
    /// A certificate that cannot be used, or no thread.
    pub(super) fn start(settings: &StandbySettings, won: &WonElection) -> Result<Self, StartError> {
        let writer = Writer {
            etcd: Etcd::new(&settings.endpoints, settings.tls.as_ref(), settings.time_limit())?,
            keys: Keys::new(settings),
            epoch: won.epoch,
            created: won.created,
            head: 0,
            sequence: 0,
            mark: None,
            compact: settings.compact,
        };
        let (work, waiting) = sync_channel(WAITING);
        let error = Arc::new(Mutex::new(None));
        let shown_error = Arc::clone(&error);
        let write = move || write_all(writer, &waiting, &shown_error);
        std::thread::Builder::new().name("replica".into()).spawn(write)?;
        Ok(Self { work, error, timeout: settings.ttl / 2 })
    }

    /// One whose states are written only by who has the other end.
    #[cfg(test)]
    pub(crate) fn unattended() -> (Self, Receiver<Work>) {
        let (work, waiting) = sync_channel(WAITING);
        (Self { work, error: Arc::default(), timeout: Duration::from_millis(20) }, waiting)
    }

    /// Why the last state could not be written, if so.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has a state written; with `wait`, returns once it is in etcd. Without, a failure shows in [`Replica::error`].
    ///
    /// # Errors
    /// Why it is not written, or not known to be.
    pub(crate) fn save(&self, state: &Controller, admissions: &Admissions, wait: bool) -> Result<(), SaveError> {
        let mut bytes = Vec::new();
        encode_value(0, &(state.for_standby(), admissions), &mut bytes)
            .map_err(|error| SaveError::Encode(Arc::new(error)))?;
        let behind = |_| SaveError::Slow;
        if !wait {
            return self.work.try_send(Work { state: bytes, done: None }).map_err(behind);
        }
        let (done, answer) = sync_channel(1);
        self.work.try_send(Work { state: bytes, done: Some(done) }).map_err(behind)?;
        answer.recv_timeout(self.timeout).map_err(|_| SaveError::Slow)?
    }
}

fn write_all(mut writer: Writer, waiting: &Receiver<Work>, error: &Mutex<Option<String>>) {
    while let Ok(Work { mut state, done }) = waiting.recv() {
        let mut all: Vec<_> = done.into_iter().collect();
        while let Ok(newer) = waiting.try_recv() {
            state = newer.state;
            all.extend(newer.done);
        }
        let result = writer.write(&state).map_err(|error| SaveError::Write(Arc::new(error)));
        let failure = result.as_ref().err().map(|error| chain(error));
        if let Some(failure) = &failure {
            tracing::warn!("{failure}");
        }
        *error.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        for done in all {
            // Who waited in vain has gone.
            _ = done.send(result.clone());
        }
    }
}

/// Writes a state as it is in etcd, to golden files: the head and the one chunk.
#[cfg(test)]
pub(crate) fn write_golden(folder: &std::path::Path, state: &Controller, admissions: &Admissions) {
    let mut bytes = Vec::new();
    encode_value(0, &(state.for_standby(), admissions), &mut bytes).unwrap();
    let packed = Packed::new(&bytes, "golden".into()).unwrap();
    std::fs::write(folder.join("etcd-head.json"), serde_json::to_vec(&packed.head).unwrap()).unwrap();
    std::fs::write(folder.join("etcd-chunk-0000"), &packed.data).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_from_its_chunks() {
        // Does not compress, so that it takes several chunks.
        let mut state = vec![0; 5 * CHUNK / 2];
        let mut seed = 1u64;
        for byte in &mut state {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = seed.to_be_bytes()[0];
        }
        let packed = Packed::new(&state, "g".into()).unwrap();
        assert_eq!(packed.head.chunks, 3);
        let data: Vec<u8> = (0..3).flat_map(|index| packed.chunk(index).to_vec()).collect();
        assert_eq!(unpack(&packed.head, &data).unwrap(), state);
        let mut damaged = data.clone();
        damaged[CHUNK] ^= 1;
        for bad in [&damaged[..], &data[..CHUNK], &[]] {
            assert!(matches!(unpack(&packed.head, bad), Err(StateError::Damaged { .. })));
        }
        let empty = Packed::new(&[], "g".into()).unwrap();
        assert_eq!((empty.head.chunks, unpack(&empty.head, empty.chunk(0)).unwrap()), (1, Vec::new()));
    }

    #[test]
    fn a_state_of_every_format_is_read_and_a_newer_one_is_refused() {
        for format in formats::tests::GOLDEN {
            let golden = |name| std::fs::read(formats::tests::golden_file(format, name)).unwrap();
            let known = read_head(&golden("etcd-head.json")).unwrap();
            assert_eq!((known.format, known.chunks), (format, 1));
            let state = unpack(&known, &golden("etcd-chunk-0000")).unwrap();
            let (controller, admissions) = formats::read(Document::Replicated, known.format, &state).unwrap();
            formats::tests::is_golden(&controller, &admissions);
        }
        // A newer head may look different.
        let newer = r#"{"format":99,"software":"9.9.9","parts":[]}"#;
        let refused = read_head(newer.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("the stored state has format 99, written by version 9.9.9; "), "{refused}");
    }

    #[test]
    fn older_generations_sort_before_newer_ones() {
        let settings_keys = Keys { leader: "l".into(), head: "h".into(), chunks: "/g/chunk/".into() };
        let of = |epoch: u64, sequence: u64, index| settings_keys.chunk(&format!("{epoch:020}-{sequence:020}"), index);
        let ordered = [of(9, 99, 3), of(10, 1, 0), of(10, 2, 0), of(u64::MAX, u64::MAX, 127)];
        assert!(ordered.is_sorted(), "{ordered:?}");
        assert!(ordered[0].as_str() > settings_keys.chunks.as_str());
    }
}
