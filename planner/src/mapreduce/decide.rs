//! Which nodes a job should get or give back (Gandhi et al., §III-C and §V). In: a checked [`Situation`] and a goal. Out: the
//! change of the cluster with its reason and all that were considered. `gleaner plan autoscale` and `gleaner reproduce
//! mapreduce` call it.
//!
//! Every number of map nodes and of reduce nodes is tried, from as few as can be to as many as may be added. With a deadline (the paper's
//! SLA) the cluster with the lowest price an hour that meets it is chosen; with a cost, the cheapest, or the earliest within a budget.

use gleaner_types::id::HostId;
use gleaner_types::job::Goal;
use gleaner_types::units::{Dollars, DollarsPerHour};
use serde::Serialize;

use super::equations::ModelError;
use super::estimate::{Change, Estimator, When};
use super::situation::{LostOutput, Node, Situation};

/// Most candidates, and most of them times the nodes. Chosen: seconds of work.
const MOST_CANDIDATES: u64 = 50_000;
const MOST_EFFORT: u64 = 20_000_000;
/// Halvings in the search of the latest lead time.
const HALVINGS: u32 = 40;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// The goal; `Energy` has no model here.
    pub goal: Goal,
    /// Part of the remaining time that is kept in reserve when a deadline is judged; 0 in the paper.
    pub reserve: f64,
    /// Cost so far, for a budget.
    pub spent: Dollars,
}

/// A change that was considered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// Map nodes that come.
    pub add_map: u32,
    /// Reduce nodes that come.
    pub add_reduce: u32,
    /// Map nodes that go.
    pub remove_map: u32,
    /// Reduce nodes that go.
    pub remove_reduce: u32,
    /// When they go.
    pub when: When,
    /// When all ends, since submission.
    pub completion_s: f64,
    /// Of it, the remaining map stage, the reduce stage after it, and jobs that follow.
    pub parts_s: [f64; 3],
    /// Finished map tasks that run again.
    pub lost_maps: u32,
    /// Cost from now.
    pub cost: Dollars,
    /// Price of the cluster after the change.
    pub price: DollarsPerHour,
    /// It meets the goal.
    pub meets_goal: bool,
}

impl Candidate {
    const fn changes(&self) -> u32 {
        self.add_map + self.add_reduce + self.remove_map + self.remove_reduce
    }
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// The chosen change.
    pub chosen: Candidate,
    /// The nodes that go.
    pub remove: Vec<HostId>,
    /// The choice in a sentence.
    pub reason: String,
    /// What happens without a change; `None` where the job cannot end then.
    pub unchanged: Option<Candidate>,
    /// The longest lead time with which the nodes that come still meet the deadline; `None` where none come or it is missed anyhow.
    pub latest_lead_s: Option<f64>,
    /// Map tasks take so many times what the training says, by the finished ones.
    pub factor: f64,
    /// All changes by which the job can end.
    pub candidates: Vec<Candidate>,
}

/// No decision.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecideError {
    /// A goal without a model.
    #[error("goal: is energy; it must be deadline or cost: the models have no power")]
    Energy,
    /// Too much to try.
    #[error(
        "map_node.most and reduce_node.most: give {candidates} changes of {nodes} nodes; they must be at most {MOST_CANDIDATES} changes, and {MOST_EFFORT} of both multiplied"
    )]
    TooMany {
        /// Changes.
        candidates: u64,
        /// Nodes.
        nodes: u64,
    },
    /// The job never ends.
    #[error(
        "nodes: their slots cannot finish the job with any nodes that may be added; they must have a map slot, and a reduce slot if there are reduce tasks"
    )]
    NeverEnds,
    /// The models give no time.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Nodes of a kind in the order in which they go.
struct Leaving {
    now: Vec<usize>,
    at_safe_point: Vec<usize>,
}

impl Leaving {
    /// Of map or of reduce nodes. At once, those go first on which the least is lost; at a safe point, the dearest for their speed.
    fn new(situation: &Situation, reduce: bool) -> Self {
        let own = |node: &Node| node.only_for.as_ref().is_none_or(|job| *job == situation.job.name);
        let nodes = &situation.nodes;
        let indexes = (0..nodes.len()).filter(|index| nodes[*index].removable && own(&nodes[*index]));
        let mut now: Vec<usize> = indexes.filter(|index| nodes[*index].reduces() == reduce).collect();
        let mut at_safe_point = now.clone();
        let lost = |node: &Node| {
            let running = node.maps_running.iter().chain(&node.reduces_running).sum::<f64>();
            let done = if situation.job.reduces > 0 { f64::from(node.maps_done) } else { 0.0 };
            (done + running) / (node.speed * f64::from(node.cores))
        };
        let worth = |node: &Node| node.speed * f64::from(node.cores) / node.price.per_hour().max(1e-9);
        now.sort_by(|a, b| lost(&nodes[*a]).total_cmp(&lost(&nodes[*b])).then(nodes[*a].name.cmp(&nodes[*b].name)));
        at_safe_point
            .sort_by(|a, b| worth(&nodes[*a]).total_cmp(&worth(&nodes[*b])).then(nodes[*a].name.cmp(&nodes[*b].name)));
        Self { now, at_safe_point }
    }

