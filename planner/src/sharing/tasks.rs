//! Tasks of a stage that wait, and where their input is. In: the nodes that hold each task's input. Out: the next task for a
//! node, with its input on the node if there is one, else in its rack, else elsewhere.

use serde::{Deserialize, Serialize};

/// Where a task runs, seen from its input (§5.1). A task without input is always on a node of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// On a node that holds it.
    #[default]
    Node,
    /// In the rack of such a node.
    Rack,
    /// In another rack: the input goes through the cluster switch.
    OffRack,
}

/// Lists of numbers, one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lists {
    /// Where each begins, and the end of the last.
    begins: Vec<usize>,
    members: Vec<usize>,
}

impl Lists {
    pub(super) fn new(lists: impl Iterator<Item = Vec<usize>>) -> Self {
        let mut all = Self { begins: vec![0], members: Vec::new() };
        for list in lists {
            all.members.extend(list);
            all.begins.push(all.members.len());
        }
        all
    }

    pub(super) fn of(&self, index: usize) -> &[usize] {
        &self.members[self.begins[index]..self.begins[index + 1]]
    }

    fn len(&self) -> usize {
        self.begins.len() - 1
    }

    /// For each member up to `groups` the lists that have it, in their order.
    fn inverted(&self, groups: usize) -> Self {
        let mut begins = vec![0; groups + 1];
        for &member in &self.members {
            begins[member + 1] += 1;
        }
        for index in 0..groups {
            begins[index + 1] += begins[index];
        }
        let mut next = begins.clone();
        let mut members = vec![0; self.members.len()];
        for list in 0..self.len() {
            for &member in self.of(list) {
                members[next[member]] = list;
                next[member] += 1;
            }
        }
        Self { begins, members }
    }
}

/// Nodes and racks that hold the input of each task of a stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Holders {
    pub(super) nodes: Lists,
    pub(super) racks: Lists,
}

/// Waiting tasks by node, or by rack.
#[derive(Debug, Clone)]
struct Index {
    tasks: Lists,
    /// Of each group the first place that may have a waiting task.
    next: Vec<usize>,
    waiting: Vec<u32>,
}

impl Index {
    fn new(holders: &Lists, groups: usize) -> Self {
        let tasks = holders.inverted(groups);
        #[expect(clippy::cast_possible_truncation, reason = "a stage has at most 200,000 tasks")]
        let waiting = (0..groups).map(|group| tasks.of(group).len() as u32).collect();
        Self { next: vec![0; groups], waiting, tasks }
    }

    /// A waiting task of the group.
    fn first(&mut self, group: usize, started: &[bool]) -> Option<usize> {
        let tasks = self.tasks.of(group);
        let next = &mut self.next[group];
        while tasks.get(*next).is_some_and(|&task| started[task]) {
            *next += 1;
        }
        tasks.get(*next).copied()
    }

    fn started(&mut self, groups: &[usize]) {
        for &group in groups {
            self.waiting[group] -= 1;
        }
    }

    fn returned(&mut self, groups: &[usize]) {
        for &group in groups {
            self.waiting[group] += 1;
            self.next[group] = 0;
        }
    }
}

#[derive(Debug, Clone)]
struct Placed {
    nodes: Index,
    racks: Index,
}

/// The tasks of a job's current stage.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    pub(super) waiting: u32,
    started: Vec<bool>,
    next: usize,
    placed: Option<Box<Placed>>,
}

impl Queue {
    /// All tasks wait.
    pub(super) fn new(tasks: u32, holders: Option<&Holders>, nodes: usize, racks: usize) -> Self {
        let placed = |holders: &Holders| {
            Box::new(Placed { nodes: Index::new(&holders.nodes, nodes), racks: Index::new(&holders.racks, racks) })
        };
        Self { waiting: tasks, started: vec![false; tasks as usize], next: 0, placed: holders.map(placed) }
    }

    /// How many waiting tasks have their input on the node.
    pub(super) fn local(&self, node: usize) -> u32 {
        self.placed.as_ref().map_or(self.waiting, |placed| placed.nodes.waiting[node])
    }

    /// How many waiting tasks have their input in the rack, or on the node.
    pub(super) fn in_rack(&self, rack: usize) -> u32 {
        self.placed.as_ref().map_or(self.waiting, |placed| placed.racks.waiting[rack])
    }

