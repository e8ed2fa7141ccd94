//! The application: everything started in its order, and stopped in the order in which nothing is
//! cut off.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use acemq::{
    AceMq, BoxError, Consumer, HealthSource, OrderedQueue, OutboxRelay, PostgresIdempotencyStore,
    PostgresOutbox, Requester, Responder, RunningRelay, Scheduler,
};
use sqlx::PgPool;
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    database::{self, DatabaseHealth},
    fulfilment,
    http::{self, Shop},
    ledger::{self, Booking},
    mails,
    names::Names,
    offers,
    orders::Orders,
    payments::Payments,
    reminders::{self, Reminders},
};

pub struct App {
    pub address: SocketAddr,
    http: JoinHandle<std::io::Result<()>>,
    stop_http: CancellationToken,
    fulfilment: Consumer,
    reminders: Reminders,
    mails: Consumer,
    ledger: OrderedQueue<Booking>,
    offers: Responder,
    requester: Requester,
    scheduler: Scheduler,
    relay: RunningRelay,
    mq: AceMq,
    pool: PgPool,
    /// Watched for as long as it is held.
    _database: Arc<dyn HealthSource>,
}

impl App {
    /// Starts the door last: an order is taken only when everything behind it runs.
    pub async fn start(config: Config) -> Result<Self, BoxError> {
        let pool = database::open(&config.database).await?;
        let outbox = PostgresOutbox::new(pool.clone());
        outbox.migrate().await?;
        let inbox = PostgresIdempotencyStore::new(pool.clone());
        inbox.migrate().await?;

        let options = AceMq::options(&config.broker).client_name("shop");
        let mq = options.shutdown_timeout(config.shutdown).connect().await?;
        let database: Arc<dyn HealthSource> = Arc::new(DatabaseHealth(pool.clone()));
        mq.watch_health(&database);
        let names = Names::new(&config.prefix);
        mq.declare(&names.topology()).await?;

        let orders = Orders { pool: pool.clone(), outbox: outbox.clone(), names: names.clone() };
        let payments = Payments { orders: orders.clone(), limit: config.payment_limit };
        let ledger = ledger::start(&mq, names.ledger(), pool.clone()).await?;
        let scheduler = mq.scheduler().prefix(names.schedule()).await?;
        let mails = mails::start(&mq, names.cancellations(), inbox.clone()).await?;
        let after = config.reminder_after;
        let reminders = reminders::start(&mq, &names, scheduler.clone(), after, inbox).await?;
        let fulfilment = fulfilment::start(&mq, orders.clone(), payments, ledger.clone()).await?;
        let offers = offers::start(&mq, names.offers(), pool.clone()).await?;
        let requester = mq.requester().await?;
        let relay = OutboxRelay::new(&mq, outbox).start();

        let shop = Shop { mq: mq.clone(), orders, requester: requester.clone() };
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let stop_http = CancellationToken::new();
        let stopped = stop_http.clone().cancelled_owned();
        let serving =
            axum::serve(listener, http::routes(shop)).with_graceful_shutdown(stopped).into_future();
        let http = tokio::spawn(serving);
        Ok(Self {
            address,
            http,
            stop_http,
            fulfilment,
            reminders,
            mails,
            ledger,
            offers,
            requester,
            scheduler,
            relay,
            mq,
            pool,
            _database: database,
        })
    }

    /// Stops: the door, then what handles messages, then the relay, then the connections. What is
    /// not finished by then goes back to its queue, or stays in the outbox, for the next start.
    pub async fn stop(self) -> Result<(), BoxError> {
        self.stop_http.cancel();
        self.http.await??;
        tokio::join!(
            self.fulfilment.close(),
            self.reminders.planning.close(),
            self.reminders.sending.close(),
            self.mails.close(),
            self.ledger.close(),
            self.offers.close(),
            self.scheduler.close(),
        );
        self.requester.close().await;
        self.relay.close().await;
        self.mq.close().await;
        // A statement that hangs in the database must not hold up the end.
        if timeout(Duration::from_secs(2), self.pool.close()).await.is_err() {
            tracing::warn!("left a statement running in the database");
        }
        Ok(())
    }
}
