//! Simulates many agents, to measure how many one aggregator serves: each has a connection and a certificate of its own
//! and sends a report a second. In: `load ADDRESS SOCKET AUTHORITY HOSTS WORKLOADS SECONDS`. Out: how many reports were
//! sent, and how old the newest report of each host is at the end. Started by `benches/load.sh`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gleaner_api::{Client, Request, Response};
use gleaner_net::stream::{read_message, write_message};
use gleaner_net::tls::{Authority, Identity};
use gleaner_net::transport;
use gleaner_test_support::synthetic;
use gleaner_types::id::HostId;
use gleaner_wire::{FromAggregator, ProtocolVersion};
use tokio::task::JoinSet;

/// Agents that connect per second: handshakes are not what is measured.
const CONNECTS_PER_S: f64 = 50.0;

#[derive(Default)]
struct Counts {
    connected: AtomicU64,
    sent: AtomicU64,
    /// A report was due before the one before it had left.
    late: AtomicU64,
    lost: AtomicU64,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, socket, authority, hosts, workloads, seconds] = arguments.as_slice() else {
        bail!("usage: load ADDRESS SOCKET AUTHORITY HOSTS WORKLOADS SECONDS");
    };
    let load = Load {
        address: address.parse().context("ADDRESS")?,
        socket: socket.into(),
        workloads: workloads.parse().context("WORKLOADS")?,
        counts: Arc::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(load.run(
        Path::new(authority),
        hosts.parse().context("HOSTS")?,
        seconds.parse().context("SECONDS")?,
    ))
}

#[derive(Clone)]
struct Load {
    address: SocketAddr,
    socket: PathBuf,
    workloads: u32,
    counts: Arc<Counts>,
}

impl Load {
    async fn run(self, authority: &Path, hosts: u32, seconds: u64) -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("gleaner-load-{}", std::process::id()));
        let issuer = Authority::load(authority)?;
        std::fs::create_dir_all(&folder)?;
        let mut agents = JoinSet::new();
        for number in 0..hosts {
            let host = HostId::new(format!("load-{number}"))?;
            let (certificate, key) = issuer.issue_agent(&host)?.write(&folder, "agent")?;
            let identity = Identity::load(&authority.join("ca.crt"), &certificate, &key)?;
            let load = self.clone();
            agents.spawn(async move {
                if load.agent(&host, &identity).await.is_err() {
                    load.counts.lost.fetch_add(1, Ordering::Relaxed);
                }
            });
            tokio::time::sleep(Duration::from_secs_f64(1.0 / CONNECTS_PER_S)).await;
        }
        std::fs::remove_dir_all(&folder)?;
        while self.counts.connected.load(Ordering::Relaxed) + self.counts.lost.load(Ordering::Relaxed)
            < u64::from(hosts)
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("all there");
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sent, late) = (count(&self.counts.sent), count(&self.counts.late));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (sent, late) = (count(&self.counts.sent) - sent, count(&self.counts.late) - late);
        let ages = self.ages().await?;
        let at = |percent: usize| ages.get(ages.len() * percent / 100).copied().unwrap_or(f64::NAN);
        println!(
            "{} of {hosts} connected, {} lost; {sent} reports in {seconds} s, {late} late; age of the newest report of each \
             host: median {:.2} s, 99 % {:.2} s, most {:.2} s",
            count(&self.counts.connected),
            count(&self.counts.lost),
            at(50),
            at(99),
            ages.last().copied().unwrap_or(f64::NAN),
        );
        Ok(())
    }

    /// How old the newest report of each host is that the aggregator has, in seconds, least first.
    async fn ages(&self) -> anyhow::Result<Vec<f64>> {
        let client = Client::connect(&self.socket).await?;
        let Response::Overview(overview) = client.call(&Request::Overview).await? else { bail!("no overview") };
        let Response::Hosts(hosts) = client.call(&Request::Hosts).await? else { bail!("no hosts") };
        let hosts: BTreeMap<_, _> = hosts.into_iter().map(|view| (view.host, view.reported)).collect();
        let age = |reported| overview.now.since(reported).as_secs_f64();
        let mut ages: Vec<f64> = hosts.values().map(|reported| reported.map_or(f64::INFINITY, age)).collect();
        ages.sort_by(f64::total_cmp);
        Ok(ages)
    }

    async fn agent(&self, host: &HostId, identity: &Identity) -> anyhow::Result<()> {
        let endpoint = transport::client_endpoint(self.address, identity)?;
        let connection = transport::connect(&endpoint, self.address)?.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        write_message(&mut send, ProtocolVersion::CURRENT, &synthetic::hello(host, 1)).await?;
        let Some(FromAggregator::Welcome(_)) = read_message(&mut receive, ProtocolVersion::CURRENT).await? else {
            bail!("no welcome")
        };
        self.counts.connected.fetch_add(1, Ordering::Relaxed);
        let commands = tokio::spawn(async move {
            // Commands are read and left at that.
            while let Ok(Some(_)) = read_message::<FromAggregator, _>(&mut receive, ProtocolVersion::CURRENT).await {}
        });
        let mut reports = connection.open_uni().await?;
        let mut due = Instant::now();
        for sequence in 1.. {
            write_message(&mut reports, ProtocolVersion::CURRENT, &synthetic::report(host, sequence, self.workloads))
                .await?;
            self.counts.sent.fetch_add(1, Ordering::Relaxed);
            due += Duration::from_secs(1);
            if due < Instant::now() {
                self.counts.late.fetch_add(1, Ordering::Relaxed);
            }
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                error = connection.closed() => return Err(error.into()),
            }
        }
        drop(commands);
        Ok(())
    }
}
