//! An order in three steps: the last one fails, and the first two are undone in reverse.
//!
//! `cargo run --example saga`; it needs no broker.

use acemq::{BoxError, Saga, StepContext, StepError};

#[derive(Debug, Clone, Default)]
struct Order {
    id: u32,
    /// What the compensation of the payment needs.
    payment: Option<String>,
}

async fn take_payment(mut order: Order) -> Result<Order, StepError> {
    // The provider recognises a repetition by this key.
    order.payment = StepContext::current().map(|step| step.idempotency_key());
    println!("order {}: paid", order.id);
    Ok(order)
}

async fn refund(order: Order) -> Result<(), StepError> {
    let payment = order.payment.ok_or_else(|| StepError::fatal("nothing was paid"))?;
    println!("order {}: refunded {}", order.id, payment.split('/').next_back().unwrap_or(""));
    Ok(())
}

async fn reserve(order: Order) -> Result<(), StepError> {
    println!("order {}: reserved", order.id);
    Ok(())
}

async fn release(order: Order) -> Result<(), StepError> {
    println!("order {}: released", order.id);
    Ok(())
}

async fn book_courier(order: Order) -> Result<(), StepError> {
    if order.id == 2 {
        return Err(StepError::not_done("no courier today"));
    }
    println!("order {}: courier booked", order.id);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let saga = Saga::<Order>::named("fulfil-order")
        .step("take-payment", take_payment)
        .compensate_with(refund)
        .step("reserve-stock", reserve)
        .compensate_with(release)
        .step("book-courier", book_courier)
        .build()?;

    let outcome = saga.run(Order { id: 1, ..Order::default() }).await;
    println!(
        "order 1: {} steps done, complete: {}",
        outcome.completed().len(),
        outcome.is_complete()
    );
    let complete = outcome.is_complete();

    let outcome = saga.run(Order { id: 2, ..Order::default() }).await;
    if let (Some(step), Some(failure)) = (outcome.failed_at(), outcome.failure()) {
        println!("order 2: failed at {step}: {failure}");
    }
    for unresolved in outcome.unresolved() {
        println!("order 2: somebody has to look at {}: {}", unresolved.step, unresolved.error);
    }
    let undone = outcome.undone() == ["reserve-stock", "take-payment"];
    if complete && outcome.compensated() && undone { Ok(()) } else { Err("not as promised".into()) }
}
