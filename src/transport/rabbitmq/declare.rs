//! Declaring topology.

use lapin::{
    Channel,
    options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
};

use super::{
    convert::{short, table},
    failure,
};
use crate::{
    error::Result,
    topology::{Binding, Destination, Exchange, ExchangeKind, Queue, Topology},
};

/// Declares exchanges, queues and bindings in this order, and stops at the first refusal.
pub(super) async fn topology(channel: &Channel, topology: &Topology) -> Result<()> {
    for declared in &topology.exchanges {
        exchange(channel, declared).await?;
    }
    for declared in &topology.queues {
        queue(channel, declared).await?;
    }
    for declared in &topology.bindings {
        bind(channel, declared).await?;
    }
    Ok(())
}

async fn exchange(channel: &Channel, exchange: &Exchange) -> Result<()> {
    let kind = match exchange.kind {
        ExchangeKind::Direct => lapin::ExchangeKind::Direct,
        ExchangeKind::Topic => lapin::ExchangeKind::Topic,
        ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
        ExchangeKind::Headers => lapin::ExchangeKind::Headers,
    };
    let options = ExchangeDeclareOptions {
        durable: exchange.durable,
        auto_delete: exchange.auto_delete,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            short("exchange", &exchange.name)?,
            kind,
            options,
            table(&exchange.arguments)?,
        )
        .await
        .map_err(|error| failure::of_declaration(&error))
}

async fn queue(channel: &Channel, queue: &Queue) -> Result<()> {
    let options = QueueDeclareOptions {
        durable: queue.durable,
        exclusive: queue.exclusive,
        auto_delete: queue.auto_delete,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(short("queue", &queue.name)?, options, table(&queue.arguments)?)
        .await
        .map(drop)
        .map_err(|error| failure::of_declaration(&error))
}

async fn bind(channel: &Channel, binding: &Binding) -> Result<()> {
    let from = short("exchange", &binding.exchange)?;
    let key = short("routing_key", &binding.routing_key)?;
    let arguments = table(&binding.arguments)?;
    let bound = match &binding.to {
        Destination::Queue(queue) => {
            let (to, options) = (short("queue", queue)?, QueueBindOptions::default());
            channel.queue_bind(to, from, key, options, arguments).await
        }
        Destination::Exchange(exchange) => {
            let (to, options) = (short("exchange", exchange)?, ExchangeBindOptions::default());
            channel.exchange_bind(to, from, key, options, arguments).await
        }
    };
    bound.map_err(|error| failure::of_declaration(&error))
}
