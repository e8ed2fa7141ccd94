//! How long a record waits after a failure of its own.

use std::time::Duration;

/// How long a failed record waits before its next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryDelay {
    first: Duration,
    cap: Duration,
    growth: Growth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Doubling,
    Adding,
}

impl RetryDelay {
    /// `first` after the first failure, twice as long after each further one, at most `cap`.
    #[must_use]
    pub const fn exponential(first: Duration, cap: Duration) -> Self {
        Self { first, cap, growth: Growth::Doubling }
    }

    /// `step` for each attempt spent, at most `cap`.
    #[must_use]
    pub const fn linear(step: Duration, cap: Duration) -> Self {
        Self { first: step, cap, growth: Growth::Adding }
    }

    /// Returns the delay once `attempts` attempts are spent.
    #[must_use]
    pub fn after(&self, attempts: u32) -> Duration {
        let factor = match self.growth {
            Growth::Doubling => 2_u32.saturating_pow(attempts.saturating_sub(1)),
            Growth::Adding => attempts,
        };
        self.first.saturating_mul(factor).min(self.cap)
    }
}

/// One second, doubling up to five minutes.
impl Default for RetryDelay {
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_mins(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_by_their_rule_and_never_pass_the_cap() {
        let delays = |delay: RetryDelay, attempts: &[u32]| -> Vec<u128> {
            attempts.iter().map(|n| delay.after(*n).as_millis()).collect()
        };
        let default = RetryDelay::default();
        assert_eq!(
            delays(default, &[1, 2, 3, 9, 10, 1000]),
            [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]
        );
        let linear = RetryDelay::linear(Duration::from_millis(50), Duration::from_secs(5));
        assert_eq!(delays(linear, &[1, 2, 99, 100, u32::MAX]), [50, 100, 4_950, 5_000, 5_000]);
    }
}
