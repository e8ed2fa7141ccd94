//! `acemq doctor`.

use std::time::Duration;

use acemq::{AceMq, BoxError, BytesCodec, Error, Message, Queue, Topology};
use bytes::Bytes;
use clap::Args;
use serde::Serialize;
use tokio::{sync::oneshot, time::timeout};

use crate::{
    Common, End, broker,
    database::Outbox,
    output::{Output, age, with_causes},
};

/// How long a probe message may take.
const PROBE_WITHIN: Duration = Duration::from_secs(10);

/// How long a record that is due may wait before it is told.
const LATE: Duration = Duration::from_mins(1);

#[derive(Args)]
pub struct Options {
    /// A body of this many bytes must pass the broker
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    message_size: usize,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Check {
    what: &'static str,
    is_good: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

impl Check {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, is_good: true, found: found.into(), advice: None }
    }

    fn bad(what: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self { what, is_good: false, found: found.into(), advice: Some(advice) }
    }

    fn lines(&self) -> Vec<String> {
        let mark = if self.is_good { "ok " } else { "BAD" };
        let mut lines = vec![format!("{mark}  {:<22} {}", self.what, self.found)];
        lines.extend(self.advice.map(|advice| format!("     -> {advice}")));
        lines
    }
}

pub async fn run(options: &Options, common: &Common, output: &Output) -> Result<End, BoxError> {
    let mut checks = Vec::new();
    if common.broker.is_some() {
        checks.extend(of_broker(options, common).await);
    }
    if common.management.is_some() {
        checks.extend(of_management(common).await?);
    }
    if common.database.is_some() {
        checks.extend(of_database(common).await);
    }
    if checks.is_empty() {
        return Err("nothing to look at: give --broker, --management or --database".into());
    }
    let lines: Vec<String> = checks.iter().flat_map(Check::lines).collect();
    output.print(&checks, &lines)?;
    let is_well = checks.iter().all(|check| check.is_good);
    Ok(if is_well { End::Done } else { End::Found })
}

async fn of_broker(options: &Options, common: &Common) -> Vec<Check> {
    let mq = match broker::connect(common).await {
        Ok(mq) => mq,
        Err(error) => {
            let advice = "is the broker up, and are user, password and virtual host right?";
            return vec![Check::bad("broker", with_causes(&*error), advice)];
        }
    };
    let mut checks = vec![Check::good("broker", "connects, twice: publishing and consuming")];
    checks.extend(of_permissions(&mq, options.message_size).await);
    mq.close().await;
    checks
}

/// Declares a queue of its own that goes with the connection, and sends itself a message.
async fn of_permissions(mq: &AceMq, size: usize) -> Vec<Check> {
    let queue = format!("acemq.doctor.{}", uuid::Uuid::new_v4());
    // It expires by itself, should this program die before it deletes it.
    let probe = Queue::classic(queue.as_str()).expires(Duration::from_mins(1));
    if let Err(error) = mq.declare(&Topology::new().queue(probe)).await {
        let advice = "the user needs the permission to configure the queues of its services";
        return vec![Check::bad("configure", with_causes(&error), advice)];
    }
    let mut checks = vec![Check::good("configure", "may declare queues")];
    let (told, arrived) = oneshot::channel();
    let told = std::sync::Mutex::new(Some(told));
    let consumer = mq.consumer_with::<Bytes>(queue.as_str(), BytesCodec);
    let consumer = consumer.start(move |message: Message<Bytes>| {
        let sender = told.lock().ok().and_then(|mut told| told.take());
        let size = message.body().len();
        async move {
            sender.map(|sender| sender.send(size));
            Ok(())
        }
    });
    let sent = match consumer.await {
        Ok(consumer) => {
            checks.push(Check::good("read", "may consume"));
            let body = Bytes::from(vec![b'x'; size]);
            let publisher = mq.publisher_with::<Bytes>("", queue.as_str(), BytesCodec);
            let sent = publisher.send(&body).await;
            checks.push(of_publish(&sent, size));
            sent.map(|_| Some(consumer))
        }
        Err(error) => {
            let advice = "the user needs the permission to read its services' queues";
            checks.push(Check::bad("read", with_causes(&error), advice));
            Ok(None)
        }
    };
    if let Ok(Some(consumer)) = sent {
        checks.push(match timeout(PROBE_WITHIN, arrived).await {
            Ok(Ok(size)) => Check::good("round trip", format!("a body of {size} bytes came back")),
            _ => Check::bad(
                "round trip",
                "the message did not come back",
                "look at the broker's log",
            ),
        });
        consumer.close().await;
    }
    for suffix in ["", ".dlq", ".parked"] {
        let _ = mq.delete_queue(&format!("{queue}{suffix}")).await;
    }
    checks
}

