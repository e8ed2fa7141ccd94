//! What stands behind the handle: the two sessions and the operations on them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    declared::Declared,
    health::Watched,
    options::ConnectOptions,
    session::{Session, Supervisor, is_lost},
    shutdown::Shutdown,
    state::{Role, StateBoard},
};
use crate::{
    clock::{Clock, deadline},
    error::{Error, Result},
    topology::Topology,
    transport::{Link, LinkStatus, Outgoing, QueueInfo, Transport},
};

/// What a close adds to the handlers' deadline for closing channels.
const GOODBYE: Duration = Duration::from_secs(1);

/// The connections of one application.
#[derive(Debug)]
pub(crate) struct Core {
    publish: Session,
    consume: Session,
    options: ConnectOptions,
    declared: Arc<Declared>,
    board: Arc<StateBoard>,
    watched: Watched,
    clock: Clock,
    transport: &'static str,
    origin: String,
    /// Tells consumers to finish. A relay knows only its target and is closed by its owner.
    closing: CancellationToken,
    /// Tells the sessions to close, after everything that uses them has finished.
    closed: CancellationToken,
    tasks: TaskTracker,
    abandoned_handlers: AtomicUsize,
    is_closing: AtomicBool,
    /// The report of the close, once it is over.
    shutdown: watch::Sender<Option<Shutdown>>,
}

