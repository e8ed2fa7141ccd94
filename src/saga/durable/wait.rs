//! The steps that only a durable saga has: they wait, or commit with the journal.

use std::{any::Any, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;

use super::journal::SagaJournal;
use crate::{
    error::BoxError,
    saga::{
        definition::{Compensated, InMemory, SagaBuilder, Stepped},
        error::StepError,
        step::{Form, Step, UndoForm, Update},
    },
    store::OwnedTransaction,
};

/// Work in a transaction, which is the journal's: the builder's type says so.
pub(in crate::saga) type TransactionalWork<T> = Box<
    dyn for<'t> Fn(T, &'t mut (dyn Any + Send)) -> BoxFuture<'t, Result<Update<T>, StepError>>
        + Send
        + Sync,
>;

/// What a step waits for.
pub(in crate::saga) enum Wait<T> {
    For(Duration),
    Until(Box<TimeOf<T>>),
    Answer { within: Duration, apply: Arc<ApplyAnswer<T>>, check: fn(&str) -> Result<(), BoxError> },
}

/// Reads a time from the state.
pub(in crate::saga) type TimeOf<T> = dyn Fn(&T) -> DateTime<Utc> + Send + Sync;

/// Writes an answer, as JSON, into the state.
pub(in crate::saga) type ApplyAnswer<T> = dyn Fn(T, &str) -> Result<T, StepError> + Send + Sync;

fn parse<P: DeserializeOwned>(json: &str) -> Result<P, BoxError> {
    Ok(serde_json::from_str(json)?)
}

/// The transaction behind the erased type.
fn transaction<J: SagaJournal>(
    erased: &mut (dyn Any + Send),
) -> Result<&mut OwnedTransaction<J::Database>, StepError> {
    erased.downcast_mut().ok_or_else(|| StepError::fatal("a transaction of another database"))
}

impl<T: Clone + Send + Sync + 'static, Last> SagaBuilder<T, Last, InMemory> {
    /// Remembers each run in a journal, so that another process goes on where one has died.
    ///
    /// What makes a saga [durable](super::DurableSaga): the state must be something that serde
    /// writes as JSON and reads again.
    pub fn durable<J: SagaJournal>(self, journal: J) -> SagaBuilder<T, Last, J> {
        self.remembered_in(|InMemory| journal)
    }
}

