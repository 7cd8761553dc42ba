//! No files of a crate use one another in a circle.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use gleaner_structure::{Circle, circles};

/// Circles that are still there, one a line: the crate, then the files. A circle may shrink; one that is gone must go
/// from here too.
const ALLOWED: &str = include_str!("../circles.txt");

/// The root files of the workspace's crates, with the folder each is in.
fn crates() -> Vec<(String, PathBuf)> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(workspace.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let members = members.split('"').skip(1).step_by(2).chain(["agent-xen"]);
    let roots = |member: &str| {
        ["lib.rs", "main.rs"].map(|file| (member.to_owned(), workspace.join(member).join("src").join(file)))
    };
    members.flat_map(roots).filter(|(_, root)| root.exists()).collect()
}

#[test]
fn no_files_use_one_another_in_a_circle() {
    let crates = crates();
    assert!(crates.len() > 8, "{crates:?}");
    let found: Vec<(&String, Circle)> = crates
        .iter()
        .flat_map(|(name, root)| circles(root).unwrap().into_iter().map(move |circle| (name, circle)))
        .collect();
    let allowed: Vec<(&str, Vec<&str>)> = ALLOWED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, files)| (name, files.split(' ').collect()))
        .collect();
    let within =
        |circle: &Circle, files: &[&str]| circle.files.iter().all(|file| files.contains(&file.to_str().unwrap()));
    let mut wrong = String::new();
    for (name, circle) in &found {
        if !allowed.iter().any(|(allowed, files)| allowed == name && within(circle, files)) {
            let files: Vec<String> = circle.files.iter().map(|file| file.display().to_string()).collect();
            wrong += &format!("a circle\n{name}: {}\n{circle}", files.join(" "));
        }
    }
    for (name, files) in &allowed {
        if !found.iter().any(|(found, circle)| found == name && within(circle, files)) {
            wrong +=
                &format!("no circle is left among {} of {name}: take its line out of circles.txt\n", files.join(", "));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// A crate of these files, and its circles as lists of files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = circles(&folder.path().join("lib.rs")).unwrap();
    let names = |circle: &Circle| circle.files.iter().map(|file| file.display().to_string()).collect();
    found.iter().map(names).collect()
}

#[test]
fn a_parent_and_a_child_that_use_each_other_are_a_circle() {
    let child = ("a.rs", "use super::Y; pub struct X(Y);");
    assert_eq!(circles_of(&[("lib.rs", "mod a; pub struct Y; fn f() -> a::X {}"), child]), [["a.rs", "lib.rs"]]);
    assert!(circles_of(&[("lib.rs", "mod a; pub use a::X; pub struct Y;"), child]).is_empty(), "passed on, not used");
    assert_eq!(circles_of(&[("lib.rs", "mod a; pub use a::X; pub struct Y; fn f(x: X) {}"), child]).len(), 1);
    assert!(
        circles_of(&[("lib.rs", "mod a; pub struct Y; #[cfg(test)] mod tests { use super::a::X; }"), child]).is_empty()
    );
}

#[test]
fn a_file_that_a_macro_declares_is_read_too() {
    let root = ("lib.rs", "mod family;");
    let family = |text: &'static str| ("family.rs", text);
    let by_macro = family("macro_rules! m { ($n:ident) => { mod $n; } } m!(one); pub struct Y;");
    assert_eq!(circles_of(&[root, by_macro, ("family/one.rs", "use super::Y;")]), [["family/one.rs", "family.rs"]]);
    assert!(circles_of(&[root, by_macro, ("family/one.rs", "pub fn f() {}")]).is_empty());
    // A file of tests is none.
    let tested = family("#[cfg(test)] mod tests; pub struct Y;");
    assert!(circles_of(&[root, tested, ("family/tests.rs", "use super::Y;")]).is_empty());
    let at_the_root = ("lib.rs", "m!(one); pub struct Y;");
    assert_eq!(
        circles_of(&[at_the_root, ("one.rs", "use crate::Y;"), ("main.rs", "use lib::Y;")]),
        [["lib.rs", "one.rs"]]
    );
}

#[test]
fn names_are_followed_to_the_file_that_defines_them() {
    let root = ("lib.rs", "mod a; mod b; mod c;");
    let a = ("a.rs", "pub use crate::c::Z; use crate::b::{self, W as V}; fn f() { b::g(); }");
    let c = ("c.rs", "pub struct Z;");
    // Through `a`, but of `c`.
    assert!(
        circles_of(&[root, a, c, ("b.rs", "use crate::a::Z; pub struct W; pub fn g() {} // crate::a::f()")]).is_empty()
    );
    assert_eq!(circles_of(&[root, a, c, ("b.rs", "pub struct W; pub fn g() { crate::a::f() }")]), [["a.rs", "b.rs"]]);
    assert_eq!(circles_of(&[root, a, c, ("b.rs", "use super::a; pub struct W; pub fn g() { a::f() }")]).len(), 1);
    let round = [
        ("lib.rs", "mod a; mod b; mod d;"),
        ("a.rs", "use super::b::X; pub struct Z;"),
        ("b.rs", "mod inner { use crate::d::Y; } pub struct X;"),
        ("d/mod.rs", "use crate::a::*; pub struct Y(Z);"),
    ];
    assert_eq!(circles_of(&round), [["a.rs", "b.rs", "d/mod.rs"]]);
}
