//! The workloads of hosts by the names that their operators know. In: hosts as the aggregator sees them, and what their
//! workloads are called. Out: a row for each workload, as JSON and as a table. Called by `gleaner guests` and
//! `gleaner top`.

use std::collections::BTreeMap;

use gleaner_api::{ApiError, Client, ClientError, ErrorCode, HostGuests, Request, Response};
use gleaner_planner::controller::HostView;
use gleaner_types::command::{Desired, Limits, Outcome, Quota, Target};
use gleaner_types::guest::{GuestName, Manager};
use gleaner_types::harm::HarmInterval;
use gleaner_types::id::{GuestText, HostId, WorkloadId};
use gleaner_types::report::{HostReport, Reading, VolunteerKind, WorkloadKind, WorkloadSample};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{BytesPerSec, CoreShare};
use serde::Serialize;

use crate::format::{CpuUnit, Footnotes, clean, seconds, table};
use crate::states::{self, Meaning};

/// Why a host's workloads have only the names of its reports.
pub(crate) const NOT_REPORTED: &str = "not reported by this agent's version";

/// Most characters of a name in a table; `--json` has all of it.
const WIDEST: usize = 40;

/// The row of what is neither foreground nor the volunteer. Its role says what it is; a guest of this name is in quotes.
const OTHER: &str = "(other)";

/// What agents call the workload that is everything but the volunteer. Its kind says what it is.
const EVERYTHING_ELSE: &str = "everything-else";

/// What a table writes around and behind names: quotes, brackets of all widths, the mark of a cut.
const MARKS: &str = "\"()[]…（）［］﹙﹚⁽⁾₍₎❨❩❪❫⦅⦆｟｠";

/// Whether workloads are protected from the volunteer of their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protected {
    /// The guard holds the volunteer.
    Yes,
    /// There is no volunteer.
    NoVolunteer,
    /// The agent only observes, and starts no volunteer.
    ObservesOnly,
    /// The host is not connected, so it is not known.
    Unknown,
}

impl Protected {
    fn of(host: &HostView) -> Self {
        match (host.connected && host.unreadable.is_none(), host.facts.levers.acting, &host.facts.levers.volunteer) {
            (false, ..) => Self::Unknown,
            (true, false, _) => Self::ObservesOnly,
            (true, true, VolunteerKind::None) => Self::NoVolunteer,
            (true, true, _) => Self::Yes,
        }
    }

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::NoVolunteer => "no volunteer",
            Self::ObservesOnly => "observing",
            Self::Unknown => "-",
        }
    }
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// A workload of the foreground.
    Foreground,
    /// All that is neither foreground nor the volunteer.
    Other,
}

/// One workload, or what is neither foreground nor the volunteer of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Guest {
    pub(crate) host: HostId,
    /// Its host is connected. Otherwise all of this is as the host last reported it.
    pub(crate) connected: bool,
    /// When its host last reported.
    pub(crate) reported: Option<Timestamp>,
    pub(crate) role: Role,
    /// What it is called in tables: no two of a host are called the same, and a name that could be read as something else is
    /// in quotes.
    pub(crate) guest: String,
    /// Why it has only the name of its host's reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unnamed: Option<&'static str>,
    /// What its manager calls it; `None` where the agent does not say.
    #[serde(flatten)]
    pub(crate) name: Option<GuestName>,
    pub(crate) protected: Protected,
    /// CPU it used.
    pub(crate) cpu: Reading<CoreShare>,
    /// What else it used, of a workload.
    pub(crate) sample: Option<WorkloadSample>,
    /// How much slower it is for the volunteer; `None` where it was not compared.
    pub(crate) harm: Option<Reading<HarmInterval>>,
    /// The limits that Gleaner set and the host confirmed; `None` where that is not known.
    pub(crate) limits: Option<Limits>,
}

impl Guest {
    /// Its title, if it has one.
    pub(crate) fn title(&self) -> Option<&str> {
        self.name.as_ref()?.title.as_ref().map(GuestText::as_str)
    }

