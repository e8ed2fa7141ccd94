//! Reminders: some days after an order was paid, its customer is asked for a review.

use std::time::Duration;

use acemq::{
    AceMq, Consumer, HandlerResult, Message, PostgresIdempotencyStore, Scheduler, Work, WorkResult,
};
use sqlx::Postgres;

use crate::{mails, names::Names, orders::OrderPaid};

#[derive(Clone)]
struct Planner {
    scheduler: Scheduler,
    target: String,
    after: Duration,
}

pub struct Reminders {
    pub planning: Consumer,
    pub sending: Consumer,
}

pub async fn start(
    mq: &AceMq,
    names: &Names,
    scheduler: Scheduler,
    after: Duration,
    inbox: PostgresIdempotencyStore,
) -> acemq::Result<Reminders> {
    let planner = Planner { scheduler, target: names.reminders(), after };
    let planning = mq
        .consumer::<OrderPaid>(names.reviews())
        .start(move |paid: Message<OrderPaid>| planner.clone().plan(paid))
        .await?;
    let sending =
        mq.consumer::<OrderPaid>(names.reminders()).transactional(inbox).start(send).await?;
    Ok(Reminders { planning, sending })
}

impl Planner {
    /// Has the broker hold the reminder. Its id comes from the order, so that a second one, planned
    /// because this message came twice, is recognised when it is due.
    async fn plan(self, paid: Message<OrderPaid>) -> HandlerResult {
        let envelope = paid.envelope().causing("review.due");
        let envelope = envelope.with_id(format!("review-{}", paid.payload().id));
        let (to, due) = (self.target.as_str(), paid.payload());
        self.scheduler.after_with(self.after, "", to, due, envelope).await?;
        Ok(())
    }
}

async fn send(mut work: Work<OrderPaid, Postgres>) -> WorkResult {
    let (tx, due) = work.parts();
    let OrderPaid { id, customer } = due.payload();
    mails::write(tx, *id, customer, "review").await?;
    Ok(work.commit().await?)
}
