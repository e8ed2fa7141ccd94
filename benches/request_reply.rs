//! Request and reply against hand-written lapin with a correlation map of its own: the same
//! headers, confirms, mandatory publishes, quorum queue and concurrency on both sides.
//!
//! `cargo bench --bench request_reply`; settings: `ACEMQ_BENCH_CALLS`, `ACEMQ_BENCH_ROUNDS`.

mod support;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use acemq::{AceMq, Requester};
use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use support::{delete_queue, fresh_quorum_queue, median, raw_channel, raw_properties, setting};
use tokio::sync::{Semaphore, oneshot};

const RAW: &str = "acemq.bench.requests.raw";
const OURS: &str = "acemq.bench.requests.ours";
const RAW_REPLIES: &str = "acemq.bench.replies.raw";
const PREFETCH: u16 = 200;
const CONCURRENCY: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(30);
const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

#[tokio::main]
async fn main() {
    let calls = setting("ACEMQ_BENCH_CALLS", 6_000);
    let rounds = setting("ACEMQ_BENCH_ROUNDS", 5);
    let (_connection, channel) = raw_channel().await;
    for queue in [RAW, OURS] {
        fresh_quorum_queue(&channel, queue).await;
    }
    let raw = RawRequester::start().await;
    let raw_responder = tokio::spawn(respond_raw());
    let mq = AceMq::connect(support::url()).await.unwrap();
    let responding = AceMq::connect(support::url()).await.unwrap();
    let responder = responding
        .responder(OURS)
        .prefetch(PREFETCH)
        .concurrency(CONCURRENCY)
        .start(|question: u64| async move { Ok::<_, Infallible>(question + 1) })
        .await
        .unwrap();
    let ours = mq.requester().await.unwrap();

    let mut lines = Vec::new();
    for callers in [1, 50, 500] {
        let calls = if callers == 1 { calls / 6 } else { calls };
        println!("\n{callers} callers, {calls} calls a round");
        println!(
            "{:>6} {:>12} {:>12} {:>8} {:>12} {:>12}",
            "round", "raw /s", "acemq /s", "ratio", "raw p50 ms", "acemq p50"
        );
        let (mut rates, mut latencies) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let one = run(callers, calls, |question| raw.ask(question)).await;
            let other = run(callers, calls, |question| ask(&ours, question)).await;
            if round > 0 {
                rates.push(other.0 / one.0);
                latencies.push(other.1 / one.1);
                println!(
                    "{round:>6} {:>12.0} {:>12.0} {:>8.3} {:>12.3} {:>12.3}",
                    one.0,
                    other.0,
                    other.0 / one.0,
                    one.1 * 1e3,
                    other.1 * 1e3
                );
            }
        }
        lines.push(format!("request_reply_latency_{callers} ratio={:.3}", median(latencies)));
        lines.push(format!("request_reply_{callers} ratio={:.3}", median(rates)));
    }
    println!();
    lines.iter().for_each(|line| println!("{line}"));

    ours.close().await;
    responder.close().await;
    raw_responder.abort();
    for queue in [RAW, RAW_REPLIES, OURS, &format!("{OURS}.dlq"), &format!("{OURS}.parked")] {
        delete_queue(&channel, queue).await;
    }
    mq.close().await;
    responding.close().await;
}

/// Calls a second, and the median latency in seconds.
async fn run<F: Future<Output = u64>>(
    callers: usize,
    calls: usize,
    ask: impl Fn(u64) -> F,
) -> (f64, f64) {
    let started = Instant::now();
    let all = futures::future::join_all((0..callers).map(|caller| {
        let ask = &ask;
        async move {
            let mut times = Vec::with_capacity(calls / callers);
            for call in 0..calls / callers {
                let question = (caller * calls + call) as u64;
                let asked = Instant::now();
                assert_eq!(ask(question).await, question + 1);
                times.push(asked.elapsed().as_secs_f64());
            }
            times
        }
    }));
    let times: Vec<f64> = all.await.into_iter().flatten().collect();
    #[allow(clippy::cast_precision_loss)] // call counts are far below 2^52
    let rate = times.len() as f64 / started.elapsed().as_secs_f64();
    (rate, median(times))
}

async fn ask(requester: &Requester, question: u64) -> u64 {
    requester.request("", OURS, &question, TIMEOUT).await.unwrap()
}

/// What somebody writes who has read the tutorial and thought about timeouts.
struct RawRequester {
    publishing: Channel,
    calls: Arc<Mutex<HashMap<String, oneshot::Sender<Delivery>>>>,
    _connections: [Connection; 2],
}

