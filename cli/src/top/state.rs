//! The screen's state. In: keys, snapshots, events. Out: what [`super::view`] draws. [`super`] owns it. It has no
//! terminal, no clock and no connection, so tests can press every key.

use std::collections::{BTreeMap, VecDeque};

use gleaner_api::{HostGuests, Overview};
use gleaner_planner::controller::HostView;
use gleaner_types::application::ApplicationStatus;
use gleaner_types::id::HostId;
use gleaner_types::job::JobStatus;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::format::CpuUnit;
use crate::guests::{Guest, of_hosts};

/// Seconds of residual kept per host: more than the widest terminal shows.
const SECONDS: usize = 512;
/// Events kept.
const EVENTS: usize = 1_000;
/// Longest filter.
const FILTER: usize = 64;
/// Rows that a page key moves by.
const PAGE: usize = 10;

/// Everything asked of the aggregator at once.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) overview: Overview,
    pub(super) hosts: Vec<HostView>,
    /// What their workloads are called.
    pub(super) names: Vec<HostGuests>,
    pub(super) jobs: Vec<JobStatus>,
    pub(super) applications: Vec<ApplicationStatus>,
}

/// Something for the screen.
#[derive(Debug)]
pub(super) enum News {
    Snapshot(Box<Snapshot>),
    /// The aggregator does not answer.
    Trouble(String),
    /// A line of the event log, as it is shown.
    Event(String),
    Key(KeyEvent),
    /// The screen has another size; drawing it anew is all.
    Resized,
    /// The terminal is gone.
    Over,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Fleet,
    Residual,
    Jobs,
    Applications,
    Events,
    Guests,
}

impl Tab {
    pub(super) const ALL: [Self; 6] =
        [Self::Fleet, Self::Residual, Self::Jobs, Self::Applications, Self::Events, Self::Guests];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Residual => "residual",
            Self::Jobs => "jobs",
            Self::Applications => "applications",
            Self::Events => "events",
            Self::Guests => "guests",
        }
    }

    pub(super) const fn place(self) -> usize {
        self as usize
    }

    fn moved(self, by: usize) -> Self {
        Self::ALL[(self.place() + by) % Self::ALL.len()]
    }
}

/// Everything the screen shows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tab: Tab,
    pub(super) unit: CpuUnit,
    /// The only host whose guests are shown; `None` shows all.
    pub(super) guests_of: Option<HostId>,
    /// The workloads of the snapshot.
    guests: Vec<Guest>,
    /// The row that is selected, per tab; of events counted from the newest.
    selected: [usize; Tab::ALL.len()],
    pub(super) filter: String,
    /// Keys go to the filter.
    pub(super) filtering: bool,
    pub(super) help: bool,
    pub(super) paused: bool,
    pub(super) snapshot: Option<Box<Snapshot>>,
    /// Why the aggregator does not answer.
    pub(super) trouble: Option<String>,
    /// Expected residual of each host, in percent of one core, second by second, the newest last.
    pub(super) residual: BTreeMap<HostId, VecDeque<Option<u64>>>,
    pub(super) events: VecDeque<String>,
    /// Events that came while paused.
    pending: VecDeque<String>,
    over: bool,
}

impl State {
    /// Nothing yet, with CPU in this unit.
    pub(super) fn with_unit(unit: CpuUnit) -> Self {
        Self { unit, ..Self::default() }
    }