    /// What it is called, and its title.
    pub(crate) fn called(&self) -> String {
        match self.title() {
            Some(title) => format!("{} ({})", self.guest, cut(title)),
            None => self.guest.clone(),
        }
    }

    /// How old all of this is, in seconds.
    pub(crate) fn age_s(&self, now: Timestamp) -> Option<f64> {
        self.reported.map(|at| now.seconds_since(at).max(0.0))
    }
}

/// What the workloads of all hosts are called; nothing, where the aggregator is of an older release.
pub(crate) async fn names(client: &Client) -> Result<Vec<HostGuests>, ClientError> {
    match client.call(&Request::Guests).await {
        Ok(Response::Guests(names)) => Ok(names),
        Ok(_) => Ok(Vec::new()),
        Err(ClientError::Refused(ApiError { code: ErrorCode::Invalid, .. })) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The workloads of hosts, by the names of the hosts and their own identifiers, those of each host before its other work: in the
/// same order whoever answers.
pub(crate) fn of_hosts<'h>(hosts: impl Iterator<Item = &'h HostView>, names: &[HostGuests]) -> Vec<Guest> {
    let names: BTreeMap<&HostId, &Vec<GuestName>> = names.iter().map(|own| (&own.host, &own.guests)).collect();
    let mut all: Vec<Guest> = hosts.flat_map(|host| of_host(host, names.get(&host.host).copied())).collect();
    let id = |guest: &Guest| guest.sample.as_ref().map(|sample| sample.id.clone());
    all.sort_by_cached_key(|guest| (guest.host.clone(), guest.role == Role::Other, id(guest)));
    all
}

fn of_host(host: &HostView, names: Option<&Vec<GuestName>>) -> Vec<Guest> {
    let Some(report) = &host.report else { return Vec::new() };
    let by_id: BTreeMap<&WorkloadId, &GuestName> =
        names.into_iter().flatten().map(|own| (&own.workload, own)).collect();
    let named: Vec<(&WorkloadSample, Option<&GuestName>)> =
        report.workloads.iter().map(|sample| (sample, by_id.get(&sample.id).copied())).collect();
    let row = |role, guest, cpu| Guest {
        host: host.host.clone(),
        connected: host.connected,
        reported: host.reported,
        role,
        guest,
        unnamed: None,
        name: None,
        protected: Protected::of(host),
        cpu,
        sample: None,
        harm: None,
        limits: None,
    };
    let workload = |((sample, name), label): (&(&WorkloadSample, Option<&GuestName>), String)| Guest {
        unnamed: names.is_none().then_some(NOT_REPORTED),
        name: name.cloned(),
        sample: Some((*sample).clone()),
        harm: harm(report, &sample.id),
        limits: limits(host, &sample.id),
        ..row(Role::Foreground, label, sample.cpu.clone())
    };
    let other = report.other_cpu().map(|cpu| row(Role::Other, OTHER.to_owned(), cpu));
    named.iter().zip(labels(&named)).map(workload).chain(other).collect()
}

/// What one host cannot protect, as its agent says.
pub(crate) fn weaknesses(view: &HostView) -> impl Iterator<Item = String> {
    view.facts
        .levers
        .weaknesses
        .iter()
        .map(|weakness| format!("host {}: weaker protection: {}", view.host, clean(weakness)))
}

/// What an operator should know beside the rows: hosts whose rows are old, missing, or have no names.
pub(crate) fn remarks<'h>(
    hosts: impl Iterator<Item = &'h HostView>,
    names: &[HostGuests],
    now: Timestamp,
) -> Vec<String> {
    let mut remarks = Vec::new();
    for view in hosts {
        let HostView { host, report, connected, reported, .. } = view;
        let own = names.iter().find(|own| own.host == *host);
        if view.revoked {
            remarks.push(format!("host {host} is revoked (`gleaner host invitations`)"));
        } else if report.is_none() {
            remarks.push(format!("host {host} has not reported yet"));
        } else if own.is_none() {
            remarks.push(format!("names of the guests of {host}: {NOT_REPORTED}"));
        }
        for glob in own.filter(|_| *connected).iter().flat_map(|own| &own.unmatched) {
            let glob = clean(glob.as_str());
            remarks.push(format!("host {host}: {glob:?} of foreground.cgroups matches no cgroup now"));
        }
        if let (false, Some(_), Some(at)) = (connected, report, reported) {
            let (is, age) = (states::host(view).0, seconds(now.seconds_since(*at).max(0.0)));
            remarks.push(format!("host {host}: {is}; its guests are shown as it reported them {age} ago"));
        }
    }
    remarks
}

