//! A batch job on a real Xen control domain, booted under software emulation, from the submission to its end: the agent and the
//! aggregator run in it, a volunteer domain counts the words of texts that the control domain's network brings it, and a
//! foreground domain measures its own response time: alone, beside a volunteer that nobody guards, and beside the job.
//! Every text's words are counted once. Figures are printed as they are found.

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

/// The host that is dedicated to the job, of which an agent that only observes speaks.
const DEDICATED: &str = "old-machine";
/// The engine's folder in the control domain.
const FOLDER: &str = "/tmp/job";
/// Texts.
const TASKS: usize = 30;
/// Lines of a page, words of a line, and how often a text repeats its page: some seconds of an emulated CPU.
const LINES: usize = 16;
const WORDS_OF_A_LINE: usize = 500;
const PAGES: usize = 10;
/// Different words.
const VOCABULARY: u64 = 64;
/// How long the foreground is measured without Gleaner, at a time.
const PHASE: Duration = Duration::from_secs(20);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(180);
/// Requests of the foreground in a second.
const RATE: f64 = 2.5;
/// By how much an unguarded volunteer slows the foreground's mean response where the two are compared.
const LEAST_SLOWER_PERCENT: f64 = 15.0;
/// A domain's weight where nobody says another.
const USUAL_WEIGHT: u32 = 256;
/// The foreground's domain and the volunteer's, and their addresses' last parts.
const FRONT: (&str, u32) = ("front", 2);
const VOLUNTEER: (&str, u32) = ("batch", 3);

/// Waits for a condition that costs the emulated CPUs little, or fails with what the daemons said.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > deadline {
            println!("{}", sh("tail -n 30 /tmp/*.log; xl list; uptime; tail -n 20 /tmp/job/log || true"));
            println!("{}", sh("cd /tmp/.tmp*/ && /gleaner --socket a.sock explain words 2>&1 || true"));
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
            *counts.entry(word).or_default() += PAGES;
        }
        lines.push('\n');
    }
    (lines.repeat(PAGES), counts)
}

/// Makes the engine's folder with its texts; what to find in each.
fn texts() -> Vec<BTreeMap<String, usize>> {
    sh(&format!("mkdir -p {FOLDER}/tasks {FOLDER}/counts"));
    fs::write(format!("{FOLDER}/hosts"), format!("{HOST} 10.9.0.{}\n{DEDICATED} 127.0.0.1\n", VOLUNTEER.1)).unwrap();
    fs::write("/tmp/any.txt", words(TASKS).0).unwrap();
    let write = |number: usize| {
        let (lines, counts) = words(number);
        fs::write(format!("{FOLDER}/tasks/{number}"), lines).unwrap();
        counts
    };
    (0..TASKS).map(write).collect()
}

/// What the engine wrote about texts.
fn log() -> Vec<String> {
    let told = fs::read_to_string(format!("{FOLDER}/log")).unwrap_or_default();
    told.lines().map(str::to_owned).collect()
}

fn done() -> Vec<String> {
    log().into_iter().filter(|line| line.contains(" done on ")).collect()
}

fn done_by(host: &str) -> usize {
    done().iter().filter(|line| line.contains(host)).count()
}

fn console(name: &str) -> String {
    text(&fs::read(format!("/var/log/xen/console/guest-{name}.log")).unwrap_or_default())
}

