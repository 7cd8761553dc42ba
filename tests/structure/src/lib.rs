//! Which file of a crate uses which, from its source alone; this crate depends on no other of the workspace. In: a
//! crate's root file. Out: a graph of its files, and the circles in it. Called by this crate's own test, which runs it
//! on every crate of the workspace.
//!
//! A file *uses* another when its code names something that is defined there: by `use`, or by a path in the code. A
//! name is followed through re-exports to the file that defines it, so the file in between does not count. So:
//!
//! - `mod child;` alone is no use, and neither is `pub use child::Name;` where the file itself does not need the name;
//! - a parent that uses `child::Name` while the child uses `super::Other` is a circle;
//! - a method is no name: an `impl` in a child file ties the child to the parent, not the parent to the child;
//! - a file that no `mod` declares is declared by a macro: it counts as used by the module whose folder it is in;
//! - what is compiled for tests alone (`#[cfg(test)]`) does not count.

mod graph;
mod lexer;
mod module;

pub use graph::{Circle, circles};