fn harm(report: &HostReport, id: &WorkloadId) -> Option<Reading<HarmInterval>> {
    let own = report.harm.workloads.iter().find(|own| own.workload == *id);
    let own = own.map(|own| own.harm.clone());
    // One workload is the foreground; why nothing is measured is the same for all.
    let alone = report.workloads.len() == 1 || report.harm.foreground.value().is_none();
    own.or_else(|| alone.then(|| report.harm.foreground.clone()))
}

/// The limits that the host has confirmed.
fn limits(host: &HostView, id: &WorkloadId) -> Option<Limits> {
    if !host.connected {
        return None;
    }
    let of_it = |target: &Target| matches!(target, Target::Workload(own) if own == id);
    let Some((_, command, outcome)) = host.targets.iter().find(|(target, ..)| of_it(target)) else {
        return Some(Limits::NONE);
    };
    match (outcome, &command.desired) {
        (Some(Outcome::Applied { limits, .. }), Desired::Limit(_)) => Some(*limits),
        (Some(Outcome::Applied { .. }), _) => Some(Limits::NONE),
        // What was in force before a command that was refused or not answered is not known here.
        (Some(Outcome::Refused { .. }) | None, _) => None,
    }
}

/// The name in words.
fn plain_name(sample: &WorkloadSample, name: Option<&GuestName>) -> String {
    match sample.kind {
        WorkloadKind::Remainder => EVERYTHING_ELSE.to_owned(),
        _ => cut(name.map_or_else(|| sample.id.as_str(), |name| name.name.as_str())),
    }
}

/// A text of a guest's, as long as a column is wide. What could be read as something else is in quotes.
fn cut(text: &str) -> String {
    let clean = clean(text);
    let shown: String = clean.chars().take(WIDEST).collect();
    let more = if shown.len() < clean.len() { "…" } else { "" };
    match could_mislead(&clean) {
        true => format!("{shown:?}{more}"),
        false => shown + more,
    }
}

/// The same in all its length.
fn whole(text: &str) -> String {
    let clean = clean(text);
    if could_mislead(&clean) { format!("{clean:?}") } else { clean }
}

/// A text could be taken for a row that is no guest's, for more than a name, for a value that is missing, or for several cells.
fn could_mislead(text: &str) -> bool {
    let is_wide_blank = |c: char| c.is_whitespace() && c != ' ';
    text.eq_ignore_ascii_case(EVERYTHING_ELSE)
        || text.contains(|c| MARKS.contains(c) || is_wide_blank(c))
        || text.trim() != text
        || text.contains("  ")
        || text.starts_with('-')
}

/// What each is called in a list, so that no two are called the same: of several with one name the first part of the UUID is
/// added, where it tells them apart, else the process, else the identifier.
fn labels(guests: &[(&WorkloadSample, Option<&GuestName>)]) -> Vec<String> {
    let short = |uuid: &str| uuid.split('-').next().unwrap_or_default().chars().take(8).collect::<String>();
    let plain: Vec<String> = guests.iter().map(|(sample, name)| plain_name(sample, *name)).collect();
    let with_uuid = |place: usize| {
        let uuid = guests[place].1.and_then(|name| name.uuid.as_ref());
        uuid.map(|uuid| format!("{} [{}]", plain[place], short(uuid.as_str())))
    };
    let with_pid = |place: usize| {
        let pid = guests[place].1.and_then(|name| name.pid);
        pid.map(|pid| format!("{} [pid {pid}]", plain[place]))
    };
    let with_id = |place: usize| Some(format!("{} [{}]", plain[place], whole(guests[place].0.id.as_str())));
    // Twice by the identifier, which no two share: a name may be what another one's label has become.
    let ways: [&dyn Fn(usize) -> Option<String>; 4] = [&with_uuid, &with_pid, &with_id, &with_id];
    let mut labels = plain.clone();
    for way in ways {
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        labels.iter().for_each(|label| *count.entry(label).or_default() += 1);
        let ambiguous: Vec<usize> = (0..labels.len()).filter(|place| count[labels[*place].as_str()] > 1).collect();
        for place in ambiguous {
            labels[place] = way(place).unwrap_or_else(|| labels[place].clone());
        }
    }
    labels
}

