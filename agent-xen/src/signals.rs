//! The signals that ask a program to end. In: nothing. Out: this process lives on when they come. Called once, by `main`.
//!
//! `systemctl stop` sends SIGTERM to the whole unit, and a terminal SIGINT or SIGHUP to all that run in it: to the helper
//! at the same moment as to the agent, which still has to put limits and memory targets back through it. So the agent alone
//! ends the helper, by closing its input. The kernel closes that of an agent that dies.

/// From now on none of them ends this process.
pub(crate) fn outlive_ends() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: SIG_IGN installs no handler, so no code runs in signal context; the numbers are valid.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
