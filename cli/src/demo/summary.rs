//! The demo's summary. In: measurements. Out: text. Called by the demo.

use gleaner_api::JobDetail;
use gleaner_types::job::{Decision, JobPhase};
use gleaner_types::text::counted;
use serde_json::{Value, json};

use super::busy::Others;
use super::used::Used;
use crate::exit::{End, goal_met};
use crate::foreground_load::Responses;
use crate::{format, harmed};

/// Everything measured in one demo.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) seed: u64,
    pub(super) cpus: usize,
    pub(super) weaknesses: Vec<String>,
    pub(super) decisions: Vec<Decision>,
    pub(super) detail: JobDetail,
    pub(super) deadline_s: f64,
    pub(super) used: Used,
    pub(super) alone: Responses,
    pub(super) beside: Responses,
    /// Words there are, words counted.
    pub(super) words: (u64, u64),
    /// What else this machine did when the demo began.
    pub(super) others: Option<Others>,
}

impl Summary {
    fn met(&self) -> bool {
        self.detail.status.phase == JobPhase::Completed && goal_met(&self.detail.status) == Some(true)
    }

    fn elapsed_s(&self) -> Option<f64> {
        self.detail.status.ended.map(|ended| ended.seconds_since(self.detail.status.submitted))
    }

    fn verified(&self) -> bool {
        self.words.0 == self.words.1
    }

    /// What was counted, and whether it is right; for a job that did not finish, only that it did not.
    fn result(&self) -> String {
        let (there, counted) = self.words;
        let verdict = match (self.detail.status.phase == JobPhase::Completed, self.verified()) {
            (true, true) => "every word was counted once",
            (true, false) => "WRONG",
            (false, _) => "the job did not finish, so this is only a part",
        };
        format!("{counted} of {there} words: {verdict}")
    }

    /// What the demo shows of this machine.
    fn learned(&self) -> Vec<String> {
        let Used { free_core_s, volunteer_core_s, harm, .. } = &self.used;
        let got = format!(
            "the job had {:.0} % of the CPU that the foreground left free",
            100.0 * volunteer_core_s / free_core_s.max(0.001)
        );
        let cost = harm.as_ref().and_then(|harm| Some((harm.foreground.value()?, harm.budget_percent)));
        let slower = match cost {
            None => "what that cost the foreground is not known; the harm meter says why".to_owned(),
            Some((harm, budget)) => {
                let judged = if harm.high_percent < budget {
                    format!("surely less than the budget of {budget} %")
                } else if harm.low_percent > budget {
                    format!("surely more than the budget of {budget} %; docs/harm.md says what helps")
                } else {
                    format!("which may be more or less than the budget of {budget} %: a longer run would tell")
                };
                format!("it slowed the foreground by {harm}, {judged}")
            }
        };
        let beside = self.others.filter(Others::is_much).map(|others| format!("{others}; a quiet machine tells more"));
        [got, slower].into_iter().chain(beside).collect()
    }

    pub(super) fn end(&self) -> End {
        match (self.detail.status.phase == JobPhase::Completed && self.verified(), self.met()) {
            (true, true) => End::Good,
            (true, false) => End::GoalMissed,
            (false, _) if self.detail.status.progress.as_ref().is_some_and(|p| p.tasks_failed > 0) => End::TasksFailed,
            (false, _) => End::GoalMissed,
        }
    }

    pub(super) fn text(&self) -> String {
        let job = &self.detail.status;
        let mut lines = vec![String::new()];
        let mut line = |name: &str, value: String| lines.push(format!("{name:<11} {value}"));
        line(
            "deadline",
            match self.elapsed_s() {
                Some(s) if self.met() => format!("met: done in {s:.1} s of {:.0} s", self.deadline_s),
                Some(s) => {
                    format!("MISSED: {} after {s:.1} s, deadline was {:.0} s", job.phase.word(), self.deadline_s)
                }
                None => format!("MISSED: still {} when the demo gave up", job.phase.word()),
            },
        );
        line("result", self.result());
        let Used { free_core_s, volunteer_core_s, shrinks, freezes, .. } = &self.used;
        line(
            "harvested",
            format!(
                "{volunteer_core_s:.0} core-seconds, {:.0} % of the {free_core_s:.0} the foreground left free meanwhile",
                100.0 * volunteer_core_s / free_core_s.max(0.001)
            ),
        );
        let change = |now: f64, before: f64| 100.0 * (now / before.max(1e-9) - 1.0);
        let (alone, beside) = (&self.alone, &self.beside);
        line(
            "foreground",
            format!(
                "mean response {:.2} → {:.2} ms ({:+.1} %), 95th percentile {:.2} → {:.2} ms ({:+.1} %)",
                alone.mean_ms(),
                beside.mean_ms(),
                change(beside.mean_ms(), alone.mean_ms()),
                alone.quantile_ms(0.95),
                beside.quantile_ms(0.95),
                change(beside.quantile_ms(0.95), alone.quantile_ms(0.95)),
            ),
        );
        line(
            "",
            format!("{} alone, {} beside the job", counted(alone.sorted_ms.len(), "request"), beside.sorted_ms.len()),
        );
        if let Some(harm) = &self.used.harm {
            line("harm meter", harmed::harm(&harm.foreground));
        }
        line(
            "guard",
            format!(
                "gave CPU back to the foreground {}, froze the job {}",
                counted(shrinks, "time"),
                counted(freezes, "time")
            ),
        );
        line("decisions", format!("{} taken, {} changed something", job.decisions, self.decisions.len()));
        for decision in &self.decisions {
            let at = format::seconds(decision.at.seconds_since(job.submitted));
            line("", format!("after {at}: {}", format::clean(&decision.reason)));
        }
        for weakness in &self.weaknesses {
            line("weaker", format::clean(weakness));
        }
        for (place, learned) in self.learned().into_iter().enumerate() {
            line(if place == 0 { "learned" } else { "" }, learned);
        }
        lines.join("\n")
    }

    pub(super) fn json(&self) -> Value {
        let responses = |responses: &Responses| {
            json!({
                "requests": responses.sorted_ms.len(), "mean_ms": responses.mean_ms(),
                "p50_ms": responses.quantile_ms(0.5), "p95_ms": responses.quantile_ms(0.95), "p99_ms": responses.quantile_ms(0.99),
            })
        };
        json!({
            "seed": self.seed, "cpus": self.cpus, "deadline_s": self.deadline_s, "deadline_met": self.met(),
            "elapsed_s": self.elapsed_s(), "words": self.words.0, "words_counted": self.words.1,
            "free_core_s": self.used.free_core_s, "harvested_core_s": self.used.volunteer_core_s,
            "foreground_alone": responses(&self.alone), "foreground_beside": responses(&self.beside),
            "guard_shrinks": self.used.shrinks, "guard_freezes": self.used.freezes,
            "harm": self.used.harm, "others": self.others, "learned": self.learned(),
            "decisions": self.decisions, "weaknesses": self.weaknesses, "job": self.detail.status,
        })
    }
}
