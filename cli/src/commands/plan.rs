//! `gleaner plan`. In: one document. Out: one decision. Called by [`super`].

use std::path::Path;

use anyhow::anyhow;
use gleaner_experiments::baselines::CONTROLLERS;
use gleaner_planner::mapreduce::decide::Candidate;
use gleaner_planner::mapreduce::estimate::When;
use gleaner_planner::sharing::tasks::Locality;
use gleaner_planner::snapshot::autoscale::{AutoscaleAnswer, autoscale};
use gleaner_planner::snapshot::balance::{
    ArbitrateAnswer, ArbitrateQuestion, Asked, BalanceAnswer, BalancedShare, Contended, arbitrate_question,
    balance_question,
};
use gleaner_planner::snapshot::fill::{FillAnswer, FillQuestion, Noticed, Preempted, Started, fill};
use gleaner_planner::snapshot::problems::Problems;
use gleaner_planner::snapshot::share::{Credits, ShareAnswer, SharedJob, share};
use gleaner_planner::snapshot::tune::{TuneAnswer, tune};
use gleaner_planner::snapshot::{SizeAnswer, size};
use gleaner_types::id::HostId;
use gleaner_types::text::counted;
use gleaner_types::units::CoreShare;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::PlanCommand;
use crate::documents::{print, read_document};
use crate::exit::End;
use crate::format::{self, CpuUnit, word};
use crate::leases;

pub(super) fn run(plan: &PlanCommand, json: bool, unit: CpuUnit) -> anyhow::Result<End> {
    match plan {
        PlanCommand::Size { question } => answer(question, json, size, |_, answer| show_size(answer, unit)),
        PlanCommand::Tune { question } => {
            answer(question, json, |question| tune(question, &CONTROLLERS), |_, answer| show_tune(answer))
        }
        PlanCommand::Balance { question } => answer(question, json, balance_question, |_, answer| show_balance(answer)),
        PlanCommand::Arbitrate { question } => answer(question, json, arbitrate_question, show_arbitration),
        PlanCommand::Fill { question, leases } => {
            let mut asked: FillQuestion = read_document(question)?;
            let mut read = leases.as_deref().map(leases::read).transpose()?;
            if let Some(read) = &mut read {
                asked.leases = std::mem::take(&mut read.leases);
            }
            let answer = fill(&asked).map_err(|problems| match leases.as_deref().zip(read.as_ref()) {
                Some((path, read)) => leases::wrong(question, path, read, &problems),
                None => anyhow!("{}: {problems}", question.display()),
            })?;
            tell(&answer, json, || show_fill(asked.now_s, &answer))
        }
        PlanCommand::Share { question } => answer(question, json, share, |_, answer| show_share(answer)),
        PlanCommand::Autoscale { question } => answer(question, json, autoscale, |_, answer| show_autoscale(answer)),
    }
}

/// Reads a question, answers it and shows the answer.
fn answer<Q: DeserializeOwned, A: Serialize>(
    path: &Path,
    json: bool,
    by: impl FnOnce(&Q) -> Result<A, Problems>,
    show: impl FnOnce(&Q, &A) -> anyhow::Result<()>,
) -> anyhow::Result<End> {
    let question: Q = read_document(path)?;
    let answer = by(&question).map_err(|problems| anyhow!("{}: {problems}", path.display()))?;
    tell(&answer, json, || show(&question, &answer))
}

