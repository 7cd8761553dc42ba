//! Real jobs on a real Spark standalone cluster under a real aggregator, with one dedicated worker and two volunteers, which the
//! aggregator adds, drains and loses while the foreground is protected and the deadline is met: a word count, and a sort of which
//! a volunteer is killed with the output that the rest needs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod bed;
mod foreseen;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{self, until};
use gleaner_test_support::pace::STEADY;
use serde_json::Value;

use bed::{Bed, Ended, VOLUNTEERS, burst};
use foreseen::Foreseen;

/// Tasks of the word count's first stage, a few more by how the files are cut, and the CPU time of one. The dedicated worker alone
/// would be late with these, so that the job needs a volunteer for most of its time, and two are more than it needs.
const COUNT: (u32, f64) = (150, 0.6);
/// From submission to completion.
const COUNT_DEADLINE_S: f64 = 210.0;
/// The sort's tasks before the shuffle and after it, and the CPU time of one.
const SORT: [(u32, f64); 2] = [(60, 0.6), (60, 0.9)];
const SORT_DEADLINE_S: f64 = 200.0;
/// Tasks before the shuffle whose output the killed volunteer has, at least.
const OUTPUT: f64 = 8.0;
/// The text: files, lines of each and words of each line.
const TEXT: (u32, u32, u32) = (8, 2_500, 12);
/// Most by which half of the decisions may be off about a job's end, as part of its whole time.
const FORESEEN: f64 = 0.1;

/// Writes a text and counts its words.
fn write_text(folder: &Path) -> BTreeMap<String, u64> {
    std::fs::create_dir_all(folder).unwrap();
    let (mut counts, mut state) = (BTreeMap::new(), 1_u64);
    for number in 0..TEXT.0 {
        let mut file = std::io::BufWriter::new(File::create(folder.join(format!("part-{number}.txt"))).unwrap());
        for _ in 0..TEXT.1 {
            for _ in 0..TEXT.2 {
                // Knuth's MMIX generator; small words are more frequent.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let word = format!("word{}", (state >> 33) % 700 * ((state >> 20) % 3));
                write!(file, "{word} ").unwrap();
                *counts.entry(word).or_insert(0) += 1;
            }
            writeln!(file).unwrap();
        }
    }
    counts
}

/// The bed, or why the test is skipped.
fn bed(test: &str) -> Option<Bed> {
    if !gleaner_test_support::beds::wanted(test) {
        return None;
    }
    match Bed::start() {
        Ok(bed) => Some(bed),
        Err(why) => {
            // Past the harness, which would swallow it.
            gleaner_test_support::skipped!("a real Spark cluster: {why}");
            None
        }
    }
}

/// A machine that changed its pace is another one than the job was cut to: what depends on that is not judged.
fn not_judged(what: &str, slower: f64) {
    // Past the harness, which would swallow it.
    gleaner_test_support::skipped!("{what}: this machine was {slower:.2} times slower meanwhile");
}

