//! The figures of `gleaner reproduce rhic`, quickly.
use gleaner_simulator::reproduce::rhic::{Options, reproduce};

fn main() {
    let begin = std::time::Instant::now();
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(101);
    match reproduce(Options { seed, ..Options::default() }, &|_, _, _| {}) {
        Ok(out) => {
            for d in out.details.iter().filter(|d| !d.experiment.starts_with("others")) {
                println!("{:12} {:34} {:38} {:8.2} {}", d.experiment, d.case, d.quantity, d.value, d.unit);
            }
            for f in &out.figures {
                println!(
                    "{:32} {:>8} {:8.2} {:5} {:22} {} {}",
                    f.id,
                    f.paper.map_or("-".into(), |p| p.to_string()),
                    f.ours.unwrap_or(f64::NAN),
                    f.unit,
                    f.target,
                    f.holds,
                    f.note
                );
            }
        }
        Err(error) => println!("{error}"),
    }
    println!("{:.1} s", begin.elapsed().as_secs_f64());
}
