//! The connection handle as a relay's target.

use super::OutboxTarget;
use crate::{
    connection::AceMq,
    error::Result,
    message::Properties,
    outbox::OutboxRecord,
    publish::{Draft, compose},
};

/// Publishes a record to its exchange: confirmed, mandatory and persistent, whatever the
/// application chose for its own publishes.
impl OutboxTarget for AceMq {
    async fn publish(&self, record: &OutboxRecord) -> Result<()> {
        let core = self.core();
        let message = compose(
            core,
            Draft {
                exchange: record.exchange().to_owned(),
                routing_key: record.routing_key().to_owned(),
                mandatory: true,
                envelope: record.get_envelope().clone(),
                properties: Properties {
                    content_type: Some(record.content_type().to_owned()),
                    persistent: true,
                    ..Properties::default()
                },
                body: record.payload().clone(),
            },
        )?;
        core.publish_on_behalf(message).await
    }
}
