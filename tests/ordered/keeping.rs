//! Order per key, and what is refused.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acemq::{Error, HandlerError, Message, OnFailure, OrderedLayout, Partitioning};
use tokio::sync::mpsc;

use crate::{
    Event, PARTITIONS, event, name, ordered,
    support::{eventually, soon},
};

on_both_brokers! {
    async fn messages_of_a_key_are_handled_in_the_order_they_were_sent(fx) {
        let name = name(&fx);
        let (sender, mut handled) = mpsc::unbounded_channel();
        let queue = ordered(&fx.mq, &name)
            .prefetch(20)
            .consume(move |event: Message<Event>| {
                let sent = sender.send(event.into_payload());
                async move { Ok(sent?) }
            })
            .await
            .unwrap();
        let mut last: HashMap<String, u64> = HashMap::new();
        let sent: Vec<Event> =
            (0..200).map(|number| event(format!("key{}", number % 10), number)).collect();
        let partitions = queue.send_all(&sent).await.unwrap();
        for (event, partition) in sent.iter().zip(partitions) {
            let expected = Partitioning::default().partition_for(&event.key, PARTITIONS).unwrap();
            assert_eq!(partition, expected);
            assert_eq!(queue.queue_for(&event.key).unwrap(), format!("{name}.p{partition}"));
        }
        for _ in &sent {
            let event = soon("a message", handled.recv()).await.unwrap();
            let last = last.entry(event.key).or_default();
            assert!(event.number >= *last);
            *last = event.number;
        }
        eventually("the counts", async || {
            queue.stats().iter().map(|of| of.handled).sum::<u64>() == 200
        })
        .await;
        assert!(queue.close().await.is_complete());
    }

    async fn one_process_at_a_time_handles_a_partition_and_the_next_goes_on_in_order(fx) {
        let name = name(&fx);
        let overlap = Arc::new(AtomicUsize::new(0));
        let (sender, mut handled) = mpsc::unbounded_channel();
        let mut owners = Vec::new();
        for _ in 0..3 {
            let mq = fx.another().await;
            let (overlap, sender) = (Arc::clone(&overlap), sender.clone());
            let queue = ordered(&mq, &name)
                .prefetch(10)
                .consume(move |event: Message<Event>| {
                    let (overlap, sender) = (Arc::clone(&overlap), sender.clone());
                    async move {
                        assert_eq!(overlap.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                        tokio::task::yield_now().await;
                        overlap.fetch_sub(1, Ordering::SeqCst);
                        Ok(sender.send(event.payload().number)?)
                    }
                })
                .await
                .unwrap();
            owners.push((mq, queue));
        }
        let sending = ordered(&fx.mq, &name).declare().await.unwrap();
        let key = "only";
        let sender = tokio::spawn(async move {
            for number in 0..300 {
                sending.send(&event(key, number)).await.unwrap();
            }
        });
        let mut next = 0;
        while next < 300 {
            let number = soon("a message", handled.recv()).await.unwrap();
            // A message whose acknowledgement was lost comes once more, before later ones.
            assert!(number <= next, "{number} came before {next}");
            next = next.max(number + 1);
            if number % 100 == 50 && owners.len() > 1 {
                // The active one goes, with messages in hand.
                let active = owners.iter().position(|(_, queue)| {
                    queue.stats().iter().any(|of| of.handled > 0)
                });
                let (mq, _queue) = owners.remove(active.unwrap_or(0));
                assert!(soon("the close", mq.close()).await.is_complete());
            }
        }
        sender.await.unwrap();
        for (mq, _) in owners {
            let _ = mq.close().await;
        }
    }

    async fn lanes_let_other_keys_of_a_partition_go_on_and_keep_the_order_of_each(fx) {
        let name = name(&fx);
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (sender, mut handled) = mpsc::unbounded_channel();
        let (opened, told) = (Arc::clone(&gate), sender.clone());
        let queue = fx
            .mq
            .ordered::<Event>(name.as_str())
            .partitions(1)
            .keyed_by(|event: &Event| event.key.clone())
            .concurrency_per_partition(3)
            .consume(move |event: Message<Event>| {
                let (gate, told) = (Arc::clone(&opened), told.clone());
                async move {
                    if event.payload().key == "slow" {
                        gate.acquire().await.map_err(HandlerError::retry)?.forget();
                    }
                    Ok(told.send(event.into_payload())?)
                }
            })
            .await
            .unwrap();
        for number in 0..3 {
            queue.send(&event("slow", number)).await.unwrap();
        }
        for number in 0..5 {
            queue.send(&event("quick", number)).await.unwrap();
        }
        for number in 0..5 {
            assert_eq!(soon("a quick one", handled.recv()).await.unwrap(), event("quick", number));
        }
        gate.add_permits(3);
        for number in 0..3 {
            assert_eq!(soon("a slow one", handled.recv()).await.unwrap(), event("slow", number));
        }
    }

    async fn another_number_of_partitions_is_refused_with_both_numbers(fx) {
        let name = name(&fx);
        let _queue = ordered(&fx.mq, &name).declare().await.unwrap();
        let other = fx.another().await;
        let refused = ordered(&other, &name).partitions(8).declare().await;
        match refused {
            Err(error @ Error::InvalidOption { option: "partitions", .. }) => {
                let text = error.to_string();
                assert!(text.contains('8') && text.contains('4'), "{text}");
            }
            refused => panic!("{refused:?}"),
        }
        assert!(ordered(&other, &name).declare().await.is_ok());
        let _ = other.close().await;
    }

    async fn the_family_s_layout_is_that_of_java(fx) {
        let name = name(&fx);
        let _ours =
            ordered(&fx.mq, &name).layout(OrderedLayout::Family).declare().await.unwrap();
        // As Java declares it; and what another layout meets there says so.
        let java = acemq::Topology::new().queue(acemq::Queue::quorum(format!("{name}.p0")));
        fx.mq.declare(&java).await.unwrap();
        let other = fx.another().await;
        let refused = ordered(&other, &name).declare().await;
        assert!(matches!(refused, Err(Error::TopologyMismatch { .. })), "{refused:?}");
        let _ = other.close().await;
    }
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_before_anything_is_declared() {
    use crate::support::{Broker, Fixture};

    let fx = Fixture::on(Broker::Memory).await;
    let builder = || ordered(&fx.mq, "o");
    let handler = |_: Message<Event>| async { Ok(()) };
    let retry =
        |attempts, delay| OnFailure::RetryInPlace { attempts, delay, then: acemq::Then::Stop };
    let refused = [
        ("partitions", builder().partitions(0).declare().await),
        ("partitions", builder().partitions(10).declare().await),
        ("keyed_by", fx.mq.ordered::<Event>("o").declare().await),
        ("ordered", ordered(&fx.mq, "").declare().await),
        ("ordered", ordered(&fx.mq, &"x".repeat(250)).declare().await),
        ("prefetch", builder().prefetch(0).consume(handler).await),
        ("prefetch", builder().prefetch(2).concurrency_per_partition(3).consume(handler).await),
        (
            "concurrency_per_partition",
            builder().concurrency_per_partition(0).consume(handler).await,
        ),
        ("on_failure", builder().on_failure(retry(0, Duration::ZERO)).consume(handler).await),
        (
            "on_failure",
            builder().on_failure(retry(5, Duration::from_hours(1))).consume(handler).await,
        ),
    ];
    for (option, result) in refused {
        match result {
            Err(Error::InvalidOption { option: named, .. }) => assert_eq!(named, option),
            other => panic!("{option}: {other:?}"),
        }
    }
    assert_eq!(fx.mq.queue_length("o.p0").await.unwrap(), None);
    let queue = builder().declare().await.unwrap();
    let empty = queue.send(&event("", 1)).await;
    assert!(matches!(empty, Err(Error::InvalidOption { option: "key", .. })), "{empty:?}");
    assert!(
        builder().partitions(12).partitioning(Partitioning::Java).declare().await.is_err(),
        "it has 4"
    );
}
