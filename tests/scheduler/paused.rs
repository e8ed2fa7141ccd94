//! Hours and days, on paused time.

use std::time::Duration;

use acemq::{AceMq, Ladder, Message, Queue, Scheduler, Topology};
use tokio::{sync::mpsc, time::Instant};

use crate::support::eventually;

const DAY: Duration = Duration::from_hours(24);

/// A queue, and a consumer that tells after which time each message came.
async fn target(mq: &AceMq) -> (acemq::Consumer, mpsc::UnboundedReceiver<(Duration, u64)>) {
    mq.declare(&Topology::new().queue(Queue::new("target"))).await.unwrap();
    let (sender, arrivals) = mpsc::unbounded_channel();
    let started = Instant::now();
    let consumer = mq
        .consumer::<u64>("target")
        .start(move |message: Message<u64>| {
            let sent = sender.send((started.elapsed(), *message.payload()));
            async move { Ok(sent?) }
        })
        .await
        .unwrap();
    (consumer, arrivals)
}

async fn scheduler(ladder: Ladder) -> (AceMq, Scheduler) {
    let mq = AceMq::connect("memory://").await.unwrap();
    let scheduler = mq.scheduler().ladder(ladder).await.unwrap();
    (mq, scheduler)
}

/// How early and how late a ladder may be.
fn tolerance(ladder: Ladder) -> (Duration, Duration) {
    match ladder {
        Ladder::Binary => (Duration::ZERO, Duration::from_millis(1200)),
        _ => (Duration::from_secs(1), Duration::from_secs(1)),
    }
}

async fn on_time(ladder: Ladder, delay: Duration, hops: u64) {
    let (mq, scheduler) = scheduler(ladder).await;
    let (_consumer, mut arrivals) = target(&mq).await;
    scheduler.after(delay, "", "target", &7).await.unwrap();
    let (after, payload) = arrivals.recv().await.unwrap();
    let (early, late) = tolerance(ladder);
    assert_eq!(payload, 7);
    assert!(
        after + early >= delay && after <= delay + late,
        "{ladder:?}: {delay:?} came after {after:?}"
    );
    assert_eq!(scheduler.hops(), hops, "{ladder:?}, {delay:?}");
    eventually("the count", async || scheduler.stats().delivered == 1).await;
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn four_hours_are_four_hops_of_the_family() {
    on_time(Ladder::Family, Duration::from_hours(4), 4).await;
}

#[tokio::test(start_paused = true)]
async fn thirty_days_are_720_hops_of_the_family() {
    on_time(Ladder::Family, 30 * DAY, 720).await;
}

#[tokio::test(start_paused = true)]
async fn thirty_days_are_one_publish_into_the_binary_ladder() {
    on_time(Ladder::Binary, 30 * DAY, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_longer_than_the_binary_ladder_goes_down_it_again() {
    on_time(Ladder::Binary, 1000 * DAY, 3).await;
}

#[tokio::test(start_paused = true)]
async fn delays_at_the_limits_of_integers_wait_their_time() {
    for ms in [(1_u64 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1] {
        let (mq, scheduler) = scheduler(Ladder::Binary).await;
        let (_consumer, mut arrivals) = target(&mq).await;
        let delay = Duration::from_millis(ms);
        scheduler.after(delay, "", "target", &ms).await.unwrap();
        let (after, _) = arrivals.recv().await.unwrap();
        assert!(after >= delay && after <= delay + Duration::from_millis(1200), "{ms}: {after:?}");
    }
}

/// Field case B54: a long delay in front holds no shorter one up.
async fn mixed_delays_come_in_the_order_of_their_times_and_once(ladder: Ladder) {
    const MESSAGES: usize = 2000;
    let (mq, scheduler) = scheduler(ladder).await;
    let (_consumer, mut arrivals) = target(&mq).await;
    let mut random = fastrand::Rng::with_seed(7);
    let started = Instant::now();
    scheduler.after(Duration::from_hours(30), "", "target", &u64::MAX).await.unwrap();
    let mut due = std::collections::HashMap::new();
    for number in 0..MESSAGES as u64 {
        let scale = [1000, 60_000, 3_600_000, 86_400_000][random.usize(..4)];
        let delay = Duration::from_millis(random.u64(..scale));
        scheduler.after(delay, "", "target", &number).await.unwrap();
        due.insert(number, started.elapsed() + delay);
    }
    let (early, late) = tolerance(ladder);
    while !due.is_empty() {
        let (after, number) = arrivals.recv().await.unwrap();
        let due = due.remove(&number).expect("each message comes once");
        assert!(after + early >= due && after <= due + late, "due {due:?}, came {after:?}");
    }
    assert_eq!(arrivals.recv().await.unwrap().1, u64::MAX);
    eventually("the count", async || scheduler.stats().delivered == MESSAGES as u64 + 1).await;
}

#[tokio::test(start_paused = true)]
async fn mixed_delays_come_in_order_with_the_family_s_ladder() {
    mixed_delays_come_in_the_order_of_their_times_and_once(Ladder::Family).await;
}

#[tokio::test(start_paused = true)]
async fn mixed_delays_come_in_order_with_the_binary_ladder() {
    mixed_delays_come_in_the_order_of_their_times_and_once(Ladder::Binary).await;
}
