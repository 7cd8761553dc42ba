//! A batch job on a real Xen control domain, booted under software emulation, from the submission to its end: the agent and the
//! aggregator run in it, a volunteer domain counts the words of texts that the control domain's network brings it, and a
//! foreground domain measures its own response time. The volunteer is held on the way, and every text's words
//! are counted once. Figures are printed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{Running, text};
use gleaner_test_support::lab;
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

/// The host that is dedicated to the job, of which an agent that only observes speaks.
const DEDICATED: &str = "old-machine";
/// The engine's folder in the control domain.
const FOLDER: &str = "/tmp/job";
/// Texts.
const TASKS: usize = 24;
/// Lines of a text, and words of a line: some seconds of an emulated CPU.
const LINES: usize = 16;
const WORDS_OF_A_LINE: usize = 500;
/// Different words.
const VOCABULARY: u64 = 64;
/// How long the foreground is measured at a time.
const PHASE: Duration = Duration::from_secs(8);
/// As often it is measured in each arrangement.
const ROUNDS: usize = 2;
/// The part of its CPU alone that the foreground has beside the job. A noisy emulator takes some of it.
const LEAST_CPU: f64 = 0.8;
/// By how much an unguarded volunteer slows the foreground where the two are compared.
const LEAST_SLOWER_PERCENT: f64 = 15.0;
/// The part of that which a guarded one may do, whose daemons share the control domain's one virtual CPU.
const MOST_PART: f64 = 0.8;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(90);
/// Requests of the foreground in a second.
const RATE: f64 = 5.0;
/// The foreground's domain and the volunteer's, and their addresses' last parts.
const FRONT: (&str, u32) = ("front", 2);
const VOLUNTEER: (&str, u32) = ("batch", 3);

/// Waits for a condition, or fails with what the daemons said.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > deadline {
            println!("{}", sh("tail -n 30 /tmp/*.log; xl list; free -m; cat /tmp/job/log || true"));
            let ask = |what: &str| sh(&format!("/gleaner --socket /tmp/*/a.sock {what} 2>&1 || true"));
            println!("{}\n{}\n{}", ask("hosts"), ask("explain words"), ask("events --json"));
            panic!("{what}: not within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// What a text's words are, and how often each is in it.
fn words(number: usize) -> (String, BTreeMap<String, usize>) {
    let mut seed = number as u64 + 1;
    let (mut lines, mut counts) = (String::new(), BTreeMap::new());
    for _ in 0..LINES {
        for _ in 0..WORDS_OF_A_LINE {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = format!("word{}", (seed >> 33) % VOCABULARY);
            lines.push_str(&word);
            lines.push(' ');
            *counts.entry(word).or_default() += 1;
        }
        lines.push('\n');
    }
    (lines, counts)
}

/// Makes the engine's folder with its texts; what to find in each.
fn texts() -> Vec<BTreeMap<String, usize>> {
    for host in [HOST, DEDICATED] {
        sh(&format!(
            "cd {FOLDER} && mkdir -p hosts tasks counts seconds open starts running/{host} done/{host} pids/{host}"
        ));
    }
    let write = |number: usize| {
        let (lines, counts) = words(number);
        fs::write(format!("{FOLDER}/tasks/{number}"), lines).unwrap();
        counts
    };
    let address = format!("10.9.0.{}", VOLUNTEER.1);
    fs::write(format!("{FOLDER}/hosts/{HOST}"), format!("nc {address} 7000\nnc -w 1 {address} 7001\n")).unwrap();
    fs::write(format!("{FOLDER}/hosts/{DEDICATED}"), "./slow.sh\necho here\n").unwrap();
    (0..TASKS).map(write).collect()
}

fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("{FOLDER}/{folder}")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

fn done_by(host: &str) -> usize {
    files(&format!("done/{host}")).len()
}

/// Texts that were lost on a host on the way.
fn lost() -> usize {
    fs::read_to_string(format!("{FOLDER}/log")).unwrap().lines().filter(|line| line.contains("was lost")).count()
}

fn console(name: &str) -> String {
    text(&fs::read(format!("/var/log/xen/console/guest-{name}.log")).unwrap_or_default())
}

/// CPU seconds of the foreground.
fn cpu_s() -> f64 {
    sh(&format!("xl list {} | awk 'NR == 2 {{ print $6 }}'", FRONT.0)).parse().unwrap()
}

/// Everything of the domains that could have been changed.
fn knobs() -> String {
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    sh(&format!(
        "for domain in {} {}; do xl sched-{scheduler} -d $domain; xenstore-read /local/domain/$(xl domid $domain)/memory/target; \
         xl list $domain | awk 'NR == 2 {{ print $3, substr($5, 3, 1) }}'; done",
        FRONT.0, VOLUNTEER.0
    ))
}

fn volunteer_is_paused() -> bool {
    sh(&format!("xl list {} | awk 'NR == 2 {{ print substr($5, 3, 1) }}'", VOLUNTEER.0)) == "p"
}

/// What the foreground saw.
#[derive(Debug, Default)]
struct Seen {
    /// Response times of its requests, in ms.
    responses: Vec<f64>,
    /// CPU that it used, over this time.
    cpu_s: f64,
    time_s: f64,
}

impl Seen {
    fn measure(&mut self, over: Duration) {
        let (from, start, before) = (console(FRONT.0).len(), Instant::now(), cpu_s());
        std::thread::sleep(over);
        (self.cpu_s, self.time_s) = (self.cpu_s + cpu_s() - before, self.time_s + start.elapsed().as_secs_f64());
        let printed = console(FRONT.0);
        let times = printed[from..].lines().filter_map(|line| line.trim().strip_prefix("response "));
        self.responses.extend(times.filter_map(|time| time.parse::<f64>().ok()).map(|us| us / 1e3));
    }

    fn mean(&self) -> f64 {
        self.responses.iter().sum::<f64>() / self.responses.len() as f64
    }

    /// The time within which this part of the requests was answered.
    fn within(&self, part: f64) -> f64 {
        let mut sorted = self.responses.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() as f64 * part) as usize]
    }

    fn cpu_percent(&self) -> f64 {
        100.0 * self.cpu_s / self.time_s
    }

    /// Answered requests of those that were due.
    fn answered(&self) -> f64 {
        self.responses.len() as f64 / (RATE * self.time_s)
    }

    /// Longer than this by so much, in percent.
    fn slower_than(&self, alone: &Self) -> [f64; 3] {
        let of = |figure: fn(&Self) -> f64| 100.0 * (figure(self) / figure(alone) - 1.0);
        [of(Self::mean), of(|seen| seen.within(0.5)), of(|seen| seen.within(0.95))]
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mean {:.1} ms, median {:.1}, 95 of 100 within {:.1}; {} requests, {:.0} % of those due; {:.1} % of a CPU",
            self.mean(),
            self.within(0.5),
            self.within(0.95),
            self.responses.len(),
            100.0 * self.answered(),
            self.cpu_percent(),
        )
    }
}