    fn first(&self, many: u32, when: When) -> &[usize] {
        let order = if when == When::Now { &self.now } else { &self.at_safe_point };
        &order[..many as usize]
    }
}

/// Signed numbers of nodes: what goes is negative.
type Numbers = (i64, i64);

/// A search for the best change.
struct Search<'a> {
    situation: &'a Situation,
    wanted: Wanted,
    estimator: Estimator<'a>,
    map: Leaving,
    reduce: Leaving,
}

impl Search<'_> {
    /// The nodes that a change removes, in rising order.
    fn removed(&self, (map, reduce): Numbers, when: When) -> Vec<usize> {
        let many = |number: i64| u32::try_from(-number).unwrap_or(0);
        let mut all = [self.map.first(many(map), when), self.reduce.first(many(reduce), when)].concat();
        all.sort_unstable();
        all
    }

    fn candidate(&self, numbers: Numbers, when: When, lead_s: Option<f64>) -> Result<Option<Candidate>, ModelError> {
        let remove = self.removed(numbers, when);
        let added = |number: i64| u32::try_from(number).unwrap_or(0);
        let (add_map, add_reduce) = (added(numbers.0), added(numbers.1));
        let change = Change { add_map, add_reduce, remove: &remove, when, lead_s };
        let rest = self.estimator.remaining(&change)?;
        if !rest.total_s().is_finite() {
            return Ok(None);
        }
        let nodes = &self.situation.nodes;
        let all: f64 = nodes.iter().map(|node| node.price.per_hour()).sum();
        let going: f64 = remove.iter().map(|index| nodes[*index].price.per_hour()).sum();
        let new = [(&self.situation.map_node, add_map), (&self.situation.reduce_node, add_reduce)];
        let coming: f64 =
            new.iter().filter_map(|(new, many)| Some(new.as_ref()?.price.per_hour() * f64::from(*many))).sum();
        let until_safe_point_s = if when == When::SafePoint { rest.job_s() } else { 0.0 };
        let dollars = ((all - going + coming) * rest.total_s() + going * until_safe_point_s) / 3_600.0;
        let (cost, gone) = (Dollars::clamped(dollars), |number: i64| u32::try_from(-number).unwrap_or(0));
        let meets_goal = match self.wanted.goal {
            Goal::Deadline { within_s } => {
                self.situation.elapsed_s + rest.total_s() * (1.0 + self.wanted.reserve) <= within_s
            }
            Goal::Cost { budget: Some(budget) } => self.wanted.spent + cost <= budget,
            Goal::Cost { budget: None } | Goal::Energy => true,
        };
        Ok(Some(Candidate {
            add_map,
            add_reduce,
            remove_map: gone(numbers.0),
            remove_reduce: gone(numbers.1),
            when,
            completion_s: self.situation.elapsed_s + rest.total_s(),
            parts_s: [rest.map_s, rest.reduce_s, rest.following_s],
            lost_maps: rest.lost_maps,
            cost,
            price: DollarsPerHour::clamped(all - going + coming),
            meets_goal,
        }))
    }

    /// What is less is better.
    fn rank(&self, own: &Candidate) -> [f64; 5] {
        let changes = f64::from(own.changes());
        let (price, cost, end_s) = (own.price.per_hour(), own.cost.amount(), own.completion_s);
        match (self.wanted.goal, own.meets_goal) {
            (Goal::Deadline { .. }, true) => [0.0, price, own.lost_maps.into(), end_s, changes],
            (Goal::Deadline { .. }, false) => [1.0, end_s, price, changes, 0.0],
            (Goal::Cost { budget: Some(_) }, true) => [0.0, end_s, cost, changes, 0.0],
            (Goal::Cost { budget: Some(_) }, false) => [1.0, cost, end_s, changes, 0.0],
            (Goal::Cost { budget: None } | Goal::Energy, _) => [0.0, cost, end_s, changes, 0.0],
        }
    }

    /// The longest lead time with which a change still meets the deadline.
    fn latest_lead_s(&self, numbers: Numbers, chosen: &Candidate) -> Result<Option<f64>, ModelError> {
        let Goal::Deadline { within_s } = self.wanted.goal else { return Ok(None) };
        if !chosen.meets_goal || chosen.add_map + chosen.add_reduce == 0 {
            return Ok(None);
        }
        let meets = |lead_s: f64| {
            let own = self.candidate(numbers, chosen.when, Some(lead_s))?;
            Ok::<bool, ModelError>(own.is_some_and(|own| own.meets_goal))
        };
        let (mut low, mut high) = (0.0, within_s - self.situation.elapsed_s);
        if meets(high)? {
            return Ok(Some(high));
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if meets(middle)? { low = middle } else { high = middle }
        }
        Ok(Some(low))
    }
}