#[test]
fn a_real_spark_job_is_resized_to_its_deadline_and_the_foreground_is_protected() {
    let Some(bed) = bed("a_real_spark_job_is_resized_to_its_deadline_and_the_foreground_is_protected") else { return };
    // Spark reads no folder whose name begins with a dot.
    let texts = bed.elsewhere.path().join("text");
    let expected = write_text(&texts);
    let result = bed.pair.bench.path("counts.json");
    let words = f64::from(TEXT.0 * TEXT.1 * TEXT.2);
    let rounds = bed.spark.hashes(COUNT.1 * f64::from(COUNT.0) / words);
    let arguments =
        [texts.display().to_string(), COUNT.0.to_string(), rounds.to_string(), result.display().to_string()];
    let watch = bed.submit("words", COUNT_DEADLINE_S, "word_count.py", &arguments);
    watch.goes_on_until("a volunteer has done three tasks", |watch| {
        VOLUNTEERS.iter().any(|host| watch.finished(host) >= 3.0)
    });
    let first = VOLUNTEERS.into_iter().find(|host| watch.finished(host) >= 3.0).unwrap();
    let second = VOLUNTEERS.into_iter().find(|host| *host != first).unwrap();

    // The foreground is protected: for its user there is nearly nothing of them.
    let user = burst(60);
    std::thread::sleep(Duration::from_secs(1));
    let (before, from) = (watch.used_s(), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let share = (watch.used_s() - before) / from.elapsed().as_secs_f64();
    drop(user);
    watch.say(&format!("the foreground came back: the volunteers had {:.0} % of a core", share * 100.0));
    assert!(share < 0.2, "{share} cores");

    // A killed worker: its agent starts it again, Spark runs its tasks again.
    let killed = [first, second].into_iter().find(|host| watch.comes_back_when_killed(host));
    let first = killed.unwrap_or_else(|| panic!("no killed worker was started again: {}", bed.pair.events()));
    let second = VOLUNTEERS.into_iter().find(|host| *host != first).unwrap();

    // A held host is left alone, and the next best takes its place as long as one is needed.
    assert!(bed.pair.ask(&["host", "hold", first, "--for", "1h"]).status.success());
    until("the held volunteer is empty", || watch.processes(first).is_empty());
    watch.goes_on_until("the other volunteer has done a task, or none is needed", |watch| {
        watch.finished(second) >= 1.0 || watch.job()["volunteers"] == 0
    });
    assert!(bed.pair.ask(&["host", "release", first]).status.success());
    // From here on nobody disturbs it, and its end can be foreseen.
    watch.foreseen.replace(Foreseen::default());

    let Ended { sizes, off, met, slower } = watch.ends();
    let up = sizes.windows(2).any(|pair| pair[0] < pair[1]) || sizes[0] > 0;
    let down = sizes.windows(2).any(|pair| pair[0] > pair[1]);
    if slower > STEADY && !(met && up && down) {
        not_judged("the deadline of a real Spark job and the sizes on the way to it", slower);
    } else {
        assert!(met, "{}", bed.pair.events());
        assert!(up, "up: {sizes:?}");
        assert!(down, "and down: {sizes:?}");
        // A foreground that comes once is no error of the model: then its rate is off more.
        assert!(off.by_stages <= FORESEEN.max(off.by_rate), "{off}");
    }
    let counts = std::fs::read_to_string(result).unwrap();
    let counts: Vec<(String, u64)> = serde_json::from_str(&counts).unwrap();
    let mut expected: Vec<(String, u64)> = expected.into_iter().collect();
    expected.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    assert!(counts == expected, "{} words counted and sorted, {} written", counts.len(), expected.len());
}

/// A volunteer is killed when all is made that the second stage reads, and some of that is read.
#[test]
fn a_real_sort_that_loses_output_in_its_shuffle_is_foreseen() {
    let Some(bed) = bed("a_real_sort_that_loses_output_in_its_shuffle_is_foreseen") else { return };
    let texts = bed.elsewhere.path().join("text");
    write_text(&texts);
    let result = bed.pair.bench.path("sorted.json");
    let words = f64::from(TEXT.0 * TEXT.1 * TEXT.2);
    let [before, after] = SORT.map(|(tasks, task_s)| bed.spark.hashes(task_s * f64::from(tasks) / words).to_string());
    let [maps, reduces] = SORT.map(|(tasks, _)| tasks.to_string());
    let arguments = [texts.display().to_string(), maps, before, reduces, after, result.display().to_string()];
    let watch = bed.submit("sorted", SORT_DEADLINE_S, "sort.py", &arguments);
    // The shuffle has begun, and it is foreseen what becomes of the job without its volunteers: executors hand nothing over.
    let most = || {
        let has = |host: &&str| watch.finished(host);
        VOLUNTEERS.into_iter().filter(|host| watch.has_executor(host)).max_by(|a, b| has(a).total_cmp(&has(b)))
    };
    let again_without = |decision: &Value| {
        let sizes = decision["stages"]["predicted"]["sizes"].as_array().cloned().unwrap_or_default();
        sizes.iter().find(|own| own["size"] == 0).and_then(|own| own["again"].as_u64()).unwrap_or(0)
    };
    watch.goes_on_until("the shuffle has begun, and a volunteer has output that the rest needs", |watch| {
        let done = watch.job()["progress"]["tasks_done"].as_f64().unwrap_or(0.0);
        let again = again_without(&bed.pair.job("sorted")["decision"]);
        let has_output = most().is_some_and(|host| watch.finished(host) >= OUTPUT);
        done >= f64::from(SORT[0].0) + 5.0 && has_output && again > 0
    });
    let most = most().unwrap();
    let again = again_without(&bed.pair.job("sorted")["decision"]);
    eprintln!("{most} has finished {} tasks; without volunteers {again} would run again", watch.finished(most));
    let at_risk = || bed.pair.events().matches("\"event\":\"goal_at_risk\"").count();
    let at_risk_before = at_risk();
    let decided = bed.pair.job("sorted")["decision"]["number"].as_u64();
    watch.processes(most).into_iter().for_each(|pid| bench::kill(pid, "KILL"));
    let mut is_made_again = false;
    watch.goes_on_until("Spark makes the lost output again, and it was decided since", |watch| {
        let stages = &watch.job()["progress"]["stages"]["known"]["stages"];
        let first = stages.as_array().and_then(|all| all.first()).cloned().unwrap_or_default();
        is_made_again |= first["id"] == 0 && first["done"].as_u64() < first["tasks"].as_u64();
        is_made_again && bed.pair.job("sorted")["decision"]["number"].as_u64() > decided
    });
    // From here on nobody disturbs it, and its end can be foreseen.
    watch.foreseen.replace(Foreseen::default());
    let Ended { off, met, slower, .. } = watch.ends();
    if slower > STEADY && !(met && off.by_stages <= FORESEEN) {
        not_judged("the deadline of a real sort that lost output, and how far it was foreseen", slower);
    } else {
        // So much may have been lost that no size is in time; then it is said.
        assert!(met || at_risk() > at_risk_before, "{}", bed.pair.events());
        assert!(off.by_stages <= FORESEEN, "{off}");
    }
    let parts: Vec<(u64, String, String)> = serde_json::from_str(&std::fs::read_to_string(result).unwrap()).unwrap();
    let rows: u64 = parts.iter().map(|(rows, ..)| rows).sum();
    assert_eq!(rows, u64::from(TEXT.0 * TEXT.1 * TEXT.2), "each word once");
    assert!(parts.windows(2).all(|pair| pair[0].2 <= pair[1].1), "one part after the other: {parts:?}");
}
