//! Simulation 1 of Wei's chapter 5: 200 nodes, and 200 jobs of the Facebook size distribution (Table 5.8). In: a seed. Out: a
//! checked workload, and the bin of each job.
//!
//! The paper gives the nodes, the network, the sizes, the applications and the mean time between arrivals. It does not give
//! what tasks need and how long they run; those below are chosen by what such programs do with a block of 256 MB on a node
//! with 24 threads, 32 GB, 330 MB/s of disks and 1 Gb/s, before any schedule was run, and not changed since.

use gleaner_planner::sharing::input::{Cluster, Input, Job, Node, Stage, Workload};
use gleaner_planner::sharing::resources::Resources;
use gleaner_simulator::random::Random;
use gleaner_types::id::{HostId, JobId};

/// Nodes of a rack (§5.5.1).
const RACK: u32 = 20;
/// Of a node: threads, GB, MB/s of three disks, Mb/s (§5.5.1).
const NODE: Resources = Resources { cpu: 24.0, memory: 32.0, disk: 330.0, network: 1_000.0 };
/// By how much all links of a rack have more bandwidth than its way to the cluster switch.
const OVERSUBSCRIPTION: f64 = 10.0;
/// How much longer a map task runs that reads its block from its rack, and from another. Chosen.
const EXTRA: [f64; 2] = [0.1, 0.25];
/// A block of 256 MB in Mb.
const BLOCK_MB: f64 = 256.0 * 8.0;

/// Tasks of one kind: demand (threads, GB, MB/s, Mb/s) and seconds.
#[derive(Debug, Clone, Copy)]
struct Kind {
    demand: [f64; 4],
    duration_s: f64,
}

/// An application of Table 5.7.
#[derive(Debug, Clone, Copy)]
struct Application {
    name: &'static str,
    map: Kind,
    /// Its map tasks read blocks.
    reads: bool,
    /// Map tasks for each reduce task.
    reduce: Option<(u32, Kind)>,
}

const fn kind(demand: [f64; 4], duration_s: f64) -> Kind {
    Kind { demand, duration_s }
}

const fn application(name: &'static str, map: Kind, reads: bool, reduce: Option<(u32, Kind)>) -> Application {
    Application { name, map, reads, reduce }
}

const RANDOM_WRITE: Application = application("RWrite", kind([1.0, 1.5, 50.0, 0.0], 20.0), false, None);
const TERA_GEN: Application = application("TeraGen", kind([1.0, 1.5, 40.0, 0.0], 20.0), false, None);
/// A reduce task sorts the output of four map tasks, 1 GB, most of which comes from other racks.
const TERA_SORT: Application =
    application("TeraSort", kind([1.0, 2.0, 35.0, 0.0], 15.0), true, Some((4, kind([1.0, 3.0, 30.0, 250.0], 35.0))));
const WORD_COUNT: Application =
    application("WCount", kind([1.0, 1.5, 13.0, 0.0], 20.0), true, Some((20, kind([1.0, 2.0, 10.0, 5.0], 15.0))));
const PI: Application =
    application("Pi", kind([1.0, 1.0, 0.0, 0.0], 20.0), false, Some((500, kind([1.0, 1.0, 1.0, 1.0], 5.0))));
const BAYES: Application =
    application("Bayes", kind([1.0, 2.0, 10.0, 0.0], 25.0), true, Some((20, kind([1.0, 2.0, 5.0, 5.0], 15.0))));
const K_MEANS: Application =
    application("Kmean", kind([2.0, 2.0, 9.0, 0.0], 30.0), true, Some((20, kind([1.0, 1.5, 2.0, 2.0], 10.0))));
const RANDOM_FOREST: Application =
    application("RForest", kind([1.0, 2.0, 13.0, 0.0], 20.0), true, Some((100, kind([1.0, 2.0, 2.0, 2.0], 10.0))));
const MATRIX: Application = application("Matrix", kind([1.0, 3.0, 2.0, 0.0], 20.0), false, None);

