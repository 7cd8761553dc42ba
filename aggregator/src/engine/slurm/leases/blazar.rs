//! Users' leases of hosts from OpenStack's reservation service, Blazar (its REST API, version 1). In: its address, a token. Out: leases that name
//! nodes, or why they are not known. Called by [`super`].
//!
//! A lease does not say which hosts it has: the allocations do, by the lease's identifier. So three lists are asked for, the leases last: one
//! that an allocation names and the list has not makes all of them unknown, until the next look. So does one that must have hosts and
//! has too few in the allocations: a list that is cut short is valid JSON as well, and the lease's hosts would count as free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_planner::reservations::partition::NodeLease;
use gleaner_types::id::ReservationId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use time::PrimitiveDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::overlaps::{self, LeasedNode, Overlap};
use crate::http::{self, TlsError};

/// Longest answer, in bytes. Chosen: a thousand hosts with a hundred leases each are a third of it.
const LONGEST: u64 = 64 << 20;
/// For each of the three questions.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Longest token and address, in bytes.
const LONGEST_TOKEN: usize = 16 << 10;
const LONGEST_URL: usize = 2_048;
/// Statuses in which a lease has the hosts that it reserves. While Blazar makes, changes or ends one, and where it failed, it may have none.
const WITH_HOSTS: [&str; 3] = ["PENDING", "STARTING", "ACTIVE"];
/// The type of reservations of whole hosts. Those of instances (`virtual:instance`) have parts of hosts.
const WHOLE_HOST: &str = "physical:host";
/// A lease that ends so soon may be over by Blazar's clock, and then has no hosts in the allocations. Chosen: an answer takes no longer.
const ENDS_SOON_S: f64 = 10.0;
/// How Blazar writes a time, always in UTC: its answers with a `T` and parts of seconds, its documentation with a blank and without seconds.
const TIMES: [&[BorrowedFormatItem<'_>]; 3] = [
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond]"),
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]"),
    format_description!("[year]-[month]-[day] [hour]:[minute]"),
];

/// Where Blazar is, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Blazar {
    /// Address of its API, with the version: `https://cloud.example:1234/v1`.
    pub(crate) url: String,
    /// A file with a token of Keystone for a user who may list allocations: by Blazar's own policy an administrator. It is read anew each time.
    pub(crate) token_file: PathBuf,
    /// Certificates of the authorities that Blazar's is believed by; for `https`.
    #[serde(default)]
    pub(crate) ca: Option<PathBuf>,
    /// Slurm's names of nodes that are called otherwise in OpenStack (`hypervisor_hostname`).
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, String>,
}

/// What Blazar says.
#[derive(Debug)]
pub(super) struct BlazarLeases {
    /// Its leases.
    pub(super) leases: Vec<NodeLease>,
    /// Nodes of all its hosts, by Slurm's names.
    pub(super) leasable: BTreeSet<String>,
}

/// Why Blazar's leases are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlazarError {
    /// The token cannot be read.
    #[error("failed to read {}", file.display())]
    Token {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is none.
    #[error("{}: holds no token: it must be one line of printable ASCII characters", file.display())]
    NoToken {
        /// The file.
        file: PathBuf,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No answer.
    #[error("no answer of Blazar to {call}")]
    Unreachable {
        /// What was asked.
        call: &'static str,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// It refuses.
    #[error("Blazar answers {call} with status {status}{}", hint(*status))]
    Refused {
        /// What was asked.
        call: &'static str,
        /// The answer's status.
        status: u16,
    },
    /// The answer is not what it should be.
    #[error("Blazar's answer to {call} cannot be read")]
    NotJson {
        /// What was asked.
        call: &'static str,
        /// The line and the field.
        source: serde_json::Error,
    },
    /// A value in it cannot be right.
    #[error("Blazar's answer to {call}: {what}")]
    Wrong {
        /// What was asked.
        call: &'static str,
        /// The field, its value and the rule.
        what: String,
    },
    /// A reservation has fewer hosts than it must have.
    #[error(
        "Blazar's answer to {ALLOCATIONS}: has {hosts} hosts for reservation {reservation:?} of lease {lease:?} \
         ({id:?}), which is {status}; it must have {least} or more"
    )]
    TooFewHosts {
        /// The lease's name.
        lease: String,
        /// Its identifier.
        id: String,
        /// Its status.
        status: String,
        /// The reservation's identifier.
        reservation: String,
        /// How many it has.
        hosts: usize,
        /// How many it must have.
        least: usize,
    },
    /// Two leases have a host at the same time.
    #[error("Blazar's answer to {ALLOCATIONS}")]
    Overlap(#[source] Overlap),
}

/// What to do about a status.
fn hint(status: u16) -> &'static str {
    match status {
        401 => "; the token is not valid any more: put a new one into token_file",
        403 => "; the token's user may not: it takes an administrator, or a policy for blazar:os-hosts:get_allocations",
        404 => "; the address must end with the version, as in https://cloud.example:1234/v1",
        _ => "",
    }
}

