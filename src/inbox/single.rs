//! One transaction for each message.

use std::{marker::PhantomData, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use super::{
    Inbox,
    work::{Lease, Work, WorkHandler, WorkResult},
};
use crate::{
    consume::{
        HandlerError, Handling, IdentityCheck, Outcome, Process, catching_panics, decode, insist,
    },
    idempotency::Claim,
    message::{Decoder, Message, Received},
    store::{OwnedTransaction, begun},
    telemetry::on_behalf_of,
};

/// A handler of units of work, and what it takes to give it one.
pub(super) struct Transactional<T, I, H> {
    pub(super) inbox: I,
    pub(super) consumer: String,
    pub(super) decoder: Arc<dyn Decoder<T>>,
    pub(super) handler: H,
    pub(super) stop: CancellationToken,
    pub(super) identity: IdentityCheck,
    pub(super) payload: PhantomData<fn() -> T>,
}

impl<T, I, H> Transactional<T, I, H>
where
    T: Send + 'static,
    I: Inbox,
    H: WorkHandler<T, I::Database>,
{
    /// Begins a transaction, asking until the database answers; none if the consumer stops.
    pub(super) async fn begin(&self) -> Option<OwnedTransaction<I::Database>> {
        let begin = || {
            async {
                let mut transaction = self.inbox.begin().await?;
                begun(&mut transaction).await?;
                Ok(transaction)
            }
            .boxed()
        };
        insist("begin a transaction", &self.stop, begin).await
    }

    /// Notes the message in the transaction; one without an id cannot be noted and is new.
    pub(super) async fn claim(
        &self,
        transaction: &mut OwnedTransaction<I::Database>,
        received: &Received,
    ) -> crate::Result<Claim> {
        if !self.identity.of(received) {
            return Ok(Claim::Claimed(uuid::Uuid::nil()));
        }
        self.inbox.claim(transaction, &self.consumer, received.envelope.id()).await
    }

    /// Decodes and runs the handler on a loan of the transaction.
    pub(super) async fn work(&self, received: Arc<Received>, lease: Lease<I::Database>) -> Outcome {
        let working = async {
            let payload = match decode(&*self.decoder, &received) {
                Ok(payload) => payload,
                Err(undecodable) => return undecodable,
            };
            let unit = lease.unit();
            let work = Work::new(Message::new(payload, Arc::clone(&received)), lease);
            outcome(self.handler.handle(work).await, &unit)
        };
        // Here too, since a lane of batches is a task of its own.
        on_behalf_of(&received, catching_panics(working)).await
    }

    /// Handles a message in a transaction of its own.
    pub(super) async fn alone(&self, received: Arc<Received>) -> Handling {
        loop {
            let Some(mut transaction) = self.begin().await else { return Handling::Stopped };
            match self.claim(&mut transaction, &received).await {
                Ok(Claim::Claimed(_)) => {
                    return Handling::Done(self.work(received, Lease::alone(transaction)).await);
                }
                Ok(Claim::AlreadyConfirmed) => return Handling::Duplicate,
                Ok(Claim::InProgress) => return Handling::InProgress,
                // A deadlock or a lost connection: nothing was done, so begin again.
                Err(error) => {
                    tracing::warn!(%error, "cannot note a message as handled; beginning again");
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN_AFTER) => {}
                        () = self.stop.cancelled() => return Handling::Stopped,
                    }
                }
            }
        }
    }
}

/// The pause after a transaction that failed before the handler ran.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(100);

/// A receipt of another unit of work proves nothing about this one.
fn outcome(answer: WorkResult, unit: &Arc<()>) -> Outcome {
    match answer {
        Ok(receipt) if Arc::ptr_eq(&receipt.of, unit) => Outcome::Ack,
        Ok(_) => HandlerError::reject("the handler returned the receipt of another message")
            .into_outcome(),
        Err(error) => error.into_outcome(),
    }
}

impl<T, I, H> Process for Transactional<T, I, H>
where
    T: Send + 'static,
    I: Inbox,
    H: WorkHandler<T, I::Database>,
{
    fn process(&self, received: Arc<Received>) -> BoxFuture<'_, Handling> {
        self.alone(received).boxed()
    }
}
