//! In which order a run measures. In: cells, rows, a seed and a round. Out: each cell under each row once, in an order
//! of the round's own. So what changes on the machine during the run falls on all rows alike. Called by
//! [`crate::matrix`]. Pure.

use gleaner_simulator::random::Random;

use crate::cells::{Cell, Row};

/// The measurements of a round, in the order of its seed. The rows of a cell follow one another, so that they are compared with an
/// `alone` of the same minute.
#[must_use]
pub fn of_round(cells: &[Cell], rows: &[Row], seed: u64, round: u64) -> Vec<(Cell, Row)> {
    let mut random = Random::part(seed, round);
    let mut cells = cells.to_vec();
    shuffle(&mut cells, &mut random);
    let mut all = Vec::with_capacity(cells.len() * rows.len());
    for cell in cells {
        let mut rows = rows.to_vec();
        shuffle(&mut rows, &mut random);
        all.extend(rows.into_iter().map(|row| (cell, row)));
    }
    all
}

/// Fisher and Yates.
fn shuffle<T>(all: &mut [T], random: &mut Random) {
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Named, cells};

    #[test]
    fn a_round_measures_everything_once_in_an_order_of_its_own() {
        let cells = cells("every:cpu").unwrap();
        let first = of_round(&cells, Row::ALL, 7, 0);
        assert_eq!(first, of_round(&cells, Row::ALL, 7, 0));
        assert_ne!(first, of_round(&cells, Row::ALL, 7, 1));
        assert_ne!(first, of_round(&cells, Row::ALL, 8, 0));
        let mut sorted = first.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), cells.len() * Row::ALL.len());
        // The rows of a cell stay together.
        for block in first.chunks(Row::ALL.len()) {
            assert!(block.iter().all(|(cell, _)| *cell == block[0].0));
        }
    }
}
