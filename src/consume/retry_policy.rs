//! When a failed message is tried again, and where it waits for that.

use std::time::Duration;

use crate::{
    clock::millis,
    error::{Error, Result},
    topology::{Topology, standard},
};

/// When, how often and for how long a failed message is tried again.
///
/// A policy is a schedule: retry *i* follows attempt *i* after `initial * multiplier^(i-1)`, at
/// most the cap. The message is given up, and goes to its queue's `.dlq`, when its attempts are
/// spent or when it is too old.
///
/// A short wait is spent in the consumer: it keeps its place in the prefetch window, and a restart
/// cuts the wait short. A wait of [`broker_threshold`](Self::broker_threshold) or longer is spent
/// in the broker, in a queue of its own for each distinct delay (`{queue}.retry.5m`), where it
/// costs the consumer nothing and survives restarts. Those queues are declared when the consumer
/// starts, with the arguments that every AceMQ library uses (wire contract, section 6).
///
/// The default is `exponential(5, 1 s, 60 s)`: attempts after 1, 2, 4 and 8 seconds, about a
/// quarter of a minute in all, and no queues in the broker.
///
/// Values are checked when a consumer starts, which then fails with [`Error::InvalidOption`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use acemq::RetryPolicy;
///
/// let patient = RetryPolicy::exponential(8, Duration::from_secs(5), Duration::from_secs(300))
///     .max_age(Duration::from_secs(3600));
/// let steady = RetryPolicy::fixed(3, Duration::from_secs(30));
/// # let _ = (patient, steady);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a policy does nothing until it is passed to a consumer"]
pub struct RetryPolicy {
    max_attempts: u32,
    initial: Duration,
    multiplier: f64,
    /// None where every delay is the initial one, so that errors name what the caller wrote.
    cap: Option<Duration>,
    jitter: f64,
    max_age: Duration,
    broker_threshold: Duration,
}

/// Waits this long go to the broker in every AceMQ library, so that the same policy needs the
/// same queues whichever of them declares them.
const DEFAULT_BROKER_THRESHOLD: Duration = Duration::from_secs(30);

/// RabbitMQ refuses longer TTLs: milliseconds in 32 bits, somewhat more than 49 days.
const LONGEST_DELAY: Duration = Duration::from_millis(u32::MAX as u64);

/// More queues than this for one consumer are a mistake in the multiplier.
const MOST_RUNGS: usize = 64;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::exponential(5, Duration::from_secs(1), Duration::from_mins(1))
    }
}

/// Building.
impl RetryPolicy {
    /// Creates a policy without retries: one attempt, then the dead-letter queue.
    pub fn none() -> Self {
        Self::fixed(1, Duration::ZERO)
    }

    /// Creates a policy with the same delay after each attempt, without jitter.
    ///
    /// `max_attempts` counts the first delivery too; 1 is no retry.
    pub fn fixed(max_attempts: u32, delay: Duration) -> Self {
        Self {
            max_attempts,
            initial: delay,
            multiplier: 1.0,
            cap: None,
            jitter: 0.0,
            max_age: Duration::ZERO,
            broker_threshold: DEFAULT_BROKER_THRESHOLD,
        }
    }

    /// Creates a policy whose delay doubles from `initial` up to `cap`, with a jitter of 0.2.
    ///
    /// `max_attempts` counts the first delivery too; 1 is no retry.
    pub fn exponential(max_attempts: u32, initial: Duration, cap: Duration) -> Self {
        Self { multiplier: 2.0, cap: Some(cap), jitter: 0.2, ..Self::fixed(max_attempts, initial) }
    }

