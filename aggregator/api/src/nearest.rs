//! Which name may be meant by one that nobody has. In: the name, and those that there are. Out: the end of a sentence, with
//! the nearest of them where one is near. Called by the aggregator for hosts, jobs and applications, and by `gleaner explain`.

/// What follows a sentence that there is no such name: `; did you mean h1?`, or nothing where no name is near.
#[must_use]
pub fn meant<'n>(name: &str, existing: impl IntoIterator<Item = &'n str>) -> String {
    nearest(name, existing).map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

/// The name that takes the fewest changes of a letter to get to, if so few that it may be meant: a third of the name's
/// letters, one at least and three at most (chosen). Of several the first by name. Names are ASCII.
fn nearest<'n>(name: &str, existing: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len() / 3).clamp(1, 3);
    let distance = |other: &'n str| (strsim::damerau_levenshtein(name, other), other);
    // No comparison where the lengths alone differ by more: a fleet has ten thousand names.
    let may_be = |other: &&str| *other != name && other.len().abs_diff(name.len()) <= most;
    let near = existing.into_iter().filter(may_be).map(distance);
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_named_and_a_far_one_is_not() {
        let hosts = ["h2", "h1", "worker-12", "database"];
        assert_eq!(meant("h11", hosts), "; did you mean h1?");
        for (wrong, meant) in [("h3", Some("h1")), ("wroker-12", Some("worker-12")), ("datbase", Some("database"))] {
            assert_eq!(nearest(wrong, hosts), meant);
        }
        assert_eq!(meant("tiles", hosts), "");
        assert_eq!((nearest("h1", []), nearest("h1", ["h1"])), (None, None), "not itself");
    }
}
