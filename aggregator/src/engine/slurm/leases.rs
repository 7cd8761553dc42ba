//! Users' leases of nodes, from Slurm's own reservations, a file, or OpenStack's Blazar. In: what `scontrol`, the file or Blazar says. Out: leases that name nodes, or
//! why they are not known. Called by [`super::gaps`].
//!
//! Nothing is guessed: one reservation that cannot be right makes all of them unknown.

mod blazar;
mod overlaps;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::reservations::partition::NodeLease;
use gleaner_planner::snapshot::fill::{InvalidLeases, Lease, leases_of_csv};
use gleaner_types::id::{HostId, ReservationId};
use serde::{Deserialize, Serialize};
use tokio::task::{JoinError, JoinHandle};

pub(super) use self::blazar::Blazar;
use self::blazar::{BlazarError, BlazarLeases};
use self::overlaps::{LeasedNode, Overlap};
use super::tools::{SlurmError, Tools};
use super::{hostlist, nodes};

/// What `scontrol` says when there are none.
const NONE: &str = "No reservations in the system";
/// Longest file, in bytes.
const LONGEST: u64 = 64 << 20;
/// What was begun to be read so long ago and has been read meanwhile is read anew. Chosen: some looks.
const OLD: Duration = Duration::from_secs(10);
/// Latest time that is believed, in seconds since 1970: the year 33658. Others are mistakes of unit.
const LATEST_S: f64 = 1e12;

/// Where leases are from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    /// Slurm's own reservations.
    Slurm,
    /// A file, as `gleaner plan fill --leases` takes it, with times in seconds since 1970.
    File(PathBuf),
    /// Blazar, of the cloud whose hosts the nodes are.
    Blazar(Blazar),
}

/// Why leases are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeasesUnknown {
    /// Slurm does not say them, or not so that they can be used.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// Blazar does not say them, or not so that they can be used.
    #[error(transparent)]
    Blazar(#[from] BlazarError),
    /// They were not read in time.
    #[error("they were not read within {limit_s} s")]
    Late {
        /// The limit.
        limit_s: u64,
    },
    /// Whoever reads them panicked.
    #[error("failed to read them")]
    Reader(#[source] JoinError),
    /// The file cannot be read.
    #[error("failed to read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is too long.
    #[error("{}: is too long; it must have less than {LONGEST} bytes", file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
    },
    /// It is no CSV of leases.
    #[error("{}", file.display())]
    Csv {
        /// The file.
        file: PathBuf,
        /// The line and the field.
        source: InvalidLeases,
    },
    /// It is no JSON of leases.
    #[error("{}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// The line and the field.
        source: serde_json::Error,
    },
    /// A lease in it cannot be right.
    #[error("{}: {place} ({lease}).{field}: {why}", file.display())]
    Lease {
        /// The file.
        file: PathBuf,
        /// Its line, or its place in the list of JSON.
        place: String,
        /// Its name.
        lease: ReservationId,
        /// The field.
        field: &'static str,
        /// Its value and the rule.
        why: String,
    },
    /// Two leases in it have a host at the same time.
    #[error("{}", file.display())]
    Overlap {
        /// The file.
        file: PathBuf,
        /// The leases and the host.
        source: Overlap,
    },
}

/// What the nodes of a partition are called and have.
#[derive(Debug)]
pub(super) struct Nodes<'a> {
    /// CPUs of each.
    pub(super) cpus: BTreeMap<&'a str, u32>,
    /// What Slurm calls the nodes of hosts, where that is not the host's name.
    pub(super) names: &'a BTreeMap<HostId, String>,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct LeasesRead {
    pub(super) leases: Vec<NodeLease>,
    /// Nodes of all hosts that the source can lease, by Slurm's names; nothing where it does not say which these are.
    pub(super) leasable: BTreeSet<String>,
}

impl From<Vec<NodeLease>> for LeasesRead {
    fn from(leases: Vec<NodeLease>) -> Self {
        Self { leases, leasable: BTreeSet::new() }
    }
}

/// Leases of a file or of Blazar that a thread reads. Either may hang, and nothing ends a thread that does.
#[derive(Debug)]
pub(super) struct Reading {
    begun: Instant,
    leases: JoinHandle<Result<LeasesRead, LeasesUnknown>>,
}

impl Reading {
    fn begin(read: impl FnOnce() -> Result<LeasesRead, LeasesUnknown> + Send + 'static) -> Self {
        Self { begun: Instant::now(), leases: tokio::task::spawn_blocking(read) }
    }
}

