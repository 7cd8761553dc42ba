//! The link between the foreground's server and its users: two network namespaces behind one another. In: the run's
//! number. Out: the namespaces, made and removed, and commands that run in them. Called by [`crate::matrix`] and by
//! what sends over the link.
//!
//! All that leaves this machine for the users passes one queue of a fixed rate, as at a switch that knows no classes.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::host;

/// The rate of the link, in Mbit/s. Chosen: a flood fills it with little CPU.
pub const RATE_MBIT: u32 = 200;
/// This machine's address on the link. (All from the block for benchmarks, RFC 2544.)
pub const SERVER: &str = "198.18.0.1";
/// The users' address.
pub const USERS: &str = "198.18.1.2";

/// The link while it is there.
#[derive(Debug)]
pub struct Network {
    run: u32,
    ip: PathBuf,
    /// What it lacks, in a sentence.
    pub weaker: Option<String>,
}

/// The two namespaces of a run.
fn namespaces(run: u32) -> [String; 2] {
    [format!("gi{run}l"), format!("gi{run}u")]
}

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// No `ip`, or the kernel refuses.
    pub fn up(run: u32) -> anyhow::Result<Self> {
        let ip = host::program("ip").context("no program `ip` here; install iproute2")?;
        let mut own = Self { run, ip, weaker: None };
        let [link, users] = namespaces(run);
        let host = own.interface();
        for line in [
            format!("netns add {link}"),
            format!("netns add {users}"),
            format!("link add {host} type veth peer name gi0 netns {link}"),
            format!("-n {link} link add gi1 type veth peer name gi2 netns {users}"),
            format!("addr add {SERVER}/30 dev {host}"),
            format!("-n {link} addr add 198.18.0.2/30 dev gi0"),
            format!("-n {link} addr add 198.18.1.1/30 dev gi1"),
            format!("-n {users} addr add {USERS}/30 dev gi2"),
            format!("link set {host} up"),
            format!("-n {link} link set gi0 up"),
            format!("-n {link} link set gi1 up"),
            format!("-n {users} link set gi2 up"),
            "route add 198.18.1.0/30 via 198.18.0.2".to_owned(),
            format!("-n {users} route add 198.18.0.0/30 via 198.18.1.1"),
        ] {
            let mut command = Command::new(&own.ip);
            run_quietly(command.args(line.split(' '))).with_context(|| format!("ip {line}"))?;
        }
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
        run_quietly(&mut within(&link, "sh", &["-c", forward])).context("failed to let the link forward")?;
        let rate = format!("qdisc add dev gi1 root tbf rate {RATE_MBIT}mbit burst 64kb latency 50ms");
        let arguments: Vec<&str> = rate.split(' ').collect();
        let tc = host::program("tc").unwrap_or_else(|| "tc".into());
        if let Err(error) = run_quietly(&mut within(&link, &tc.to_string_lossy(), &arguments)) {
            own.weaker = Some(format!("the link has no rate of its own, so a flood costs only CPU: {error:#}"));
        }
        Ok(own)
    }

    /// This machine's interface to the link.
    #[must_use]
    pub fn interface(&self) -> String {
        format!("gi{}h", self.run)
    }

    /// The namespace of the users.
    #[must_use]
    pub fn users(&self) -> String {
        namespaces(self.run)[1].clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(self.run);
    }
}

/// Removes what is left of a run's link.
pub fn remove(run: u32) {
    let Some(ip) = host::program("ip") else { return };
    for namespace in namespaces(run) {
        if std::path::Path::new("/run/netns").join(&namespace).exists() {
            _ = run_quietly(Command::new(&ip).args(["netns", "del", &namespace]));
        }
    }
    if std::path::Path::new("/sys/class/net").join(format!("gi{run}h")).exists() {
        _ = run_quietly(Command::new(&ip).args(["link", "del", &format!("gi{run}h")]));
    }
}

/// A command in a network namespace. Not by `ip netns exec`, which hides the cgroups.
#[must_use]
pub fn within(namespace: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(program).args(arguments);
    command
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started or failed; what it said.
pub fn run_quietly(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{name} cannot be run"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
