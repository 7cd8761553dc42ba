//! The foreground's replays, each a process of its own. In: a seed and a duration. Out: response times. Called by the
//! demo.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::foreground_load::Responses;
use crate::stack::die_with_parent;

/// How to replay.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) seed: u64,
    pub(super) rounds: u64,
    pub(super) folder: PathBuf,
}

/// A replay going on. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Replay {
    child: Child,
    output: PathBuf,
}

impl Load {
    pub(super) fn start(&self, seconds: u32) -> anyhow::Result<Replay> {
        let output = self.folder.join("responses.json");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["daemon", "foreground-load"]);
        command.args(["--seed", &self.seed.to_string(), "--seconds", &seconds.to_string()]);
        command.args(["--rounds", &self.rounds.to_string(), "--output"]).arg(&output);
        command.stdin(Stdio::null());
        die_with_parent(&mut command);
        let child = command.spawn().context("failed to start the foreground's load")?;
        Ok(Replay { child, output })
    }

    pub(super) async fn replay(&self, seconds: u32) -> anyhow::Result<Responses> {
        let mut replay = self.start(seconds)?;
        loop {
            if let Some(responses) = replay.finished()? {
                return Ok(responses);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Replay {
    /// The responses, once it is over.
    pub(super) fn finished(&mut self) -> anyhow::Result<Option<Responses>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        if !status.success() {
            bail!("the foreground's load ended: {status}");
        }
        Ok(Some(serde_json::from_slice(&std::fs::read(&self.output)?)?))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// All responses of several replays.
pub(super) fn merged(replays: Vec<Responses>) -> Responses {
    let mut sorted_ms: Vec<f64> = replays.into_iter().flat_map(|replay| replay.sorted_ms).collect();
    sorted_ms.sort_by(f64::total_cmp);
    Responses { sorted_ms }
}