/// Reads the leases. `reading` is what an earlier call began that was given up: it is waited for instead of beginning another,
/// unless it has ended meanwhile and what it says is old. `now_s` is in seconds since 1970.
///
/// # Errors
/// [`LeasesUnknown`].
pub(super) async fn read(
    source: &Source,
    tools: &Tools,
    nodes: &Nodes<'_>,
    reading: &mut Option<Reading>,
    now_s: f64,
) -> Result<LeasesRead, LeasesUnknown> {
    if reading.as_ref().is_some_and(|own| own.leases.is_finished() && own.begun.elapsed() >= OLD) {
        *reading = None;
    }
    let begun = match source {
        Source::Slurm => {
            let said = tools.run("scontrol", &["show", "reservation", "--oneliner"]).await?;
            let leases = of_slurm(&said, &nodes.cpus)?;
            let is_own = |node: &String| nodes.cpus.contains_key(node.as_str());
            if leases.iter().flat_map(|lease| &lease.nodes).all(is_own) {
                return Ok(leases.into());
            }
            // CPUs of nodes of other partitions hide that a reservation over several has only a part of each.
            let all = nodes::parse(&tools.run("sinfo", &["-h", "-a", "-N", "-o", nodes::FORMAT]).await?)?;
            let others = all.iter().map(|(name, node)| (name.as_str(), node.cpus));
            return Ok(of_slurm(&said, &others.chain(nodes.cpus.clone()).collect())?.into());
        }
        Source::File(file) => reading.get_or_insert_with(|| {
            let (file, names) = (file.clone(), nodes.names.clone());
            Reading::begin(move || {
                let leases = of_file(&file)?;
                let named = |(place, lease): &(String, Lease)| named(&file, place, lease, &names);
                let leases = leases.iter().map(named).collect::<Result<Vec<NodeLease>, _>>()?;
                let nodes = leases.iter().flat_map(|lease| lease.nodes.iter().map(move |node| (lease, node)));
                let leased = nodes.map(|(lease, node)| LeasedNode { node, lease, is_part: false });
                overlaps::check(leased, now_s)
                    .map_err(|source| LeasesUnknown::Overlap { file: file.clone(), source })?;
                Ok(leases.into())
            })
        }),
        Source::Blazar(blazar) => reading.get_or_insert_with(|| {
            let own = blazar.clone();
            Reading::begin(move || {
                let BlazarLeases { leases, leasable } = own.read(now_s)?;
                Ok(LeasesRead { leases, leasable })
            })
        }),
    };
    let read = (&mut begun.leases).await;
    *reading = None;
    read.map_err(LeasesUnknown::Reader)?
}

/// Reads the lines of `scontrol show reservation`. A reservation has the nodes in `Nodes`, also where it names a partition or was made for
/// all nodes. Those of parts of nodes, and of licences alone, are left to Slurm. `cpus` are of all nodes that are known.
///
/// # Errors
/// [`SlurmError::Line`] naming the line and the field.
pub(super) fn of_slurm(text: &str, cpus: &BTreeMap<&str, u32>) -> Result<Vec<NodeLease>, SlurmError> {
    let mut leases = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !matches!(line.trim(), "" | NONE)) {
        let wrong = |why: String| SlurmError::Line { program: "scontrol", line: index + 1, why };
        leases.extend(of_line(line, cpus).map_err(wrong)?);
    }
    Ok(leases)
}

