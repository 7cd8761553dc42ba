//! A recurrent network of one layer (LSTM: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000) that reads a sequence of
//! numbers and says the next one. In: sequences with what came after them, a seed. Out: weights that foretell it. [`super`] calls it.
//!
//! It learns by truncated backpropagation over the whole sequence and Adam (Kingma and Ba 2015) with its authors' constants.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

/// Input, forget, output gate and candidate.
const GATES: usize = 4;
const FORGET: usize = 1;
const CANDIDATE: usize = 3;
/// Adam's decay of the means of gradients and of their squares, and what keeps it from dividing by nothing.
const DECAY: (f64, f64) = (0.9, 0.999);
const TINY: f64 = 1e-8;
/// Length of a step. Kingma and Ba have 0.001 for networks a thousand times as large.
const STEP: f64 = 0.005;
/// Examples whose gradients are averaged for a step.
const BATCH: usize = 32;
/// A gradient is cut to this length: a rare burst must not throw the weights away.
const LONGEST: f64 = 1.0;

/// A sequence, and the number after it.
pub(super) type Example<'a> = (&'a [f64], f64);

/// Weights, and how far learning has come.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    hidden: usize,
    /// A row for each unit of each gate: of the input, a constant, and of the hidden units before. Then the row of the output: a constant and
    /// the hidden units.
    weights: Vec<f64>,
    /// Adam's means of gradients and of their squares, and its steps.
    mean: Vec<f64>,
    square: Vec<f64>,
    steps: i32,
}

