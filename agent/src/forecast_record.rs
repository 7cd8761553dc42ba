//! The forecast's history over a restart, in a file of the agent's state folder. In: the forecaster, every few minutes and at
//! the agent's end. Out: the same forecaster for the next agent. Called by the agent's loop.
//!
//! Nothing depends on the file: one that is missing, damaged, of a newer version, another host's or too old is not used, and
//! the history begins anew. The loop never waits for the disk but at its end: a thread writes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gleaner_daemon::clock::Clock;
use gleaner_daemon::durable;
use gleaner_planner::forecast::{ForecastSettings, ForecastState, ResidualForecaster, StateError};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::id::HostId;
use gleaner_types::report::{Absence, AbsenceKind};
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::state_file::{self, Known};

const FILE: &str = "forecast.json";
/// Formats: 1 is the first.
const FORMAT: u64 = 1;
/// Bytes of the longest file that is read. A forecaster's state takes less than a quarter of that.
const LONGEST: u64 = 1 << 20;
/// Time between two writes. (Chosen: what is lost when the agent is killed is one window at the default lookahead.)
const SAVE_INTERVAL: Duration = Duration::from_secs(300);
/// A history that ended longer ago is not gone on with: of the last day nothing is left then.
const LONGEST_GAP_S: f64 = 86_400.0;

/// How far the clock may have been set back since: the time between is not known, and taken for none. (Chosen.)
const MOST_BACK_MS: u64 = 300_000;
/// How long the agent's end waits for the disk. (Chosen: well below the time in which systemd ends a unit that says nothing.)
const LAST_WRITE: Duration = Duration::from_secs(3);

/// What the history depends on. With other settings it begins anew; the risk may be another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Circumstances {
    method: String,
    history_s: f64,
    lookahead_s: f64,
}

impl Circumstances {
    fn of(settings: ForecastSettings) -> Self {
        let ForecastSettings { history_s, lookahead_s, method, .. } = settings;
        Self { method: method.name().to_owned(), history_s, lookahead_s }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    format: u64,
    /// The version of Gleaner that wrote it.
    written_by: String,
    host: HostId,
    /// When it was written, by the wall clock, in milliseconds since the Unix epoch.
    saved_ms: u64,
    settings: Circumstances,
    state: ForecastState,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] state_file::Unusable),
    #[error("host: is {found}; this host is {own}")]
    OtherHost { found: HostId, own: HostId },
    #[error("saved_ms: is {saved_ms}, which is later than now: the clock was set back")]
    Future { saved_ms: u64 },
    #[error("state cannot be gone on with")]
    Impossible(#[from] StateError),
}

/// A forecaster to go on with, and where its history is stored from now on.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) forecaster: ResidualForecaster,
    /// `None` stores nothing.
    pub(crate) record: Option<ForecastRecord>,
    /// That a file was found and not used.
    pub(crate) warning: Option<Event>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct ForecastRecord {
    host: HostId,
    /// When it was last tried to store something.
    tried: Instant,
    /// To the thread that writes. `None` once that has ended.
    writes: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
}

impl Resumed {
    /// Reads the file of a state folder that is this agent's.
    pub(crate) fn open(dir: &Path, host: &HostId, settings: ForecastSettings) -> Self {
        Self::open_at(dir, host, settings, wall())
    }

    fn open_at(dir: &Path, host: &HostId, settings: ForecastSettings, now: Timestamp) -> Self {
        let path = dir.join(FILE);
        let (forecaster, error) = match read(&path, host, settings, now) {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error)),
        };
        let warning = error.as_ref().map(|error| {
            let reason = format!("{} is not used, so the forecast begins anew: {}", path.display(), chain(error));
            tracing::warn!(reason, "what the forecast learnt is lost");
            let absent = Some(Absence::described(AbsenceKind::Malformed, reason));
            Event::SensorChanged { sensor: "learnt forecast".to_owned(), absent }
        });
        let keeps = matches!(&error, Some(Unusable::File(error)) if error.is_newer());
        Self {
            forecaster: forecaster.unwrap_or_else(|| ResidualForecaster::new(settings)),
            record: if keeps { None } else { ForecastRecord::start(path, host.clone()) },
            warning,
        }
    }
}

