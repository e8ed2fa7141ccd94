//! How the handle and everything that runs on it is.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use super::{AceMq, ConnectionState};

/// How long one component may take to say how it is.
const CHECK_WITHIN: Duration = Duration::from_secs(5);

/// How a handle is, with everything that runs on it; see [`AceMq::health`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// The worst of all.
    pub status: HealthStatus,
    /// The connections to the broker.
    pub connection: ComponentHealth,
    /// Consumers, relays, ordered queues, and what else was watched, in the order of their start.
    pub components: Vec<ComponentHealth>,
}

/// How something is. The greater, the worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HealthStatus {
    /// It does its work.
    Up,
    /// It does a part of its work, or tries again by itself, or needs a human's decision.
    Degraded,
    /// It does no work.
    Down,
}

/// How one component is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ComponentHealth {
    /// What it is: `connection`, `consumer`, `relay`, `ordered`, or a word of the application.
    pub kind: String,
    /// Which one it is.
    pub name: String,
    /// How it is.
    pub status: HealthStatus,
    /// Why it is not up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Figures, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, Value>,
}

/// Something that can say how it is.
///
/// Consumers, responders, ordered queues, and relays that publish to an [`AceMq`] are watched by
/// themselves. An application adds its own with [`AceMq::watch_health`].
pub trait HealthSource: Send + Sync + 'static {
    /// Says how it is now. It is asked with every [`AceMq::health`]; what takes longer than 5 s
    /// counts as degraded.
    fn health(&self) -> BoxFuture<'_, ComponentHealth>;
}

impl AceMq {
    /// Asks the connections and everything that runs on this handle how they are.
    ///
    /// All are asked at once, each for at most 5 s. A connection that is being made again is
    /// [`Down`](HealthStatus::Down); a blocked one, a consumer that waits for its queue, a relay
    /// that lost its database, and a halted partition are [`Degraded`](HealthStatus::Degraded).
    ///
    /// For a readiness probe use [`Health::is_ready`]. Let no liveness probe depend on any of it:
    /// everything here mends itself or waits for a human, and a restart helps neither.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, HealthStatus};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let health = mq.health().await;
    /// assert!(health.is_ready());
    /// println!("{}", serde_json::to_string_pretty(&health)?);
    ///
    /// mq.close().await;
    /// assert_eq!(mq.health().await.status, HealthStatus::Down);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn health(&self) -> Health {
        let sources = self.core().watched().live();
        let components = join_all(sources.iter().map(answer)).await;
        let connection = self.state().health();
        let worst = components.iter().map(|component| component.status).max();
        let status = worst.map_or(connection.status, |worst| worst.max(connection.status));
        Health { status, connection, components }
    }

    /// Adds something to [`health`](Self::health), for as long as the application holds it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use acemq::{AceMq, ComponentHealth, HealthSource};
    /// use futures::{FutureExt, future::BoxFuture};
    ///
    /// struct Cache;
    ///
    /// impl HealthSource for Cache {
    ///     fn health(&self) -> BoxFuture<'_, ComponentHealth> {
    ///         async { ComponentHealth::up("cache", "prices").detail("entries", 0) }.boxed()
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// let cache: Arc<dyn HealthSource> = Arc::new(Cache);
    /// mq.watch_health(&cache);
    /// assert_eq!(mq.health().await.components[0].name, "prices");
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_health(&self, source: &Arc<dyn HealthSource>) {
        self.core().watched().add(source);
    }
}

async fn answer(source: &Arc<dyn HealthSource>) -> ComponentHealth {
    timeout(CHECK_WITHIN, source.health()).await.unwrap_or_else(|_| {
        ComponentHealth::up("unknown", "unknown")
            .degraded(format!("did not say how it is within {CHECK_WITHIN:?}"))
    })
}

impl Health {
    /// Returns whether the broker can be worked with: the connections are up, or only publishing
    /// is blocked. What else is degraded needs a human, not another instance.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.connection.status < HealthStatus::Down
    }

    /// Returns the components that are not up.
    pub fn troubled(&self) -> impl Iterator<Item = &ComponentHealth> {
        self.components.iter().filter(|component| component.status > HealthStatus::Up)
    }
}

impl ComponentHealth {
    /// Says that something is up.
    pub fn up(kind: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
            status: HealthStatus::Up,
            reason: None,
            details: BTreeMap::new(),
        }
    }

    /// Says that it is degraded.
    #[must_use]
    pub fn degraded(self, reason: impl Into<String>) -> Self {
        Self { status: HealthStatus::Degraded, reason: Some(reason.into()), ..self }
    }

    /// Says that it is down.
    #[must_use]
    pub fn down(self, reason: impl Into<String>) -> Self {
        Self { status: HealthStatus::Down, reason: Some(reason.into()), ..self }
    }

    /// Adds a figure.
    #[must_use]
    pub fn detail(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }
}

impl ConnectionState {
    fn health(&self) -> ComponentHealth {
        let health = ComponentHealth::up("connection", "broker");
        match self {
            Self::Ready => health,
            Self::Blocked(reason) => health.degraded(format!("publishing is blocked: {reason}")),
            Self::Connecting => health.down("connecting"),
            Self::Reconnecting(reason) => health.down(format!("reconnecting: {reason}")),
            Self::Closed => health.down("closed"),
        }
    }
}

/// What is watched, for as long as its owner holds it.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Vec<Weak<dyn HealthSource>>>);

impl Watched {
    pub(crate) fn add(&self, source: &Arc<dyn HealthSource>) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(source));
    }

    fn live(&self) -> Vec<Arc<dyn HealthSource>> {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").finish_non_exhaustive()
    }
}
