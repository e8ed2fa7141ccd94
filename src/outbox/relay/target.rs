//! Where a relay publishes to.

use std::sync::Arc;

use crate::{connection::HealthSource, error::Result, outbox::OutboxRecord};

/// Publishes the records of an outbox: all that a relay needs of a broker.
///
/// An implementation publishes [`payload`](OutboxRecord::payload) as it is, with the record's
/// content type and with its id as the message id, and returns `Ok` only once the broker has taken
/// responsibility for the message and at least one queue got it. It must come to an end: a relay
/// sets no time limit of its own, it only renews its lease while it waits.
///
/// Dropping the future must leak nothing.
pub trait OutboxTarget: Send + Sync + 'static {
    /// Publishes one record.
    ///
    /// An error that concerns the message (such as [`Unroutable`](crate::Error::Unroutable),
    /// [`Nacked`](crate::Error::Nacked), [`NotFound`](crate::Error::NotFound) or
    /// [`InvalidOption`](crate::Error::InvalidOption)) spends one of the record's attempts. Any
    /// other is taken for an outage: it spends none, and the relay slows down.
    fn publish(&self, record: &OutboxRecord) -> impl Future<Output = Result<()>> + Send;

    /// Takes in the health of a relay that was started with this target, to tell it with its own.
    /// Default: nobody is told.
    fn watch(&self, health: &Arc<dyn HealthSource>) {
        let _ = health;
    }
}

impl<T: OutboxTarget> OutboxTarget for Arc<T> {
    fn publish(&self, record: &OutboxRecord) -> impl Future<Output = Result<()>> + Send {
        T::publish(self, record)
    }

    fn watch(&self, health: &Arc<dyn HealthSource>) {
        T::watch(self, health);
    }
}
