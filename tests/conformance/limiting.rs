//! Full queues, priorities, and the way round of dead letters.

use std::time::Duration;

use acemq::{BytesCodec, Error, HeaderValue, Overflow, Queue, Topology};
use bytes::Bytes;

use crate::support::{AnyBody, Fixture, Inbox, eventually};

on_both_brokers! {
    async fn a_queue_that_drops_its_head_keeps_the_youngest_and_dead_letters_the_oldest(fx) {
        for quorum in [false, true] {
            let (queue, dead) = (fx.name("queue"), fx.name("dead"));
            let kind = if quorum { Queue::quorum(queue.as_str()) } else { Queue::classic(queue.as_str()) };
            let topology = Topology::new()
                .queue(kind.max_length(3, Overflow::DropHead).dead_letter_to("", dead.as_str()))
                .queue(Queue::classic(dead.as_str()));
            fx.mq.declare(&topology).await.unwrap();
            send(&fx, &queue, 1..=7).await;
            fx.until_length(&dead, 4).await;
            let lost = drain(&fx, &dead).await;
            let kept = drain(&fx, &queue).await;
            assert_eq!((bodies(&lost), bodies(&kept)), (vec![1, 2, 3, 4], vec![5, 6, 7]));
            for message in lost {
                let Some(HeaderValue::List(deaths)) = message.headers().get("x-death") else { panic!("no x-death") };
                let HeaderValue::Table(death) = &deaths[0] else { panic!("no table") };
                assert_eq!(death.text("reason"), Some("maxlen"));
                assert_eq!(death.text("queue"), Some(queue.as_str()));
            }
        }
    }

    async fn a_queue_may_be_limited_by_bytes_of_bodies(fx) {
        for quorum in [false, true] {
            let queue = fx.name("queue");
            let kind = if quorum { Queue::quorum(queue.as_str()) } else { Queue::classic(queue.as_str()) };
            let small = kind.max_length_bytes(10, Overflow::DropHead);
            fx.mq.declare(&Topology::new().queue(small)).await.unwrap();
            let publisher = fx.mq.publisher_with::<Bytes>("", queue.as_str(), BytesCodec);
            for (size, waiting) in [(4, 1), (4, 2), (2, 3), (1, 3), (10, 1), (11, 0), (3, 1), (0, 2)] {
                publisher.send(&Bytes::from(vec![7; size])).await.unwrap();
                fx.until_length(&queue, waiting).await;
            }
        }
    }

    async fn a_full_queue_may_dead_letter_what_it_refuses(fx) {
        let (queue, dead) = (fx.name("queue"), fx.name("dead"));
        let full = Queue::classic(queue.as_str())
            .max_length(2, Overflow::RejectPublishDeadLetter)
            .dead_letter_to("", dead.as_str());
        let topology = Topology::new().queue(full).queue(Queue::classic(dead.as_str()));
        fx.mq.declare(&topology).await.unwrap();
        send(&fx, &queue, 1..=2).await;
        let refused = fx.mq.publisher::<u32>("", queue.as_str()).send(&3).await.unwrap_err();
        assert!(matches!(refused, Error::Nacked { .. }), "{refused}");
        fx.until_length(&dead, 1).await;
        assert_eq!(bodies(&drain(&fx, &dead).await), [3]);
        assert_eq!(bodies(&drain(&fx, &queue).await), [1, 2]);
    }

    async fn higher_priorities_come_first_and_equal_ones_in_order(fx) {
        let queue = fx.name("queue");
        let ranked = Queue::classic(queue.as_str()).max_priority(5);
        fx.mq.declare(&Topology::new().queue(ranked)).await.unwrap();
        let publisher = || fx.mq.publisher::<u32>("", queue.as_str());
        for (body, priority) in [(1, Some(0)), (2, None), (3, Some(5)), (4, Some(2)), (5, Some(9)), (6, Some(2))] {
            let publisher = match priority {
                Some(priority) => publisher().priority(priority),
                None => publisher(),
            };
            publisher.send(&body).await.unwrap();
        }
        assert_eq!(bodies(&drain(&fx, &queue).await), [3, 5, 4, 6, 1, 2]);
    }

    async fn a_full_queue_with_priorities_drops_what_would_come_next(fx) {
        let queue = fx.name("queue");
        let ranked = Queue::classic(queue.as_str()).max_priority(5).max_length(2, Overflow::DropHead);
        fx.mq.declare(&Topology::new().queue(ranked)).await.unwrap();
        for (body, priority) in [(1, 0), (2, 5), (3, 1)] {
            fx.mq.publisher::<u32>("", queue.as_str()).priority(priority).send(&body).await.unwrap();
        }
        assert_eq!(bodies(&drain(&fx, &queue).await), [3, 1]);
    }

    async fn a_consumer_of_higher_priority_is_served_first(fx) {
        for quorum in [false, true] {
            let queue = fx.name("queue");
            let kind = if quorum { Queue::quorum(queue.as_str()) } else { Queue::classic(queue.as_str()) };
            fx.mq.declare(&Topology::new().queue(kind)).await.unwrap();
            let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
            let mut consumers = Vec::new();
            for priority in [1, 10, -5] {
                let sender = sender.clone();
                let consumer = fx.mq.consumer_with::<Bytes>(queue.as_str(), AnyBody)
                    .priority(priority)
                    .prefetch(8)
                    .start(move |_| {
                        let sent = sender.send(priority);
                        async move { Ok(sent?) }
                    })
                    .await
                    .unwrap();
                consumers.push(consumer);
            }
            for number in 0..5 {
                send(&fx, &queue, number..=number).await;
                let by = crate::support::soon("a delivery", served.recv()).await;
                assert_eq!(by, Some(10));
            }
            for consumer in consumers {
                consumer.close().await;
            }
        }
    }

    async fn a_quorum_queue_with_priorities_is_refused_before_anything_is_declared(fx) {
        let fine = fx.name("fine");
        for wrong in [
            Queue::quorum(fx.name("q")).max_priority(5),
            Queue::quorum(fx.name("q")).max_length(5, Overflow::RejectPublishDeadLetter),
        ] {
            let topology = Topology::new().queue(Queue::classic(fine.as_str())).queue(wrong);
            let error = fx.mq.declare(&topology).await.unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option: "queue", .. }), "{error}");
        }
        assert_eq!(fx.mq.queue_length(&fine).await.unwrap(), None);
    }

    async fn messages_that_die_in_a_ring_by_themselves_end(fx) {
        let [one, two] = ["one", "two"].map(|name| fx.name(name));
        let ring = |name: &str, next: &str| {
            Queue::classic(name).message_ttl(Duration::from_millis(20)).dead_letter_to("", next)
        };
        let topology = Topology::new()
            .queue(ring(&one, &two))
            .queue(ring(&two, &one));
        fx.mq.declare(&topology).await.unwrap();
        send(&fx, &one, 1..=3).await;
        for queue in [&one, &two] {
            fx.until_length(queue, 0).await;
        }
        // Out of `one` into `two`, and from there it would come back: dropped.
        eventually("both to stay empty", async || {
            fx.mq.queue_length(&one).await.unwrap() == Some(0)
                && fx.mq.queue_length(&two).await.unwrap() == Some(0)
        })
        .await;
    }
}

async fn send(fx: &Fixture, queue: &str, bodies: std::ops::RangeInclusive<u32>) {
    for body in bodies {
        fx.mq.publisher::<u32>("", queue).send(&body).await.unwrap();
    }
}

/// Takes all that is in a queue, in order.
async fn drain(fx: &Fixture, queue: &str) -> Vec<acemq::Message<Bytes>> {
    let waiting = fx.mq.queue_length(queue).await.unwrap().unwrap();
    let mut inbox = Inbox::of(&fx.mq, queue).await;
    let mut messages = Vec::new();
    for _ in 0..waiting {
        messages.push(inbox.next().await);
    }
    inbox.consumer.close().await;
    messages
}

fn bodies(messages: &[acemq::Message<Bytes>]) -> Vec<u32> {
    let number =
        |m: &acemq::Message<Bytes>| std::str::from_utf8(m.body()).unwrap().parse().unwrap();
    messages.iter().map(number).collect()
}
