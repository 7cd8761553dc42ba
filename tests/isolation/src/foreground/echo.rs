//! An echo server on this machine, and users in a network namespace behind the link. In: the setup. Out: seats for
//! [`super::load`]. Called by [`super`].

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::load::{Schedule, Seat};
use super::setup::Setup;
use crate::network;

/// Connections that ask.
const USERS: u32 = 2;
/// Time between two requests of one.
const PERIOD: Duration = Duration::from_millis(5);
/// Bytes of a request and of its answer.
const MESSAGE: usize = 200;
/// An answer that takes longer counts as missing.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn seats(setup: &Setup) -> anyhow::Result<Vec<Seat>> {
    let listener = TcpListener::bind((network::SERVER, 0)).context("failed to listen on the link")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve(&listener));
    let users = setup.users.as_ref().context("an echo server needs --users")?;
    let path = format!("/run/netns/{users}");
    (0..USERS)
        .map(|seat| {
            let namespace = File::open(&path).with_context(|| format!("failed to open {path}"))?;
            let schedule = Schedule::Every { period: PERIOD, offset: PERIOD * seat / USERS };
            let mut user = User { address, namespace: Some(namespace), connection: None };
            Ok(Seat { schedule, request: Box::new(move || user.ask().is_ok()) })
        })
        .collect()
}

fn serve(listener: &TcpListener) {
    for mut connection in listener.incoming().flatten() {
        std::thread::spawn(move || {
            _ = connection.set_nodelay(true);
            let mut message = [0; MESSAGE];
            while connection.read_exact(&mut message).is_ok() && connection.write_all(&message).is_ok() {}
        });
    }
}

struct User {
    address: SocketAddr,
    /// Entered with the first request, by the thread that makes all of them.
    namespace: Option<File>,
    connection: Option<TcpStream>,
}

impl User {
    fn ask(&mut self) -> std::io::Result<()> {
        if let Some(namespace) = self.namespace.take() {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let connection = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
                connection.set_nodelay(true)?;
                connection.set_read_timeout(Some(TIMEOUT))?;
                none.insert(connection)
            }
        };
        let mut message = [7; MESSAGE];
        let asked = connection.write_all(&message).and_then(|()| connection.read_exact(&mut message));
        if asked.is_err() {
            // A late answer must not be taken for the next one's.
            self.connection = None;
        }
        asked
    }
}
