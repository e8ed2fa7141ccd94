//! Which answer belongs to which publish.
//!
//! lapin keeps returned messages in one queue and hands the oldest to whichever publish resolves
//! next, so with many publishes in flight a return sits on somebody else's confirm. What does
//! hold, and what this module builds on:
//!
//! 1. The broker returns messages in the order in which they were published.
//! 2. A return is queued before its own message is confirmed.
//! 3. Each resolving publish takes the oldest queued return, or nothing if there is none.
//!
//! So when publish X resolves and took *nothing*, no return is queued: X's own, if there is one,
//! was taken by a publish that resolved earlier. When it took the return of a *later* publish, the
//! same holds, because X's own would have been in front of it. Only when it took the return of an
//! *earlier* publish may its own still be queued; X then waits until a later return, an empty
//! queue, or the end of everything in flight shows that it is not.
//!
//! Publishes are numbered by the order in which they were sent. Nothing here knows lapin or does
//! I/O, so the rules are tested against a model of lapin's queue.

use std::collections::{BTreeMap, HashMap};

/// How the broker answered, as the resolving publish carries it.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Confirmed (or refused) by the broker.
    pub(super) acked: bool,
    /// The return that this publish took from the queue, of any message.
    pub(super) carried: Option<Returned>,
}

/// A returned message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Returned {
    pub(super) message_id: String,
    pub(super) reason: String,
}

/// The answer to one publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Acked,
    Nacked,
    Returned(String),
}

/// The publishes in flight on one channel.
#[derive(Debug)]
pub(super) struct Confirms<T> {
    next: u64,
    in_flight: BTreeMap<u64, InFlight<T>>,
    /// The message ids in flight; each at most once.
    ids: HashMap<String, u64>,
    /// Publishes that resolved and wait for their verdict.
    undecided: Vec<u64>,
    /// The latest publish whose return was taken by anybody.
    last_returned: Option<u64>,
    /// Counts the batches in which resolved publishes are handed in.
    batch: u64,
    /// The last batch in which a publish found no return queued.
    queue_empty_in: Option<u64>,
}

#[derive(Debug)]
struct InFlight<T> {
    message_id: String,
    ticket: T,
    returned: Option<String>,
    resolved: Option<Outcome>,
}

