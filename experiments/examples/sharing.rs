//! Ways to share interactive hosts between jobs, beside one another ([`gleaner_experiments::sharing`]). In: the first seed and
//! the number of seeds (1 and 40). Out: a line per shape of load and way. Run by hand:
//! `cargo run --release -p gleaner-experiments --example sharing -- 1 40`.
#![expect(clippy::disallowed_methods, reason = "it is run by hand, with the seeds that its caller says")]

use gleaner_experiments::sharing::{Load, Sharing, compare};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>());
    let (Ok(first), Ok(seeds)) = (numbers.next().unwrap_or(Ok(1)), numbers.next().unwrap_or(Ok(40))) else {
        println!("usage: sharing [FIRST_SEED [SEEDS]], both whole numbers");
        return;
    };
    match compare(&Load::ALL, &Sharing::ALL, first..first.saturating_add(seeds), &|_, _| {}) {
        Ok(rows) => {
            println!("load            sharing     mean (s)   late of jobs  latest (s)  given up");
            for row in rows {
                println!(
                    "{:<14}  {:<10}  {:>8.1}  {:>5} of {:>4}  {:>10.0}  {:>8.1}",
                    format!("{:?}", row.load),
                    format!("{:?}", row.sharing),
                    row.mean_s,
                    row.late,
                    row.jobs,
                    row.worst_s,
                    row.given_up
                );
            }
        }
        Err(error) => println!("{error}"),
    }
}
