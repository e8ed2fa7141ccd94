//! Nothing that a peer writes into a message stops the broker.

use proptest::prelude::*;

use super::{Fixture, message, ms, subscribe};
use crate::{
    error::Error,
    message::{
        Envelope, HeaderValue,
        random_tables::{cases, received, value},
    },
    topology::{Binding, Exchange, Queue, Topology},
    transport::Outgoing,
};

/// Histories that a client could have made up.
fn history() -> impl Strategy<Value = HeaderValue> {
    let entry = prop_oneof![
        3 => (any::<bool>(), prop::option::of(value())).prop_map(|(rejected, count)| {
            let reason = if rejected { "rejected" } else { "expired" };
            let mut entry = crate::message::Headers::new();
            entry.insert("queue", "q");
            entry.insert("reason", reason);
            if let Some(count) = count {
                entry.insert("count", count);
            }
            HeaderValue::Table(entry)
        }),
        1 => value(),
    ];
    prop_oneof![3 => prop::collection::vec(entry, 0..5).prop_map(HeaderValue::List), 1 => value()]
}

async fn survives(outgoing: Outgoing, wanted: crate::message::Headers, quorum: bool) {
    let queue = if quorum {
        Queue::quorum("q").delivery_limit(1)
    } else {
        Queue::classic("q").max_priority(3)
    };
    let f = Fixture::with_queue(queue.dead_letter_to("", "dead")).await;
    f.declare(Queue::classic("dead").message_ttl(ms(10)).dead_letter_to("", "q")).await;
    let bindings = Topology::new().exchange(Exchange::headers("h")).bind("q", "amq.topic", "#");
    f.link.declare(&bindings).await.unwrap();
    let any = wanted.iter().fold(Binding::new("q", "h", ""), |binding, (name, value)| {
        binding.argument(name, value.clone())
    });
    // An `x-match` of nonsense is refused.
    let bound = f.link.declare(&Topology::new().binding(any)).await;
    assert!(matches!(bound, Ok(()) | Err(Error::BrokerRefused { code: 406, .. })), "{bound:?}");

    for exchange in ["", "amq.topic", "h"] {
        let outgoing = Outgoing { exchange: exchange.to_owned(), ..outgoing.clone() };
        let answer = f.link.publish(outgoing).await;
        let told = matches!(
            answer,
            Ok(()) | Err(Error::BrokerRefused { code: 406, .. } | Error::Unroutable { .. })
        );
        assert!(told, "{answer:?}");
    }
    for requeue in [true, false, true, true] {
        let mut pull = f.link.pull("q").await.unwrap();
        while let Some(delivery) = pull.next().await.unwrap() {
            let envelope =
                Envelope::from_properties(&delivery.properties, &delivery.routing_key, 0);
            assert!(!envelope.id().is_empty());
            delivery.settle.nack(requeue).await.unwrap();
            if requeue {
                break;
            }
        }
        tokio::time::advance(ms(20)).await;
    }
    f.link.delete_queue("q").await.unwrap();
    f.declare(Queue::classic("q")).await;
    f.link.publish(message("q", "still there")).await.unwrap();
    let subscription = f.link.subscribe(subscribe("q", 5)).await.unwrap();
    assert!(subscription.control.is_open());
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn any_message_is_routed_dies_and_comes_back_or_is_refused(
        properties in received(),
        history in prop::option::of(history()),
        wanted in crate::message::random_tables::table(),
        quorum in any::<bool>(),
    ) {
        let mut outgoing = message("q", "x");
        outgoing.properties = properties;
        if let Some(history) = history {
            outgoing.properties.headers.insert("x-death", history);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(survives(outgoing, wanted, quorum));
    }
}
