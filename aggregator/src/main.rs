//! The aggregator as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_aggregator::main_from_args(std::env::args_os())
}