#[derive(Debug, Clone, Copy)]
struct Outcome {
    acked: bool,
    took: Took,
    batch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Took {
    Nothing,
    ReturnOf(u64),
    /// A return without a known message; treated as an earlier one.
    Unknown,
}

impl<T> Confirms<T> {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            in_flight: BTreeMap::new(),
            ids: HashMap::new(),
            undecided: Vec::new(),
            last_returned: None,
            batch: 0,
            queue_empty_in: None,
        }
    }

    /// Whether a message of this id is in flight: another one could not be told apart from it.
    pub(super) fn contains(&self, message_id: &str) -> bool {
        self.ids.contains_key(message_id)
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Notes a publish that is about to be sent, and returns its number.
    pub(super) fn sent(&mut self, message_id: &str, ticket: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.ids.insert(message_id.to_owned(), number);
        let message_id = message_id.to_owned();
        self.in_flight
            .insert(number, InFlight { message_id, ticket, returned: None, resolved: None });
        number
    }

    /// Notes the answer that resolved publish `number`.
    pub(super) fn resolved(&mut self, number: u64, answer: Resolved) {
        let took = match answer.carried {
            None => Took::Nothing,
            Some(returned) => self.file(returned),
        };
        if let Some(publish) = self.in_flight.get_mut(&number) {
            publish.resolved = Some(Outcome { acked: answer.acked, took, batch: self.batch });
            self.undecided.push(number);
        }
    }

    fn file(&mut self, returned: Returned) -> Took {
        let Some(&number) = self.ids.get(&returned.message_id) else { return Took::Unknown };
        if let Some(publish) = self.in_flight.get_mut(&number) {
            publish.returned = Some(returned.reason);
        }
        self.last_returned = self.last_returned.max(Some(number));
        Took::ReturnOf(number)
    }

    /// Decides what can be decided, after everything that has resolved by now was handed in.
    pub(super) fn decide(&mut self) -> Vec<(T, Verdict)> {
        if self.undecided.iter().any(|number| self.took_nothing(*number)) {
            self.queue_empty_in = Some(self.batch);
        }
        let all_resolved = self.undecided.len() == self.in_flight.len();
        let (decided, waiting) = std::mem::take(&mut self.undecided)
            .into_iter()
            .partition(|number| all_resolved || self.is_decidable(*number));
        self.undecided = waiting;
        self.batch += 1;
        decided.into_iter().filter_map(|number: u64| self.settle(number)).collect()
    }

    fn took_nothing(&self, number: u64) -> bool {
        self.outcome(number)
            .is_some_and(|outcome| outcome.took == Took::Nothing && outcome.batch == self.batch)
    }

    fn outcome(&self, number: u64) -> Option<Outcome> {
        self.in_flight.get(&number)?.resolved
    }

    fn is_decidable(&self, number: u64) -> bool {
        let Some(publish) = self.in_flight.get(&number) else { return false };
        let Some(outcome) = publish.resolved else { return false };
        publish.returned.is_some()
            || outcome.took == Took::Nothing
            || self.last_returned > Some(number)
            // Within one batch the order of resolving is not known, so only a later one tells.
            || self.queue_empty_in > Some(outcome.batch)
    }

    fn settle(&mut self, number: u64) -> Option<(T, Verdict)> {
        let publish = self.in_flight.remove(&number)?;
        self.ids.remove(&publish.message_id);
        let verdict = match (publish.returned, publish.resolved?.acked) {
            (Some(reason), _) => Verdict::Returned(reason),
            (None, true) => Verdict::Acked,
            (None, false) => Verdict::Nacked,
        };
        Some((publish.ticket, verdict))
    }

    /// Gives up on everything in flight, in the order in which it was sent.
    pub(super) fn into_tickets(self) -> impl Iterator<Item = T> {
        self.in_flight.into_values().map(|publish| publish.ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// lapin's side: one queue of returns, the oldest goes to whoever resolves next.
    #[derive(Default)]
    struct Lapin {
        returns: VecDeque<u64>,
    }

    impl Lapin {
        fn resolve(&mut self, confirms: &mut Confirms<u64>, number: u64) {
            let carried = self.returns.pop_front().map(|returned| Returned {
                message_id: returned.to_string(),
                reason: "NO_ROUTE".into(),
            });
            confirms.resolved(number, Resolved { acked: true, carried });
        }
    }

    fn check(decided: Vec<(u64, Verdict)>, unroutable: &[bool], done: &mut usize) {
        for (number, verdict) in decided {
            let expected = if unroutable[usize::try_from(number).unwrap()] {
                Verdict::Returned("NO_ROUTE".into())
            } else {
                Verdict::Acked
            };
            assert_eq!(verdict, expected, "publish {number}");
            *done += 1;
        }
    }

    proptest! {
        /// The broker returns in order and confirms in any order after that, many at once; the
        /// collector wakes at any moment, even inside a multiple confirm.
        #[test]
        fn each_return_ends_at_its_own_publish(
            unroutable in prop::collection::vec(any::<bool>(), 1..40),
            seed in any::<u64>(),
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut lapin, mut confirms) = (Lapin::default(), Confirms::new());
            for number in 0..unroutable.len() as u64 {
                confirms.sent(&number.to_string(), number);
            }
            let (mut processed, mut done) = (0, 0);
            let mut confirmable: Vec<u64> = Vec::new();
            while processed < unroutable.len() || !confirmable.is_empty() {
                if processed < unroutable.len() && random.bool() {
                    if unroutable[processed] {
                        lapin.returns.push_back(processed as u64);
                    }
                    confirmable.push(processed as u64);
                    processed += 1;
                } else if !confirmable.is_empty() {
                    let number = confirmable.swap_remove(random.usize(..confirmable.len()));
                    lapin.resolve(&mut confirms, number);
                }
                if random.u8(..4) == 0 {
                    check(confirms.decide(), &unroutable, &mut done);
                }
            }
            check(confirms.decide(), &unroutable, &mut done);
            prop_assert_eq!(done, unroutable.len());
            prop_assert_eq!(confirms.len(), 0);
        }
    }
}