    /// Sets the factor from one delay to the next, from 1. Default: 2. A fixed policy has none
    /// and ignores it.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// Sets the share of a delay by which it varies in both directions, from 0 to 1.
    /// Default: 0.2, for fixed policies 0.
    ///
    /// Jitter spreads messages that failed together. It applies to waits in the consumer; a wait
    /// in the broker is exact, because the delay is part of a queue's name.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Gives a message up when it fails at this age, counted from its first publish, however many
    /// attempts it has left. Default, and zero: no limit.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Sets the delay from which on a message waits in the broker. Zero: it never does.
    /// Default: 30 seconds.
    ///
    /// Zero suits a service that may not declare queues; long waits then hold places in the
    /// prefetch window.
    pub fn broker_threshold(mut self, broker_threshold: Duration) -> Self {
        self.broker_threshold = broker_threshold;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.max_attempts == 0 {
            return Err(Error::invalid("max_attempts", 0, "is below 1, the first delivery"));
        }
        if !self.multiplier.is_finite() || self.multiplier < 1.0 {
            let reason = "is not a finite number from 1";
            return Err(Error::invalid("multiplier", self.multiplier, reason));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::invalid("jitter", self.jitter, "is not between 0 and 1"));
        }
        self.validate_delays()
    }

    fn validate_delays(&self) -> Result<()> {
        let shown = |delay: Duration| format!("{delay:?}");
        if self.cap.is_some() && millis(self.initial) == 0 {
            let reason = "is shorter than a millisecond and would never grow";
            return Err(Error::invalid("initial", shown(self.initial), reason));
        }
        let longest = self.max_attempts.checked_sub(1).and_then(|last| self.delay_after(last));
        if let Some(longest) = longest.filter(|delay| *delay > LONGEST_DELAY) {
            let option = match self.cap {
                None => "delay",
                Some(_) if self.initial > LONGEST_DELAY => "initial",
                Some(_) => "cap",
            };
            let reason = format!("is over the longest TTL of a queue, {LONGEST_DELAY:?}");
            return Err(Error::invalid(option, shown(longest), reason));
        }
        if self.rungs().len() > MOST_RUNGS {
            let reason = format!("makes more than {MOST_RUNGS} different waits in the broker");
            return Err(Error::invalid("multiplier", self.multiplier, reason));
        }
        Ok(())
    }
}

/// The schedule. Attempts count from 1.
impl RetryPolicy {
    /// How often a message is handled at most.
    pub(crate) fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The age from which on a failing message is given up, where there is a limit.
    pub(crate) fn age_limit(&self) -> Option<Duration> {
        Some(self.max_age).filter(|limit| !limit.is_zero())
    }

    /// The exact delay after an attempt, in whole milliseconds; none after the last attempt.
    pub(crate) fn delay_after(&self, attempt: u32) -> Option<Duration> {
        (1..self.max_attempts).contains(&attempt).then(|| self.unlimited_delay(attempt))
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "past 2^53 ms the cap decides; a value below it is positive and fits"
    )]
    fn unlimited_delay(&self, attempt: u32) -> Duration {
        let Some(cap) = self.cap else { return Duration::from_millis(millis(self.initial)) };
        let (initial, cap) = (millis(self.initial), millis(cap));
        let retries = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        // A microsecond on top absorbs the rounding of powers, which would turn 90 s into
        // 89.999 s and name another queue.
        let exact = initial as f64 * self.multiplier.powi(retries) + 0.001;
        // Not `min`: infinity times zero is not a number, and has to end at the cap as well.
        Duration::from_millis(if exact < cap as f64 { exact as u64 } else { cap })
    }

    /// Whether a message that failed in this attempt, at this age, is tried again. An unknown age
    /// counts as young.
    pub(crate) fn retries(&self, attempt: u32, age: Option<Duration>) -> bool {
        let too_old = self.age_limit().zip(age).is_some_and(|(limit, age)| age >= limit);
        attempt < self.max_attempts && !too_old
    }

    /// Whether a wait is long enough for a queue of its own.
    pub(crate) fn waits_in_broker(&self, delay: Duration) -> bool {
        !self.broker_threshold.is_zero() && !delay.is_zero() && delay >= self.broker_threshold
    }

    /// A wait in the consumer: spread by the jitter, never below a millisecond. `random` is from
    /// 0 to 1 and evenly distributed.
    pub(crate) fn jittered(&self, delay: Duration, random: f64) -> Duration {
        let factor = 1.0 + self.jitter * (2.0 * random - 1.0);
        let spread = Duration::try_from_secs_f64(delay.as_secs_f64() * factor).unwrap_or(delay);
        spread.max(Duration::from_millis(1))
    }

    /// How long a message can be on its way from its first attempt to its last, waits only.
    pub(crate) fn longest_wait(&self) -> Duration {
        let retries = self.max_attempts.saturating_sub(1);
        let last = self.unlimited_delay(retries.max(1));
        // The growing ones by themselves, unless a crawling multiplier makes millions of them.
        let growing = self.first_attempt(|delay| delay >= last).min(retries).min(1000);
        let grown: Duration = (1..growing).map(|attempt| self.unlimited_delay(attempt)).sum();
        let same = last.saturating_mul(retries.saturating_sub(growing.saturating_sub(1)));
        let waits = grown.saturating_add(same);
        self.age_limit().map_or(waits, |limit| waits.min(limit))
    }

    /// Warns where a copy can wait for its retry longer than the handled twin is remembered: it
    /// would be handled again.
    pub(crate) fn warn_of_short_memory(&self, queue: &str, retention: Option<Duration>) {
        let longest = self.longest_wait();
        if let Some(retention) = retention.filter(|retention| *retention < longest) {
            tracing::warn!(
                queue,
                ?retention,
                ?longest,
                "handled messages are forgotten sooner than the last retry of a copy: it can be handled again"
            );
        }
    }
}