    /// Where the next task for this node would run, seen from its input.
    pub(super) fn locality(&self, node: usize, rack: usize) -> Locality {
        if self.local(node) > 0 {
            Locality::Node
        } else if self.in_rack(rack) > 0 {
            Locality::Rack
        } else {
            Locality::OffRack
        }
    }

    /// Takes the next task for a node.
    pub(super) fn take(&mut self, holders: Option<&Holders>, node: usize, rack: usize) -> Option<usize> {
        let task = self.first(node, rack)?;
        self.started[task] = true;
        self.waiting -= 1;
        if let (Some(placed), Some(holders)) = (&mut self.placed, holders) {
            placed.nodes.started(holders.nodes.of(task));
            placed.racks.started(holders.racks.of(task));
        }
        Some(task)
    }

    fn first(&mut self, node: usize, rack: usize) -> Option<usize> {
        if let Some(placed) = &mut self.placed {
            let near = placed.nodes.first(node, &self.started).or_else(|| placed.racks.first(rack, &self.started));
            if near.is_some() {
                return near;
            }
        }
        while self.started.get(self.next).is_some_and(|&started| started) {
            self.next += 1;
        }
        (self.next < self.started.len()).then_some(self.next)
    }

    /// A task that was lost waits again.
    pub(super) fn put_back(&mut self, holders: Option<&Holders>, task: usize) {
        self.started[task] = false;
        self.waiting += 1;
        self.next = self.next.min(task);
        if let (Some(placed), Some(holders)) = (&mut self.placed, holders) {
            placed.nodes.returned(holders.nodes.of(task));
            placed.racks.returned(holders.racks.of(task));
        }
    }
}

/// Which jobs have a waiting task whose input is on a node, as one bit each: a round asks for this of many jobs on every node.
#[derive(Debug, Clone)]
pub(super) struct Near {
    /// Words for each node.
    width: usize,
    bits: Vec<u64>,
    /// Jobs whose waiting tasks have no input.
    anywhere: Vec<u64>,
}

impl Near {
    pub(super) fn new(nodes: usize, jobs: usize) -> Self {
        let width = jobs.div_ceil(64);
        Self { width, bits: vec![0; nodes * width], anywhere: vec![0; width] }
    }

    pub(super) fn has(&self, job: usize, node: usize) -> bool {
        let word = self.bits[node * self.width + job / 64] | self.anywhere[job / 64];
        (word >> (job % 64)) & 1 == 1
    }

    /// The job's queue has changed by a task with its input on these nodes, or without input.
    pub(super) fn update(&mut self, job: usize, queue: &Queue, nodes: Option<&[usize]>) {
        let set = |word: &mut u64, value: bool| *word = (*word & !(1 << (job % 64))) | (u64::from(value) << (job % 64));
        match nodes {
            Some(nodes) => {
                for &node in nodes {
                    set(&mut self.bits[node * self.width + job / 64], queue.local(node) > 0);
                }
            }
            None => set(&mut self.anywhere[job / 64], queue.waiting > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Task 0 on nodes 0 and 1, task 1 on node 1, task 2 on node 3; nodes 0 and 1 are one rack, 2 and 3 another.
    #[test]
    fn the_nearest_task_comes_first() {
        let holders = Holders {
            nodes: Lists::new([vec![0, 1], vec![1], vec![3]].into_iter()),
            racks: Lists::new([vec![0], vec![0], vec![1]].into_iter()),
        };
        let mut queue = Queue::new(3, Some(&holders), 4, 2);
        let mut take = |node: usize| (queue.locality(node, node / 2), queue.take(Some(&holders), node, node / 2));
        assert_eq!(take(2), (Locality::Rack, Some(2)));
        assert_eq!(take(1), (Locality::Node, Some(0)));
        assert_eq!(take(0), (Locality::Rack, Some(1)));
        assert_eq!(take(0).1, None);
        queue.put_back(Some(&holders), 1);
        assert_eq!((queue.waiting, queue.local(1), queue.local(0), queue.in_rack(0)), (1, 1, 0, 1));
        assert_eq!(queue.locality(2, 1), Locality::OffRack);
        assert_eq!(queue.take(Some(&holders), 2, 1), Some(1));
    }
}
