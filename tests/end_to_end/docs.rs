//! Commands in the documents. Every block of commands in README.md and docs/ has a comment before it that says who runs
//! it: a function here, by name (`run: NAME`); packaging/test-walk.sh (`walk`); nobody, with the reason (`not run:
//! REASON`); or that each of its lines is in a block of another document that is run (`in: DOCUMENT`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gleaner_test_support::bench::{Bench, text};

/// The document at which the walk begins; it names the others.
const GUIDE: &str = "docs/operators-guide.md";

/// What runs a block: its lines, in a folder with the programs.
type Run = fn(&Bench, &[String]);

/// The blocks that are run here.
const RUN: [(&str, Run); 5] = [
    ("host", from_the_repository),
    ("what-if", from_the_repository),
    ("autoscale", from_the_repository),
    ("fill", from_the_repository),
    ("examples", as_a_transcript),
];

/// Words with which a line of commands begins, where there is no prompt.
const PROGRAMS: [&str; 11] = [
    "gleaner",
    "gleaner-agent",
    "gleaner-aggregator",
    "cargo",
    "apt",
    "apt-get",
    "systemctl",
    "install",
    "packaging/build-debs.sh",
    "target/release/isolation",
    "GLEANER_BEDS=1",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// An indented block.
#[derive(Debug)]
struct Block {
    /// Where it begins.
    place: String,
    document: String,
    /// The comment before it.
    mark: Option<String>,
    lines: Vec<String>,
}

impl Block {
    /// Its commands, without prompts, comments and spaces that do not matter.
    fn commands(&self) -> Vec<String> {
        self.lines.iter().filter(|line| is_command(line)).map(|line| plain(line)).collect()
    }
}

/// A command with the machine that it is for, without its comment.
fn plain(line: &str) -> String {
    let (machine, command) = match prompt(line) {
        Some(machine) => line.split_at(machine.len() + 1),
        None => ("", line),
    };
    let command = command.split(" # ").next().unwrap();
    format!("{machine} {}", command.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The machine of a line such as `h1# gleaner-agent doctor`.
fn prompt(line: &str) -> Option<&str> {
    let (machine, _) = line.split_once("# ")?;
    let is_name = !machine.is_empty() && machine.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_name.then_some(machine)
}

fn is_command(line: &str) -> bool {
    prompt(line).is_some()
        || line.starts_with("$ ")
        || line.split_whitespace().next().is_some_and(|word| PROGRAMS.contains(&word))
}

/// Every indented block of README.md and docs/.
fn blocks() -> Vec<Block> {
    let mut documents = vec!["README.md".to_owned()];
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            documents.push(format!("docs/{name}"));
        }
    }
    documents.sort();
    documents.iter().flat_map(|document| blocks_of(document)).collect()
}

fn blocks_of(document: &str) -> Vec<Block> {
    let all = std::fs::read_to_string(root().join(document)).unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    // The line above, if it is not empty; the mark that waits for its block; whether a block may begin or goes on.
    let (mut above_is_empty, mut mark, mut inside) = (true, None, false);
    for (number, line) in all.lines().enumerate() {
        assert!(!line.trim_start().starts_with("```"), "{document}:{}: blocks are indented", number + 1);
        let trimmed = line.trim();
        if let Some(words) = trimmed.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            (mark, inside) = (Some(words.to_owned()), false);
        } else if line.starts_with("    ") && (inside || above_is_empty) {
            if !inside {
                let place = format!("{document}:{}", number + 1);
                blocks.push(Block { place, document: document.into(), mark: mark.take(), lines: Vec::new() });
            }
            inside = true;
            blocks.last_mut().unwrap().lines.push(trimmed.to_owned());
        } else if !trimmed.is_empty() {
            (mark, inside) = (None, false);
        }
        above_is_empty = trimmed.is_empty();
    }
    blocks
}

/// The documents that the walk goes through.
fn walked() -> Vec<String> {
    let guide = std::fs::read_to_string(root().join(GUIDE)).unwrap();
    let marks = guide.lines().filter_map(|line| line.strip_prefix("<!-- walk: ")?.strip_suffix(" -->"));
    marks.filter(|mark| mark.ends_with(".md")).map(str::to_owned).chain([GUIDE.to_owned()]).collect()
}

