//! Two readings compared, servers that are not PostgreSQL, and a real PostgreSQL where this machine has one.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use proptest::prelude::*;

use super::super::tests::certificates::Site;
use super::*;

const INTERVAL: Duration = Duration::from_secs(30);

fn reason(time: ResponseTime) -> String {
    match time {
        ResponseTime::Missing { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_looks_make_a_mean() {
    let last = Statistics { busy_ms: 1_000.0, calls: 10.0, ..Statistics::default() };
    let statistics = |busy_ms, calls| Statistics { busy_ms, calls, ..Statistics::default() };
    assert_eq!(between(&last, &statistics(1_600.0, 40.0), "g"), ResponseTime::Mean { mean_ms: 20.0 });
    assert_eq!(between(&last, &statistics(1_000.0, 10.0), "g"), ResponseTime::Idle);
    for back in [statistics(10.0, 1.0), statistics(2_000.0, 9.0), statistics(900.0, 20.0)] {
        assert_eq!(reason(between(&last, &back, "g")), "statistics were reset");
    }
    let reset = Statistics { reset: Some("2026-11-21".to_owned()), ..statistics(5_000.0, 50.0) };
    assert_eq!(reason(between(&last, &reset, "g")), "statistics were reset");
    let dropped = Statistics { dropped: Some("1".to_owned()), ..statistics(900.0, 9.0) };
    assert!(reason(between(&last, &dropped, "g")).contains("pg_stat_statements.max"));
}

#[test]
fn no_statements_are_not_always_idleness() {
    let last = Statistics { own_calls: 5.0, ..Statistics::default() };
    let statistics = Statistics { own_calls: 8.0, ..Statistics::default() };
    assert_eq!(between(&last, &statistics, "g"), ResponseTime::Idle);
    let standstill = Statistics { running: 3.0, ..statistics.clone() };
    assert_eq!(between(&last, &standstill, "g"), ResponseTime::Stalled);
    let hidden = Statistics { hidden: 1.0, ..statistics.clone() };
    assert!(reason(between(&last, &hidden, "g")).ends_with("GRANT pg_monitor TO `g`"));
    let shared = Statistics { own_calls: 500.0, ..statistics };
    assert!(reason(between(&last, &shared, "g")).contains("`g`, which must be a user of Gleaner's own"));
}

#[test]
fn connection_strings_are_checked_and_never_quoted() {
    let check = |text: &str| Postgres::new(text, INTERVAL, INTERVAL).map(|_| ());
    for good in [
        "host=/run/postgresql user=gleaner dbname=shop",
        "host=db.example.org port=5433 user=gleaner dbname=shop password=secret",
        "hostaddr=10.0.0.7 user=gleaner dbname=shop",
        "postgresql://gleaner:secret@db:5433/shop",
    ] {
        check(good).unwrap();
    }
    for (bad, part) in [
        ("", "has no user"),
        ("host=h dbname=d", "has no user"),
        ("host=h user=u", "has no dbname"),
        ("user=u dbname=d", "has 0 hosts"),
        ("host=a,b user=u dbname=d", "has 2 hosts"),
        ("host='' user=u dbname=d", "empty host"),
        ("host=h port=1,2 user=u dbname=d", "one port"),
        ("host=h port=x user=u dbname=d", "port"),
        ("host=h user=u dbname=d sslmode=require", "sslmode"),
        ("host=h user=u dbname=d password=secret colour=red", "colour"),
        ("password=secret user", "invalid connection string"),
    ] {
        let error = check(bad).unwrap_err().to_string();
        assert!(error.starts_with("connection: ") && error.contains(part), "{bad}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    assert_eq!(check(&"x".repeat(5_000)), Err(SourceError::ConnectionTooLong { bytes: 5_000 }));
}

proptest! {
    #[test]
    fn no_connection_string_makes_it_panic(
        text in ".{0,60}|(postgres://)?(host|user|dbname|port|=|'|\\\\|:|@|/|\\?|%|,| |[a-z0-9]){0,20}"
    ) {
        _ = Postgres::new(&text, INTERVAL, INTERVAL);
    }
}

/// A server that does with every connection what `act` does.
fn serve(act: impl Fn(std::net::TcpStream) + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let act = act.clone();
            std::thread::spawn(move || act(stream));
        }
    });
    format!("host=127.0.0.1 port={port} user=gleaner dbname=shop")
}

async fn first_reading(connection: &str) -> String {
    let mut postgres = Postgres::new(connection, INTERVAL, Duration::from_millis(500)).unwrap();
    let started = Instant::now();
    let why = reason(postgres.read().await);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(why.chars().count() <= crate::response_times::LONGEST_REASON);
    why
}

#[tokio::test]
async fn servers_that_are_none_cost_the_time_limit_and_little_memory() {
    let silent = serve(|stream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
    });
    assert_eq!(first_reading(&silent).await, "no answer from PostgreSQL within 0.5 s");
    let web = serve(|mut stream| _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    first_reading(&web).await;
    let closed = serve(drop);
    first_reading(&closed).await;
    // A notice that never ends.
    let flood = serve(|mut stream| {
        _ = stream.read(&mut [0; 100]);
        _ = stream.write_all(&[b"N\x7f\xff\xff\xff".to_vec(), vec![b'x'; 4 << 20]].concat());
        std::thread::sleep(Duration::from_secs(60));
    });
    let why = first_reading(&flood).await;
    assert!(why.contains("sends more than 262144 bytes"), "{why}");
    let refused = b"E\0\0\0\x3bSFATAL\0C28000\0Mno entry for \x1b[31m host, user gleaner\0\0".to_vec();
    let refusing = serve(move |mut stream| {
        _ = stream.read(&mut [0; 100]);
        let mut answer = refused.clone();
        answer[4] = u8::try_from(answer.len() - 1).unwrap();
        _ = stream.write_all(&answer);
    });
    assert_eq!(first_reading(&refusing).await, "PostgreSQL says: no entry for  [31m host, user gleaner");
    let why = first_reading("host=/no/such user=gleaner dbname=shop").await;
    assert!(why.starts_with("failed to connect to `/no/such/.s.PGSQL.5432`: No such file"), "{why}");
}

/// The newest PostgreSQL of this machine.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.flatten().map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists()).max()
}

/// A server of its own, that trusts everybody who reaches its socket.
struct Server {
    folder: tempfile::TempDir,
    bin: PathBuf,
    port: String,
    postgres: Child,
}

/// As root PostgreSQL refuses to run.
fn as_postgres(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

impl Server {
    /// `None`, said loudly, where there is no PostgreSQL.
    fn start(test: &str, options: &[&str]) -> Option<Self> {
        let Some(bin) = programs() else {
            gleaner_test_support::skipped!("{test}: there is no /usr/lib/postgresql/*/bin; apt-get install postgresql");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            let chown = Command::new("chown").arg("postgres").arg(folder.path()).status();
            if !chown.is_ok_and(|status| status.success()) {
                gleaner_test_support::skipped!("{test}: there is no user postgres");
                return None;
            }
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        let made = as_postgres(&bin.join("initdb"))
            .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
            .arg(&data)
            .current_dir("/")
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let postgres = Self::postgres(&bin, folder.path(), &port, options);
        let server = Self { folder, bin, port, postgres };
        server.ready();
        Some(server)
    }

    fn postgres(bin: &Path, folder: &Path, port: &str, options: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        as_postgres(&bin.join("postgres"))
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-p", port, "-c", "listen_addresses=", "-c", "fsync=off", "-c"])
            .arg(format!("unix_socket_directories={}", folder.display()))
            .args(options)
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn ready(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.try_sql("SELECT 1") {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < until, "PostgreSQL does not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn psql(&self, user: &str, sql: &str) -> Command {
        let mut command = Command::new(self.bin.join("psql"));
        command.args([
            "-X",
            "-q",
            "-d",
            "postgres",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            user,
            "-c",
            sql,
            "-p",
            &self.port,
            "-h",
        ]);
        command.arg(self.folder.path()).current_dir("/").stdout(Stdio::null());
        command
    }

    fn try_sql(&self, sql: &str) -> bool {
        self.psql("postgres", sql).stderr(Stdio::null()).status().unwrap().success()
    }

    fn sql(&self, user: &str, sql: &str) {
        assert!(self.psql(user, sql).status().unwrap().success(), "{sql}");
    }

    fn restart(&mut self, options: &[&str]) {
        self.stop();
        self.postgres = Self::postgres(&self.bin, self.folder.path(), &self.port, options);
        self.ready();
    }

    fn stop(&mut self) {
        // SIGINT: a fast shutdown.
        _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.postgres),
            rustix::process::Signal::INT,
        );
        _ = self.postgres.wait();
    }

    fn reader(&self) -> Postgres {
        let (folder, port) = (self.folder.path().display(), &self.port);
        let connection = format!("host={folder} port={port} user=gleaner dbname=postgres");
        Postgres::new(&connection, INTERVAL, Duration::from_secs(10)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

const LOADED: [&str; 2] = ["-c", "shared_preload_libraries=pg_stat_statements"];

#[tokio::test]
async fn a_real_database_without_the_extension_says_what_to_do() {
    let Some(mut server) = Server::start("a_real_database_without_the_extension_says_what_to_do", &[]) else { return };
    server.sql("postgres", "CREATE ROLE gleaner LOGIN");
    let mut reader = server.reader();
    let why = reason(reader.read().await);
    assert!(why.contains("CREATE EXTENSION pg_stat_statements in database `postgres`"), "{why}");
    assert!(why.contains("shared_preload_libraries"), "{why}");
    server.sql("postgres", "CREATE EXTENSION pg_stat_statements");
    let why = reason(reader.read().await);
    assert!(why.contains("must be loaded via") && why.contains("shared_preload_libraries"), "{why}");
    server.restart(&LOADED);
    assert!(reason(reader.read().await).contains("first reading"));
    assert_eq!(reader.read().await, ResponseTime::Idle);
    server.sql("postgres", "DROP ROLE gleaner");
    let why = reason(server.reader().read().await);
    assert_eq!(why, "PostgreSQL says: role \"gleaner\" does not exist");
}

#[tokio::test]
async fn a_real_database_tells_its_mean() {
    let Some(mut server) = Server::start("a_real_database_tells_its_mean", &LOADED) else { return };
    server.sql("postgres", "CREATE SCHEMA \"Odd one\"; CREATE EXTENSION pg_stat_statements SCHEMA \"Odd one\"");
    server.sql("postgres", "CREATE ROLE gleaner LOGIN; CREATE ROLE shop LOGIN");
    server.sql("postgres", "CREATE DATABASE other");
    let why = reason(server.reader().read().await);
    assert_eq!(why, "PostgreSQL says: permission denied for schema Odd one");
    server.sql("postgres", "GRANT USAGE ON SCHEMA \"Odd one\" TO gleaner");
    let mut reader = server.reader();
    let why = reason(reader.read().await);
    assert!(why.contains("first reading"), "{why}");
    assert_eq!(reader.read().await, ResponseTime::Idle);

    // Two by somebody else count, one of 200 ms and one of 600 ms; Gleaner's own does not.
    server.sql("shop", "SELECT pg_sleep(0.2)");
    server.sql("shop", "SELECT pg_sleep(0.6)");
    server.sql("gleaner", "SELECT pg_sleep(0.01)");
    let Some(mean_ms) = reader.read().await.mean_ms() else { panic!("no mean") };
    assert!((400.0..700.0).contains(&mean_ms), "{mean_ms}");
    assert_eq!(reader.read().await, ResponseTime::Idle);
    let elsewhere = server.psql("shop", "SELECT pg_sleep(0.01)").args(["-d", "other"]).status().unwrap();
    assert!(elsewhere.success());
    assert_eq!(reader.read().await, ResponseTime::Idle, "what happens in another database does not count");

    // A database at a standstill is not idle; without the privilege it cannot be told from one that is.
    let mut stuck = server.psql("shop", "SELECT pg_sleep(60)").spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let mut answers = Vec::new();
    for grant in ["", "GRANT pg_monitor TO gleaner"] {
        server.sql("postgres", if grant.is_empty() { "SELECT 1" } else { grant });
        reader.read().await; // takes the statement of the line before
        let mut why = reader.read().await;
        while why == ResponseTime::Idle {
            assert!(Instant::now() < until);
            why = reader.read().await;
        }
        answers.push(why);
    }
    let [hidden, seen] = answers.try_into().unwrap();
    assert!(reason(hidden).contains("GRANT pg_monitor TO `gleaner`"));
    assert_eq!(seen, ResponseTime::Stalled);
    stuck.kill().unwrap();
    stuck.wait().unwrap();
    server.sql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'");

    server.sql("postgres", "SELECT \"Odd one\".pg_stat_statements_reset()");
    assert_eq!(reason(reader.read().await), "statistics were reset");

    // The connection is made anew when the server was away; statistics outlive a restart.
    server.stop();
    let why = reason(reader.read().await);
    assert!(why.contains("closed") || why.contains("failed to connect") || why.contains("terminating"), "{why}");
    assert!(reason(reader.read().await).contains("failed to connect"));
    server.restart(&LOADED);
    reader.read().await;
    server.sql("shop", "SELECT pg_sleep(0.02)");
    assert!(matches!(reader.read().await, ResponseTime::Mean { mean_ms } if mean_ms >= 20.0));

    // Who shares a user with the application would see nothing of it.
    for _ in 0..30 {
        server.sql("gleaner", "SELECT 1");
    }
    assert!(reason(reader.read().await).contains("a user of Gleaner's own"));

    // A reading that comes much later tells nothing of the last interval.
    reader.interval = Duration::from_millis(10);
    std::thread::sleep(Duration::from_millis(50));
    assert!(reason(reader.read().await).contains("the last reading was"));
}

#[tokio::test]
async fn dropped_statements_are_reported() {
    let few = [&LOADED[..], &["-c", "pg_stat_statements.max=100"]].concat();
    let Some(server) = Server::start("dropped_statements_are_reported", &few) else { return };
    server.sql("postgres", "CREATE EXTENSION pg_stat_statements; CREATE ROLE gleaner LOGIN IN ROLE pg_monitor");
    let mut reader = server.reader();
    reader.read().await;
    let columns = |n: usize| vec!["1"; n].join(", ");
    let many: Vec<String> = (1..200).map(|n| format!("SELECT {}", columns(n))).collect();
    server.sql("postgres", &many.join("; "));
    assert!(reason(reader.read().await).contains("pg_stat_statements.max must be raised"));
}

#[tokio::test]
async fn a_real_database_over_tls_is_verified() {
    let Some(mut server) = Server::start("a_real_database_over_tls_is_verified", &LOADED) else { return };
    server.sql("postgres", "CREATE EXTENSION pg_stat_statements; CREATE ROLE gleaner LOGIN PASSWORD 'hunter2-hunter2'");
    let folder = server.folder.path().to_owned();
    let (site, other) = (Site::make(&folder.join("own")), Site::make(&folder.join("other")));
    if rustix::process::geteuid().is_root() {
        // PostgreSQL takes no key that others may read, and none that it may not.
        for file in [&site.server.0, &site.server.1] {
            assert!(Command::new("chown").arg("postgres").arg(file).status().unwrap().success());
        }
    }
    fs::set_permissions(&site.server.1, Permissions::from_mode(0o600)).unwrap();
    // Only over TLS, with a certificate of the authority for the role, and its password.
    fs::write(
        folder.join("data/pg_hba.conf"),
        "local all all trust\nhostssl all gleaner 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n",
    )
    .unwrap();
    let file = |name: &str, file: &Path| format!("{name}={}", file.display());
    let (certificate, key) = (file("ssl_cert_file", &site.server.0), file("ssl_key_file", &site.server.1));
    let ca = file("ssl_ca_file", &site.ca);
    let encrypted = [
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "ssl=on",
        "-c",
        &certificate,
        "-c",
        &key,
        "-c",
        &ca,
        "-c",
        LOADED[1],
    ];
    server.restart(&encrypted);

    let base = format!("port={} user=gleaner dbname=postgres password=hunter2-hunter2", server.port);
    let roots = |site: &Site| format!("sslrootcert={}", site.ca.display());
    let client = |site: &Site| format!("sslcert={} sslkey={}", site.client.0.display(), site.client.1.display());
    let reader = |words: &str| Postgres::new(&format!("{base} {words}"), INTERVAL, Duration::from_secs(10)).unwrap();
    let (own, shows) = (roots(&site), client(&site));
    for (words, part) in [
        ("host=127.0.0.1".to_owned(), "no encryption"),
        (format!("host=127.0.0.1 sslmode=verify-full {} {shows}", roots(&other)), "invalid peer certificate"),
        (format!("host=127.0.0.1 sslmode=verify-full {shows}"), ""),
        (format!("host=localhost hostaddr=127.0.0.1 sslmode=verify-full {own} {shows}"), "not valid for name"),
        (format!("host=127.0.0.1 sslmode=verify-full {own}"), ""),
        (format!("host=127.0.0.1 sslmode=verify-full {own} {}", client(&other)), ""),
        (
            format!("host=127.0.0.1 sslmode=verify-full sslrootcert={}", folder.join("log").display()),
            "no certificate in",
        ),
    ] {
        let why = reason(reader(&words).read().await);
        assert!(why.contains(part) && !why.contains("first reading") && !why.contains("hunter2"), "{words}: {why}");
    }
    let words = format!("host=127.0.0.1 sslmode=verify-full {own} {shows}");
    let mut encrypted = reader(&words);
    let first = reason(encrypted.read().await);
    assert!(first.contains("first reading"), "{first}");
    server.sql("postgres", "SELECT pg_sleep(0.05)");
    assert!(matches!(encrypted.read().await, ResponseTime::Mean { mean_ms } if mean_ms >= 50.0));
    let shown = shown(&format!("{base} {words}"));
    assert!(shown.ends_with(&format!("password=(withheld) sslmode=verify-full {own} {shows}")), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    // A server without TLS is not spoken to.
    fs::write(folder.join("data/pg_hba.conf"), "local all all trust\nhost all all 127.0.0.1/32 trust\n").unwrap();
    server.restart(&["-c", "listen_addresses=127.0.0.1", "-c", LOADED[1]]);
    let why = reason(reader(&words).read().await);
    assert!(why.contains("does not support TLS"), "{why}");
}
