//! Building a saga.

use std::{collections::HashSet, fmt, marker::PhantomData, sync::Arc, time::Duration};

use super::{
    error::StepError,
    outcome::SagaOutcome,
    run::run,
    step::{InDoubt, Step, StepFn, Trying, Updates},
};
use crate::{
    consume::RetryPolicy,
    error::{Error, Result},
    topology::check_name,
};

/// Steps that must all happen, each with something that undoes it.
///
/// Cheap to clone; build it once and run it for each piece of work.
///
/// # Examples
///
/// ```
/// use acemq::{Saga, StepError};
///
/// #[derive(Clone, Debug, PartialEq)]
/// struct Order { paid: bool, reserved: bool }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), acemq::Error> {
/// let saga = Saga::<Order>::named("fulfil-order")
///     .step("take-payment", |order: Order| async move {
///         Ok::<_, StepError>(Order { paid: true, ..order })
///     })
///     .compensate_with(|order: Order| async move {
///         assert!(order.paid); // what the step has noted down
///         Ok::<_, StepError>(())
///     })
///     .step("reserve-stock", |_: Order| async { Err::<(), _>(StepError::not_done("sold out")) })
///     .build()?;
///
/// let outcome = saga.run(Order { paid: false, reserved: false }).await;
/// assert_eq!(outcome.failed_at(), Some("reserve-stock"));
/// assert!(outcome.compensated() && !outcome.has_unresolved());
/// # Ok(())
/// # }
/// ```
pub struct Saga<T> {
    pub(super) definition: Arc<Definition<T>>,
}

pub(super) struct Definition<T> {
    pub(super) name: String,
    pub(super) steps: Vec<Step<T>>,
    /// Where each stage begins: one step, or several side by side.
    pub(super) stages: Vec<std::ops::Range<usize>>,
}

impl<T: Clone + Send + Sync + 'static> Saga<T> {
    /// Starts the definition of a saga. The name is for people, and for logs.
    pub fn named(name: impl Into<String>) -> SagaBuilder<T> {
        SagaBuilder {
            name: name.into(),
            steps: Vec::new(),
            stages: Vec::new(),
            journal: InMemory,
            remembering: Remembering::default(),
            last: PhantomData,
        }
    }

    /// Runs the saga to its end and tells how it went. Never fails and never panics.
    ///
    /// Dropping the future stops the saga in good order: the step under way is let finish, no
    /// other begins, and what was done is compensated in the background. The runtime must live
    /// on for that: a process that ends leaves what was done as it is.
    pub async fn run(&self, state: T) -> SagaOutcome<T> {
        run(Arc::clone(&self.definition), state).await
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Returns the names of the steps, in their order.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.definition.steps.iter().map(|step| &*step.name)
    }
}

impl<T> Clone for Saga<T> {
    fn clone(&self) -> Self {
        Self { definition: Arc::clone(&self.definition) }
    }
}

impl<T> fmt::Debug for Saga<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<&str> = self.definition.steps.iter().map(|step| &*step.name).collect();
        f.debug_struct("Saga").field("name", &self.definition.name).field("steps", &steps).finish()
    }
}

/// What was added to a definition last: nothing, or a group.
#[derive(Debug)]
pub enum Open {}

/// What was added to a definition last: a step, which options and a compensation may follow.
#[derive(Debug)]
pub enum Stepped {}

/// What was added to a definition last: a compensation, which options may follow.
#[derive(Debug)]
pub enum Compensated {}

/// Where the runs of a saga are remembered: nowhere but in the process.
#[derive(Debug, Clone, Copy)]
pub struct InMemory;

/// How a durable saga remembers its runs.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlite", feature = "mysql")),
    expect(dead_code, reason = "only durable sagas read it")
)]
pub(super) struct Remembering {
    pub(super) version: u32,
    /// How long a run belongs to the process that claimed it, unless that renews it.
    pub(super) lease: Duration,
}

impl Default for Remembering {
    fn default() -> Self {
        Self { version: 1, lease: Duration::from_secs(30) }
    }
}

/// The definition of a saga in the making; see [`Saga::named`].
///
/// Options that follow a step belong to it, and those that follow a compensation to that.
#[must_use = "a saga is made by `build`"]
pub struct SagaBuilder<T, Last = Open, J = InMemory> {
    name: String,
    steps: Vec<Step<T>>,
    stages: Vec<std::ops::Range<usize>>,
    journal: J,
    pub(super) remembering: Remembering,
    last: PhantomData<fn() -> Last>,
}

