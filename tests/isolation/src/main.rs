//! `isolation`: the program around the matrix. In: a command line. Out: a table, the results as JSON, a drawing, and an
//! exit code. Started by people, `benches/isolation.sh`, and itself, for foregrounds and antagonists.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use gleaner_isolation::cells::{Antagonist, Cell, Foreground, Goal, Named, Row, by_names, cells};
use gleaner_isolation::foreground::setup::Setup;
use gleaner_isolation::matrix::{Plan, run, usual};
use gleaner_isolation::{antagonist, foreground, interrupt};

/// Measures what an antagonist in the volunteer does to a foreground, under several ways to protect the foreground.
///
/// Every round measures each cell (a foreground and an antagonist) under each row (a way to protect) once, in random order. The
/// foreground's times are compared with its times alone in the same round; intervals are over the rounds. Needs root. All that is made is
/// removed at the end, also after Ctrl-C. docs/isolation.md says how to read the results.
#[derive(Debug, Parser)]
#[command(
    name = "isolation",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  isolation --list\n  isolation --cells cyclic:cpu --rows alone,idle,gleaner --rounds 5\n  \
                  isolation --cells every:every --rounds 3 --json all.json --svg all.svg\n\nExit codes: 0 measured, 1 not measured or rounds \
                  missing, 2 wrong usage"
)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
    #[command(subcommand)]
    process: Option<Process>,
}

/// Processes that a run starts.
#[derive(Debug, Subcommand)]
enum Process {
    #[command(hide = true)]
    Antagonist(antagonist::Arguments),
    #[command(hide = true)]
    Foreground(Setup),
}

#[derive(Debug, Args)]
struct Arguments {
    /// Lists foregrounds, antagonists, rows, goals and the usual cells, and what this machine lacks.
    #[arg(long)]
    list: bool,
    /// How often everything is measured; a confidence interval needs two.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// How long each measurement takes.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How long the antagonist runs before the measurement, so that its allowance has grown.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=600))]
    settle: u64,
    /// Rows, with commas in between; `every` is all of them. `alone` is always measured.
    #[arg(long, value_name = "ROWS", default_value = "every")]
    rows: String,
    /// Cells, foreground:antagonist with commas in between; `every` on either side is every one. Without it: the usual cells.
    #[arg(long, value_name = "CELLS")]
    cells: Option<String>,
    /// Goals that the rows with Gleaner are judged by, with commas in between; `every` is all of them.
    #[arg(long, value_name = "GOALS", default_value = "")]
    goal: String,
    /// Seed of the order and of what foregrounds do; without it a new one, which is printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Writes every measurement, the sums and the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws harvest against harm as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The program `gleaner`; without it the one beside this program.
    #[arg(long, value_name = "PATH")]
    gleaner: Option<PathBuf>,
    /// Memory of a cell in MiB, the foreground's and the antagonist's together; `host` is all of the machine's, which
    /// then runs out of memory: only for a machine of your own.
    #[arg(long, value_name = "MIB", default_value = "512", value_parser = memory_limit)]
    memory_limit: Memory,
    /// Size in MiB of the file system that is written to.
    #[arg(long, value_name = "MIB", default_value_t = 768, value_parser = clap::value_parser!(u64).range(64..=65536))]
    scratch_mib: u64,
    /// A folder to write to instead, on a file system of its own: `fill` fills it.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Folder for everything else.
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    folder: PathBuf,
}

/// Memory of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    Host,
    Bytes(u64),
}

fn memory_limit(text: &str) -> Result<Memory, String> {
    if text == "host" {
        return Ok(Memory::Host);
    }
    match text.parse::<u64>() {
        Ok(mib @ 128..=65_536) => Ok(Memory::Bytes(mib << 20)),
        _ => Err(format!("`{text}` is neither `host` nor a number of MiB from 128 to 65536")),
    }
}

fn main() -> ExitCode {
    let line = Line::parse();
    let done = match &line.process {
        Some(Process::Antagonist(arguments)) => antagonist::main(arguments).map(|()| ExitCode::SUCCESS),
        Some(Process::Foreground(setup)) => foreground::main(setup).map(|()| ExitCode::SUCCESS),
        None => measure(&line.arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("isolation: {error:#}");
        ExitCode::FAILURE
    })
}

