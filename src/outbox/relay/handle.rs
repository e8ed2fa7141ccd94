//! The connection handle as a relay's target.

use std::sync::Arc;

use tracing::Instrument;

use super::OutboxTarget;
use crate::{
    connection::{AceMq, HealthSource},
    error::Result,
    message::Properties,
    outbox::OutboxRecord,
    publish::{Draft, compose},
    telemetry::Sending,
};

/// Publishes a record to its exchange: confirmed, mandatory and persistent, whatever the
/// application chose for its own publishes.
impl OutboxTarget for AceMq {
    async fn publish(&self, record: &OutboxRecord) -> Result<()> {
        let core = self.core();
        let (exchange, routing_key) = (record.exchange(), record.routing_key());
        let envelope = record.get_envelope();
        let sending = Sending::start(exchange, routing_key, envelope, core.transport())
            .caused_by(envelope.headers());
        let draft = Draft {
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            mandatory: true,
            envelope: envelope.clone(),
            properties: Properties {
                content_type: Some(record.content_type().to_owned()),
                persistent: true,
                ..Properties::default()
            },
            body: record.payload().clone(),
        };
        let publishing = async { core.publish_on_behalf(compose(core, draft)?).await };
        let result = publishing.instrument(sending.span().clone()).await;
        sending.end(&result);
        result
    }

    fn watch(&self, health: &Arc<dyn HealthSource>) {
        self.watch_health(health);
    }
}
