//! Nodes that are lost with outputs that tasks need, by hand.

use super::*;
use crate::sharing::engine::{Truth, play_in};

/// Two nodes of two cores, a job of map tasks of one core and reduce tasks of two, all of 10 s; the second node is lost at 15 s.
/// What ran again, as (stage, task) in their order, and when the stages end.
fn lost(maps: u32, reduces: u32) -> (Vec<(usize, usize)>, Vec<f64>) {
    let stages = [stage(maps, demand(1.0, 1.0, 0.0), 10.0), stage(reduces, demand(2.0, 1.0, 0.0), 10.0)];
    let workload = Workload::new(cluster(2, demand(2.0, 8.0, 1.0), 1.0), vec![job("a", &stages)]).unwrap();
    let truth = Truth { losses: vec![(15.0, 1)], ..Truth::default() };
    let schedule = play_in(&workload, &mut Drf, &truth, f64::INFINITY);
    let lost = schedule.runs.iter().filter(|run| run.lost).map(|run| (run.stage, run.task));
    (lost.collect(), schedule.ends_s[0].clone())
}

/// The reduce task on the lost node has to run again, so it needs the outputs of the two map tasks there; the other one has read
/// what it needs and goes on until 20 s.
#[test]
fn outputs_that_are_needed_are_written_again() {
    let (again, ends_s) = lost(4, 2);
    assert_eq!(again, [(0, 1), (0, 3), (1, 1)]);
    close(&ends_s, &[30.0, 40.0]);
}

/// The only reduce task runs on the other node and has read all outputs.
#[test]
fn outputs_that_were_read_are_not() {
    let (again, ends_s) = lost(4, 1);
    assert_eq!(again, []);
    close(&ends_s, &[10.0, 20.0]);
}

/// In the second of two waves of map tasks both the tasks that run on the lost node and those that ended there run again: two of
/// the four start at 20 s, the others at 30 s.
#[test]
fn outputs_of_the_stage_itself_are_written_again() {
    let (again, ends_s) = lost(8, 1);
    assert_eq!((again.len(), again.iter().all(|own| own.0 == 0)), (4, true));
    close(&ends_s, &[40.0, 50.0]);
}

/// Credit counts what has to run again as not had, so all of it is paid back in the end.
#[test]
fn credit_stays_true() {
    let job = |name| job(name, &[stage(6, demand(1.0, 1.0, 0.0), 10.0), stage(2, demand(1.0, 1.0, 0.5), 10.0)]);
    let workload = Workload::new(cluster(3, demand(2.0, 8.0, 1.0), 1.0), vec![job("a"), job("b")]).unwrap();
    let truth = Truth { losses: vec![(15.0, 1), (25.0, 2)], ..Truth::default() };
    let mut policy = Canal::new(workload.mean_task_s(), Awareness::BOTH, 1);
    let own = play_in(&workload, &mut policy, &truth, f64::INFINITY);
    let fair = play_in(&workload, &mut Drf, &truth, f64::INFINITY);
    assert!(own.runs.iter().any(|run| run.lost && run.end_s < 15.0), "an output is lost");
    let rows = table(&workload, &fair, &own, 10.0, 1_000);
    close(&rows.last().unwrap().credits, &[0.0, 0.0]);
}
