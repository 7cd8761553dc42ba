//! End to end: the real `gleaner` binary, real daemons over real QUIC, real tasks in a real volunteer. Each test
//! leaves the machine as it found it, and says so.

mod bench;
mod daemons;
mod kills;
mod runs;
