//! The unit of work that a handler owns and has to commit.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    consume::HandlerError,
    error::Result,
    message::{Envelope, Message},
    store::{Database, OwnedTransaction, commit},
};

/// A message together with the transaction in which it is handled.
///
/// The message counts as handled, and everything that was written through [`tx`](Self::tx) takes
/// effect, when [`commit`](Self::commit) succeeds. Dropping the work rolls everything back.
pub struct Work<T, D: Database> {
    message: Message<T>,
    lease: Lease<D>,
}

/// What a handler of units of work returns.
pub type WorkResult = Result<Receipt, HandlerError>;

/// The proof that a unit of work was committed; only [`Work::commit`] makes one.
#[derive(Debug)]
#[must_use = "a handler returns the receipt"]
pub struct Receipt {
    /// The unit of work that was committed, told apart by its address.
    pub(super) of: Arc<()>,
}

/// Handles messages of type `T` in transactions of database `D`.
///
/// Every `Fn(Work<T, D>) -> impl Future<Output = WorkResult>` is one.
pub trait WorkHandler<T, D: Database>: Send + Sync + 'static {
    /// Handles one message and commits its work.
    fn handle(&self, work: Work<T, D>) -> impl Future<Output = WorkResult> + Send;
}

impl<T, D, F, Fut> WorkHandler<T, D> for F
where
    T: Send + 'static,
    D: Database,
    F: Fn(Work<T, D>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = WorkResult> + Send,
{
    fn handle(&self, work: Work<T, D>) -> impl Future<Output = WorkResult> + Send {
        self(work)
    }
}

impl<T, D: Database> Work<T, D> {
    pub(super) fn new(message: Message<T>, lease: Lease<D>) -> Self {
        Self { message, lease }
    }

    /// Returns the transaction, for the application's statements and its outbox records.
    pub fn tx(&mut self) -> &mut OwnedTransaction<D> {
        self.lease.transaction()
    }

    /// Returns the decoded payload.
    #[must_use]
    pub fn payload(&self) -> &T {
        self.message.payload()
    }

    /// Returns the transaction and the payload, where a statement needs both.
    pub fn parts(&mut self) -> (&mut OwnedTransaction<D>, &Message<T>) {
        (self.lease.transaction(), &self.message)
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &Message<T> {
        &self.message
    }

    /// Returns the envelope; `work.envelope().causing("..")` is the start of an outgoing one.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        self.message.envelope()
    }

    /// Commits what was written and the note that the message was handled.
    ///
    /// In a batch the work is kept behind its savepoint and commits with the batch; the message is
    /// acknowledged after that. Dropping the future rolls back, unless the database had committed
    /// already: the next delivery finds out.
    ///
    /// # Errors
    ///
    /// [`Error::Store`](crate::Error::Store) if the database refuses or is gone. Whether the commit
    /// took effect is then open; returning the error retries the message, which finds out.
    pub async fn commit(self) -> Result<Receipt> {
        self.lease.commit().await
    }
}

impl<T: fmt::Debug, D: Database> fmt::Debug for Work<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("message", &self.message).finish_non_exhaustive()
    }
}

/// A transaction on loan to a handler.
pub(super) struct Lease<D: Database> {
    /// Present until the commit takes it or the drop gives it back.
    transaction: Option<OwnedTransaction<D>>,
    /// Where the transaction of a batch goes back to.
    batch: Option<Home<D>>,
    unit: Arc<()>,
}

/// The place that a batch's transaction comes back to.
pub(super) type Home<D> = Arc<Mutex<Option<OwnedTransaction<D>>>>;

impl<D: Database> Lease<D> {
    /// Lends a transaction of its own.
    pub(super) fn alone(transaction: OwnedTransaction<D>) -> Self {
        Self { transaction: Some(transaction), batch: None, unit: Arc::default() }
    }

    /// Lends a batch's transaction, which stands behind a savepoint, and returns where it will be.
    pub(super) fn of_batch(transaction: OwnedTransaction<D>) -> (Self, Home<D>) {
        let home = Home::<D>::default();
        let batch = Some(Arc::clone(&home));
        (Self { transaction: Some(transaction), batch, unit: Arc::default() }, home)
    }

    /// What a receipt of this loan points to.
    pub(super) fn unit(&self) -> Arc<()> {
        Arc::clone(&self.unit)
    }

    fn transaction(&mut self) -> &mut OwnedTransaction<D> {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => {
                unreachable!("only `commit` and `drop` take the transaction, and both end the loan")
            }
        }
    }

    async fn commit(mut self) -> Result<Receipt> {
        let of = self.unit();
        // In a batch the drop brings the transaction home, and the batch commits it.
        if self.batch.is_none()
            && let Some(transaction) = self.transaction.take()
        {
            commit(transaction).await?;
        }
        Ok(Receipt { of })
    }
}

impl<D: Database> Drop for Lease<D> {
    fn drop(&mut self) {
        if let Some(home) = &self.batch {
            *home.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
        }
    }
}
