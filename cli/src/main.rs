//! `gleaner`, the operator's command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_cli::main_from_args(std::env::args_os())
}
