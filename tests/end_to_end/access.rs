//! Who may join, for how long, and who may give which orders: real programs over real sockets.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine;
use gleaner_net::join::{JoinToken, new_secret};
use gleaner_net::tls::{Authority, IdentityFiles};

use gleaner_test_support::bench::{Running, kill, text, until};
use gleaner_test_support::pair::{HOST, Pair};

/// An aggregator that logs everything it can, to a file.
fn site(tls: &str, more: &str) -> Pair {
    let mut pair = Pair::new(&[]);
    let config = pair.bench.path("aggregator.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{more}{}", text.replace("[tls]\n", &format!("[tls]\n{tls}")))).unwrap();
    let command = pair.bench.gleaner(&["daemon", "aggregator", "--config", config.to_str().unwrap()]);
    pair.aggregator = Some(logged(&pair, command, "aggregator.log"));
    until("the aggregator answers", || pair.ask(&["hosts"]).status.success());
    pair
}

/// Starts a program with its trace in a file of the bench.
fn logged(pair: &Pair, mut command: Command, log: &str) -> Running {
    let log = File::options().create(true).append(true).open(pair.bench.path(log)).unwrap();
    command.env("GLEANER_LOG", "trace").stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

fn invite(pair: &Pair, host: &str, time: &str) -> String {
    let invited = pair.ask(&["host", "invite", host, "--for", time]);
    assert!(invited.status.success(), "{}", text(&invited.stderr));
    text(&invited.stdout).trim().to_owned()
}

/// Joins with a config file that may not exist yet; what it said, and whether it worked.
fn join(pair: &Pair, config: &str, token: &str) -> (bool, String) {
    pair.bench.write("token", token);
    let (config, token) = (pair.bench.path(config), pair.bench.path("token"));
    let words =
        ["daemon", "agent", "--config", config.to_str().unwrap(), "join", "--token-file", token.to_str().unwrap()];
    let output = pair.bench.gleaner(&words).env("GLEANER_LOG", "trace").output().unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    let log = pair.bench.path("join.log");
    std::fs::write(&log, std::fs::read_to_string(&log).unwrap_or_default() + &said).unwrap();
    (output.status.success(), said)
}

/// The pieces of a token and of keys that nothing may ever show.
fn secrets(pair: &Pair, token: &str) -> Vec<String> {
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).unwrap();
    // The secret is the last field, before a checksum of four bytes.
    let secret = &bytes[bytes.len() - 20..bytes.len() - 4];
    let listed = format!("{secret:?}");
    let mut all = vec![
        token[token.len() - 40..].to_owned(),
        listed.trim_matches(['[', ']']).to_owned(),
        secret.iter().map(|byte| format!("{byte:02x}")).collect(),
        base64::engine::general_purpose::STANDARD.encode(secret),
    ];
    for key in ["site/agent.key", "pki/ca.key", "pki/aggregator.key"] {
        let pem = std::fs::read_to_string(pair.bench.path(key)).unwrap();
        all.extend(pem.lines().filter(|line| !line.starts_with("-----") && line.len() > 20).map(str::to_owned));
    }
    all
}

fn connected(pair: &Pair) -> bool {
    pair.hosts().iter().any(|host| host["connected"] == true && !host["report"].is_null())
}