const HOSTS: &str = "/os-hosts";
const ALLOCATIONS: &str = "/os-hosts/allocations";
const LEASES: &str = "/leases";

/// An identifier: newer versions write some as numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Text(String),
}

impl Id {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Hosts {
    hosts: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Host {
    id: Id,
    hypervisor_hostname: String,
}

#[derive(Debug, Deserialize)]
struct Allocations {
    allocations: Vec<Allocation>,
}

/// A host with what is reserved of it.
#[derive(Debug, Deserialize)]
struct Allocation {
    resource_id: Id,
    reservations: Vec<Reserved>,
}

#[derive(Debug, Deserialize)]
struct Reserved {
    /// The reservation's.
    id: Id,
    lease_id: String,
}

/// A host that a reservation has.
#[derive(Debug)]
struct Held {
    reservation: String,
    node: String,
}

#[derive(Debug, Deserialize)]
struct Leases {
    leases: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
struct Lease {
    id: String,
    name: String,
    start_date: String,
    end_date: String,
    status: Option<String>,
    #[serde(default)]
    reservations: Vec<Reservation>,
}

#[derive(Debug, Deserialize)]
struct Reservation {
    id: Id,
    resource_type: Option<String>,
    /// The fewest hosts it may have.
    min: Option<Id>,
    /// A host of it failed, and Blazar found no other.
    missing_resources: Option<bool>,
}

impl Reservation {
    /// It has parts of hosts.
    fn is_of_parts(&self) -> bool {
        self.resource_type.as_deref().is_some_and(|kind| kind != WHOLE_HOST)
    }

    /// The fewest hosts that it has for certain.
    fn least(&self) -> usize {
        if self.resource_type.as_deref() != Some(WHOLE_HOST) || self.missing_resources == Some(true) {
            return 0;
        }
        self.min.as_ref().and_then(|min| min.text().parse().ok()).unwrap_or(1)
    }
}

impl Lease {
    /// Which of its reservations has too few hosts.
    fn too_few(&self, held: &[Held]) -> Option<BlazarError> {
        let status = self.status.as_deref().filter(|status| WITH_HOSTS.contains(status))?;
        self.reservations.iter().find_map(|own| {
            let (reservation, least) = (own.id.text(), own.least());
            let hosts = held.iter().filter(|held| held.reservation == reservation).count();
            (hosts < least).then(|| BlazarError::TooFewHosts {
                lease: short(&self.name),
                id: short(&self.id),
                status: status.to_owned(),
                reservation: short(&reservation),
                hosts,
                least,
            })
        })
    }

