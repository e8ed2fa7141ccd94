//! Sagas that outlive their process, on every database.

mod counting;
mod cuts;
mod kills;
mod options;
mod racing;
mod running;
mod settling;
mod waiting;
mod world;

use acemq::{StepContext, StepError};
use futures::future::BoxFuture;
use world::World;

/// What a step or a compensation is.
pub type Noted = BoxFuture<'static, Result<(), StepError>>;

/// A step, or a compensation, that notes itself among the effects.
pub fn noting<W: World, T>(world: &W) -> impl Fn(T) -> Noted + Clone + Send + Sync + 'static {
    let world = world.clone();
    move |_| {
        let world = world.clone();
        Box::pin(async move { Ok(world.effect(&whoami()).await?) })
    }
}

/// A step, or a compensation, that fails without an effect.
pub fn failing<T>() -> impl Fn(T) -> Noted + Clone + Send + Sync + 'static {
    |_| Box::pin(async { Err(StepError::fatal("not today")) })
}

/// `do` or `undo`, and the name of the step.
pub fn whoami() -> String {
    let step = StepContext::current().expect("a step runs");
    let verb = if step.is_compensation() { "undo" } else { "do" };
    format!("{verb} {}", step.step())
}