impl<T: Clone + Send + Sync + 'static, Last> SagaBuilder<T, Last> {
    /// Checks the definition.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for an empty or overlong name of the saga or of a step, a name that
    /// two steps share, a timeout of zero, an empty parallel group, and a policy that cannot work.
    pub fn build(self) -> Result<Saga<T>> {
        let (definition, InMemory, _) = self.checked()?;
        Ok(Saga { definition: Arc::new(definition) })
    }
}

impl<T: Clone + Send + Sync + 'static, Last, J> SagaBuilder<T, Last, J> {
    /// Adds a step: an async function that takes the state and gives it back changed, or returns
    /// `Ok(())` where it only looks.
    ///
    /// It gets a copy of the state. What its compensation needs, such as the number of a payment, it
    /// writes into the state that it returns.
    pub fn step<Kind>(
        mut self,
        name: impl Into<String>,
        work: impl StepFn<T, Kind>,
    ) -> SagaBuilder<T, Stepped, J> {
        self.push(Step::new(name.into(), work.into_work()));
        self.turned()
    }

    /// Adds a step as a stage of its own.
    pub(super) fn push(&mut self, step: Step<T>) {
        let first = self.steps.len();
        self.steps.push(step);
        self.stages.push(first..first + 1);
    }

    /// Adds steps that run side by side. The next step begins when all have ended, also if one
    /// fails: then those that were done are compensated, the last one to end first.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{ParallelSteps, Saga, StepError};
    ///
    /// #[derive(Clone, Default)]
    /// struct Trip { hotel: u32, flight: u32 }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let bookings = ParallelSteps::new()
    ///     .step("hotel", |_: Trip| async { Ok::<_, StepError>(|trip: &mut Trip| trip.hotel = 7) })
    ///     .compensate_with(|_: Trip| async { Ok::<_, StepError>(()) })
    ///     .step("flight", |_: Trip| async { Ok::<_, StepError>(|trip: &mut Trip| trip.flight = 8) });
    /// let saga = Saga::<Trip>::named("trip").parallel(bookings).build()?;
    /// let outcome = saga.run(Trip::default()).await;
    /// assert_eq!((outcome.state().hotel, outcome.state().flight), (7, 8));
    /// # Ok(())
    /// # }
    /// ```
    pub fn parallel<Inner>(mut self, group: ParallelSteps<T, Inner>) -> SagaBuilder<T, Open, J> {
        let first = self.steps.len();
        self.steps.extend(group.steps);
        self.stages.push(first..self.steps.len());
        self.turned()
    }

    pub(super) fn checked(self) -> Result<(Definition<T>, J, Remembering)> {
        check_name("saga", &self.name)?;
        let mut names = HashSet::new();
        for step in &self.steps {
            check_name("step", &step.name)?;
            if !names.insert(&*step.name) {
                return Err(Error::invalid("step", &*step.name, "is the name of two steps"));
            }
            for Trying { policy, timeout } in [&step.trying, &step.undoing] {
                policy.validate()?;
                if timeout.is_some_and(|limit| limit.is_zero()) {
                    return Err(Error::invalid("timeout", &*step.name, "leaves the step no time"));
                }
            }
        }
        if self.stages.iter().any(std::ops::Range::is_empty) {
            return Err(Error::invalid("parallel", "0 steps", "is an empty group"));
        }
        let Self { name, steps, stages, journal, remembering, .. } = self;
        Ok((Definition { name, steps, stages }, journal, remembering))
    }

    pub(super) fn turned<Next>(self) -> SagaBuilder<T, Next, J> {
        self.remembered_in(|journal| journal)
    }

    pub(super) fn remembered_in<Next, K>(
        self,
        journal: impl FnOnce(J) -> K,
    ) -> SagaBuilder<T, Next, K> {
        let Self { name, steps, stages, journal: now, remembering, .. } = self;
        SagaBuilder { name, steps, stages, journal: journal(now), remembering, last: PhantomData }
    }
}

