//! The options of a replay, and its two verbs.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    super::claim::Claims, ReplayCandidate, ReplayFilter, ReplayProgress, ReplayReport, pass::Pass,
};
use crate::{
    connection::{AceMq, Core},
    error::{Error, Result},
    idempotency::IdempotencyStore,
    message::Attempts,
    topology::{check_length, check_name, standard},
};

/// Options of a replay; see [`AceMq::replay`].
#[must_use = "a replay does nothing until `run` or `preview` is called"]
pub struct ReplayBuilder {
    plan: Plan,
    /// Behind a lock only to let a preview borrow the options; nobody waits for it.
    on_progress: Option<Mutex<OnProgress>>,
}

pub(super) type OnProgress = Box<dyn FnMut(&ReplayProgress) + Send>;
type Predicate = Box<dyn Fn(&ReplayCandidate) -> bool + Send + Sync>;

/// What to replay, and how.
pub(super) struct Plan {
    pub(super) core: Arc<Core>,
    pub(super) queue: String,
    target: Option<(String, String)>,
    filters: Vec<ReplayFilter>,
    predicates: Vec<Predicate>,
    pub(super) limit: Option<u64>,
    pub(super) within: Option<Duration>,
    pub(super) rate: Option<f64>,
    pub(super) hold_at_most: u64,
    pub(super) dry_run: bool,
    pub(super) attempts: Attempts,
    pub(super) claims: Option<Claims>,
    pub(super) even_if_done: bool,
}

impl AceMq {
    /// Starts the options of a replay of a dead-letter queue, `{queue}.dlq`, or a parked queue,
    /// `{queue}.parked`: its messages go back to `{queue}`.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Queue, Topology, consume::ReplayFilter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("orders"))).await?;
    /// // What a consumer that gave up leaves behind.
    /// mq.publisher::<u32>("", "orders.dlq").send(&42).await?;
    ///
    /// let replay = mq.replay("orders.dlq").limit(100);
    /// for candidate in replay.preview(10).await? {
    ///     println!("{} {:?}", candidate.id(), candidate.error());
    /// }
    /// let report = replay.run().await?;
    /// assert_eq!((report.moved(), report.is_drained()), (1, true));
    /// assert_eq!(mq.queue_length("orders").await?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn replay(&self, queue: impl Into<String>) -> ReplayBuilder {
        ReplayBuilder {
            plan: Plan {
                core: Arc::clone(self.core()),
                queue: queue.into(),
                target: None,
                filters: Vec::new(),
                predicates: Vec::new(),
                limit: None,
                within: None,
                rate: None,
                hold_at_most: 10_000,
                dry_run: false,
                attempts: Attempts::Reset,
                claims: None,
                even_if_done: false,
            },
            on_progress: None,
        }
    }
}

/// Options.
impl ReplayBuilder {
    /// Replays only what the filter picks. Several filters must all pick a message. Default: all.
    pub fn filter(mut self, filter: ReplayFilter) -> Self {
        self.plan.filters.push(filter);
        self
    }

    /// Replays only messages for which this returns true, beside the filters. Default: all.
    pub fn matching(
        mut self,
        picks: impl Fn(&ReplayCandidate) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.plan.predicates.push(Box::new(picks));
        self
    }

    /// Ends the replay when this many messages are moved. Default: no limit.
    pub fn limit(mut self, messages: u64) -> Self {
        self.plan.limit = Some(messages);
        self
    }

    /// Ends the replay after this time. A publish that has begun is waited for. Default: no limit.
    pub fn within(mut self, limit: Duration) -> Self {
        self.plan.within = Some(limit);
        self
    }

    /// Moves at most this many messages a second, evenly. More than 0. Default: no limit.
    pub fn rate(mut self, messages_per_second: f64) -> Self {
        self.plan.rate = Some(messages_per_second);
        self
    }

    /// Ends the replay when this many messages are held because they do not match. From 1.
    /// Default: 10,000.
    ///
    /// The broker keeps track of each message that is held, and hides it from everybody else.
    pub fn hold_at_most(mut self, messages: u64) -> Self {
        self.plan.hold_at_most = messages;
        self
    }

    /// Counts what would be moved and moves nothing. Default: moves.
    ///
    /// The idempotency store is not asked, since asking it is claiming.
    pub fn dry_run(mut self) -> Self {
        self.plan.dry_run = true;
        self
    }

    /// Keeps the attempt counter and the error of each message, so that a message that fails again
    /// has only the attempts left that it had. Default: the attempt is 1 again, and the error is
    /// cleared.
    pub fn keep_attempts(mut self) -> Self {
        self.plan.attempts = Attempts::Keep;
        self
    }

    /// Sends the messages elsewhere: to an exchange (empty for the default exchange, whose routing
    /// keys are queue names) with a routing key. Default: back to the queue that the name of the
    /// replayed queue says, without its `.dlq`, `.parked` or `.dead`.
    pub fn to(mut self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        self.plan.target = Some((exchange.into(), routing_key.into()));
        self
    }