/// CPU seconds that the control domain, the foreground and the volunteer have used.
fn cpu_s() -> [f64; 3] {
    let list = sh("xl list");
    ["Domain-0", FRONT.0, VOLUNTEER.0].map(|name| {
        let line = list.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    })
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

/// What the foreground saw.
#[derive(Debug)]
struct Seen {
    /// Response times of its requests, in ms.
    responses: Vec<f64>,
    /// CPU that the control domain, the foreground and the volunteer used, over this time.
    cpu_s: [f64; 3],
    time_s: f64,
}

impl Seen {
    /// For as long as this is so, looked at each second.
    fn during(mut going_on: impl FnMut(Duration) -> bool) -> Self {
        let (start, before, from) = (Instant::now(), cpu_s(), console(FRONT.0).len());
        while going_on(start.elapsed()) {
            std::thread::sleep(Duration::from_secs(1));
        }
        let (printed, time_s, after) = (console(FRONT.0), start.elapsed().as_secs_f64(), cpu_s());
        let times = printed[from..].lines().filter_map(|line| line.trim().strip_prefix("response "));
        let responses = times.filter_map(|time| time.parse::<f64>().ok()).map(|us| us / 1e3).collect();
        Self { responses, cpu_s: std::array::from_fn(|which| after[which] - before[which]), time_s }
    }

    /// Goes on with it.
    fn add(&mut self, more: Self) {
        self.responses.extend(more.responses);
        self.cpu_s = std::array::from_fn(|which| self.cpu_s[which] + more.cpu_s[which]);
        self.time_s += more.time_s;
    }

    fn phase() -> Self {
        Self::during(|elapsed| elapsed < PHASE)
    }

    fn mean(&self) -> f64 {
        self.responses.iter().sum::<f64>() / self.responses.len() as f64
    }

    /// The time within which so many percent of the requests were answered.
    fn within(&self, percent: usize) -> f64 {
        let mut sorted = self.responses.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() * percent / 100]
    }

    /// How much longer than this its mean response is, in percent.
    fn slower_than(&self, alone: &Self) -> f64 {
        100.0 * (self.mean() / alone.mean() - 1.0)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [control, foreground, volunteer] = self.cpu_s.map(|cpu_s| 100.0 * cpu_s / self.time_s);
        write!(
            f,
            "mean {:.1} ms, median {:.1}, 95 of 100 within {:.1}; {} requests in {:.0} s, {:.0} % of those due; CPU: foreground \
             {foreground:.1} %, volunteer {volunteer:.1} %, control domain {control:.1} %",
            self.mean(),
            self.within(50),
            self.within(95),
            self.responses.len(),
            self.time_s,
            100.0 * self.responses.len() as f64 / (RATE * self.time_s),
        )
    }
}

/// A volunteer that nobody guards: it counts words without end, with this weight. What the foreground saw of it, and how
/// many texts were done.
fn unguarded(weight: u32) -> (Seen, usize) {
    sh(&format!("rm -f /tmp/unguarded; xl sched-credit2 -d {0} -w {weight}; xl unpause {0}", VOLUNTEER.0));
    let count = || {
        let script =
            format!("while :; do nc 10.9.0.{} 7000 </tmp/any.txt | grep -x end >>/tmp/unguarded; done", VOLUNTEER.1);
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        Running::start(command)
    };
    let clients = [count(), count()];
    let seen = Seen::phase();
    let texts = fs::read_to_string("/tmp/unguarded").unwrap_or_default().lines().count();
    drop(clients);
    sh(&format!("xl pause {}", VOLUNTEER.0));
    (seen, texts)
}

/// Two domains of the least weight that compute without end, and have neither network nor disk: what the weight is worth where
/// the control domain has nothing to do for the volunteer. What the foreground saw, and what they used in percent of one CPU.
fn beside_loops() -> (Seen, f64) {
    const LOOPS: [&str; 2] = ["loop-1", "loop-2"];
    let start = Instant::now();
    LOOPS.iter().for_each(|name| drop(sh(&format!("mkdom {name} burn && xl sched-credit2 -d {name} -w 1"))));
    let seen = Seen::phase();
    let list = sh("xl list");
    let used = list.lines().filter(|line| LOOPS.iter().any(|name| line.starts_with(name)));
    let used: f64 = used.map(|line| line.split_whitespace().last().unwrap().parse::<f64>().unwrap()).sum();
    let percent = 100.0 * used / start.elapsed().as_secs_f64();
    LOOPS.iter().for_each(|name| drop(sh(&format!("xl destroy {name}"))));
    (seen, percent)
}

