//! The graph of a crate's files, and its circles. In: a crate's modules. Out: the circles, with the names that tie
//! them. Called by the test of this crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::module::{Import, Module, Modules};

/// Re-exports of re-exports that are followed. Chosen; more is a name that imports itself.
const DEEPEST: usize = 16;

/// Files that use one another in a circle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    /// The files, relative to the folder of the crate's root file, sorted.
    pub files: Vec<PathBuf>,
    /// Who uses whom within the circle, and by which names.
    pub uses: Vec<(PathBuf, PathBuf, Vec<String>)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (from, to, names) in &self.uses {
            writeln!(f, "    {} uses {}: {}", from.display(), to.display(), names.join(", "))?;
        }
        Ok(())
    }
}

/// The circles among the files of a crate, by its root file.
///
/// # Errors
/// When a file cannot be read.
pub fn circles(root: &Path) -> io::Result<Vec<Circle>> {
    let modules = Modules::read(root)?;
    let folder = root.parent().unwrap_or(Path::new(""));
    let name = |file: usize| {
        let path = &modules.files[file];
        path.strip_prefix(folder).unwrap_or(path).to_owned()
    };
    let uses = uses(&modules);
    let circle = |files: Vec<usize>| {
        let within = uses.iter().filter(|((from, to), _)| files.contains(from) && files.contains(to));
        let uses = within.map(|((from, to), names)| (name(*from), name(*to), names.iter().cloned().collect()));
        let uses = uses.collect();
        let mut files: Vec<PathBuf> = files.iter().map(|file| name(*file)).collect();
        files.sort();
        Circle { files, uses }
    };
    let mut found: Vec<Circle> = components(modules.files.len(), &uses).into_iter().map(circle).collect();
    found.sort_by(|a, b| a.files.cmp(&b.files));
    Ok(found)
}

/// Names by which one file uses another.
type Uses = BTreeMap<(usize, usize), BTreeSet<String>>;

fn uses(modules: &Modules) -> Uses {
    let mut uses = Uses::new();
    for (index, module) in modules.modules.iter().enumerate() {
        let mut add = |target: Option<Target>| {
            if let Some(Target::Item { file, name }) = target
                && file != module.file
            {
                uses.entry((module.file, file)).or_default().insert(name);
            }
        };
        for import in &module.imports {
            match &import.name {
                // What is only passed on is not used here.
                Some(name) if import.public && !module.words.contains(name) => {}
                Some(_) => add(modules.resolve(index, &import.path, false, 0)),
                None if import.public => {}
                None => {
                    if let Some(Target::Module(from)) = modules.resolve(index, &import.path, true, 0) {
                        module.words.iter().for_each(|word| add(modules.find(from, word, false, 0)));
                    }
                }
            }
        }
        for path in &module.paths {
            add(modules.resolve(index, path, false, 0));
        }
    }
    uses
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Module(usize),
    Item { file: usize, name: String },
}

impl Modules {
    /// What a path in a module names; `None` for what is outside of the crate. `as_module` asks for the module where a
    /// module and an item have the same name.
    fn resolve(&self, module: usize, path: &[String], as_module: bool, depth: usize) -> Option<Target> {
        let mut rest = path;
        let mut current = match rest.first()?.as_str() {
            "crate" => {
                rest = &rest[1..];
                Target::Module(0)
            }
            "self" | "super" => Target::Module(module),
            name => {
                rest = &rest[1..];
                self.find(module, name, as_module || !rest.is_empty(), depth)?
            }
        };
        for (index, name) in rest.iter().enumerate() {
            let Target::Module(at) = current else { break };
            current = match name.as_str() {
                "self" => current,
                "super" => Target::Module(self.modules[at].parent?),
                name => {
                    let more = index + 1 < rest.len();
                    let unknown = || Target::Item { file: self.modules[at].file, name: name.to_owned() };
                    // What a macro defines is not seen, but it is there.
                    self.find(at, name, as_module || more, depth).unwrap_or_else(unknown)
                }
            };
        }
        Some(current)
    }

    /// What a name means in a module.
    fn find(&self, at: usize, name: &str, as_module: bool, depth: usize) -> Option<Target> {
        if depth > DEEPEST {
            return None;
        }
        let module: &Module = &self.modules[at];
        let item = || {
            let item = Target::Item { file: module.file, name: name.to_owned() };
            module.items.contains(name).then_some(item)
        };
        let child = || module.children.get(name).map(|child| Target::Module(*child));
        let own = if as_module { child().or_else(item) } else { item().or_else(child) };
        let follow = |import: &Import| {
            // `use other_crate::other_crate`.
            let outside = import.path.first().is_some_and(|first| first == name);
            if outside { None } else { self.resolve(at, &import.path, as_module, depth + 1) }
        };
        let imported = || module.imports.iter().filter(|import| import.name.as_deref() == Some(name)).find_map(follow);
        let of_glob = |import: &Import| match self.resolve(at, &import.path, true, depth + 1)? {
            Target::Module(from) if from != at => self.find(from, name, as_module, depth + 1),
            Target::Module(_) | Target::Item { .. } => None,
        };
        let globs = || module.imports.iter().filter(|import| import.name.is_none()).find_map(of_glob);
        own.or_else(imported).or_else(globs)
    }
}

/// Files that reach one another, in groups of two and more.
fn components(files: usize, uses: &Uses) -> Vec<Vec<usize>> {
    let reached = |from: usize| {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![from];
        while let Some(at) = waiting.pop() {
            let next = uses.range((at, 0)..(at + 1, 0)).map(|((_, to), _)| *to);
            waiting.extend(next.filter(|to| seen.insert(*to)));
        }
        seen
    };
    let reached: Vec<BTreeSet<usize>> = (0..files).map(reached).collect();
    let mut grouped: BTreeSet<usize> = BTreeSet::new();
    let mut found = Vec::new();
    for file in 0..files {
        if reached[file].contains(&file) && !grouped.contains(&file) {
            let group: Vec<usize> = reached[file].iter().copied().filter(|to| reached[*to].contains(&file)).collect();
            grouped.extend(&group);
            found.push(group);
        }
    }
    found
}