/// A volunteer that nobody guards: it counts words without end, with a domain's usual weight.
struct Unguarded(Vec<Running>);

impl Unguarded {
    fn start() -> Self {
        sh(&format!("xl unpause {}", VOLUNTEER.0));
        let count = || {
            let script = format!("while :; do nc 10.9.0.{} 7000 </tmp/any.txt >/dev/null; done", VOLUNTEER.1);
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            Running::start(command)
        };
        Self(vec![count(), count()])
    }
}

impl Drop for Unguarded {
    fn drop(&mut self) {
        self.0.clear();
        sh(&format!("xl pause {}", VOLUNTEER.0));
    }
}

fn start_domains() {
    // As is usual for a control domain, which serves the others.
    sh("xl sched-credit2 -d Domain-0 -w 1024");
    let start = |(name, host): (&str, u32), files: &str| {
        sh(&format!("VCPUS=2 HOST={host} mkdom {name} linux {files}"));
    };
    start(VOLUNTEER, "/t/worker.sh /t/count.sh");
    start(FRONT, "/t/front.sh /t/front");
    until("the foreground answers requests", || console(FRONT.0).contains("response "));
    worker_answers();
}

fn worker_answers() {
    until("the worker answers", || {
        sh(&format!("echo a | nc -w 1 10.9.0.{} 7000 || true", VOLUNTEER.1)).contains("end")
    });
}

/// The foreground alone and beside a volunteer that nobody guards, in turn.
fn without_gleaner(alone: &mut Seen, unguarded: &mut Seen) {
    sh(&format!("xl pause {}", VOLUNTEER.0));
    alone.measure(PHASE);
    let volunteer = Unguarded::start();
    std::thread::sleep(Duration::from_secs(1));
    unguarded.measure(PHASE);
    drop(volunteer);
}

/// The daemons, and a job with them.
struct Gleaner {
    pair: Pair,
    dedicated: Option<Running>,
}

