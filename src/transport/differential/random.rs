//! Scripts from a seed.

use fastrand::Rng;

use super::script::{
    LONG_MS, SHORT_MS, Script, Step, Verdict, one_binding, one_exchange, one_queue, publish,
    subscribe,
};
use crate::{
    message::{HeaderValue, Headers},
    topology::{Binding, Exchange, ExchangeKind, HeaderMatch, Overflow, Queue},
    transport::Outgoing,
};

/// Steps of a random script.
const STEPS: usize = 28;

const KEYS: [&str; 5] = ["a", "a.b", "b", "", "a.b.a"];
const PATTERNS: [&str; 8] = ["a", "a.*", "#", "*.b", "a.#.a", "b", "", "*"];

/// Two work queues, each with a dead-letter queue of its own, behind two exchanges.
pub(super) fn script(seed: u64) -> Script {
    let mut rng = Rng::with_seed(seed);
    let mut script = Script::new(format!("seed {seed}"));
    for number in 0..2 {
        let exchange = exchange(&script, number, &mut rng);
        script = script.exchange(exchange);
    }
    for pair in 0..2 {
        let (work, dead) = pair_of_queues(&script, pair, &mut rng);
        script = script.queue(work).queue(dead);
    }
    for _ in 0..rng.usize(3..7) {
        let binding = binding(&script, &mut rng);
        script = script.bind(binding);
    }
    for number in 0..STEPS {
        let step = step(&script, number, &mut rng);
        script = script.then(step);
    }
    script
}

fn one_of<T: Clone>(choices: &[T], rng: &mut Rng) -> T {
    choices[rng.usize(..choices.len())].clone()
}

fn often(percent: u32, rng: &mut Rng) -> bool {
    rng.u32(..100) < percent
}

fn exchange(script: &Script, number: usize, rng: &mut Rng) -> Exchange {
    let kinds =
        [ExchangeKind::Direct, ExchangeKind::Topic, ExchangeKind::Fanout, ExchangeKind::Headers];
    let exchange = Exchange::new(script.name(&format!("x{number}")), one_of(&kinds, rng));
    if often(40, rng) {
        let other = one_of(&["x0", "x1", "missing"], rng);
        return exchange.alternate_exchange(script.name(other));
    }
    exchange
}

/// A queue and the one that its dead letters go to. They may come back from there.
fn pair_of_queues(script: &Script, pair: usize, rng: &mut Rng) -> (Queue, Queue) {
    let (work, dead) = (script.name(&format!("w{pair}")), script.name(&format!("d{pair}")));
    let mut first = queue(&work, rng);
    if often(85, rng) {
        first = if often(70, rng) {
            first.dead_letter_to("", dead.as_str())
        } else {
            // Keeps the keys: of the default exchange, it would come back by itself.
            first.argument("x-dead-letter-exchange", "")
        };
    }
    let second = match rng.u32(..100) {
        0..30 => Queue::quorum(dead),
        30..60 => Queue::classic(dead),
        _ => {
            let ttl = Queue::classic(dead).argument("x-message-ttl", SHORT_MS);
            ttl.dead_letter_to("", work)
        }
    };
    (first, second)
}

fn queue(name: &str, rng: &mut Rng) -> Queue {
    let is_quorum = often(45, rng);
    let mut queue = if is_quorum { Queue::quorum(name) } else { Queue::classic(name) };
    if is_quorum && often(40, rng) {
        queue = queue.delivery_limit(rng.u32(0..3));
    }
    if often(25, rng) {
        // What comes to a quorum queue at almost one time may expire at once or one by one.
        let ttls = if is_quorum { [LONG_MS; 3] } else { [0, SHORT_MS, LONG_MS] };
        queue = queue.argument("x-message-ttl", one_of(&ttls, rng));
    }
    if often(35, rng) {
        let overflows =
            [Overflow::DropHead, Overflow::RejectPublish, Overflow::RejectPublishDeadLetter];
        let overflow = if is_quorum { Overflow::DropHead } else { one_of(&overflows, rng) };
        queue = if often(70, rng) {
            queue.max_length(rng.u32(0..4), overflow)
        } else {
            queue.max_length_bytes(rng.u64(0..20), overflow)
        };
    }
    if !is_quorum && queue.arguments.get("x-message-ttl").is_none() && often(40, rng) {
        queue = queue.max_priority(rng.u8(0..5));
    }
    // A classic one crashes in RabbitMQ 3.10 when a message comes after its consumer was cancelled.
    if is_quorum && often(25, rng) {
        queue = queue.single_active_consumer();
    }
    queue
}