fn start_domains() {
    // As is usual for a control domain, which serves the others: more than they have.
    sh("xl sched-credit2 -d Domain-0 -w 2048");
    let start = |(name, host): (&str, u32), files: &str| {
        sh(&format!("VCPUS=2 HOST={host} mkdom {name} linux {files}"));
    };
    start(VOLUNTEER, "/t/worker.sh /t/count.sh");
    start(FRONT, "/t/front.sh /t/front");
    until("the foreground answers requests", || console(FRONT.0).contains("response "));
    until("the worker answers", || {
        sh(&format!("echo a | nc -w 2 10.9.0.{} 7000 || true", VOLUNTEER.1)).contains("end")
    });
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
                "name = 'words'\nprogram = ['/t/engine', '{FOLDER}']\nworking_dir = '{FOLDER}'\nset_up_s = 1\n\
                 max_slots_per_host = 2\nmemory_per_slot_mib = 8\n[goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
                 [[dedicated]]\nhost = '{DEDICATED}'\n"
            ),
        );
        Self { pair, dedicated: None }
    }

    /// A daemon whose log is kept in `/tmp`.
    fn daemon(&self, which: &str, name: &str, more: &str) -> Running {
        let config = self.pair.bench.path(name);
        let script =
            format!("exec /gleaner daemon {which} --config {}.toml {more} >>/tmp/{name}.log 2>&1", config.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        Running::start(command)
    }

    /// One after the other: the agent's helper must answer in time, also when it is started.
    fn start(&mut self) {
        let told =
            |name: &str, what: &str| fs::read_to_string(format!("/tmp/{name}.log")).is_ok_and(|log| log.contains(what));
        // The weight of the packaged unit.
        self.start_agent("a domain is taken");
        self.pair.aggregator = Some(self.daemon("aggregator", "aggregator", ""));
        until("the agent reaches the aggregator", || told("agent", "connected"));
        self.dedicated = Some(self.daemon("agent", "dedicated", ""));
        until("the dedicated host's agent does too", || told("dedicated", "connected"));
    }

    /// Starts it until it says that, with the weight of the packaged unit.
    fn start_agent(&mut self, until_it_says: &str) {
        let times = || fs::read_to_string("/tmp/agent.log").map_or(0, |log| log.matches(until_it_says).count());
        let before = times();
        self.pair.agent = Some(self.daemon("agent", "agent", "--act"));
        sh(&format!("renice -n -10 -p {}", self.pair.agent.as_ref().unwrap().0.id()));
        until(&format!("the agent says `{until_it_says}`"), || times() > before);
    }

    /// As a crash ends it.
    fn kill_agent(&mut self) {
        let agent = self.pair.agent.take().unwrap();
        agent.kill(agent.0.id());
    }

    fn told(&self, arguments: &[&str]) -> String {
        let output = self.pair.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

fn every_text_counts_once(expected: &[BTreeMap<String, usize>]) {
    let mut numbers: Vec<usize> = done().iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..TASKS).collect::<Vec<_>>(), "each text is done once");
    let counted = |number: usize| -> BTreeMap<String, usize> {
        let result = fs::read_to_string(format!("{FOLDER}/counts/{number}")).unwrap();
        let lines = result.lines().filter_map(|line| line.trim().split_once(' '));
        lines.map(|(count, word)| (word.to_owned(), count.parse().unwrap())).collect()
    };
    (0..TASKS).for_each(|number| assert_eq!(counted(number), expected[number], "text {number}"));
}

