//! What requesters and responders count.

use crate::consume::Counter;

/// Counts since a requester was made.
///
/// Each call ends exactly once: as `answered`, `timed_out`, `failed` or `cancelled`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RequesterStats {
    /// Calls that got an answer.
    pub answered: u64,
    /// Calls that nobody answered in time.
    pub timed_out: u64,
    /// Calls that ended with another error, a responder's failure included.
    pub failed: u64,
    /// Calls whose future was dropped before they ended.
    pub cancelled: u64,
    /// Replies that no call waited for: late ones, repeated ones, strangers. They are dropped.
    pub unmatched: u64,
    /// Calls that wait for an answer now.
    pub in_flight: u64,
}

/// The live counters behind [`RequesterStats`].
#[derive(Debug, Default)]
pub(super) struct RequesterCounters {
    pub(super) answered: Counter,
    pub(super) timed_out: Counter,
    pub(super) failed: Counter,
    pub(super) cancelled: Counter,
    pub(super) unmatched: Counter,
}

impl RequesterCounters {
    pub(super) fn snapshot(&self, in_flight: usize) -> RequesterStats {
        RequesterStats {
            answered: self.answered.get(),
            timed_out: self.timed_out.get(),
            failed: self.failed.get(),
            cancelled: self.cancelled.get(),
            unmatched: self.unmatched.get(),
            in_flight: in_flight as u64,
        }
    }
}

macro_rules! responder_counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since a responder was started.
        ///
        /// A request that comes again, after a loss or for a retry, counts again.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct ResponderStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind [`ResponderStats`].
        #[derive(Debug, Default)]
        pub(super) struct ResponderCounters {
            $(pub(super) $name: Counter,)*
        }

        impl ResponderCounters {
            pub(super) fn snapshot(&self) -> ResponderStats {
                ResponderStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

responder_counters!(
    /// Answers that are in their reply queue.
    answered,
    /// Requests whose handler failed or panicked, or whose answer could not be encoded or sent.
    failed,
    /// Requests whose body could not be decoded.
    undecodable,
    /// Requests without a reply address. They are dead-lettered without running the handler.
    unanswerable,
    /// Requests whose caller had stopped waiting. They are dropped without running the handler.
    expired,
    /// Replies, error replies included, that were returned: the reply queue is gone.
    requester_gone,
    /// Replies that could not be published. Their requests are tried again.
    reply_failed,
);
