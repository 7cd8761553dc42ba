//! The list of hosts in an answer. In: JSON rows. Out: hosts. A row that cannot be read is left out; the others stay.
//! Called while a response is decoded.

use gleaner_planner::controller::HostView;
use gleaner_types::id::HostId;
use gleaner_types::report::{CgroupMode, HostFacts, Levers};
use gleaner_types::units::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Reads the list. Of a row that cannot be read the report is left out; where that is not enough, all but the name is.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<HostView>, D::Error> {
    Ok(Vec::<Value>::deserialize(deserializer)?.into_iter().filter_map(row).collect())
}

/// One host; `None` where not even its name can be read.
fn row(mut value: Value) -> Option<HostView> {
    let error = match serde_path_to_error::deserialize::<_, HostView>(&value) {
        Ok(view) => return Some(view),
        Err(error) => error.to_string(),
    };
    let host = HostId::deserialize(value.get("host")?).ok()?;
    value.as_object_mut()?.remove("report");
    let left = HostView::deserialize(&value).unwrap_or_else(|_| nothing_but(host));
    Some(HostView { unreadable: Some(format!("what it said cannot be read: {error}")), ..left })
}

fn nothing_but(host: HostId) -> HostView {
    let facts = HostFacts {
        cpu_model: String::new(),
        cores: 0,
        memory: Bytes(0),
        kernel: String::new(),
        cgroups: CgroupMode::None,
        offers: Vec::new(),
        levers: Levers::without_volunteer(false, Vec::new()),
    };
    HostView {
        host,
        connected: false,
        left: false,
        silent: false,
        revoked: false,
        incarnation: 0,
        facts,
        reported: None,
        report: None,
        targets: Vec::new(),
        job: None,
        held_until: None,
        unreadable: None,
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::controller::HeldUntil;
    use gleaner_types::time::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::Response;

    #[test]
    fn one_bad_host_is_one_bad_row() {
        let good = |name: &str| serde_json::to_value(nothing_but(HostId::new(name).unwrap())).unwrap();
        let [mut bad_report, mut bad_facts] = ["b", "c"].map(good);
        bad_report["connected"] = json!(true);
        bad_report["report"] = json!({ "interval_s": null });
        bad_facts["facts"]["cores"] = json!(-1);
        let answer = json!({ "hosts": [good("a"), bad_report, bad_facts, "nonsense", good("d")] });
        let Response::Hosts(hosts) = serde_json::from_str(&answer.to_string()).unwrap() else { panic!("no hosts") };
        let rows: Vec<_> =
            hosts.iter().map(|view| (view.host.as_str(), view.connected, view.unreadable.is_some())).collect();
        assert_eq!(rows, [("a", false, false), ("b", true, true), ("c", false, true), ("d", false, false)]);
        let error = hosts[1].unreadable.as_ref().unwrap();
        assert!(error.contains("cannot be read: report.interval_s: invalid type: null"), "{error}");
    }

    #[test]
    fn a_hold_ends_at_a_time_or_when_it_is_released() {
        for (end, shown) in [(HeldUntil::Time(Timestamp(5)), json!(5)), (HeldUntil::Released, json!("released"))] {
            assert_eq!(serde_json::to_value(end).unwrap(), shown);
            let mut row = serde_json::to_value(nothing_but(HostId::new("a").unwrap())).unwrap();
            row["held_until"] = shown;
            let Response::Hosts(hosts) = serde_json::from_value(json!({ "hosts": [row] })).unwrap() else {
                panic!("no hosts")
            };
            assert_eq!((hosts[0].held_until, &hosts[0].unreadable), (Some(end), &None));
        }
        assert!(serde_json::from_value::<HeldUntil>(json!("never")).is_err());
    }

    #[test]
    fn a_report_of_an_aggregator_that_knew_of_no_harm_is_read() {
        let sent = gleaner_test_support::synthetic::report(&HostId::new("a").unwrap(), 3, 2);
        let gleaner_wire::FromAgent::Report(report) = sent else { panic!("no report") };
        let mut row = serde_json::to_value(nothing_but(HostId::new("a").unwrap())).unwrap();
        row["report"] = serde_json::to_value(&report).unwrap();
        assert!(row["report"].as_object_mut().unwrap().remove("harm").is_some());
        let answer = json!({ "hosts": [row] });
        let Response::Hosts(hosts) = serde_json::from_str(&answer.to_string()).unwrap() else { panic!("no hosts") };
        assert_eq!((hosts[0].unreadable.as_ref(), hosts[0].report.as_ref()), (None, Some(&*report)));
    }
}