/// What a durable saga offers beside the others.
impl<T: Clone + Send + Sync + 'static, Last, J: SagaJournal> SagaBuilder<T, Last, J> {
    /// Sets the version of the definition. Default: 1.
    ///
    /// A definition goes on with runs of its own version only. Change the version whenever steps are
    /// added, removed, renamed or reordered, or the state's form changes, and keep the old definition
    /// at work beside the new one until its runs have ended.
    pub fn version(mut self, version: u32) -> Self {
        self.remembering.version = version;
        self
    }

    /// Sets how long a run belongs to a process that says nothing. Default: 30 s; at least 100 ms.
    ///
    /// After a crash its runs are taken over once the lease has ended. A step may take longer: the
    /// lease is renewed meanwhile.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.remembering.lease = lease;
        self
    }

    /// Adds a step that works in the transaction in which its end is recorded: what it writes is
    /// there exactly once, and it is never in doubt.
    ///
    /// This is where outbox records are added. The step returns the changed state. It must not
    /// commit or roll back; an error does the latter. Effects outside the database do not belong
    /// here, and a connection is held for as long as it takes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use acemq::{OutboxRecord, Saga, SqliteOutbox, SqliteSagaJournal, StepError};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)] struct Order { id: u32 }
    /// # fn example(outbox: SqliteOutbox, journal: SqliteSagaJournal) -> acemq::Result<()> {
    /// let saga = Saga::<Order>::named("fulfil-order")
    ///     .durable(journal)
    ///     .step_in_transaction("book-courier", move |order: Order, tx| {
    ///         let outbox = outbox.clone();
    ///         Box::pin(async move {
    ///             let record = OutboxRecord::json("couriers", "courier.book", &order)?;
    ///             outbox.add(tx, record).await?;
    ///             Ok::<_, StepError>(order)
    ///         })
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_in_transaction<F, E>(
        mut self,
        name: impl Into<String>,
        work: F,
    ) -> SagaBuilder<T, Stepped, J>
    where
        F: for<'t> Fn(T, &'t mut OwnedTransaction<J::Database>) -> BoxFuture<'t, Result<T, E>>
            + Send
            + Sync
            + 'static,
        E: Into<StepError> + 'static,
    {
        let work: TransactionalWork<T> = Box::new(move |state, erased| {
            let work = transaction::<J>(erased).map(|tx| work(state, tx));
            async move {
                let new = work?.await.map_err(Into::into)?;
                Ok(Box::new(move |state: &mut T| *state = new) as Update<T>)
            }
            .boxed()
        });
        self.push(Step::of(name.into(), Form::Transactional(work)));
        self.turned()
    }

    /// Adds a step that lets this much time pass. No task waits meanwhile, and no process need live.
    pub fn wait(mut self, name: impl Into<String>, time: Duration) -> SagaBuilder<T, Stepped, J> {
        self.push(Step::of(name.into(), Form::Wait(Wait::For(time))));
        self.turned()
    }

    /// Adds a step that ends at a time, which it reads from the state; one in the past ends at once.
    pub fn wait_until(
        mut self,
        name: impl Into<String>,
        time: impl Fn(&T) -> DateTime<Utc> + Send + Sync + 'static,
    ) -> SagaBuilder<T, Stepped, J> {
        self.push(Step::of(name.into(), Form::Wait(Wait::Until(Box::new(time)))));
        self.turned()
    }

    /// Adds a step that ends when an answer of its name comes by
    /// [`signal`](super::DurableSaga::signal), and fails if none comes in time.
    ///
    /// The answer is written into the state by `apply`; an error there fails the step. An answer
    /// that comes before the run has got here is kept. One that does not come in time is a failure
    /// with an unknown outcome: whoever was asked may have done it all the same.
    pub fn wait_for<P, E>(
        mut self,
        name: impl Into<String>,
        within: Duration,
        apply: impl Fn(T, P) -> Result<T, E> + Send + Sync + 'static,
    ) -> SagaBuilder<T, Stepped, J>
    where
        P: DeserializeOwned,
        E: Into<StepError>,
    {
        let apply = move |state: T, json: &str| {
            let answer = parse::<P>(json).map_err(StepError::fatal)?;
            apply(state, answer).map_err(Into::into)
        };
        let check = |json: &str| parse::<P>(json).map(drop);
        let wait = Wait::Answer { within, apply: Arc::new(apply), check };
        self.push(Step::of(name.into(), Form::Wait(wait)));
        self.turned()
    }
}

impl<T: Clone + Send + Sync + 'static, J: SagaJournal> SagaBuilder<T, Stepped, J> {
    /// Sets what undoes the step, in the transaction in which its end is recorded: what it writes,
    /// such as an outbox record, is there exactly once.
    pub fn compensate_in_transaction<F, E>(mut self, undo: F) -> SagaBuilder<T, Compensated, J>
    where
        F: for<'t> Fn(T, &'t mut OwnedTransaction<J::Database>) -> BoxFuture<'t, Result<(), E>>
            + Send
            + Sync
            + 'static,
        E: Into<StepError> + 'static,
    {
        let undo: TransactionalWork<T> = Box::new(move |state, erased| {
            let undo = transaction::<J>(erased).map(|tx| undo(state, tx));
            async move {
                undo?.await.map_err(Into::into)?;
                Ok(Box::new(|_: &mut T| {}) as Update<T>)
            }
            .boxed()
        });
        self.last_step(|step| step.undo = Some(UndoForm::Transactional(undo)));
        self.turned()
    }
}
