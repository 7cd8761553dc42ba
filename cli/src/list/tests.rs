use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    list: ListArgs,
}

type Guest = (&'static str, Option<f64>, &'static str);

const GUESTS: [Guest; 4] =
    [("web", Some(1.26), "busy"), ("db", Some(0.5), "idle"), ("mail", None, "unknown"), ("web-2", Some(12.0), "Busy")];

fn columns() -> Columns<'static, Guest> {
    Columns::<Guest>::new()
        .with("name", |own| own.0.into())
        .with("cpu_cores", |own| own.1.into())
        .with("state", |own| own.2.into())
}

fn asked(words: &[&str]) -> ListArgs {
    Command::try_parse_from(std::iter::once(&"list").chain(words)).unwrap().list
}

fn names(words: &[&str]) -> Vec<&'static str> {
    asked(words).over(columns()).unwrap().rows(GUESTS.to_vec()).unwrap().into_iter().map(|own| own.0).collect()
}

#[test]
fn nothing_asked_is_everything_as_it_was() {
    assert_eq!(names(&[]), ["web", "db", "mail", "web-2"]);
}

#[test]
fn text_is_looked_for_in_every_column_and_values_in_theirs() {
    assert_eq!(names(&["--filter", "WEB"]), ["web", "web-2"]);
    assert_eq!(names(&["--filter", "busy"]), ["web", "web-2"]);
    assert_eq!(names(&["--filter", "name=web"]), ["web"]);
    assert_eq!(names(&["--filter", "state!=busy"]), ["db", "mail"]);
    assert_eq!(names(&["--filter", "busy", "--filter", "name=web"]), ["web"], "both");
    assert_eq!(names(&["--filter", "a sentence = with a sign"]), [""; 0]);
}

#[test]
fn numbers_are_compared_as_numbers() {
    assert_eq!(names(&["--filter", "cpu_cores>1"]), ["web", "web-2"]);
    assert_eq!(names(&["--filter", "cpu-cores<1"]), ["db"], "what is not known is not less");
    assert_eq!(names(&["--filter", "CPU_CORES=1.3"]), ["web"], "to the digits that are given");
    assert_eq!(names(&["--filter", "cpu_cores=1.25"]), [""; 0]);
    assert_eq!(names(&["--filter", "cpu_cores=-"]), ["mail"]);
    assert_eq!(names(&["--filter", "cpu cores>1"]), ["web", "web-2"], "as its head is written");
    for wrong in ["cpu_cores>much", "cpu_cores=1MiB", "cpu_cores>=1"] {
        let refused = asked(&["--filter", wrong]).over(columns()).unwrap().rows(GUESTS.to_vec()).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("--filter {wrong}: cpu_cores is a number")), "{refused}");
    }
}

#[test]
fn sorting_is_by_value_with_the_unknown_last_and_the_limit_after_it() {
    assert_eq!(names(&["--sort", "cpu_cores"]), ["db", "web", "web-2", "mail"]);
    assert_eq!(names(&["--sort", "cpu_cores:desc"]), ["web-2", "web", "db", "mail"]);
    assert_eq!(names(&["--sort", "name:asc", "--limit", "2"]), ["db", "mail"]);
    assert_eq!(names(&["--limit", "0"]), [""; 0]);
}

#[test]
fn of_a_log_the_newest_are_shown_unless_it_is_sorted() {
    let newest = |words: &[&str]| {
        let rows = asked(words).over(columns()).unwrap().newest(GUESTS.to_vec()).unwrap();
        rows.into_iter().map(|own| own.0).collect::<Vec<_>>()
    };
    assert_eq!(newest(&["--limit", "2"]), ["mail", "web-2"]);
    assert_eq!(newest(&["--limit", "1", "--filter", "name=db"]), ["db"]);
    assert_eq!(newest(&["--limit", "1", "--sort", "name"]), ["db"]);
}

#[test]
fn a_column_that_does_not_exist_is_answered_by_those_that_do() {
    for (words, option) in [(["--filter", "mem>3"], "--filter mem"), (["--sort", "mem:desc"], "--sort mem")] {
        let error = asked(&words).over(columns()).err().unwrap().to_string();
        assert_eq!(error, format!("{option}: there is no such column; the columns are name, cpu_cores, state"));
    }
    let error = Command::try_parse_from(["list", "--sort", "name:up"]).unwrap_err().to_string();
    assert!(error.contains("\"up\" is no order; write COLUMN, COLUMN:asc or COLUMN:desc"), "{error}");
}

#[test]
fn that_no_row_passes_is_not_that_there_is_none() {
    assert_eq!(or_none_passes("no jobs".into(), 0, 0), "no jobs");
    assert_eq!(or_none_passes("no jobs".into(), 0, 3), "none of 3 is shown by --filter and --limit");
    assert_eq!(or_none_passes("a table".into(), 2, 3), "a table");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_a_filter_panic_or_adds_a_row(filter in ".{0,20}", sort in ".{0,10}", limit in 0_usize..6) {
        let args = ListArgs {
            filter: vec![filter.parse().unwrap()],
            sort: sort.parse().ok(),
            limit: Some(limit),
        };
        if let Ok(list) = args.over(columns()) {
            let rows = list.rows(GUESTS.to_vec()).unwrap();
            proptest::prop_assert!(rows.len() <= limit && rows.iter().all(|row| GUESTS.contains(row)));
        }
    }
}
