//! A crate's modules. In: the tokens of its files. Out: for each module what it defines, imports and names in its code.
//! Called by [`crate::graph`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::lexer::{Token, tokens};

/// Words that open an item whose name follows.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
/// Words that an item can begin with.
const STARTS: [&str; 7] = ["pub", "use", "mod", "impl", "async", "unsafe", "extern"];

/// One `use` of one name.
#[derive(Debug)]
pub(crate) struct Import {
    /// Others can import it from here.
    pub(crate) public: bool,
    pub(crate) path: Vec<String>,
    /// The name it has here; `None` for all names of a module (`*`).
    pub(crate) name: Option<String>,
}

/// A module, in a file of its own or not.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Index of its file.
    pub(crate) file: usize,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// Children that are compiled for tests alone; they are not read.
    pub(crate) tests: BTreeSet<String>,
    /// Names that it defines.
    pub(crate) items: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths of two segments or more in its code.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// All words in its code but those of imports.
    pub(crate) words: BTreeSet<String>,
}

/// The modules of a crate; the first is its root.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) modules: Vec<Module>,
    pub(crate) files: Vec<PathBuf>,
}

impl Modules {
    /// Reads a crate from its root file on.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut read = Self::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        read.read_file(root, &folder, None)?;
        Ok(read)
    }

    /// Reads a module's file. `folder` is where the files of its children are.
    fn read_file(&mut self, path: &Path, folder: &Path, parent: Option<usize>) -> io::Result<usize> {
        let tokens = tokens(&std::fs::read_to_string(path)?);
        self.files.push(path.to_owned());
        let file = self.files.len() - 1;
        let this = self.read_module(&tokens, 0..tokens.len(), file, folder, parent)?;
        for (name, path) in module_files(folder)? {
            let module = &self.modules[this];
            if module.children.contains_key(&name) || module.tests.contains(&name) {
                continue;
            }
            // A macro declares it. What else of it the macro names is not seen, so it counts as used.
            let child = self.read_file(&path, &folder.join(&name), Some(this))?;
            let module = &mut self.modules[this];
            module.paths.insert(vec!["self".to_owned(), name.clone(), "*".to_owned()]);
            module.children.insert(name, child);
        }
        Ok(this)
    }

    fn read_module(
        &mut self,
        tokens: &[Token],
        range: Range<usize>,
        file: usize,
        folder: &Path,
        parent: Option<usize>,
    ) -> io::Result<usize> {
        let this = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        let (mut at, mut depth, mut public) = (range.start, 0_usize, false);
        while at < range.end {
            match &tokens[at] {
                Token::Sign('#') if tokens.get(at + 1).is_some_and(|next| next.is('[')) => {
                    let end = after_group(tokens, at + 1);
                    if !is_for_tests(&tokens[at + 2..end]) {
                        at += 2;
                        continue;
                    }
                    at = after_item(tokens, end, range.end);
                    let is_module = tokens[end..at].iter().position(|token| token.is_word("mod"));
                    let name = is_module.and_then(|position| tokens[end + position + 1].word());
                    self.modules[this].tests.extend(name.map(str::to_owned));
                    continue;
                }
                Token::Sign('{' | '(' | '[') => depth += 1,
                Token::Sign('}' | ')' | ']') => depth = depth.saturating_sub(1),
                Token::Word(word) if word == "pub" => {
                    public = true;
                    at += 1;
                    if tokens.get(at).is_some_and(|next| next.is('(')) {
                        at = after_group(tokens, at);
                    }
                    continue;
                }
                Token::Word(word) if word == "use" => {
                    let end = (at..range.end).find(|at| tokens[*at].is(';')).unwrap_or(range.end);
                    imports(&tokens[at + 1..end], public, &mut self.modules[this].imports);
                    public = false;
                    at = end;
                }
                Token::Word(word) if word == "mod" && depth == 0 => {
                    if let Some(name) = tokens.get(at + 1).and_then(Token::word) {
                        let below = folder.join(name);
                        let opens = tokens.get(at + 2).is_some_and(|next| next.is('{'));
                        let child = if opens {
                            let end = after_group(tokens, at + 2);
                            let body = at + 3..end - 1;
                            at = end - 1;
                            Some(self.read_module(tokens, body, file, &below, Some(this))?)
                        } else {
                            let beside = folder.join(format!("{name}.rs"));
                            let path = if beside.exists() { beside } else { below.join("mod.rs") };
                            at += 2;
                            // One that another build generates is not there.
                            path.exists().then(|| self.read_file(&path, &below, Some(this))).transpose()?
                        };
                        if let Some(child) = child {
                            self.modules[this].children.insert(name.to_owned(), child);
                        }
                    }
                    public = false;
                }
                Token::Word(word) => {
                    let module = &mut self.modules[this];
                    if depth == 0
                        && ITEMS.contains(&word.as_str())
                        && let Some(name) = tokens.get(at + 1).and_then(Token::word)
                    {
                        module.items.insert(name.to_owned());
                    }
                    if word == "macro_rules"
                        && let Some(name) = tokens.get(at + 2).and_then(Token::word)
                    {
                        module.items.insert(name.to_owned());
                    }
                    let starts = at == 0 || !matches!(tokens[at - 1], Token::PathSeparator | Token::Sign('.'));
                    let path = path_at(tokens, at);
                    if starts && path.len() > 1 {
                        module.paths.insert(path);
                    }
                    module.words.insert(word.clone());
                    public = false;
                }
                Token::PathSeparator | Token::Sign(_) => {}
            }
            at += 1;
        }
        Ok(this)
    }
}