#[test]
fn a_host_is_invited_joins_renews_is_revoked_and_joins_anew() {
    // Certificates hold for 18 seconds, the least there is, and are renewed after two thirds of that.
    let mut pair = site("certificate_lifetime_h = 0.005\n", "");
    let token = invite(&pair, HOST, "1h");
    let listed = text(&pair.ask(&["host", "invitations"]).stdout);
    assert!(listed.contains("invited") && listed.contains(HOST), "{listed}");

    let (good, said) = join(&pair, "site/agent.toml", &token);
    assert!(good && said.contains("host host-1 has joined"), "{said}");
    let mode = |name: &str| std::fs::metadata(pair.bench.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("site/agent.key"), mode("site/agent.crt")), (0o600, 0o644));
    assert!(text(&pair.ask(&["host", "invitations"]).stdout).contains("no invitation is open"));
    let mut hidden = secrets(&pair, &token);

    // The config that was made is enough to run, here with a state folder of the test's own.
    let config = pair.bench.path("site/agent.toml");
    let made = std::fs::read_to_string(&config).unwrap();
    let state = pair.bench.path("agent-state");
    std::fs::write(&config, format!("state_dir = '{}'\n{made}", state.display())).unwrap();
    let command = pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap()]);
    pair.agent = Some(logged(&pair, command, "agent.log"));
    until("the agent reports", || connected(&pair));

    // Renewed twice: the first certificate has long ended.
    let first = std::fs::read_to_string(pair.bench.path("site/agent.crt")).unwrap();
    until("the certificate is renewed", || pair.events().matches("certificate_renewed").count() >= 2);
    until("the agent reports", || connected(&pair));
    assert_ne!(std::fs::read_to_string(pair.bench.path("site/agent.crt")).unwrap(), first);
    assert_eq!(mode("site/agent.key"), 0o600);
    hidden.extend(secrets(&pair, &token));
    let events = pair.events();
    assert!(!events.contains("\"event\":\"host_lost\""), "the host was never missed:\n{events}");
    for event in ["host_invited", "host_enrolled"] {
        assert!(events.contains(event), "{event} not in\n{events}");
    }

    let (good, said) = join(&pair, "again/agent.toml", &token);
    assert!(!good && said.contains("it was used"), "{said}");
    assert!(!pair.bench.path("again/agent.key").exists());

    // Revoked: out at once, and out it stays, with the reason on both sides.
    let revoked = text(&pair.ask(&["host", "revoke", HOST]).stdout);
    assert!(revoked.contains("its connection is ended"), "{revoked}");
    assert!(pair.hosts().iter().all(|host| host["connected"] == false), "{:?}", pair.hosts());
    until("the reconnection is refused", || {
        pair.events().lines().any(|line| line.contains("peer_refused") && line.contains("were revoked at"))
    });
    let log = || std::fs::read_to_string(pair.bench.path("agent.log")).unwrap();
    until("the agent knows why", || log().contains("the aggregator refuses this host: the certificates of host"));
    assert!(pair.hosts().iter().all(|host| host["connected"] == false));

    // A restarted aggregator knows it too.
    drop(pair.aggregator.take());
    let config = pair.bench.path("aggregator.toml");
    let command = pair.bench.gleaner(&["daemon", "aggregator", "--config", config.to_str().unwrap()]);
    pair.aggregator = Some(logged(&pair, command, "aggregator.log"));
    until("the aggregator answers", || pair.ask(&["hosts"]).status.success());
    assert!(text(&pair.ask(&["host", "invitations"]).stdout).contains("revoked"));

    // A later invitation gives a new certificate; the agent that runs takes it.
    let token = invite(&pair, HOST, "1h");
    until("the host joins anew", || {
        let (good, said) = join(&pair, "site/agent.toml", &token);
        // Certificates count in seconds: one of the second of the revocation would be revoked with the others.
        assert!(good || said.contains("was revoked this very second"), "{said}");
        good
    });
    until("the agent is back", || connected(&pair));
    hidden.extend(secrets(&pair, &token));

    drop(pair.agent.take());
    let events = pair.events();
    drop(pair.aggregator.take());
    assert!(events.contains("host_revoked"), "{events}");
    for log in ["aggregator.log", "agent.log", "join.log"] {
        let log = std::fs::read_to_string(pair.bench.path(log)).unwrap();
        assert!(log.contains("TRACE"), "the log is a trace");
        for secret in &hidden {
            assert!(!log.contains(secret) && !events.contains(secret), "a secret is in a log or an event");
        }
    }
}

