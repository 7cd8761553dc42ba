//! A whole job's time over the number of nodes, for recorded runs of which neither tasks nor stages are known. In: nodes and seconds of
//! some runs. Out: T(N) = a + b/N. `gleaner reproduce mapreduce` calls it.
//!
//! It is Eq. 10 of Gandhi et al. with D, M and R fixed and so many waves that ⌈x⌉ ≈ x: b is all work that more nodes share, a is the
//! first reduce wave, the shuffle and whatever does not shrink with N.

/// A run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// N.
    pub nodes: f64,
    /// T_job.
    pub seconds: f64,
}

/// T(N) = `fixed_s` + `shared_s` / N.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleOut {
    /// a.
    pub fixed_s: f64,
    /// b.
    pub shared_s: f64,
}

/// Runs do not give it.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ScaleOutError {
    /// A number of a run.
    #[error("run {run}: its nodes are {nodes} and its seconds {seconds}; both must be finite and more than 0")]
    Field {
        /// Which, from 0.
        run: usize,
        /// N.
        nodes: f64,
        /// T.
        seconds: f64,
    },
    /// Fewer than two numbers of nodes.
    #[error("there are {0} runs, all with the same number of nodes; there must be two numbers of nodes at least")]
    OneSize(usize),
}

impl ScaleOut {
    /// Least squares of the relative error.
    ///
    /// # Errors
    /// [`ScaleOutError`].
    pub fn fit(runs: &[Run]) -> Result<Self, ScaleOutError> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        for (run, own) in runs.iter().enumerate() {
            if !positive(own.nodes) || !positive(own.seconds) {
                return Err(ScaleOutError::Field { run, nodes: own.nodes, seconds: own.seconds });
            }
        }
        let mut normal = crate::balance::least_squares::Normal::new(2);
        for run in runs {
            normal.add(&[1.0, 1.0 / run.nodes], run.seconds, 1.0 / (run.seconds * run.seconds));
        }
        let found = normal.unconstrained().ok_or(ScaleOutError::OneSize(runs.len()))?;
        Ok(Self { fixed_s: found[0], shared_s: found[1] })
    }

    /// T(N).
    #[must_use]
    pub fn seconds(&self, nodes: f64) -> f64 {
        self.fixed_s + self.shared_s / nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_runs_are_found_and_others_refused() {
        let run = |nodes: f64| Run { nodes, seconds: 100.0 + 1_200.0 / nodes };
        let found = ScaleOut::fit(&[run(4.0), run(6.0), run(12.0)]).unwrap();
        assert!((found.fixed_s - 100.0).abs() < 1e-6 && (found.seconds(8.0) - 250.0).abs() < 1e-6);
        let same = ScaleOut::fit(&[run(4.0), run(4.0)]).unwrap_err();
        assert!(same.to_string().starts_with("there are 2 runs"));
        assert!(ScaleOut::fit(&[run(4.0)]).is_err() && ScaleOut::fit(&[]).is_err());
        for (nodes, seconds) in [(0.0, 1.0), (4.0, f64::NAN), (-1.0, 5.0), (f64::INFINITY, 5.0)] {
            let wrong = ScaleOut::fit(&[run(4.0), Run { nodes, seconds }]).unwrap_err();
            assert!(matches!(wrong, ScaleOutError::Field { run: 1, .. }), "{wrong}");
        }
    }
}