/// The files of modules in a folder: `name.rs`, and `name/mod.rs`. A crate's root file is none.
fn module_files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inside = path.join("mod.rs");
        if inside.exists() {
            found.push((name, inside));
        } else if path.extension().is_some_and(|ending| ending == "rs") && !["lib", "main", "mod"].contains(&name.as_str())
        {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The index after the group that opens at `open`.
fn after_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Sign('{' | '(' | '[') => depth += 1,
            Token::Sign('}' | ')' | ']') => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            Token::Word(_) | Token::PathSeparator | Token::Sign(_) => {}
        }
    }
    tokens.len()
}

/// An attribute's tokens say `cfg(test)` or `cfg(all(test, …))`.
fn is_for_tests(attribute: &[Token]) -> bool {
    let mut words = attribute.iter().filter_map(Token::word);
    words.next() == Some("cfg")
        && matches!((words.next(), words.next()), (Some("test"), _) | (Some("all"), Some("test")))
}

/// The index after the item, field or statement that begins at `from`, its further attributes included.
fn after_item(tokens: &[Token], from: usize, end: usize) -> usize {
    let mut at = from;
    while at + 1 < end && tokens[at].is('#') && tokens[at + 1].is('[') {
        at = after_group(tokens, at + 1);
    }
    let first = tokens.get(at).and_then(Token::word).unwrap_or_default();
    let is_item = ITEMS.contains(&first) || STARTS.contains(&first);
    let is_use = tokens[at..end.min(at + 6)].iter().any(|token| token.is_word("use"));
    while at < end {
        match &tokens[at] {
            Token::Sign(';') => return at + 1,
            Token::Sign(',') if !is_item => return at + 1,
            Token::Sign('{') if !is_use => return after_group(tokens, at),
            Token::Sign('{' | '(' | '[') => at = after_group(tokens, at),
            Token::Word(_) | Token::PathSeparator | Token::Sign(_) => at += 1,
        }
    }
    end
}

fn path_at(tokens: &[Token], at: usize) -> Vec<String> {
    let mut path = Vec::new();
    let mut at = at;
    while let Some(word) = tokens.get(at).and_then(Token::word) {
        path.push(word.to_owned());
        if tokens.get(at + 1) != Some(&Token::PathSeparator) {
            break;
        }
        at += 2;
    }
    path
}

/// The names of one `use`, whose tokens these are.
fn imports(tokens: &[Token], public: bool, found: &mut Vec<Import>) {
    tree(tokens, &mut 0, &[], public, found);
}

/// One branch of a `use`: up to the comma or brace that ends it.
fn tree(tokens: &[Token], at: &mut usize, before: &[String], public: bool, found: &mut Vec<Import>) {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(*at) {
        match token {
            Token::Word(word) if word == "as" => {
                let name = tokens.get(*at + 1).and_then(Token::word).unwrap_or_default().to_owned();
                *at += 2;
                found.push(Import { public, path, name: Some(name) });
                return;
            }
            // `{self}` is the module itself.
            Token::Word(word) if word == "self" && !before.is_empty() => {}
            Token::Word(word) => path.push(word.clone()),
            Token::Sign('*') => {
                *at += 1;
                found.push(Import { public, path, name: None });
                return;
            }
            Token::Sign('{') => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| !token.is('}')) {
                    tree(tokens, at, &path, public, found);
                    if tokens.get(*at).is_some_and(|token| token.is(',')) {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            Token::Sign(',' | '}') => break,
            Token::PathSeparator | Token::Sign(_) => {}
        }
        *at += 1;
    }
    if path.len() > before.len() || !before.is_empty() {
        let name = path.last().cloned();
        found.push(Import { public, path, name });
    }
}
