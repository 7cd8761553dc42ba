//! Reads OpenMetrics text strictly: anything that version 1.0.0 of the format does not allow ends the test.

use std::collections::{BTreeMap, BTreeSet};

/// A family as it was described, with its samples.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: BTreeMap<String, f64>,
}

/// Families by name.
pub(crate) type Families = BTreeMap<String, Family>;

/// Reads a page.
pub(crate) fn read(page: &str) -> Families {
    let body = page.strip_suffix("# EOF\n").expect("the page ends with # EOF");
    let mut families = Families::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.splitn(3, ' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
            name_is_good(name);
            if name != current {
                assert!(families.insert(name.to_owned(), Family::default()).is_none(), "{name} comes twice");
                current = name.to_owned();
            }
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty(), "{name} is described after its samples");
            assert!(seen.insert((what.to_owned(), name.to_owned())), "{line} comes twice");
            match what {
                "HELP" => assert!(!rest.is_empty(), "{line}"),
                "TYPE" => {
                    assert!(["gauge", "counter", "histogram", "info"].contains(&rest), "{line}");
                    family.kind = rest.to_owned();
                }
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = split(line);
        let (name, labels) = series.split_once('{').map_or((series, ""), |(name, labels)| (name, labels));
        labels_are_good(labels, line);
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("{line} is of no family"));
        let ending = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line} is not of {current}"));
        let allowed: &[&str] = match family.kind.as_str() {
            "gauge" => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &["_info"],
        };
        assert!(allowed.contains(&ending), "{line} in a {}", family.kind);
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(family.kind == "gauge" || value >= 0.0, "{line}");
        assert!(family.samples.insert(series.to_owned(), value).is_none(), "{line} comes twice");
    }
    for (name, family) in &families {
        assert!(!family.kind.is_empty() && seen.contains(&("HELP".to_owned(), name.clone())), "{name}");
        if family.kind == "histogram" {
            buckets_are_good(name, family);
        }
    }
    families
}

fn name_is_good(name: &str) {
    let good = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    assert!(good && name.starts_with("gleaner_"), "{name}");
    assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}");
}

/// The last space outside of a label's quotes parts a series from its value.
fn split(line: &str) -> (&str, &str) {
    line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} has no value"))
}

fn labels_are_good(labels: &str, line: &str) {
    if labels.is_empty() {
        return;
    }
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
        let mut escaped = false;
        let end = after.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &after[end.unwrap_or_else(|| panic!("{line}")) + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break assert_eq!(rest, "}", "{line}"),
        }
    }
}

fn buckets_are_good(name: &str, family: &Family) {
    let bound = |series: &str| -> Option<f64> {
        let bound = series.strip_prefix(&format!("{name}_bucket{{le=\""))?.strip_suffix("\"}")?;
        Some(if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() })
    };
    let mut buckets: Vec<(f64, f64)> =
        family.samples.iter().filter_map(|(series, count)| Some((bound(series)?, *count))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
    let last = buckets.last().unwrap();
    assert!(
        last.0.is_infinite() && family.samples[&format!("{name}_count")].total_cmp(&last.1).is_eq(),
        "{name}: {buckets:?}"
    );
}

/// A sample's value, if there is one.
pub(crate) fn value(families: &Families, series: &str) -> Option<f64> {
    families.values().find_map(|family| family.samples.get(series)).copied()
}

/// Every name a query may use: families, and what their samples are called.
pub(crate) fn names(families: &Families) -> BTreeSet<String> {
    let endings = |kind: &str| match kind {
        "counter" => &["_total"][..],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => &[""],
    };
    families
        .iter()
        .flat_map(|(name, family)| endings(&family.kind).iter().map(move |ending| format!("{name}{ending}")))
        .collect()
}
