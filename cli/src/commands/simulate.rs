//! `gleaner simulate`. In: a scenario that a user wrote. Out: what its jobs took and cost. Called by [`super`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use gleaner_experiments::baselines::sizing::Scenario;
use gleaner_simulator::cluster::{ClusterRun, JobRun, simulate};

use crate::documents::{print, read_document};
use crate::exit::End;
use crate::format;

pub(super) fn run(path: &Path, json: bool) -> anyhow::Result<End> {
    let scenario: Scenario = read_document(path)?;
    let run = simulate(&scenario).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    print(&if json { serde_json::to_string(&run)? } else { text(&run) })?;
    Ok(if run.completed && run.rejected.is_empty() { End::Good } else { End::Failed })
}

fn text(run: &ClusterRun) -> String {
    let several = run.jobs.len() > 1;
    let mut lines = Vec::new();
    let mut sizes = BTreeMap::new();
    for decision in &run.decisions {
        if sizes.insert(&decision.job, decision.size) != Some(decision.size) {
            let at = format::seconds(decision.at.0 as f64 / 1_000.0);
            let job = if several { format!("{}: ", format::clean(decision.job.as_str())) } else { String::new() };
            lines.push(format!("{at:>12}  {job}{}", decision.reason));
        }
    }
    if several {
        lines.extend([String::new(), jobs(&run.jobs), String::new()]);
    }
    lines.push(format!(
        "{} after {}: ${:.2}, {:.0} Wh, {:.1} volunteers in the mean",
        if run.completed { "done" } else { "NOT done at the time limit" },
        format::seconds(run.elapsed_s),
        run.cost,
        run.energy_wh,
        run.mean_volunteers
    ));
    lines.extend(run.rejected.iter().map(|violation| format!("rejected by the checker: {violation}")));
    lines.join("\n")
}

/// What each job took, beside fair sharing.
fn jobs(jobs: &[JobRun]) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let row = |job: &JobRun| {
        let took = format::seconds(job.elapsed_s);
        vec![
            format::clean(&job.name),
            format::seconds(f64::from(job.arrives_s)),
            if job.completed { took } else { format!("NOT DONE in {took}") },
            or_dash(job.fair_elapsed_s.map(format::seconds)),
            or_dash(job.late_s.map(format::seconds)),
            format!("{:.1}", job.mean_volunteers),
            or_dash(job.mean_fair_volunteers.map(|fair| format!("{fair:.1}"))),
            or_dash(job.credit_host_s.map(|credit| format!("{credit:+.0}"))),
            or_dash(job.deadline_met.map(|met| if met { "met".into() } else { "MISSED".into() })),
            format!("{:.2}", job.cost),
        ]
    };
    let head =
        ["JOB", "ARRIVED", "TOOK", "FAIRLY", "LATER", "HOSTS", "FAIR HOSTS", "CREDIT (HOST S)", "DEADLINE", "COST ($)"];
    format::table(&head, &jobs.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/three-jobs.toml");

    #[test]
    fn the_example_of_several_jobs_has_a_row_for_each() {
        let scenario: Scenario = read_document(Path::new(EXAMPLE)).unwrap();
        let said = text(&simulate(&scenario).unwrap());
        for part in ["JOB ", "\nnightly ", "\nreport ", "\nquery ", "done after "] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(said.lines().any(|line| line.contains("nightly: ")), "decisions name their job: {said}");
    }

    #[test]
    fn a_mistake_in_one_of_several_jobs_names_file_and_field() {
        let text = std::fs::read_to_string(EXAMPLE).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wrong.toml");
        for (from, to, part) in [
            ("weight = 2", "weight = 2000", "jobs[1].weight: 2000; 0.01 to 100"),
            ("arrives_s = 300", "arrives_s = \"soon\"", "jobs[1].arrives_s: invalid type: string \"soon\""),
            ("arrives_s = 300", "arrives = 300", "jobs[1].arrives: unknown field `arrives`"),
            ("within_s = 900", "within_s = -1", "jobs[2].goal.deadline.within_s: -1; more than 0"),
            ("name = \"query\"", "name = \"report\"", "jobs[2].name: report; another job has it"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            std::fs::write(&path, changed).unwrap();
            let said = run(&path, true).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("wrong.toml"), "{part}: {said}");
        }
    }
}
