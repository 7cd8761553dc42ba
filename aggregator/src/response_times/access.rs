//! Access to a source over HTTPS. In: names of files in its description. Out: a client that believes and shows them, and a
//! token for its requests. Called by the address that is asked.
//!
//! Files are read for each question, so that renewed ones count without a restart. A token is in memory only while a question is
//! asked, and never in a message: what a server says of it is replaced.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::application::Access;

use super::answer::{WITHHELD, quoted};
use super::error::SourceError;
use crate::http::{self, TlsError, TlsFiles, read_regular};

/// Shortest and longest token, in bytes. Chosen: what is shorter is none, and Kubernetes' have some 1,000.
const SHORTEST_TOKEN: usize = 8;
const LONGEST_TOKEN: usize = 8 << 10;

/// Files of a source's access cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    /// A certificate or a key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The disk does not give the token.
    #[error("failed to read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is there is no token.
    #[error(
        "{} holds no token: it must be {SHORTEST_TOKEN} to {LONGEST_TOKEN} ASCII characters without blanks",
        file.display()
    )]
    NoToken {
        /// The file.
        file: PathBuf,
    },
}

/// A secret for the header `Authorization`.
pub(super) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WITHHELD)
    }
}

impl Token {
    /// The header's value (RFC 6750, section 2.1).
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// A text from the server, without the token.
    pub(super) fn withhold(&self, text: String) -> String {
        if text.contains(&self.0) { text.replace(&self.0, WITHHELD) } else { text }
    }
}

/// That an access may belong to an address.
///
/// # Errors
/// [`SourceError::Access`].
pub(super) fn check(access: &Access, url: &str) -> Result<(), SourceError> {
    let Access { ca, certificate, key, bearer_token_file } = access;
    let refuse = |field, value: &str, rule| Err(SourceError::Access { field, value: quoted(value), rule });
    let fields = [("ca", ca), ("certificate", certificate), ("key", key), ("bearer_token_file", bearer_token_file)];
    for (field, file) in fields {
        let Some(file) = file else { continue };
        if !Path::new(file).is_absolute() {
            return refuse(field, file, "be the absolute path of a file");
        }
        // A token in plain text is anybody's.
        if !url.starts_with("https://") {
            return refuse(field, file, "be left out, or the url begin with https://");
        }
    }
    match (certificate, key) {
        (Some(certificate), None) => refuse("certificate", certificate, "come with access.key"),
        (None, Some(key)) => refuse("key", key, "come with access.certificate"),
        _ => Ok(()),
    }
}

/// A client for an access, and its token.
///
/// # Errors
/// [`AccessError`], naming the file.
pub(super) fn open(access: &Access) -> Result<(ureq::Agent, Option<Token>), AccessError> {
    let path = |file: &Option<String>| file.as_ref().map(PathBuf::from);
    let files = TlsFiles { ca: path(&access.ca), client: path(&access.certificate).zip(path(&access.key)) };
    let token = path(&access.bearer_token_file).map(token).transpose()?;
    Ok((http::client(Some(files.load()?)), token))
}

fn token(file: PathBuf) -> Result<Token, AccessError> {
    let bytes = match read_regular(&file, LONGEST_TOKEN as u64 + 2) {
        Ok(bytes) => bytes,
        Err(source) => return Err(AccessError::Unreadable { file, source }),
    };
    let token = bytes.trim_ascii();
    let is_usable = (SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(token) {
        Ok(token) if is_usable => Ok(Token(token.to_owned())),
        _ => Err(AccessError::NoToken { file }),
    }
}
