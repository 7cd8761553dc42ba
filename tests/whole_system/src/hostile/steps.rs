//! What a hostile aggregator does. In: some bytes of a fuzzer, or a seed. Out: steps, most of them messages that follow
//! the protocol. Called by the fuzz target `aggregators` and by the test of [`super::play`].

use gleaner_test_support::generate::{Entropy, OF_AGGREGATORS, of_aggregator};
use gleaner_types::command::{Command, Desired, DiskLimit, Limits, NetworkLimit, Quota, Target, Version, Weight};
use gleaner_types::id::{JobId, WorkloadId};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskUser};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, PerSec};
use gleaner_wire::{FromAggregator, ProtocolVersion, encode};

use crate::host::BEGINNING;

/// One step of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A frame arrives.
    Frame(Vec<u8>),
    /// If there is no connection, one is made, with a welcome that says how many events are in the log.
    Connect(u64),
    /// The agent's loop takes its orders and works for so many milliseconds.
    Turn(u64),
    /// The link takes what waits to be sent.
    Send,
    /// The connection is lost.
    Lose,
}

/// Most steps of a conversation.
pub const MOST_STEPS: usize = 64;

/// The targets that are named: two workloads of the host, and what is none of it.
const WORKLOADS: [&str; 8] = [
    "machine/vm0",
    "machine/vm1",
    "machine/vm2",
    "machine",
    "../outside",
    "machine/../../outside",
    "/proc/self",
    "machine/vm0/",
];

/// A conversation, from the first step on.
#[must_use]
pub fn steps(version: ProtocolVersion, entropy: &mut Entropy<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    while entropy.is_left() && steps.len() + 1 < MOST_STEPS {
        if entropy.below(8) > 0 {
            let through = [0, 0, 0, 1, 2, 5, 10_000, u64::MAX];
            steps.push(Step::Connect(through[entropy.below(through.len())]));
        }
        steps.push(match entropy.below(16) {
            0..=5 => frame(version, &FromAggregator::Command(command(steps.len(), entropy))),
            6..=8 => generated(version, entropy),
            9 if entropy.below(2) == 0 => frame(version, &text(entropy)),
            9 => frame(version, &tasks(entropy)),
            10 => damaged(version, steps.len(), entropy),
            11..=12 => Step::Turn([50, 1_000, 3_000, 20_000][entropy.below(4)]),
            13 => Step::Send,
            14 => Step::Lose,
            _ => Step::Turn(1_200_000),
        });
    }
    steps
}

/// What a version has no form for is nothing that can arrive.
fn frame(version: ProtocolVersion, message: &FromAggregator) -> Step {
    encode(version, message).map_or(Step::Send, Step::Frame)
}

/// Any message with numbers, some of them replaced.
fn generated(version: ProtocolVersion, entropy: &mut Entropy<'_>) -> Step {
    match of_aggregator(entropy.below(OF_AGGREGATORS), version, entropy) {
        Some(Ok(framed)) => Step::Frame(framed.altered_by(entropy)),
        _ => Step::Send,
    }
}

/// The messages that are a text, and two whose number fits this host.
fn text(entropy: &mut Entropy<'_>) -> FromAggregator {
    let text = match entropy.below(4) {
        0 => String::new(),
        1 => "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
        2 => "\u{1b}[2J\u{202e}".repeat(entropy.below(256)),
        _ => "x".repeat(entropy.below(256) * 256),
    };
    match entropy.below(8) {
        0..=1 => FromAggregator::Certificate(text),
        2..=3 => FromAggregator::CertificateRefused(text),
        4 => FromAggregator::Refused(text),
        _ => FromAggregator::EventsThrough(entropy.below(16) as u64),
    }
}

