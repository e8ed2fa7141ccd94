//! A connection that is made again when it is lost.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    declared::Declared,
    options::ConnectOptions,
    state::{ConnectionState, Role, StateBoard},
};
use crate::{
    backoff::Backoff,
    clock::deadline,
    error::{Error, Result, with_causes},
    transport::{Link, LinkStatus, Transport},
};

/// The first pause before another attempt to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// One role's connection, whichever link it is at the moment.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    slot: watch::Receiver<Slot>,
}

#[derive(Debug, Clone)]
enum Slot {
    Down,
    Up(Arc<dyn Link>),
    Closed,
}

impl Session {
    /// Connects for the first time and keeps the connection up until `stop`.
    pub(crate) async fn open(supervisor: Supervisor, stop: CancellationToken) -> Result<Self> {
        let first = supervisor.first_link().await?;
        // Ready before anybody can ask, not when the task first runs.
        supervisor.board.note(supervisor.role, ConnectionState::Ready);
        let (slot, receiver) = watch::channel(Slot::Up(Arc::clone(&first)));
        tokio::spawn(supervisor.run(first, slot, stop));
        Ok(Self { slot: receiver })
    }

    /// Waits for a live link, at most until `deadline`.
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Arc<dyn Link>> {
        let started = Instant::now();
        let mut slot = self.slot.clone();
        let up = async {
            loop {
                match &*slot.borrow_and_update() {
                    // A link can be lost a moment before its supervisor has noticed.
                    Slot::Up(link) if !is_lost(link) => return Ok(Arc::clone(link)),
                    Slot::Closed => return Err(Error::Closed),
                    _ => {}
                }
                if slot.changed().await.is_err() {
                    return Err(Error::Closed);
                }
            }
        };
        timeout_at(deadline, up)
            .await
            .unwrap_or_else(|_| Err(Error::Disconnected { waited: started.elapsed() }))
    }

    /// Returns when the supervisor has ended and its link is closed.
    pub(crate) async fn ended(&self) {
        let mut slot = self.slot.clone();
        while slot.changed().await.is_ok() {}
    }
}

pub(super) fn is_lost(link: &Arc<dyn Link>) -> bool {
    matches!(&*link.status().borrow(), LinkStatus::Lost(_))
}

/// Makes one role's connection and keeps it up.
pub(crate) struct Supervisor {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) role: Role,
    pub(crate) options: ConnectOptions,
    pub(crate) declared: Arc<Declared>,
    pub(crate) board: Arc<StateBoard>,
}

impl Supervisor {
    /// Tries until the broker answers, refuses for good, or the patience for the start ends.
    async fn first_link(&self) -> Result<Arc<dyn Link>> {
        let deadline = deadline(self.options.wait_for_broker);
        let mut backoff = self.backoff();
        loop {
            let error = match self.dial().await {
                Err(error @ Error::Connect { .. }) => error,
                answer => return answer,
            };
            let pause = backoff.next();
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn dial(&self) -> Result<Arc<dyn Link>> {
        let name = format!("{} ({})", self.options.client_name, self.role.as_str());
        timeout(self.options.attempt_timeout, self.transport.dial(&name)).await.unwrap_or_else(
            |_| {
                let limit = self.options.attempt_timeout;
                Err(Error::Connect {
                    endpoint: self.transport.endpoint(),
                    source: format!("no answer within {limit:?}").into(),
                })
            },
        )
    }

    async fn run(self, first: Arc<dyn Link>, slot: watch::Sender<Slot>, stop: CancellationToken) {
        let mut backoff = self.backoff();
        let mut next = Some(first);
        while let Some(link) = next {
            self.board.note(self.role, ConnectionState::Ready);
            slot.send_replace(Slot::Up(Arc::clone(&link)));
            let up_since = Instant::now();
            let Some(reason) = self.watch(&link, &stop).await else {
                slot.send_replace(Slot::Closed);
                link.close().await;
                break;
            };
            tracing::warn!(role = self.role.as_str(), reason, "the connection was lost");
            self.board.note(self.role, ConnectionState::Reconnecting(reason));
            slot.send_replace(Slot::Down);
            if up_since.elapsed() > self.options.reconnect_cap {
                backoff.reset();
            }
            next = tokio::select! {
                link = self.reconnect(&mut backoff) => Some(link),
                () = stop.cancelled() => None,
            };
        }
        slot.send_replace(Slot::Closed);
        self.board.note(self.role, ConnectionState::Closed);
    }

    /// Follows a link until it is lost, with the reason, or until `stop`.
    async fn watch(&self, link: &Arc<dyn Link>, stop: &CancellationToken) -> Option<String> {
        let mut status = link.status();
        loop {
            let now = status.borrow_and_update().clone();
            match now {
                LinkStatus::Lost(reason) => return Some(reason),
                LinkStatus::Open => self.board.note(self.role, ConnectionState::Ready),
                LinkStatus::Blocked(reason) => {
                    self.board.note(self.role, ConnectionState::Blocked(reason));
                }
            }
            tokio::select! {
                changed = status.changed() => if changed.is_err() {
                    return Some("the connection ended".into());
                },
                () = stop.cancelled() => return None,
            }
        }
    }

    /// Dials until a link is up and has declared again what was declared before.
    async fn reconnect(&self, backoff: &mut Backoff) -> Arc<dyn Link> {
        let mut attempts = 0_u32;
        loop {
            tokio::time::sleep(backoff.next()).await;
            attempts += 1;
            match self.dial().await {
                Ok(link) => {
                    if self.restore(&link).await {
                        tracing::info!(role = self.role.as_str(), attempts, "connected again");
                        return link;
                    }
                }
                Err(error) if attempts == 1 => {
                    let error = with_causes(&error);
                    tracing::warn!(role = self.role.as_str(), error, "cannot reconnect, trying on");
                }
                Err(_) => {}
            }
        }
    }

    /// Declares again what was declared; false if the link was lost meanwhile.
    async fn restore(&self, link: &Arc<dyn Link>) -> bool {
        let declaring = link.declare_each(self.declared.for_role(self.role));
        let Ok(failures) = timeout(self.options.confirm_timeout, declaring).await else {
            return false;
        };
        for (part, error) in failures {
            if error.closed_the_connection() {
                // Once more, and this would be the end of the next connection too.
                self.declared.forget(&part);
            }
            let error = with_causes(&error);
            tracing::error!(error, "cannot declare again what was declared before");
        }
        !is_lost(link)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(FIRST_PAUSE, self.options.reconnect_cap)
    }
}