/// Who manages it and what it is there: "proxmox 101".
pub(crate) fn managed_by(guest: &Guest) -> String {
    let Some(name) = &guest.name else {
        return match guest.sample.as_ref().map(|sample| sample.kind) {
            Some(WorkloadKind::Qemu) => "qemu".into(),
            Some(WorkloadKind::XenDomain) => "xen".into(),
            Some(WorkloadKind::Cgroup) => "cgroup".into(),
            Some(WorkloadKind::Remainder | WorkloadKind::Unknown(_)) | None => "-".into(),
        };
    };
    let manager = match name.manager {
        Manager::Openstack => "openstack",
        Manager::Libvirt => "libvirt",
        Manager::Proxmox => "proxmox",
        Manager::Qemu => "qemu",
        Manager::Xen => "xen",
        Manager::Systemd => "systemd",
        Manager::Cgroup => "cgroup",
        Manager::Unknown(_) => "-",
    };
    match (&name.manager, &name.instance) {
        (Manager::Openstack | Manager::Proxmox, Some(instance)) => format!("{manager} {}", cut(instance.as_str())),
        _ => manager.to_owned(),
    }
}

/// Limits in a cell: "cpu 0.50, memory 1.0 GiB"; "none".
pub(crate) fn limits_in_words(limits: Option<Limits>, unit: CpuUnit) -> String {
    let Some(Limits { quota, weight, memory, disk, disk_weight, network }) = limits else { return "-".into() };
    let rate = |what: &str, rate: Option<BytesPerSec>| rate.map(|rate| format!("{what} {}", per_second(rate)));
    let parts = [
        match quota {
            Quota::Unlimited => None,
            Quota::AtMost(share) => Some(format!("cpu {}", unit.show(share))),
        },
        weight.map(|weight| format!("cpu weight {}", weight.number())),
        memory.map(|memory| format!("memory {memory}")),
        rate("read", disk.read),
        rate("write", disk.write),
        disk.read_operations.map(|rate| format!("{:.0} reads/s", rate.per_sec())),
        disk.write_operations.map(|rate| format!("{:.0} writes/s", rate.per_sec())),
        disk_weight.map(|weight| format!("disk weight {}", weight.number())),
        rate("receive", network.receive),
        rate("send", network.transmit),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Bytes per second in a cell.
pub(crate) fn per_second(rate: BytesPerSec) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are not negative, and casts saturate"
    )]
    let bytes = gleaner_types::units::Bytes(rate.per_sec().round() as u64);
    format!("{bytes}/s")
}

/// The table of workloads.
pub(crate) fn text(guests: &[Guest], unit: CpuUnit, now: Timestamp) -> String {
    const HEAD: [&str; 14] = [
        "HOST",
        "GUEST",
        "MANAGER",
        "CPU",
        "MEMORY",
        "READ",
        "WRITE",
        "RECEIVE",
        "SEND",
        "WAIT",
        "HARM",
        "LIMITS",
        "PROTECTED",
        "AGE",
    ];
    let mut notes = Footnotes::default();
    let rows: Vec<_> = guests.iter().map(|guest| row(guest, unit, now, &mut notes)).collect();
    if rows.is_empty() { "no guest is known".to_owned() } else { table(&HEAD, &rows) + &notes.text() }
}