#[test]
fn every_block_of_commands_is_run_or_says_why_not() {
    let blocks = blocks();
    let walked = walked();
    let (mut faults, mut ran) = (Vec::new(), Vec::new());
    for block in blocks.iter().filter(|block| block.mark.is_some() || block.lines.iter().any(|line| is_command(line))) {
        let Block { place, document, mark, lines } = block;
        let mut fault = |what: String| faults.push(format!("{place}: {what}"));
        match mark.as_deref().map(|mark| mark.split_once(": ").unwrap_or((mark, ""))) {
            None => fault("no comment says who runs it".into()),
            Some(("not run", reason)) if !reason.is_empty() => {}
            Some(("walk", files)) => {
                if !walked.contains(document) {
                    fault(format!("{GUIDE} does not lead here"));
                }
                let is_for = |line: &String| prompt(line).is_some_and(|name| ["controller", "h1"].contains(&name));
                if (files.is_empty() || files.contains(" after "))
                    && !lines.iter().all(|line| line.is_empty() || is_for(line))
                {
                    fault("a line is for neither machine of the walk".into());
                }
            }
            Some(("run", name)) => match RUN.iter().find(|(own, _)| *own == name) {
                None => fault(format!("no test is called {name:?}")),
                Some((_, run)) => {
                    run(&bench(), lines);
                    ran.push(name);
                }
            },
            Some(("in", other)) => {
                let is_run = |block: &&Block| {
                    block.document == other
                        && block
                            .mark
                            .as_ref()
                            .is_some_and(|mark| mark == "walk" || mark.contains(" after ") || mark.starts_with("run: "))
                };
                let run: Vec<String> = self::blocks().iter().filter(is_run).flat_map(Block::commands).collect();
                for command in block.commands().iter().filter(|command| !run.contains(command)) {
                    fault(format!("{other} does not have {command:?}"));
                }
            }
            Some(other) => fault(format!("it is not known what {other:?} means")),
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(ran.len(), RUN.len(), "{ran:?}");
}

#[test]
fn there_is_one_way_to_join() {
    let help = command(&bench(), "gleaner-agent join --help").output().unwrap();
    let help = text(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for way in ["gleaner host invite h1", "gleaner-agent join -", "systemctl start gleaner-agent"] {
        assert!(help.contains(way), "{way} is not in: {help}");
        for document in ["README.md", GUIDE, "docs/security.md"] {
            let said = blocks_of(document).iter().flat_map(Block::commands).any(|command| command.ends_with(way));
            assert!(said, "{way} is not in {document}");
        }
    }
}

#[test]
fn an_agent_whose_config_names_no_aggregator_observes_and_options_may_stand_anywhere() {
    let bench = bench();
    bench.write("agent.toml", "[host]\nname = 'h1'\n\n[aggregator]\nca = '/nowhere/ca.crt'\n");
    for line in
        ["gleaner-agent --config agent.toml observe --count 1", "gleaner-agent observe --count 1 --config agent.toml"]
    {
        let mut command = command(&bench, line);
        let observed = command.current_dir(bench.folder.path()).output().unwrap();
        assert!(observed.status.success(), "{line}: {}", text(&observed.stderr));
        assert!(text(&observed.stdout).contains("h1"), "{line}");
    }
    let started =
        command(&bench, "gleaner-agent --config agent.toml").current_dir(bench.folder.path()).output().unwrap();
    assert!(text(&started.stderr).contains("`aggregator.address` is missing; `gleaner-agent join` writes it"));
    assert_eq!(started.status.code(), Some(1));
}

/// A folder with the programs, as packages install them.
fn bench() -> Bench {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let gleaner = bench.gleaner(&[]).get_program().to_owned();
    for (program, daemon) in
        [("gleaner", ""), ("gleaner-agent", "daemon agent"), ("gleaner-aggregator", "daemon aggregator")]
    {
        let file = bench.write(program, &format!("#!/bin/sh\nexec {} {daemon} \"$@\"\n", gleaner.display()));
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    bench
}

/// A line of shell in the repository, with the programs of the folder.
fn command(bench: &Bench, line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", line]).stdin(Stdio::null()).env("GLEANER_SOCKET", bench.path("no.sock"));
    let path = format!("{}:{}", bench.folder.path().display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).current_dir(root());
    command
}

/// Runs each line in the repository.
fn from_the_repository(bench: &Bench, lines: &[String]) {
    for line in lines {
        let said = command(bench, line).output().unwrap();
        assert!(said.status.success() && !said.stdout.is_empty(), "{line}: {}", text(&said.stderr));
    }
}

/// Runs each line that begins with `$` in the folder of examples, with a folder of its own for `/tmp/folder`. The lines below
/// it are in turn its input and what it answers.
fn as_a_transcript(bench: &Bench, lines: &[String]) {
    let here = |line: &str| line.replace("/tmp/folder", &bench.path("folder").display().to_string());
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let mut typed = String::new();
        let mut expected = String::new();
        while let Some(input) = lines.next_if(|line| !line.starts_with("$ ")) {
            typed.push_str(&format!("{input}\n"));
            expected.push_str(&format!("{}\n", lines.next().unwrap()));
        }
        let input = bench.write("typed", &typed);
        let mut command = command(bench, &here(line.strip_prefix("$ ").unwrap()));
        command.stdin(std::fs::File::open(input).unwrap()).current_dir(root().join("docs/examples"));
        let said = command.output().unwrap();
        assert!(said.status.success(), "{line}: {}", text(&said.stderr));
        assert_eq!(text(&said.stdout), expected, "{line}");
    }
}
