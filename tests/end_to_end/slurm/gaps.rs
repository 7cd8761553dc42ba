//! Gaps between leases of nodes of real Slurm clusters. Three clusters have the same arrays and the same lease of one of two nodes at the same
//! time: one has it as a reservation of Slurm and no Gleaner; two are filled by Gleaner, one with notice and one that only ends
//! what runs when the lease begins. It is moved near when Gleaner knows how long tasks take, however long that lasts. Then a reservation of
//! Slurm comes over tasks that run already.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::pair::Pair;
use gleaner_test_support::skip;

use super::agent;
use super::cluster::{Order, Slurm, now_s};

/// The node that is leased.
const LEASED: &str = "d2";
/// Hosts whose nodes are d1 and d2, of each cluster that Gleaner fills.
const HOSTS: [[&str; 2]; 2] = [["d1", "d2"], ["e1", "e2"]];
/// How long before a lease its nodes are emptied: a look, a second to be killed, and what a busy machine takes.
const VACATE_S: f64 = 6.0;
/// How long before it begins the lease is known: more than the longest task takes and [`VACATE_S`].
const NOTICE_S: f64 = 36.0;
/// How long the lease lasts.
const LEASE_S: f64 = 10.0;
/// Tasks of each array that have ended before: as many as it takes to say of another that it cannot end in time, and one more.
const LEARNT: usize = 4;
/// By then all tasks are done.
const LONGEST: Duration = Duration::from_secs(300);

/// An array whose tasks write when they begin, end and are ended.
struct Array {
    id: u64,
    tasks: usize,
}

/// What a task wrote: a sign, the time, and the node.
struct Line {
    sign: char,
    at_s: f64,
    node: String,
}

fn submit(slurm: &Slurm, user: &str, tasks: usize, task_s: f64, more: &[&str]) -> Array {
    let file = format!("{}/$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID", slurm.out().display());
    let say = |sign: char| format!("echo {sign} $(date +%s.%N) $SLURMD_NODENAME >> {file}");
    // Whether the signal reaches the shell or its child first: what was not slept to its end was ended.
    let [begin, end, killed] = ['b', 'e', 'k'].map(say);
    let script = format!("trap : TERM; {begin}; sleep {task_s} & if wait $!; then {end}; else {killed}; exit 1; fi");
    let (array, uid, wrap) = (format!("--array=1-{tasks}"), format!("--uid={user}"), format!("--wrap={script}"));
    let arguments = ["--parsable", &uid, &array, "--output=/dev/null", "--requeue", "--chdir=/", &wrap];
    let id = slurm.ask("sbatch", &[&arguments[..], more].concat());
    Array { id: id.trim().parse().unwrap(), tasks }
}

impl Array {
    fn lines(&self, slurm: &Slurm, task: usize) -> Vec<Line> {
        let file = slurm.out().join(format!("{}.{task}", self.id));
        let said = std::fs::read_to_string(file).unwrap_or_default();
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let &[sign, at_s, node] = words.as_slice() else { panic!("{line}") };
            Line { sign: sign.chars().next().unwrap(), at_s: at_s.parse().unwrap(), node: node.to_owned() }
        };
        said.lines().map(line).collect()
    }

    /// How many of its tasks ended well after some time.
    fn ended_after(&self, slurm: &Slurm, after_s: f64) -> usize {
        let is_good = |line: &Line| line.sign == 'e' && line.at_s > after_s;
        (1..=self.tasks).filter(|task| self.lines(slurm, *task).iter().any(is_good)).count()
    }

    fn is_done(&self, slurm: &Slurm) -> bool {
        (1..=self.tasks).all(|task| self.lines(slurm, task).iter().any(|line| line.sign == 'e'))
    }
}

/// What became of the arrays of one cluster.
#[derive(Debug, Default)]
struct Filled {
    /// CPU seconds on the leased node before the lease, of tasks that ended well; and those of tasks that were ended.
    done: f64,
    lost: f64,
    /// Tasks that were ended for the lease.
    ended: usize,
    /// From the begin to the last task.
    took_s: f64,
}

