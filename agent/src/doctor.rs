//! `gleaner-agent doctor`: what this host offers, what is missing, what each absence costs and how to enable it.

use gleaner_types::report::{HostFacts, Offer, Reading};
use serde_json::{Value, json};

use crate::probe::advice;

/// What the absence of a ceiling on the volunteer's network traffic costs.
const NETWORK_COSTS: &str = "a volunteer that sends or receives much slows the foreground's answers";

/// The report as JSON: the facts as the aggregator gets them, for each absence its cost and remedy, what would hold and
/// bound the volunteer, with the reasons, and whether its network traffic can be held: by what, or why not.
///
/// # Errors
/// When the facts cannot be encoded.
pub fn as_json(
    facts: &HostFacts,
    volunteer: &[String],
    network: &Result<String, String>,
) -> serde_json::Result<Value> {
    let mut report = serde_json::to_value(facts)?;
    let offers: serde_json::Result<Vec<Value>> = facts.offers.iter().map(offer_as_json).collect();
    report["offers"] = offers?.into();
    report["volunteer"] = volunteer.into();
    report["volunteer_network"] = match network {
        Ok(means) => json!({ "value": means }),
        Err(reason) => json!({ "absent": reason, "costs": NETWORK_COSTS }),
    };
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
pub fn as_text(facts: &HostFacts, volunteer: &[String], network: &Result<String, String>) -> String {
    let mut lines = vec![format!(
        "{}, {} CPUs, {}, Linux {}, cgroups: {}",
        facts.cpu_model,
        facts.cores,
        facts.memory,
        facts.kernel,
        word(&facts.cgroups)
    )];
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
    lines.extend(volunteer.iter().cloned());
    match network {
        Ok(means) => lines.push(format!("a volunteer's network traffic has a ceiling, by {means}")),
        Err(reason) => {
            lines.push(format!("a volunteer's network traffic would have no ceiling, because {reason}"));
            lines.push(format!("       costs: {NETWORK_COSTS}"));
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
        let text = as_text(&facts, &law, &Err("no link is known".to_owned()));
        assert!(text.contains("no ceiling, because no link is known"), "{text}");
        assert!(as_text(&facts, &law, &Ok("BPF".to_owned())).contains("has a ceiling, by BPF"));
        for part in ["1 of 2 capabilities", "yes  cpu quota", "no   pressure", "psi=0", "to enable: boot with psi=1"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.contains("the guard's law: open"), "{text}");
        let json = as_json(&facts, &law, &Ok("BPF".to_owned())).unwrap();
        assert_eq!((&json["volunteer"][0], &json["volunteer_network"]["value"]), (&json!(law[0]), &json!("BPF")));
        assert_eq!(json["offers"][0]["state"]["value"], "cpu.max");
        assert_eq!(json["offers"][1]["enable"], "boot with psi=1");
    }
}