/// What a pass forward leaves for the one back.
#[derive(Debug, Default)]
struct Pass {
    /// Of each step: the gates' values, the cells and the hidden units after it; of the latter two, zeros before the first.
    gates: Vec<f64>,
    cells: Vec<f64>,
    hidden: Vec<f64>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Network {
    /// A network with small weights by chance; forget gates begin open.
    pub(super) fn new(hidden: usize, random: &mut ChaCha8Rng) -> Self {
        let row = hidden + 2;
        let count = GATES * hidden * row + hidden + 1;
        let scale = 1.0 / (hidden as f64).sqrt();
        let mut weights: Vec<f64> =
            (0..count).map(|_| scale * (2.0 * f64::from(random.next_u32()) / f64::from(u32::MAX) - 1.0)).collect();
        for unit in 0..hidden {
            weights[(FORGET * hidden + unit) * row + 1] = 1.0;
        }
        Self { hidden, weights, mean: vec![0.0; count], square: vec![0.0; count], steps: 0 }
    }

    /// The rows of the gates, and the row of the output.
    fn rows(&self) -> (&[f64], &[f64]) {
        self.weights.split_at(GATES * self.hidden * (self.hidden + 2))
    }

    /// What comes after a sequence.
    pub(super) fn next(&self, sequence: &[f64]) -> f64 {
        self.forward(sequence, &mut Pass::default())
    }

    fn forward(&self, sequence: &[f64], pass: &mut Pass) -> f64 {
        let units = self.hidden;
        let (rows, output) = self.rows();
        pass.gates.clear();
        pass.cells.clear();
        pass.hidden.clear();
        pass.cells.resize(units, 0.0);
        pass.hidden.resize(units, 0.0);
        for (step, &input) in sequence.iter().enumerate() {
            let before = &pass.hidden[step * units..];
            for (index, row) in rows.chunks_exact(units + 2).enumerate() {
                let sum = row[0] * input + row[1] + dot(&row[2..], before);
                pass.gates.push(if index / units == CANDIDATE { sum.tanh() } else { sigmoid(sum) });
            }
            let gates = &pass.gates[step * GATES * units..];
            for unit in 0..units {
                let [enter, forget, leave, candidate] = [0, 1, 2, 3].map(|gate| gates[gate * units + unit]);
                let cell = forget * pass.cells[step * units + unit] + enter * candidate;
                pass.cells.push(cell);
                pass.hidden.push(leave * cell.tanh());
            }
        }
        output[0] + dot(&output[1..], &pass.hidden[sequence.len() * units..])
    }

    /// Adds to `gradient` that of half of the squared error, of which the derivative by the output is `error`.
    fn backward(&self, sequence: &[f64], error: f64, pass: &Pass, gradient: &mut [f64]) {
        let units = self.hidden;
        let (rows, output) = self.rows();
        let (by_rows, by_output) = gradient.split_at_mut(rows.len());
        by_output[0] += error;
        for (own, hidden) in by_output[1..].iter_mut().zip(&pass.hidden[sequence.len() * units..]) {
            *own += error * hidden;
        }
        // Derivatives by the hidden units and cells after the step at hand, and by the sums of its gates.
        let mut by_hidden: Vec<f64> = output[1..].iter().map(|weight| error * weight).collect();
        let mut by_cell = vec![0.0; units];
        let mut by_sum = vec![0.0; GATES * units];
        for (step, &input) in sequence.iter().enumerate().rev() {
            let gates = &pass.gates[step * GATES * units..];
            let (before, after) = (&pass.cells[step * units..], &pass.cells[(step + 1) * units..]);
            for unit in 0..units {
                let [enter, forget, leave, candidate] = [0, 1, 2, 3].map(|gate| gates[gate * units + unit]);
                let squashed = after[unit].tanh();
                let cell = by_cell[unit] + by_hidden[unit] * leave * (1.0 - squashed * squashed);
                let sums = [
                    cell * candidate * enter * (1.0 - enter),
                    cell * before[unit] * forget * (1.0 - forget),
                    by_hidden[unit] * squashed * leave * (1.0 - leave),
                    cell * enter * (1.0 - candidate * candidate),
                ];
                sums.into_iter().enumerate().for_each(|(gate, sum)| by_sum[gate * units + unit] = sum);
                by_cell[unit] = cell * forget;
            }
            let hidden = &pass.hidden[step * units..(step + 1) * units];
            by_hidden.fill(0.0);
            for ((sum, row), by_row) in
                by_sum.iter().zip(rows.chunks_exact(units + 2)).zip(by_rows.chunks_exact_mut(units + 2))
            {
                by_row[0] += sum * input;
                by_row[1] += sum;
                for unit in 0..units {
                    by_row[2 + unit] += sum * hidden[unit];
                    by_hidden[unit] += sum * row[2 + unit];
                }
            }
        }
    }

    /// Learns from all examples so many times, each time in another order.
    pub(super) fn learn(&mut self, examples: &[Example<'_>], times: u32, random: &mut ChaCha8Rng) {
        let mut order: Vec<&Example<'_>> = examples.iter().collect();
        let (mut pass, mut gradient) = (Pass::default(), vec![0.0; self.weights.len()]);
        for _ in 0..times {
            for last in (1..order.len()).rev() {
                #[expect(clippy::cast_possible_truncation, reason = "less than the number of examples")]
                let other = (random.next_u64() % (last as u64 + 1)) as usize;
                order.swap(last, other);
            }
            for batch in order.chunks(BATCH) {
                gradient.fill(0.0);
                for (sequence, then) in batch {
                    let error = (self.forward(sequence, &mut pass) - then) / batch.len() as f64;
                    self.backward(sequence, error, &pass, &mut gradient);
                }
                self.step(&gradient);
            }
        }
    }

    /// One step of Adam.
    fn step(&mut self, gradient: &[f64]) {
        self.steps = self.steps.saturating_add(1);
        let cut = (LONGEST / dot(gradient, gradient).sqrt()).min(1.0);
        let step = STEP * (1.0 - DECAY.1.powi(self.steps)).sqrt() / (1.0 - DECAY.0.powi(self.steps));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, (mean, square)), own) in self.weights.iter_mut().zip(moments).zip(gradient) {
            let own = own * cut;
            *mean = DECAY.0 * *mean + (1.0 - DECAY.0) * own;
            *square = DECAY.1 * *square + (1.0 - DECAY.1) * own * own;
            *weight -= step * *mean / (square.sqrt() + TINY);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn gradients_are_those_of_small_changes() {
        let mut network = Network::new(3, &mut ChaCha8Rng::seed_from_u64(5));
        let (sequence, then) = ([0.3, -0.8, 0.5, 1.0, -0.2], 0.7);
        let mut pass = Pass::default();
        let error = network.forward(&sequence, &mut pass) - then;
        let mut gradient = vec![0.0; network.weights.len()];
        network.backward(&sequence, error, &pass, &mut gradient);
        let loss = |network: &Network| (network.next(&sequence) - then).powi(2) / 2.0;
        for (index, own) in gradient.iter().enumerate() {
            let kept = network.weights[index];
            let [more, less] = [1e-5, -1e-5].map(|change| {
                network.weights[index] = kept + change;
                loss(&network)
            });
            network.weights[index] = kept;
            let numeric = (more - less) / 2e-5;
            assert!((own - numeric).abs() < 1e-7 + 1e-5 * numeric.abs(), "weight {index}: {own}, by changes {numeric}");
        }
        assert!(gradient.iter().filter(|own| own.abs() > 1e-6).count() > gradient.len() / 2);
    }

    /// What a mean of the sequence cannot tell: whether the last two were a rise.
    #[test]
    fn it_learns_what_depends_on_the_order() {
        let series: Vec<f64> = (0..240).map(|step| [0.0, 1.0, 0.2, 0.0, 1.0, 0.8][step % 6]).collect();
        let examples: Vec<Example<'_>> = (0..200).map(|at| (&series[at..at + 12], series[at + 12])).collect();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut network = Network::new(6, &mut random);
        let error = |network: &Network| {
            let off = (200..228).map(|at| (network.next(&series[at..at + 12]) - series[at + 12]).abs());
            off.sum::<f64>() / 28.0
        };
        let before = error(&network);
        network.learn(&examples, 60, &mut random);
        assert!(error(&network) < 0.1 && before > 0.3, "{before} before, {} after", error(&network));
    }
}
