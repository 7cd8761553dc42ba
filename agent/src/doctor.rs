//! `gleaner-agent doctor`. In: this host. Out: what it offers, what is missing, what each absence costs and how to
//! enable it, as text. Called by the command line.

use std::error::Error;

use gleaner_types::error::{Chain, chain};
use gleaner_types::report::{HostFacts, Offer, Reading};
use gleaner_types::text::counted;
use serde_json::{Value, json};

use crate::probe::advice;

/// What the absence of a ceiling on the volunteer's network traffic costs.
const NETWORK_COSTS: &str = "a volunteer that sends or receives much slows the foreground's answers";

/// What a host was found to be.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// As the aggregator gets it.
    pub facts: &'a HostFacts,
    /// What would hold and bound the volunteer, with the reasons.
    pub volunteer: &'a [String],
    /// By what the volunteer's network traffic can be held, or why not.
    pub network: Result<&'a str, &'a dyn Error>,
    /// The volunteer is not activated without that (`act.require`).
    pub network_required: bool,
    /// Globs of `foreground.cgroups` that match no cgroup now.
    pub unmatched: &'a [String],
    /// What is wrong with the record of what must be restored.
    pub ledger_problem: Option<&'a str>,
}

/// The report as JSON: the facts, for each absence its cost and remedy, and the rest of what was found
/// (`ledger_problem` is null if there is none).
///
/// # Errors
/// When the facts cannot be encoded.
pub fn as_json(found: Found<'_>) -> serde_json::Result<Value> {
    let mut report = serde_json::to_value(found.facts)?;
    let offers: serde_json::Result<Vec<Value>> = found.facts.offers.iter().map(offer_as_json).collect();
    report["offers"] = offers?.into();
    report["volunteer"] = found.volunteer.into();
    report["volunteer_network"] = match found.network {
        Ok(means) => json!({ "value": means }),
        Err(why) => json!({ "absent": chain(why), "costs": NETWORK_COSTS, "required": found.network_required }),
    };
    report["unmatched_cgroups"] = found.unmatched.into();
    report["ledger_problem"] = found.ledger_problem.into();
    Ok(report)
}

fn offer_as_json(offer: &Offer) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(offer)?;
    if let Reading::Absent(_) = offer.state {
        let (costs, enable) = advice(offer.capability);
        value["costs"] = json!(costs);
        value["enable"] = json!(enable);
    }
    Ok(value)
}

/// The report for people.
#[must_use]
pub fn as_text(Found { facts, volunteer, network, network_required, unmatched, ledger_problem }: Found<'_>) -> String {
    let mut lines = vec![format!(
        "{}, {}, {}, Linux {}, cgroups: {}",
        facts.cpu_model,
        counted(facts.cores, "CPU"),
        facts.memory,
        facts.kernel,
        word(&facts.cgroups)
    )];
    lines.extend(ledger_problem.map(|problem| format!("PROBLEM: {problem}")));
    let missing = facts.offers.iter().filter(|offer| offer.state.value().is_none()).count();
    lines.push(format!("{} of {} capabilities offered", facts.offers.len() - missing, facts.offers.len()));
    for offer in &facts.offers {
        let name = word(&offer.capability).replace('_', " ");
        match &offer.state {
            Reading::Value(means) => lines.push(format!("  yes  {name:<17} {means}")),
            Reading::Absent(absence) => {
                let (costs, enable) = advice(offer.capability);
                lines.push(format!("  no   {name:<17} {}", absence.detail()));
                lines.push(format!("       {:<17} costs: {costs}", ""));
                lines.push(format!("       {:<17} to enable: {enable}", ""));
            }
        }
    }
    lines.extend(unmatched.iter().map(|glob| format!("foreground.cgroups: {glob:?} matches no cgroup now; nothing is foreground by it (`systemd-cgls` lists cgroups)")));
    lines.extend(volunteer.iter().cloned());
    match network {
        Ok(means) => lines.push(format!("a volunteer's network traffic has a ceiling, by {means}")),
        Err(why) => {
            lines.push(format!(
                "a volunteer's network traffic, or a part of it, would have no ceiling, because {}",
                Chain(why)
            ));
            lines.push(format!("       costs: {NETWORK_COSTS}"));
            let so = match network_required {
                true => "act.require has \"network\", so the volunteer is not activated on this host",
                false => "to have no volunteer without it, add \"network\" to act.require",
            };
            lines.push(format!("       {so}"));
        }
    }
    lines.join("\n")
}

/// The word a value is in JSON.
fn word(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_value(value).unwrap_or_default();
    json.as_str().unwrap_or("?").to_owned()
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::{AbsenceKind, Capability, CgroupMode, Levers};
    use gleaner_types::units::Bytes;

    use super::*;

    #[test]
    fn an_absence_comes_with_its_cost_and_remedy() {
        let facts = HostFacts {
            cpu_model: "test".into(),
            cores: 2,
            memory: Bytes::from_mib(1),
            kernel: "6".into(),
            cgroups: CgroupMode::V2,
            offers: vec![
                Offer { capability: Capability::CpuQuota, state: Reading::Value("cpu.max".into()) },
                Offer {
                    capability: Capability::Pressure,
                    state: Reading::absent(AbsenceKind::Disabled, "the kernel was started with psi=0"),
                },
            ],
            levers: Levers::without_volunteer(false, Vec::new()),
        };
        let law = ["the guard's law: open".to_owned()];
        let missing = std::io::Error::other("no link is known");
        let sound = Found {
            facts: &facts,
            volunteer: &law,
            network: Ok("BPF"),
            network_required: false,
            unmatched: &[],
            ledger_problem: None,
        };
        let unmatched = ["web-*.slice".to_owned()];
        let problem = Some("the record is cut off");
        let broken = Found { network: Err(&missing), unmatched: &unmatched, ledger_problem: problem, ..sound };
        assert!(!as_text(sound).contains("PROBLEM") && as_text(sound).contains("has a ceiling, by BPF"));
        let text = as_text(broken);
        for part in [
            "1 of 2 capabilities",
            "yes  cpu quota",
            "no   pressure",
            "psi=0",
            "to enable: boot with psi=1",
            "the guard's law: open",
            "foreground.cgroups: \"web-*.slice\" matches no cgroup now",
            "no ceiling, because no link is known",
            "add \"network\" to act.require",
            "PROBLEM: the record is cut off",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(as_text(Found { network_required: true, ..broken }).contains("so the volunteer is not activated"));
        let json = as_json(broken).unwrap();
        assert_eq!(json["volunteer_network"]["absent"], "no link is known");
        assert_eq!(json["unmatched_cgroups"][0], "web-*.slice");
        assert_eq!(json["ledger_problem"], "the record is cut off");
        assert_eq!(json["volunteer"][0], law[0]);
        assert_eq!(as_json(sound).unwrap()["volunteer_network"]["value"], "BPF");
        assert_eq!(json["offers"][0]["state"]["value"], "cpu.max");
        assert_eq!(json["offers"][1]["enable"], "boot with psi=1");
    }
}
