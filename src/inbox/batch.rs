//! Messages that share a transaction, each behind a savepoint of its own.

use std::sync::{Arc, PoisonError};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{
    Inbox,
    savepoint::Savepoint,
    single::Transactional,
    work::{Lease, WorkHandler},
};
use crate::{
    consume::{Handling, Outcome, Process},
    error::{Result, with_causes},
    idempotency::Claim,
    message::Received,
    store::{OwnedTransaction, commit},
};

/// A message that waits to be worked on.
struct Job {
    received: Arc<Received>,
    answer: oneshot::Sender<Handling>,
}

/// Hands messages to the lanes, each of which works on one batch at a time.
pub(super) struct Batched {
    jobs: mpsc::UnboundedSender<Job>,
}

impl Batched {
    /// Starts the lanes. They end when this is dropped and everything handed in is answered.
    pub(super) fn start<T, I, H>(work: Transactional<T, I, H>, size: usize, lanes: usize) -> Self
    where
        T: Send + 'static,
        I: Inbox,
        H: WorkHandler<T, I::Database>,
    {
        // Bounded by the consumer's concurrency: each delivery has one job at most.
        let (jobs, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let work = Arc::new(work);
        for _ in 0..lanes {
            let lane = Lane { work: Arc::clone(&work), waiting: Arc::clone(&waiting), size };
            tokio::spawn(lane.run());
        }
        Self { jobs }
    }
}

impl Process for Batched {
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        let (answer, answered) = oneshot::channel();
        let sent = self.jobs.send(Job { received, answer });
        async move {
            match sent {
                Ok(()) => answered.await.unwrap_or(Handling::Stopped),
                Err(_) => Handling::Stopped,
            }
        }
        .boxed()
    }
}

struct Lane<T, I, H> {
    work: Arc<Transactional<T, I, H>>,
    waiting: Arc<Mutex<mpsc::UnboundedReceiver<Job>>>,
    size: usize,
}

impl<T, I, H> Lane<T, I, H>
where
    T: Send + 'static,
    I: Inbox,
    H: WorkHandler<T, I::Database>,
{
    async fn run(self) {
        loop {
            let mut jobs = Vec::with_capacity(self.size);
            // Whatever waits by now: while one batch is worked on, the next one gathers.
            if self.waiting.lock().await.recv_many(&mut jobs, self.size).await == 0 {
                return;
            }
            if jobs.len() == 1 {
                self.alone(jobs).await;
            } else {
                self.together(jobs).await;
            }
        }
    }

    async fn alone(&self, jobs: Vec<Job>) {
        for Job { received, answer } in jobs {
            // An answer that nobody waits for any more is of no interest.
            let _ = answer.send(self.work.alone(received).await);
        }
    }

    /// Works on a batch in one transaction. If that breaks, each message is handled by itself:
    /// the notes of handled messages tell what had taken effect.
    async fn together(&self, jobs: Vec<Job>) {
        let Some(mut transaction) = self.work.begin().await else { return };
        let mut savepoint = Savepoint::default();
        let mut kept = Vec::with_capacity(jobs.len());
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            match self.one(transaction, &mut savepoint, &job).await {
                Ok((back, handling)) => {
                    transaction = back;
                    match handling {
                        // Both hold only once the batch has committed.
                        Handling::Done(Outcome::Ack) | Handling::Duplicate => {
                            kept.push((job, handling));
                        }
                        rolled_back => drop(job.answer.send(rolled_back)),
                    }
                }
                Err(error) => {
                    let error = error.as_ref().map(|error| with_causes(error));
                    tracing::warn!(error, "a batch broke off; handling its messages one by one");
                    let unsettled = kept.into_iter().map(|(job, _)| job).chain([job]).chain(jobs);
                    return self.alone(unsettled.collect()).await;
                }
            }
        }
        match commit(transaction).await {
            Ok(()) => {
                for (job, handling) in kept {
                    let _ = job.answer.send(handling);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a batch did not commit; handling its messages one by one");
                self.alone(kept.into_iter().map(|(job, _)| job).collect()).await;
            }
        }
    }

    /// Works on one message behind a savepoint and returns the transaction.
    ///
    /// An error means that the transaction is of no more use; without one inside, the handler kept
    /// it.
    async fn one(
        &self,
        mut transaction: OwnedTransaction<I::Database>,
        savepoint: &mut Savepoint,
        job: &Job,
    ) -> Result<(OwnedTransaction<I::Database>, Handling), Option<crate::Error>> {
        savepoint.set::<I::Database>(&mut transaction).await?;
        let handling = match self.work.claim(&mut transaction, &job.received).await? {
            Claim::AlreadyConfirmed => Handling::Duplicate,
            Claim::InProgress => Handling::InProgress,
            Claim::Claimed(_) => {
                let (lease, home) = Lease::of_batch(transaction);
                let outcome = self.work.work(Arc::clone(&job.received), lease).await;
                let back = home.lock().unwrap_or_else(PoisonError::into_inner).take();
                transaction = back.ok_or(None)?;
                Handling::Done(outcome)
            }
        };
        if !matches!(handling, Handling::Done(Outcome::Ack)) {
            savepoint.roll_back::<I::Database>(&mut transaction).await?;
        }
        Ok((transaction, handling))
    }
}
