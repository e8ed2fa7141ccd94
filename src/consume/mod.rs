//! Consuming: what happens to a message after a handler had it.

mod decide;
mod retry_policy;
#[cfg(test)]
mod vectors;

pub use retry_policy::RetryPolicy;
