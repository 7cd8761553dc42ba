//! Sharing one cluster between jobs. In: a cluster, jobs of stages, a policy. Out: which task starts where and when.
//!
//! CANAL (Wei, chapter 5) lets a job borrow shares from jobs whose fair completion is later, and keeps account: the first
//! `i` jobs together never lend (Eq. 5.2), so that every job ends no later than under dominant resource fairness (DRF).
//! DRF and Tetris are there to compare with.
//!
//! The policies differ only in what they start ([`engine::Policy`]). What the paper leaves open is said where it is decided.

pub mod baselines;
pub mod canal;
pub mod credit;
pub mod drf;
pub mod engine;
pub mod fair;
pub mod input;
pub(crate) mod invalid;
pub mod multifactor;
mod network;
mod packing;
mod progress;
pub mod resources;
pub mod tasks;
pub mod tetris;
pub mod weights;

#[cfg(test)]
mod tests;
