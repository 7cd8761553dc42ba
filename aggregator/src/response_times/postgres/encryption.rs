//! Encrypted connections to PostgreSQL. In: the words of a connection string about TLS, as PostgreSQL's own clients have them
//! (PostgreSQL's manual, "SSL Support"). Out: a connector that verifies the server, for the connection.
//!
//! There is `verify-full` and no encryption: who encrypts and does not verify may speak to anybody.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::super::answer::quoted;
use super::super::error::{PostgresError, SourceError};
use super::socket::Bounded;
use crate::http::TlsFiles;

/// What connections that are encrypted at once name their protocol.
const ALPN: &[u8] = b"postgresql";
/// The authorities that the system believes, as a value of `sslrootcert`.
const SYSTEM: &str = "system";

/// What a connection string says of encryption.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    sslmode: Option<String>,
    sslrootcert: Option<String>,
    sslcert: Option<String>,
    sslkey: Option<String>,
}

/// How a server is verified, and what it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Encryption {
    files: TlsFiles,
    server: ServerName<'static>,
}

impl Words {
    /// Takes them out of a connection string, because the client's own parser does not know them. Returns the rest, as it was.
    pub(super) fn split(connection: &str) -> (String, Self) {
        let mut own = Self::default();
        let words = match connection.starts_with("postgres://") || connection.starts_with("postgresql://") {
            true => parameters(connection),
            false => keywords(connection),
        };
        let mut rest = connection.to_owned();
        // From the last on, so that the places of those before stay.
        for Word { key, value, place } in words.into_iter().rev() {
            let field = match key.as_str() {
                "sslmode" => &mut own.sslmode,
                "sslrootcert" => &mut own.sslrootcert,
                "sslcert" => &mut own.sslcert,
                "sslkey" => &mut own.sslkey,
                _ => continue,
            };
            // Of several, the last counts.
            field.get_or_insert(value);
            rest.replace_range(place, "");
        }
        (rest, own)
    }

    /// As words of a connection string.
    pub(super) fn shown(&self) -> impl Iterator<Item = String> {
        let all = [
            ("sslmode", &self.sslmode),
            ("sslrootcert", &self.sslrootcert),
            ("sslcert", &self.sslcert),
            ("sslkey", &self.sslkey),
        ];
        all.into_iter().filter_map(|(key, value)| value.as_ref().map(|value| format!("{key}={value}")))
    }

    /// What they mean for a connection; `None` is one that is not encrypted.
    ///
    /// # Errors
    /// [`SourceError`]: the word that is wrong.
    pub(super) fn encryption(&self, config: &mut Config) -> Result<Option<Encryption>, SourceError> {
        let files = [("sslrootcert", &self.sslrootcert), ("sslcert", &self.sslcert), ("sslkey", &self.sslkey)];
        // Values are not quoted: in a malformed string they may hold what follows them, a password too.
        let refuse = |word, rule| Err(SourceError::ConnectionFile { word, rule });
        let is_verified = match self.sslmode.as_deref() {
            Some("verify-full") => true,
            None | Some("disable" | "allow" | "prefer") => false,
            Some(_) => return Err(SourceError::ConnectionUnverified),
        };
        for (word, value) in files.into_iter().filter_map(|(word, value)| value.as_ref().map(|value| (word, value))) {
            if !is_verified {
                return refuse(word, "be left out, or come with sslmode=verify-full");
            }
            let is_system = word == "sslrootcert" && value == SYSTEM;
            if !(is_system || Path::new(value).is_absolute()) {
                return refuse(word, "be the absolute path of a file");
            }
        }
        match (&self.sslcert, &self.sslkey) {
            (Some(_), None) => return refuse("sslcert", "come with sslkey"),
            (None, Some(_)) => return refuse("sslkey", "come with sslcert"),
            _ => {}
        }
        if !is_verified {
            config.ssl_mode(SslMode::Disable);
            return Ok(None);
        }
        config.ssl_mode(SslMode::Require);
        let name = match (config.get_hosts(), config.get_hostaddrs()) {
            ([Host::Tcp(name)], _) => name.clone(),
            ([], [address]) => address.to_string(),
            _ => return Err(SourceError::ConnectionSocket),
        };
        let server = ServerName::try_from(name.clone()).map_err(|_| SourceError::ConnectionName(quoted(&name)))?;
        let path = |file: &Option<String>| file.as_ref().map(PathBuf::from);
        let ca = path(&self.sslrootcert).filter(|ca| ca != Path::new(SYSTEM));
        let files = TlsFiles { ca, client: path(&self.sslcert).zip(path(&self.sslkey)) };
        Ok(Some(Encryption { files, server }))
    }
}

impl Encryption {
    /// A connector, for which the files are read.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub(super) async fn connector(&self) -> Result<Connector, PostgresError> {
        let (files, server) = (self.files.clone(), self.server.clone());
        let read = tokio::task::spawn_blocking(move || files.client_config()).await;
        let mut config = read.map_err(|error| PostgresError::Client(error.to_string()))??;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Connector { config: Arc::new(config), server })
    }
}

/// Encrypts a socket, once the server is verified.
pub(super) struct Connector {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl TlsConnect<Bounded> for Connector {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Bounded) -> Self::Future {
        Box::pin(async move {
            let connecting = tokio_rustls::TlsConnector::from(self.config).connect(self.server, socket);
            Ok(Encrypted(Box::new(connecting.await?)))
        })
    }
}