    /// Nodes that it has, and those of them of which it has parts only.
    fn nodes(&self, held: Vec<Held>) -> (BTreeSet<String>, BTreeSet<String>) {
        let of_parts = self.reservations.iter().filter(|own| own.is_of_parts());
        let of_parts: BTreeSet<String> = of_parts.map(|own| own.id.text()).collect();
        let (parts, whole): (Vec<Held>, Vec<Held>) =
            held.into_iter().partition(|held| of_parts.contains(&held.reservation));
        let nodes_of = |held: Vec<Held>| held.into_iter().map(|held| held.node).collect::<BTreeSet<String>>();
        let (parts, whole) = (nodes_of(parts), nodes_of(whole));
        (&parts | &whole, &parts - &whole)
    }
}

impl Blazar {
    /// What is wrong with what a file says of it, field by field.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let host = self.url.strip_prefix("https://").or_else(|| self.url.strip_prefix("http://"));
        let host = host.and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let odd = self.url.len() > LONGEST_URL
            || host.is_empty()
            || host.contains('@')
            || self.url.contains(['?', '#'])
            || !self.url.bytes().all(|byte| byte.is_ascii_graphic())
            || self.url.parse::<ureq::http::Uri>().is_err();
        if odd {
            problems.push("url: must be https://HOST:PORT/v1, or http, without a user, `?` and `#`".to_owned());
        }
        match (&self.ca, self.url.starts_with("https://")) {
            (None, true) => problems.push("ca: is missing; https takes a file of certificates".to_owned()),
            (Some(_), false) => problems.push("ca: is of no use without https".to_owned()),
            _ => {}
        }
        for (field, file) in [("token_file", Some(&self.token_file)), ("ca", self.ca.as_ref())] {
            if let Some(file) = file.filter(|file| !file.is_absolute()) {
                problems.push(format!("{field}: {:?} is not an absolute path", file.display()));
            }
        }
        problems
    }

    /// Asks for the leases. It waits for answers. `now_s` is in seconds since 1970.
    ///
    /// # Errors
    /// [`BlazarError`].
    pub(super) fn read(&self, now_s: f64) -> Result<BlazarLeases, BlazarError> {
        let token = self.token()?;
        let tls =
            self.ca.as_deref().map(|ca| http::TlsFiles { ca: Some(ca.to_owned()), client: None }.load()).transpose()?;
        let client = http::client(tls);
        let get = |call: &'static str| {
            let unreachable = |source| BlazarError::Unreachable { call, source: Box::new(source) };
            let url = format!("{}{call}", self.url.trim_end_matches('/'));
            let headers = [("X-Auth-Token", token.as_str()), ("Accept", "application/json")];
            let mut answer = http::get(&client, &url, None, &headers, TIME_LIMIT).map_err(unreachable)?;
            match answer.status().as_u16() {
                200 => http::body(&mut answer, LONGEST).map_err(unreachable),
                status => Err(BlazarError::Refused { call, status }),
            }
        };
        // In this order: see above.
        self.leases(&get(HOSTS)?, &get(ALLOCATIONS)?, &get(LEASES)?, now_s)
    }

    fn token(&self) -> Result<String, BlazarError> {
        let file = || self.token_file.clone();
        let text = read_short(&self.token_file).map_err(|source| BlazarError::Token { file: file(), source })?;
        let token = text.trim();
        let usable = (1..=LONGEST_TOKEN).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        if usable { Ok(token.to_owned()) } else { Err(BlazarError::NoToken { file: file() }) }
    }

