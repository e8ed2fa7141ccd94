//! One step: its work, its compensation, and how both are tried.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
use super::durable::{TransactionalWork, Wait};
use super::error::StepError;
use crate::consume::RetryPolicy;

/// What a step did to the state.
pub(super) type Update<T> = Box<dyn FnOnce(&mut T) + Send>;

type Work<T> = Box<dyn Fn(T) -> BoxFuture<'static, Result<Update<T>, StepError>> + Send + Sync>;
type Undo<T> = Box<dyn Fn(T) -> BoxFuture<'static, Result<(), StepError>> + Send + Sync>;

/// The kind of a step that gives the state back changed.
#[derive(Debug)]
pub enum Changes {}

/// The kind of a step that only looks at the state.
#[derive(Debug)]
pub enum Looks {}

/// The kind of a step that returns a change, so that steps may run side by side.
#[derive(Debug)]
pub enum Updates {}

/// The work of a step: an async function of the state.
///
/// It returns the changed state (`Ok(order)`), nothing where it only looks (`Ok(())`), or, which
/// parallel steps need, a change (`Ok(move |order: &mut Order| order.paid = true)`). The kind is
/// inferred.
pub trait StepFn<T, Kind>: Send + Sync + 'static {
    #[doc(hidden)]
    fn into_work(self) -> BoxedWork<T>;
}

/// The work of a step, whatever it returns.
#[doc(hidden)]
pub struct BoxedWork<T>(Work<T>);

impl<T> fmt::Debug for BoxedWork<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxedWork")
    }
}

impl<T> BoxedWork<T> {
    fn of<Fut, A, E>(
        work: impl Fn(T) -> Fut + Send + Sync + 'static,
        update: impl Fn(A) -> Update<T> + Send + Sync + Copy + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<A, E>> + Send + 'static,
        E: Into<StepError>,
    {
        Self(Box::new(move |state| {
            work(state).map(move |answer| answer.map(update).map_err(Into::into)).boxed()
        }))
    }
}

impl<T, F, Fut, E> StepFn<T, Changes> for F
where
    T: Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    E: Into<StepError>,
{
    fn into_work(self) -> BoxedWork<T> {
        BoxedWork::of(self, |new| Box::new(move |state: &mut T| *state = new) as Update<T>)
    }
}

impl<T, F, Fut, E> StepFn<T, Looks> for F
where
    T: Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<StepError>,
{
    fn into_work(self) -> BoxedWork<T> {
        BoxedWork::of(self, |()| Box::new(|_: &mut T| {}) as Update<T>)
    }
}

impl<T, F, Fut, U, E> StepFn<T, Updates> for F
where
    T: Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<U, E>> + Send + 'static,
    U: FnOnce(&mut T) + Send + 'static,
    E: Into<StepError>,
{
    fn into_work(self) -> BoxedWork<T> {
        BoxedWork::of(self, |update: U| Box::new(update) as Update<T>)
    }
}

/// How often and how long something is tried.
#[derive(Debug, Clone)]
pub(super) struct Trying {
    pub(super) policy: RetryPolicy,
    pub(super) timeout: Option<Duration>,
}

/// How long one attempt of a compensation may take, where nothing else is said.
const COMPENSATION_TIMEOUT: Duration = Duration::from_secs(30);

/// What a durable saga does with a step of which it is not known how far it got, because the process
/// that ran it has died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// The step runs again, with the same
    /// [idempotency key](super::StepContext::idempotency_key), by which its repetition can be
    /// recognised.
    #[default]
    Retry,
    /// The step has failed with an unknown outcome: it is compensated, with those before it.
    Compensate,
}

/// How a step works.
pub(super) enum Form<T> {
    /// A function of the state.
    Plain(Work<T>),
    /// A function of the state and of the transaction in which its end is recorded.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    Transactional(TransactionalWork<T>),
    /// No function at all: it lets time pass, or an answer come.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    Wait(Wait<T>),
}

/// How a step is undone.
pub(super) enum UndoForm<T> {
    Plain(Undo<T>),
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    Transactional(TransactionalWork<T>),
}

pub(super) struct Step<T> {
    pub(super) name: Arc<str>,
    pub(super) form: Form<T>,
    pub(super) trying: Trying,
    pub(super) undo: Option<UndoForm<T>>,
    pub(super) undoing: Trying,
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite", feature = "mysql")),
        allow(dead_code, reason = "only durable sagas read it")
    )]
    pub(super) in_doubt: InDoubt,
    /// Whether it is compensated also when it says "not done".
    pub(super) undo_on_failure: bool,
}

impl<T: Send + 'static> Step<T> {
    pub(super) fn new(name: String, BoxedWork(work): BoxedWork<T>) -> Self {
        Self::of(name, Form::Plain(work))
    }

    pub(super) fn of(name: String, form: Form<T>) -> Self {
        let policy =
            RetryPolicy::exponential(5, Duration::from_millis(100), Duration::from_secs(2));
        Self {
            name: name.into(),
            form,
            // Once, for as long as it takes.
            trying: Trying { policy: RetryPolicy::none(), timeout: None },
            undo: None,
            undoing: Trying { policy, timeout: Some(COMPENSATION_TIMEOUT) },
            in_doubt: InDoubt::default(),
            undo_on_failure: false,
        }
    }

    pub(super) fn undone_by<F, Fut, E>(&mut self, undo: F)
    where
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<StepError>,
    {
        self.undo = Some(UndoForm::Plain(Box::new(move |state| {
            undo(state).map(|answer| answer.map_err(Into::into)).boxed()
        })));
    }
}
