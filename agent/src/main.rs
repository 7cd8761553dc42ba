//! The program `gleaner-agent`. In: its arguments. Out: an exit code. Started by systemd, an operator or a test.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_agent::main_from_args(std::env::args_os(), &[])
}
