//! Headers exchanges, exchanges bound to exchanges, alternates.

use std::slice::from_ref;

use acemq::{
    Binding, Envelope, Error, Exchange, HeaderMatch, HeaderValue, Headers, Queue, Topology,
};

use crate::support::{Broker, Fixture};

type Header = (&'static str, HeaderValue);

on_both_brokers! {
    async fn a_headers_exchange_compares_values_as_each_binding_asks(fx) {
        let exchange = fx.name("headers");
        let headers = |pairs: &[Header]| -> Headers { pairs.iter().cloned().collect() };
        let a1: Header = ("a", 1.into());
        let b: Header = ("b", "text".into());
        let x: Header = ("x-c", true.into());
        let presence: Header = ("p", HeaderValue::Null);
        let bindings = [
            ("all", HeaderMatch::All, headers(&[a1.clone(), b.clone(), x.clone()])),
            ("any", HeaderMatch::Any, headers(&[a1.clone(), b.clone(), x.clone()])),
            ("all x", HeaderMatch::AllWithX, headers(&[a1.clone(), x.clone()])),
            ("any x", HeaderMatch::AnyWithX, headers(&[b.clone(), x.clone()])),
            ("there", HeaderMatch::All, headers(from_ref(&presence))),
            ("nothing all", HeaderMatch::All, headers(&[])),
            ("nothing any", HeaderMatch::Any, headers(&[])),
        ];
        let mut topology = Topology::new().exchange(Exchange::headers(exchange.as_str()).auto_delete());
        let mut queues = Vec::new();
        for (_, matching, wanted) in &bindings {
            let queue = fx.name("q");
            let binding = wanted.iter().fold(
                Binding::headers(queue.as_str(), exchange.as_str(), *matching),
                |binding, (name, value)| binding.argument(name, value.clone()),
            );
            topology = topology.queue(Queue::classic(queue.as_str())).binding(binding);
            queues.push(queue);
        }
        fx.mq.declare(&topology).await.unwrap();
        let publisher = fx.mq.publisher::<u32>(exchange.as_str(), "ignored");
        let pairs: &[(&[Header], &[&str])] = &[
            (&[], &["nothing all"]),
            (&[a1.clone(), b.clone()], &["all", "any", "any x", "nothing all"]),
            (&[a1.clone(), x.clone()], &["any", "all x", "any x", "nothing all"]),
            (from_ref(&x), &["any x", "nothing all"]),
            (&[("a", HeaderValue::Long(1))], &["any", "nothing all"]),
            (&[("a", HeaderValue::Double(1.0))], &["any", "nothing all"]),
            (&[("a", HeaderValue::Timestamp(1))], &["any", "nothing all"]),
            (&[("a", "1".into())], &["nothing all"]),
            (&[("a", true.into()), ("b", 1.into())], &["nothing all"]),
            (&[("b", HeaderValue::Bytes("text".into()))], &["any", "any x", "nothing all"]),
            (&[("p", HeaderValue::List(vec![]))], &["there", "nothing all"]),
            (from_ref(&presence), &["there", "nothing all"]),
        ];
        for (sent, expected) in pairs {
            let envelope = sent.iter().fold(Envelope::new(), |envelope, (name, value)| {
                envelope.header(*name, value.clone())
            });
            let before = lengths(&fx, &queues).await;
            publisher.send_with(&1, envelope).await.unwrap();
            let after = lengths(&fx, &queues).await;
            let hit = (0..queues.len()).filter(|i| after[*i] > before[*i]);
            let hit: Vec<&str> = hit.map(|i| bindings[i].0).collect();
            assert_eq!(hit, *expected, "{sent:?}");
        }
    }

    async fn a_headers_binding_that_makes_no_sense_is_refused_in_the_brokers_words(fx) {
        let (exchange, queue) = (fx.name("headers"), fx.name("queue"));
        let topology = Topology::new()
            .exchange(Exchange::headers(exchange.as_str()).auto_delete())
            .queue(Queue::classic(queue.as_str()))
            .binding(Binding::headers(queue.as_str(), exchange.as_str(), HeaderMatch::All));
        fx.mq.declare(&topology).await.unwrap();
        for (value, words) in [
            (HeaderValue::from("most"), "value <<\"most\">>; expected all, any, all-with-x, or any-with-x"),
            (HeaderValue::from(""), "value <<>>; expected all, any, all-with-x, or any-with-x"),
            (HeaderValue::from("d\u{e9}j\u{e0}"), "value <<"),
            (HeaderValue::from(5_i64), "type long (value 5); expected longstr"),
            (HeaderValue::from(true), "type bool (value true); expected longstr"),
        ] {
            let binding = Binding::new(queue.as_str(), exchange.as_str(), "").argument("x-match", value);
            let refused = fx.mq.declare(&Topology::new().binding(binding)).await.unwrap_err();
            let wanted = format!("PRECONDITION_FAILED - Invalid x-match field {words}");
            assert!(
                matches!(&refused, Error::BrokerRefused { code: 406, reason } if reason.starts_with(&wanted)),
                "{refused} is not {wanted}"
            );
        }
    }

    async fn exchanges_bound_to_each_other_reach_each_queue_once_and_a_ring_ends(fx) {
        let [all, some, ring] = ["all", "some", "ring"].map(|name| fx.name(name));
        let [one, two] = ["one", "two"].map(|name| fx.name(name));
        let topology = Topology::new()
            .exchange(Exchange::topic(all.as_str()).auto_delete())
            .exchange(Exchange::direct(some.as_str()).auto_delete())
            .exchange(Exchange::fanout(ring.as_str()).auto_delete())
            .queue(Queue::classic(one.as_str()))
            .queue(Queue::classic(two.as_str()))
            .bind(one.as_str(), some.as_str(), "a.b")
            .bind(one.as_str(), all.as_str(), "#")
            .bind(two.as_str(), ring.as_str(), "")
            .bind_exchange(some.as_str(), all.as_str(), "a.*")
            .bind_exchange(ring.as_str(), some.as_str(), "a.b")
            .bind_exchange(all.as_str(), ring.as_str(), "");
        fx.mq.declare(&topology).await.unwrap();
        fx.mq.declare(&topology).await.unwrap();
        for (exchange, key, expected) in [
            (&all, "a.b", [1, 1]),
            (&all, "a.c", [1, 0]),
            (&some, "a.b", [1, 1]),
            (&ring, "x", [1, 1]),
        ] {
            let before = lengths(&fx, &[one.clone(), two.clone()]).await;
            fx.mq.publisher::<u32>(exchange.as_str(), key).send(&1).await.unwrap();
            let after = lengths(&fx, &[one.clone(), two.clone()]).await;
            assert_eq!([after[0] - before[0], after[1] - before[1]], expected, "{key}");
        }
        let unroutable = fx.mq.publisher::<u32>(some.as_str(), "none").send(&1).await.unwrap_err();
        assert!(matches!(unroutable, Error::Unroutable { .. }), "{unroutable}");
        // A ring holds itself.
        delete_exchanges(&fx, &[all, some, ring]).await;
    }

    async fn an_auto_deleted_exchange_goes_with_the_last_way_from_it_and_so_do_those_before(fx) {
        let [first, second, bystander] = ["first", "second", "bystander"].map(|name| fx.name(name));
        let (queue, other) = (fx.name("queue"), fx.name("other"));
        let topology = Topology::new()
            .exchange(Exchange::topic(first.as_str()).auto_delete())
            .exchange(Exchange::topic(second.as_str()).auto_delete())
            .exchange(Exchange::topic(bystander.as_str()).auto_delete())
            .queue(Queue::classic(queue.as_str()))
            .queue(Queue::classic(other.as_str()))
            .bind(other.as_str(), bystander.as_str(), "#")
            .bind(queue.as_str(), second.as_str(), "#")
            .bind_exchange(second.as_str(), first.as_str(), "#")
            .bind_exchange(second.as_str(), bystander.as_str(), "#");
        let mq = fx.another().await;
        mq.declare(&topology).await.unwrap();
        mq.delete_queue(&queue).await.unwrap();
        for (exchange, there) in [(&first, false), (&second, false), (&bystander, true)] {
            let sent = mq.publisher::<u32>(exchange.as_str(), "k").send(&1).await;
            match sent {
                Ok(_) => assert!(there, "{exchange}"),
                Err(Error::NotFound { .. }) => assert!(!there, "{exchange}"),
                Err(error) => panic!("{error}"),
            }
        }
        mq.close().await;
    }

    async fn a_binding_between_exchanges_needs_both(fx) {
        let (exchange, queue, missing) = (fx.name("exchange"), fx.name("queue"), fx.name("missing"));
        let topology = Topology::new()
            .exchange(Exchange::topic(exchange.as_str()).auto_delete())
            .queue(Queue::classic(queue.as_str()))
            .bind(queue.as_str(), exchange.as_str(), "#");
        fx.mq.declare(&topology).await.unwrap();
        for (to, from) in [(&exchange, &missing), (&missing, &exchange)] {
            let topology = Topology::new().bind_exchange(to.as_str(), from.as_str(), "k");
            let refused = fx.mq.declare(&topology).await.unwrap_err();
            let wanted = format!("NOT_FOUND - no exchange '{missing}' in vhost '/'");
            assert!(matches!(&refused, Error::NotFound { reason } if *reason == wanted), "{refused}");
        }
    }

    async fn what_no_binding_takes_goes_to_the_alternate_exchange(fx) {
        let [first, second, third] = ["first", "second", "third"].map(|name| fx.name(name));
        let queues = ["bound", "second", "third"].map(|name| fx.name(name));
        let topology = Topology::new()
            .exchange(Exchange::direct(first.as_str()).auto_delete().alternate_exchange(second.as_str()))
            .exchange(Exchange::direct(second.as_str()).auto_delete().alternate_exchange(third.as_str()))
            .exchange(Exchange::direct(third.as_str()).auto_delete().alternate_exchange(first.as_str()))
            .queue(Queue::classic(queues[0].as_str()))
            .queue(Queue::classic(queues[1].as_str()))
            .queue(Queue::classic(queues[2].as_str()))
            .bind(queues[0].as_str(), first.as_str(), "first")
            .bind(queues[1].as_str(), second.as_str(), "second")
            .bind(queues[2].as_str(), third.as_str(), "third");
        fx.mq.declare(&topology).await.unwrap();
        let send = |key: &str| {
            let publisher = fx.mq.publisher::<u32>(first.as_str(), key);
            async move { publisher.send(&1).await }
        };
        send("first").await.unwrap();
        assert_eq!(lengths(&fx, &queues).await, [1, 0, 0]);
        send("second").await.unwrap();
        assert_eq!(lengths(&fx, &queues).await, [1, 1, 0]);
        send("third").await.unwrap();
        assert_eq!(lengths(&fx, &queues).await, [1, 1, 1]);
        // Round the ring, and nobody took it.
        let unroutable = send("fourth").await.unwrap_err();
        assert!(matches!(&unroutable, Error::Unroutable { exchange, .. } if *exchange == first), "{unroutable}");
        assert_eq!(lengths(&fx, &queues).await, [1, 1, 1]);
    }

    async fn a_missing_alternate_takes_nothing_and_a_different_one_is_named(fx) {
        let (exchange, queue, missing) = (fx.name("exchange"), fx.name("queue"), fx.name("missing"));
        let direct = || Exchange::direct(exchange.as_str()).auto_delete();
        let topology = Topology::new()
            .exchange(direct().alternate_exchange(missing.as_str()))
            .queue(Queue::classic(queue.as_str()))
            .bind(queue.as_str(), exchange.as_str(), "k");
        fx.mq.declare(&topology).await.unwrap();
        fx.mq.declare(&topology).await.unwrap();
        let publisher = fx.mq.publisher::<u32>(exchange.as_str(), "other");
        assert!(matches!(publisher.send(&1).await, Err(Error::Unroutable { .. })));
        publisher.not_mandatory().send(&1).await.unwrap();
        for other in [direct(), direct().alternate_exchange("another")] {
            let error = fx.mq.declare(&Topology::new().exchange(other)).await.unwrap_err();
            match &error {
                Error::TopologyMismatch { object, name, argument, found, .. } => {
                    assert_eq!((object.as_str(), name), ("exchange", &exchange));
                    assert_eq!(argument, "alternate-exchange");
                    assert!(found.contains(&missing), "{found}");
                }
                _ => panic!("{error}"),
            }
        }
        let odd = Exchange::direct(fx.name("odd")).argument("alternate-exchange", 5);
        let refused = fx.mq.declare(&Topology::new().exchange(odd)).await.unwrap_err();
        let words = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange '";
        assert!(
            matches!(&refused, Error::BrokerRefused { code: 406, reason } if reason.starts_with(words)),
            "{refused}"
        );
    }

    async fn a_queue_that_is_deleted_behind_a_handle_comes_back_with_the_whole_way_to_it(fx) {
        let [first, second] = ["first", "second"].map(|name| fx.name(name));
        let queue = fx.name("queue");
        let topology = Topology::new()
            .exchange(Exchange::topic(first.as_str()).auto_delete())
            .exchange(Exchange::fanout(second.as_str()).auto_delete())
            .queue(Queue::classic(queue.as_str()))
            .bind(queue.as_str(), second.as_str(), "")
            .bind_exchange(second.as_str(), first.as_str(), "a.#");
        fx.mq.declare(&topology).await.unwrap();
        let mut inbox = crate::support::Inbox::of(&fx.mq, &queue).await;
        let another = fx.another().await;
        another.delete_queue(&queue).await.unwrap();
        let publisher = fx.mq.publisher::<u32>(first.as_str(), "a.b");
        crate::support::eventually("the way to be there again", async || {
            publisher.send(&7).await.is_ok()
        })
        .await;
        assert_eq!(inbox.next().await.body().as_ref(), b"7");
        another.close().await;
    }
}

/// The library deletes no exchange.
async fn delete_exchanges(fx: &Fixture, exchanges: &[String]) {
    if fx.broker == Broker::Memory {
        return;
    }
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&fx.url, properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for exchange in exchanges {
        let options = lapin::options::ExchangeDeleteOptions::default();
        channel.exchange_delete(exchange.as_str().into(), options).await.unwrap();
    }
    connection.close(200, "OK".into()).await.unwrap();
}

async fn lengths(fx: &Fixture, queues: &[String]) -> Vec<u64> {
    let mut lengths = Vec::new();
    for queue in queues {
        lengths.push(fx.mq.queue_length(queue).await.unwrap().unwrap());
    }
    lengths
}