impl Core {
    pub(crate) async fn connect(
        transport: Arc<dyn Transport>,
        options: ConnectOptions,
    ) -> Result<Arc<Self>> {
        let (declared, board) = (Arc::<Declared>::default(), Arc::new(StateBoard::new()));
        let closed = CancellationToken::new();
        let session = |role| {
            let supervisor = Supervisor {
                transport: Arc::clone(&transport),
                role,
                options: options.clone(),
                declared: Arc::clone(&declared),
                board: Arc::clone(&board),
            };
            Session::open(supervisor, closed.clone())
        };
        // Cancelled by the guard if the second connection fails or this future is dropped.
        let guard = closed.clone().drop_guard();
        let (publish, consume) = tokio::try_join!(session(Role::Publish), session(Role::Consume))?;
        let closed = guard.disarm();
        Ok(Arc::new(Self {
            publish,
            consume,
            origin: origin(&options.client_name),
            options,
            declared,
            board,
            watched: Watched::default(),
            clock: transport.clock(),
            transport: transport.name(),
            closing: CancellationToken::new(),
            closed,
            tasks: TaskTracker::new(),
            abandoned_handlers: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            shutdown: watch::Sender::new(None),
        }))
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The kind of broker, for metrics.
    pub(crate) fn transport(&self) -> &'static str {
        self.transport
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn board(&self) -> &StateBoard {
        &self.board
    }

    pub(crate) fn declared(&self) -> &Declared {
        &self.declared
    }

    /// What the handle's health is asked of.
    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Cancelled when the handle is being closed.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Tasks that a close waits for.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Notes handlers that did not finish in time, for the report of a close.
    pub(crate) fn abandon(&self, handlers: usize) {
        self.abandoned_handlers.fetch_add(handlers, Ordering::AcqRel);
    }

    /// Publishes and waits for the confirm, all within `limit`.
    pub(crate) async fn publish(&self, message: Outgoing, limit: Duration) -> Result<()> {
        self.check_size(message.body.len())?;
        self.publish_of_any_size(message, limit).await
    }

    /// Refuses a body that is over the application's limit.
    pub(crate) fn check_size(&self, body: usize) -> Result<()> {
        let limit = self.options.max_body_size;
        if body > limit {
            let reason = format!("bytes is over `max_body_size` of {limit}");
            return Err(Error::invalid("payload", body, reason));
        }
        Ok(())
    }

    async fn publish_of_any_size(&self, message: Outgoing, limit: Duration) -> Result<()> {
        message.check()?;
        let deadline = deadline(limit);
        let link = self.publishing_link(deadline).await?;
        timeout_at(deadline, link.publish(message))
            .await
            .unwrap_or(Err(Error::ConfirmTimeout { waited: limit }))
    }

    /// Publishes a copy of somebody else's message: always confirmed and mandatory.
    pub(crate) async fn publish_on_behalf(&self, message: Outgoing) -> Result<()> {
        let message = Outgoing { mandatory: true, ..message };
        self.publish(message, self.options.confirm_timeout).await
    }

    /// Publishes a copy of a message that came from the broker, with the same body: as
    /// [`publish_on_behalf`](Self::publish_on_behalf), and whatever its size, since the
    /// application's limit is for what the application sends.
    pub(crate) async fn publish_again(&self, message: Outgoing) -> Result<()> {
        let message = Outgoing { mandatory: true, ..message };
        self.publish_of_any_size(message, self.options.confirm_timeout).await
    }

    /// A live link that takes messages: on a lost one it would stay open whether they were sent.
    async fn publishing_link(&self, deadline: Instant) -> Result<Arc<dyn Link>> {
        loop {
            let link = self.publish.link(deadline).await?;
            self.until_unblocked(&link, deadline).await?;
            if !is_lost(&link) {
                return Ok(link);
            }
        }
    }

    async fn until_unblocked(&self, link: &Arc<dyn Link>, deadline: Instant) -> Result<()> {
        let mut status = link.status();
        let LinkStatus::Blocked(reason) = status.borrow_and_update().clone() else { return Ok(()) };
        if !self.options.wait_when_blocked {
            return Err(Error::Blocked { reason });
        }
        let unblocked = status.wait_for(|status| !matches!(status, LinkStatus::Blocked(_)));
        match timeout_at(deadline, unblocked).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Blocked { reason }),
        }
    }

    /// A live link for consuming, waited for at most until `deadline`.
    pub(crate) async fn consume_link(&self, deadline: Instant) -> Result<Arc<dyn Link>> {
        self.consume.link(deadline).await
    }

    /// Declares, and remembers it for the next connection.
    pub(crate) async fn declare(&self, topology: &Topology) -> Result<()> {
        topology.check()?;
        self.on_link(|link| link.declare(topology)).await?;
        self.declared.record(topology);
        Ok(())
    }

    pub(crate) async fn inspect(&self, queue: &str) -> Result<Option<QueueInfo>> {
        crate::topology::check_name("queue", queue)?;
        self.on_link(|link| link.inspect(queue)).await
    }

    pub(crate) async fn delete_queue(&self, queue: &str) -> Result<()> {
        crate::topology::check_name("queue", queue)?;
        self.declared.forget_queue(queue);
        self.on_link(|link| link.delete_queue(queue)).await
    }

    /// Runs an operation that may be repeated, until it is answered or the time is over.
    pub(super) async fn on_link<T>(
        &self,
        operation: impl for<'a> Fn(&'a dyn Link) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let limit = self.options.confirm_timeout;
        let deadline = deadline(limit);
        let mut was_refused = false;
        loop {
            let link = self.consume.link(deadline).await?;
            match timeout_at(deadline, operation(&*link)).await {
                // Something else on the connection may have been meant; twice it was this.
                Ok(Err(error)) if error.closed_the_connection() && !was_refused => {
                    was_refused = true;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(Err(Error::Interrupted { .. })) if Instant::now() < deadline => {
                    // The link is being replaced; do not spin until its supervisor has noticed.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(answer) => return answer,
                Err(_) => {
                    let reason = format!("no answer within {limit:?}");
                    return Err(Error::Interrupted { reason });
                }
            }
        }
    }

    /// Stops everything that runs on the handle, within one shared deadline, then disconnects.
    ///
    /// The work is a task's, so that it is finished even if every caller goes away, as one does
    /// that is a handler and is abandoned for not ending in time.
    pub(crate) async fn close(self: &Arc<Self>) -> Shutdown {
        self.closing.cancel();
        if !self.is_closing.swap(true, Ordering::AcqRel) {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.shutdown.send_replace(Some(core.shut_down().await)) });
        }
        let mut report = self.shutdown.subscribe();
        let shutdown = report.wait_for(Option::is_some).await.ok().and_then(|report| *report);
        shutdown.unwrap_or(Shutdown { abandoned: 0 })
    }

    async fn shut_down(&self) -> Shutdown {
        self.tasks.close();
        // Each task abandons its handlers at the deadline by itself; the rest is for its goodbye.
        let limit = self.options.shutdown_timeout.saturating_add(GOODBYE);
        if timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::error!(tasks = self.tasks.len(), "tasks did not end in time; disconnecting");
        }
        self.closed.cancel();
        // The sessions bound their own goodbye.
        tokio::join!(self.publish.ended(), self.consume.ended());
        Shutdown { abandoned: self.abandoned_handlers.load(Ordering::Acquire) }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.closing.cancel();
        self.closed.cancel();
    }
}

/// `{client name}@{host}` (wire contract, section 1).
fn origin(client_name: &str) -> String {
    let host = hostname::get().ok().and_then(|name| name.into_string().ok());
    format!(
        "{client_name}@{}",
        host.filter(|name| !name.is_empty()).as_deref().unwrap_or("unknown")
    )
}