#[test]
fn a_token_serves_in_time_unchanged_and_for_the_right_aggregator() {
    let pair = site("", "");
    let refused = |token: &str, why: &str| {
        let (good, said) = join(&pair, "site/agent.toml", token);
        assert!(!good && said.contains(why), "{why:?} not in {said:?}");
        assert!(!pair.bench.path("site/agent.key").exists() && !pair.bench.path("site/agent.toml").exists());
    };
    let token = invite(&pair, HOST, "1s");
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    refused(&token, "expired at");
    let token = invite(&pair, HOST, "1h");
    let changed = if token.ends_with('A') { 'B' } else { 'A' };
    refused(&format!("{}{changed}", &token[..token.len() - 1]), "the join token");
    refused(&token[..token.len() - 10], "the join token is damaged");
    let read = JoinToken::from_text(&token).unwrap();
    let guessed = JoinToken { secret: new_secret().unwrap(), ..read.clone() };
    refused(&guessed.to_text().unwrap(), "no open invitation");
    // Somebody in the middle has a certificate of another authority: it never sees the secret.
    Authority::create().unwrap().write(pair.bench.folder.path()).unwrap();
    let theirs = IdentityFiles { ca: pair.bench.path("ca.crt"), certificate: PathBuf::new(), key: PathBuf::new() };
    let fooled = JoinToken { authority: theirs.authority().unwrap(), ..read };
    refused(&fooled.to_text().unwrap(), "no aggregator lets this host join");
    assert!(pair.ask(&["host", "uninvite", HOST]).status.success());
    refused(&token, "no open invitation");
    let again = pair.ask(&["host", "uninvite", HOST]);
    assert!(text(&again.stderr).contains("has no open invitation"), "{}", text(&again.stderr));
    let events = pair.events();
    assert!(events.matches("join_refused").count() >= 3 && events.contains("invitation_withdrawn"), "{events}");

    for (words, why) in [
        (["host", "invite", HOST, "--for", "31d"], "it must be 1 s to 30 days"),
        (["host", "invite", HOST, "--address", "nowhere"], "is not HOST:PORT"),
    ] {
        let output = pair.ask(&words);
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    // Standard input serves too, and the token stays out of the arguments.
    let token = invite(&pair, HOST, "1h");
    let config = pair.bench.path("site/agent.toml");
    let mut command = pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap(), "join", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{token}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn an_aggregator_without_the_authoritys_key_says_so() {
    let pair = Pair::new(&[]);
    let away = pair.bench.path("ca.key");
    std::fs::rename(pair.bench.path("pki/ca.key"), &away).unwrap();
    let mut pair = pair;
    pair.start_aggregator();
    let invited = pair.ask(&["host", "invite", HOST]);
    assert!(text(&invited.stderr).contains("`tls.authority_key`"), "{}", text(&invited.stderr));
    // Brought later, a reload is enough.
    std::fs::rename(away, pair.bench.path("pki/ca.key")).unwrap();
    kill(pair.aggregator.as_ref().unwrap().0.id(), "HUP");
    until("the key is read", || pair.ask(&["host", "invite", HOST]).status.success());
}

#[test]
fn certificates_are_read_anew_without_a_connection_lost() {
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let pki = pair.bench.path("pki");
    let before = std::fs::read_to_string(pki.join("aggregator.crt")).unwrap();
    let renewed = pair.bench.run(&["pki", "renew-aggregator", "--authority", pki.to_str().unwrap()]);
    assert!(renewed.status.success(), "{}", text(&renewed.stderr));
    assert_ne!(std::fs::read_to_string(pki.join("aggregator.crt")).unwrap(), before);
    let pid = pair.aggregator.as_ref().unwrap().0.id();
    kill(pid, "HUP");
    let reloads = |good: bool| {
        let reloaded = |line: &&str| line.contains("certificates_reloaded") && line.contains("\"error\":null") == good;
        pair.events().lines().filter(reloaded).count()
    };
    until("it is read", || reloads(true) == 1);
    // A broken file changes nothing.
    std::fs::write(pki.join("aggregator.crt"), "nothing").unwrap();
    kill(pid, "HUP");
    until("it is reported", || reloads(false) == 1);
    pair.agent_config("agent2.toml", "host-2", "host-2", "");
    let config = pair.bench.path("agent2.toml");
    let second = Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap()]));
    until("another agent connects", || pair.hosts().iter().filter(|host| host["connected"] == true).count() == 2);
    assert!(!pair.events().contains("\"event\":\"host_lost\""));
    drop(second);
}