fn binding(script: &Script, rng: &mut Rng) -> Binding {
    let from = script.name(one_of(&["x0", "x1"], rng));
    let key = one_of(&PATTERNS, rng);
    let mut binding = if often(25, rng) {
        Binding::exchange(script.name(one_of(&["x0", "x1"], rng)), from, key)
    } else {
        Binding::new(script.name(one_of(&["w0", "w1"], rng)), from, key)
    };
    for (name, value) in header_table(rng).iter() {
        binding = binding.argument(name, value.clone());
    }
    if often(60, rng) {
        binding = binding.argument("x-match", x_match(rng).as_str());
    }
    binding
}

fn x_match(rng: &mut Rng) -> HeaderMatch {
    let all = [HeaderMatch::All, HeaderMatch::Any, HeaderMatch::AllWithX, HeaderMatch::AnyWithX];
    one_of(&all, rng)
}

/// A few headers with few values, so that they match now and then.
fn header_table(rng: &mut Rng) -> Headers {
    let names = ["h", "i", "x-j", "x-acemq-k"];
    (0..rng.usize(0..4)).map(|_| (one_of(&names, rng), header_value(rng))).collect()
}

fn header_value(rng: &mut Rng) -> HeaderValue {
    let nested = |value: HeaderValue| HeaderValue::Table(Headers::from_iter([("k", value)]));
    one_of(
        &[
            HeaderValue::Int(1),
            HeaderValue::Long(1),
            HeaderValue::Double(1.0),
            HeaderValue::Timestamp(1),
            HeaderValue::from("1"),
            HeaderValue::Bytes("1".into()),
            HeaderValue::Bool(true),
            HeaderValue::Null,
            HeaderValue::List(vec![]),
            HeaderValue::List(vec![HeaderValue::Int(1)]),
            HeaderValue::List(vec![HeaderValue::Long(1)]),
            HeaderValue::Table(Headers::new()),
            nested(HeaderValue::Int(1)),
            nested(HeaderValue::from("1")),
        ],
        rng,
    )
}

fn step(script: &Script, number: usize, rng: &mut Rng) -> Step {
    let queue = |rng: &mut Rng| script.name(one_of(&["w0", "w0", "w1", "d0", "d1"], rng));
    match rng.u32(..100) {
        0..40 => Step::Publish(Box::new(message(script, number, rng))),
        40..53 => {
            let mut request = subscribe(&queue(rng), rng.u16(1..4), one_of(&[0, 0, 0, -1, 2], rng));
            request.exclusive = often(8, rng);
            Step::Subscribe(Box::new(request))
        }
        53..60 => Step::Pull(queue(rng)),
        60..84 => {
            let verdicts = [Verdict::Ack, Verdict::Ack, Verdict::Requeue, Verdict::Reject];
            Step::Settle(rng.usize(..8), one_of(&verdicts, rng))
        }
        84..87 => Step::Cancel(rng.usize(..4)),
        87..90 => Step::Close(rng.usize(..4)),
        90..92 => Step::Delete(queue(rng)),
        92..96 => declare_again(script, rng),
        _ => one_binding(binding(script, rng)),
    }
}

