//! The pipeline: `check` ends some runs early, `price` asks another service, `pack` works in one
//! transaction.

use std::time::Duration;

use acemq::{
    Consumer, HandlerError, Message, Pipeline, PipelineBuilder, Requester, RetryPolicy, Work,
};
use sqlx::Postgres;

use crate::{
    accounts::price_of,
    system::{Order, Site, again, effect},
};

/// Patient enough for every outage here.
pub fn patient() -> RetryPolicy {
    RetryPolicy::fixed(10_000, Duration::from_millis(200))
}

/// The definition, the same in every process. `price` needs a requester where it runs.
pub fn pipeline(site: &Site, requester: Option<Requester>) -> PipelineBuilder<Order, Order> {
    let (checking, pricing) = (site.clone(), site.clone());
    site.mq
        .pipeline::<Order>(site.names.of("pipe"))
        .retry(patient())
        .concurrency(4)
        .step("check", move |order: Message<Order>| {
            let site = checking.clone();
            async move {
                if order.payload().ends_early() {
                    let (id, order) = (order.id().to_owned(), order.into_payload());
                    site.effect("pipeline", order.id, &id, "early").await?;
                    return Ok(None);
                }
                Ok(Some(order.into_payload()))
            }
        })
        .step("price", move |order: Message<Order>| {
            let (names, requester) = (pricing.names.clone(), requester.clone());
            async move {
                let order = order.into_payload();
                let none = || HandlerError::retry("this process asks for no prices");
                let requester = requester.ok_or_else(none)?;
                let limit = Duration::from_secs(2);
                let price: i64 =
                    requester.request("", &names.of("prices"), &order.id, limit).await?;
                assert_eq!(price, price_of(order.id), "the answer to another question");
                Ok(Some(order))
            }
        })
        .step("pack", |order: Message<Order>| async move { Ok(Some(order.into_payload())) })
}

/// Runs `check` and, in one transaction, `pack`.
pub async fn start_check_and_pack(site: &Site) -> (Pipeline<Order>, Consumer) {
    let running = again("check", async || pipeline(site, None).only(["check"]).build().await).await;
    let packing = again("pack", async || pack(site, &running).await).await;
    (running, packing)
}

pub async fn start_price(site: &Site) -> (Pipeline<Order>, Requester) {
    let requester = again("a requester", async || site.mq.requester().await).await;
    let running = again("price", async || {
        pipeline(site, Some(requester.clone())).only(["price"]).build().await
    });
    (running.await, requester)
}

async fn pack(site: &Site, pipeline: &Pipeline<Order>) -> acemq::Result<Consumer> {
    let queue = site.names.of("pipe.pack");
    let (pipeline, outbox) = (pipeline.clone(), site.outbox());
    let consumer = site.mq.consumer::<Order>(queue).retry(patient()).concurrency(4);
    consumer
        .transactional(site.notes())
        .start(move |mut work: Work<Order, Postgres>| {
            let (pipeline, outbox) = (pipeline.clone(), outbox.clone());
            async move {
                let (id, order) = (work.message().id().to_owned(), work.payload().clone());
                effect(&mut **work.tx(), "pipeline", order.id, &id, "packed").await?;
                // The end of the route. A hop would go out with the transaction.
                if let Some(hop) = pipeline.next_hop("pack", work.envelope(), &order)? {
                    outbox.add(work.tx(), hop.into()).await?;
                }
                Ok(work.commit().await?)
            }
        })
        .await
}
