//! The shop: asks for a price, then stores the order and its messages in one transaction.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use acemq::{OrderedQueue, Requester};
use tokio::time::timeout;

use crate::{
    accounts::{ledger, price_of},
    support::eventually,
    system::{Order, Site, again, records},
};

const ACCOUNTS: usize = 12;
/// Between two orders of an account.
const PACE: Duration = Duration::from_millis(250);
const CALL: Duration = Duration::from_secs(2);

/// Takes orders until it is told to stop.
pub async fn run(site: &Site, stop: impl Future<Output = ()>) {
    let requester = again("a requester", async || site.mq.requester().await).await;
    let ledger = again("a ledger", async || ledger(&site.mq, &site.names).declare().await).await;
    let stopped = AtomicBool::new(false);
    let customers =
        (0..ACCOUNTS).map(|account| customer(site, &requester, &ledger, account, &stopped));
    let customers = futures::future::join_all(customers);
    tokio::join!(customers, async {
        stop.await;
        stopped.store(true, Ordering::SeqCst);
    });
    eventually("every call to be over", async || requester.stats().in_flight == 0).await;
    requester.close().await;
}

async fn customer(
    site: &Site,
    requester: &Requester,
    ledger: &OrderedQueue<Order>,
    account: usize,
    stopped: &AtomicBool,
) {
    let account = format!("account{account}");
    while !stopped.load(Ordering::SeqCst) {
        ask(site, requester).await;
        // Whether a commit that got no answer took place, only the table of orders can say.
        if let Err(error) = place(site, ledger, &account).await {
            eprintln!("an order of {account}: {error}");
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Stores an order, which some customers give up before it is committed.
pub async fn place(
    site: &Site,
    ledger: &OrderedQueue<Order>,
    account: &str,
) -> Result<(), acemq::BoxError> {
    let mut tx = site.db.begin().await?;
    // Holds the account, so that its orders commit in the order of their numbers.
    let next = "INSERT INTO accounts VALUES ($1, 1)
        ON CONFLICT (name) DO UPDATE SET last = accounts.last + 1 RETURNING last";
    let number: i64 = sqlx::query_scalar(next).bind(account).fetch_one(&mut *tx).await?;
    let insert =
        "INSERT INTO orders (account, number, message_ids) VALUES ($1, $2, '{}') RETURNING id";
    let id = sqlx::query_scalar(insert).bind(account).bind(number).fetch_one(&mut *tx).await?;
    let order = Order { id, account: account.to_owned(), number };
    let records = records(&site.names, &order, ledger.address_of(account)?)?;
    let ids: Vec<String> = records.iter().map(|record| record.id().to_owned()).collect();
    let note = sqlx::query("UPDATE orders SET message_ids = $2 WHERE id = $1").bind(id).bind(ids);
    note.execute(&mut *tx).await?;
    site.outbox().add_all(&mut tx, records).await?;
    if fastrand::u8(..10) == 0 {
        // What a customer gave up leaves no trace.
        return Ok(tx.rollback().await?);
    }
    Ok(tx.commit().await?)
}

/// One call, and what became of it.
pub async fn ask(site: &Site, requester: &Requester) {
    let id = uuid::Uuid::new_v4().to_string();
    note_call(site, &id, "asked").await;
    note_reply_queue(site, requester).await;
    let question = fastrand::i64(0..1_000_000);
    let prices = site.names.of("prices");
    let call = requester.request::<_, i64>("", &prices, &question, CALL);
    let state = match timeout(3 * CALL, call).await {
        Ok(Ok(price)) if price == price_of(question) => "answered",
        Ok(Ok(_)) => "wrong",
        Ok(Err(_)) => "failed",
        Err(_) => "hung",
    };
    note_call(site, &id, state).await;
}

async fn note_call(site: &Site, id: &str, state: &str) {
    let sql = "INSERT INTO calls VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET state = $3";
    again("to note a call", async || {
        sqlx::query(sql).bind(id).bind(site.number).bind(state).execute(&site.db).await
    })
    .await;
}

/// So that it can be deleted by somebody else.
async fn note_reply_queue(site: &Site, requester: &Requester) {
    let Some(queue) = requester.reply_queue() else { return };
    let sql = "INSERT INTO reply_queues VALUES ($1) ON CONFLICT DO NOTHING";
    again("to note a queue", async || sqlx::query(sql).bind(&queue).execute(&site.db).await).await;
}
