//! The back office: bills in one transaction, mail with claims, reminders on a schedule, sagas.

use std::time::Duration;

use acemq::{Consumer, Envelope, HandlerError, Ladder, Message, RetryPolicy, Scheduler, Work};
use chrono::{TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use sqlx::Postgres;

use crate::{
    saga,
    steps::patient,
    system::{Order, Site, again, effect},
};

pub async fn start(site: &Site) -> (Vec<Consumer>, Scheduler) {
    let scheduler = again("the scheduler", async || {
        let scheduler = site.mq.scheduler().ladder(Ladder::Binary);
        scheduler.prefix(site.names.of("delay")).await
    })
    .await;
    let consumers = vec![
        again("bills", async || bill(site).await).await,
        again("mail", async || mail(site).await).await,
        again("plans", async || plan(site, &scheduler).await).await,
        again("reminders", async || remind(site).await).await,
        again("sagas", async || saga::start(site).await).await,
    ];
    (consumers, scheduler)
}

/// Exactly one effect for each order.
async fn bill(site: &Site) -> acemq::Result<Consumer> {
    let consumer = site.mq.consumer::<Order>(site.names.of("bill")).retry(patient());
    consumer
        .concurrency(4)
        .transactional(site.notes())
        .batched(4)
        .start(|mut work: Work<Order, Postgres>| async move {
            let (id, order) = (work.message().id().to_owned(), work.payload().id);
            effect(&mut **work.tx(), "bill", order, &id, "").await?;
            Ok(work.commit().await?)
        })
        .await
}

/// The wait between attempts of mail is in the broker, on a rung of the retry ladder.
pub const MAIL_RUNG: &str = "mail.retry.1s";

/// A repetition only where a process died between effect and confirm. Some orders are refused,
/// and others fail now and then.
async fn mail(site: &Site) -> acemq::Result<Consumer> {
    let db = site.clone();
    let policy = RetryPolicy::fixed(10_000, Duration::from_secs(1));
    site.mq
        .consumer::<Order>(site.names.of("mail"))
        .retry(policy.broker_threshold(Duration::from_millis(500)))
        .concurrency(4)
        .idempotent(site.notes())
        .start(move |order: Message<Order>| {
            let site = db.clone();
            async move {
                let (id, order) = (order.id().to_owned(), order.into_payload());
                if order.is_refused() {
                    return Err(HandlerError::reject("no such address"));
                }
                if fastrand::u8(..20) == 0 {
                    return Err(HandlerError::retry("now and then"));
                }
                Ok(site.effect("mail", order.id, &id, "").await?)
            }
        })
        .await
}

#[derive(Clone, Serialize, Deserialize)]
struct Reminder {
    order: i64,
    due: i64,
}

/// Schedules a reminder; one that is scheduled twice has one id.
async fn plan(site: &Site, scheduler: &Scheduler) -> acemq::Result<Consumer> {
    let (names, scheduler) = (site.names.clone(), scheduler.clone());
    let consumer = site.mq.consumer::<Order>(names.of("plan")).retry(patient()).concurrency(8);
    consumer
        .start(move |order: Message<Order>| {
            let (names, scheduler) = (names.clone(), scheduler.clone());
            async move {
                let order = order.payload().id;
                let due = Utc::now() + TimeDelta::milliseconds(fastrand::i64(200..4000));
                let reminder = Reminder { order, due: due.timestamp_millis() };
                let id = format!("{}-{order}", names.base);
                let envelope = Envelope::of("reminder").with_id(id);
                let target = names.of("remind");
                scheduler.at_with(due, "", &target, &reminder, envelope).await?;
                Ok(())
            }
        })
        .await
}

/// Notes by how many milliseconds a reminder is late.
async fn remind(site: &Site) -> acemq::Result<Consumer> {
    let consumer = site.mq.consumer::<Reminder>(site.names.of("remind")).retry(patient());
    consumer
        .concurrency(4)
        .transactional(site.notes())
        .start(|mut work: Work<Reminder, Postgres>| async move {
            let late = Utc::now().timestamp_millis() - work.payload().due;
            let (id, order) = (work.message().id().to_owned(), work.payload().order);
            effect(&mut **work.tx(), "reminder", order, &id, &late.to_string()).await?;
            Ok(work.commit().await?)
        })
        .await
}
