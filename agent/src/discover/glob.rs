//! Globs of cgroup paths, with `*` and `?` in components. In: a glob. Out: the cgroups that match. Called by discovery;
//! the sensor makes them from the config.

use std::path::{Path, PathBuf};

/// Most components of a glob.
const MAX_DEPTH: usize = 32;

/// A glob such as `machine.slice/*.scope`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    components: Vec<String>,
}

/// A text is no glob of a cgroup path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no path of a cgroup below the hierarchy's root, such as \"machine.slice/*\"")]
pub struct InvalidGlob(String);

impl Glob {
    /// Reads a glob.
    ///
    /// # Errors
    /// [`InvalidGlob`] for an empty one, one that climbs (`..`), or one that is too deep.
    pub(crate) fn new(text: &str) -> Result<Self, InvalidGlob> {
        let components: Vec<String> = text.trim_matches('/').split('/').map(str::to_owned).collect();
        let plain = |component: &String| !component.is_empty() && component != "." && component != "..";
        if components.len() <= MAX_DEPTH && components.iter().all(plain) {
            Ok(Self { components })
        } else {
            Err(InvalidGlob(text.to_owned()))
        }
    }

    /// Folders below `root` that match, as paths relative to it.
    pub(crate) fn matches(&self, root: &Path) -> Vec<PathBuf> {
        let mut found = vec![PathBuf::new()];
        for component in &self.components {
            let mut deeper = Vec::new();
            for path in found {
                if component.contains(['*', '?']) {
                    let names = crate::kernel_file::names(&root.join(&path));
                    deeper.extend(names.iter().filter(|name| matches(component, name)).map(|name| path.join(name)));
                } else {
                    deeper.push(path.join(component));
                }
            }
            deeper.retain(|path| root.join(path).is_dir());
            found = deeper;
        }
        found
    }
}

/// Whether a name matches a pattern with `*` (anything) and `?` (any one character). Linear in practice: only
/// the last `*` is ever taken back.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut retry) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match retry {
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    (p, n) = (star + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (pattern, name, expected) in [
            ("*", "anything", true),
            ("*.scope", "a.scope", true),
            ("*.scope", "a.scope.x", false),
            ("qemu-?-*", "qemu-7-win", true),
            ("qemu-?-*", "qemu-12-win", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn climbing_is_refused() {
        for bad in ["", "/", "../x", "a//b", "a/./b"] {
            assert!(Glob::new(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            fn define(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern.first(), name.first()) {
                    (None, None) => true,
                    (Some(b'*'), _) => define(&pattern[1..], name) || (!name.is_empty() && define(pattern, &name[1..])),
                    (Some(b'?'), Some(_)) => define(&pattern[1..], &name[1..]),
                    (Some(p), Some(n)) if p == n => define(&pattern[1..], &name[1..]),
                    _ => false,
                }
            }
            proptest::prop_assert_eq!(matches(&pattern, &name), define(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