impl Gleaner {
    fn new() -> Self {
        let pair = Pair::new(&[HOST, DEDICATED]);
        let dir = pair.bench.folder.path().display().to_string();
        let config = |name: &str, more: &str| {
            format!(
                "state_dir = '{dir}/{name}-state'\n[host]\nname = '{name}'\n[aggregator]\naddress = '127.0.0.1:{}'\n\
                 ca = '{dir}/pki/ca.crt'\ncertificate = '{dir}/pki/{name}.crt'\nkey = '{dir}/pki/{name}.key'\n{more}",
                pair.port
            )
        };
        let volunteer = format!("[volunteer]\nkind = 'domain'\ndomains = ['{}']\nmemory_floor_mib = 32\n", VOLUNTEER.0);
        pair.bench.write("agent.toml", &config(HOST, &volunteer));
        pair.bench.write("dedicated.toml", &config(DEDICATED, ""));
        pair.bench.write(
            "job.toml",
            &format!(
                "name = 'words'\nprogram = ['{FOLDER}/engine.sh', '{FOLDER}']\nworking_dir = '{FOLDER}'\nset_up_s = 1\n\
                 max_slots_per_host = 2\nmemory_per_slot_mib = 8\n[goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
                 [[dedicated]]\nhost = '{DEDICATED}'\n"
            ),
        );
        Self { pair, dedicated: None }
    }

