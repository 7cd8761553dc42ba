//! The balancer's program (Eq. 4.3–4.7): among the shares within the scaler's bounds that meet the target by the model,
//! those of the least resource penalty ‖w̄‖² and control penalty q·‖w̄ − v̄‖².
//! In: a [`Variable`] for each share, with its gain and bounds, and the performance that the shares have to add. Out: the
//! shares, and whether they reach it. Called by [`application`](super::application).
//!
//! The objective is separable and the target is one equation, so the optimum is w̄ᵢ(μ) = clamp((q·v̄ᵢ + μ·dᵢ/2)/(1 + q)) for
//! the one multiplier μ at which Σ dᵢ·w̄ᵢ is what the target needs. That sum grows with μ in straight pieces; the piece
//! is found by its ends, the shares then exactly. When the bounds do not allow the target (the load has jumped), μ goes
//! to its end: the point of the box closest to the target, and among those the cheapest.

pub use gleaner_types::application::Reach;

use super::NormalShare;

/// One share that may move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variable {
    /// v̄(k − 1): what it is.
    pub present: NormalShare,
    /// d: performance that a unit of it brings.
    pub gain: f64,
    /// Least it may be.
    pub lower: NormalShare,
    /// Most it may be; at least `lower`.
    pub upper: NormalShare,
}

/// Finds the shares and writes them to `shares`, one per variable. `wanted` is what Σ dᵢ·w̄ᵢ has to be, `stability` is q.
///
/// A variable without gain takes the value of least penalty. Bounds that cross are taken at the lower one.
pub fn balance(variables: &[Variable], wanted: f64, stability: f64, shares: &mut Vec<NormalShare>) -> Reach {
    let q = stability.max(0.0);
    let free = |v: &Variable, multiplier: f64| (q * v.present.value() + multiplier * v.gain / 2.0) / (1.0 + q);
    let clamp = |v: &Variable, value: f64| NormalShare::clamped(value.min(v.upper.value()).max(v.lower.value()));
    // Where a variable leaves one bound or reaches the other, and how the sum's slope changes there.
    let mut bends: Vec<(f64, f64)> = Vec::with_capacity(2 * variables.len());
    // The sum before the first bend, where every variable with a gain is at the bound that makes it smallest.
    let (mut sum, mut most) = (0.0, 0.0);
    for v in variables.iter().filter(|v| v.gain != 0.0) {
        let (lower, upper) = (v.lower.value(), v.upper.value().max(v.lower.value()));
        let (least, greatest) = if v.gain > 0.0 { (lower, upper) } else { (upper, lower) };
        sum += v.gain * least;
        most += v.gain * greatest;
        let at = |bound: f64| 2.0 * ((1.0 + q) * bound - q * v.present.value()) / v.gain;
        let slope = v.gain * v.gain / (2.0 * (1.0 + q));
        if upper > lower {
            bends.push((at(least), slope));
            bends.push((at(greatest), -slope));
        }
    }
    shares.clear();
    let ends = |v: &Variable, high: bool| match v.gain {
        0.0 => clamp(v, free(v, 0.0)),
        gain if (gain > 0.0) == high => clamp(v, f64::INFINITY),
        _ => clamp(v, 0.0),
    };
    // An equation that only rounding keeps apart counts as met at the end.
    let slack = 1e-12 * (1.0 + wanted.abs());
    let outside = match () {
        () if !wanted.is_finite() || wanted < sum - slack => Some((Reach::TooFarBelow, false)),
        () if wanted > most + slack => Some((Reach::TooFarAbove, true)),
        () => None,
    };
    if let Some((reach, high)) = outside {
        shares.extend(variables.iter().map(|v| ends(v, high)));
        return reach;
    }
    bends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut multiplier = bends.first().map_or(0.0, |bend| bend.0);
    let mut slope = 0.0;
    for (at, change) in bends {
        let reached = sum + slope * (at - multiplier);
        if reached >= wanted && slope > 0.0 {
            break;
        }
        (sum, multiplier) = (reached, at);
        slope += change;
    }
    if slope > 0.0 && sum < wanted {
        multiplier += (wanted - sum) / slope;
    }
    shares.extend(variables.iter().map(|v| clamp(v, free(v, multiplier))));
    Reach::Met
}

#[cfg(test)]
mod tests;