/// Table 5.8: bin, application, map tasks, jobs.
const TABLE: [(u32, Application, u32, u32); 14] = [
    (1, RANDOM_WRITE, 1, 28),
    (1, MATRIX, 1, 20),
    (1, RANDOM_FOREST, 1, 28),
    (2, TERA_GEN, 2, 32),
    (3, BAYES, 7, 10),
    (3, K_MEANS, 15, 18),
    (4, RANDOM_FOREST, 23, 18),
    (5, WORD_COUNT, 80, 12),
    (6, WORD_COUNT, 240, 6),
    (6, TERA_SORT, 300, 6),
    (7, PI, 500, 8),
    (8, WORD_COUNT, 640, 8),
    (9, TERA_SORT, 1_800, 2),
    (9, RANDOM_FOREST, 12_000, 4),
];

/// How large an experiment is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Racks of 20 nodes.
    pub racks: u32,
    /// One of so many jobs of each line of the table, at least one; and their tasks likewise.
    pub part: u32,
    /// Mean time between arrivals.
    pub between_s: f64,
}

impl Size {
    /// The paper's.
    pub const PAPER: Self = Self { racks: 10, part: 1, between_s: 4.0 };
}

/// A workload and the bin of each of its jobs.
#[derive(Debug, Clone)]
pub(super) struct Submission {
    /// Cluster and jobs.
    pub(super) workload: Workload,
    /// Of Table 5.8.
    pub(super) bins: Vec<u32>,
}

fn cluster(racks: u32) -> Option<Cluster> {
    let node = |index: u32| {
        let name = HostId::new(format!("node-{index:03}")).ok()?;
        Some(Node { name, capacity: NODE, rack: index / RACK })
    };
    let nodes: Option<Vec<Node>> = (0..racks * RACK).map(node).collect();
    Some(Cluster { nodes: nodes?, switch: f64::from(racks * RACK) * NODE.network / OVERSUBSCRIPTION })
}

fn stage(tasks: u32, kind: Kind) -> Stage {
    let [cpu, memory, disk, network] = kind.demand;
    let demand = Resources { cpu, memory, disk, network };
    Stage { tasks, demand, duration_s: kind.duration_s, input: None }
}

/// Three nodes for each block, as HDFS chooses them: one anywhere, two others of one other rack.
fn blocks(tasks: u32, cluster: &Cluster, random: &mut Random) -> Vec<Vec<HostId>> {
    let (nodes, rack) = (cluster.nodes.len(), RACK as usize);
    let racks = nodes / rack;
    let name = |index: usize| cluster.nodes.get(index).map(|node| node.name.clone());
    let holders = |random: &mut Random| {
        let first = random.below(nodes);
        let other = if racks > 1 { (first / rack + 1 + random.below(racks - 1)) % racks } else { 0 };
        let second = random.below(rack);
        let third = (second + 1 + random.below(rack - 1)) % rack;
        [first, other * rack + second, other * rack + third].into_iter().filter_map(name).collect()
    };
    (0..tasks).map(|_| holders(random)).collect()
}

/// The jobs in a random order, at times with exponential distances.
pub(super) fn submission(seed: u64, size: Size) -> Option<Submission> {
    let mut random = Random::new(seed);
    let cluster = cluster(size.racks)?;
    let mut order: Vec<(u32, Application, u32)> = Vec::new();
    for (bin, application, maps, jobs) in TABLE {
        for _ in 0..(jobs / size.part).max(1) {
            order.push((bin, application, (maps / size.part).max(1)));
        }
    }
    for last in (1..order.len()).rev() {
        let other = random.below(last + 1);
        order.swap(last, other);
    }
    let (mut release_s, mut jobs, mut bins) = (0.0, Vec::new(), Vec::new());
    for (index, (bin, application, maps)) in order.into_iter().enumerate() {
        let mut map = stage(maps, application.map);
        if application.reads {
            map.input = Some(Input {
                nodes: blocks(maps, &cluster, &mut random),
                network: BLOCK_MB / application.map.duration_s,
                rack_extra_s: EXTRA[0] * application.map.duration_s,
                off_rack_extra_s: EXTRA[1] * application.map.duration_s,
            });
        }
        let reduce = application.reduce.map(|(each, kind)| stage(maps.div_ceil(each), kind));
        let stages = std::iter::once(map).chain(reduce).collect();
        jobs.push(Job { name: JobId::new(format!("{}-{index:03}", application.name)).ok()?, release_s, stages });
        bins.push(bin);
        release_s += -size.between_s * random.uniform().ln();
    }
    Some(Submission { workload: Workload::new(cluster, jobs).ok()?, bins })
}
