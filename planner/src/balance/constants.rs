//! What the control of an application is made of that neither the paper nor the data say. In one place, so that the reproduction
//! can show what each does (`gleaner reproduce bconf --details`); nobody else changes them.
//! In: nothing. Out: [`Constants`]. Read by [`application`](super::application), [`model`](super::model) and
//! [`estimator`](super::estimator).

/// All of them. "Chosen on seeds" are those of docs/services.md.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// Weight of a row against the next one's. Chosen on seeds 1 to 20: ten rows, five minutes, count.
    pub memory: f64,
    /// Variances of the level's steps over the noise's, among which the data choose: from a level that hardly moves to one that is
    /// new in almost every interval. By factors of about four, between which the likelihood hardly differs.
    pub steps: [f64; 6],
    /// Variances of the prior among which the data choose: of what each term adds to the performance, which is 1 at the target.
    /// Chosen: with less than the first, what little is varied on a service without noise never outweighs the prior.
    pub priors: [f64; 5],
    /// Noise before any data, as a variance: of 3.5 %, the sampling error of a response time (`docs/services.md`, calibration).
    pub noise: f64,
    /// How many rows that counts. Chosen.
    pub noise_rows: f64,
    /// Standard deviations beyond which a row is a change of the load and no noise. Chosen: noise is beyond once in 16,000
    /// intervals, five days.
    pub change: f64,
    /// Intervals in the sliding window: S. Chosen: half an hour of control intervals.
    pub window: usize,
    /// Rows of a condition's own below which its model is its neighbour's. Chosen.
    pub least_rows: usize,
    /// Rows per coefficient below which shares are varied more. Chosen.
    pub rows_per_coefficient: usize,
    /// Weight of the newest utilisation in the prior. Chosen.
    pub used_weight: f64,
    /// Utilisation above which the prior does not grow any more. Chosen.
    pub most_used: f64,
    /// Samples with a miss rate from which λ is first looked for. Chosen.
    pub exponent_first: usize,
    /// Weight of the newest share in the average entitlement. Chosen: an average over some 50 intervals.
    pub average_weight: f64,
    /// How much of the varying of shares goes on when the model knows enough. Chosen: what the service does not notice. (Simulated
    /// TPC-C of chapter 4, constant load: R(e) 6.8 % with the whole of it for ever, 5.4 % with an eighth.)
    pub settled_probe: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            memory: 0.9,
            steps: [0.00075, 0.003_125, 0.0125, 0.05, 0.2, 0.8],
            priors: [0.0125, 0.05, 0.2, 0.8, 3.2],
            noise: 0.035 * 0.035,
            noise_rows: 2.0,
            change: 4.0,
            window: 60,
            least_rows: 6,
            rows_per_coefficient: 3,
            used_weight: 0.5,
            most_used: 0.9,
            exponent_first: 20,
            average_weight: 0.02,
            settled_probe: 0.125,
        }
    }
}
