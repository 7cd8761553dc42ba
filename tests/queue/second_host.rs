//! A second host on this machine: a network namespace with a link to the first. In: nothing. Out: the addresses of both ends, and
//! commands that run in it. Called by [`tiers`](super::tiers).

use std::process::Command;

use gleaner_test_support::bench::text;

/// Addresses of the first and of the second host on their link.
pub(super) const FIRST: &str = "10.233.0.1";
pub(super) const SECOND: &str = "10.233.0.2";

/// The namespace; it and its link are gone when this is dropped.
pub(super) struct SecondHost {
    name: String,
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", text(&output.stderr).trim())) }
}

impl SecondHost {
    /// # Errors
    /// What cannot be had here.
    pub(super) fn new() -> Result<Self, String> {
        let own = Self { name: format!("gleaner-queue-{}", std::process::id()) };
        own.make().map_err(|why| format!("no network namespace can be made here: {why}"))?;
        Ok(own)
    }

    fn make(&self) -> Result<(), String> {
        // A link's name has at most 15 characters.
        let (name, link) = (&self.name, format!("gq{}", std::process::id()));
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {link} type veth peer name v0 netns {name}"))?;
        ip(&format!("addr add {FIRST}/30 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        ip(&format!("-n {name} addr add {SECOND}/30 dev v0"))?;
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set v0 up"))
    }

    /// The command, run in the namespace. Not by `ip netns exec`, which hides the control groups.
    pub(super) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(command.get_program());
        inside.args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        inside.envs(set);
        inside
    }
}

impl Drop for SecondHost {
    fn drop(&mut self) {
        // Its end of the link goes with it, and so the other one.
        _ = ip(&format!("netns del {}", self.name));
    }
}