/// Counts what tasks wrote; each must have ended well once, and not have run during the lease.
fn filled(slurm: &Slurm, arrays: &[Array], began_s: f64, (start_s, end_s): (f64, f64)) -> Filled {
    let mut filled = Filled::default();
    for (array, task) in arrays.iter().flat_map(|array| (1..=array.tasks).map(move |task| (array, task))) {
        let lines = array.lines(slurm, task);
        let signs: String = lines.iter().map(|line| line.sign).collect();
        assert_eq!(signs.matches('e').count(), 1, "task {task} of {}: {signs}", array.id);
        assert!(signs.ends_with("be") && signs.replace("bk", "") == "be", "task {task} of {}: {signs}", array.id);
        for run in lines.chunks(2).filter(|run| run[0].node == LEASED) {
            let (from_s, to_s) = (run[0].at_s, run[1].at_s);
            assert!(to_s <= start_s || from_s >= end_s, "task {task} of {} ran during the lease: {signs}", array.id);
            match run[1].sign {
                'e' if to_s <= start_s => filled.done += to_s - from_s,
                'k' => (filled.lost, filled.ended) = (filled.lost + to_s - from_s, filled.ended + 1),
                _ => {}
            }
        }
        filled.took_s = filled.took_s.max(lines.last().map_or(0.0, |line| line.at_s - began_s));
    }
    filled
}

