//! The isolation matrix: antagonists in the volunteer's place, beside real foregrounds, under several ways to protect
//! the foreground. Everything is measured on real processes, and compared only within one run.
//!
//! In: which cells (foreground and antagonist) and rows (ways to protect), how many rounds, a seed. Out: per cell and
//! row how much slower the foreground was than alone, what failed or was killed, and the work that the antagonist got
//! done. The program `isolation` and `tests/matrix.rs` call it; docs/isolation.md says how to read it.
//!
//! What must not be here: code of the daemons or of the planner. The product runs as the program `gleaner`.
//!
//! - what there is to choose from: [`cells`]; the order of a run: [`order`]
//! - what a cell needs: [`groups`], [`network`], [`scratch`]; what is undone at the end, however it ends: [`leftovers`], [`interrupt`]
//! - processes of their own: [`antagonist`] with [`work`], [`foreground`]; those of the product: [`pair`]
//! - what rows besides the product do all the time: [`suppress`], [`points`]
//! - a measurement: [`cell`]; all of them: [`matrix`]; figures: [`statistics`], [`results`], [`table`], [`plot`]; what they show: [`verdict`]

pub mod antagonist;
pub mod cell;
pub mod cells;
pub mod children;
pub mod foreground;
pub mod groups;
pub mod host;
pub mod interrupt;
pub mod leftovers;
pub mod matrix;
pub mod network;
pub mod order;
pub mod pair;
pub mod plot;
pub mod points;
pub mod results;
pub mod scratch;
pub mod statistics;
pub mod suppress;
pub mod table;
pub mod verdict;
pub mod work;