fn message(script: &Script, number: usize, rng: &mut Rng) -> Outgoing {
    let mut exchange = script.name(one_of(&["x0", "x1"], rng));
    let mut key = one_of(&KEYS, rng).to_owned();
    match rng.u32(..100) {
        0..55 => {
            exchange = String::new();
            key = script.name(one_of(&["w0", "w0", "w0", "w1", "w1", "d0", "nowhere"], rng));
        }
        55..58 => exchange = script.name("missing"),
        _ => {}
    }
    let mut message = publish(&exchange, &key, &format!("m{number}"));
    message.mandatory = often(50, rng);
    message.properties.persistent = often(50, rng);
    message.properties.headers = header_table(rng);
    if often(10, rng) && !exchange.is_empty() {
        let more = HeaderValue::List(vec![one_of(&KEYS, rng).into()]);
        message.properties.headers.insert(one_of(&["CC", "BCC"], rng), more);
    }
    if often(40, rng) {
        message.properties.priority = Some(rng.u8(..7));
    }
    let expirations = ["0".to_owned(), SHORT_MS.to_string(), LONG_MS.to_string()];
    let has_priorities =
        script.queues.iter().any(|queue| queue.arguments.get("x-max-priority").is_some());
    if often(25, rng) && !has_priorities {
        message.properties.expiration = Some(one_of(&expirations, rng));
    } else if often(3, rng) {
        message.properties.expiration = Some(one_of(&["soon", "-1", "1.5", ""], rng).to_owned());
    }
    message.body = vec![b'.'; rng.usize(..12)].into();
    message
}

/// Declares what exists or was deleted, as it was or with a difference.
fn declare_again(script: &Script, rng: &mut Rng) -> Step {
    if often(25, rng) {
        let exchange = one_of(&script.exchanges, rng);
        return one_exchange(match rng.u32(..4) {
            0 => exchange.transient(),
            1 => exchange.alternate_exchange(script.name("other")),
            _ => exchange,
        });
    }
    let queue = one_of(&script.queues, rng);
    one_queue(match rng.u32(..12) {
        0 => queue.transient(),
        1 => queue.argument("x-message-ttl", LONG_MS + 1),
        2 => queue.argument("x-max-length", one_of(&[1000, -1], rng)),
        3 => queue.argument("x-max-priority", one_of(&[7, 300], rng)),
        4 => queue.argument("x-overflow", one_of(&["drop-head", "reject-publish", "odd"], rng)),
        5 => queue.argument("x-dead-letter-routing-key", "another"),
        6 => queue.argument("x-delivery-limit", 9),
        7 => queue.argument("x-queue-type", one_of(&["classic", "quorum", "odd"], rng)),
        _ => queue,
    })
}

/// Random pairs of topic patterns and keys.
pub(super) fn topic_routing(seed: u64) -> Script {
    let mut rng = Rng::with_seed(seed);
    let words = ["a", "b", "", "ab", "*", "#", "x y"];
    let text = |rng: &mut Rng| {
        (0..rng.usize(..5)).map(|_| one_of(&words, rng)).collect::<Vec<_>>().join(".")
    };
    let mut script = Script::new(format!("topics of seed {seed}"));
    let exchange = script.name("x");
    script = script.exchange(Exchange::topic(exchange.as_str()));
    for number in 0..20 {
        let queue = script.name(&format!("q{number}"));
        let binding = Binding::new(queue.as_str(), exchange.as_str(), text(&mut rng));
        script = script.queue(Queue::classic(queue)).bind(binding);
    }
    for number in 0..60 {
        let message = publish(&exchange, &text(&mut rng), &number.to_string());
        script = script.then(Step::Publish(Box::new(message)));
    }
    script
}

/// Random pairs of header bindings and tables.
pub(super) fn header_routing(seed: u64) -> Script {
    let mut rng = Rng::with_seed(seed);
    let mut script = Script::new(format!("headers of seed {seed}"));
    let exchange = script.name("x");
    script = script.exchange(Exchange::headers(exchange.as_str()));
    for number in 0..20 {
        let queue = script.name(&format!("q{number}"));
        let mut binding = Binding::headers(queue.as_str(), exchange.as_str(), x_match(&mut rng));
        for (name, value) in header_table(&mut rng).iter() {
            binding = binding.argument(name, value.clone());
        }
        script = script.queue(Queue::classic(queue)).bind(binding);
    }
    for number in 0..60 {
        let mut message = publish(&exchange, "", &number.to_string());
        message.properties.headers = header_table(&mut rng);
        script = script.then(Step::Publish(Box::new(message)));
    }
    script
}