/// Submits the job that fills a cluster's gaps.
fn fill(pair: &Pair, slurm: &Slurm, name: &str, hosts: [&str; 2], reservations: &str) {
    let dedicated: String = hosts.iter().map(|host| format!("[[dedicated]]\nhost = '{host}'\n")).collect();
    let nodes: String = hosts.iter().zip(["d1", "d2"]).map(|(host, node)| format!("{host} = '{node}'\n")).collect();
    let job = format!(
        "name = '{name}'\nmax_volunteers = 0\nmemory_per_slot_mib = 16\n[goal.cost]\n\
         [prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
         [slurm]\npartition = 'all'\nempty_s = 2.0\nconf = {:?}\nvacate_s = {VACATE_S:?}\n{reservations}\n\
         [slurm.nodes]\n{nodes}{dedicated}",
        slurm.conf()
    );
    pair.bench.write(&format!("{name}.toml"), &job);
    let submitted = pair.ask(&["job", "submit-cluster", &format!("{name}.toml")]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
}

#[test]
fn gaps_between_leases_are_filled_on_real_slurm_clusters() {
    if !wanted("gaps_between_leases_are_filled_on_real_slurm_clusters") {
        return;
    }
    if let Some(missing) = Slurm::missing(Order::Submission) {
        skip!("a real Slurm cluster: {missing} is missing");
    }
    if !bench::cgroups_writable("a real Slurm cluster") {
        return;
    }
    let hosts: Vec<&str> = HOSTS.into_iter().flatten().collect();
    let mut pair = Pair::new(&hosts);
    let [alone, simple, ours] = [(); 3].map(|()| Slurm::start(Order::Submission));
    pair.start_aggregator();
    let _agents: Vec<Running> = hosts.iter().map(|name| agent(&pair, &ours, name)).collect();
    until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == hosts.len());

    let began_s = now_s();
    // Far ahead, until it is known how long tasks take.
    let far = ((began_s + 3_600.0).ceil(), (began_s + 3_610.0).ceil());
    HOSTS.iter().for_each(|hosts| lease_in_file(&pair, hosts[1], far));
    reserve(&alone, "course", far, "");
    let clusters = [&alone, &simple, &ours];
    // More long tasks than short ones, so that it is worth it to keep them off the node.
    let arrays = clusters.map(|slurm| [submit(slurm, "daemon", 32, 16.0, &[]), submit(slurm, "games", 24, 5.0, &[])]);
    let file = |host: &str| format!("reservations = {{ file = {:?} }}\n", pair.bench.path(&format!("{host}.csv")));
    fill(&pair, &simple, "simple", HOSTS[0], &format!("{}draining = 'at_begin'", file("d2")));
    fill(&pair, &ours, "ours", HOSTS[1], &file("e2"));
    until("Gleaner has looked at both", || {
        ["simple", "ours"].iter().all(|job| !pair.job(job)["status"]["progress"].is_null())
    });
    let looked_s = now_s();
    until("Gleaner has seen enough tasks end", || {
        (1..3).all(|which| arrays[which].iter().all(|array| array.ended_after(clusters[which], looked_s) >= LEARNT))
    });
    let lease = ((now_s() + NOTICE_S).ceil(), (now_s() + NOTICE_S + LEASE_S).ceil());
    HOSTS.iter().for_each(|hosts| lease_in_file(&pair, hosts[1], lease));
    let [start, end] =
        [("StartTime", lease.0), ("EndTime", lease.1)].map(|(name, at_s)| format!("{name}={}", local(at_s)));
    alone.ask("scontrol", &["update", "ReservationName=course", &start, &end]);
    let mut seen = BTreeMap::new();
    let is_done = || clusters.iter().zip(&arrays).all(|(slurm, own)| own.iter().all(|array| array.is_done(slurm)));
    let waited = Instant::now();
    while !is_done() {
        assert!(waited.elapsed() < LONGEST, "{}\n{}", pair.events(), ours.ask("squeue", &["-a"]));
        let leased = &pair.job("ours")["status"]["progress"]["leases"][0];
        let is_near = leased["begins"].as_f64().is_some_and(|begins_ms| (begins_ms / 1e3 - lease.0).abs() < 1.0);
        if let Some(stage) = leased["stage"].as_str().filter(|_| is_near) {
            seen.entry(stage.to_owned()).or_insert(leased.clone());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("{seen:?}");
    let of = |which: usize| filled(clusters[which], &arrays[which], began_s, lease);
    let [alone_filled, simple_filled, ours_filled] = [0, 1, 2].map(of);
    for (name, filled) in [("Slurm alone", &alone_filled), ("at the begin", &simple_filled), ("ours", &ours_filled)] {
        println!("{name}: {filled:.1?}");
    }
    assert_eq!((alone_filled.done, alone_filled.ended), (0.0, 0), "its limits reach into the reservation");
    assert!(ours_filled.done > 0.0 && simple_filled.ended > 0);
    assert!(ours_filled.lost < simple_filled.lost, "{ours_filled:?} {simple_filled:?}");
    assert!(["open", "draining", "leased"].iter().all(|stage| seen.contains_key(*stage)), "{seen:?}");
    until("both jobs are over", || {
        ["simple", "ours"].iter().all(|job| pair.job(job)["status"]["phase"] == "completed")
    });
    until("all nodes are open again", || {
        [&simple, &ours].iter().all(|slurm| {
            slurm.ask("sinfo", &["-h", "-N", "-n", "d1,d2", "-o", "%T"]).lines().all(|state| state == "idle")
        })
    });
    reserved_in_slurm(&pair, &alone);
}

/// Puts a file of one lease in place of what is there.
fn lease_in_file(pair: &Pair, host: &str, (start_s, end_s): (f64, f64)) {
    let new = format!("{host}.new");
    pair.bench.write(&new, &format!("lease,start_s,end_s,hosts\ncourse,{start_s},{end_s},{host}\n"));
    std::fs::rename(pair.bench.path(&new), pair.bench.path(&format!("{host}.csv"))).unwrap();
}

/// A time as `scontrol` takes it.
fn local(at_s: f64) -> String {
    let output = std::process::Command::new("date").args(["-d", &format!("@{at_s}"), "+%Y-%m-%dT%H:%M:%S"]).output();
    text(&output.unwrap().stdout).trim().to_owned()
}

fn reserve(slurm: &Slurm, name: &str, (start_s, end_s): (f64, f64), flags: &str) {
    let (name, start) = (format!("ReservationName={name}"), format!("StartTime={}", local(start_s)));
    let (end, nodes) = (format!("EndTime={}", local(end_s)), format!("Nodes={LEASED}"));
    let mut arguments = vec!["create", &name, &start, &end, &nodes, "Users=root"];
    let flags = format!("Flags={flags}");
    arguments.extend((!flags.ends_with('=')).then_some(flags.as_str()));
    slurm.ask("scontrol", &arguments);
}

/// A reservation that comes over tasks that run: they are run again before it begins, its own job starts on its node, and after it tasks do
/// again.
fn reserved_in_slurm(pair: &Pair, slurm: &Slurm) {
    let array = submit(slurm, "daemon", 8, 40.0, &[]);
    fill(pair, slurm, "reserved", HOSTS[0], "reservations = 'slurm'");
    until("both nodes have tasks, and Gleaner has looked", || {
        let is_known = !pair.job("reserved")["status"]["progress"].is_null();
        is_known && (1..=8).all(|task| !array.lines(slurm, task).is_empty())
    });
    let start_s = (now_s() + 2.0 * VACATE_S).ceil();
    reserve(slurm, "seminar", (start_s, start_s + 600.0), "IGNORE_JOBS");
    println!("{}", slurm.ask("scontrol", &["show", "reservation", "--oneliner"]).trim());
    let own = submit(slurm, "root", 1, 1.0, &["--reservation=seminar", "--exclusive", "--time=1"]);
    until("the reservation's own job has run", || own.is_done(slurm));
    println!("the reservation's own job began {:.1} s after it", own.lines(slurm, 1)[0].at_s - start_s);
    let id = own.id.to_string();
    until("it has left its node", || slurm.ask("squeue", &["-h", "-t", "R,CG", "-j", &id]).trim().is_empty());
    let end_s = now_s();
    slurm.ask("scontrol", &["delete", "ReservationName=seminar"]);
    until("all tasks are done", || array.is_done(slurm));
    let filled = filled(slurm, &[array], start_s, (start_s, end_s));
    println!("{filled:.1?}");
    assert_eq!(filled.ended, 4, "those on its node");
    until("the job is over", || pair.job("reserved")["status"]["phase"] == "completed");
}
