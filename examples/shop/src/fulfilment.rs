//! Fulfilment: the saga that a placed order goes through.
//!
//! The message of the order is acknowledged when the saga has ended. A process that dies half-way
//! leaves it to the next one, which runs the saga again: every step recognises what was done.

use std::time::Duration;

use acemq::{
    AceMq, Consumer, Envelope, HandlerError, HandlerResult, Message, OrderedQueue, OutboxRecord,
    RetryPolicy, Saga, SagaFailure, StepError,
};

use crate::{
    error::{NotOpen, Refused},
    ledger::Booking,
    orders::{OrderPaid, OrderPlaced, Orders},
    payments::Payments,
    stock::Stock,
};

#[derive(Clone)]
struct Fulfilment {
    orders: Orders,
    saga: Saga<OrderPlaced>,
}

pub async fn start(
    mq: &AceMq,
    orders: Orders,
    payments: Payments,
    ledger: OrderedQueue<Booking>,
) -> acemq::Result<Consumer> {
    let queue = orders.names.fulfilment();
    let saga = saga(&orders, payments, ledger)?;
    let fulfilment = Fulfilment { orders, saga };
    mq.consumer::<OrderPlaced>(queue)
        .concurrency(8)
        .retry(RetryPolicy::exponential(6, Duration::from_secs(1), Duration::from_secs(30)))
        .start(move |message: Message<OrderPlaced>| fulfilment.clone().handle(message))
        .await
}

fn saga(
    orders: &Orders,
    payments: Payments,
    ledger: OrderedQueue<Booking>,
) -> acemq::Result<Saga<OrderPlaced>> {
    let stock = Stock { orders: orders.clone() };
    let (reserve, release) = (stock.clone(), stock);
    let (charge, refund) = (payments.clone(), payments);
    let orders = orders.clone();
    Saga::<OrderPlaced>::named("fulfil-order")
        .step("reserve-stock", move |order| reserve.clone().reserve(order))
        .compensate_with(move |order| release.clone().release(order))
        .step("charge-payment", move |order| charge.clone().charge(order))
        .compensate_with(move |order| refund.clone().refund(order))
        .step("book", move |order| book(orders.clone(), ledger.clone(), order))
        .build()
}

/// Marks the order as paid, together with its booking and its event.
async fn book(
    orders: Orders,
    ledger: OrderedQueue<Booking>,
    order: OrderPlaced,
) -> Result<(), StepError> {
    let mut tx = orders.lock(order.id).await?.ok_or(NotOpen)?;
    // Only what is reserved and charged: another run may have undone it since.
    let update = "UPDATE orders SET status = 'paid' WHERE id = $1 \
         AND EXISTS (SELECT 1 FROM reservations WHERE order_id = $1) \
         AND EXISTS (SELECT 1 FROM payments WHERE order_id = $1 AND state = 'charged')";
    let paid = sqlx::query(update).bind(order.id).execute(&mut *tx).await?;
    if paid.rows_affected() == 0 {
        return Err(StepError::not_done("stock or payment was undone meanwhile"));
    }
    let (exchange, routing_key) = ledger.address_of(&order.customer)?;
    let customer = order.customer.clone();
    let booking = Booking { order: order.id, customer: customer.clone(), cents: order.cents };
    let record = OutboxRecord::json(exchange, routing_key, &booking)?
        .envelope(Envelope::of("ledger.booking").correlation(order.id.to_string()))
        .ordering_key(&order.customer);
    orders.outbox.add(&mut tx, record).await?;
    let event = OrderPaid { id: order.id, customer };
    orders.announce(&mut tx, order.id, "order.paid", &event).await?;
    tx.commit().await.map_err(StepError::unknown)?;
    orders.outbox.wake();
    Ok(())
}

impl Fulfilment {
    async fn handle(self, message: Message<OrderPlaced>) -> HandlerResult {
        let id = message.payload().id;
        let found = self.orders.find(id).await?;
        let order = found.ok_or_else(|| HandlerError::reject(format!("order {id} is unknown")))?;
        if order.status != "placed" {
            return Ok(());
        }
        let outcome = self.saga.run(order.placed).await;
        if outcome.has_unresolved() {
            let unresolved = format!("order {id} needs a person: {:?}", outcome.unresolved());
            tracing::error!("{unresolved}");
            return Err(HandlerError::park(unresolved));
        }
        let Some(failure) = outcome.failure() else {
            tracing::info!(order = %id, "paid");
            return Ok(());
        };
        let Some(reason) = refusal(failure) else {
            return Err(HandlerError::retry(failure.clone()));
        };
        tracing::info!(order = %id, reason, undone = ?outcome.undone(), "cancelled");
        Ok(self.orders.cancel(id, &reason).await?)
    }
}

/// Why the order cannot be fulfilled, if trying again is of no use.
fn refusal(failure: &SagaFailure) -> Option<String> {
    let SagaFailure::Step { source: Some(source), .. } = failure else { return None };
    source.get().downcast_ref::<Refused>().map(ToString::to_string)
}