/// The queues in the broker.
impl RetryPolicy {
    /// The distinct delays that wait in the broker, shortest first.
    ///
    /// Stops one after [`MOST_RUNGS`], which [`validate`](Self::validate) refuses.
    pub(crate) fn rungs(&self) -> Vec<Duration> {
        let mut rungs = Vec::new();
        let mut attempt = self.first_attempt(|delay| self.waits_in_broker(delay));
        while let Some(delay) = self.delay_after(attempt).filter(|_| rungs.len() <= MOST_RUNGS) {
            rungs.push(delay);
            attempt = self.first_attempt(|later| later > delay);
        }
        rungs
    }

    /// The first attempt after which the delay is long enough, `max_attempts` if none is. Delays
    /// never shrink, so halving finds it, also in a policy that retries four billion times.
    fn first_attempt(&self, long_enough: impl Fn(Duration) -> bool) -> u32 {
        let (mut low, mut high) = (1, self.max_attempts);
        while low < high {
            let middle = low + (high - low) / 2;
            if long_enough(self.unlimited_delay(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }

    /// The rungs of a queue, as they are declared when its consumer starts.
    pub(crate) fn topology(&self, queue: &str) -> Topology {
        standard::retry_rungs(queue, &self.rungs())
    }

    /// Warns where another member of the family would name a rung differently.
    pub(crate) fn warn_of_uneven_rungs(&self, queue: &str) {
        for delay in self.rungs().into_iter().filter(|delay| delay.subsec_nanos() != 0) {
            let rung = standard::retry_rung_name(queue, delay);
            tracing::warn!(
                queue,
                rung,
                "this wait is not a whole number of seconds: consumers in Go, Python and Ruby use a queue of another name"
            );
        }
    }
}

/// The rung for a delay: its own, else the next longer one, else the longest.
pub(crate) fn rung_for(rungs: &[Duration], delay: Duration) -> Option<Duration> {
    rungs.iter().find(|rung| **rung >= delay).or(rungs.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_without_long_waits_declares_nothing() {
        assert_eq!(RetryPolicy::default().topology("orders"), Topology::new());
        assert_eq!(RetryPolicy::none().topology("orders"), Topology::new());
    }

    #[test]
    fn powers_are_not_cut_below_a_whole_millisecond() {
        for tenths in [11, 12, 13, 17, 21, 33_u32] {
            let multiplier = f64::from(tenths) / 10.0;
            let policy = RetryPolicy::exponential(9, Duration::from_secs(1_000), Duration::MAX)
                .multiplier(multiplier);
            // With one decimal, the first three steps are whole milliseconds.
            let tenths = u64::from(tenths);
            for attempt in 1..=4 {
                let exact = 1_000_000 * tenths.pow(attempt - 1) / 10_u64.pow(attempt - 1);
                assert_eq!(policy.delay_after(attempt), Some(Duration::from_millis(exact)));
            }
        }
    }

    #[test]
    fn the_longest_wait_is_the_sum_of_all_waits_or_the_age_limit() {
        let second = Duration::from_secs(1);
        assert_eq!(RetryPolicy::none().longest_wait(), Duration::ZERO);
        assert_eq!(RetryPolicy::fixed(4, second).longest_wait(), 3 * second);
        let growing = RetryPolicy::exponential(7, second, 8 * second);
        assert_eq!(growing.longest_wait(), (1 + 2 + 4 + 8 + 8 + 8) * second);
        assert_eq!(growing.max_age(5 * second).longest_wait(), 5 * second);
        let forever = RetryPolicy::exponential(u32::MAX, second, 60 * second);
        assert!(forever.longest_wait() > Duration::from_hours(24 * 365 * 1000));
        let _ = forever.multiplier(1.000_000_1).longest_wait();
        let huge = RetryPolicy::fixed(u32::MAX, Duration::MAX);
        assert!(huge.longest_wait() > Duration::from_hours(u64::from(u32::MAX)));
    }

    #[test]
    fn a_policy_that_never_ends_is_quick_to_work_out() {
        let minute = Duration::from_mins(1);
        let forever = RetryPolicy::exponential(u32::MAX, Duration::from_millis(1), minute);
        forever.validate().unwrap();
        assert_eq!(forever.delay_after(u32::MAX - 1), Some(minute));
        assert_eq!(forever.delay_after(u32::MAX), None);
        assert_eq!(forever.rungs(), [Duration::from_millis(32_768), minute]);

        let crawling = forever.multiplier(1.000_000_1);
        let error = crawling.validate().unwrap_err().to_string();
        assert!(error.contains("multiplier") && error.contains("more than 64"), "{error}");
    }

    #[test]
    fn options_that_cannot_work_are_refused_by_name() {
        let second = Duration::from_secs(1);
        let good = || RetryPolicy::exponential(5, second, 60 * second);
        let table = [
            ("max_attempts", RetryPolicy::fixed(0, second)),
            ("max_attempts", RetryPolicy::exponential(0, second, second)),
            ("multiplier", good().multiplier(0.99)),
            ("multiplier", good().multiplier(-2.0)),
            ("multiplier", good().multiplier(f64::NAN)),
            ("multiplier", good().multiplier(f64::INFINITY)),
            ("jitter", good().jitter(-0.1)),
            ("jitter", good().jitter(1.1)),
            ("jitter", good().jitter(f64::NAN)),
            ("initial", RetryPolicy::exponential(5, Duration::ZERO, second)),
            ("initial", RetryPolicy::exponential(5, Duration::MAX, Duration::MAX)),
            ("cap", RetryPolicy::exponential(90, second, Duration::MAX)),
            ("delay", RetryPolicy::fixed(2, LONGEST_DELAY + Duration::from_millis(1))),
        ];
        for (option, policy) in table {
            match policy.validate() {
                Err(Error::InvalidOption { option: found, .. }) => assert_eq!(found, option),
                other => panic!("{option} of {policy:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn options_at_their_limits_are_taken() {
        let second = Duration::from_secs(1);
        for policy in [
            RetryPolicy::none(),
            RetryPolicy::default(),
            RetryPolicy::fixed(3, Duration::ZERO),
            RetryPolicy::fixed(u32::MAX, LONGEST_DELAY),
            RetryPolicy::exponential(5, second, Duration::MAX).jitter(1.0).max_age(Duration::MAX),
            RetryPolicy::exponential(5, second, second / 2).multiplier(1.0).jitter(0.0),
        ] {
            policy.validate().unwrap_or_else(|error| panic!("{policy:?}: {error}"));
        }
    }
}
