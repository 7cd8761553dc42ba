//! Requests of fixed work on the CPU: cyclic ones, and those of desktop sessions. In: the setup. Out: seats for
//! [`super::load`]. Called by [`super`]; the matrix calls its `calibrate`.

use std::time::{Duration, Instant};

use gleaner_simulator::foreground::{Session, SessionTrace};
use gleaner_simulator::random::Random;

use super::load::{Schedule, Seat};
use super::setup::Setup;
use crate::host;

/// CPU time of a request on an idle machine. Chosen, as the demo's: what a person notices when it doubles a few times.
const REQUEST: Duration = Duration::from_millis(5);
/// Time between two cyclic requests on one CPU: a fifth of it busy.
const PERIOD: Duration = Duration::from_millis(25);
/// What a second of a session takes here, so that a short measurement has bursts.
const SECOND: Duration = Duration::from_millis(200);
/// Pages of its memory that a request uses.
const PAGES: usize = 64;

/// Requests every 25 ms on as many threads as there are CPUs.
pub(super) fn cyclic(setup: &Setup) -> Vec<Seat> {
    let seats = host::cpus();
    let count = u32::try_from(seats).unwrap_or(1);
    (0..count)
        .map(|seat| {
            let schedule = Schedule::Every { period: PERIOD, offset: PERIOD * seat / count };
            Seat { schedule, request: request(setup, seat.into(), seats) }
        })
        .collect()
}

/// One of each session.
pub(super) fn interactive(setup: &Setup) -> Vec<Seat> {
    let sessions = Session::ALL.into_iter().zip(0_u64..);
    sessions
        .map(|(session, seat)| {
            let trace = Box::new(SessionTrace::new(session, setup.seed.wrapping_mul(1_000).wrapping_add(seat)));
            let schedule = Schedule::Session { trace, second: SECOND, request: REQUEST };
            Seat { schedule, request: request(setup, seat, Session::ALL.len()) }
        })
        .collect()
}

/// A request that works and uses some of the memory that its seat holds.
fn request(setup: &Setup, seat: u64, seats: usize) -> Box<dyn FnMut() -> bool + Send> {
    let bytes = usize::try_from(setup.memory).unwrap_or(0) / seats.max(1);
    // Not zero, or the kernel would not have to give a page.
    let mut memory = vec![1_u8; bytes.max(1)];
    let (mut random, rounds) = (Random::part(setup.seed, seat), setup.rounds);
    Box::new(move || {
        for _ in 0..PAGES {
            let at = random.below(memory.len());
            memory[at] = memory[at].wrapping_add(1);
        }
        work(rounds);
        true
    })
}

/// Work that no compiler can leave out.
fn work(rounds: u64) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..rounds {
        state = std::hint::black_box(state.rotate_left(5).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ round);
    }
}

/// Rounds that make up a request on this machine: by the quickest of several tries, since others only slow one down.
#[must_use]
pub fn calibrate() -> u64 {
    let rounds = 500_000;
    let tries = (0..20).map(|_| {
        let start = Instant::now();
        work(rounds);
        start.elapsed()
    });
    let per_round_s = tries.min().map_or(1e-9, |time| time.as_secs_f64() / rounds as f64).max(1e-12);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below the limit")]
    let needed = (REQUEST.as_secs_f64() / per_round_s) as u64;
    needed.max(1)
}
