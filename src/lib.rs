//! Messaging patterns for Rust services on RabbitMQ, all from one connection handle.
//!
//! `acemq` is for backend services with tokio, RabbitMQ and a SQL database that would otherwise
//! build these patterns by hand on a driver: publishing that is confirmed and routed or an error,
//! consumers that retry, dead-letter and recognise duplicates, and a transactional outbox.
//!
//! ```
//! use acemq::{AceMq, Message, Queue, RetryPolicy, Topology};
//! use std::time::Duration;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPlaced { id: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), acemq::Error> {
//! // "amqp://localhost" in production; nothing else changes.
//! let mq = AceMq::connect("memory://").await?;
//! mq.declare(&Topology::new().queue(Queue::new("billing.orders"))).await?;
//!
//! let consumer = mq
//!     .consumer::<OrderPlaced>("billing.orders")
//!     .retry(RetryPolicy::exponential(5, Duration::from_secs(1), Duration::from_secs(60)))
//!     .start(|message: Message<OrderPlaced>| async move {
//!         println!("billing order {}", message.payload().id);
//!         Ok(())
//!     })
//!     .await?;
//!
//! mq.publisher::<OrderPlaced>("", "billing.orders").send(&OrderPlaced { id: 42 }).await?;
//! # while consumer.stats().acked == 0 { tokio::task::yield_now().await; }
//! mq.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! - [`AceMq`]: connecting, declaring, closing.
//! - [`Publisher`]: what a successful send means, and which error a failed one is.
//! - [`consume`]: handlers and their answers, retries, dead letters, replay.
//! - [`idempotency`]: recognising duplicates.
//! - [`inbox`]: a message, its effects and its outgoing messages in one transaction.
//! - [`outbox`]: messages that go out if, and only if, a transaction commits.
//! - [`request_reply`]: a question, and its answer or the reason why there is none.
//! - [`scheduler`]: messages that go out later, held by the broker.
//! - [`pipeline`]: a typed chain of steps, each with a queue.
//! - [`routing_slip`]: a route that travels in the message, and the way back.
//! - [`ordered`]: order per key over any number of processes.
//! - [`saga`]: steps that must all happen, what undoes them, and a journal that survives a crash.
//! - [`message`]: envelopes, headers, codecs, slips; the wire format of the AceMQ family.
//! - [`topology`]: exchanges, queues and bindings as values.
//! - [`testing`]: a broker in the test's process, with faults on command.
//!
//! # Features
//!
//! | Feature | Default | Brings |
//! |---|---|---|
//! | `rabbitmq` | yes | `amqp://` and `amqps://` URLs, by lapin |
//! | `postgres` | yes | the PostgreSQL stores, by sqlx |
//! | `sqlite` | yes | the SQLite stores, by sqlx |
//! | `mysql` | no | the MySQL and MariaDB stores, by sqlx |
//! | `opentelemetry` | no | spans and messages joined |
//! | `cli` | no | the program `acemq` |
//! | `management` | no | [`ManagementApi`], by reqwest: bindings in topology plans |
//!
//! Without any of them the crate still has `memory://` and the in-memory idempotency store.
//!
//! # Logging
//!
//! The crate logs through `tracing`: each loss and return of a connection once, each message that
//! is set aside, each copy that did not land. lapin logs returned messages with their bodies at
//! warn level and closed channels at error level; filter the target `lapin` if bodies are private.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(missing_debug_implementations, unreachable_pub, clippy::pedantic)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]
// Errors are named in full where it helps the reader, and a module's types carry its idea.
#![allow(clippy::module_name_repetitions)]

/// Runs the examples of the pages with the other doctests.
#[cfg(all(doctest, feature = "sqlite"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/exactly-once-effects.md")]
    struct ExactlyOnceEffects;
    #[doc = include_str!("../docs/memory-broker.md")]
    struct MemoryBroker;
    #[doc = include_str!("../docs/idempotency.md")]
    struct Idempotency;
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../docs/operating.md")]
    struct Operating;
    #[doc = include_str!("../docs/outbox.md")]
    struct Outbox;
    #[doc = include_str!("../docs/publishing.md")]
    struct Publishing;
    #[doc = include_str!("../docs/request-reply.md")]
    struct RequestReply;
    #[cfg(feature = "rabbitmq")]
    #[doc = include_str!("../docs/coming-from.md")]
    struct ComingFrom;
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/ordered.md")]
    struct Ordered;
    #[doc = include_str!("../docs/routing-slip.md")]
    struct RoutingSlip;
    #[doc = include_str!("../docs/pipeline.md")]
    struct Pipeline;
    #[doc = include_str!("../docs/saga.md")]
    struct Saga;
    #[doc = include_str!("../docs/scheduler.md")]
    struct Scheduler;
    #[doc = include_str!("../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/health.md")]
    struct Health;
    #[doc = include_str!("../docs/topology.md")]
    struct Topology;
    #[doc = include_str!("../docs/telemetry.md")]
    struct Telemetry;
    #[doc = include_str!("../docs/retries-and-dead-letters.md")]
    struct RetriesAndDeadLetters;
}

