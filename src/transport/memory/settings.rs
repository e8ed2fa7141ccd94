//! What a queue's arguments mean.

use std::time::Duration;

use super::{
    reply,
    stored::{LONGEST_TTL_MS, type_name},
};
use crate::{
    error::Result,
    message::{HeaderValue, Headers},
    topology::{Queue, QueueKind},
};

/// The modelled arguments, in the order in which RabbitMQ compares them.
pub(super) const MODELLED: [&str; 10] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-overflow",
    "x-delivery-limit",
    "x-single-active-consumer",
    "x-queue-type",
];

/// A queue's arguments, read and checked.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) kind: QueueKind,
    pub(super) message_ttl: Option<Duration>,
    pub(super) expires: Option<Duration>,
    pub(super) dead_letter: Option<DeadLetterTarget>,
    /// Over this many ready messages, publishes are refused.
    pub(super) max_length: Option<usize>,
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
            if !MODELLED.contains(&name) {
                return Err(reply::unsupported(format!("queue argument `{name}`")));
            }
        }
        let arguments = Arguments { queue: &queue.name, table: &queue.arguments };
        let kind = arguments.kind()?;
        arguments.check_kind(kind, queue)?;
        arguments.check_strategy()?;
        Ok(Self {
            kind,
            message_ttl: arguments.milliseconds("x-message-ttl", 0)?,
            expires: arguments.milliseconds("x-expires", 1)?,
            dead_letter: arguments.dead_letter_target()?,
            max_length: arguments.max_length()?,
            delivery_limit: arguments.integer("x-delivery-limit")?,
            single_active: arguments.flag("x-single-active-consumer")?,
        })
    }
}

struct Arguments<'a> {
    queue: &'a str,
    table: &'a Headers,
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
        match kind {
            QueueKind::Classic => ["x-delivery-limit", "x-dead-letter-strategy"]
                .into_iter()
                .filter(|name| self.table.get(name).is_some())
                .try_for_each(|name| {
                    Err(reply::precondition_failed(format_args!(
                        "invalid arg '{name}' for queue '{}' in vhost '/' of queue type \
                         rabbit_classic_queue",
                        self.queue
                    )))
                }),
            QueueKind::Quorum => [
                (!queue.durable, "non-durable"),
                (queue.exclusive, "exclusive-owner"),
                (queue.auto_delete, "auto-delete"),
            ]
            .into_iter()
            .filter(|(refused, _)| *refused)
            .try_for_each(|(_, property)| {
                Err(reply::precondition_failed(format_args!(
                    "invalid property '{property}' for queue '{}' in vhost '/'",
                    self.queue
                )))
            }),
        }
    }

    fn check_strategy(&self) -> Result<()> {
        let name = "x-dead-letter-strategy";
        match self.text(name)? {
            None | Some("at-most-once" | "at-least-once") => Ok(()),
            Some(_) => Err(reply::invalid_argument(name, self.queue, "invalid_strategy")),
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

    /// Reads the length limit. Only `reject-publish` is modelled ("Queue Length Limit").
    fn max_length(&self) -> Result<Option<usize>> {
        let overflow = match self.text("x-overflow")? {
            Some(known @ ("drop-head" | "reject-publish-dlx")) => {
                return Err(reply::unsupported(format!("queue argument `x-overflow` = `{known}`")));
            }
            None | Some("reject-publish") => self.table.get("x-overflow"),
            Some(_) => {
                return Err(reply::invalid_argument("x-overflow", self.queue, "invalid_overflow"));
            }
        };
        let Some(length) = self.integer("x-max-length")? else { return Ok(None) };
        let Ok(length) = usize::try_from(length) else {
            let problem = format!("{{value_negative,{length}}}");
            return Err(reply::invalid_argument("x-max-length", self.queue, problem));
        };
        if overflow.is_none() {
            return Err(reply::unsupported("queue argument `x-max-length` without reject-publish"));
        }
        Ok(Some(length))
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

    fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(value) = self.table.get(name) else { return Ok(None) };
        let problem = || format!("\"expected integer, got {}\"", type_name(value));
        let number =
            value.as_i64().ok_or_else(|| reply::invalid_argument(name, self.queue, problem()))?;
        Ok(Some(number))
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.table.get(name) {
            None => Ok(false),
            Some(HeaderValue::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.unacceptable(name, other)),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.table.get(name) {
            None => Ok(None),
            Some(HeaderValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(reply::precondition_failed(format_args!(
                "invalid type '{}' for arg '{name}' in queue '{}' in vhost '/'",
                type_name(other),
                self.queue
            ))),
        }
    }

    fn unacceptable(&self, name: &str, value: &HeaderValue) -> crate::error::Error {
        let problem = format!("{{unacceptable_type,{}}}", type_name(value));
        reply::invalid_argument(name, self.queue, problem)
    }
}
