//! The list of engines, by name. In: a name. Out: an engine, opened. Only this list knows all engines: adding one takes
//! a file and an entry.

use gleaner_types::engine::EngineName;

use super::exec::ExecEngine;
use super::interface::{Engine, Setting, WorkerShape};
use super::local::LocalEngine;
use super::slurm::SlurmEngine;
use super::spark::SparkEngine;

/// An engine that can be opened.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: EngineName,
    /// What it is, in a line for operators.
    pub(super) about: &'static str,
    /// What the workers of its jobs are.
    pub(super) workers: WorkerShape,
    pub(super) open: fn(&Setting) -> Box<dyn Engine>,
}

pub(super) const ENGINES: &[Entry] = &[
    Entry {
        name: EngineName::of("exec"),
        about: "a program that speaks for any batch system",
        workers: WorkerShape::Hosts,
        open: |setting| Box::new(ExecEngine::open(setting)),
    },
    Entry {
        name: EngineName::of("local"),
        about: "a list of shell commands, run in this machine's volunteer",
        workers: WorkerShape::Slots,
        open: |setting| Box::new(LocalEngine::open(setting)),
    },
    Entry {
        name: EngineName::of("slurm"),
        about: "the queue of a Slurm partition, with all its users' job arrays",
        workers: WorkerShape::Hosts,
        open: |setting| Box::new(SlurmEngine::open(setting)),
    },
    Entry {
        name: EngineName::of("spark"),
        about: "an application of a Spark standalone cluster",
        workers: WorkerShape::Hosts,
        open: |setting| Box::new(SparkEngine::open(setting)),
    },
];

/// The engine of a submission that names none.
pub(super) const fn default_of(workers: WorkerShape) -> EngineName {
    match workers {
        WorkerShape::Slots => EngineName::of("local"),
        WorkerShape::Hosts => EngineName::of("exec"),
    }
}
