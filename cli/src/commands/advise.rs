//! `gleaner advise`. In: a time and a risk. Out: how many cores the hosts could give, from the aggregator, as a table.
//! Called by [`super`].

use std::path::Path;

use anyhow::bail;
use gleaner_api::{Client, Request, Response};
use gleaner_planner::advice::{Advice, Basis, HostAdvice, Question, Standing, total};
use gleaner_types::report::Reading;
use gleaner_types::text::counted;
use gleaner_types::units::CoreShare;

use crate::args::AdviseArgs;
use crate::columns;
use crate::documents::print;
use crate::exit::End;
use crate::flags;
use crate::format::{CpuUnit, Footnotes, clean, seconds, table};
use crate::list::or_none_passes;
use crate::states;

pub(super) async fn advise(socket: &Path, args: &AdviseArgs, json: bool, unit: CpuUnit) -> anyhow::Result<End> {
    let list = args.list.over(columns::advice())?;
    let client = Client::connect(socket).await?;
    let question = Question { for_s: args.time.as_secs_f64(), risk: args.risk };
    let Response::Advice(advice) = client.call(&Request::Advise(question)).await.map_err(flags::named)? else {
        bail!("unexpected answer")
    };
    let of = advice.hosts.len();
    // What is added up is of the hosts that are shown.
    let advice = total(advice.question, list.rows(advice.hosts)?);
    let words = || or_none_passes(text(&advice, unit), advice.hosts.len(), of);
    print(&if json { serde_json::to_string_pretty(&advice)? } else { words() })?;
    Ok(End::Good)
}

/// Advice for people.
fn text(advice: &Advice, unit: CpuUnit) -> String {
    let Question { for_s, risk } = advice.question;
    if advice.hosts.is_empty() {
        return "no host has joined yet".to_owned();
    }
    let of = |wanted: fn(&Standing) -> bool| {
        let hosts: Vec<&HostAdvice> = advice.hosts.iter().filter(|own| wanted(&own.standing)).collect();
        let known = hosts.iter().filter(|own| own.promise.value().is_some()).count();
        (hosts.len(), known)
    };
    let worded = |share: CoreShare| match unit {
        CpuUnit::Cores => format!("{} cores", unit.brief(share)),
        CpuUnit::Percent => format!("{} of a core", unit.brief(share)),
    };
    let asked = format!("for {} at a risk of {} %", seconds(for_s), risk * 100.0);
    let mut lines = vec![match (of(|standing| *standing == Standing::Ready), advice.ready) {
        ((0, _), _) => format!("No host could give anything now: none of them may act. What was asked: {asked}."),
        ((ready, known), Some(promised)) if known > 0 => format!(
            "{} could give {} {asked} ({}){}.",
            counted(known, "host"),
            worded(promised),
            advice.in_use.map_or_else(
                || "what is in use is not known".to_owned(),
                |in_use| format!("of which {} are in use", unit.brief(in_use))
            ),
            not_known(ready - known),
        ),
        ((ready, _), _) => format!("What {} could give {asked} is not known yet.", counted(ready, "host")),
    }];
    let (observing, known) = of(|standing| matches!(standing, Standing::Observing { .. }));
    match advice.observing {
        _ if observing == 0 => {}
        Some(promised) if known > 0 => lines.push(format!(
            "{} could give {}, once acting is switched on{}.",
            counted(known, "host"),
            worded(promised),
            not_known(observing - known),
        )),
        _ => lines.push(format!(
            "What {} could give, once acting is switched on, is not known yet.",
            counted(observing, "host")
        )),
    }
    lines.push(String::new());
    let mut notes = Footnotes::default();
    let rows: Vec<_> = advice.hosts.iter().map(|own| row(own, for_s, unit, &mut notes)).collect();
    lines.push(table(&["HOST", "STATE", "PROMISED", "EXPECTED", "IN USE", "MEMORY", "RESTS ON", "JOB"], &rows));
    let notes = notes.text();
    lines.extend((!notes.is_empty()).then(|| notes.trim_start().to_owned()));
    for own in &advice.hosts {
        if let Standing::Observing { needs } = &own.standing {
            lines.push(format!("\n{} observes only. To let it act:", own.host));
            lines.extend(needs.iter().map(|need| format!("  - {}", clean(need))));
        }
        if let Standing::Unable { reason } = &own.standing {
            lines.push(format!("\n{} can give nothing: {}", own.host, clean(reason)));
        }
    }
    lines.join("\n")
}