fn row(guest: &Guest, unit: CpuUnit, now: Timestamp, notes: &mut Footnotes) -> Vec<String> {
    let cpu = |share: &CoreShare| unit.show(*share);
    let mut cells = vec![guest.host.to_string(), guest.called(), managed_by(guest), notes.cell(&guest.cpu, cpu)];
    match &guest.sample {
        Some(sample) => {
            let rate = |rate: &BytesPerSec| per_second(*rate);
            cells.extend([
                notes.cell(&sample.memory, ToString::to_string),
                notes.cell(&sample.disk_read, rate),
                notes.cell(&sample.disk_write, rate),
                notes.cell(&sample.network_receive, rate),
                notes.cell(&sample.network_transmit, rate),
                notes.cell(&sample.cpu_wait, cpu),
            ]);
        }
        None => cells.extend(std::iter::repeat_n("-".to_owned(), 6)),
    }
    let harm = guest.harm.as_ref().map(|harm| notes.cell(harm, ToString::to_string));
    cells.push(harm.unwrap_or_else(|| "-".into()));
    cells.push(limits_in_words(guest.limits, unit));
    cells.push(guest.protected.word().to_owned());
    let age = guest.age_s(now).map_or_else(|| "-".to_owned(), seconds);
    cells.push(if guest.connected { age } else { Meaning::Warning.paint(&format!("gone {age}")) });
    cells
}

#[cfg(test)]
mod tests {
    use gleaner_types::command::{Command, Version};
    use gleaner_types::report::{Absence, Reason};
    use gleaner_types::units::Bytes;

    use super::*;
    use crate::fixtures::host_view;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn sample(id: &str, percent: f64) -> WorkloadSample {
        let absent = || Reading::because(Reason::NoGuest);
        let no_rate = || Reading::because(Reason::NoGuest);
        WorkloadSample {
            id: WorkloadId::from_untrusted(id),
            kind: WorkloadKind::Qemu,
            cpu: Reading::Value(CoreShare::clamped(percent)),
            cpu_vcpu: absent(),
            cpu_emulator: absent(),
            cpu_wait: Reading::Value(CoreShare::clamped(5.0)),
            memory: Reading::Value(Bytes::from_mib(512)),
            memory_pressure: Reading::because(Reason::NoGuest),
            disk_read: Reading::Value(BytesPerSec::clamped(2_097_152.0)),
            disk_write: Reading::Value(BytesPerSec::ZERO),
            disk_operations: Reading::because(Reason::NoGuest),
            network_receive: no_rate(),
            network_transmit: no_rate(),
            llc_references: Reading::because(Reason::NoGuest),
            llc_misses: Reading::because(Reason::NoGuest),
            instructions: Reading::because(Reason::NoGuest),
            cache_occupancy: None,
        }
    }

    fn name(id: &str, name: &str, uuid: Option<&str>, pid: Option<u32>) -> GuestName {
        GuestName {
            workload: WorkloadId::from_untrusted(id),
            manager: Manager::Libvirt,
            name: GuestText::from_untrusted(name).unwrap(),
            title: None,
            instance: None,
            uuid: uuid.and_then(GuestText::from_untrusted),
            pid,
        }
    }

    fn host(workloads: Vec<WorkloadSample>) -> HostView {
        let id = HostId::new("h1").unwrap();
        let mut report = gleaner_test_support::report::report(&id, 1);
        report.machine.cpu_foreground = Reading::Value(CoreShare::clamped(250.0));
        report.workloads = workloads;
        host_view(report)
    }

    fn shown(host: &HostView, names: Option<Vec<GuestName>>) -> Vec<Guest> {
        of_host(host, names.as_ref())
    }

    /// What the workloads are called.
    fn called(host: &HostView, names: Vec<GuestName>) -> Vec<String> {
        let workloads = shown(host, Some(names)).into_iter().filter(|guest| guest.role == Role::Foreground);
        workloads.map(|guest| guest.guest).collect()
    }

    /// CPU of what is neither foreground nor the volunteer, if there is such a row.
    fn other(host: &HostView) -> Option<Reading<CoreShare>> {
        shown(host, None).into_iter().find(|guest| guest.role == Role::Other).map(|guest| guest.cpu)
    }

