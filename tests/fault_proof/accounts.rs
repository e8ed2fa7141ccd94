//! The service of accounts: a ledger in the order of each account, and prices on request.

use std::{convert::Infallible, time::Duration};

use acemq::{AceMq, Message, OnFailure, OrderedBuilder, OrderedQueue, Responder, Then};

use crate::system::{Names, Order, PARTITIONS, Site, again};

/// The ordered queue, for those who send and those who consume.
pub fn ledger(mq: &AceMq, names: &Names) -> OrderedBuilder<Order> {
    mq.ordered::<Order>(names.of("ledger"))
        .partitions(PARTITIONS)
        .keyed_by(|order: &Order| order.account.clone())
}

/// The price of an order, which the caller can check.
pub fn price_of(order: i64) -> i64 {
    order * 7 + 5
}

pub async fn start(site: &Site) -> (OrderedQueue<Order>, Responder) {
    (again("the ledger", async || keep_ledger(site).await).await, quote(site).await)
}

async fn keep_ledger(site: &Site) -> acemq::Result<OrderedQueue<Order>> {
    let db = site.clone();
    ledger(&site.mq, &site.names)
        .prefetch(20)
        .concurrency_per_partition(4)
        .on_failure(OnFailure::RetryInPlace {
            attempts: 2000,
            delay: Duration::from_millis(100),
            then: Then::Stop,
        })
        .consume(move |order: Message<Order>| {
            let site = db.clone();
            async move {
                let (id, Order { id: order, account, number }) =
                    (order.id().to_owned(), order.into_payload());
                Ok(site.effect("ledger", order, &id, &format!("{account} {number}")).await?)
            }
        })
        .await
}

async fn quote(site: &Site) -> Responder {
    again("the prices", async || {
        let prices = site.mq.responder(site.names.of("prices")).concurrency(10).prefetch(10);
        prices.start(|order: i64| async move { Ok::<_, Infallible>(price_of(order)) }).await
    })
    .await
}