    /// The leases in three answers, and the hosts of which there can be some.
    fn leases(&self, hosts: &[u8], allocations: &[u8], leases: &[u8], now_s: f64) -> Result<BlazarLeases, BlazarError> {
        let node_of = self.node_of(parsed(HOSTS, hosts)?)?;
        let mut held_of = held_of(parsed(ALLOCATIONS, allocations)?, &node_of)?;
        let Leases { leases } = parsed(LEASES, leases)?;
        let mut named: BTreeMap<&str, u32> = BTreeMap::new();
        leases.iter().for_each(|lease| *named.entry(lease.name.as_str()).or_default() += 1);
        let (mut found, mut parts) = (Vec::new(), Vec::new());
        for (place, lease) in leases.iter().enumerate() {
            let held = held_of.remove(&lease.id).unwrap_or_default();
            let too_few = lease.too_few(&held);
            if lease.status.as_deref() == Some("TERMINATED") || (held.is_empty() && too_few.is_none()) {
                continue;
            }
            let wrong = |what: String| BlazarError::Wrong { call: LEASES, what: format!("leases[{place}].{what}") };
            let at = |field: &str, text: &str| {
                seconds(text).ok_or_else(|| wrong(format!("{field}: {:?} is no time", short(text))))
            };
            let (start_s, end_s) = (at("start_date", &lease.start_date)?, at("end_date", &lease.end_date)?);
            if end_s <= start_s {
                let (end, start) = (short(&lease.end_date), short(&lease.start_date));
                return Err(wrong(format!("end_date: {end:?} is not after {start:?}")));
            }
            if let Some(too_few) = too_few.filter(|_| end_s > now_s + ENDS_SOON_S) {
                return Err(too_few);
            }
            if held.is_empty() {
                continue;
            }
            // Names need not be anything, or anybody's alone.
            let own = Some(&lease.name).filter(|name| named[name.as_str()] == 1);
            let name = own.and_then(|name| ReservationId::new(name.as_str()).ok()).map_or_else(
                || ReservationId::new(lease.id.as_str()).map_err(|error| wrong(format!("id: {error}"))),
                Ok,
            )?;
            let (nodes, of_parts) = lease.nodes(held);
            found.push(NodeLease { lease: name, nodes, start_s, end_s });
            parts.push(of_parts);
        }
        if let Some(lease) = held_of.keys().next() {
            let what = format!("lease_id: {:?} is no lease of the list", short(lease));
            return Err(BlazarError::Wrong { call: ALLOCATIONS, what });
        }
        let leased = found.iter().zip(&parts).flat_map(|(lease, parts)| {
            lease.nodes.iter().map(move |node| LeasedNode { node, lease, is_part: parts.contains(node) })
        });
        overlaps::check(leased, now_s).map_err(BlazarError::Overlap)?;
        Ok(BlazarLeases { leases: found, leasable: node_of.into_values().collect() })
    }