#[test]
fn a_batch_job_from_inside() {
    if !lab::inside() {
        return;
    }
    let begun = Instant::now();
    let told = |what: &str| println!("[{:3.0} s] {what}", begun.elapsed().as_secs_f64());
    let expected = texts();
    start_domains();
    let dedicated_worker = Running::start({
        let mut command = Command::new("nc");
        command.args(["-ll", "-p", "7000", "-e", "./slow.sh"]).current_dir("/t");
        command
    });
    told("both domains work");
    let found = knobs();
    sh(&format!("xl pause {}", VOLUNTEER.0));
    let alone = Seen::phase();
    told(&format!("alone: {alone}"));
    let (burning, percent) = beside_loops();
    told(&format!(
        "beside loops of weight 1 with {percent:.0} % of a CPU, which ask nothing of the control domain: {burning}; mean {:+.1} %",
        burning.slower_than(&alone)
    ));
    // One line of the toolstack, and nothing else.
    let (least, texts) = unguarded(1);
    let weighed = least.slower_than(&alone);
    told(&format!("beside an unguarded volunteer of weight 1, {texts} texts: {least}; mean {weighed:+.1} %"));
    let (free, texts) = unguarded(USUAL_WEIGHT);
    let slower = free.slower_than(&alone);
    told(&format!("beside an unguarded volunteer of its own weight, {texts} texts: {free}; mean {slower:+.1} %"));

    let mut gleaner = Gleaner::new();
    told("there are certificates");
    // The agent lets no domain run that somebody paused.
    sh(&format!("xl unpause {}", VOLUNTEER.0));
    gleaner.start();
    told("the daemons work");
    let daemons = Seen::phase();
    told(&format!("beside the daemons without a job: {daemons}; mean {:+.1} %", daemons.slower_than(&alone)));
    gleaner.told(&["job", "submit-cluster", "job.toml"]);
    until("the volunteer works", || done_by(HOST) > 0);
    told("the volunteer counts words");
    let before = done_by(HOST);
    let mut guarded = Seen::during(|elapsed| done().len() < TASKS / 3 && elapsed < PATIENCE);
    // What is left of the job is the control domain's: the daemons, the engine, and the dedicated host's worker.
    gleaner.told(&["host", "hold", HOST]);
    let paused = Seen::during(|elapsed| elapsed < PHASE);
    gleaner.told(&["host", "release", HOST]);
    let control = paused.slower_than(&alone);
    told(&format!("beside the job while the host is held: {paused}; mean {control:+.1} %"));
    guarded.add(Seen::during(|elapsed| done().len() < TASKS * 4 / 5 && elapsed < PATIENCE));
    let (texts, held) = (done_by(HOST) - before, guarded.slower_than(&alone));
    told(&format!(
        "beside the job, {texts} texts: {guarded}; mean {held:+.1} % (RHIC's goal on Xen: 1 %), {:+.1} % over that of the held host",
        guarded.slower_than(&paused)
    ));
    println!("{}", gleaner.told(&["guests"]));
    println!("{}", gleaner.told(&["hosts"]));
    let killed = Instant::now();
    gleaner.kill_agent();
    until("its keeper leaves the domains as found", || knobs() == found);
    told(&format!(
        "the agent was killed in the midst of the job; {} ms later the domains are as found",
        killed.elapsed().as_millis()
    ));
    gleaner.start_agent("connected");
    told("another agent has connected");
    until("all texts are done", || done().len() == TASKS);
    println!("{}", log().join("\n"));
    let ended = || gleaner.told(&["job", "show", "words"]);
    let completed = || gleaner.pair.job("words")["status"]["phase"] == "completed";
    until("the job ends", completed);
    println!("{}\n{}", ended(), gleaner.told(&["explain", "words"]));
    let sizes = gleaner.pair.events();
    sizes.lines().filter(|line| line.contains("\"job_sized\"")).for_each(|line| println!("{line}"));
    every_text_counts_once(&expected);
    told(&format!(
        "every text is counted once: {} by the volunteer, {} by the dedicated host",
        done_by(HOST),
        done_by(DEDICATED)
    ));
    println!("{}", sh("grep -h -e WARN -e ERROR /tmp/*.log || true"));
    drop(gleaner);
    drop(dedicated_worker);
    until("a stop in order leaves the domains as found", || knobs() == found);
    told("the daemons are stopped, and the domains as they were found");
    if slower < LEAST_SLOWER_PERCENT {
        gleaner_test_support::skipped!(
            "whether a guard helps: an unguarded volunteer did too little here to judge by ({slower:.1} %)"
        );
        return;
    }
    assert!(held < slower, "{held:.1} % slower beside the job, {slower:.1} % beside a volunteer that nobody guards");
}

/// `gleaner` as it is released, because an emulated control domain is too slow for the daemons of a debug build: that of
/// another build where one is given, or built here.
fn optimized_program() -> Result<PathBuf, String> {
    if let Some(built) = std::env::var_os("GLEANER_LAB_PROGRAM") {
        return Ok(built.into());
    }
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let mut command = Command::new(env!("CARGO"));
    // As whoever runs the demo builds it, so that it is built once.
    command.args(["build", "--release", "--quiet", "--locked", "--bin", "gleaner", "--target-dir"]).arg(target);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let built = command.output().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if built.status.success() { Ok(target.join("release/gleaner")) } else { Err(text(&built.stderr)) }
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
    let compile = |name: &str| -> PathBuf {
        let (source, program) = (lab::script(&format!("xen/job/{name}.c")), lab::cache(name));
        sh(&format!("gcc -O2 -Wall -static -pthread {} -o {}", source.display(), program.display()));
        program
    };
    let gleaner = match optimized_program() {
        Ok(gleaner) => lab::stripped("gleaner", &gleaner),
        Err(why) => panic!("{why}"),
    };
    let program = std::env::current_exe().unwrap();
    let mut files =
        vec![gleaner, lab::stripped("xen-job-tests", &program), helper, compile("front"), compile("engine")];
    files.extend(["front", "worker", "count", "slow"].map(|name| lab::script(&format!("xen/job/{name}.sh"))));
    let mut command = Command::new(lab::script("xen/host.sh"));
    command.args(["-l", "-v", "2", "-T", "1200"]).arg(&images).arg(lab::script("xen/job-tests.sh")).args(&files);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, lab::quoted(&output));
    println!("{}", text(&output.stdout));
}