/// A socket that is encrypted.
pub(super) struct Encrypted(Box<tokio_rustls::client::TlsStream<Bounded>>);

impl TlsStream for Encrypted {
    /// None: the server is verified by its certificate.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// One `KEY = VALUE` of a connection string.
struct Word {
    key: String,
    value: String,
    /// Its bytes in the string, with what separates it from its neighbour.
    place: Range<usize>,
}

/// Words `KEY = VALUE`, values in quotes or without, as far as they are well formed.
fn keywords(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(word) = keyword(text, at) {
        at = word.place.end;
        words.push(word);
    }
    words
}

fn keyword(text: &str, at: usize) -> Option<Word> {
    let rest = text.get(at..)?;
    let (key, after) = rest.split_once('=')?;
    let begin = text.len() - after.trim_start().len();
    let is_quoted = text.get(begin..)?.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.get(begin + usize::from(is_quoted)..)?.char_indices();
    let end = loop {
        match characters.next() {
            None if is_quoted => return None,
            None => break text.len(),
            Some((place, '\'')) if is_quoted => break begin + 1 + place + 1,
            Some((place, blank)) if !is_quoted && blank.is_whitespace() => break begin + place,
            Some((_, '\\')) => value.push(characters.next()?.1),
            Some((_, plain)) => value.push(plain),
        }
    };
    Some(Word { key: key.trim().to_owned(), value, place: at..end })
}

/// The parameters of an address, behind its `?`. They are taken as they are written.
fn parameters(text: &str) -> Vec<Word> {
    let Some(begin) = text.find('?').map(|at| at + 1) else { return Vec::new() };
    let mut at = begin;
    let mut words = Vec::new();
    for parameter in text[begin..].split('&') {
        // With the separator behind it, if there is one.
        let end = (at + parameter.len() + 1).min(text.len());
        if let Some((key, value)) = parameter.split_once('=') {
            words.push(Word { key: key.to_owned(), value: value.to_owned(), place: at..end });
        }
        at = end;
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(connection: &str) -> Result<Option<Encryption>, SourceError> {
        let (rest, words) = Words::split(connection);
        words.encryption(&mut rest.parse().unwrap())
    }

    #[test]
    fn words_about_tls_are_taken_out_and_the_rest_stays() {
        let (rest, words) = Words::split(
            r"host=db.example sslmode = verify-full user='a \'b' sslrootcert='/etc/the ca.pem' dbname=s sslcert=/c sslkey=/k",
        );
        assert_eq!(rest, r"host=db.example user='a \'b' dbname=s");
        let shown: Vec<String> = words.shown().collect();
        assert_eq!(shown, ["sslmode=verify-full", "sslrootcert=/etc/the ca.pem", "sslcert=/c", "sslkey=/k"]);
        let (rest, words) = Words::split("postgresql://u:p@h/d?sslmode=verify-full&application_name=x&sslrootcert=/ca");
        assert_eq!(rest, "postgresql://u:p@h/d?application_name=x&");
        assert_eq!(words.shown().collect::<Vec<_>>(), ["sslmode=verify-full", "sslrootcert=/ca"]);
        assert!(rest.parse::<Config>().is_ok());
        for plain in ["host=/run/postgresql user=gleaner dbname=shop", "postgresql://h/d", "no 'connection"] {
            assert_eq!(Words::split(plain), (plain.to_owned(), Words::default()));
        }
    }

    #[test]
    fn a_server_is_verified_by_its_name_or_its_address() {
        let found =
            |connection: &str| of(connection).unwrap().map(|own| (own.server.to_str().into_owned(), own.files.ca));
        assert_eq!(found("host=db.example"), None);
        assert_eq!(found("host=db.example sslmode=prefer"), None);
        assert_eq!(found("host=db.example sslmode=verify-full"), Some(("db.example".to_owned(), None)));
        let by_address = "hostaddr=10.0.0.1 sslmode=verify-full sslrootcert=/ca.pem";
        assert_eq!(found(by_address), Some(("10.0.0.1".to_owned(), Some("/ca.pem".into()))));
        let both = "host=db.example hostaddr=10.0.0.1 sslmode=verify-full sslrootcert=system";
        assert_eq!(found(both), Some(("db.example".to_owned(), None)));
    }

    #[test]
    fn what_does_not_verify_is_refused() {
        for (words, part) in [
            ("sslmode=require", "sslmode: must be `verify-full`"),
            ("sslmode=verify-ca", "sslmode: must be `verify-full`"),
            ("sslmode= password=secret", "sslmode: must be `verify-full`"),
            ("sslrootcert=/ca", "sslrootcert: must be left out, or come with sslmode=verify-full"),
            ("sslmode=verify-full sslrootcert=ca", "sslrootcert: must be the absolute path"),
            ("sslmode=verify-full sslcert=/c", "sslcert: must come with sslkey"),
            ("sslmode=verify-full sslkey=/k", "sslkey: must come with sslcert"),
        ] {
            let error = of(&format!("host=h {words}")).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{part}: {error}");
        }
        assert_eq!(of("host=/run/postgresql sslmode=verify-full"), Err(SourceError::ConnectionSocket));
        assert!(matches!(of("host=a_b! sslmode=verify-full"), Err(SourceError::ConnectionName(_))));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(sslmode|host|[ ='\\\\?&]|postgres://|é|x){0,12}") {
            let (rest, words) = Words::split(&text);
            if let Ok(mut config) = rest.parse() {
                _ = words.encryption(&mut config);
            }
        }
    }
}
