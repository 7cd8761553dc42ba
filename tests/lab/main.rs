//! Real beds: QEMU guests on this machine, KVM guests on a booted host with cgroup version 2, a Xen control domain.
//! The scripts beside this file build and start them; README.md describes how to use them by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod database_memory;
mod guests;
mod host;
mod xen;
mod xen_bounds;
mod xen_foreground;
mod xen_harm;
mod xen_hvm;
mod xen_made;
mod xen_placing;
mod xen_volunteer;