/// Runs `gleaner` as another user; `None` where that cannot be done.
pub(crate) fn as_nobody(pair: &Pair, arguments: &[&str]) -> Option<std::process::Output> {
    let program = pair.bench.path("gleaner");
    if !program.exists() {
        // A place that everybody can reach.
        std::fs::set_permissions(pair.bench.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let built = env!("CARGO_BIN_EXE_gleaner");
        std::fs::hard_link(built, &program).or_else(|_| std::fs::copy(built, &program).map(drop)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command.arg("--socket").arg(pair.bench.path("a.sock")).args(arguments);
    command.current_dir(pair.bench.folder.path()).stdin(Stdio::null()).output().ok()
}

#[test]
fn who_may_only_ask_gives_no_orders_and_all_orders_are_audited() {
    let mut pair = Pair::new(&[HOST]);
    let config = pair.bench.path("aggregator.toml");
    let configured = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("socket_mode = '0666'\n{configured}")).unwrap();
    pair.start_aggregator();
    pair.bench.write("tasks.txt", "true\n");
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "ours"]).status.success());

    let listed = as_nobody(&pair, &["job", "list"]).filter(|output| {
        let said = text(&output.stderr);
        output.status.success() || !(said.contains("setpriv:") || said.contains("Operation not permitted"))
    });
    let Some(listed) = listed else {
        gleaner_test_support::skipped!(
            "who_may_only_ask_gives_no_orders_and_all_orders_are_audited: no other user can be taken on"
        );
        return;
    };
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    assert!(text(&listed.stdout).contains("ours"));
    for words in [
        &["job", "submit", "tasks.txt", "--name", "theirs"][..],
        &["job", "cancel", "ours"],
        &["host", "hold", HOST, "--for", "1h"],
        &["host", "release", HOST],
        &["host", "invite", HOST],
        &["host", "uninvite", HOST],
        &["host", "revoke", HOST],
        &["app", "remove", "shop"],
        &["app", "respond", "shop", "10"],
    ] {
        let refused = as_nobody(&pair, words).unwrap();
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("operators.acting_users"), "{words:?}: {said}");
    }
    for words in [&["hosts"][..], &["events"], &["audit"], &["host", "invitations"], &["top", "--once"]] {
        let answered = as_nobody(&pair, words).unwrap();
        assert!(answered.status.success(), "{words:?}: {}", text(&answered.stderr));
    }
    assert!(!text(&pair.ask(&["job", "list"]).stdout).contains("theirs"));
    let failed = pair.ask(&["job", "cancel", "nobody"]);
    assert!(!failed.status.success());

    let audit = text(&pair.ask(&["audit"]).stdout);
    let line = |words: &[&str]| audit.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(&["(0)", "job submit ours (1 task)", "done"]), "{audit}");
    assert!(line(&["(65534)", "job submit theirs (1 task)", "refused: user"]), "{audit}");
    assert!(line(&["(65534)", "host revoke host-1", "refused"]), "{audit}");
    assert!(line(&["(0)", "job cancel nobody", "refused: there is no job nobody"]), "{audit}");
    let lines = pair.bench.lines("state/audit.jsonl");
    let of = |part: &str| lines.iter().filter(|line| line.contains("job submit ours") && line.contains(part)).count();
    assert_eq!((of("\"outcome\":\"asked\""), of("\"outcome\":\"done\"")), (1, 1), "{lines:?}");
    let events = pair.events();
    assert!(events.contains("\"event\":\"operator_request\"") && events.contains("job submit theirs"), "{events}");

    // Who may not even ask, may not; and who is let act, acts.
    drop(pair.aggregator.take());
    let closed = format!("socket_mode = '0666'\n{configured}[operators]\nreading_users = ['0']\n");
    std::fs::write(&config, closed).unwrap();
    pair.start_aggregator();
    for words in [&["job", "list"][..], &["events"], &["audit"]] {
        let refused = as_nobody(&pair, words).unwrap();
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("operators.reading_users"), "{words:?}: {said}");
    }
    drop(pair.aggregator.take());
    std::fs::write(&config, format!("socket_mode = '0666'\n{configured}[operators]\nacting_users = ['65534']\n"))
        .unwrap();
    pair.start_aggregator();
    let submitted = as_nobody(&pair, &["job", "submit", "tasks.txt", "--name", "theirs"]).unwrap();
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
}

