//! Development only.
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let only = std::env::var("ONLY").is_ok();
    let _ = only;
    let options = gleaner_experiments::chisim::Options {
        seed: args[2].parse().unwrap(),
        traces: Some(args[1].clone().into()),
        ..Default::default()
    };
    let t = std::time::Instant::now();
    let found = gleaner_experiments::chisim::reproduce(&options, &|_, _, _| {}).unwrap();
    let mut last = String::new();
    for d in &found.details {
        if d.case != last {
            print!("\n{:34}", d.case);
            last = d.case.clone();
        }
        print!(" {}={:.3}", d.quantity.split(' ').map(|w| &w[..w.len().min(5)]).collect::<Vec<_>>().join("_"), d.value);
    }
    println!();
    for f in &found.figures {
        println!("{:30} {:?} {:?} {} {} {}", f.id, f.paper, f.ours, f.target, f.holds, f.note);
    }
    println!("{:?} {:?}", t.elapsed(), found.skipped);
}
