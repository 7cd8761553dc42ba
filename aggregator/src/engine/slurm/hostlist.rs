//! Lists of nodes as Slurm writes them: `n1,rack[1-3]-node[01-16,20]`. In: a list. Out: the names, in its order. Called where tools name
//! several nodes at once.

/// Most nodes of one list; Slurm has at most 64 k.
const MOST_NODES: usize = 100_000;

/// Most digits of a number, zeros at its begin counted: as many as the largest has.
const LONGEST_NUMBER: usize = 20;

/// The names of a list.
///
/// # Errors
/// What is wrong with it.
pub(super) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in parts(list)? {
        names.extend(expand_part(part)?);
        if names.len() > MOST_NODES {
            return Err(format!("nodes: {:?} are more than {MOST_NODES}", short(list)));
        }
    }
    Ok(names)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The parts between commas that are in no brackets.
fn parts(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (place, sign) in list.char_indices() {
        match (sign, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[', true) | (']', false) => return Err(format!("nodes: brackets of {:?} do not match", short(list))),
            (',', false) => {
                parts.push(&list[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("nodes: brackets of {:?} do not match", short(list)));
    }
    parts.push(&list[begin..]);
    Ok(parts)
}

/// The names of a part, each pair of brackets with each of its numbers.
fn expand_part(part: &str) -> Result<Vec<String>, String> {
    let (mut names, mut rest) = (vec![String::new()], part);
    while let Some((before, after)) = rest.split_once('[') {
        let Some((ranges, after)) = after.split_once(']') else {
            return Err(format!("nodes: brackets of {:?} do not match", short(part)));
        };
        let numbers = numbers(ranges)?;
        if names.len().saturating_mul(numbers.len()) > MOST_NODES {
            return Err(format!("nodes: {:?} are more than {MOST_NODES}", short(part)));
        }
        let with = |name: &String| numbers.iter().map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>();
        names = names.iter().flat_map(with).collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    match names.iter().find(|name| !is_name(name)) {
        Some(bad) => Err(format!("nodes: {:?} is no name of a node", short(bad))),
        None => Ok(names),
    }
}

fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.bytes().all(good)
}

/// The numbers of a pair of brackets, with the zeros that they begin with.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = (1..=LONGEST_NUMBER).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u64>().ok().filter(|_| digits);
            number.ok_or_else(|| format!("nodes: {:?} is no number", short(text)))
        };
        let (from, to) = (number(first)?, number(last)?);
        let count = to.checked_sub(from).ok_or_else(|| format!("nodes: {range:?} ends before it begins"))?;
        if count >= MOST_NODES as u64 || numbers.len() > MOST_NODES {
            return Err(format!("nodes: {:?} are more than {MOST_NODES}", short(ranges)));
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_by_hand() {
        for (list, names) in [
            ("n1", &["n1"][..]),
            ("n1,m2", &["n1", "m2"]),
            ("i[1,3]", &["i1", "i3"]),
            ("n[08-10,3],x", &["n08", "n09", "n10", "n3", "x"]),
            ("r[1-2]n[0-1]-b", &["r1n0-b", "r1n1-b", "r2n0-b", "r2n1-b"]),
        ] {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        for (list, why) in [
            ("", "\"\" is no name"),
            ("n1,,n2", "\"\" is no name"),
            ("n[1-2", "do not match"),
            ("n1]", "do not match"),
            ("n[[1]]", "do not match"),
            ("n[3-1]", "\"3-1\" ends before it begins"),
            ("n[]", "\"\" is no number"),
            ("n[+1]", "\"+1\" is no number"),
            ("n[0-99999999]", "are more than 100000"),
            ("n[0-999][0-999]", "are more than 100000"),
            ("(null)", "\"(null)\" is no name"),
            ("n1 n2", "\"n1 n2\" is no name"),
        ] {
            let said = expand(list).unwrap_err();
            assert!(said.starts_with("nodes: ") && said.contains(why), "{list}: {said}");
        }
    }
}