impl RawRequester {
    async fn start() -> Self {
        let url = support::url();
        let connect = || Connection::connect(&url, ConnectionProperties::default());
        let connections = [connect().await.unwrap(), connect().await.unwrap()];
        let publishing = connections[0].create_channel().await.unwrap();
        publishing.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let consuming = connections[1].create_channel().await.unwrap();
        let mut expiry = FieldTable::default();
        expiry.insert("x-expires".into(), AMQPValue::LongLongInt(600_000));
        let durable = QueueDeclareOptions::durable();
        consuming.queue_declare(RAW_REPLIES.into(), durable, expiry).await.unwrap();
        let mut replies = consume(&consuming, RAW_REPLIES, 1000).await;
        let calls = Arc::<Mutex<HashMap<String, oneshot::Sender<Delivery>>>>::default();
        let waiting = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Some(Ok(reply)) = replies.next().await {
                let ack = reply.acker.clone();
                let caller = waiting.lock().unwrap().remove(&text(&reply, "x-acemq-correlation"));
                if let Some(caller) = caller {
                    let _ = caller.send(reply);
                }
                ack.ack(BasicAckOptions::default()).await.unwrap();
            }
        });
        Self { publishing, calls, _connections: connections }
    }

    async fn ask(&self, question: u64) -> u64 {
        let id = uuid::Uuid::new_v4().to_string();
        let (caller, reply) = oneshot::channel();
        self.calls.lock().unwrap().insert(id.clone(), caller);
        let properties = with_header(raw_properties(&id, RAW), "acemq-reply-to", RAW_REPLIES)
            .with_content_type("application/json".into())
            .with_reply_to(RAW_REPLIES.into())
            .with_expiration(TIMEOUT.as_millis().to_string().into());
        let body = serde_json::to_vec(&question).unwrap();
        let answered = async {
            let confirm = self
                .publishing
                .basic_publish("".into(), RAW.into(), MANDATORY, &body, properties)
                .await
                .unwrap();
            let (confirmed, reply) = tokio::join!(confirm, reply);
            assert!(confirmed.unwrap().is_ack());
            reply.unwrap()
        };
        let reply = tokio::time::timeout(TIMEOUT, answered).await.unwrap();
        serde_json::from_slice(&reply.data).unwrap()
    }
}

/// Answers as the contract wants it: the reply confirmed, then the request acknowledged.
async fn respond_raw() {
    let url = support::url();
    let connect = || Connection::connect(&url, ConnectionProperties::default());
    let connections = [connect().await.unwrap(), connect().await.unwrap()];
    let publishing = connections[0].create_channel().await.unwrap();
    publishing.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let consuming = connections[1].create_channel().await.unwrap();
    let mut requests = consume(&consuming, RAW, PREFETCH).await;
    let places = Arc::new(Semaphore::new(CONCURRENCY));
    while let Some(Ok(request)) = requests.next().await {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let publishing = publishing.clone();
        tokio::spawn(async move {
            let question: u64 = serde_json::from_slice(&request.data).unwrap();
            let body = serde_json::to_vec(&(question + 1)).unwrap();
            let id = uuid::Uuid::new_v4().to_string();
            let asked = text(&request, "x-acemq-correlation");
            let properties = with_header(raw_properties(&id, RAW), "x-acemq-correlation", &asked);
            let properties = with_header(properties, "x-acemq-causation", &asked)
                .with_content_type("application/json".into());
            let address = text(&request, "acemq-reply-to");
            let confirm = publishing
                .basic_publish("".into(), address.as_str().into(), MANDATORY, &body, properties)
                .await
                .unwrap();
            assert!(confirm.await.unwrap().is_ack());
            request.ack(BasicAckOptions::default()).await.unwrap();
            drop(place);
        });
    }
}

async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Consumer {
    channel.basic_qos(prefetch, BasicQosOptions::default()).await.unwrap();
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    channel.basic_consume(queue.into(), "raw".into(), options, arguments).await.unwrap()
}

fn text(delivery: &Delivery, header: &str) -> String {
    let headers = delivery.properties.headers().as_ref().unwrap();
    match headers.inner().get(header) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{header}: {other:?}"),
    }
}

fn with_header(properties: BasicProperties, name: &str, value: &str) -> BasicProperties {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(name.into(), AMQPValue::LongString(value.into()));
    properties.with_headers(headers)
}
