//! The state of a handle, put together from its two connections.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// The state of a handle's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The first connection is being made.
    Connecting,
    /// Both connections are up.
    Ready,
    /// Consuming works; the broker refuses to take messages, with its reason.
    Blocked(String),
    /// A connection was lost, with the reason, and is being made again.
    Reconnecting(String),
    /// The handle was closed.
    Closed,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Publish,
    Consume,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
        }
    }
}

/// Where both supervisors note how their connection is.
#[derive(Debug)]
pub(crate) struct StateBoard {
    roles: Mutex<[ConnectionState; 2]>,
    combined: watch::Sender<ConnectionState>,
}

impl StateBoard {
    pub(crate) fn new() -> Self {
        Self {
            roles: Mutex::new([ConnectionState::Connecting, ConnectionState::Connecting]),
            combined: watch::Sender::new(ConnectionState::Connecting),
        }
    }

    pub(crate) fn note(&self, role: Role, state: ConnectionState) {
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        roles[role as usize] = state;
        let worst = roles.iter().max_by_key(|state| severity(state));
        let combined = worst.cloned().unwrap_or(ConnectionState::Connecting);
        self.combined.send_if_modified(|current| {
            let changed = *current != combined;
            *current = combined;
            changed
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.combined.subscribe()
    }
}

fn severity(state: &ConnectionState) -> u8 {
    match state {
        ConnectionState::Ready => 0,
        ConnectionState::Blocked(_) => 1,
        ConnectionState::Connecting => 2,
        ConnectionState::Reconnecting(_) => 3,
        ConnectionState::Closed => 4,
    }
}
