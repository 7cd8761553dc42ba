//! Help texts of metrics against their table in the docs. In: a page as Prometheus reads it, and the docs. Out: the metrics of
//! which they say something else. Called by the tests of both daemons' metrics.

/// Each metric whose row in the docs does not end with its help, with that row.
#[must_use]
pub fn differing(page: &str, docs: &str) -> Vec<String> {
    let mut differing = Vec::new();
    for help in page.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = help.split_once(' ').unwrap();
        let row = docs.lines().find(|line| line.starts_with(&format!("| `{name}` | ")));
        if !row.is_some_and(|row| row.ends_with(&format!(" | {help} |"))) {
            differing.push(format!("{name}: {help}\n  {}", row.unwrap_or("no row")));
        }
    }
    differing
}