/// The forecaster that the file holds; `None` if there is none, or it is too old or of other settings.
fn read(
    path: &Path,
    host: &HostId,
    settings: ForecastSettings,
    now: Timestamp,
) -> Result<Option<ResidualForecaster>, Unusable> {
    let known = Known { format: FORMAT, longest: LONGEST };
    let Some(contents) = state_file::read::<Contents>(path, known)? else { return Ok(None) };
    if contents.host != *host {
        return Err(Unusable::OtherHost { found: contents.host, own: host.clone() });
    }
    // A clock that is set by the network is a little off before.
    if contents.saved_ms > now.0.saturating_add(MOST_BACK_MS) {
        return Err(Unusable::Future { saved_ms: contents.saved_ms });
    }
    let gap_s = now.seconds_since(Timestamp(contents.saved_ms));
    if gap_s > LONGEST_GAP_S || contents.settings != Circumstances::of(settings) {
        tracing::info!(gap_s, then = ?contents.settings, "what the forecast learnt no longer applies");
        return Ok(None);
    }
    Ok(Some(ResidualForecaster::resume(settings, contents.state, gap_s)?))
}

/// The time by the wall clock as it is set now: what two agents have in common.
fn wall() -> Timestamp {
    Clock::start().now()
}

impl ForecastRecord {
    /// Starts the thread that writes.
    fn start(path: PathBuf, host: HostId) -> Option<Self> {
        // One waits while one is written; a third has to come again.
        let (writes, written) = sync_channel(1);
        let writer = std::thread::Builder::new().name("forecast".to_owned()).spawn(move || write_all(&path, &written));
        match writer {
            Ok(writer) => Some(Self { host, tried: Instant::now(), writes: Some(writes), writer: Some(writer) }),
            Err(error) => {
                tracing::warn!(%error, "what the forecast learns is not stored: no thread can be started");
                None
            }
        }
    }

    /// Stores the history if that is due.
    pub(crate) fn save_when_due(&mut self, forecaster: &ResidualForecaster, settings: ForecastSettings, now: Instant) {
        if now.duration_since(self.tried) < SAVE_INTERVAL {
            return;
        }
        self.tried = now;
        let sent = self.contents(forecaster, settings).map(|bytes| self.writes.as_ref().map(|to| to.try_send(bytes)));
        if let Some(Some(Err(TrySendError::Disconnected(_)))) = sent {
            self.writes = None;
            tracing::warn!("what the forecast learns is stored no more: its thread has ended");
        }
    }

    /// Stores the history at the agent's end, and waits for it a little: a disk that hangs must not keep the agent from its end.
    pub(crate) fn finish(mut self, forecaster: &ResidualForecaster, settings: ForecastSettings) {
        let until = Instant::now() + LAST_WRITE;
        let goes_on = || {
            std::thread::sleep(Duration::from_millis(5));
            Instant::now() < until
        };
        if let (Some(mut bytes), Some(writes)) = (self.contents(forecaster, settings), self.writes.take()) {
            // A thread that has ended is told of below.
            while let Err(TrySendError::Full(back)) = writes.try_send(bytes) {
                if !goes_on() {
                    break;
                }
                bytes = back;
            }
        }
        let Some(writer) = self.writer.take() else { return };
        while !writer.is_finished() {
            if !goes_on() {
                tracing::warn!("what the forecast has learnt last is not stored: the disk takes too long");
                return;
            }
        }
        if writer.join().is_err() {
            tracing::warn!("the thread that stores the forecast ended badly");
        }
    }