    #[test]
    fn guests_have_their_operators_names_and_what_is_not_known_is_no_zero() {
        let mut host = host(vec![sample("instance-2a", 150.0), sample("web", 20.0)]);
        let mut nova = name("instance-2a", "shop db", None, None);
        (nova.manager, nova.instance) = (Manager::Openstack, GuestText::from_untrusted("instance-2a"));
        let mut titled = name("web", "web", None, None);
        titled.title = GuestText::from_untrusted("The shop");
        let limits = Limits { quota: Quota::AtMost(CoreShare::clamped(50.0)), ..Limits::NONE };
        let command = Command {
            target: Target::Workload(WorkloadId::new("web").unwrap()),
            version: Version { epoch: 1, number: 1 },
            lease_ms: 1,
            desired: Desired::Limit(limits),
        };
        let applied = Outcome::Applied { limits, shortfalls: Vec::new() };
        host.targets = vec![(command.target.clone(), command.clone(), Some(applied))];
        let own = shown(&host, Some(vec![nova, titled]));
        let table = text(&own, CpuUnit::Cores, NOW);
        let line = |start: &str| table.lines().find(|line| line.contains(start)).unwrap().to_owned();
        let db = line("shop db");
        for part in ["openstack instance-2a", "1.50", "512.0 MiB", "2.0 MiB/s", "-[1]", "0.05", "none", "yes"] {
            assert!(db.contains(part), "{part} not in {db}");
        }
        assert!(line("web (The shop)").contains("cpu 0.50"), "{table}");
        // 2.5 cores are not the volunteer's, and 1.7 are guests'.
        assert!(line("(other)").contains("0.80"), "{table}");
        assert!(table.contains("\n[1] not available, because"), "{table}");
        assert!(text(&own, CpuUnit::Percent, NOW).contains("150 %"));
        host.targets[0].2 = None;
        assert_eq!(shown(&host, None)[1].limits, None, "not confirmed");
    }

