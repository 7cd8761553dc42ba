//! A real Xen control domain with guests, booted under software emulation: the agent and its helper show and limit
//! domains, and leave them as they were.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gleaner_test_support::lab;
use serde_json::Value;

use crate::guests::{agent, number, sh, until};
use crate::xen_foreground::a_hypervisor_of_another_interface_version_is_told;

pub(crate) fn run(arguments: &[&str]) -> String {
    std::fs::write("/tmp/agent.toml", "state_dir = \"/tmp/state\"\n[foreground]\nmemory_floor_mib = 16\n").unwrap();
    let output = Command::new(agent()).args(["--config", "/tmp/agent.toml"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn attempt(arguments: &[&str]) -> Value {
    let said = run(&[&["try", "one", "--json"], arguments].concat());
    println!("{arguments:?}: {}", said.trim());
    serde_json::from_str(&said).unwrap()
}

/// CPU seconds of a domain, as xl tells them.
fn xl_seconds(name: &str) -> f64 {
    sh(&format!("xl list {name} | awk 'NR == 2 {{ print $6 }}'")).parse().unwrap()
}

/// Time around an edge that says well enough when it was. Under emulation a look takes a tenth of a second. Where the machine
/// is too busy for that, a longer one does in the end: a sixtieth of the time that was spent on it.
const EDGE: Duration = Duration::from_millis(500);
const EDGE_PART: u32 = 60;

/// xl's figure, which has one decimal, when it next changes, and the two moments between which it did.
fn xl_edge(name: &str) -> (f64, [Instant; 2]) {
    let start = Instant::now();
    let mut asked = start;
    let mut figure = xl_seconds(name);
    let mut earliest = asked;
    until("the domain's CPU time moves", || {
        (earliest, asked) = (asked, Instant::now());
        let before = std::mem::replace(&mut figure, xl_seconds(name));
        figure > before && earliest.elapsed() < EDGE.max(start.elapsed() / EDGE_PART)
    });
    (figure, [earliest, Instant::now()])
}

/// Everything that could have been changed on a domain.
pub(crate) fn knobs(name: &str) -> String {
    let scheduler = sh("xl info | sed -n 's/^xen_scheduler *: *//p'");
    sh(&format!(
        "xl sched-{scheduler} -d {name}; xenstore-read /local/domain/$(xl domid {name})/memory/target; \
         xl list {name} | awk 'NR == 2 {{ print $3, substr($5, 3, 1) }}'"
    ))
}

fn figures_agree() {
    let (before, start) = xl_edge("one");
    let said = run(&["observe", "--count", "11"]);
    let (after, end) = xl_edge("one");
    let percent = |from: Instant, to: Instant| (after - before) * 100.0 / (to - from).as_secs_f64();
    let (least, most) = (percent(start[0], end[1]), percent(start[1], end[0]));
    let reports: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| {
        let workloads = reports.iter().flat_map(|report| report["workloads"].as_array().unwrap());
        let own = workloads.filter(|workload| workload["id"] == name && workload["kind"] == "xen_domain");
        let values: Vec<f64> = own.filter_map(|workload| workload["cpu"]["value"].as_f64()).collect();
        assert!(!values.is_empty(), "{name} in {said}");
        values.iter().sum::<f64>() / values.len() as f64
    };
    let own = of("one");
    println!("cpu of one: agent {own:.2}, xl {least:.2} to {most:.2}; of two: agent {:.2}", of("two"));
    assert!(own > 0.98 * least && own < 1.02 * most, "agent {own}, xl {least} to {most}");
    let machine = &reports.last().unwrap()["machine"];
    assert_eq!(machine["cpu_capacity"], 200.0, "the hypervisor's CPUs, not the control domain's one");
    assert!(machine["cpu_busy"]["value"].as_f64().unwrap() > 90.0, "both guests are in it: {machine}");
    assert!(!said.contains("Domain-0"), "the control domain is no workload");
}

fn levers_bite() {
    let found = knobs("one");
    let cpu = attempt(&["--for", "8", "--cpu", "30"]);
    assert!((number(&cpu, "during", "cpu_percent") - 30.0).abs() < 4.0, "{cpu}");
    assert_eq!(cpu["in_force"]["quota"]["at_most"], 30.0);
    // Weights of credit compare over the whole pool, so there a ratio says nothing.
    let weight = attempt(&["--for", "8", "--cpu-weight", "400"]);
    if sh("xl info").contains("credit2") {
        // Half of the CPU before and four fifths during, however much of it a slow emulator leaves to both.
        let grown = number(&weight, "during", "cpu_percent") / number(&weight, "before", "cpu_percent");
        assert!((1.4..1.8).contains(&grown), "400 to 100: {weight}");
    }
    let memory = attempt(&["--for", "3", "--memory", "24M"]);
    let in_force = memory["in_force"]["memory"].as_f64().unwrap() / f64::from(1 << 20);
    assert!((28.0..32.0).contains(&in_force), "one step of 2 %: {memory}");
    assert_eq!(knobs("one"), found, "everything is as it was");

    let arguments = ["--config", "/tmp/agent.toml", "try", "one", "--for", "600", "--cpu", "20", "--cpu-weight", "50"];
    let mut held = Command::new(agent()).args(arguments).stdout(Stdio::null()).spawn().unwrap();
    until("the cap is in force", || knobs("one") != found);
    held.kill().unwrap();
    held.wait().unwrap();
    until("the keeper has put everything back", || knobs("one") == found);
}

/// CPU of one sample in ms, over many.
fn cost_of_a_sample() -> f64 {
    let helper = agent().with_file_name("gleaner-agent-xen");
    let mut child = Command::new(helper).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    let mut ask = |line: &str| {
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        answer
    };
    let absent = ask(r#"{"set":{"uuid":"00000000-0000-0000-0000-00000000beef","cap_percent":1}}"#);
    assert!(absent.contains("absent"), "{absent}");
    let control = ask(r#"{"set":{"uuid":"00000000-0000-0000-0000-000000000000","paused":true}}"#);
    assert!(control.contains("forbidden"), "{control}");
    ask(r#"{"sample":{}}"#);
    let cpu_ms = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", child.id())).unwrap();
        stat.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e6
    };
    let before = cpu_ms();
    for _ in 0..500 {
        assert!(ask(r#"{"sample":{}}"#).contains("domains"));
    }
    let cost = (cpu_ms() - before) / 500.0;
    child.kill().unwrap();
    child.wait().unwrap();
    cost
}

fn pausing_stops_a_domain() {
    let uuid = sh("xl vm-list | awk '$3 == \"two\" { print $1 }'");
    let helper = agent().with_file_name("gleaner-agent-xen");
    let say = |paused: bool| {
        sh(&format!("echo '{{\"set\":{{\"uuid\":\"{uuid}\",\"paused\":{paused}}}}}' | {}", helper.display()))
    };
    assert_eq!(say(true), r#"{"set":{}}"#);
    let stopped = xl_seconds("two");
    std::thread::sleep(Duration::from_secs(2));
    assert!(xl_seconds("two") - stopped < 0.11, "a paused domain uses no CPU");
    assert_eq!(say(false), r#"{"set":{}}"#);
    until("it runs again", || xl_seconds("two") - stopped > 0.3);
}

#[test]
fn xen_domains_from_inside() {
    if !lab::inside() {
        return;
    }
    sh("MEMORY=32 mkdom one burn && mkdom two burn");
    sh("xl vcpu-pin Domain-0 all 0; xl vcpu-pin one all 1; xl vcpu-pin two all 1");
    println!("{}", run(&["doctor"]).lines().find(|line| line.contains("xen domains")).unwrap());
    let doctor: Value = serde_json::from_str(&run(&["doctor", "--json"])).unwrap();
    assert_eq!(doctor["cores"], 2, "the hypervisor's CPUs, not the control domain's one");
    figures_agree();
    levers_bite();
    pausing_stops_a_domain();
    // What a sample costs, and what is refused, has nothing to do with the scheduler, so it is looked at under one of the two.
    if sh("xl info").contains("credit2") {
        a_hypervisor_of_another_interface_version_is_told();
        println!("a sample of 3 domains costs {:.3} ms of CPU", cost_of_a_sample());
        sh("i=0; while [ $i -lt 20 ]; do MEMORY=4 mkdom idle$i idle; i=$((i + 1)); done");
        println!("a sample of 23 domains costs {:.3} ms of CPU", cost_of_a_sample());
    }
}

/// The tests that the control domain's script would run under a scheduler.
fn tests_under(scheduler: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let lists = format!("#!/bin/sh\nexec '{}' --list \"$@\"\n", std::env::current_exe().unwrap().display());
    for (name, text) in
        [("xl", format!("#!/bin/sh\necho 'xen_scheduler          : {scheduler}'\n")), ("lab-tests", lists)]
    {
        let program = folder.path().join(name);
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.arg(lab::script("xen/lab-tests.sh")).current_dir(folder.path()).env("PATH", path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn under_credit_only_what_a_scheduler_does_is_tried_again() {
    if lab::inside() {
        return;
    }
    let [all, again] = ["credit2", "credit"].map(tests_under);
    let of_schedulers = [
        "xen::xen_domains_from_inside",
        "xen_harm::xen_harm_from_inside",
        "xen_volunteer::xen_domains_as_the_volunteer_from_inside",
    ];
    let others = [
        "xen_made::xen_domains_that_gleaner_makes_from_inside",
        "xen_placing::xen_domains_come_late_and_are_placed_from_inside",
    ];
    let has = |tests: &[String], test: &str| tests.iter().any(|listed| listed == test);
    for test in of_schedulers {
        assert!(has(&all, test) && has(&again, test), "{test}: {all:?}, {again:?}");
    }
    for test in others {
        assert!(has(&all, test) && !has(&again, test), "{test}: {all:?}, {again:?}");
    }
}

#[test]
fn xen_domains_are_shown_limited_and_left_as_they_were() {
    if !gleaner_test_support::beds::wanted("xen_domains_are_shown_limited_and_left_as_they_were") {
        return;
    }
    let _alone = lab::alone();
    const TEST: &str = "xen_domains_are_shown_limited_and_left_as_they_were";
    if lab::inside() {
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
    let tests = lab::stripped("lab-tests", &std::env::current_exe().unwrap());
    let files = [lab::stripped("gleaner-agent", &agent()), tests, helper];
    for scheduler in ["credit2", "credit"] {
        let mut command = Command::new(lab::script("xen/host.sh"));
        command.args(["-s", scheduler, "-T", "1500"]).arg(&images).arg(lab::script("xen/lab-tests.sh")).args(&files);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{scheduler}: {}\n{}", output.status, lab::quoted(&output));
        println!("{scheduler}:\n{}", String::from_utf8_lossy(&output.stdout));
    }
}
