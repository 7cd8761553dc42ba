//! The helper of `gleaner-agent` on a control domain of Xen. In: questions on standard input, one JSON line each
//! (PROTOCOL.md). Out: one line of answer for each: the domains with their counters, how long they waited for a CPU and what
//! they fill of the cache, or caps, weights, memory targets, the hypervisor's bounds on memory, hard affinity and pauses that
//! were set. Started by the agent's `xen.rs`. It ends when its input closes, as it does when the agent is gone, and not by the
//! signals that ask a program to end (`signals`). It decides nothing, but that the volunteer's domains are paused when nobody
//! looks after them any more (`watchdog`).
//!
//! It is a program of its own because xenstore-rs, which it links, is under the GPL; nothing else links either.

mod backends;
mod cache;
mod device_model;
mod domains;
mod hypercall;
mod looks;
mod memory;
mod occupancy;
mod pausing;
mod placing;
mod protocol;
mod sampler;
mod signals;
mod vcpus;
mod waits;
mod watchdog;

use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

use domains::Domains;
use protocol::{Answer, Failure, Request, parse};

/// Longest question.
const LONGEST: u64 = 64 << 10;

fn main() -> ExitCode {
    if let Some(argument) = std::env::args().nth(1) {
        let text = format!(
            "gleaner-agent-xen {}\n\nStarted by gleaner-agent on a control domain of Xen; answers JSON lines on standard input, as \
             PROTOCOL.md documents.\n",
            env!("CARGO_PKG_VERSION")
        );
        let known = ["--help", "-h", "--version", "-V"].contains(&argument.as_str());
        return match known.then(|| io::stdout().write_all(text.as_bytes())) {
            Some(Ok(())) => ExitCode::SUCCESS,
            // `| head -1` closes the pipe early.
            Some(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => ExitCode::from(2),
        };
    }
    signals::outlive_ends();
    match serve(&mut io::stdin().lock(), &mut io::stdout().lock(), &mut None) {
        Ok(()) => ExitCode::SUCCESS,
        // The agent that asked is gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads that, there is nobody to tell.
            _ = writeln!(io::stderr(), "gleaner-agent-xen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers one line for each line, until there is no more.
fn serve(questions: &mut impl BufRead, answers: &mut impl Write, domains: &mut Option<Domains>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if questions.take(LONGEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let answer = if line.ends_with(b"\n") {
            parse(&line).and_then(|request| answer(&request, domains)).unwrap_or_else(Answer::Error)
        } else {
            // The rest of a line that is too long is not a question.
            skip_line(questions)?;
            Answer::Error(Failure::malformed(format!("a question is cut off or longer than {LONGEST} bytes")))
        };
        serde_json::to_writer(&mut *answers, &answer)?;
        answers.write_all(b"\n")?;
        answers.flush()?;
    }
}

fn skip_line(questions: &mut impl BufRead) -> io::Result<()> {
    loop {
        let available = questions.fill_buf()?;
        let (used, done) = match available.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (available.len(), available.is_empty()),
        };
        questions.consume(used);
        if done {
            return Ok(());
        }
    }
}

/// The hypervisor is opened at the first question; what fails is tried again at the next.
fn answer(request: &Request, domains: &mut Option<Domains>) -> Result<Answer, Failure> {
    match domains {
        Some(domains) => domains.answer(request),
        None => domains.insert(Domains::open()?).answer(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(questions: &str) -> Vec<String> {
        let mut answers = Vec::new();
        serve(&mut questions.as_bytes(), &mut answers, &mut None).unwrap();
        String::from_utf8(answers).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_line_has_its_answer_and_a_bad_one_ends_nothing() {
        let long = "x".repeat(200_000);
        let answers = say(&format!("nonsense\n{long}\n{{\"sample\":{{}}}}\nno end"));
        assert_eq!(answers.len(), 4, "{answers:?}");
        assert!(answers[0].contains("malformed") && answers[1].contains("longer than"), "{answers:?}");
        // This machine is no control domain, unless it is.
        assert!(answers[2].contains("error") || answers[2].contains("domains"), "{answers:?}");
        assert!(answers[3].contains("cut off"), "{answers:?}");
        assert!(say("").is_empty());
    }
}
