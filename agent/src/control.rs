//! The socket by which `gleaner-agent try` asks the running agent of this host. In: steps of a trial, one JSON line each, from
//! root or the agent's own user. Out: each goes to the agent's loop, and its answer back. Started by the daemon; the command
//! connects to it.
//!
//! One trial at a time. When its connection ends, however that happens, what it limited is put back; where the agent itself
//! dies its keeper does it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream as Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::order::{Gone, OrderSender};
use crate::trial_step::{TrialAnswer, TrialStep};

/// Name of the socket in the state folder.
const SOCKET: &str = "control.sock";

/// Longest step, and longest answer: a sample with a hundred disks, and names of ten thousand workloads.
const LONGEST: (u64, u64) = (16 << 10, 4 << 20);

/// How long a trial may be silent between two steps, and the agent take for an answer. Chosen: less than a trial's lease, and
/// several of its steps.
const SILENCE: Duration = Duration::from_secs(8);

/// The running agent cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// It is there, and does not talk to this user, or does not answer.
    #[error("the agent that runs here cannot be asked on {}", socket.display())]
    Broken {
        /// Its socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is busy with another trial, or its loop hangs.
    #[error("the agent that runs here does not answer on {}; is another trial at work?", socket.display())]
    Silent {
        /// Its socket.
        socket: PathBuf,
    },
    /// It ended the conversation.
    #[error("the agent that runs here ended the trial: it stops, or it talks only to root and to its own user")]
    Ended,
}

/// Opens the socket of a state folder, which this agent holds: one that is there is of an agent that is dead.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn listen(state_dir: &Path) -> io::Result<UnixListener> {
    let socket = state_dir.join(SOCKET);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves one trial after the other, until the task is dropped.
pub(crate) async fn serve(listener: UnixListener, orders: OrderSender) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_allowed(&stream) => {
                // Whatever ends it ends the trial.
                if let Err(error) = trial(stream, &orders).await {
                    tracing::debug!(%error, "a trial is over");
                }
                if ask(&orders, TrialStep::End).await.is_err() {
                    return;
                }
            }
            Ok(_) => tracing::warn!("somebody who is not root asked this agent for a trial"),
            Err(error) => {
                tracing::warn!(%error, "a trial cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The kernel says who is at the other end; the mode of the socket alone leaves a moment after it is made.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}

async fn ask(orders: &OrderSender, step: TrialStep) -> Result<TrialAnswer, Gone> {
    let (answer, answered) = oneshot::channel();
    orders.trial(step, answer)?;
    answered.await.map_err(|_| Gone)
}

async fn trial(mut stream: UnixStream, orders: &OrderSender) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = tokio::io::BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut next = (&mut lines).take(LONGEST.0);
        tokio::time::timeout(SILENCE, next.read_until(b'\n', &mut line)).await??;
        if !line.ends_with(b"\n") {
            return Ok(());
        }
        let step: TrialStep = serde_json::from_slice(&line)?;
        let is_end = step == TrialStep::End;
        let answer = ask(orders, step).await.map_err(|Gone| io::Error::other("the agent stops"))?;
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        tokio::time::timeout(SILENCE, write.write_all(&line)).await??;
        if is_end {
            return Ok(());
        }
    }
}

/// A connection to the agent that runs on a state folder.
#[derive(Debug)]
pub(crate) struct RunningAgent {
    socket: PathBuf,
    stream: BufReader<Connection>,
}

impl RunningAgent {
    /// Connects; `None` where no agent runs on this state folder.
    ///
    /// # Errors
    /// [`ControlError::Broken`] where one runs that cannot be asked.
    pub(crate) fn connect(state_dir: &Path) -> Result<Option<Self>, ControlError> {
        let socket = state_dir.join(SOCKET);
        let broken = |source| ControlError::Broken { socket: socket.clone(), source };
        let stream = match Connection::connect(&socket) {
            Ok(stream) => stream,
            // Where the path is too long for a socket, no agent listens either.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidInput
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(broken(error)),
        };
        stream.set_read_timeout(Some(SILENCE)).map_err(broken)?;
        Ok(Some(Self { stream: BufReader::new(stream), socket }))
    }

    /// Takes one step.
    ///
    /// # Errors
    /// [`ControlError`]; then the agent puts back what was limited.
    pub(crate) fn step(&mut self, step: &TrialStep) -> Result<TrialAnswer, ControlError> {
        let broken = |source| ControlError::Broken { socket: self.socket.clone(), source };
        let mut line = serde_json::to_vec(step).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        let mut answer = Vec::new();
        let asked = self.stream.get_ref().write_all(&line);
        match asked.and_then(|()| (&mut self.stream).take(LONGEST.1).read_until(b'\n', &mut answer)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(ControlError::Ended)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(ControlError::Silent { socket: self.socket.clone() })
            }
            Err(error) => Err(broken(error)),
            Ok(0) => Err(ControlError::Ended),
            Ok(_) => serde_json::from_slice(&answer).map_err(|error| broken(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::id::WorkloadId;

    use super::*;
    use crate::order::{Order, orders};

    /// Answers steps as a loop would, until the orders end; what it was asked.
    fn answering(taker: crate::order::Orders) -> std::thread::JoinHandle<Vec<TrialStep>> {
        std::thread::spawn(move || {
            let mut steps = Vec::new();
            loop {
                match taker.next(Duration::from_secs(60)) {
                    Some(Order::Trial(order)) => {
                        let others = vec![WorkloadId::new("other").unwrap()];
                        steps.push(order.step);
                        let sequence = steps.len() as u64;
                        _ = order.answer.send(TrialAnswer {
                            sequence,
                            sample: None,
                            others,
                            unknown: None,
                            outcome: None,
                        });
                    }
                    _ => return steps,
                }
            }
        })
    }

    #[test]
    fn a_trial_is_answered_step_by_step_and_ended_however_its_connection_ends() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RunningAgent::connect(folder.path()).unwrap().is_none(), "no agent");
        let (sender, taker) = orders();
        let loop_thread = answering(taker);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // What a dead agent left is in the way of nobody.
        for _ in 0..2 {
            let listener = runtime.block_on(async { listen(folder.path()) }).unwrap();
            let mode = std::fs::metadata(folder.path().join(SOCKET)).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600);
            let serving = runtime.spawn(serve(listener, sender.clone()));
            let look = TrialStep::Look { workload: WorkloadId::new("w").unwrap() };
            let mut agent = RunningAgent::connect(folder.path()).unwrap().unwrap();
            assert!(agent.step(&look).unwrap().sequence > 0);
            drop(agent);
            // One that says nonsense is not answered; the next one is.
            let mut agent = RunningAgent::connect(folder.path()).unwrap().unwrap();
            agent.stream.get_ref().write_all(b"nonsense\n").unwrap();
            assert!(matches!(agent.step(&look), Err(ControlError::Ended)));
            let mut agent = RunningAgent::connect(folder.path()).unwrap().unwrap();
            assert!(agent.step(&TrialStep::End).is_ok());
            drop(agent);
            serving.abort();
        }
        drop(sender);
        drop(runtime);
        let steps = loop_thread.join().unwrap();
        assert!(steps.iter().filter(|step| **step == TrialStep::End).count() >= 6, "{steps:?}");
        assert!(RunningAgent::connect(folder.path()).unwrap().is_none(), "it is gone");
    }
}
