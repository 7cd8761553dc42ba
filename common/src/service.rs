//! A word to systemd, where it started the daemon and listens.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells systemd a state such as `READY=1` or `STOPPING=1` (`sd_notify(3)`). Without systemd it does nothing.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = (|| {
        let own = UnixDatagram::unbound()?;
        match socket.to_str().and_then(|name| name.strip_prefix('@')) {
            Some(name) => own.send_to_addr(state.as_bytes(), &SocketAddr::from_abstract_name(name)?),
            None => own.send_to(state.as_bytes(), &socket),
        }
    })();
    if let Err(error) = sent {
        tracing::warn!(%error, "systemd cannot be told {state}");
    }
}
