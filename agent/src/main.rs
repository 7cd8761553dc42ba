//! The agent as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_agent::main_from_args(std::env::args_os(), &[])
}
