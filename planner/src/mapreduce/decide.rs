//! Which nodes a job should get or give back (Gandhi et al., §III-C and §V). In: a checked [`Situation`] and a goal. Out: the
//! change of the cluster with its reason and all that were considered. `gleaner plan autoscale` and `gleaner reproduce
//! mapreduce` call it.
//!
//! Every number of map nodes and of reduce nodes that may come is tried, and every set of those that may go (`leaving` says
//! which where they are too many). With a deadline (the paper's SLA) the cluster with the lowest price an hour that meets it is
//! chosen; with a cost, the cheapest, or the earliest within a budget.

use std::collections::BTreeMap;

use gleaner_types::id::HostId;
use gleaner_types::job::Goal;
use gleaner_types::text::duration;
use gleaner_types::units::{Dollars, DollarsPerHour};
use serde::{Deserialize, Serialize};

use super::equations::ModelError;
use super::estimate::{Change, Estimator, When};
use super::leaving::{Leaving, Sets};
use super::situation::{LostOutput, NewNode, Node, Situation};

/// Most changes that are tried, and most of them times the steps of an estimate. Chosen: seconds of work.
const MOST_CHANGES: u64 = 50_000;
const MOST_STEPS: u64 = 500_000_000;
/// Halvings in the search of the latest lead time.
const HALVINGS: u32 = 40;
/// Ends that differ by less, in seconds, are the same: it is rounding.
const ROUNDING_S: f64 = 1e-6;

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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Map tasks take so many times what the training says, by the finished ones and the done parts of running ones.
    pub factor: f64,
    /// Every set of nodes that may go was tried, but for which of alike nodes goes; otherwise only the first of some orders.
    pub all_sets_tried: bool,
    /// The best change by which the job can end, for each number of nodes that come or go.
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
        "map_node.most, reduce_node.most, nodes, others and following: give {changes} changes of {steps} steps each; they must be at most \
         {MOST_CHANGES} changes, and {MOST_STEPS} of both multiplied"
    )]
    TooMany {
        /// Changes.
        changes: u64,
        /// Steps of an estimate.
        steps: u64,
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

/// Map nodes and reduce nodes: for each kind the number of a set of nodes that goes, or, beyond those, of how many come.
type Choice = [u64; 2];

/// What a choice means, for each kind.
struct Meaning {
    add: [u32; 2],
    removed: [u32; 2],
    /// The nodes that go, in rising order.
    remove: Vec<usize>,
}

/// A search for the best change.
struct Search<'a> {
    situation: &'a Situation,
    wanted: Wanted,
    estimator: Estimator<'a>,
    leaving: [Leaving; 2],
    sets: [Sets; 2],
}

