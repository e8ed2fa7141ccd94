//! What a queue's arguments mean.

use std::time::Duration;

use super::{
    limit::Limit,
    reply,
    stored::{LONGEST_TTL_MS, Message, type_name},
};
use crate::{
    error::Result,
    message::{HeaderValue, Headers},
    topology::{Overflow, Queue, QueueKind},
};

/// The modelled arguments of classic queues, in the order in which RabbitMQ compares them.
const CLASSIC: [&str; 12] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
];

/// The modelled arguments of quorum queues, in the order in which RabbitMQ compares them.
const QUORUM: [&str; 11] = [
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-message-ttl",
];

/// The modelled arguments of a kind of queue, in the order in which RabbitMQ compares them.
pub(super) fn arguments_of(kind: QueueKind) -> &'static [&'static str] {
    match kind {
        QueueKind::Classic => &CLASSIC,
        QueueKind::Quorum => &QUORUM,
    }
}

/// A queue's arguments, read and checked.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) kind: QueueKind,
    pub(super) message_ttl: Option<Duration>,
    pub(super) expires: Option<Duration>,
    pub(super) dead_letter: Option<DeadLetterTarget>,
    pub(super) limit: Limit,
    pub(super) overflow: Overflow,
    /// The highest priority that tells messages apart.
    pub(super) max_priority: Option<u8>,
    pub(super) delivery_limit: Option<i64>,
    pub(super) single_active: bool,
}

/// Where a queue's dead letters go.
#[derive(Debug, Clone)]
pub(super) struct DeadLetterTarget {
    pub(super) exchange: String,
    /// `None` keeps the message's own keys.
    pub(super) routing_key: Option<String>,
}

impl Settings {
    /// Reads the arguments of a queue to be declared.
    ///
    /// The broker decides by `x-queue-type` alone, so this does too. `x-dead-letter-strategy` is
    /// read and checked; both strategies are carried out as at-most-once, which differs from
    /// at-least-once only while the target cannot be reached.
    pub(super) fn read(queue: &Queue) -> Result<Self> {
        for (name, _) in queue.arguments.iter() {
            if !CLASSIC.contains(&name) && !QUORUM.contains(&name) {
                return Err(reply::unsupported(format!("queue argument `{name}`")));
            }
        }
        let mut arguments = Arguments { queue: &queue.name, table: &queue.arguments, kind: None };
        let kind = arguments.kind()?;
        arguments.kind = Some(kind);
        arguments.check_strategy()?;
        arguments.check_storage()?;
        let settings = Self {
            kind,
            message_ttl: arguments.milliseconds("x-message-ttl", 0)?,
            expires: arguments.milliseconds("x-expires", 1)?,
            dead_letter: arguments.dead_letter_target()?,
            limit: arguments.limit()?,
            overflow: arguments.overflow(kind)?,
            max_priority: arguments.max_priority()?,
            delivery_limit: arguments.integer("x-delivery-limit")?,
            single_active: arguments.flag("x-single-active-consumer")?,
        };
        arguments.check_kind(kind, queue)?;
        Ok(settings)
    }

    /// Whether the delivery limit ends a message that came back this often, if it comes back again.
    pub(super) fn is_last_return(&self, returns: u32) -> bool {
        self.delivery_limit.is_some_and(|limit| i64::from(returns) + 1 > limit)
    }

    /// The priority of a message here.
    pub(super) fn priority_of(&self, message: &Message) -> u8 {
        let priority = message.properties.priority.unwrap_or_default();
        self.max_priority.map_or(0, |highest| priority.min(highest))
    }
}

struct Arguments<'a> {
    queue: &'a str,
    table: &'a Headers,
    /// Once it is known.
    kind: Option<QueueKind>,
}