#[test]
fn an_order_that_cannot_be_audited_is_refused() {
    let mut pair = Pair::new(&[HOST]);
    // In place of the audit log there is something that cannot be written.
    std::fs::create_dir_all(pair.bench.path("state/audit.jsonl")).unwrap();
    pair.start_aggregator();
    let held = pair.ask(&["host", "hold", HOST, "--unknown", "--for", "1h"]);
    assert!(text(&held.stderr).contains("nothing is done, because it cannot be audited"), "{}", text(&held.stderr));
    assert!(!pair.events().contains("host_held"));
    std::fs::remove_dir(pair.bench.path("state/audit.jsonl")).unwrap();
    assert!(pair.ask(&["host", "hold", HOST, "--unknown", "--for", "1h"]).status.success());
}

#[test]
fn a_hostile_guests_name_reaches_no_terminal() {
    let mut pair = Pair::new(&[HOST]);
    let fifo = pair.bench.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    pair.start_aggregator();
    pair.start_agent(&[]);
    // What looks like a guest to the agent, with a name that moves the cursor, sets the title, forges a line and turns
    // the direction of writing.
    let hostile = "web\u{1b}]0;owned\u{7}\u{1b}[2J\nforged\u{9b}31m\u{202e}x\u{2028}y";
    let mut guest = Command::new("bash");
    let script = r#"exec -a qemu-system-x86_64 bash -c 'read -r line <"$0"' "$@""#;
    guest.args(["-c", script, "bash"]).arg(&fifo).args(["-name", hostile]);
    let guest = Running::start(guest);
    until("the guest is seen", || pair.events().contains("web?"));
    for words in [
        &["events"][..],
        &["events", "--json"],
        &["hosts"],
        &["hosts", "--json"],
        &["top", "--once"],
        &["app", "list"],
        &["audit", "--json"],
    ] {
        let shown = text(&pair.ask(words).stdout);
        let bad: Vec<char> = shown.chars().filter(|c| !gleaner_types::text::is_harmless(*c) && *c != '\n').collect();
        assert!(bad.is_empty(), "{words:?} shows {bad:?}");
    }
    let hosts = text(&pair.ask(&["hosts", "--json"]).stdout);
    assert!(hosts.contains("web?]0;owned??[2J?forged?31m?x?y"), "{hosts}");
    let files = ["events", "events-hosts"].map(|stem| pair.bench.path(&format!("state/events/{stem}.jsonl")));
    let log: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    assert!(log.chars().all(|c| gleaner_types::text::is_harmless(c) || c == '\n'));
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "no line is forged");
    drop(guest);
}

#[test]
fn a_job_of_root_is_refused_when_it_is_submitted_where_its_tasks_would_be() {
    if !rustix::process::geteuid().is_root() {
        gleaner_test_support::skip!("only root can submit as root");
    }
    let mut pair = Pair::new(&[HOST]);
    let config = pair.bench.path("agent.toml");
    let allowing = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, allowing.replace("root = true", "root = false")).unwrap();
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", "true\n");
    let submit = |pair: &Pair| pair.ask(&["job", "submit", "tasks.txt", "--name", "j", "--deadline", "1h"]);
    let refused = submit(&pair);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("`tasks.root`") && said.contains("another user"), "{said}");
    assert!(pair.job("j").is_null(), "it is no job");
    // The agent that comes next says otherwise.
    drop(pair.agent.take());
    std::fs::write(&config, allowing).unwrap();
    until("the host is away", || pair.hosts().iter().all(|host| host["connected"] != true));
    pair.start_agent(&["--act"]);
    let taken = submit(&pair);
    assert!(taken.status.success(), "{}", text(&taken.stderr));
}