mod backoff;
mod clock;
mod connection;
pub mod consume;
mod error;
pub mod idempotency;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub mod inbox;
pub mod message;
pub mod ordered;
pub mod outbox;
pub mod pipeline;
mod publish;
pub mod request_reply;
pub mod routing_slip;
pub mod saga;
pub mod scheduler;
mod store;
pub mod telemetry;
pub mod testing;
pub mod topology;
mod transport;

pub use connection::{
    AceMq, ComponentHealth, ConnectOptions, ConnectionState, Health, HealthSource, HealthStatus,
    Shutdown, TopologyPlanner,
};
pub use consume::{
    Consumer, ConsumerBuilder, ConsumerState, ConsumerStats, Handler, HandlerError, HandlerResult,
    ReplayBuilder, ReplayEnd, ReplayFilter, ReplayReport, ResultExt, RetryPolicy,
};
pub use error::{BoxError, Error, Result};
#[cfg(feature = "mysql")]
pub use idempotency::MySqlIdempotencyStore;
#[cfg(feature = "postgres")]
pub use idempotency::PostgresIdempotencyStore;
#[cfg(feature = "sqlite")]
pub use idempotency::SqliteIdempotencyStore;
pub use idempotency::{Claim, IdempotencyStore, MemoryIdempotencyStore};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub use inbox::{Inbox, Receipt, TransactionalConsumer, Work, WorkResult};
pub use message::{
    BytesCodec, Codec, Decoder, Encoder, Envelope, HeaderValue, Headers, InvalidItinerary,
    Itinerary, JsonCodec, Message, ReplayStamp, RoutingSlip, Stop, TextCodec,
};
pub use ordered::{
    OnFailure, OrderedBuilder, OrderedLayout, OrderedQueue, PartitionState, PartitionStats,
    Partitioning, Then,
};
#[cfg(feature = "mysql")]
pub use outbox::MySqlOutbox;
#[cfg(feature = "postgres")]
pub use outbox::PostgresOutbox;
#[cfg(feature = "sqlite")]
pub use outbox::SqliteOutbox;
pub use outbox::{OutboxRecord, OutboxRelay, OutboxStore, OutboxTarget, RelayReport, RunningRelay};
pub use pipeline::{NextHop, Pipeline, PipelineBuilder, PipelineStats, StepOptions};
pub use publish::{BatchOutcome, Publisher};
pub use request_reply::{
    Answers, CallOptions, PendingReply, RequestError, Requester, Responder, ResponderBuilder,
    ResponderError,
};
pub use routing_slip::{Forward, SlipStop, SlipStopBuilder, SlipStopStats, StopHandler};
#[cfg(feature = "mysql")]
pub use saga::MySqlSagaJournal;
#[cfg(feature = "postgres")]
pub use saga::PostgresSagaJournal;
#[cfg(feature = "sqlite")]
pub use saga::SqliteSagaJournal;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub use saga::{
    DurableSaga, RunStatus, RunningSagaWorker, SagaJournal, SagaReport, SagaRun, SagaWorker,
    StartedRun,
};
pub use saga::{
    InDoubt, ParallelSteps, Saga, SagaBuilder, SagaFailure, SagaOutcome, StepContext, StepError,
    Unresolved,
};
pub use scheduler::{Ladder, Scheduler, SchedulerBuilder, SchedulerStats};
pub use telemetry::TraceContext;
pub use topology::{
    Binding, Exchange, ExchangeKind, HeaderMatch, Overflow, Queue, QueueKind, Topology,
    TopologyPlan,
};
#[cfg(feature = "management")]
#[cfg_attr(docsrs, doc(cfg(feature = "management")))]
pub use transport::rabbitmq::{ManagementApi, QueueSummary};
