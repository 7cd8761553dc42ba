fn main() {
    let options = gleaner_experiments::forecast::Options {
        traces: std::env::var_os("GLEANER_TRACES").map(Into::into),
        ..Default::default()
    };
    let out = gleaner_experiments::forecast::reproduce(&options, &|_, n, of| eprint!("{n}/{of} ")).unwrap();
    let mut last = String::new();
    for d in out.details {
        let key = format!("{:45} {:45}", d.experiment, d.case);
        if key != last {
            print!("\n{key}");
            last = key;
        }
        print!(" {:7.2}", d.value);
    }
    println!();
    println!("{}", serde_json::to_string_pretty(&out.figures).unwrap());
}
