//! Sources over HTTPS: whom they believe, what they show, and that a token is in no message.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::super::*;
use super::certificates::Site;
use super::{INTERVAL, http, read, reason};
use gleaner_types::application::{Access, TimeUnit};

const TOKEN: &str = "s3cr3t-t0ken-of-the-site";

/// A server that wants a client's certificate, and the heads of the requests that it had.
fn serve(site: &Site, body: impl Fn(&str) -> Vec<u8> + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_file(&site.server.0).unwrap()],
            PrivateKeyDer::from_pem_file(&site.server.1).unwrap(),
        )
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    // It ends with the test's process.
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match std::io::Read::read(&mut stream, &mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => break,
                }
            }
            let head = String::from_utf8(head).unwrap();
            if !head.is_empty() {
                _ = std::io::Write::write_all(&mut stream, &body(&head));
                seen.lock().unwrap().push(head);
            }
            stream.conn.send_close_notify();
            _ = std::io::Write::flush(&mut stream);
        }
    });
    (format!("https://{address}"), heads)
}

fn text(file: &Path) -> Option<String> {
    Some(file.to_str().unwrap().to_owned())
}

fn exposition(url: &str, access: Access) -> ResponseSource {
    let (url, metric) = (format!("{url}/metrics"), "wait_seconds".to_owned());
    ResponseSource::Openmetrics {
        url,
        metric,
        labels: std::collections::BTreeMap::new(),
        in_flight: None,
        unit: TimeUnit::Seconds,
        access,
    }
}

#[tokio::test]
async fn an_exposition_over_https_is_read_by_who_shows_a_certificate_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let (site, other) = (Site::make(&folder.path().join("own")), Site::make(&folder.path().join("other")));
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    let (url, heads) = serve(&site, move |_| {
        let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        http("200 OK", &format!("wait_seconds_sum {}\nwait_seconds_count {}\n", f64::from(count) / 4.0, count))
    });
    let access = Access {
        ca: text(&site.ca),
        certificate: text(&site.client.0),
        key: text(&site.client.1),
        bearer_token_file: text(&token_file),
    };
    for (wrong, part) in [
        (Access { ca: text(&other.ca), ..access.clone() }, "invalid peer certificate"),
        // What the system believes does not believe it.
        (Access { ca: None, ..access.clone() }, ""),
        (Access { certificate: None, key: None, ..access.clone() }, ""),
        (Access { certificate: text(&other.client.0), key: text(&other.client.1), ..access.clone() }, ""),
        (Access { key: text(&other.client.1), ..access.clone() }, ""),
        (Access { ca: text(&token_file), ..access.clone() }, "there is no certificate in"),
        (Access { bearer_token_file: text(&site.ca), ..access.clone() }, "holds no token"),
        (Access { bearer_token_file: text(&folder.path().join("none")), ..access.clone() }, "failed to read"),
        (Access { ca: Some("/dev/zero".to_owned()), ..access.clone() }, "not a regular file"),
    ] {
        let why = reason(&exposition(&url, wrong)).await;
        assert!(why.contains(part) && !why.contains(TOKEN), "{part}: {why}");
    }
    // A server of another name.
    let named = url.replace("127.0.0.1", "localhost");
    assert!(reason(&exposition(&named, access.clone())).await.contains("not valid for name"));
    assert!(heads.lock().unwrap().is_empty(), "nobody else was sent a request, nor the token");

    let source = exposition(&url, access);
    let mut reader = ResponseReader::new(&source, INTERVAL).unwrap();
    assert!(matches!(reader.read().await, ResponseTime::Missing { .. }), "the first reading");
    assert_eq!(reader.read().await, ResponseTime::Mean { mean_ms: 250.0 });
    // A renewed token counts for the next question.
    std::fs::write(&token_file, "another-token").unwrap();
    assert_eq!(reader.read().await, ResponseTime::Mean { mean_ms: 250.0 });
    let heads = heads.lock().unwrap();
    let authorized = |token: &str| {
        let head = format!("authorization: bearer {token}\r\n").to_lowercase();
        heads.iter().filter(|sent| sent.to_lowercase().contains(&head)).count()
    };
    assert_eq!((heads.len(), authorized(TOKEN), authorized("another-token")), (3, 2, 1));
    let shown = serde_json::to_string(&shown(&source)).unwrap();
    assert!(shown.contains("bearer_token_file") && !shown.contains(TOKEN), "{shown}");
}

/// A server may say the token in its refusal.
#[tokio::test]
async fn a_token_that_a_server_repeats_is_withheld() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::make(folder.path());
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let (url, _) = serve(&site, |_| {
        let error = format!(r#"{{"status":"error","errorType":"{TOKEN}","error":"bad token {TOKEN}"}}"#);
        http(&format!("401 Bad {TOKEN}\r\nAge: {TOKEN}"), &error)
    });
    let access = Access {
        ca: text(&site.ca),
        certificate: text(&site.client.0),
        key: text(&site.client.1),
        bearer_token_file: text(&token_file),
    };
    let query = ResponseSource::Prometheus { url: url.clone(), query: "up".to_owned(), access: access.clone() };
    assert_eq!(reason(&query).await, "Prometheus says `(withheld)`: bad token (withheld)");
    let (pointer, unit) = (String::new(), TimeUnit::Seconds);
    for source in [exposition(&url, access.clone()), ResponseSource::Http { url, pointer, unit, access }] {
        let why = reason(&source).await;
        assert!(why.contains("HTTP status 401") && !why.contains(TOKEN), "{why}");
        assert!(!format!("{:?}", read(&source).await).contains(TOKEN));
        assert!(!format!("{:?}", ResponseReader::new(&source, INTERVAL)).contains(TOKEN));
    }
}