/// What a job's tasks have in common, or an order about a task; nothing that a shell would find.
fn tasks(entropy: &mut Entropy<'_>) -> FromAggregator {
    let epoch = [BEGINNING, BEGINNING, BEGINNING, BEGINNING + 1, 0, u64::MAX][entropy.below(6)];
    let job = JobId::new("job").unwrap_or_else(|_| unreachable!("it is a name"));
    if entropy.below(3) == 0 {
        let id = |entropy: &mut Entropy<'_>| [70_000, 70_000, 70_000, 0, u32::MAX][entropy.below(5)];
        let user = TaskUser { uid: id(entropy), gid: id(entropy) };
        let (folder, environment) = ("/nonexistent".to_owned(), Vec::new());
        let (working_dir, output_dir, timeout_ms, tasks) = (folder.clone(), folder, Some(1), u32::MAX);
        let job = TaskJob { epoch, job, user, working_dir, output_dir, environment, timeout_ms, tasks };
        return FromAggregator::TaskJob(Box::new(job));
    }
    let version = Version { epoch, number: entropy.below(4) as u64 };
    let task = [0, 1, u32::MAX][entropy.below(3)];
    let desired = match entropy.below(3) {
        0 => TaskDesired::Run { attempt: 1, command: "/nonexistent".to_owned() },
        1 => TaskDesired::End,
        _ => TaskDesired::Forget,
    };
    let order = TaskOrder { attempt: TaskAttempt { job, task, version }, desired };
    FromAggregator::Tasks(TaskOrders { epoch, orders: vec![order; entropy.below(3)] })
}

/// A command with some bytes changed, or cut off.
fn damaged(version: ProtocolVersion, number: usize, entropy: &mut Entropy<'_>) -> Step {
    let Ok(mut bytes) = encode(version, &FromAggregator::Command(command(number, entropy))) else { return Step::Send };
    for _ in 0..entropy.below(4) {
        let (place, value) = (entropy.below(bytes.len().clamp(1, 256)), entropy.below(256));
        if let (Some(byte), Ok(value)) = (bytes.get_mut(place), u8::try_from(value)) {
            *byte = value;
        }
    }
    if entropy.below(4) == 0 {
        bytes.truncate(entropy.below(256));
    }
    Step::Frame(bytes)
}

/// A command whose numbers fit this host, or just do not. Most are newer than those before, by their `number`.
fn command(number: usize, entropy: &mut Entropy<'_>) -> Command {
    let target = match entropy.below(12) {
        0..=2 => Target::Volunteer,
        3..=8 => workload(WORKLOADS[entropy.below(2)]),
        _ => workload(WORKLOADS[entropy.below(WORKLOADS.len())]),
    };
    let epoch = match entropy.below(32) {
        0 => u64::MAX,
        1 => 0,
        2 => BEGINNING + 1,
        _ => BEGINNING,
    };
    let number = match entropy.below(32) {
        0 => u64::MAX,
        1..=3 => 1,
        _ => number as u64,
    };
    let version = Version { epoch, number };
    let leases_ms = [60_000, 60_000, 10_000, 1_000, 600_000, 600_000, 600_001, u32::MAX, 1, 0];
    let lease_ms = leases_ms[entropy.below(leases_ms.len())];
    let desired = match entropy.below(8) {
        0..=1 => Desired::Run { cap: quota(entropy) },
        2 => Desired::Stop,
        3 => Desired::Release,
        _ => Desired::Limit(limits(entropy)),
    };
    Command { target, version, lease_ms, desired }
}

fn workload(name: &str) -> Target {
    Target::Workload(WorkloadId::from_untrusted(name))
}

fn quota(entropy: &mut Entropy<'_>) -> Quota {
    let percent = [0.0, 1.0, 29.999, 30.0, 30.001, 100.0, 155.0, 1e9, f64::MAX][entropy.below(9)];
    if entropy.below(4) == 0 { Quota::Unlimited } else { Quota::AtMost(CoreShare::clamped(percent)) }
}

fn limits(entropy: &mut Entropy<'_>) -> Limits {
    let weight = |entropy: &mut Entropy<'_>| match entropy.below(2) {
        0 => None,
        _ => Weight::new([1, 49, 50, 51, 100, 10_000][entropy.below(6)]).ok(),
    };
    let quota = quota(entropy);
    let cpu_weight = weight(entropy);
    let memory = [None, Some(0), Some((512 << 20) - 1), Some(512 << 20), Some(1 << 30), Some(u64::MAX)];
    let memory = memory[entropy.below(6)].map(Bytes);
    let (mut disk, mut network, mut disk_weight) = (DiskLimit::default(), NetworkLimit::default(), None);
    // This host has no lever for these, so a limit with one of them is refused as a whole.
    if entropy.below(8) == 0 {
        disk.read = Some(BytesPerSec::clamped(1e6));
        disk.write_operations = Some(PerSec::clamped(1.0));
        network.transmit = Some(BytesPerSec::clamped(1.0));
        disk_weight = weight(entropy);
    }
    Limits { quota, weight: cpu_weight, memory, disk, disk_weight, network }
}
