//! Fuzz target: requests of hosts that want to join, and join tokens. In: any bytes. Out: nothing; no input may make it
//! panic, and a token that was read is written and read again as it was. Started by `fuzz/run.sh`.
#![no_main]

use std::sync::OnceLock;

use gleaner_net::join::JoinToken;
use gleaner_net::tls::{Authority, Validity};
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use gleaner_wire::decode_value;

fn pieces() -> &'static (Authority, HostId) {
    static PIECES: OnceLock<(Authority, HostId)> = OnceLock::new();
    PIECES.get_or_init(|| (Authority::create().unwrap(), HostId::new("a.example").unwrap()))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        _ = JoinToken::from_text(text);
    }
    // Past the checksum, which no mutation gets right.
    if let Ok(token) = decode_value::<JoinToken>(0, data)
        && let Ok(text) = token.to_text()
    {
        assert_eq!(JoinToken::from_text(&text), Ok(token));
    }
    let (authority, host) = pieces();
    let validity = Validity { from: Timestamp(1_750_000_000_000), until: Timestamp(1_760_000_000_000) };
    _ = authority.sign_agent(host, data, validity);
});