    /// The screen ends.
    pub(super) fn over(&self) -> bool {
        self.over
    }

    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Snapshot(snapshot) => {
                self.trouble = None;
                if !self.paused {
                    self.remember(&snapshot.hosts);
                    self.guests = of_hosts(snapshot.hosts.iter(), &snapshot.names);
                    self.snapshot = Some(snapshot);
                }
            }
            News::Trouble(trouble) => self.trouble = Some(trouble),
            News::Event(line) => {
                let lines = if self.paused { &mut self.pending } else { &mut self.events };
                push(lines, line, EVENTS);
                // Who reads an older event goes on reading it.
                let selected = &mut self.selected[Tab::Events.place()];
                if !self.paused && *selected > 0 {
                    *selected += 1;
                }
            }
            News::Key(key) => self.key(key),
            News::Resized => {}
            News::Over => self.over = true,
        }
    }

    fn remember(&mut self, hosts: &[HostView]) {
        self.residual.retain(|id, _| hosts.iter().any(|host| host.host == *id));
        for host in hosts {
            let cpu = host.report.as_ref().filter(|_| host.connected).and_then(|report| report.residual.cpu.value());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
            let percent = cpu.map(|cpu| cpu.expected.percent().round() as u64);
            push(self.residual.entry(host.host.clone()).or_default(), percent, SECONDS);
        }
    }

    fn key(&mut self, key: KeyEvent) {
        // Raw mode makes no signals of keys.
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.over |= matches!(key.code, KeyCode::Char('c'));
            return;
        }
        if self.filtering {
            return self.filter_key(key.code);
        }
        if self.help {
            // Any key closes it.
            self.help = false;
            self.over |= key.code == KeyCode::Char('q');
            return;
        }
        match key.code {
            KeyCode::Char('q') => self.over = true,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => self.leave_host(),
            KeyCode::Enter => self.enter_host(),
            KeyCode::Char('u') => self.unit = self.unit.other(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.filtering = true,
            KeyCode::Char('p') => self.pause(),
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.tab = self.tab.moved(1),
            KeyCode::BackTab | KeyCode::Left => self.tab = self.tab.moved(Tab::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='6') => self.tab = Tab::ALL[digit as usize - '1' as usize],
            KeyCode::Up | KeyCode::Char('k') => self.step(1, true),
            KeyCode::Down | KeyCode::Char('j') => self.step(1, false),
            KeyCode::PageUp => self.step(PAGE, true),
            KeyCode::PageDown => self.step(PAGE, false),
            KeyCode::Home => self.step(usize::MAX, true),
            KeyCode::End => self.step(usize::MAX, false),
            _ => {}
        }
    }

    /// From a host to its guests.
    fn enter_host(&mut self) {
        if !matches!(self.tab, Tab::Fleet | Tab::Residual) {
            return;
        }
        let host = self.selected().and_then(|selected| Some(self.hosts().get(selected)?.host.clone()));
        if let Some(host) = host {
            self.guests_of = Some(host);
            // It found the host, and would hide its guests.
            self.filter.clear();
            self.selected[Tab::Guests.place()] = 0;
            self.tab = Tab::Guests;
        }
    }

    /// Back from the guests of one host.
    fn leave_host(&mut self) {
        if self.tab == Tab::Guests && self.guests_of.take().is_some() {
            self.tab = Tab::Fleet;
        }
    }

    fn filter_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => {
                self.filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => self.filter.push(c),
            _ => {}
        }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
        if !self.paused {
            for line in std::mem::take(&mut self.pending) {
                push(&mut self.events, line, EVENTS);
            }
        }
    }

    /// Moves the selection up or down on the screen. Events count from the newest, which is at the bottom.
    fn step(&mut self, by: usize, up: bool) {
        let last = self.rows().saturating_sub(1);
        let selected = &mut self.selected[self.tab.place()];
        let less = up != (self.tab == Tab::Events);
        *selected = if less { selected.saturating_sub(by) } else { selected.saturating_add(by).min(last) };
    }

    /// Rows of the tab that is shown.
    fn rows(&self) -> usize {
        match self.tab {
            Tab::Fleet | Tab::Residual => self.hosts().len(),
            Tab::Jobs => self.jobs().len(),
            Tab::Applications => self.applications().len(),
            Tab::Events => self.event_lines().len(),
            Tab::Guests => self.guests().len(),
        }
    }

    /// The row that is selected, if there is one.
    pub(super) fn selected(&self) -> Option<usize> {
        let last = self.rows().checked_sub(1)?;
        Some(self.selected[self.tab.place()].min(last))
    }

    fn passes(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// Hosts that pass the filter, by name or by the job they work for.
    pub(super) fn hosts(&self) -> Vec<&HostView> {
        let all = self.snapshot.iter().flat_map(|snapshot| &snapshot.hosts);
        let job = |host: &HostView| host.job.as_ref().is_some_and(|job| self.passes(job.as_str()));
        all.filter(|host| self.passes(host.host.as_str()) || job(host)).collect()
    }

    /// Guests of the host that was entered, or of all, that pass the filter, by name, title or host.
    pub(super) fn guests(&self) -> Vec<&Guest> {
        let is_of_host = |guest: &&Guest| self.guests_of.as_ref().is_none_or(|host| guest.host == *host);
        let texts = |guest: &Guest| {
            let mut all = [guest.host.as_str(), &guest.guest].into_iter().chain(guest.title());
            all.any(|text| self.passes(text))
        };
        self.guests.iter().filter(is_of_host).filter(|guest| texts(guest)).collect()
    }

    /// Jobs that pass the filter.
    pub(super) fn jobs(&self) -> Vec<&JobStatus> {
        let all = self.snapshot.iter().flat_map(|snapshot| &snapshot.jobs);
        all.filter(|job| self.passes(job.spec.id.as_str()) || self.passes(job.phase.word())).collect()
    }

    /// Applications that pass the filter.
    pub(super) fn applications(&self) -> Vec<&ApplicationStatus> {
        let all = self.snapshot.iter().flat_map(|snapshot| &snapshot.applications);
        all.filter(|own| self.passes(own.spec.name.as_str())).collect()
    }

    /// Events that pass the filter, the oldest first.
    pub(super) fn event_lines(&self) -> Vec<&String> {
        self.events.iter().filter(|line| self.passes(line)).collect()
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}
