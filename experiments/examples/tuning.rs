//! Settings of the controllers that BConf is compared with, on simulated TPC-W ([`gleaner_experiments::bconf::tuning`]). In:
//! optionally the number of seeds, and `calm` for services that nothing but noise disturbs. Out: a line per setting. Run by hand:
//! `cargo run --release -p gleaner-experiments --example tuning`.
#![expect(clippy::disallowed_methods, reason = "it is run by hand, and told how many seeds")]

use gleaner_experiments::bconf::tuning;
use gleaner_simulator::service::Disturbance;

fn main() {
    let seeds = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(20);
    let is_calm = std::env::args().nth(2).is_some_and(|word| word == "calm");
    let disturbance = if is_calm { Disturbance::NONE } else { Disturbance::RECORDED };
    println!("R(e) without the first intervals, %, median over {seeds} seeds");
    println!("{:>10} {:>10}  controller", "constant", "changing");
    for tried in tuning(disturbance, seeds, &|at, all| eprint!("\r{at} of {all} ")) {
        println!("{:10.2} {:10.2}  {}", tried.deviations[0], tried.deviations[1], tried.rival);
    }
}