    #[test]
    fn guests_of_one_name_are_told_apart_and_stay_so() {
        let host = host(["web", "web#2", "web#3", "db"].map(|id| sample(id, 1.0)).to_vec());
        let all = |names: [(&str, Option<&str>, Option<u32>); 4]| {
            let ids = ["web", "web#2", "web#3", "db"];
            ids.into_iter().zip(names).map(|(id, (text, uuid, pid))| name(id, text, uuid, pid)).collect::<Vec<_>>()
        };
        let (first, second) = (Some("4dea22b3-1d52"), Some("9c3b1a00-77aa"));
        let different =
            all([("web", first, Some(1)), ("web", second, Some(2)), ("web", None, Some(3)), ("db", first, None)]);
        assert_eq!(called(&host, different.clone()), ["web [4dea22b3]", "web [9c3b1a00]", "web", "db"]);
        let mut turned = different;
        turned.reverse();
        assert_eq!(called(&host, turned), ["web [4dea22b3]", "web [9c3b1a00]", "web", "db"]);
        let same = all([("web", first, Some(1)), ("web", first, Some(2)), ("db", None, None), ("db", None, None)]);
        assert_eq!(called(&host, same), ["web [pid 1]", "web [pid 2]", "db [web#3]", "db [db]"]);
        // One that takes the label of another is told apart too, and so are names that differ where they are cut.
        let long = "x".repeat(60);
        let (a, b) = (format!("{long}a"), format!("{long}b"));
        let posing = all([("web", first, None), ("web", first, None), ("web [web]", None, None), (&a, None, None)]);
        let labels = called(&host, posing);
        assert_eq!(labels.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{labels:?}");
        let cut = all([(&a, None, Some(1)), (&b, None, Some(2)), ("c", None, None), ("d", None, None)]);
        assert!(called(&host, cut)[1].ends_with("… [pid 2]"));
    }

    #[test]
    fn a_cgroup_within_another_is_counted_once() {
        let cgroup = |path, percent| WorkloadSample { kind: WorkloadKind::Cgroup, ..sample(path, percent) };
        let all = [
            cgroup("shop.slice", 150.0),
            cgroup("shop.slice/db", 100.0),
            cgroup("shop.slice-2", 20.0),
            sample("vm", 5.0),
        ];
        let report = host(all.to_vec()).report.unwrap();
        assert_eq!(report.foreground_cpu(), Reading::Value(CoreShare::clamped(175.0)));
    }

    #[test]
    fn an_agent_that_says_no_names_is_shown_by_its_reports() {
        let mut host = host(vec![sample("web", 10.0)]);
        let own = shown(&host, None);
        assert_eq!((own[0].guest.as_str(), own[0].unnamed), ("web", Some(NOT_REPORTED)));
        let remarks = |host: &HostView| remarks(std::iter::once(host), &[], NOW);
        host.facts.levers.weaknesses = vec!["no ceiling\u{1b} on traffic".to_owned()];
        assert_eq!(weaknesses(&host).collect::<Vec<_>>(), ["host h1: weaker protection: no ceiling? on traffic"]);
        assert_eq!(remarks(&host), ["names of the guests of h1: not reported by this agent's version"]);
        let names = [HostGuests {
            host: host.host.clone(),
            guests: Vec::new(),
            unmatched: vec![GuestText::from_untrusted("web-*.slice").unwrap()],
        }];
        assert_eq!(
            super::remarks(std::iter::once(&host), &names, NOW),
            ["host h1: \"web-*.slice\" of foreground.cgroups matches no cgroup now"]
        );
        host.connected = false;
        assert_eq!(remarks(&host).len(), 1, "it is not known when it reported");
        host.reported = Some(Timestamp(NOW.0 - 65_000));
        assert_eq!(remarks(&host)[1], "host h1: lost; its guests are shown as it reported them 1 min 05 s ago");
        let table = anstream::adapter::strip_str(&text(&shown(&host, None), CpuUnit::Cores, NOW)).to_string();
        assert!(table.lines().skip(1).take(2).all(|line| line.ends_with("gone 1 min 05 s")), "{table}");
        host.left = true;
        assert!(remarks(&host)[1].starts_with("host h1: left; "));
        assert_eq!((shown(&host, None)[0].protected, shown(&host, None)[0].limits), (Protected::Unknown, None));
        host.report = None;
        assert_eq!(remarks(&host), ["host h1 has not reported yet"]);
        assert_eq!(text(&shown(&host, None), CpuUnit::Cores, NOW), "no guest is known");
    }

    #[test]
    fn guests_are_in_the_same_order_whoever_answers() {
        let named = |name: &str, ids: [&str; 3]| {
            let mut host = host(ids.map(|id| sample(id, 1.0)).to_vec());
            host.host = HostId::new(name).unwrap();
            host
        };
        let (a, b) = (named("a", ["x", "z", "y"]), named("b", ["z", "y", "x"]));
        let order = |hosts: [&HostView; 2]| {
            let rows = of_hosts(hosts.into_iter(), &[]);
            rows.iter().map(|guest| format!("{} {}", guest.host, guest.guest)).collect::<Vec<_>>()
        };
        let expected = ["a x", "a y", "a z", "a (other)", "b x", "b y", "b z", "b (other)"];
        assert_eq!(order([&a, &b]), expected);
        assert_eq!(order([&b, &a]), expected);
    }

    #[test]
    fn no_name_is_taken_for_another_row() {
        let one = |text: &str| called(&host(vec![sample("id", 1.0)]), vec![name("id", text, None, None)]).remove(0);
        for plain in ["web", "web-1", "a b", "Käse-数据", "x.y@z:7", "other", "it's", "\\"] {
            assert_eq!(one(plain), plain);
        }
        for (misleading, shown) in [
            ("(other)", r#""(other)""#),
            ("（other）", r#""（other）""#),
            ("everything-else", r#""everything-else""#),
            ("Everything-Else", r#""Everything-Else""#),
            ("web [pid 7]", r#""web [pid 7]""#),
            ("web (The shop)", r#""web (The shop)""#),
            (r#""web""#, r#""\"web\"""#),
            ("web  libvirt  0.10", r#""web  libvirt  0.10""#),
            ("web\u{a0}\u{a0}libvirt", r#""web\u{a0}\u{a0}libvirt""#),
            ("-", r#""-""#),
            ("web…", r#""web…""#),
        ] {
            assert_eq!(one(misleading), shown);
        }
        // What is cut is no quote that ends early.
        let long = format!("({}", "x".repeat(60));
        assert_eq!(one(&long), format!("\"({}\"…", "x".repeat(39)));
        assert_eq!(one(&"x".repeat(60)), format!("{}…", "x".repeat(40)));

        let mut posing = name("a", "web", None, None);
        posing.title = GuestText::from_untrusted("shop) db [pid 7");
        let mut other = name("b", "(other)", None, Some(7));
        other.title = GuestText::from_untrusted("The shop");
        let rows = shown(&host(vec![sample("a", 1.0), sample("b", 1.0)]), Some(vec![posing, other]));
        let titled: Vec<String> = rows.iter().map(Guest::called).collect();
        assert_eq!(titled, [r#"web ("shop) db [pid 7")"#, r#""(other)" (The shop)"#, "(other)"]);
        let roles: Vec<Role> = rows.iter().map(|row| row.role).collect();
        assert_eq!(roles, [Role::Foreground, Role::Foreground, Role::Other]);
        // The reserved workload's kind says what it is, not its name.
        let mut rest = sample("everything-else", 250.0);
        assert_eq!(called(&host(vec![rest.clone()]), vec![]), [r#""everything-else""#]);
        rest.kind = WorkloadKind::Remainder;
        assert_eq!(called(&host(vec![rest]), vec![]), ["everything-else"]);
    }

    proptest::proptest! {
        #[test]
        fn of_any_names_no_two_are_shown_alike_and_none_as_a_reserved_row(
            texts in proptest::collection::vec("[a(o\\[\\]\"\\\\ )\u{a0}\u{202e}\u{7}…#2é-]{1,60}", 1..6),
            uuids in proptest::collection::vec(proptest::option::of("[ab]{8}"), 6),
            pids in proptest::collection::vec(proptest::option::of(1..3_u32), 6),
        ) {
            let ids: Vec<String> = (0..texts.len()).map(|place| format!("id#{place}")).collect();
            let mut names = Vec::new();
            for (((id, text), uuid), pid) in ids.iter().zip(&texts).zip(&uuids).zip(&pids) {
                if let Some(text) = GuestText::from_untrusted(text) {
                    names.push(GuestName { name: text, ..name(id, "x", uuid.as_deref(), *pid) });
                }
            }
            let labels = called(&host(ids.iter().map(|id| sample(id, 1.0)).collect()), names);
            let different: std::collections::BTreeSet<&String> = labels.iter().collect();
            proptest::prop_assert_eq!(different.len(), labels.len(), "{:?}", labels);
            for label in &labels {
                proptest::prop_assert!(label != EVERYTHING_ELSE && !label.starts_with('('), "{}", label);
                proptest::prop_assert!(label.chars().all(gleaner_types::text::is_harmless), "{}", label);
            }
        }
    }

    #[test]
    fn what_one_guest_hides_is_not_others() {
        let mut hidden = sample("web", 10.0);
        hidden.cpu = Reading::Absent(Absence::because(Reason::ProcessEnded));
        let ended = Reading::Absent(Absence::because(Reason::ProcessEnded));
        assert_eq!(other(&host(vec![hidden, sample("db", 1.0)])), Some(ended));
        let mut rest = sample("everything-else", 250.0);
        rest.kind = WorkloadKind::Remainder;
        assert_eq!(other(&host(vec![rest])), None, "it is all foreground");
        assert_eq!(other(&host(vec![])), Some(Reading::Value(CoreShare::clamped(250.0))));
    }

    #[test]
    fn names_act_on_no_terminal() {
        let own = shown(
            &host(vec![sample("a\u{1b}[2J", 1.0)]),
            Some(vec![name("a\u{1b}[2J", "b\u{9b}31m\u{202e}", None, None)]),
        );
        let table = text(&own, CpuUnit::Cores, NOW);
        assert!(table.contains("b?31m?") && table.chars().all(|c| c == '\n' || gleaner_types::text::is_harmless(c)));
    }
}