/// So many hosts more are not in a sum.
fn not_known(hosts: usize) -> String {
    if hosts == 0 { String::new() } else { format!("; of {} more it is not known yet", counted(hosts, "host")) }
}

fn row(own: &HostAdvice, for_s: f64, unit: CpuUnit, notes: &mut Footnotes) -> Vec<String> {
    let (word, meaning) = states::standing(&own.standing);
    let state = meaning.paint(&match &own.standing {
        Standing::Held { until } => until.in_words(None),
        _ => word.to_owned(),
    });
    // How often the host was watched for as long as was asked.
    let spans = |windows: u32| format!("{} of {}", counted(windows, "span"), seconds(for_s));
    const UNKNOWN: &str = "unknown";
    let cores = |share: CoreShare| unit.brief(share);
    let in_use = own.in_use.map_or_else(|| UNKNOWN.to_owned(), cores);
    let mut cells = vec![own.host.to_string(), state];
    match &own.promise {
        Reading::Value(promise) => {
            cells.push(cores(promise.cpu));
            cells.push(cores(promise.expected));
            cells.push(in_use);
            cells.push(promise.memory.map_or_else(|| UNKNOWN.to_owned(), |memory| memory.to_string()));
            cells.push(match promise.basis {
                Basis::Stated { windows } => format!("its own promise, {}", spans(windows)),
                Basis::Observed { windows } => spans(windows),
                Basis::Stretched { windows } => format!("a guess from {}", spans(windows)),
            });
        }
        Reading::Absent(absence) => {
            let why = notes.note(&absence.to_string());
            cells.extend([format!("{UNKNOWN}{why}"), UNKNOWN.to_owned(), in_use, UNKNOWN.to_owned(), "-".to_owned()]);
        }
    }
    cells.push(own.job.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string));
    cells
}

#[cfg(test)]
mod tests {
    use gleaner_planner::advice::Promise;
    use gleaner_types::id::HostId;
    use gleaner_types::report::AbsenceKind;

    use super::*;

    #[test]
    fn an_answer_a_person_can_act_on() {
        let own = |name: &str, standing, promise| HostAdvice {
            host: HostId::new(name).unwrap(),
            standing,
            promise,
            in_use: (name != "h3").then(|| CoreShare::clamped(50.0)),
            job: None,
        };
        let promise = |percent, basis| {
            let cpu = CoreShare::clamped(percent);
            Reading::Value(Promise { cpu, expected: CoreShare::clamped(400.0), memory: None, basis })
        };
        let needs = vec!["set act.enabled".to_owned(), "there is no\nfreezer".to_owned()];
        let hosts = vec![
            own("h1", Standing::Ready, promise(310.0, Basis::Observed { windows: 144 })),
            own("h2", Standing::Observing { needs }, promise(120.0, Basis::Stretched { windows: 9 })),
            own("h3", Standing::Ready, Reading::absent(AbsenceKind::NotYet, "20 more minutes are needed")),
        ];
        let advice = total(Question { for_s: 600.0, risk: 0.01 }, hosts);
        let json = serde_json::to_string(&advice).unwrap();
        assert_eq!(serde_json::from_str::<Advice>(&json).unwrap(), advice);
        let text = text(&advice, CpuUnit::Cores);
        for part in [
            "1 host could give 3.1 cores for 10 min 00 s at a risk of 1 % (of which 0.5 are in use); of 1 host more it is not known yet.",
            "1 host could give 1.2 cores, once acting is switched on.",
            "144 spans of 10 min 00 s",
            "a guess from 9 spans of 10 min 00 s",
            "[1] not available, because 20 more minutes are needed",
            "h2 observes only. To let it act:\n  - set act.enabled\n  - there is no?freezer",
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
        let unknown = text.lines().find(|line| line.starts_with("h3")).unwrap();
        assert_eq!(unknown.matches("unknown").count(), 4, "{unknown}");
        let none = self::text(&total(advice.question, vec![advice.hosts[2].clone()]), CpuUnit::Cores);
        assert!(
            none.starts_with("What 1 host could give for 10 min 00 s at a risk of 1 % is not known yet."),
            "{none}"
        );
        assert!(!none.contains("0.0"), "{none}");
    }
}
