//! The program ends quietly where nobody reads its answers.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn nobody_who_reads_is_no_fault() {
    for (arguments, question) in [(&["--help"][..], ""), (&["--version"], ""), (&[], "nonsense\n")] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner-agent-xen"));
        command.args(arguments).stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may have ended already, without a look at the question.
        _ = child.stdin.take().unwrap().write_all(question.as_bytes());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {} {said}", output.status);
    }
}
