//! `gleaner top` on a real terminal (a pty that `script` makes), and `gleaner advise`, against a real aggregator.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use gleaner_test_support::bench::{Running, text, until};
use gleaner_test_support::pair::{HOST, Pair};

const ENTER_SCREEN: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";

/// A command on a terminal of 80 by 24 whose keys are written and whose output is kept in a file.
struct Terminal<'a> {
    pair: &'a Pair,
    name: &'static str,
    child: Running,
}

impl<'a> Terminal<'a> {
    fn start(pair: &'a Pair, name: &'static str) -> Self {
        let socket = pair.bench.path("a.sock");
        let top = format!("{} --socket {} top", env!("CARGO_BIN_EXE_gleaner"), socket.display());
        let inside = format!(
            "stty rows 24 cols 80; stty -a >{name}.before; sh -c 'echo $$ >{name}.pid; exec {top}'; \
             echo $? >{name}.code; stty -a >{name}.after"
        );
        let mut command = Command::new("script");
        command.args(["-q", "-f", "-c", &inside, &format!("{name}.typescript")]);
        command.current_dir(pair.bench.folder.path()).env("TERM", "xterm-256color");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { pair, name, child: Running(command.spawn().unwrap()) }
    }

    fn file(&self, ending: &str) -> String {
        std::fs::read(self.pair.bench.path(&format!("{}.{ending}", self.name)))
            .map(|all| text(&all))
            .unwrap_or_default()
    }

    fn shown(&self) -> String {
        self.file("typescript")
    }

    fn press(&mut self, keys: &str) {
        let child: &mut Child = &mut self.child.0;
        let input = child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn ends(&self, code: &str) {
        until("the terminal is given back", || !self.file("after").is_empty());
        assert_eq!(self.file("code").trim(), code);
        assert_eq!(self.file("before"), self.file("after"), "the terminal's settings");
        let shown = self.shown();
        let (entered, left) = (shown.rfind(ENTER_SCREEN), shown.rfind(LEAVE_SCREEN));
        assert!(entered.is_some() && entered < left, "{shown:?}");
    }
}

fn script_is_here(test: &str) -> bool {
    let there = Command::new("script").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        gleaner_test_support::skipped!("{test}: there is no `script` to make a terminal");
    }
    there
}

#[test]
fn top_shows_the_host_and_gives_the_terminal_back() {
    if !script_is_here("top_shows_the_host_and_gives_the_terminal_back") {
        return;
    }
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    {
        let mut terminal = Terminal::start(&pair, "keys");
        until("the host is shown", || terminal.shown().contains(HOST) && terminal.shown().contains("observing"));
        terminal.press("5");
        until("events are shown", || terminal.shown().contains("aggregator_started"));
        // Only cells that change are written, so what is looked for must come where nothing was.
        terminal.press("3?");
        until("help is shown", || terminal.shown().contains("predicted"));
        terminal.press("xq");
        terminal.ends("0");
    }
    {
        let terminal = Terminal::start(&pair, "signal");
        until("the host is shown", || terminal.shown().contains("observing"));
        gleaner_test_support::bench::kill(terminal.file("pid").trim().parse().unwrap(), "TERM");
        terminal.ends("0");
    }
    // An aggregator that is started again is found again, and what happened meanwhile is shown.
    let aggregator = pair.aggregator.take().unwrap();
    let mut terminal = Terminal::start(&pair, "restart");
    until("the host is shown", || terminal.shown().contains("observing"));
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    until("that nobody answers is shown", || terminal.shown().contains("NO ANSWER"));
    terminal.press("5");
    let config = pair.bench.path("aggregator.toml");
    let _again = Running::start(pair.bench.gleaner(&["daemon", "aggregator", "--config", config.to_str().unwrap()]));
    let starts = || terminal.shown().matches("aggregator_started").count();
    until("the new start is shown", || starts() >= 2);
    drop(terminal.child.0.stdin.take());
    gleaner_test_support::bench::kill(terminal.file("pid").trim().parse().unwrap(), "HUP");
    terminal.ends("0");
}

#[test]
fn top_without_a_terminal_is_plain_text() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let once = text(&pair.ask(&["top", "--once"]).stdout);
    assert!(once.contains(HOST) && !once.contains(ENTER_SCREEN), "{once}");
    let socket = pair.bench.path("a.sock");
    for plain in [&["top"][..], &["top", "--plain"]] {
        let arguments = [&["--socket", socket.to_str().unwrap()], plain].concat();
        let file = std::fs::File::create(pair.bench.path("plain")).unwrap();
        let _running = Running(pair.bench.gleaner(&arguments).stdout(file).spawn().unwrap());
        let shown = || std::fs::read_to_string(pair.bench.path("plain")).unwrap_or_default();
        until("it is shown again and again", || shown().matches("PROMISES BROKEN").count() >= 2);
        assert!(shown().contains(HOST) && !shown().contains(ENTER_SCREEN), "{}", shown());
    }
}

#[test]
fn advice_of_a_real_host_says_what_is_missing() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    until("the forecast is there", || pair.hosts()[0]["report"]["residual"]["cpu"]["value"].is_object());
    let advice = pair.ask(&["advise", "--for", "10m", "--risk", "1%"]);
    let said = text(&advice.stdout);
    assert!(said.contains("for 10 min 00 s at a risk of 1 %"), "{said} {}", text(&advice.stderr));
    assert!(said.contains("were not watched for long enough"), "{said}");
    assert!(said.contains(&format!("{HOST} observes only")) && said.contains("act.enabled"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&pair.ask(&["advise", "--json"]).stdout).unwrap();
    assert_eq!(json["question"]["for_s"], 600.0);
    assert!(json["hosts"][0]["standing"]["observing"]["needs"].is_array(), "{json}");
    let wrong = pair.ask(&["advise", "--for", "2d"]);
    assert!(text(&wrong.stderr).contains("--for: is 172800"), "{}", text(&wrong.stderr));
    assert_eq!(pair.ask(&["advise", "--risk", "3"]).status.code(), Some(2));
}