    /// Makes sure that the idempotent consumer of this name, which is its queue's name unless it
    /// was given another, handles what is replayed and does not take it for a duplicate.
    /// Default: the store is left alone.
    ///
    /// A consumer gives its claim back before it sets a message aside, so this is needed only for
    /// messages that came here in other ways. What the store has of a message decides:
    ///
    /// - nothing, or a claim that ran out: forgotten; the message is replayed.
    /// - a live claim: the message is replayed, and the consumer waits until the claim is
    ///   confirmed or runs out, as it always does.
    /// - a confirmed claim: the message was handled, and a copy of it would be thrown away. It
    ///   keeps its place and is counted as [`already_done`](ReplayReport::already_done), unless
    ///   [`even_if_done`](Self::even_if_done) is set.
    ///
    /// A store that fails ends the replay.
    pub fn releasing(
        mut self,
        store: impl IdempotencyStore,
        consumer_name: impl Into<String>,
    ) -> Self {
        let consumer = consumer_name.into();
        self.plan.claims = Some(Claims { store: Arc::new(store), consumer });
        self
    }

    /// Has messages handled again that were handled before: their confirmed claims are forgotten
    /// and they are replayed. Needs [`releasing`](Self::releasing). Default: they keep their
    /// places.
    pub fn even_if_done(mut self) -> Self {
        self.plan.even_if_done = true;
        self
    }

    /// Calls this after each message that was looked at. It must not block.
    pub fn on_progress(mut self, call: impl FnMut(&ReplayProgress) + Send + 'static) -> Self {
        self.on_progress = Some(Mutex::new(Box::new(call)));
        self
    }
}

/// Doing it.
impl ReplayBuilder {
    /// Looks at the first messages that would be moved, at most `max`, and moves nothing.
    ///
    /// While it runs, the messages it looked at are out of sight for others; then they are back in
    /// their places. It looks past declined messages, at
    /// [`hold_at_most`](Self::hold_at_most) messages in all. The limit of messages to move, the
    /// rate and the idempotency store do not matter here. The bodies of `max` messages are held in
    /// memory. Dropping the future gives everything back.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for an option that cannot work, by its name.
    /// - [`Error::NotFound`] if the queue does not exist.
    /// - [`Error::Disconnected`] and [`Error::Interrupted`] if the connection is down or lost.
    /// - [`Error::Closed`] after [`AceMq::close`].
    pub async fn preview(&self, max: usize) -> Result<Vec<ReplayCandidate>> {
        self.plan.check()?;
        Pass::open(&self.plan).await?.preview(max).await
    }

    /// Moves messages one by one: publishes a copy, confirmed and mandatory, and then acknowledges
    /// the original. Ends at the first failure, and reports how many were moved by then.
    ///
    /// The copy has the body, id, headers and properties of the original and says in its
    /// [`ReplayStamp`](crate::ReplayStamp) where it came from; it is persistent. Not kept are
    /// headers that the broker owns and, because they would make the broker drop or refuse the
    /// copy, the properties `expiration` and `user_id`.
    ///
    /// Dropping the future ends the replay between two steps: each message is then where it was
    /// or where it should go; the one in work may be in both places, with the same id. So it is
    /// when the connection is lost.
    ///
    /// # Errors
    ///
    /// If nothing was begun; after that, failures are in the report.
    ///
    /// - [`Error::InvalidOption`] for an option that cannot work, by its name, and for a target
    ///   that is the replayed queue itself.
    /// - [`Error::NotFound`] if the queue does not exist.
    /// - [`Error::Disconnected`] if there is no connection in time.
    /// - [`Error::Closed`] after [`AceMq::close`].
    pub async fn run(self) -> Result<ReplayReport> {
        let Self { plan, on_progress } = self;
        plan.check()?;
        let target = plan.target()?;
        let on_progress =
            on_progress.map(|call| call.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(Pass::open(&plan).await?.run(&target, on_progress).await)
    }
}

impl Plan {
    pub(super) fn picks(&self, candidate: &ReplayCandidate) -> bool {
        self.filters.iter().all(|filter| filter.picks(candidate))
            && self.predicates.iter().all(|picks| picks(candidate))
    }

    fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        if let Some(rate) = self.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(Error::invalid("rate", rate, "is not a number above 0"));
        }
        if self.hold_at_most == 0 {
            return Err(Error::invalid("hold_at_most", 0, "looks at nothing; use 1 or more"));
        }
        if let Some(claims) = &self.claims {
            check_name("consumer_name", &claims.consumer)?;
        } else if self.even_if_done {
            return Err(Error::invalid("even_if_done", true, "needs `releasing`"));
        }
        Ok(())
    }

    /// Where the messages go: exchange and routing key.
    fn target(&self) -> Result<(String, String)> {
        let Some((exchange, routing_key)) = &self.target else {
            let source = standard::source_queue_name(&self.queue).ok_or_else(|| {
                let reason = "ends with none of .dlq, .parked and .dead; say where to with `to`";
                Error::invalid("queue", &self.queue, reason)
            })?;
            return Ok((String::new(), source.to_owned()));
        };
        check_length("exchange", exchange)?;
        check_length("routing_key", routing_key)?;
        // Every set-aside queue is bound to the dead-letter exchange by its own name.
        let leads_back = ["", standard::DEAD_LETTER_EXCHANGE].contains(&exchange.as_str());
        if leads_back && *routing_key == self.queue {
            return Err(Error::invalid("to", routing_key, "is the queue that is replayed"));
        }
        Ok((exchange.clone(), routing_key.clone()))
    }
}

impl fmt::Debug for ReplayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBuilder")
            .field("queue", &self.plan.queue)
            .field("to", &self.plan.target)
            .field("filters", &self.plan.filters)
            .field("limit", &self.plan.limit)
            .field("dry_run", &self.plan.dry_run)
            .finish_non_exhaustive()
    }
}
