//! The whole shop against real servers, driven over HTTP.

mod running;

use running::{Premises, Shop, eventually};
use uuid::Uuid;

const PIECES: &str = "SELECT pieces FROM stock WHERE sku = 'lamp'";
const CHARGED: &str = "SELECT count(*) FROM payments WHERE state = 'charged'";
const BOOKED: &str = "SELECT count(*) FROM ledger";
const WAITING_FOR_A_LOCK: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event_type = 'Lock'";

#[tokio::test]
async fn an_order_is_paid_booked_in_its_order_and_remembered() {
    let premises = Premises::new().await;
    let shop = premises.open().await;
    let (status, offer) = shop.get("/offers/lamp").await;
    assert_eq!((status, &offer["cents"]), (200, &1995.into()));
    assert_eq!(shop.get("/offers/unicorn").await.0, 404);

    let ids = [(); 3].map(|()| Uuid::new_v4());
    for id in ids {
        assert_eq!(shop.order(id, "ada", "lamp", 2).await.0, 201);
        shop.until_order_is(id, "paid").await;
    }
    premises.until(BOOKED, 3).await;
    let (_, ledger) = shop.get("/customers/ada/ledger").await;
    for (index, id) in ids.into_iter().enumerate() {
        let (entry, number) = (&ledger[index], index + 1);
        assert_eq!(entry["order"], id.to_string());
        assert_eq!(
            (&entry["number"], &entry["balance"]),
            (&number.into(), &(number * 3990).into())
        );
    }
    assert_eq!(premises.count(PIECES).await, 94);
    premises.until("SELECT count(*) FROM mails WHERE kind = 'review'", 3).await;

    let (status, health) = shop.get("/health").await;
    assert_eq!((status, &health["status"]), (200, &"up".into()), "{health}");
    assert!(shop.signalled("TERM").await.success());
    premises.tear_down().await;
}

#[tokio::test]
async fn a_refused_payment_releases_the_stock_and_cancels_the_order() {
    let premises = Premises::new().await;
    let shop = premises.open().await;
    let id = Uuid::new_v4();
    assert_eq!(shop.order(id, "bob", "lamp", 60).await.0, 201);
    let order = shop.until_order_is(id, "cancelled").await;
    assert_eq!(order["reason"], "a payment of 119700 cents was refused");
    assert_eq!(premises.count(PIECES).await, 100);

    let sold_out = Uuid::new_v4();
    assert_eq!(shop.order(sold_out, "bob", "lamp", 101).await.0, 201);
    assert_eq!(shop.until_order_is(sold_out, "cancelled").await["reason"], "lamp is sold out");
    assert_eq!(premises.count("SELECT count(*) FROM payments").await, 0);
    premises.until("SELECT count(*) FROM mails WHERE kind = 'cancelled'", 2).await;
    assert!(shop.signalled("TERM").await.success());
    premises.tear_down().await;
}

#[tokio::test]
async fn an_order_that_comes_twice_is_one_order() {
    let premises = Premises::new().await;
    let shop = premises.open().await;
    let id = Uuid::new_v4();
    let twice = tokio::join!(shop.order(id, "cy", "lamp", 1), shop.order(id, "cy", "lamp", 1));
    let mut statuses = [twice.0.0, twice.1.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    shop.until_order_is(id, "paid").await;
    assert_eq!(shop.order(id, "cy", "lamp", 1).await.0, 200);
    assert_eq!(shop.order(id, "cy", "lamp", 2).await.0, 409);
    premises.until(BOOKED, 1).await;
    assert_eq!((premises.count(PIECES).await, premises.count(CHARGED).await), (99, 1));
    assert!(shop.signalled("TERM").await.success());
    premises.tear_down().await;
}

#[tokio::test]
async fn after_sigterm_in_the_middle_of_work_the_next_process_goes_on() {
    let premises = Premises::new().await;
    let shop = interrupted(&premises, "TERM").await;
    goes_on(premises, shop).await;
}

#[tokio::test]
async fn after_a_kill_in_the_middle_of_work_the_next_process_goes_on() {
    let premises = Premises::new().await;
    let shop = interrupted(&premises, "KILL").await;
    goes_on(premises, shop).await;
}

/// Ends a process whose saga stands between the reservation and the payment, and starts another.
async fn interrupted(premises: &Premises, signal: &str) -> (Uuid, Shop) {
    let shop = premises.open().await;
    let mut held = premises.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE payments IN EXCLUSIVE MODE").execute(&mut *held).await.unwrap();
    let id = Uuid::new_v4();
    assert_eq!(shop.order(id, "dee", "lamp", 1).await.0, 201);
    eventually("the saga to wait for its payment", async || {
        premises.count(WAITING_FOR_A_LOCK).await == 1
    })
    .await;
    assert_eq!(premises.count(PIECES).await, 99);
    let ended = shop.signalled(signal).await;
    assert_eq!(ended.success(), signal == "TERM", "{ended}");
    assert_eq!(premises.count("SELECT count(*) FROM orders WHERE status = 'placed'").await, 1);
    held.rollback().await.unwrap();
    (id, premises.open().await)
}

async fn goes_on(premises: Premises, (id, shop): (Uuid, Shop)) {
    shop.until_order_is(id, "paid").await;
    premises.until(BOOKED, 1).await;
    assert_eq!((premises.count(PIECES).await, premises.count(CHARGED).await), (99, 1));
    assert!(shop.signalled("TERM").await.success());
    premises.tear_down().await;
}
