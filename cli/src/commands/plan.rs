//! `gleaner plan`: one document in, one decision out.

use anyhow::anyhow;
use gleaner_planner::snapshot::{SizeQuestion, size};

use super::{print, read_document};
use crate::End;
use crate::args::PlanCommand;
use crate::format;

pub(super) fn run(plan: &PlanCommand, json: bool) -> anyhow::Result<End> {
    let PlanCommand::Size { question: path } = plan;
    let question: SizeQuestion = read_document(path)?;
    let answer = size(&question).map_err(|problems| anyhow!("{}: {}", path.display(), problems.join("\n")))?;
    if json {
        print(&serde_json::to_string(&answer)?)?;
        return Ok(End::Good);
    }
    print(&answer.reason)?;
    let rows: Vec<Vec<String>> = answer
        .volunteers
        .iter()
        .map(|chosen| {
            let reads_from = chosen.reads_from.as_ref().map(ToString::to_string).unwrap_or_default();
            vec![
                chosen.host.to_string(),
                chosen.slots.to_string(),
                format!("{:.0} %", chosen.potential_percent),
                reads_from,
            ]
        })
        .collect();
    if !rows.is_empty() {
        print(&format::table(&["VOLUNTEER", "SLOTS", "POTENTIAL", "READS FROM"], &rows))?;
    }
    print(&format::candidates(&answer.candidates, answer.size))?;
    Ok(End::Good)
}
