//! Declaring and routing.

use std::time::Duration;

use acemq::{Error, Exchange, Queue, Topology};

use crate::support::{Inbox, soon};

on_both_brokers! {
    async fn a_queue_kind_that_the_broker_no_longer_takes_is_refused_once_and_ends_nothing_else(fx) {
        let orders = fx.queue("orders").await;
        let mut inbox = Inbox::of(&fx.mq, &orders).await;
        let transient = Queue::classic(fx.name("transient")).transient();
        let declared = soon("an answer", fx.mq.declare(&Topology::new().queue(transient))).await;
        match declared {
            Ok(()) => {}
            // A RabbitMQ 4 that no longer permits them closes the connection over it.
            Err(Error::BrokerRefused { code: 541, reason }) => {
                assert!(reason.contains("transient_nonexcl_queues"), "{reason}");
            }
            Err(error) => panic!("{error:?}"),
        }
        fx.mq.publisher::<u32>("", orders.as_str()).send(&1).await.unwrap();
        assert_eq!(inbox.next().await.body().as_ref(), b"1");
        // What was refused is not declared again: the connection stays.
        let exclusive = Queue::classic(fx.name("exclusive")).exclusive();
        fx.mq.declare(&Topology::new().queue(exclusive)).await.unwrap();
    }

    async fn declaring_twice_is_no_error(fx) {
        let (exchange, queue) = (fx.name("exchange"), fx.name("queue"));
        let topology = Topology::new()
            .exchange(Exchange::topic(exchange.as_str()).auto_delete())
            .queue(Queue::new(queue.as_str()).delivery_limit(5))
            .bind(queue.as_str(), exchange.as_str(), "a.*");
        fx.mq.declare(&topology).await.unwrap();
        fx.mq.declare(&topology).await.unwrap();
        fx.another().await.declare(&topology).await.unwrap();
        assert_eq!(fx.mq.queue_length(&format!("{queue}.dlq")).await.unwrap(), Some(0));
    }

    async fn a_difference_names_the_queue_the_argument_and_both_values(fx) {
        let queue = fx.name("queue");
        let ttl = |ms| Queue::classic(queue.as_str()).message_ttl(Duration::from_millis(ms));
        fx.mq.declare(&Topology::new().queue(ttl(10_000))).await.unwrap();
        for (other, wanted) in [
            (ttl(20_000), "x-message-ttl"),
            (Queue::classic(queue.as_str()), "x-message-ttl"),
            (ttl(10_000).argument("x-message-ttl", "10000"), "x-message-ttl"),
            (ttl(10_000).transient(), "durable"),
        ] {
            let error = fx.mq.declare(&Topology::new().queue(other)).await.unwrap_err();
            match &error {
                Error::TopologyMismatch { object, name, argument, .. } => {
                    assert_eq!((object.as_str(), name), ("queue", &queue));
                    assert_eq!(argument, wanted);
                }
                // RabbitMQ refuses a TTL of the wrong type before it compares.
                Error::BrokerRefused { code: 406, reason } => assert!(reason.contains(wanted), "{error}"),
                _ => panic!("{error}"),
            }
        }
        // The same number in another width is the same.
        let narrow = Queue::classic(queue.as_str()).argument("x-message-ttl", 10_000_i32);
        fx.mq.declare(&Topology::new().queue(narrow)).await.unwrap();
    }

    async fn quorum_against_classic_is_a_difference_of_the_queue_type(fx) {
        let queue = fx.name("queue");
        fx.mq.declare(&Topology::new().queue(Queue::classic(queue.as_str()))).await.unwrap();
        let error =
            fx.mq.declare(&Topology::new().queue(Queue::quorum(queue.as_str()))).await.unwrap_err();
        assert!(matches!(&error, Error::TopologyMismatch { argument, .. } if argument == "x-queue-type"), "{error}");
    }

    async fn a_binding_to_a_missing_exchange_is_not_found(fx) {
        let queue = fx.queue("queue").await;
        let error = fx.mq.declare(&Topology::new().bind(queue, fx.name("missing"), "k")).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }

    async fn nonsense_is_refused_before_anything_is_declared(fx) {
        let fine = fx.name("fine");
        for nonsense in [
            Queue::quorum(""),
            Queue::classic("q".repeat(256)),
            Queue::classic("amq.mine"),
            Queue::quorum(fx.name("q")).exclusive(),
            Queue::quorum(fx.name("q")).transient(),
        ] {
            let topology = Topology::new().queue(Queue::classic(fine.as_str())).queue(nonsense);
            let error = fx.mq.declare(&topology).await.unwrap_err();
            assert!(matches!(error, Error::InvalidOption { option: "queue", .. }), "{error}");
        }
        assert_eq!(fx.mq.queue_length(&fine).await.unwrap(), None);
    }

    async fn a_topic_exchange_matches_words_as_the_broker_documents(fx) {
        let exchange = fx.name("topic");
        let patterns = ["a.#", "#.b", "a.#.b", "*", "#", "", "a.*", "*.*", "a..b", "#.#"];
        let keys = ["a", "a.b", "", "a..b", "b", ".", "a.x.y.b", "a.b.c", "x.y"];
        let mut topology = Topology::new().exchange(Exchange::topic(exchange.as_str()).auto_delete());
        let mut queues = Vec::new();
        for pattern in patterns {
            let queue = fx.name("q");
            topology = topology
                .queue(Queue::classic(queue.as_str()))
                .bind(queue.as_str(), exchange.as_str(), pattern);
            queues.push(queue);
        }
        fx.mq.declare(&topology).await.unwrap();
        let mut table = Vec::new();
        for key in keys {
            let publisher = fx.mq.publisher::<u32>(exchange.as_str(), key).not_mandatory();
            let before = lengths(&fx, &queues).await;
            publisher.send(&1).await.unwrap();
            let after = lengths(&fx, &queues).await;
            let hit: Vec<&str> = (0..patterns.len())
                .filter(|i| after[*i] > before[*i])
                .map(|i| patterns[i])
                .collect();
            table.push((key, hit));
        }
        // Read off RabbitMQ 3.10.
        let expected = [
            ("a", vec!["a.#", "*", "#", "#.#"]),
            ("a.b", vec!["a.#", "#.b", "a.#.b", "#", "a.*", "*.*", "#.#"]),
            ("", vec!["#", "", "#.#"]),
            ("a..b", vec!["a.#", "#.b", "a.#.b", "#", "a..b", "#.#"]),
            ("b", vec!["#.b", "*", "#", "#.#"]),
            (".", vec!["#", "*.*", "#.#"]),
            ("a.x.y.b", vec!["a.#", "#.b", "a.#.b", "#", "#.#"]),
            ("a.b.c", vec!["a.#", "#", "#.#"]),
            ("x.y", vec!["#", "*.*", "#.#"]),
        ];
        assert_eq!(table, expected);
    }

    async fn a_fanout_exchange_reaches_every_queue_once(fx) {
        let exchange = fx.name("fanout");
        let (one, two) = (fx.name("one"), fx.name("two"));
        let topology = Topology::new()
            .exchange(Exchange::fanout(exchange.as_str()).auto_delete())
            .queue(Queue::classic(one.as_str()))
            .queue(Queue::classic(two.as_str()))
            .bind(one.as_str(), exchange.as_str(), "x")
            .bind(one.as_str(), exchange.as_str(), "y")
            .bind(two.as_str(), exchange.as_str(), "");
        fx.mq.declare(&topology).await.unwrap();
        fx.mq.publisher::<u32>(exchange.as_str(), "anything").send(&1).await.unwrap();
        assert_eq!(lengths(&fx, &[one, two]).await, [1, 1]);
    }

    async fn messages_expire_at_the_head_of_their_queue_only(fx) {
        let queue = fx.name("classic");
        let classic = Queue::classic(queue.as_str())
            .dead_letter_to("acemq.dlx", format!("{queue}.dlq"));
        fx.mq.declare(&Topology::new().queue(classic)).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).ttl(Duration::from_millis(600)).send(&1).await.unwrap();
        fx.mq.publisher::<u32>("", queue.as_str()).ttl(Duration::from_millis(1)).send(&2).await.unwrap();
        // The second is overdue, but waits behind the first.
        assert_eq!(fx.mq.queue_length(&queue).await.unwrap(), Some(2));
        fx.until_length(&format!("{queue}.dlq"), 2).await;
    }
}

async fn lengths(fx: &crate::support::Fixture, queues: &[String]) -> Vec<u64> {
    let mut lengths = Vec::new();
    for queue in queues {
        lengths.push(fx.mq.queue_length(queue).await.unwrap().unwrap());
    }
    lengths
}
