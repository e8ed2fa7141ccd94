//! What a message pays for being watched where nobody watches.

use std::time::{Duration, Instant};

use super::{ConsumerMetrics, Sending, Settled, TraceContext, process_span};
use crate::message::Envelope;

const ROUND: u32 = 10_000;

/// The time of one call, in the quickest of some rounds: what else runs only makes it slower.
fn quickest(mut call: impl FnMut()) -> Duration {
    let rounds = (0..20).map(|_| {
        let since = Instant::now();
        (0..ROUND).for_each(|_| call());
        since.elapsed() / ROUND
    });
    rounds.min().expect("there are rounds")
}

/// Run with `cargo test --release --lib cost_little -- --nocapture`.
#[test]
fn a_publish_and_a_delivery_that_nobody_watches_cost_little() {
    let envelope = Envelope::of("order.placed");
    let publish = quickest(|| {
        let sending = Sending::start("orders", "order.placed", &envelope, "rabbitmq");
        let _stamped = TraceContext::stamp(envelope.clone());
        sending.end(&Ok(()));
    });
    let metrics = ConsumerMetrics::new("billing.orders");
    let consume = quickest(|| {
        let span = process_span("billing.orders", "order.placed", &envelope);
        let watched = metrics.arrived(&envelope, &span);
        let _context = TraceContext::of(envelope.headers());
        watched.ended(Settled::Acked);
    });
    println!("publish {publish:?}, delivery {consume:?}");
    if !cfg!(debug_assertions) {
        assert!(publish + consume <= Duration::from_micros(3), "{publish:?} and {consume:?}");
    }
}