impl Search<'_> {
    fn meaning(&self, choice: Choice) -> Meaning {
        let mut own = Meaning { add: [0; 2], removed: [0; 2], remove: Vec::new() };
        for (kind, number) in choice.into_iter().enumerate() {
            let (leaving, sets) = (&self.leaving[kind], self.sets[kind]);
            match number.checked_sub(leaving.count(sets)) {
                Some(beyond) => own.add[kind] = u32::try_from(beyond + 1).unwrap_or(u32::MAX),
                None => {
                    let set = leaving.set(sets, number);
                    own.removed[kind] = u32::try_from(set.len()).unwrap_or(u32::MAX);
                    own.remove.extend(set);
                }
            }
        }
        own.remove.sort_unstable();
        own
    }

    fn candidate(&self, choice: Choice, when: When, lead_s: Option<f64>) -> Result<Option<Candidate>, ModelError> {
        let Meaning { add: [add_map, add_reduce], removed: [remove_map, remove_reduce], remove } = self.meaning(choice);
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
        let cost = Dollars::clamped(dollars);
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
            remove_map,
            remove_reduce,
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
        let end_s = (own.completion_s / ROUNDING_S).round() * ROUNDING_S;
        let (price, cost) = (own.price.per_hour(), own.cost.amount());
        match (self.wanted.goal, own.meets_goal) {
            (Goal::Deadline { .. }, true) => [0.0, price, own.lost_maps.into(), end_s, changes],
            (Goal::Deadline { .. }, false) => [1.0, end_s, price, changes, 0.0],
            (Goal::Cost { budget: Some(_) }, true) => [0.0, end_s, cost, changes, 0.0],
            (Goal::Cost { budget: Some(_) }, false) => [1.0, cost, end_s, changes, 0.0],
            (Goal::Cost { budget: None } | Goal::Energy, _) => [0.0, cost, end_s, changes, 0.0],
        }
    }

    fn better(&self, a: &Candidate, b: &Candidate) -> bool {
        let (a, b) = (self.rank(a), self.rank(b));
        let mut parts = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b));
        parts.find(|order| order.is_ne()).is_some_and(std::cmp::Ordering::is_lt)
    }

    /// The longest lead time with which a change still meets the deadline.
    fn latest_lead_s(&self, choice: Choice, chosen: &Candidate) -> Result<Option<f64>, ModelError> {
        let Goal::Deadline { within_s } = self.wanted.goal else { return Ok(None) };
        if !chosen.meets_goal || chosen.add_map + chosen.add_reduce == 0 {
            return Ok(None);
        }
        let meets = |lead_s: f64| {
            let own = self.candidate(choice, chosen.when, Some(lead_s))?;
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
    let leaving = [false, true].map(|reduce| Leaving::new(situation, &estimator, reduce));
    let sets = sets(situation, &leaving, estimator.steps())?;
    let all_sets_tried = leaving.iter().zip(sets).all(|(own, sets)| own.all_are(sets));
    let [maps, reduces] = choices(situation, &leaving, sets);
    let search = Search { situation, wanted, estimator, leaving, sets };
    // The best of each number of nodes.
    let mut all: BTreeMap<(i64, i64, bool), (Choice, Candidate)> = BTreeMap::new();
    let mut consider = |choice: Choice, when: When| -> Result<bool, ModelError> {
        let Some(own) = search.candidate(choice, when, None)? else { return Ok(true) };
        let signed = |add: u32, remove: u32| i64::from(add) - i64::from(remove);
        let (map, reduce) = (signed(own.add_map, own.remove_map), signed(own.add_reduce, own.remove_reduce));
        let best = all.entry((map, reduce, when == When::SafePoint)).or_insert((choice, own));
        if search.better(&own, &best.1) {
            *best = (choice, own);
        }
        Ok(own.remove_map + own.remove_reduce > 0)
    };
    for map in 0..maps {
        for reduce in 0..reduces {
            let removes = consider([map, reduce], When::Now)?;
            if removes && !situation.following.is_empty() {
                consider([map, reduce], When::SafePoint)?;
            }
        }
    }
    let better = |best: (Choice, Candidate), own: (Choice, Candidate)| {
        if search.better(&own.1, &best.1) { own } else { best }
    };
    let (choice, chosen) = all.values().copied().reduce(better).ok_or(DecideError::NeverEnds)?;
    let unchanged = all.get(&(0, 0, false)).map(|(_, own)| *own);
    let removed: Vec<&Node> = search.meaning(choice).remove.into_iter().map(|index| &situation.nodes[index]).collect();
    Ok(Decision {
        chosen,
        reason: reason(situation, wanted, &chosen, &removed, unchanged.as_ref()),
        remove: removed.into_iter().map(|node| node.name.clone()).collect(),
        unchanged,
        latest_lead_s: search.latest_lead_s(choice, &chosen)?,
        factor: search.estimator.factor(),
        all_sets_tried,
        candidates: all.into_values().map(|(_, own)| own).collect(),
    })
}

/// How many choices there are for each kind.
fn choices(situation: &Situation, leaving: &[Leaving; 2], sets: [Sets; 2]) -> [u64; 2] {
    let most = [situation.map_node, situation.reduce_node].map(|new| new.map_or(0, |new| u64::from(new.most)));
    [0, 1].map(|kind| leaving[kind].count(sets[kind]).saturating_add(most[kind]))
}

/// As many sets of nodes that go as can be tried with so many steps for each.
fn sets(situation: &Situation, leaving: &[Leaving; 2], steps: u64) -> Result<[Sets; 2], DecideError> {
    // With jobs that follow, nodes go at once or at the safe point.
    let times = if situation.following.is_empty() { 1 } else { 2 };
    let changes =
        |sets| choices(situation, leaving, sets).into_iter().fold(times, |all: u64, own| all.saturating_mul(own));
    let fewer_and_fewer = [
        [Sets::All, Sets::All],
        [Sets::All, Sets::Orders],
        [Sets::Orders, Sets::All],
        [Sets::Orders, Sets::Orders],
        [Sets::OneOrder, Sets::OneOrder],
    ];
    let fit = |sets: &[Sets; 2]| {
        let changes = changes(*sets);
        changes <= MOST_CHANGES && changes.saturating_mul(steps) <= MOST_STEPS
    };
    let too_many = || DecideError::TooMany { changes: changes([Sets::OneOrder; 2]), steps };
    fewer_and_fewer.into_iter().find(fit).ok_or_else(too_many)
}

/// So many nodes for map and for reduce tasks, in words: those that have slots for both are just nodes.
fn list(many: [u32; 2], for_both: [bool; 2]) -> String {
    let mut all = [(0, "map node"), (0, "reduce node"), (0, "node")];
    for (kind, (many, for_both)) in many.into_iter().zip(for_both).enumerate() {
        all[if for_both { 2 } else { kind }].0 += many;
    }
    let parts = all.iter().filter(|(many, _)| *many > 0);
    let words: Vec<String> =
        parts.map(|(many, kind)| format!("{many} {kind}{}", if *many == 1 { "" } else { "s" })).collect();
    words.join(" and ")
}

/// The choice in a sentence.
fn reason(
    situation: &Situation,
    wanted: Wanted,
    chosen: &Candidate,
    removed: &[&Node],
    unchanged: Option<&Candidate>,
) -> String {
    let mut change = Vec::new();
    if chosen.add_map + chosen.add_reduce > 0 {
        let for_both =
            |new: Option<NewNode>| new.is_some_and(|new| new.map_slots_per_core.min(new.reduce_slots_per_core) > 0);
        let for_both = [situation.map_node, situation.reduce_node].map(for_both);
        change.push(format!("add {}", list([chosen.add_map, chosen.add_reduce], for_both)));
    }
    if chosen.remove_map + chosen.remove_reduce > 0 {
        let when = if chosen.when == When::Now { "now" } else { "when the running job has ended" };
        let for_both = removed.iter().filter(|node| node.reduces()).all(|node| node.map_slots_per_core > 0);
        let words = list([chosen.remove_map, chosen.remove_reduce], [false, for_both]);
        change.push(format!("remove {words} {when}"));
    }
    let change = if change.is_empty() { "change nothing".to_owned() } else { change.join(", ") };
    let lost = match (chosen.lost_maps, situation.lost_output) {
        (0, _) | (_, LostOutput::Forgotten) => String::new(),
        (lost, _) => format!(", {lost} finished map tasks run again"),
    };
    let goal = match (wanted.goal, chosen.meets_goal) {
        (Goal::Deadline { within_s }, true) => format!("the deadline is {}", duration(within_s)),
        (Goal::Deadline { within_s }, false) => {
            format!("the deadline of {} cannot be met; this is the earliest", duration(within_s))
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
    let without = without.map_or_else(String::new, |own| format!(" ({} without a change)", duration(own.completion_s)));
    format!("{change}: all ends after {}{without}{lost}; {goal}", duration(chosen.completion_s))
}