    /// The file as it should be now.
    fn contents(&self, forecaster: &ResidualForecaster, settings: ForecastSettings) -> Option<Vec<u8>> {
        let contents = Contents {
            format: FORMAT,
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.host.clone(),
            saved_ms: wall().0,
            settings: Circumstances::of(settings),
            state: forecaster.state(),
        };
        let bytes = serde_json::to_vec(&contents);
        bytes.inspect_err(|error| tracing::warn!(%error, "what the forecast learns cannot be written down")).ok()
    }
}

/// Writes what comes until nothing more does. Warns of the first of failures in a row.
fn write_all(path: &Path, written: &Receiver<Vec<u8>>) {
    let mut failed = false;
    for bytes in written {
        match write(path, &bytes) {
            Ok(()) => failed = false,
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, file = %path.display(), "what the forecast learns cannot be stored");
                }
            }
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    durable::replace(path, bytes, 0o600)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use gleaner_types::units::{Bytes, CoreShare};

    use super::*;

    fn host() -> HostId {
        HostId::new("h1").unwrap()
    }

    fn settings() -> ForecastSettings {
        ForecastSettings { history_s: 120.0, lookahead_s: 30.0, ..ForecastSettings::default() }
    }

    /// A forecaster that has seen an hour.
    fn trained() -> ResidualForecaster {
        let mut forecaster = ResidualForecaster::new(settings());
        for second in 0..3_600_u32 {
            let cpu = CoreShare::clamped(f64::from(second * second % 97));
            forecaster.observe(CoreShare::from_cores(4), Some(cpu), Some(Bytes::from_mib(4_096)), 1.0);
        }
        forecaster
    }

    fn open(dir: &Path) -> Resumed {
        Resumed::open(dir, &host(), settings())
    }

    /// A folder with what an agent has left in it, the file, and its forecaster.
    fn left() -> (tempfile::TempDir, PathBuf, ResidualForecaster) {
        let (dir, forecaster) = (tempfile::tempdir().unwrap(), trained());
        let empty = open(dir.path());
        assert!(empty.warning.is_none(), "{empty:?}");
        empty.record.unwrap().finish(&forecaster, settings());
        let file = dir.path().join(FILE);
        (dir, file, forecaster)
    }

    fn judged(forecaster: &ResidualForecaster) -> u64 {
        forecaster.forecast().record.judged
    }

    /// Nothing of an earlier agent is in use.
    fn is_new(resumed: &Resumed) -> bool {
        judged(&resumed.forecaster) == 0 && resumed.forecaster.windows().judged == 0
    }

    #[test]
    fn the_next_agent_goes_on_with_the_history_and_only_the_agent_may_read_it() {
        let (dir, file, before) = left();
        let after = open(dir.path());
        assert!(after.warning.is_none(), "{after:?}");
        assert_eq!(after.forecaster.windows(), before.windows());
        assert!(before.windows().judged > 50);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let risk = ForecastSettings { risk: 0.05, ..settings() };
        let other_risk = Resumed::open(dir.path(), &host(), risk);
        let state = serde_json::to_value(other_risk.forecaster.state()).unwrap();
        let errors = state["cpu"]["errors"].as_array().unwrap().len();
        assert!(other_risk.warning.is_none() && errors > 50, "the risk may be another");
        assert_eq!(other_risk.forecaster.windows().judged, 0, "what was promised at another risk does not count");
    }

    #[test]
    fn other_settings_and_a_day_without_an_agent_begin_anew_without_a_word() {
        let (dir, _, _) = left();
        let lookahead = ForecastSettings { lookahead_s: 60.0, ..settings() };
        let later = |seconds: u64| Timestamp(wall().0 + seconds * 1_000);
        for resumed in [
            Resumed::open(dir.path(), &host(), lookahead),
            Resumed::open_at(dir.path(), &host(), settings(), later(86_402)),
        ] {
            assert!(is_new(&resumed) && resumed.warning.is_none() && resumed.record.is_some(), "{resumed:?}");
        }
        assert!(!is_new(&Resumed::open_at(dir.path(), &host(), settings(), later(3_600))), "an hour is no matter");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_warned_of_by_its_name_and_field_and_replaced() {
        let (dir, file, before) = left();
        let whole = fs::read_to_string(&file).unwrap();
        let saved = whole.split_once("\"saved_ms\":").unwrap().1.split_once(',').unwrap().0.to_owned();
        let damaged = [
            (String::new(), "cannot be understood"),
            (whole[..whole.len() / 2].to_owned(), "cannot be understood"),
            (whole.replace("\"host\":\"h1\"", "\"host\":\"h2\""), "host: is h2; this host is h1"),
            (whole.replace("\"state\"", "\"stat\""), "`stat`"),
            (whole.replace(&saved, "9999999999999999"), "saved_ms: is 9999999999999999"),
            (whole.clone() + &" ".repeat(usize::try_from(LONGEST).unwrap()), "longer than 1048576 bytes"),
        ];
        for (text, part) in damaged {
            assert_ne!(text, whole);
            fs::write(&file, &text).unwrap();
            let resumed = open(dir.path());
            assert!(is_new(&resumed), "{part}");
            let said = format!("{:?}", resumed.warning);
            assert!(said.contains(part) && said.contains("forecast.json"), "{part} not in {said}");
            resumed.record.unwrap().finish(&before, settings());
            assert!(open(dir.path()).warning.is_none());
        }
    }

    #[test]
    fn one_of_a_newer_version_stays_as_it_is() {
        let (dir, file, _) = left();
        let newer = r#"{"format": 2, "written_by": "9.9.9", "unheard": []}"#;
        fs::write(&file, newer).unwrap();
        let resumed = open(dir.path());
        assert!(resumed.record.is_none() && is_new(&resumed));
        assert!(format!("{:?}", resumed.warning).contains("gleaner 9.9.9 wrote it in format 2"));
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    }

    #[test]
    fn one_that_others_can_write_or_that_is_a_link_is_not_used() {
        let (dir, file, _) = left();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        let said = format!("{:?}", open(dir.path()).warning);
        assert!(said.contains("its mode is 620"), "{said}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        let said = format!("{:?}", open(dir.path()).warning);
        assert!(said.contains("symbolic link"), "{said}");
    }

    /// docs/operators-guide.md says how many bytes it takes.
    #[test]
    fn a_day_takes_less_than_a_quarter_of_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ForecastSettings::default();
        let mut forecaster = ResidualForecaster::new(settings);
        for step in 0..2 * 8_640_u32 {
            let cpu = CoreShare::clamped(f64::from(step * step % 6_397) / 7.0);
            let memory = Bytes(u64::from(step * step % 6_397) * 1_234_567);
            forecaster.observe(CoreShare::from_cores(16), Some(cpu), Some(memory), 10.0);
        }
        Resumed::open(dir.path(), &host(), settings).record.unwrap().finish(&forecaster, settings);
        let bytes = fs::metadata(dir.path().join(FILE)).unwrap().len();
        println!("{bytes} bytes");
        assert!(bytes < LONGEST / 4, "{bytes}");
        assert!(forecaster.windows().judged > 270, "{:?}", forecaster.windows());
    }

    #[test]
    fn a_disk_that_takes_nothing_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let mut record = Resumed::open(&gone, &host(), settings()).record.unwrap();
        let (forecaster, now) = (trained(), Instant::now());
        record.save_when_due(&forecaster, settings(), now);
        record.save_when_due(&forecaster, settings(), now + SAVE_INTERVAL);
        record.save_when_due(&forecaster, settings(), now + 2 * SAVE_INTERVAL);
        record.finish(&forecaster, settings());
        assert!(!gone.exists());
    }
}
