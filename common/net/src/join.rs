//! Join tokens: one line of text with what a host without a certificate needs to get one. In: an invitation. Out: a
//! token, and back. The aggregator makes them; `gleaner-agent join` reads them.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use gleaner_types::id::HostId;
use gleaner_wire::{JoinSecret, decode_value, encode_value};

/// Longest token, in characters. Usual ones have some 900.
pub const MAX_TOKEN: usize = 16 << 10;

/// First byte of every token of this format.
const FORMAT: u8 = 1;

/// Bytes of the checksum at the end, so that a partly copied token is distinguished from a refused one.
const CHECKSUM: usize = 4;

/// Most addresses and most certificates in a token. Chosen.
const MOST: usize = 8;

/// A new secret from the system's randomness; `None` if it has none.
#[must_use]
pub fn new_secret() -> Option<JoinSecret> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(JoinSecret::from_bytes(bytes))
}

/// What may be kept of a secret: its SHA-256.
#[must_use]
pub fn hash_of(secret: &JoinSecret) -> [u8; 32] {
    sha256(secret.as_bytes())
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// The contents of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// Where the aggregator may be reached, as `host:port`.
    pub addresses: Vec<String>,
    /// Certificates of the authority, in DER: by them the host authenticates the aggregator before it has a certificate of its own.
    pub authority: Vec<Vec<u8>>,
    /// The host that is invited.
    pub host: HostId,
    /// Proves the invitation.
    pub secret: JoinSecret,
}

/// A text is not a join token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is longer than any token.
    #[error("the join token has {0} characters; at most {MAX_TOKEN} are read")]
    Long(usize),
    /// It has characters that tokens cannot have.
    #[error("the join token has characters that do not belong there")]
    Characters,
    /// It is cut off or changed.
    #[error("the join token is damaged; copy the whole line that `gleaner host invite` printed")]
    Damaged,
    /// Its format has another version.
    #[error("the join token is of another version (format {0}) than this agent (format {FORMAT})")]
    Format(u8),
    /// Its contents are impossible.
    #[error("the join token says what cannot be: {0}")]
    Absurd(String),
}

impl JoinToken {
    /// The token as text: URL-safe base64.
    ///
    /// # Errors
    /// [`TokenError::Absurd`] when [`JoinToken::from_text`] would refuse it.
    pub fn to_text(&self) -> Result<String, TokenError> {
        self.check()?;
        let mut bytes = vec![FORMAT];
        encode_value(0, self, &mut bytes).map_err(|error| TokenError::Absurd(error.to_string()))?;
        let checksum = sha256(&bytes);
        bytes.extend_from_slice(&checksum[..CHECKSUM]);
        Ok(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Reads a token; blanks and line ends around it do not matter.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn from_text(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() > MAX_TOKEN {
            return Err(TokenError::Long(text.len()));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| match error {
            DecodeError::InvalidByte(..) => TokenError::Characters,
            _ => TokenError::Damaged,
        })?;
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TokenError::Damaged)?;
        if sha256(body)[..CHECKSUM] != *checksum {
            return Err(TokenError::Damaged);
        }
        let (format, payload) = body.split_first().ok_or(TokenError::Damaged)?;
        if *format != FORMAT {
            return Err(TokenError::Format(*format));
        }
        let token: Self = decode_value(0, payload).map_err(|error| TokenError::Absurd(error.to_string()))?;
        token.check()?;
        Ok(token)
    }

    fn check(&self) -> Result<(), TokenError> {
        let absurd = |what: String| Err(TokenError::Absurd(what));
        if !(1..=MOST).contains(&self.addresses.len()) {
            return absurd(format!("{} addresses of the aggregator; it must be 1 to {MOST}", self.addresses.len()));
        }
        if let Some(bad) = self.addresses.iter().find(|address| !is_address(address)) {
            return absurd(format!("{bad:?} is no address; it must be HOST:PORT"));
        }
        if !(1..=MOST).contains(&self.authority.len()) {
            return absurd(format!("{} certificates of the authority; it must be 1 to {MOST}", self.authority.len()));
        }
        Ok(())
    }
}

/// Whether a text is `host:port`, without anything that could be something else in a config file.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let plain = |host: &str| {
        !host.is_empty()
            && host.len() <= 255
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]%_".contains(&b))
    };
    text.rsplit_once(':').is_some_and(|(host, port)| plain(host) && port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            addresses: vec!["10.0.0.5:7441".to_owned(), "[fe80::1]:7441".to_owned()],
            authority: vec![vec![7; 400]],
            host: HostId::new("h1").unwrap(),
            secret: new_secret().unwrap(),
        }
    }

    #[test]
    fn a_token_reads_back_and_is_one_word() {
        let token = token();
        let text = token.to_text().unwrap();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        assert_eq!(JoinToken::from_text(&format!("  {text}\n")), Ok(token));
    }

    #[test]
    fn invalid_tokens_are_distinguished() {
        let text = token().to_text().unwrap();
        for cut in 1..9 {
            assert_eq!(JoinToken::from_text(&text[..text.len() - cut]), Err(TokenError::Damaged));
        }
        assert_eq!(JoinToken::from_text("a b"), Err(TokenError::Characters));
        assert_eq!(JoinToken::from_text(""), Err(TokenError::Damaged));
        assert_eq!(JoinToken::from_text(&"A".repeat(MAX_TOKEN + 1)), Err(TokenError::Long(MAX_TOKEN + 1)));
        let none = JoinToken { addresses: vec!["here\"\nx = 1:1".to_owned()], ..token() };
        assert!(matches!(none.to_text(), Err(TokenError::Absurd(_))));
    }

    #[test]
    fn a_secret_is_not_shown_and_its_hash_is_its_own() {
        let (a, b) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(hash_of(&a), hash_of(&b));
        assert_eq!(format!("{a:?}"), "JoinSecret");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[A-Za-z0-9_-]{0,200}", at in 0usize..900, with in "[A-Za-z0-9_-]") {
            _ = JoinToken::from_text(&text);
            let whole = token().to_text().unwrap();
            let mut changed = whole.clone();
            if at < changed.len() {
                changed.replace_range(at..=at, &with);
            }
            proptest::prop_assert!(changed == whole || JoinToken::from_text(&changed).is_err());
        }
    }
}