    /// Nodes by the identifiers of hosts.
    fn node_of(&self, Hosts { hosts }: Hosts) -> Result<BTreeMap<String, String>, BlazarError> {
        let mut node_of: BTreeMap<String, String> = BTreeMap::new();
        for (place, host) in hosts.into_iter().enumerate() {
            let id = host.id.text();
            let what = format!("hosts[{place}].id: {:?} is another host's too", short(&id));
            let node = self.nodes.get(&host.hypervisor_hostname).cloned().unwrap_or(host.hypervisor_hostname);
            if node_of.insert(id, node).is_some() {
                return Err(BlazarError::Wrong { call: HOSTS, what });
            }
        }
        Ok(node_of)
    }
}

/// The hosts of leases, by their identifiers.
fn held_of(
    Allocations { allocations }: Allocations,
    node_of: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<Held>>, BlazarError> {
    let mut held_of: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for (place, allocation) in allocations.into_iter().enumerate() {
        let id = allocation.resource_id.text();
        let Some(node) = node_of.get(&id) else {
            let what = format!("allocations[{place}].resource_id: {:?} is no host of the list", short(&id));
            return Err(BlazarError::Wrong { call: ALLOCATIONS, what });
        };
        for Reserved { id, lease_id } in allocation.reservations {
            held_of.entry(lease_id).or_default().push(Held { reservation: id.text(), node: node.clone() });
        }
    }
    Ok(held_of)
}

/// So much of a text as a message may have.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A file that should be short.
fn read_short(file: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(file)?.take(LONGEST_TOKEN as u64 + 2).read_to_string(&mut text)?;
    Ok(text)
}

fn parsed<T: DeserializeOwned>(call: &'static str, answer: &[u8]) -> Result<T, BlazarError> {
    serde_json::from_slice(answer).map_err(|source| BlazarError::NotJson { call, source })
}

/// Seconds since 1970 of a time as Blazar writes it; `None` for what is none, or before.
fn seconds(text: &str) -> Option<f64> {
    let time = TIMES.iter().find_map(|format| PrimitiveDateTime::parse(text, format).ok())?;
    let seconds = time.assume_utc().unix_timestamp_nanos() as f64 / 1e9;
    (seconds >= 0.0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// After the examples of Blazar's API reference: answers have many more fields.
    const HOST_LIST: &str = r#"{"hosts": [
        {"id": "1", "hypervisor_hostname": "n1", "hypervisor_type": "QEMU", "vcpus": 4, "reservable": true, "trust_id": null},
        {"id": "2", "hypervisor_hostname": "4b1c6a1e-uuid-of-ironic", "vcpus": 4, "node_type": "compute_haswell"},
        {"id": 3, "hypervisor_hostname": "n3"}]}"#;
    const ALLOCATION_LIST: &str = r#"{"allocations": [
        {"resource_id": "1", "reservations": [
            {"id": "r1", "lease_id": "l1", "start_date": "2026-11-26T20:00:00.000000", "end_date": "2026-11-26T22:00:00.000000"},
            {"id": "r2", "lease_id": "l2"}]},
        {"resource_id": "2", "reservations": [{"id": "r1", "lease_id": "l1"}, {"id": "r3", "lease_id": "l3"}]},
        {"resource_id": 3, "reservations": []}]}"#;
    const LEASE_LIST: &str = r#"{"leases": [
        {"id": "l1", "name": "course", "start_date": "2026-11-26T20:00:00.000000", "end_date": "2026-11-26T22:00:00.500000",
         "status": "PENDING", "degraded": false, "reservations": [{"id": "r1", "resource_type": "physical:host"}], "events": []},
        {"id": "l2", "name": "twice", "start_date": "2026-11-27 08:30", "end_date": "2026-11-27 09:30", "status": "PENDING"},
        {"id": "l3", "name": "over", "start_date": "2026-11-25T08:30:00", "end_date": "2026-11-25T09:30:00", "status": "TERMINATED"},
        {"id": "l4", "name": "twice", "start_date": "never", "end_date": "", "status": "ERROR"}]}"#;

    /// When the tests' leases are read: an hour before `course` begins.
    const NOW_S: f64 = 1_795_719_600.0;

    fn blazar() -> Blazar {
        Blazar {
            url: "http://127.0.0.1:1/v1".into(),
            token_file: "/nowhere".into(),
            ca: None,
            nodes: [("4b1c6a1e-uuid-of-ironic".to_owned(), "n2".to_owned())].into(),
        }
    }

    fn read(hosts: &str, allocations: &str, leases: &str) -> Result<Vec<NodeLease>, String> {
        let read = blazar().leases(hosts.as_bytes(), allocations.as_bytes(), leases.as_bytes(), NOW_S);
        read.map(|read| read.leases).map_err(|error| gleaner_types::error::chain(&error))
    }

    #[test]
    fn leases_have_the_hosts_of_their_allocations() {
        let [hosts, allocations, leases] = [HOST_LIST, ALLOCATION_LIST, LEASE_LIST].map(str::as_bytes);
        let read = blazar().leases(hosts, allocations, leases, NOW_S).unwrap();
        let leases = read.leases;
        let shown: Vec<(&str, Vec<&str>, f64, f64)> = leases
            .iter()
            .map(|own| (own.lease.as_str(), own.nodes.iter().map(String::as_str).collect(), own.start_s, own.end_s))
            .collect();
        let begin_s = NOW_S + 3_600.0;
        assert_eq!(
            shown,
            [
                ("course", vec!["n1", "n2"], begin_s, begin_s + 7_200.5),
                ("l2", vec!["n1"], begin_s + 45_000.0, begin_s + 48_600.0)
            ],
            "what is over has no hosts, one that failed has none, and a name of two leases says nothing"
        );
        assert_eq!(read.leasable, ["n1", "n2", "n3"].map(str::to_owned).into(), "also those without a lease");
    }

    #[test]
    fn answers_that_cannot_be_right_make_all_unknown() {
        for (hosts, allocations, leases, why) in [
            (&HOST_LIST[..200], ALLOCATION_LIST, LEASE_LIST, "/os-hosts cannot be read: EOF"),
            ("{}", ALLOCATION_LIST, LEASE_LIST, "missing field `hosts`"),
            (HOST_LIST, r#"{"allocations": null}"#, LEASE_LIST, "/os-hosts/allocations cannot be read"),
            (
                &HOST_LIST.replace("\"id\": \"2\"", "\"id\": \"9\""),
                ALLOCATION_LIST,
                LEASE_LIST,
                "allocations[1].resource_id: \"2\" is no host of the list",
            ),
            (HOST_LIST, ALLOCATION_LIST, &LEASE_LIST.replace("\"l2\"", "\"l9\""), "\"l2\" is no lease of the list"),
            (
                HOST_LIST,
                ALLOCATION_LIST,
                &LEASE_LIST.replace("2026-11-27 08:30", "2026-11-27 25:30"),
                "leases[1].start_date: \"2026-11-27 25:30\" is no time",
            ),
            (
                HOST_LIST,
                ALLOCATION_LIST,
                &LEASE_LIST.replace("2026-11-27 09:30", "2026-11-27 08:30"),
                "leases[1].end_date: \"2026-11-27 08:30\" is not after",
            ),
            (
                HOST_LIST,
                ALLOCATION_LIST,
                &LEASE_LIST.replace("2026-11-27 08:30", "1826-11-27 08:30"),
                "leases[1].start_date: \"1826",
            ),
        ] {
            let said = read(hosts, allocations, leases).unwrap_err();
            assert!(said.contains(why), "{why} not in {said}");
        }
    }

    #[test]
    fn a_lease_that_has_too_few_hosts_makes_all_unknown() {
        let of_course = r#"{"id": "r1", "lease_id": "l1"}"#;
        let short = ALLOCATION_LIST.replace(&format!("{of_course}, "), "");
        let one = read(HOST_LIST, &short, LEASE_LIST).unwrap();
        assert_eq!(one[0].nodes, ["n1".to_owned()].into(), "that is a host, and more need not be");
        let with = |from: &str, to: &str| {
            // The first host is left out, with all that it has.
            let start = short.find(r#"{"resource_id": "2""#).unwrap();
            let allocations = format!(r#"{{"allocations": [{}"#, &short[start..]);
            assert!(LEASE_LIST.contains(from), "{from}");
            read(HOST_LIST, &allocations, &LEASE_LIST.replace(from, to))
        };
        let (kind, pending) = (r#""resource_type": "physical:host""#, r#""status": "PENDING", "degraded""#);
        let dates = r#""start_date": "2026-11-26T20:00:00.000000", "end_date": "2026-11-26T22:00:00.500000""#;
        let why = "Blazar's answer to /os-hosts/allocations: has 0 hosts for reservation \"r1\" of lease \"course\" (\"l1\"), \
                   which is PENDING; it must have 1 or more";
        assert_eq!(with("", "").unwrap_err(), why);
        for status in ["STARTING", "ACTIVE"] {
            let said = with(pending, &pending.replace("PENDING", status)).unwrap_err();
            assert!(said.contains(&format!("which is {status}")), "{said}");
        }
        for status in ["CREATING", "UPDATING", "TERMINATING", "DELETING", "TERMINATED", "ERROR"] {
            assert_eq!(with(pending, &pending.replace("PENDING", status)), Ok(vec![]), "{status}");
        }
        for (from, to) in [
            (kind, r#""resource_type": "virtual:floatingip""#.to_owned()),
            (kind, format!(r#"{kind}, "missing_resources": true"#)),
            (kind, format!(r#"{kind}, "min": 0"#)),
            (dates, r#""start_date": "2026-11-26 18:00", "end_date": "2026-11-26T19:00:10""#.to_owned()),
        ] {
            assert_eq!(with(from, &to), Ok(vec![]), "{to}");
        }
        // Of several hosts some are missing.
        let several = LEASE_LIST.replace(kind, &format!(r#"{kind}, "min": 2, "missing_resources": false"#));
        assert!(read(HOST_LIST, ALLOCATION_LIST, &several).is_ok());
        let said = read(HOST_LIST, &short, &several).unwrap_err();
        assert!(said.contains("has 1 hosts for") && said.ends_with("it must have 2 or more"), "{said}");
    }

    #[test]
    fn leases_that_overlap_are_named() {
        let at = |start: &str, end: &str, leases: &str| {
            let leases = leases.replace("2026-11-27 08:30", start).replace("2026-11-27 09:30", end);
            read(HOST_LIST, ALLOCATION_LIST, &leases)
        };
        let said = at("2026-11-26 21:00", "2026-11-26 23:00", LEASE_LIST).unwrap_err();
        let why = "Blazar's answer to /os-hosts/allocations: n1 has lease course until 1795730400.5 and lease l2 from 1795726800 on; \
                   leases of one host must not overlap";
        assert_eq!(said, why);
        // One ends when the other begins.
        assert_eq!(at("2026-11-26 19:30", "2026-11-26 20:00", LEASE_LIST).unwrap().len(), 2);
        // Both are over, by the clock of this machine.
        let over = LEASE_LIST.replace("26T20:00:00.000000", "25T20:00:00").replace("26T22:00:00.500000", "26T18:00:00");
        assert_eq!(at("2026-11-25 21:00", "2026-11-26 19:00", &over).unwrap().len(), 2);
        // Instances of several leases share a host.
        let (whole, instance) = (r#""resource_type": "physical:host""#, r#""resource_type": "virtual:instance""#);
        let with = |own: &str, other: &str| {
            let second = format!(r#""name": "twice", "reservations": [{{"id": "r2", {other}}}]"#);
            let leases = LEASE_LIST.replace(whole, own).replacen(r#""name": "twice""#, &second, 1);
            at("2026-11-26 21:00", "2026-11-26 23:00", &leases)
        };
        assert_eq!(with(instance, instance).unwrap().len(), 2);
        assert!(with(instance, whole).is_err() && with(whole, instance).is_err() && with(whole, whole).is_err());
    }

    /// What is cut off is valid JSON: only its length says that there was more.
    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "token").unwrap();
        for cut in 0..3 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/v1", listener.local_addr().unwrap());
            let server = std::thread::spawn(move || {
                for (place, body) in [HOST_LIST, ALLOCATION_LIST, LEASE_LIST].into_iter().enumerate().take(cut + 1) {
                    let length = if place == cut { 2 * body.len() } else { body.len() };
                    answer_of(&mut listener.accept().unwrap().0, 200, body, length);
                }
            });
            let said = Blazar { url, token_file: token_file.clone(), ..blazar() }.read(NOW_S).unwrap_err();
            let asked = [HOSTS, ALLOCATIONS, LEASES][cut];
            assert!(matches!(said, BlazarError::Unreachable { call, .. } if call == asked), "{said:?}");
            server.join().unwrap();
        }
    }

    #[test]
    fn options_are_checked_by_name() {
        assert_eq!(blazar().problems(), [] as [&str; 0]);
        let with = |change: fn(&mut Blazar)| {
            let mut blazar = blazar();
            change(&mut blazar);
            blazar.problems().join("; ")
        };
        assert!(with(|own| own.url = "cloud/v1".into()).starts_with("url: must be"));
        assert!(with(|own| own.url = "http://me:secret@cloud/v1".into()).starts_with("url: must be"));
        assert!(with(|own| own.url = "https://cloud/v1".into()).starts_with("ca: is missing"));
        assert!(with(|own| own.ca = Some("/ca".into())).starts_with("ca: is of no use"));
        assert!(
            with(|own| own.token_file = "token".into()).starts_with("token_file: \"token\" is not an absolute path")
        );
    }

    /// Takes a request and answers it; gives the request's head, nothing where there was none.
    fn answer(stream: &mut (impl Read + Write), status: u16, body: &str) -> String {
        answer_of(stream, status, body, body.len())
    }

    /// Likewise, with a length that need not be the body's.
    fn answer_of(stream: &mut (impl Read + Write), status: u16, body: &str, length: usize) -> String {
        let lines = BufReader::new(&mut *stream).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let answer = format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        _ = stream.write_all(answer.as_bytes());
        head.join("\n")
    }

    /// Answers one request after the other on loopback; gives the heads of requests.
    fn serve(answers: Vec<(u16, &'static str)>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let one = |(status, body)| answer(&mut listener.accept().unwrap().0, status, body);
            answers.into_iter().map(one).collect()
        });
        (url, server)
    }

    #[test]
    fn its_certificate_must_be_of_the_authority() {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (token_file, good, bad) =
            (folder.path().join("token"), folder.path().join("ca"), folder.path().join("other"));
        std::fs::write(&token_file, "token").unwrap();
        std::fs::write(&good, own.cert.pem()).unwrap();
        std::fs::write(&bad, other.cert.pem()).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let config = std::sync::Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/v1", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            // The first connection ends with the client's refusal.
            for body in ["", HOST_LIST, ALLOCATION_LIST, LEASE_LIST] {
                let session = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut stream = rustls::StreamOwned::new(session, listener.accept().unwrap().0);
                answer(&mut stream, 200, body);
                stream.conn.send_close_notify();
                _ = stream.flush();
            }
        });
        let asking = |ca: &Path| Blazar {
            url: url.clone(),
            token_file: token_file.clone(),
            ca: Some(ca.to_owned()),
            ..blazar()
        };
        assert_eq!(asking(&good).problems(), [] as [&str; 0]);
        assert!(matches!(asking(&bad).read(NOW_S), Err(BlazarError::Unreachable { .. })));
        assert_eq!(asking(&good).read(NOW_S).unwrap().leases.len(), 2);
        server.join().unwrap();
    }

    #[test]
    fn it_is_asked_with_the_token_of_the_file_and_its_refusals_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        let asking = |url: String| Blazar { url, token_file: token_file.clone(), ..blazar() };
        assert!(
            asking("http://127.0.0.1:1/v1".into()).read(NOW_S).unwrap_err().to_string().starts_with("failed to read")
        );
        std::fs::write(&token_file, "two\nlines\n").unwrap();
        assert!(asking("http://127.0.0.1:1/v1".into()).read(NOW_S).unwrap_err().to_string().contains("holds no token"));
        std::fs::write(&token_file, "gAAAA-secret\n").unwrap();
        let (url, server) = serve(vec![(200, HOST_LIST), (200, ALLOCATION_LIST), (200, LEASE_LIST)]);
        assert_eq!(asking(url).read(NOW_S).unwrap().leases.len(), 2);
        let heads = server.join().unwrap();
        for (head, path) in heads.iter().zip(["/v1/os-hosts ", "/v1/os-hosts/allocations ", "/v1/leases "]) {
            assert!(head.starts_with(&format!("GET {path}")), "{head}");
            assert!(head.to_lowercase().contains("x-auth-token: gaaaa-secret"), "{head}");
        }
        for (status, why) in [(401, "put a new one into token_file"), (403, "administrator"), (500, "status 500")] {
            let (url, server) = serve(vec![(status, "{}")]);
            let said = asking(url).read(NOW_S).unwrap_err().to_string();
            assert!(said.contains(why) && !said.contains("secret"), "{said}");
            server.join().unwrap();
        }
        assert!(matches!(asking("http://127.0.0.1:1/v1".into()).read(NOW_S), Err(BlazarError::Unreachable { .. })));
    }
}