/// Prints an answer as JSON, or as it is shown.
fn tell<A: Serialize>(answer: &A, json: bool, show: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<End> {
    match json {
        true => print(&serde_json::to_string(answer)?)?,
        false => show()?,
    }
    Ok(End::Good)
}

fn show_size(answer: &SizeAnswer, unit: CpuUnit) -> anyhow::Result<()> {
    print(&answer.reason)?;
    let rows: Vec<Vec<String>> = answer
        .volunteers
        .iter()
        .map(|chosen| {
            let reads_from = chosen.reads_from.as_ref().map(ToString::to_string).unwrap_or_default();
            vec![
                chosen.host.to_string(),
                chosen.slots.to_string(),
                unit.show(CoreShare::clamped(chosen.potential_percent)),
                reads_from,
            ]
        })
        .collect();
    if !rows.is_empty() {
        print(&format::table(&["VOLUNTEER", "SLOTS", "POTENTIAL", "READS FROM"], &rows))?;
    }
    print(&format::candidates(&answer.candidates, answer.size, unit))
}

fn show_tune(answer: &TuneAnswer) -> anyhow::Result<()> {
    let error =
        answer.error.map_or_else(|| "its response time is not known".into(), |error| format!("error {error:+.2}"));
    print(&format!("{:.1} % of a core, {:+.1} % ({error})", answer.allocation_percent, answer.change_percent))
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn show_contended(contended: &[Contended]) -> anyhow::Result<()> {
    for own in contended {
        let (wanted, capacity) = (percent(own.wanted), percent(own.capacity));
        let floors = match own.floors_kept {
            kept if kept < 1.0 => format!("; the floors do not fit, {} of each is kept", percent(kept)),
            _ => String::new(),
        };
        print(&format!(
            "contended: {} of {}: {wanted} wanted, {capacity} there{floors}",
            word(own.resource),
            own.host
        ))?;
    }
    Ok(())
}

fn show_balance(answer: &BalanceAnswer) -> anyhow::Result<()> {
    for own in &answer.applications {
        let prediction = match (own.error, own.predicted) {
            (Some(error), None) => format!("error {error:+.2}"),
            (Some(error), Some(predicted)) => {
                let model = own.model.map(word).unwrap_or_default();
                let neighbour = if own.neighbour { ", of another condition of load" } else { "" };
                format!(
                    "error {error:+.2}, performance {predicted:.2} expected by the {model} model ({}{neighbour}); \
                     target {}; {} of its constrained requests granted",
                    counted(own.rows, "interval"),
                    own.reach.map(word).unwrap_or_default().replace('_', " "),
                    percent(own.part)
                )
            }
            _ => "its response time is not known: every share is held".to_owned(),
        };
        let elsewhere = if own.elsewhere { "; its bottleneck is elsewhere: shares are given back" } else { "" };
        print(&format!("{}: {prediction}{elsewhere}", own.name))?;
        let row = |share: &BalancedShare| {
            let (lower, upper) = share.bounds;
            vec![
                share.tier.to_string(),
                share.host.to_string(),
                word(share.resource),
                word(share.load),
                percent(share.present),
                format!("{} to {}", percent(lower), percent(upper)),
                format!("{:.2}", share.gain),
                percent(share.requested),
                percent(share.granted),
            ]
        };
        let head = ["TIER", "HOST", "RESOURCE", "LOAD", "PRESENT", "BOUNDS", "GAIN", "REQUESTED", "GRANTED"];
        print(&format::table(&head, &own.shares.iter().map(row).collect::<Vec<_>>()))?;
    }
    show_contended(&answer.contended)
}

fn show_arbitration(question: &ArbitrateQuestion, answer: &ArbitrateAnswer) -> anyhow::Result<()> {
    let row = |(asked, granted): (&Asked, &f64)| {
        vec![
            asked.application.to_string(),
            asked.tier.as_ref().map(ToString::to_string).unwrap_or_default(),
            asked.host.to_string(),
            word(asked.resource),
            percent(asked.wanted),
            percent(*granted),
            percent(answer.parts.get(&asked.application).copied().unwrap_or(1.0)),
        ]
    };
    let rows: Vec<Vec<String>> = question.demands.iter().zip(&answer.granted).map(row).collect();
    print(&format::table(&["APPLICATION", "TIER", "HOST", "RESOURCE", "WANTED", "GRANTED", "PART"], &rows))?;
    show_contended(&answer.contended)
}

/// Where a task runs, seen from its input.
fn locality(locality: Locality) -> String {
    match locality {
        Locality::Node => "this node",
        Locality::Rack => "its rack",
        Locality::OffRack => "another rack",
    }
    .to_owned()
}

fn show_share(answer: &ShareAnswer) -> anyhow::Result<()> {
    let seconds = format::seconds;
    let (makespan, mean) = (seconds(answer.makespan_s), seconds(answer.mean_time_s));
    print(&format!("{}: all end after {makespan}, a job takes {mean} on average", word(answer.policy)))?;
    let job = |own: &SharedJob| {
        vec![
            own.name.to_string(),
            seconds(own.completion_s),
            seconds(own.fair_completion_s),
            seconds(own.fair_completion_s - own.completion_s),
        ]
    };
    let rows: Vec<Vec<String>> = answer.jobs.iter().map(job).collect();
    print(&format::table(&["JOB", "ENDS", "FAIR", "AHEAD BY"], &rows))?;
    let placed = answer.placements.iter().map(|own| {
        let (start, end) = (seconds(own.start_s), seconds(own.end_s));
        let (stage, tasks) = (own.stage.to_string(), own.tasks.to_string());
        vec![start, end, own.job.to_string(), stage, own.node.to_string(), locality(own.locality), tasks]
    });
    print(&format::table(&["START", "END", "JOB", "STAGE", "NODE", "INPUT ON", "TASKS"], &placed.collect::<Vec<_>>()))?;
    let names: Vec<&str> = answer.jobs.iter().map(|own| own.name.as_str()).collect();
    let credit = |row: &Credits| {
        let credits =
            answer.jobs.iter().map(|own| format!("{:+.1} s", row.jobs.get(&own.name).copied().unwrap_or(0.0)));
        std::iter::once(seconds(row.at_s)).chain(credits).collect()
    };
    let rows: Vec<Vec<String>> = answer.credits.iter().map(credit).collect();
    print(&format::table(&[&["CREDIT AT"], names.as_slice()].concat(), &rows))
}

/// Candidates on each side of the chosen one that are shown; `--json` has all.
const NEIGHBOURS: usize = 5;

fn show_autoscale(answer: &AutoscaleAnswer) -> anyhow::Result<()> {
    let (decision, seconds) = (&answer.decision, format::seconds);
    print(&decision.reason)?;
    if !decision.remove.is_empty() {
        let names: Vec<&str> = decision.remove.iter().map(|name| name.as_str()).collect();
        print(&format!("nodes to remove: {}", names.join(", ")))?;
    }
    if let Some(lead_s) = decision.latest_lead_s {
        print(&format!("the new nodes must take tasks within {}", seconds(lead_s)))?;
    }
    if let Some(fitted) = &answer.fitted {
        let of = |name: &str, own: &gleaner_planner::mapreduce::fit::Quality| {
            let (runs, delta) = (own.runs, own.delta_percent);
            let r_squared = match own.r_squared {
                known if known.is_finite() => format!("R² {known:.3}"),
                _ => "no R², as all took as long".to_owned(),
            };
            let left_out = match own.left_out_percent {
                error if error.is_finite() => format!("{error:.1} % on runs left out"),
                _ => "nothing is known of runs left out".to_owned(),
            };
            format!("{name}: {}, {r_squared}, Δ {delta:.1} %, {left_out}", counted(runs, "run"))
        };
        print(&of("map stage", &fitted.map))?;
        fitted.reduce.as_ref().map_or(Ok(()), |own| print(&of("reduce stage", own)))?;
    }
    answer.notes.iter().try_for_each(|note| print(&format!("note: {note}")))?;
    let chosen = decision.candidates.iter().position(|own| *own == decision.chosen).unwrap_or(0);
    let signed = |added: u32, removed: u32| format!("{:+}", i64::from(added) - i64::from(removed));
    let row = |(index, own): (usize, &Candidate)| {
        let when = if own.remove_map + own.remove_reduce == 0 { String::new() } else { word(own.when) };
        vec![
            if index == chosen { "*" } else { "" }.to_owned(),
            signed(own.add_map, own.remove_map),
            signed(own.add_reduce, own.remove_reduce),
            if own.when == When::SafePoint { when.replace('_', " ") } else { when },
            seconds(own.completion_s),
            own.lost_maps.to_string(),
            format!("${:.2}", own.cost.amount()),
            if own.meets_goal { "yes" } else { "no" }.to_owned(),
        ]
    };
    let near = |index: &usize| index.abs_diff(chosen) <= NEIGHBOURS;
    let rows = decision.candidates.iter().enumerate().filter(|(index, _)| near(index)).map(row);
    let head = ["", "MAP NODES", "REDUCE NODES", "REMOVED", "ENDS", "RUN AGAIN", "COST", "MEETS GOAL"];
    print(&format::table(&head, &rows.collect::<Vec<_>>()))
}

/// Times are told from `now_s` on, as their zero is the user's.
fn show_fill(now_s: f64, answer: &FillAnswer) -> anyhow::Result<()> {
    let (seconds, from_now) = (format::seconds, |at_s: f64| format::seconds(at_s - now_s));
    match &answer.unknown {
        Some(unknown) => print(&format!("{}: no forecast: {unknown}", word(answer.policy)))?,
        None => print(&format!(
            "{}: nodes to have notice beyond those that leases name: {}",
            word(answer.policy),
            answer.wanted
        ))?,
    }
    for own in &answer.leases {
        let hosts: Vec<&str> = own.hosts.iter().map(HostId::as_str).collect();
        let booked = match own.booked {
            0 => String::new(),
            booked => format!(", {booked} of them because other leases will have them before this one ends"),
        };
        let missing = match own.missing {
            0 => String::new(),
            missing => format!("; nodes that are missing: {missing}{booked}"),
        };
        print(&format!("lease {}: {}{missing}", own.lease, hosts.join(", ")))?;
    }
    let names = |own: &Preempted| own.jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let ended = |own: &Preempted| {
        let lost = format!("{:.0} core s", own.lost_core_s);
        vec![own.host.to_string(), names(own), from_now(own.at_s), seconds(own.notice_s), lost, own.reason.clone()]
    };
    let rows: Vec<Vec<String>> = answer.preempt.iter().map(ended).collect();
    if !rows.is_empty() {
        print(&format::table(&["PREEMPT ON", "JOBS", "IN", "NOTICE", "LOST", "WHY"], &rows))?;
    }
    let noticed = |own: &Noticed| {
        let (from, to) = (from_now(own.notice.wanted_s), from_now(own.notice.latest_s));
        vec![own.host.to_string(), from, to, percent(own.notice.probability), own.reason.clone()]
    };
    let rows: Vec<Vec<String>> = answer.notices.iter().map(noticed).collect();
    if !rows.is_empty() {
        print(&format::table(&["NOTICE TO", "WANTED IN", "AT THE LATEST", "LIKELY", "WHY"], &rows))?;
    }
    for host in &answer.withdrawn {
        print(&format!("notice to {host} is taken back"))?;
    }
    let row =
        |own: &Started| vec![own.job.to_string(), own.host.to_string(), format!("{:.0} core s", own.waste_core_s)];
    let rows: Vec<Vec<String>> = answer.start.iter().map(row).collect();
    match rows.is_empty() {
        true => print("nothing starts"),
        false => print(&format::table(&["START", "ON", "EXPECTED WASTE"], &rows)),
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::snapshot::autoscale::AutoscaleQuestion;
    use gleaner_planner::snapshot::share::ShareQuestion;

    use super::*;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/share.json");

    /// The example of docs/plan.md is the worked example of Wei, §5.2.1, with T = 60 s.
    #[test]
    fn the_example_of_the_docs_is_shared_as_the_docs_say() {
        let path = Path::new(EXAMPLE);
        let question: ShareQuestion = read_document(path).unwrap();
        let answer = share(&question).unwrap();
        let jobs = answer.jobs.iter();
        let ends: Vec<(&str, f64, f64)> =
            jobs.map(|own| (own.name.as_str(), own.completion_s, own.fair_completion_s)).collect();
        assert_eq!(ends, [("A", 120.0, 180.0), ("D", 180.0, 180.0), ("C", 180.0, 240.0), ("B", 120.0, 300.0)]);
        assert_eq!(answer.placements.iter().map(|own| own.tasks).sum::<u32>(), 20);
        for json in [true, false] {
            run(&PlanCommand::Share { question: path.to_owned() }, json, CpuUnit::Cores).unwrap();
        }
        let mut wrong = question;
        wrong.jobs[1].stages[0].demand.cpu = -8.0;
        assert!(
            share(&wrong).unwrap_err().to_string().starts_with("jobs[1] (B).stages[0].demand.cpu: is -8; it must be")
        );
        wrong.version = 2;
        assert_eq!(share(&wrong).unwrap_err().to_string(), "version: is 2; it must be 1");
    }

    /// The example of docs/autoscale.md is WordCount of Gandhi et al., §V-B, with new nodes that take 45 s.
    #[test]
    fn the_autoscale_example_of_the_docs_is_answered_as_the_docs_say() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/autoscale.json"));
        let mut question: AutoscaleQuestion = read_document(path).unwrap();
        let answer = autoscale(&question).unwrap();
        let chosen = &answer.decision.chosen;
        assert_eq!((chosen.add_map, chosen.remove_map, chosen.lost_maps, chosen.meets_goal), (0, 1, 31, true));
        for json in [true, false] {
            run(&PlanCommand::Autoscale { question: path.to_owned() }, json, CpuUnit::Cores).unwrap();
        }
        question.situation.nodes[0].maps_done = 400;
        let said = autoscale(&question).unwrap_err().to_string();
        assert!(said.starts_with("situation.nodes: map tasks done and running: is 497"), "{said}");
    }

    /// The example of docs/reservations.md.
    #[test]
    fn gaps_of_the_docs_are_filled_as_the_docs_say() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/fill.json"));
        let question: FillQuestion = read_document(path).unwrap();
        let answer = fill(&question).unwrap();
        let noticed: Vec<(&str, f64)> =
            answer.notices.iter().map(|own| (own.host.as_str(), own.notice.wanted_s)).collect();
        assert_eq!(noticed, [("n4", 697_200.0), ("n2", 696_600.0)]);
        let [ended] = answer.preempt.as_slice() else { panic!("{:?}", answer.preempt) };
        assert_eq!(
            (ended.jobs[0].as_str(), ended.at_s, ended.notice_s, ended.lost_core_s),
            ("long-4", 697_200.0, 2_400.0, 200.0)
        );
        let started: Vec<(&str, &str)> = answer.start.iter().map(|own| (own.job.as_str(), own.host.as_str())).collect();
        assert_eq!(started, [("wait-2", "n4")], "it ends before the lease begins; wait-1 would not");
        assert_eq!(answer.unknown, None);
        for json in [true, false] {
            run(&PlanCommand::Fill { question: path.to_owned(), leases: None }, json, CpuUnit::Cores).unwrap();
        }
    }

    #[test]
    fn mistakes_in_a_file_of_leases_name_that_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leases.csv");
        std::fs::write(&path, "\u{feff}lease,start_s,end_s,nodes\na,100,200,1\n\na,300,250,1\n").unwrap();
        let question = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/fill.json")).to_owned();
        let asked = PlanCommand::Fill { question, leases: Some(path.clone()) };
        let said = run(&asked, true, CpuUnit::Cores).unwrap_err().to_string();
        let (first, second) = (": line 4 (a).lease: is named twice", ": line 4 (a).end_s: is 250;");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines.iter().all(|line| line.starts_with(&path.display().to_string())), "{said}");
        assert!(lines[0].contains(first) && lines[1].contains(second), "{said}");
    }

    #[test]
    fn what_a_question_about_gaps_leaves_out_is_as_the_docs_say() {
        let text = include_str!("../../../docs/examples/fill.json");
        let mut document: serde_json::Value = serde_json::from_str(text).unwrap();
        document["surviving"] = serde_json::json!({"days": 5});
        document["scale"] = serde_json::json!({"slot_h": 2});
        let question: FillQuestion = serde_json::from_value(document.clone()).unwrap();
        let surviving = question.surviving;
        assert_eq!(
            (surviving.horizon_s, surviving.days, surviving.unused_per_sudden, surviving.notice_core_s),
            (3_600.0, 5, 3.0, 1_200.0)
        );
        assert_eq!((question.scale.window_h, question.scale.slot_h), (168, 2));
        document["leases"][0]["lease"] = serde_json::json!("");
        assert!(serde_json::from_value::<FillQuestion>(document).is_err(), "a lease has a name");
    }
}