fn of_line(line: &str, cpus: &BTreeMap<&str, u32>) -> Result<Option<NodeLease>, String> {
    // The name comes first and may have blanks in it.
    let named = line.trim_start().strip_prefix("ReservationName=").and_then(|rest| rest.split_once(" StartTime="));
    let Some((name, rest)) = named else {
        return Err("does not begin with ReservationName and StartTime".to_owned());
    };
    let lease = ReservationId::new(name).map_err(|error| format!("ReservationName: {error}"))?;
    let (start, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut fields = BTreeMap::from([("StartTime", start)]);
    for (key, value) in rest.split_whitespace().filter_map(|word| word.split_once('=')) {
        let is_needed = matches!(key, "StartTime" | "EndTime" | "Nodes" | "TRES");
        if is_needed && fields.insert(key, value).is_some() {
            return Err(format!("{key}: is there twice"));
        }
    }
    let field = |key: &str| fields.get(key).copied().ok_or_else(|| format!("{key}: is missing"));
    // As seconds since 1970, which Slurm's tools are told to print: a local time could be of any zone.
    let time = |key: &str| {
        let text = field(key)?;
        let seconds = text.parse::<u64>().ok().map(|seconds| seconds as f64).filter(|seconds| *seconds <= LATEST_S);
        seconds.ok_or_else(|| format!("{key}: {:?} is no time in seconds", text.chars().take(40).collect::<String>()))
    };
    let (start_s, end_s) = (time("StartTime")?, time("EndTime")?);
    if end_s <= start_s {
        return Err(format!("EndTime: {end_s} is not after StartTime, {start_s}"));
    }
    let nodes: BTreeSet<String> = match field("Nodes")? {
        "" | "(null)" => return Ok(None),
        list => hostlist::expand(list)?.into_iter().collect(),
    };
    // Of nodes of no partition it is not known what they have.
    let all: u64 = nodes.iter().filter_map(|node| cpus.get(node.as_str())).map(|cpus| u64::from(*cpus)).sum();
    let reserved = field("TRES").unwrap_or_default().split(',').find_map(|part| part.strip_prefix("cpu="));
    let is_part = reserved.and_then(|cpus| cpus.parse::<u64>().ok()).is_some_and(|reserved| reserved < all);
    Ok((!is_part).then_some(NodeLease { lease, nodes, start_s, end_s }))
}

/// The leases of a file, each with its place there.
fn of_file(file: &Path) -> Result<Vec<(String, Lease)>, LeasesUnknown> {
    let unreadable = |source| LeasesUnknown::Unreadable { file: file.to_owned(), source };
    let mut text = String::new();
    std::fs::File::open(file).map_err(unreadable)?.take(LONGEST).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 == LONGEST {
        return Err(LeasesUnknown::TooLong { file: file.to_owned() });
    }
    if file.extension().is_some_and(|ending| ending == "json") {
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let leases: Vec<Lease> =
            serde_json::from_str(text).map_err(|source| LeasesUnknown::Json { file: file.to_owned(), source })?;
        let placed = leases.into_iter().enumerate();
        return Ok(placed.map(|(place, lease)| (format!("leases[{place}]"), lease)).collect());
    }
    let leases = leases_of_csv(&text).map_err(|source| LeasesUnknown::Csv { file: file.to_owned(), source })?;
    Ok(leases.into_iter().map(|(line, lease)| (format!("line {line}"), lease)).collect())
}

/// A lease of a file, with the nodes of its hosts.
fn named(
    file: &Path,
    place: &str,
    lease: &Lease,
    names: &BTreeMap<HostId, String>,
) -> Result<NodeLease, LeasesUnknown> {
    let wrong = |field, why: String| {
        Err(LeasesUnknown::Lease {
            file: file.to_owned(),
            place: place.to_owned(),
            lease: lease.lease.clone(),
            field,
            why,
        })
    };
    for (field, at_s) in [("start_s", lease.start_s), ("end_s", lease.end_s)] {
        if !(0.0..=LATEST_S).contains(&at_s) {
            return wrong(field, format!("is {at_s:?}; it must be a time in seconds since 1970"));
        }
    }
    if lease.end_s <= lease.start_s {
        return wrong("end_s", format!("is {:?}; it must be after start_s, {:?}", lease.end_s, lease.start_s));
    }
    // Which nodes it will get is not Gleaner's to say.
    if lease.hosts.is_empty() || lease.nodes.is_some_and(|nodes| nodes as usize > lease.hosts.len()) {
        return wrong("hosts", format!("names {}; it must name all hosts of the lease", lease.hosts.len()));
    }
    let mut hosts = BTreeSet::new();
    if let Some(twice) = lease.hosts.iter().find(|host| !hosts.insert(*host)) {
        return wrong("hosts", format!("{twice} is named twice; each must be named once"));
    }
    let node_of = |host: &HostId| names.get(host).map_or(host.as_str(), String::as_str).to_owned();
    let nodes = lease.hosts.iter().map(node_of).collect();
    Ok(NodeLease { lease: lease.lease.clone(), nodes, start_s: lease.start_s, end_s: lease.end_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Slurm 22.05.8 said of reservations of all nodes, of half a node, and of one by a name with a blank.
    const LINES: [&str; 3] = [
        "ReservationName=maint StartTime=1795710939 EndTime=1795711239 Duration=00:05:00 Nodes=d[1-2] NodeCnt=2 CoreCnt=8 \
         Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES,ALL_NODES TRES=cpu=8 Users=root Groups=(null) \
         Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)",
        "ReservationName=part StartTime=1795708939 EndTime=1795709739 Duration=00:13:20 Nodes=d1 NodeCnt=1 CoreCnt=2 \
         Features=(null) PartitionName=all Flags= TRES=cpu=2 Users=root Groups=(null) Accounts=(null) Licenses=(null) \
         State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)",
        "ReservationName=a b StartTime=1795710939 EndTime=1795711239 Duration=00:05:00 Nodes=d2 NodeCnt=1 CoreCnt=4 \
         Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu=4 Users=root Groups=(null) \
         Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)",
    ];

    fn cpus() -> BTreeMap<&'static str, u32> {
        [("d1", 4), ("d2", 4)].into()
    }

    #[test]
    fn reservations_of_slurm_are_read() {
        let leases = of_slurm(&format!("{}\n", LINES.join("\n")), &cpus()).unwrap();
        let names: Vec<&str> = leases.iter().map(|lease| lease.lease.as_str()).collect();
        assert_eq!(names, ["maint", "a b"], "half a node is left to Slurm");
        let first = &leases[0];
        assert_eq!((first.start_s, first.end_s), (1_795_710_939.0, 1_795_711_239.0));
        assert_eq!(first.nodes, ["d1", "d2"].map(str::to_owned).into());
        assert!(of_slurm("No reservations in the system\n", &cpus()).unwrap().is_empty());
        assert!(of_slurm(&LINES[0].replace("d[1-2]", "(null)"), &cpus()).unwrap().is_empty(), "of licences alone");
    }

    #[test]
    fn a_reservation_has_the_nodes_it_lists_whatever_its_partition_and_flags() {
        let with = |nodes: &str, cpus: u32| {
            let line = LINES[1].replace("Nodes=d1", &format!("Nodes={nodes}"));
            of_slurm(&line.replace("TRES=cpu=2", &format!("TRES=cpu={cpus}")), &cpus_of_all()).unwrap()
        };
        // By the partition's name, without Flags=ALL_NODES: d2 is open.
        assert_eq!(with("d1", 4)[0].nodes, ["d1".to_owned()].into());
        // Over two partitions: whole nodes, and half of each, which is more than d1 has.
        assert_eq!(with("d1,e[1-3]", 16)[0].nodes.len(), 4);
        assert!(with("d1,e[1-3]", 8).is_empty());
    }

    fn cpus_of_all() -> BTreeMap<&'static str, u32> {
        cpus().into_iter().chain([("e1", 4), ("e2", 4), ("e3", 4)]).collect()
    }

    #[test]
    fn reservations_that_cannot_be_right_are_named() {
        for (from, to, why) in [
            ("ReservationName=maint ", "", "does not begin with ReservationName"),
            ("=maint", "=", "ReservationName: lease name"),
            ("=maint", "=a StartTime=1", "StartTime: is there twice"),
            ("1795710939", "2026-11-26T16:00:00", "StartTime: \"2026-11-26T16:00:00\" is no time in seconds"),
            ("1795710939", "-5", "StartTime: \"-5\" is no time"),
            ("1795711239", "1795710939", "EndTime: 1795710939 is not after StartTime, 1795710939"),
            ("1795711239", "18446744073709551615", "EndTime: \"18446744073709551615\" is no time"),
            ("EndTime=1795711239", "", "EndTime: is missing"),
            ("d[1-2]", "d[2-1]", "nodes: \"2-1\" ends before it begins"),
            (" Nodes=d[1-2]", "", "Nodes: is missing"),
        ] {
            let text = format!("{}\n{}\n", LINES[1], LINES[0].replace(from, to));
            let said = of_slurm(&text, &cpus()).unwrap_err().to_string();
            assert!(said.starts_with("scontrol: line 2: ") && said.contains(why), "{to}: {said}");
        }
        assert!(of_slurm("what?", &cpus()).unwrap_err().to_string().contains("line 1: does not begin with"));
    }

    /// When the tests' leases of files are read.
    const NOW_S: f64 = 50.0;

    async fn of(text: &str, name: &str) -> Result<Vec<NodeLease>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let names: BTreeMap<HostId, String> = [(HostId::new("h1").unwrap(), "node-1".to_owned())].into();
        let tools = Tools::new("/nowhere".into(), None);
        let nodes = Nodes { names: &names, cpus: BTreeMap::new() };
        let read = read(&Source::File(file), &tools, &nodes, &mut None, NOW_S).await;
        read.map(|read| read.leases).map_err(|error| gleaner_types::error::chain(&error))
    }

    #[tokio::test]
    async fn files_are_read_and_what_is_wrong_in_them_is_named() {
        let leases = of("lease,start_s,end_s,hosts\na,100,200,h1 h2\n", "l.csv").await.unwrap();
        assert_eq!(leases[0].nodes, ["h2", "node-1"].map(str::to_owned).into());
        let json = r#"[{"lease":"a","start_s":100,"end_s":200.5,"hosts":["h2"]}]"#;
        for mark in ["", "\u{feff}"] {
            assert!((of(&format!("{mark}{json}"), "l.json").await.unwrap()[0].end_s - 200.5).abs() < 1e-9);
        }
        for (text, name, why) in [
            (
                "lease,start_s,end_s,hosts\na,200,100,h1\n",
                "l.csv",
                "l.csv: line 2 (a).end_s: is 100.0; it must be after start_s",
            ),
            (
                r#"[{"lease":"a","start_s":100,"end_s":100,"hosts":["h2"]}]"#,
                "l.json",
                "l.json: leases[0] (a).end_s: is 100.0; it must be after start_s",
            ),
            ("start_s,end_s,hosts\n1,nan,h1\n", "l.csv", "line 2: end_s: is \"nan\"; it must be a number of seconds"),
            (
                "lease,start_s,end_s,hosts\n\na,1,5,h1 h2 h1\n",
                "l.csv",
                "line 3 (a).hosts: h1 is named twice; each must be named once",
            ),
            ("start_s,end_s,hosts\n-1,5,h1\n", "l.csv", "start_s: is -1.0; it must be a time in seconds since 1970"),
            ("start_s,end_s,nodes\n1,5,2\n", "l.csv", "hosts: names 0; it must name all hosts"),
            ("start_s,end_s,nodes,hosts\n1,5,2,h1\n", "l.csv", "hosts: names 1"),
            ("start_s,end_s\nsoon,5\n", "l.csv", "line 2: start_s: is \"soon\""),
            ("[{}]", "l.json", "missing field `lease`"),
            ("\u{0}", "l.json", "expected value"),
        ] {
            let said = of(text, name).await.unwrap_err();
            assert!(said.contains(name) && said.contains(why), "{said}");
        }
    }

    #[tokio::test]
    async fn leases_of_a_file_that_overlap_are_named() {
        let text = |leases: &str| format!("lease,start_s,end_s,hosts\n{leases}");
        let said = of(&text("a,200,400,h1 h2\nb,300,500,h3 h1\n"), "l.csv").await.unwrap_err();
        let why = "l.csv: node-1 has lease a until 400 and lease b from 300 on; leases of one host must not overlap";
        assert!(said.ends_with(why), "{said}");
        for fine in ["a,200,400,h1\nb,400,500,h1\n", "a,200,400,h1\nb,300,500,h2\n", "a,10,50,h1\nb,20,60,h1\n"] {
            assert_eq!(of(&text(fine), "l.csv").await.unwrap().len(), 2, "{fine}");
        }
    }

    /// A pipe that nobody writes to hangs as a broken file system does.
    #[tokio::test]
    async fn a_file_that_hangs_is_read_by_one_thread_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("l.csv");
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        let (names, tools, mut reading) = (BTreeMap::new(), Tools::new("/nowhere".into(), None), None);
        let nodes = Nodes { names: &names, cpus: BTreeMap::new() };
        let source = Source::File(file.clone());
        for _ in 0..3 {
            let read = read(&source, &tools, &nodes, &mut reading, NOW_S);
            assert!(tokio::time::timeout(Duration::from_millis(50), read).await.is_err());
        }
        let write =
            tokio::task::spawn_blocking(move || std::fs::write(file, "lease,start_s,end_s,hosts\na,100,200,h1\n"));
        assert_eq!(read(&source, &tools, &nodes, &mut reading, NOW_S).await.unwrap().leases[0].lease.as_str(), "a");
        write.await.unwrap().unwrap();
        assert!(reading.is_none(), "the next call reads anew");
    }
}
