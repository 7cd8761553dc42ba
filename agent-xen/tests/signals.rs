//! The program ends with the agent's pipe, and not by a signal that the whole unit gets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends it also where a test fails.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn it_outlives_the_signals_of_a_stop_and_ends_with_the_agent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner-agent-xen"));
    let mut helper = Helper(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut input = helper.0.stdin.take().unwrap();
    let mut answers = BufReader::new(helper.0.stdout.take().unwrap());
    // It is understood without a hypervisor. What has ended has no answer, and may not take a question.
    let mut is_answered = || {
        let mut answer = String::new();
        writeln!(input, "nonsense").is_ok() && answers.read_line(&mut answer).is_ok() && answer.contains("malformed")
    };
    assert!(is_answered(), "it has begun");
    for signal in ["TERM", "INT", "HUP"] {
        let sent = Command::new("sh").args(["-c", &format!("kill -s {signal} {}", helper.0.id())]).status().unwrap();
        assert!(sent.success() && is_answered(), "SIG{signal}");
    }
    drop(input);
    let closed = Instant::now();
    let ended = loop {
        match helper.0.try_wait().unwrap() {
            Some(status) => break status,
            None if closed.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            None => panic!("it lives on without an agent"),
        }
    };
    assert!(ended.success(), "{ended}");
}