fn of_publish(sent: &acemq::Result<String>, size: usize) -> Check {
    match sent {
        Ok(_) => Check::good("write", format!("may publish; {size} bytes are confirmed")),
        Err(error @ Error::Blocked { .. }) => {
            let advice = "the broker is short of memory or disk: `rabbitmqctl status` says which";
            Check::bad("write", with_causes(error), advice)
        }
        Err(error @ Error::InvalidOption { .. }) => {
            let advice = "raise `max_body_size`, or keep large bodies elsewhere and send a claim";
            Check::bad("write", with_causes(error), advice)
        }
        Err(error) => {
            let advice =
                "may the user write, and is the body within the broker's max_message_size?";
            Check::bad("write", with_causes(error), advice)
        }
    }
}

async fn of_management(common: &Common) -> Result<Vec<Check>, BoxError> {
    let Some(api) = broker::management(common)? else { return Ok(Vec::new()) };
    let version = match api.broker_version().await {
        Ok(version) => version,
        Err(error) => {
            let advice = "is the plugin rabbitmq_management enabled, and may the user see it?";
            return Ok(vec![Check::bad("management API", with_causes(&error), advice)]);
        }
    };
    let mut checks = vec![of_version(&version)];
    let set_aside: Vec<_> = api.queues().await?.into_iter().filter(is_set_aside).collect();
    let messages: u64 = set_aside.iter().map(|queue| queue.messages).sum();
    let filled = set_aside.iter().filter(|queue| queue.messages > 0).count();
    checks.push(if messages == 0 {
        Check::good("dead letters", format!("none in {} queues", set_aside.len()))
    } else {
        let found = format!("{messages} in {filled} queues");
        Check::bad("dead letters", found, "look at them with `acemq dead-letters list` and `show`")
    });
    Ok(checks)
}

fn is_set_aside(queue: &acemq::QueueSummary) -> bool {
    [".dlq", ".parked"].iter().any(|suffix| queue.name.ends_with(suffix))
}

/// The oldest version that the library is tested with is 3.10.
fn of_version(version: &str) -> Check {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if known >= (3, 10) {
        return Check::good("broker version", version);
    }
    Check::bad("broker version", version, "the library is tested with RabbitMQ 3.10 and later")
}

async fn of_database(common: &Common) -> Vec<Check> {
    let advice = "is the database up, and are user, password and name right?";
    let outbox = match Outbox::open(common).await {
        Ok(outbox) => outbox,
        Err(error) => return vec![Check::bad("database", with_causes(&*error), advice)],
    };
    let mut checks = match outbox.server_version().await {
        Ok(version) => vec![Check::good("database", format!("{} {version}", outbox.kind()))],
        Err(error) => return vec![Check::bad("database", with_causes(&*error), advice)],
    };
    if let Err(error) = outbox.check().await {
        let advice = "run the store's `migrate()`, or its `migration_sql()` by hand";
        checks.push(Check::bad("outbox table", with_causes(&error), advice));
        return checks;
    }
    checks.push(Check::good("outbox table", "has the columns that it needs"));
    checks.extend(of_outbox(&outbox).await.unwrap_or_else(|error| {
        vec![Check::bad("outbox table", with_causes(&error), "may the user read it?")]
    }));
    checks
}

async fn of_outbox(outbox: &Outbox) -> acemq::Result<Vec<Check>> {
    let oldest = outbox.oldest_pending_age().await?;
    let lag = match oldest {
        Some(oldest) if oldest > LATE => {
            let found = format!("the oldest record that is due has waited {}", age(oldest));
            Check::bad("outbox lag", found, "does a relay run, and what does it log?")
        }
        _ => Check::good("outbox lag", "nothing waits for long"),
    };
    let retired = outbox.retired(1).await?.len();
    let given_up = if retired == 0 {
        Check::good("retired records", "none")
    } else {
        let advice = "look at them with `acemq outbox retired`, then `requeue`";
        Check::bad("retired records", "there are some", advice)
    };
    Ok(vec![lag, given_up])
}