    /// A daemon whose log is kept in `/tmp`.
    fn daemon(&self, which: &str, config: &str, more: &str) -> Running {
        let config = self.pair.bench.path(config);
        let script = format!(
            "exec /gleaner daemon {which} --config {} {more} >>/tmp/$(basename {}).log 2>&1",
            config.display(),
            config.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        Running::start(command)
    }

    /// The agent first: its helper must answer in time, also when it is started, and nothing else starts beside it.
    fn start(&mut self) {
        self.pair.agent = Some(self.daemon("agent", "agent.toml", "--act"));
        until("the agent has taken the volunteer, and paused it", volunteer_is_paused);
        self.pair.aggregator = Some(self.daemon("aggregator", "aggregator.toml", ""));
        until("the aggregator answers", || self.pair.ask(&["job", "list"]).status.success());
        self.dedicated = Some(self.daemon("agent", "dedicated.toml", ""));
        until("both hosts report", || {
            self.pair.hosts().iter().filter(|host| host["connected"] == true && !host["report"].is_null()).count() == 2
        });
    }

    fn order(&self, arguments: &[&str]) {
        let output = self.pair.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }

    fn status(&self) -> Value {
        self.pair.job("words")["status"].clone()
    }
}

fn held_tasks_go_on(gleaner: &Gleaner) {
    until("two texts are under way", || files(&format!("running/{HOST}")).len() == 2);
    gleaner.order(&["host", "hold", HOST]);
    until("a held volunteer is paused", volunteer_is_paused);
    let under_way = files(&format!("running/{HOST}"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(files(&format!("running/{HOST}")), under_way);
    gleaner.order(&["host", "release", HOST]);
    until("what was under way goes on", || {
        let done = files(&format!("done/{HOST}"));
        under_way.iter().all(|task| done.contains(task))
    });
    println!("held with {} texts under way, which ended after it: none was lost", under_way.len());
    assert_eq!(lost(), 0);
}

fn every_text_counts_once(expected: &[BTreeMap<String, usize>]) {
    assert_eq!(done_by(HOST) + done_by(DEDICATED), TASKS);
    let counted = |number: usize| -> BTreeMap<String, usize> {
        let result = fs::read_to_string(format!("{FOLDER}/counts/{number}")).unwrap();
        let lines = result.lines().filter_map(|line| line.trim().split_once(' '));
        lines.map(|(count, word)| (word.to_owned(), count.parse().unwrap())).collect()
    };
    assert_eq!(files("counts").len(), TASKS);
    (0..TASKS).for_each(|number| assert_eq!(counted(number), expected[number], "text {number}"));
}

#[test]
fn a_batch_job_from_inside() {
    if !lab::inside() {
        return;
    }
    let begun = Instant::now();
    let told = |what: &str| println!("[{:3.0} s] {what}", begun.elapsed().as_secs_f64());
    sh(&format!("mkdir -p {FOLDER} && cp /t/*.sh {FOLDER}/"));
    let expected = texts();
    fs::write("/tmp/any.txt", words(TASKS).0).unwrap();
    told("the texts are written");
    start_domains();
    told("both domains work");
    let [mut alone, mut unguarded, mut resting, mut guarded] = std::array::from_fn(|_| Seen::default());
    without_gleaner(&mut alone, &mut unguarded);
    sh(&format!("xl unpause {}", VOLUNTEER.0));
    let found = knobs();
    told("measured without Gleaner");

    let mut gleaner = Gleaner::new();
    told("there are certificates");
    gleaner.start();
    told("both daemons work");
    resting.measure(PHASE);
    gleaner.order(&["job", "submit-cluster", "job.toml"]);
    until("the volunteer works", || done_by(HOST) > 0);
    told("the volunteer counts words");
    (0..ROUNDS).for_each(|_| guarded.measure(PHASE));
    println!("{}", text(&gleaner.pair.ask(&["explain", "words"]).stdout));
    held_tasks_go_on(&gleaner);
    told("held and released");
    until("the job ends", || gleaner.status()["phase"] == "completed");
    told("the job is done");
    every_text_counts_once(&expected);
    println!("{}", text(&gleaner.pair.ask(&["job", "show", "words"]).stdout));
    let sizes = gleaner.pair.events().lines().filter(|line| line.contains("\"job_sized\"")).count();
    println!(
        "{TASKS} texts: {} by the volunteer, {} by the dedicated host; {sizes} sizes told",
        done_by(HOST),
        done_by(DEDICATED)
    );
    drop(gleaner);
    until("a stop in order leaves the domains as found", || knobs() == found);
    (1..ROUNDS).for_each(|_| without_gleaner(&mut alone, &mut unguarded));
    let all = [
        ("alone", &alone),
        ("beside an unguarded volunteer of its own weight", &unguarded),
        ("Gleaner runs, the volunteer is paused", &resting),
        ("beside the job", &guarded),
    ];
    for (which, seen) in all {
        let [mean, median, late] = seen.slower_than(&alone);
        println!("{which}: {seen}; mean {mean:+.1} %, median {median:+.1} %, 95 of 100 {late:+.1} %");
    }
    told("measured");
    assert!(guarded.cpu_percent() > LEAST_CPU * alone.cpu_percent(), "the foreground has its CPU");
    let [free, _, _] = unguarded.slower_than(&alone);
    let [held, _, _] = guarded.slower_than(&alone);
    if free < LEAST_SLOWER_PERCENT {
        gleaner_test_support::skipped!(
            "whether a guard helps: an unguarded volunteer did too little here to judge by ({free:.1} %)"
        );
        return;
    }
    assert!(
        held < MOST_PART * free,
        "{held:.1} % slower beside the job, {free:.1} % beside a volunteer that nobody guards"
    );
}

#[test]
fn a_batch_job_runs_in_a_xen_domain_beside_a_foreground_that_measures_itself() {
    const TEST: &str = "a_batch_job_runs_in_a_xen_domain_beside_a_foreground_that_measures_itself";
    if lab::inside() || !gleaner_test_support::beds::wanted(TEST) {
        return;
    }
    let Some(images) = lab::xen_images(TEST) else { return };
    let helper = match lab::build_xen_helper() {
        Ok(helper) => helper,
        Err(why) => {
            gleaner_test_support::skipped!("{TEST}: {why}");
            return;
        }
    };
    let strip = |name: &str, file: &Path| -> PathBuf {
        let small = lab::cache(name);
        sh(&format!("strip -o {} {}", small.display(), file.display()));
        small
    };
    let front = lab::cache("front");
    sh(&format!("gcc -O2 -Wall -static -pthread {} -o {}", lab::script("xen/job/front.c").display(), front.display()));
    let program = std::env::current_exe().unwrap();
    // Of another build, where one is given.
    let built = std::env::var_os("GLEANER_LAB_PROGRAM").map(PathBuf::from);
    let gleaner = strip("gleaner", &built.unwrap_or_else(|| program.ancestors().nth(2).unwrap().join("gleaner")));
    let mut files = vec![gleaner, strip("xen-job-tests", &program), helper, front];
    let scripts = ["front", "worker", "count", "slow", "engine", "dispatch"];
    files.extend(scripts.map(|name| lab::script(&format!("xen/job/{name}.sh"))));
    let mut command = Command::new(lab::script("xen/host.sh"));
    command.args(["-l", "-T", "600"]).arg(&images).arg(lab::script("xen/job-tests.sh")).args(&files);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}\n{said}{}", output.status, text(&output.stderr));
    println!("{said}");
}