fn measure(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let plan = match plan(arguments) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("isolation: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    interrupt::watch();
    let outcome = run(&plan, &mut |line| eprintln!("{line}"))?;
    print!("{}", outcome.text());
    if let Some(path) = &arguments.json {
        outcome.write(path)?;
    }
    // Results without a plot are results.
    if let Some(path) = &arguments.svg
        && let Err(error) = outcome.draw(path)
    {
        eprintln!("isolation: not drawn: {error:#}");
    }
    let missing = outcome.lines.iter().any(|line| !line.errors.is_empty());
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let mut rows: Vec<Row> = by_names(&arguments.rows)?;
    if !rows.contains(&Row::Alone) {
        rows.insert(0, Row::Alone);
    }
    let goals: Vec<Goal> = by_names(&arguments.goal)?;
    let cells: Vec<Cell> = arguments.cells.as_deref().map_or_else(|| Ok(usual()), cells)?;
    anyhow::ensure!(!cells.is_empty(), "--cells names no cell; write foreground:antagonist, such as cyclic:cpu");
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join("gleaner")));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Plan {
        cells,
        rows,
        goals,
        rounds: arguments.rounds,
        time: Duration::from_secs(arguments.seconds),
        settle: Duration::from_secs(arguments.settle),
        seed: arguments.seed.unwrap_or(now),
        // The daemons are started in folders of their own, where a relative path leads elsewhere.
        gleaner: match arguments.gleaner.clone().or(beside) {
            Some(path) => std::path::absolute(&path).unwrap_or(path),
            None => "gleaner".into(),
        },
        memory_limit: if let Memory::Bytes(bytes) = arguments.memory_limit { Some(bytes) } else { None },
        scratch_mib: arguments.scratch_mib,
        scratch: arguments.scratch.clone(),
        folder: arguments.folder.clone(),
        cgroups: "/sys/fs/cgroup".into(),
    })
}

fn list() {
    fn all<N: Named>(more: impl Fn(N) -> String) {
        println!("{}s:", N::KIND);
        for &one in N::ALL {
            println!("  {:<16} {}{}", one.name(), one.about(), more(one));
        }
    }
    all::<Foreground>(|one| foreground::missing(one).map_or_else(String::new, |why| format!(" (NOT HERE: {why})")));
    all::<Antagonist>(|_| String::new());
    all::<Row>(|_| String::new());
    all::<Goal>(|_| String::new());
    let usual: Vec<String> = usual().iter().map(Cell::to_string).collect();
    println!("usual cells:\n  {}", usual.join(" "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Arguments {
        Line::try_parse_from([&["isolation"], words].concat()).unwrap().arguments
    }

    #[test]
    fn a_command_line_becomes_a_plan() {
        let words = [
            "--cells",
            "cyclic:cpu",
            "--rows",
            "idle",
            "--rounds",
            "2",
            "--seed",
            "9",
            "--memory-limit",
            "host",
            "--goal",
            "here",
        ];
        let plan = plan(&arguments(&words)).unwrap();
        assert_eq!((plan.rows.as_slice(), plan.rounds, plan.seed), ([Row::Alone, Row::Idle].as_slice(), 2, 9));
        assert_eq!((plan.cells.len(), plan.memory_limit, plan.goals.as_slice()), (1, None, [Goal::Here].as_slice()));
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(plan(&arguments(&["--cells", ","])).unwrap_err().to_string().contains("names no cell"));
        assert!(plan(&arguments(&["--rows", "best"])).unwrap_err().to_string().contains("`best` is no row"));
        assert!(plan(&arguments(&["--goal", "best"])).unwrap_err().to_string().contains("`best` is no goal"));
        assert!(memory_limit("lots").unwrap_err().contains("neither `host`"));
        assert_eq!(memory_limit("256"), Ok(Memory::Bytes(256 << 20)));
        assert!(Line::try_parse_from(["isolation", "--rounds", "0"]).is_err());
    }
}