impl Arguments<'_> {
    fn kind(&self) -> Result<QueueKind> {
        let name = "x-queue-type";
        match self.table.get(name) {
            None => Ok(QueueKind::Classic),
            Some(HeaderValue::Text(text)) => match text.as_str() {
                "classic" => Ok(QueueKind::Classic),
                "quorum" => Ok(QueueKind::Quorum),
                "stream" => Err(reply::unsupported("streams")),
                other => {
                    let problem = format!("\"unsupported queue type '{other}'\"");
                    Err(reply::invalid_argument(name, self.queue, problem))
                }
            },
            Some(other) => Err(self.unacceptable(name, other)),
        }
    }

    /// Refuses what only the other kind of queue has ("Quorum Queues": feature comparison).
    fn check_kind(&self, kind: QueueKind, queue: &Queue) -> Result<()> {
        let (other, type_of) = match kind {
            QueueKind::Classic => (QUORUM.as_slice(), "rabbit_classic_queue"),
            QueueKind::Quorum => (CLASSIC.as_slice(), "rabbit_quorum_queue"),
        };
        let foreign = other
            .iter()
            .find(|name| !arguments_of(kind).contains(name) && self.table.get(name).is_some());
        if let Some(name) = foreign {
            return Err(reply::precondition_failed(format_args!(
                "invalid arg '{name}' for queue '{}' in vhost '/' of queue type {type_of}",
                self.queue
            )));
        }
        let refused = [
            (!queue.durable, "non-durable"),
            (queue.exclusive, "exclusive-owner"),
            (queue.auto_delete, "auto-delete"),
        ];
        match refused.into_iter().find(|(refused, _)| *refused && kind == QueueKind::Quorum) {
            None => Ok(()),
            Some((_, property)) => Err(reply::precondition_failed(format_args!(
                "invalid property '{property}' for queue '{}' in vhost '/'",
                self.queue
            ))),
        }
    }

    /// Checks the arguments that say how a classic queue is stored, which nobody sees from outside.
    fn check_storage(&self) -> Result<()> {
        let (mode, version) = ("x-queue-mode", "x-queue-version");
        if let Some(other) = self.text(mode)?.filter(|mode| !["default", "lazy"].contains(mode)) {
            let problem = format!("\"unsupported queue mode '{other}'\"");
            return Err(reply::invalid_argument(mode, self.queue, problem));
        }
        match self.size(version)? {
            None | Some(1 | 2) => Ok(()),
            Some(other) => {
                let problem = format!("\"unsupported queue version '{other}'\"");
                Err(reply::invalid_argument(version, self.queue, problem))
            }
        }
    }

    fn check_strategy(&self) -> Result<()> {
        let name = "x-dead-letter-strategy";
        match self.text(name)? {
            None | Some("at-most-once" | "at-least-once") => Ok(()),
            Some(_) => Err(reply::invalid_argument(name, self.queue, "invalid_dlx_strategy")),
        }
    }

    fn dead_letter_target(&self) -> Result<Option<DeadLetterTarget>> {
        let key = self.text("x-dead-letter-routing-key")?;
        match (self.text("x-dead-letter-exchange")?, key) {
            (Some(exchange), key) => Ok(Some(DeadLetterTarget {
                exchange: exchange.to_owned(),
                routing_key: key.map(str::to_owned),
            })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(reply::invalid_argument(
                "x-dead-letter-routing-key",
                self.queue,
                "routing_key_but_no_dlx_defined",
            )),
        }
    }

    fn limit(&self) -> Result<Limit> {
        let (messages, bytes) = (self.size("x-max-length")?, self.size("x-max-length-bytes")?);
        Ok(Limit { messages, bytes })
    }

    /// What happens at the limit. A quorum queue takes `reject-publish-dlx` for `drop-head`.
    fn overflow(&self, kind: QueueKind) -> Result<Overflow> {
        match self.text("x-overflow")? {
            None | Some("drop-head") => Ok(Overflow::DropHead),
            Some("reject-publish") => Ok(Overflow::RejectPublish),
            Some("reject-publish-dlx") if kind == QueueKind::Quorum => Ok(Overflow::DropHead),
            Some("reject-publish-dlx") => Ok(Overflow::RejectPublishDeadLetter),
            Some(_) => Err(reply::invalid_argument("x-overflow", self.queue, "invalid_overflow")),
        }
    }

    fn max_priority(&self) -> Result<Option<u8>> {
        let name = "x-max-priority";
        let Some(priority) = self.size(name)? else { return Ok(None) };
        u8::try_from(priority).map(Some).map_err(|_| {
            reply::invalid_argument(name, self.queue, format!("{{max_value_exceeded,{priority}}}"))
        })
    }

    /// Reads an integer that is not negative.
    fn size(&self, name: &str) -> Result<Option<usize>> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        usize::try_from(number).map(Some).map_err(|_| {
            reply::invalid_argument(name, self.queue, format!("{{value_negative,{number}}}"))
        })
    }

    fn milliseconds(&self, name: &str, least: i64) -> Result<Option<Duration>> {
        let problem = match self.integer(name)? {
            None => return Ok(None),
            Some(ms) if ms < 0 => format!("{{value_negative,{ms}}}"),
            Some(ms) if ms < least => format!("{{value_zero,{ms}}}"),
            Some(ms) if ms > LONGEST_TTL_MS => format!("{{value_too_large,{ms}}}"),
            Some(ms) => return Ok(Some(Duration::from_millis(ms.unsigned_abs()))),
        };
        Err(reply::invalid_argument(name, self.queue, problem))
    }

    /// An argument, if this kind of queue has it: the value of another is not looked at.
    fn get(&self, name: &str) -> Option<&HeaderValue> {
        let is_known = self.kind.is_none_or(|kind| arguments_of(kind).contains(&name));
        self.table.get(name).filter(|_| is_known)
    }

    fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let problem = || format!("\"expected integer, got {}\"", type_name(value));
        let number =
            value.as_i64().ok_or_else(|| reply::invalid_argument(name, self.queue, problem()))?;
        Ok(Some(number))
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            None => Ok(false),
            Some(HeaderValue::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.unacceptable(name, other)),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(HeaderValue::Text(text)) => Ok(Some(text)),
            Some(other) if name == "x-dead-letter-exchange" => {
                Err(reply::precondition_failed(format_args!(
                    "invalid type '{}' for arg '{name}' in queue '{}' in vhost '/'",
                    type_name(other),
                    self.queue
                )))
            }
            Some(other) => Err(self.unacceptable(name, other)),
        }
    }

    fn unacceptable(&self, name: &str, value: &HeaderValue) -> crate::error::Error {
        let problem = format!("{{unacceptable_type,{}}}", type_name(value));
        reply::invalid_argument(name, self.queue, problem)
    }
}