/// The methods that refer to the step before them, for a saga and for a group in it.
macro_rules! step_options {
    ($builder:ident $(, $journal:ident)?) => {
        impl<T: Clone + Send + Sync + 'static, $($journal)?> $builder<T, Stepped, $($journal)?> {
            /// Sets what undoes the step. It gets the state as it was when the saga failed, with
            /// everything that the steps have written into it.
            ///
            /// It runs at least once and may be tried again: undoing twice must do no harm.
            pub fn compensate_with<F, Fut, E>(
                mut self,
                undo: F,
            ) -> $builder<T, Compensated, $($journal)?>
            where
                F: Fn(T) -> Fut + Send + Sync + 'static,
                Fut: Future<Output = Result<(), E>> + Send + 'static,
                E: Into<StepError>,
            {
                self.last_step(|step| step.undone_by(undo));
                self.turned()
            }

            /// Sets when the step is tried again after a failure. Default: it is tried once.
            ///
            /// Waits are held in the process.
            pub fn retry(mut self, policy: RetryPolicy) -> Self {
                self.last_step(|step| step.trying.policy = policy);
                self
            }

            /// Limits each attempt of the step. One that takes longer is dropped, and its outcome
            /// is unknown. Default: no limit.
            pub fn timeout(mut self, limit: Duration) -> Self {
                self.last_step(|step| step.trying.timeout = Some(limit));
                self
            }

            /// Compensates the step also if it fails with "not done", for a step that may fail
            /// half-way. Default: only if its outcome is unknown.
            pub fn undo_on_failure(mut self) -> Self {
                self.last_step(|step| step.undo_on_failure = true);
                self
            }

            /// Sets what a durable saga does with the step if the process that ran it has died, so
            /// that nobody knows how far it got. Default: [`InDoubt::Retry`].
            ///
            /// A step that writes in the journal's transaction is never in doubt. A saga in memory
            /// has no use for it.
            pub fn in_doubt(mut self, in_doubt: InDoubt) -> Self {
                self.last_step(|step| step.in_doubt = in_doubt);
                self
            }
        }

        impl<T: Clone + Send + Sync + 'static, $($journal)?>
            $builder<T, Compensated, $($journal)?>
        {
            /// Sets when the compensation is tried again. Default: 5 attempts, 100 ms to 2 s apart.
            pub fn retry(mut self, policy: RetryPolicy) -> Self {
                self.last_step(|step| step.undoing.policy = policy);
                self
            }

            /// Limits each attempt of the compensation. Default: 30 s.
            pub fn timeout(mut self, limit: Duration) -> Self {
                self.last_step(|step| step.undoing.timeout = Some(limit));
                self
            }
        }

        impl<T, Last, $($journal)?> $builder<T, Last, $($journal)?> {
            pub(super) fn last_step(&mut self, set: impl FnOnce(&mut Step<T>)) {
                // The type says that there is one.
                if let Some(step) = self.steps.last_mut() {
                    set(step);
                }
            }
        }

        impl<T, Last, $($journal)?> fmt::Debug for $builder<T, Last, $($journal)?> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let steps: Vec<&str> = self.steps.iter().map(|step| &*step.name).collect();
                f.debug_struct(stringify!($builder)).field("steps", &steps).finish_non_exhaustive()
            }
        }
    };
}

step_options!(SagaBuilder, J);
step_options!(ParallelSteps);

/// Steps that run side by side; see [`SagaBuilder::parallel`].
#[must_use = "a group does nothing until it is part of a saga"]
pub struct ParallelSteps<T, Last = Open> {
    steps: Vec<Step<T>>,
    last: PhantomData<fn() -> Last>,
}

impl<T: Clone + Send + Sync + 'static> ParallelSteps<T> {
    /// Starts a group.
    pub fn new() -> Self {
        Self { steps: Vec::new(), last: PhantomData }
    }
}

impl<T: Clone + Send + Sync + 'static> Default for ParallelSteps<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + Send + Sync + 'static, Last> ParallelSteps<T, Last> {
    /// Adds a step that returns its change of the state, so that it overwrites no other's.
    ///
    /// Every step of the group gets the state as it was before the group.
    pub fn step(
        mut self,
        name: impl Into<String>,
        work: impl StepFn<T, Updates>,
    ) -> ParallelSteps<T, Stepped> {
        self.steps.push(Step::new(name.into(), work.into_work()));
        self.turned()
    }

    fn turned<Next>(self) -> ParallelSteps<T, Next> {
        ParallelSteps { steps: self.steps, last: PhantomData }
    }
}
