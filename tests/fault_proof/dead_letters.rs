//! What was set aside: everything that was meant to be, and nothing else.

use std::collections::BTreeSet;

use acemq::consume::ReplayCandidate;

use crate::{
    books::Books,
    system::{Order, System, is_refused},
};

/// The messages of every dead-letter and parked queue that has some.
pub struct DeadLetters(Vec<(String, Vec<ReplayCandidate>)>);

pub async fn read(system: &System) -> DeadLetters {
    let mut found = Vec::new();
    for (queue, count) in system.queues().await {
        let is_aside = queue.ends_with(".dlq") || queue.ends_with(".parked");
        if is_aside && count > 0 {
            let messages = system.site.mq.replay(&*queue).preview(100_000).await.unwrap();
            found.push((queue, messages));
        }
    }
    DeadLetters(found)
}

impl DeadLetters {
    pub fn check(&self, books: &Books) {
        let mut refused = BTreeSet::new();
        for (queue, messages) in &self.0 {
            for message in messages {
                if queue.ends_with(".mail.dlq") {
                    let order: Order = serde_json::from_slice(message.body()).unwrap();
                    assert!(order.is_refused(), "{order:?} is in {queue}: {:?}", message.error());
                    refused.insert(order.id);
                } else {
                    // A request whose caller waits no longer.
                    let reason = message.died().map(|death| death.reason);
                    let expired = reason.as_deref() == Some("expired");
                    assert!(queue.ends_with(".prices.dlq") && expired, "{queue}: {message:?}");
                }
            }
        }
        let expected: BTreeSet<i64> = books.orders().filter(|order| is_refused(*order)).collect();
        assert_eq!(refused, expected, "refused mail");
    }
}
