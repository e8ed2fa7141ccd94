//! Growing, jittered delays between attempts.

use std::time::Duration;

/// An endless series of delays: exponential up to a cap, jittered so that many clients spread.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    cap: Duration,
    round: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, round: 0 }
    }

    /// The next delay: between half and all of `first * 2^round`, at most the cap.
    pub(crate) fn next(&mut self) -> Duration {
        let factor = 2u32.saturating_pow(self.round.min(30));
        self.round = self.round.saturating_add(1);
        let full = self.first.saturating_mul(factor).min(self.cap);
        full.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// Starts again at the first delay, after a period of success.
    pub(crate) fn reset(&mut self) {
        self.round = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_never_pass_it() {
        let cap = Duration::from_secs(5);
        let mut backoff = Backoff::new(Duration::from_millis(100), cap);
        assert!(backoff.next() <= Duration::from_millis(100));
        let late: Vec<_> = (0..100).map(|_| backoff.next()).skip(10).collect();
        assert!(late.iter().all(|d| *d <= cap && *d >= cap / 2));
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