/// Decides.
///
/// # Errors
/// [`DecideError`].
pub fn decide(situation: &Situation, wanted: Wanted) -> Result<Decision, DecideError> {
    if wanted.goal == Goal::Energy {
        return Err(DecideError::Energy);
    }
    let estimator = Estimator::new(situation)?;
    let (map, reduce) = (Leaving::new(situation, false), Leaving::new(situation, true));
    let range = |leaving: &Leaving, new: Option<u32>| {
        -i64::try_from(leaving.now.len()).unwrap_or(i64::MAX)..=i64::from(new.unwrap_or(0))
    };
    let maps = range(&map, situation.map_node.map(|new| new.most));
    let reduces = range(&reduce, situation.reduce_node.map(|new| new.most));
    let length = |own: &std::ops::RangeInclusive<i64>| own.start().abs_diff(*own.end()) + 1;
    let (candidates, nodes) = (length(&maps) * length(&reduces), situation.nodes.len() as u64);
    let most = length(&maps) + length(&reduces);
    if candidates > MOST_CANDIDATES || candidates * (nodes + most) > MOST_EFFORT {
        return Err(DecideError::TooMany { candidates, nodes });
    }
    let search = Search { situation, wanted, estimator, map, reduce };
    let mut all: Vec<(Numbers, Candidate)> = Vec::new();
    for own_map in maps {
        for own_reduce in reduces.clone() {
            let numbers = (own_map, own_reduce);
            if let Some(own) = search.candidate(numbers, When::Now, None)? {
                all.push((numbers, own));
            }
            if own_map.min(own_reduce) < 0
                && !situation.following.is_empty()
                && let Some(own) = search.candidate(numbers, When::SafePoint, None)?
            {
                all.push((numbers, own));
            }
        }
    }
    let by_rank = |a: &&(Numbers, Candidate), b: &&(Numbers, Candidate)| {
        let (a, b) = (search.rank(&a.1), search.rank(&b.1));
        let mut parts = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b));
        parts.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    let (numbers, chosen) = *all.iter().min_by(by_rank).ok_or(DecideError::NeverEnds)?;
    let unchanged = all.iter().find(|(numbers, _)| *numbers == (0, 0)).map(|(_, own)| *own);
    let removed = search.removed(numbers, chosen.when);
    Ok(Decision {
        chosen,
        remove: removed.into_iter().map(|index| situation.nodes[index].name.clone()).collect(),
        reason: reason(situation, wanted, &chosen, unchanged.as_ref()),
        unchanged,
        latest_lead_s: search.latest_lead_s(numbers, &chosen)?,
        factor: search.estimator.factor(),
        candidates: all.into_iter().map(|(_, own)| own).collect(),
    })
}

fn nodes(many: u32, kind: &str) -> Option<String> {
    (many > 0).then(|| format!("{many} {kind} node{}", if many == 1 { "" } else { "s" }))
}

/// The choice in a sentence.
fn reason(situation: &Situation, wanted: Wanted, chosen: &Candidate, unchanged: Option<&Candidate>) -> String {
    let list = |map: u32, reduce: u32| {
        let parts: Vec<String> = [nodes(map, "map"), nodes(reduce, "reduce")].into_iter().flatten().collect();
        parts.join(" and ")
    };
    let mut change = Vec::new();
    if chosen.add_map + chosen.add_reduce > 0 {
        change.push(format!("add {}", list(chosen.add_map, chosen.add_reduce)));
    }
    if chosen.remove_map + chosen.remove_reduce > 0 {
        let when = if chosen.when == When::Now { "now" } else { "when the running job has ended" };
        change.push(format!("remove {} {when}", list(chosen.remove_map, chosen.remove_reduce)));
    }
    let change = if change.is_empty() { "change nothing".to_owned() } else { change.join(", ") };
    let lost = match (chosen.lost_maps, situation.lost_output) {
        (0, _) | (_, LostOutput::Forgotten) => String::new(),
        (lost, _) => format!(", {lost} finished map tasks run again"),
    };
    let goal = match (wanted.goal, chosen.meets_goal) {
        (Goal::Deadline { within_s }, true) => format!("the deadline is {within_s:.0} s"),
        (Goal::Deadline { within_s }, false) => {
            format!("the deadline of {within_s:.0} s cannot be met; this is the earliest")
        }
        (Goal::Cost { budget: Some(budget) }, true) => format!("the earliest within ${:.2}", budget.amount()),
        (Goal::Cost { budget: Some(budget) }, false) => {
            format!("${:.2} is not enough; this is the cheapest", budget.amount())
        }
        (Goal::Cost { budget: None } | Goal::Energy, _) => {
            format!("the cheapest, ${:.2} from now", chosen.cost.amount())
        }
    };
    let without = unchanged.filter(|_| chosen.changes() > 0);
    let without = without.map_or_else(String::new, |own| format!(" ({:.0} s without a change)", own.completion_s));
    format!("{change}: all ends after {:.0} s{without}{lost}; {goal}", chosen.completion_s)
}
