//! Settings of the controllers that BConf is compared with, on simulated TPC-W ([`gleaner_experiments::bconf::tuning`]). In:
//! optionally the number of seeds. Out: a line per setting. Run by hand:
//! `cargo run --release -p gleaner-experiments --example tuning`.
#![expect(clippy::disallowed_methods, reason = "it is run by hand, and told how many seeds")]

use gleaner_experiments::bconf::tuning;

fn main() {
    let seeds = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20);
    println!("R(e) without the first intervals, %, median over {seeds} seeds");
    println!("{:>10} {:>10}  controller", "constant", "changing");
    for tried in tuning(seeds, &|at, all| eprint!("\r{at} of {all} ")) {
        println!("{:10.2} {:10.2}  {}", tried.deviations[0], tried.deviations[1], tried.rival);
    }
}
