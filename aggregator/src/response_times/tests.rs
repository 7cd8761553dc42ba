//! Every source through [`ResponseReader`], and servers that behave badly.

pub(super) mod certificates;
mod https;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gleaner_types::application::{Access, TimeUnit};
use proptest::prelude::*;

use super::answer::shortened;
use super::*;

const INTERVAL: Duration = Duration::from_secs(30);

/// A server; what `answer` makes of a request's first line is sent, slowly from where it says `...`.
fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    // They end with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer_one(&stream, &*answer));
        }
    });
    format!("http://{address}")
}

fn answer_one(mut stream: &TcpStream, answer: &(dyn Fn(&str) -> Vec<u8> + Send + Sync)) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    lines.find(String::is_empty);
    let bytes = answer(&request);
    if stream.write_all(&bytes).is_ok() && bytes.ends_with(b"...") {
        // One byte at a time: no single read is late.
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

fn prometheus(url: &str) -> ResponseSource {
    ResponseSource::Prometheus {
        url: url.to_owned(),
        query: "sum(rate(s[1m])) / 2".to_owned(),
        access: Access::default(),
    }
}

fn document(url: &str) -> ResponseSource {
    ResponseSource::Http {
        url: url.to_owned(),
        pointer: "/latency/mean".to_owned(),
        unit: TimeUnit::Seconds,
        access: Access::default(),
    }
}

fn exposition(url: &str) -> ResponseSource {
    ResponseSource::Openmetrics {
        url: url.to_owned(),
        metric: "wait_seconds".to_owned(),
        labels: BTreeMap::from([("path".to_owned(), "/order".to_owned())]),
        in_flight: None,
        unit: TimeUnit::Seconds,
        access: Access::default(),
    }
}

async fn read(source: &ResponseSource) -> ResponseTime {
    ResponseReader::new(source, INTERVAL).unwrap().read().await
}

async fn reason(source: &ResponseSource) -> String {
    reason_of(read(source).await)
}

fn reason_of(time: ResponseTime) -> String {
    match time {
        ResponseTime::Missing { reason } => {
            assert!(reason.chars().count() <= LONGEST_REASON && !reason.contains(char::is_control), "{reason:?}");
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn good_servers_are_read() {
    let asked = Arc::new(Mutex::new(String::new()));
    let note = Arc::clone(&asked);
    let url = serve(move |request| {
        request.clone_into(&mut note.lock().unwrap());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let result = format!("[{{\"metric\":{{}},\"value\":[{now:.3},\"0.125\"]}}]");
        http(
            "200 OK",
            &format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":{result}}}}}"),
        )
    });
    assert_eq!(read(&prometheus(&format!("{url}/prometheus/"))).await, ResponseTime::Mean { mean_ms: 125.0 });
    let expect = "GET /prometheus/api/v1/query?query=sum(rate(s%5B1m%5D))%20%2F%202 HTTP/1.1";
    let plain = |text: &str| text.replace("%28", "(").replace("%29", ")").replace('+', "%20");
    assert_eq!(plain(&asked.lock().unwrap()), expect);

    let url = serve(|request| {
        assert_eq!(request, "GET /stats?a=b HTTP/1.1");
        http("200 OK", r#"{"latency": {"mean": 0.004}}"#)
    });
    assert_eq!(read(&document(&format!("{url}/stats?a=b"))).await, ResponseTime::Mean { mean_ms: 4.0 });
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let url = serve(move |request| {
        assert_eq!(request, "GET /metrics HTTP/1.1");
        let count = 10 + 4 * count.fetch_add(1, Ordering::Relaxed);
        let series =
            format!("wait_seconds_count{{path=\"/order\"}} {count}\nwait_seconds_sum{{path=\"/order\"}} {count}\n");
        http("200 OK", &format!("{series}wait_seconds_count{{path=\"/\"}} 9\nwait_seconds_sum{{path=\"/\"}} {count}\n"))
    });
    let mut reader = ResponseReader::new(&exposition(&format!("{url}/metrics")), INTERVAL).unwrap();
    assert!(reason_of(reader.read().await).contains("first reading"));
    assert_eq!(reader.read().await, ResponseTime::Mean { mean_ms: 1_000.0 });
    assert_eq!(reader.read().await, ResponseTime::Mean { mean_ms: 1_000.0 });
    assert_eq!(asked.load(Ordering::Relaxed), 3);

    let kept = serve(|_| b"HTTP/1.1 200 OK\r\nAge: 600\r\nContent-Length: 1\r\n\r\n7".to_vec());
    assert_eq!(read(&document(&kept)).await, ResponseTime::Late { age_s: 600.0 });
}

#[tokio::test]
async fn bad_answers_are_missing_with_their_reason() {
    for source in [prometheus as fn(&str) -> ResponseSource, document, exposition] {
        for (answer, part) in [
            (http("404 Not Found", "<html>"), "HTTP status 404"),
            (http("503 Busy", ""), "HTTP status 503"),
            (http("200 OK", "<html>"), "the answer of http://127.0.0.1"),
            (http("302 Found\r\nLocation: http://127.0.0.1:1/", ""), "HTTP status 302"),
            (b"no http at all\r\n\r\n".to_vec(), "no answer from"),
            (Vec::new(), "no answer from"),
            (format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100_000)).into_bytes(), "no answer from"),
            (http("200 OK", &" ".repeat(9 << 20)), "exceeds "),
        ] {
            let url = serve(move |_| answer.clone());
            let reason = reason(&source(&url)).await;
            assert!(reason.contains(part), "{part}: {reason}");
        }
        assert!(reason(&source("http://127.0.0.1:1")).await.contains("no answer from http://127.0.0.1:1"));
    }
    let error = r#"{"status":"error","errorType":"bad_data","error":"1:8: parse error: unclosed left parenthesis"}"#;
    let url = serve(|_| http("400 Bad Request", error));
    let expect = "Prometheus says `bad_data`: 1:8: parse error: unclosed left parenthesis";
    assert_eq!(reason(&prometheus(&url)).await, expect);
}

#[tokio::test]
async fn servers_that_never_finish_cost_the_time_limit() {
    for source in [prometheus as fn(&str) -> ResponseSource, document, exposition] {
        for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{ ...", "HTTP/1.1 200 ..."] {
            let url = serve(move |_| answer.as_bytes().to_vec());
            let limit = Duration::from_millis(500);
            let mut reader = ResponseReader::with_time_limit(&source(&url), INTERVAL, limit).unwrap();
            let started = Instant::now();
            let reason = reason_of(reader.read().await);
            assert!(reason.ends_with("within 0.5 s"), "{reason}");
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        }
    }
}

#[tokio::test]
async fn values_are_handed_to_a_reader() {
    let mut reader = ResponseReader::new(&ResponseSource::Push, INTERVAL).unwrap();
    assert!(matches!(reader.read().await, ResponseTime::Missing { .. }));
    let pushed = reader.pushed().unwrap();
    pushed.push(3.0, Instant::now()).unwrap();
    pushed.push(5.0, Instant::now()).unwrap();
    assert_eq!(reader.read().await, ResponseTime::Mean { mean_ms: 4.0 });
    assert!(matches!(reader.read().await, ResponseTime::Missing { .. }));
    assert!(ResponseReader::new(&document("http://h"), INTERVAL).unwrap().pushed().is_none());
}

#[tokio::test]
async fn a_program_is_run() {
    let program = ["/bin/sh", "-c", "echo $1", "sh", "6.5"].map(str::to_owned).to_vec();
    assert_eq!(read(&ResponseSource::Exec { program }).await, ResponseTime::Mean { mean_ms: 6.5 });
}

#[test]
fn what_is_wrong_with_a_source_is_named() {
    let exec =
        |program: &[&str]| ResponseSource::Exec { program: program.iter().map(|&text| text.to_owned()).collect() };
    let secure = |url: &str, access: Access| {
        let (url, query) = (url.to_owned(), "up".to_owned());
        ResponseSource::Prometheus { url, query, access }
    };
    let query = |query: &str| ResponseSource::Prometheus {
        url: "http://h:9090".to_owned(),
        query: query.to_owned(),
        access: Access::default(),
    };
    let file = |name: &str| Some(name.to_owned());
    let ca = |name: &str| Access { ca: file(name), ..Access::default() };
    let token = |name: &str| Access { bearer_token_file: file(name), ..Access::default() };
    let client = |certificate, key| Access { certificate, key, ..ca("/etc/ca.pem") };
    let pointer = |pointer: &str| {
        let (url, pointer) = ("http://h".to_owned(), pointer.to_owned());
        ResponseSource::Http { url, pointer, unit: TimeUnit::Seconds, access: Access::default() }
    };
    let postgres = |connection: &str| ResponseSource::Postgres { connection: connection.to_owned() };
    let metrics = |metric: &str, label: &str, in_flight: &str| ResponseSource::Openmetrics {
        url: "http://h/metrics".to_owned(),
        metric: metric.to_owned(),
        labels: BTreeMap::from([(label.to_owned(), "any \"text\"".to_owned())]),
        in_flight: Some(in_flight.to_owned()),
        unit: TimeUnit::Seconds,
        access: Access::default(),
    };
    for good in [
        metrics("job:wait_seconds", "path_1", "requests"),
        ResponseSource::Push,
        prometheus("http://[fd00::1]:9090/prefix/"),
        prometheus("https://h:9090"),
        secure("https://h", token("/token")),
        secure("https://h", client(file("/c.pem"), file("/k.pem"))),
        document("http://h/stats?key=%20"),
        exec(&["/bin/true"]),
        pointer(""),
        postgres("host=/run/postgresql user=gleaner dbname=shop"),
    ] {
        check(&good).unwrap();
    }
    for (bad, part) in [
        (prometheus("ftp://h:9090"), "url: is `ftp://h:9090`; it must begin with http:// or https://"),
        (secure("https://h", ca("ca.pem")), "access.ca: is `ca.pem`; it must be the absolute path of a file"),
        (
            secure("http://h", ca("/ca.pem")),
            "access.ca: is `/ca.pem`; it must be left out, or the url begin with https",
        ),
        (secure("http://h", token("/token")), "access.bearer_token_file: is `/token`; it must be left out, or the url"),
        (
            secure("https://h", client(file("/c.pem"), None)),
            "access.certificate: is `/c.pem`; it must come with access.key",
        ),
        (
            secure("https://h", client(None, file("/k.pem"))),
            "access.key: is `/k.pem`; it must come with access.certificate",
        ),
        (prometheus("http://h:9090?a=b"), "url: is `http://h:9090?(withheld)`; it must"),
        (prometheus(""), "url: is ``"),
        (document("http://"), "url: is `http://`; it must be http://HOST:PORT/PATH"),
        (document("http://:80/"), "url: "),
        (document("http://h:port/"), "url: "),
        (document("http://user:secret@h/"), "url: is `(withheld)`; it must"),
        (document("http://h/a b"), "without blanks"),
        (document("http://h/\u{e9}"), "ASCII"),
        (query(""), "query: is ``"),
        (query("  "), "query: "),
        (query(&"x".repeat(5_000)), "it must have 1 to 4096 bytes"),
        (pointer("latency"), "pointer: is `latency`; it must begin with `/`"),
        (exec(&[]), "program: is empty"),
        (exec(&["true"]), "program: is `true`; it must be an absolute path"),
        (exec(&["/bin/echo", "a\0b"]), "NUL"),
        (exec(&["/bin/true"; 100]), "program: has 99 arguments"),
        (postgres("host=h user=u"), "connection: has no dbname"),
        (metrics("wait{}", "path", "requests"), "metric: is `wait{}`; it must be a metric's name"),
        (metrics("", "path", "requests"), "metric: is ``"),
        (metrics("wait", "the path", "requests"), "labels: is `the path` = `any \"text\"`; there may be 32"),
        (metrics("wait", "path", "7"), "in_flight: is `7`"),
    ] {
        let error = check(&bad).unwrap_err().to_string();
        assert!(error.contains(part) && error.len() < 300, "{part}: {error}");
    }
}

#[test]
fn the_documented_sources_are_right() {
    #[derive(serde::Deserialize)]
    struct Sample {
        response_time: ResponseSource,
    }
    let mut kinds = std::collections::HashSet::new();
    for block in include_str!("../../../docs/applications.md").split("\n\n") {
        let lines: Option<Vec<&str>> = block.lines().map(|line| line.strip_prefix("    ")).collect();
        let Some(sample) = lines.filter(|lines| lines.iter().any(|line| line.contains("response_time"))) else {
            continue;
        };
        let Sample { response_time } = toml::from_str(&sample.join("\n")).unwrap();
        check(&response_time).unwrap();
        kinds.insert(std::mem::discriminant(&response_time));
    }
    assert_eq!(kinds.len(), 6);
}

proptest! {
    #[test]
    fn messages_are_short_and_plain(text in ".{0,300}", longest in 1_usize..250) {
        let short = shortened(&text, longest);
        prop_assert!(short.chars().count() <= longest && !short.contains(char::is_control));
        prop_assert!(text.chars().count() > longest || short.chars().count() == text.chars().count());
    }
}

#[test]
fn the_shown_form_of_a_source_holds_no_secret() {
    let http = |url: &str| ResponseSource::Http {
        url: url.into(),
        pointer: "/a".into(),
        unit: TimeUnit::Seconds,
        access: Access::default(),
    };
    let postgres = |connection: &str| ResponseSource::Postgres { connection: connection.into() };
    let hidden = "host=10.0.0.1 port=5433 user=gleaner dbname=shop password=(withheld)";
    for (source, expected) in [
        (http("http://h/stats?key=secret"), http("http://h/stats?(withheld)")),
        (http("http://h/stats"), http("http://h/stats")),
        (postgres("host=10.0.0.1 port=5433 user=gleaner password=secret dbname=shop"), postgres(hidden)),
        (postgres("password = 'a secret' host=10.0.0.1 port=5433 user=gleaner dbname=shop"), postgres(hidden)),
        (postgres("postgresql://gleaner:secret@10.0.0.1:5433/shop"), postgres(hidden)),
        (postgres("postgresql://gleaner@10.0.0.1:5433/shop?password=secret"), postgres(hidden)),
        (
            postgres("host=/run/postgresql user=gleaner dbname=shop"),
            postgres("host=/run/postgresql user=gleaner dbname=shop"),
        ),
        (postgres("no 'connection secret"), postgres("(withheld)")),
        (ResponseSource::Push, ResponseSource::Push),
    ] {
        assert_eq!(shown(&source), expected, "{source:?}");
    }
}
