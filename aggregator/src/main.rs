//! The program `gleaner-aggregator`. In: its arguments. Out: an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner_aggregator::main_from_args(std::env::args_os())
}
