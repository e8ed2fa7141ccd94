//! Comparing a topology with the broker before declaring it.

use super::{AceMq, Core};
#[cfg(feature = "management")]
use crate::transport::rabbitmq::ManagementApi;
use crate::{
    error::{Error, Result},
    topology::{
        Binding, Destination, Exchange, Finding, ObjectKind, Queue, Topology, TopologyPlan,
    },
};

/// A comparison that is about to be made; see [`AceMq::plan`].
#[derive(Debug)]
#[must_use = "a planner does nothing until `dry_run`, `apply` or `validate`"]
pub struct TopologyPlanner {
    mq: AceMq,
    topology: Topology,
    #[cfg(feature = "management")]
    management: Option<ManagementApi>,
}

impl AceMq {
    /// Compares a topology with what exists on the broker, before anything is declared.
    ///
    /// Exchanges and queues are looked up by a passive declaration; one that exists is then
    /// declared on a channel of its own, which changes nothing and is refused where it differs.
    /// Between the two another client may delete it: then it is created. AMQP cannot show
    /// bindings: between objects that exist they are
    /// [`Unknown`](Finding::Unknown), unless the management API is given, or the broker is
    /// `memory://`.
    ///
    /// Nothing is ever deleted or changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use acemq::{AceMq, Exchange, Queue, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), acemq::Error> {
    /// let mq = AceMq::connect("memory://").await?;
    /// mq.declare(&Topology::new().queue(Queue::new("billing.orders"))).await?;
    ///
    /// let wanted = Topology::new()
    ///     .exchange(Exchange::topic("orders"))
    ///     .queue(Queue::new("billing.orders").delivery_limit(5))
    ///     .bind("billing.orders", "orders", "order.*");
    /// let plan = mq.plan(&wanted).dry_run().await?;
    /// assert_eq!(plan.to_create().count(), 2);
    /// assert_eq!(plan.drifts().next().unwrap().name, "billing.orders");
    /// assert!(mq.plan(&wanted).apply().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan(&self, topology: &Topology) -> TopologyPlanner {
        TopologyPlanner {
            mq: self.clone(),
            topology: topology.clone(),
            #[cfg(feature = "management")]
            management: None,
        }
    }
}

impl TopologyPlanner {
    /// Looks bindings up in the management API. Default: they are unknown on RabbitMQ.
    #[cfg(feature = "management")]
    #[cfg_attr(docsrs, doc(cfg(feature = "management")))]
    pub fn management(mut self, api: ManagementApi) -> Self {
        self.management = Some(api);
        self
    }

    /// Returns what declaring would do, and declares nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`] for a name or combination that cannot work.
    /// - [`Error::Refused`] and [`Error::Connect`] if the management API refuses or cannot be
    ///   reached.
    /// - [`Error::Disconnected`], [`Error::Interrupted`] and [`Error::Closed`] as for
    ///   [`AceMq::declare`].
    ///
    /// What the broker does not let this user look at is no error: it is
    /// [`Unknown`](Finding::Unknown).
    pub async fn dry_run(self) -> Result<TopologyPlan> {
        self.compare().await
    }

    /// Declares the topology, unless something exists with other properties: then nothing is
    /// declared. Returns the plan that was carried out.
    ///
    /// # Errors
    ///
    /// [`Error::TopologyMismatch`] with the first difference; else as [`dry_run`](Self::dry_run)
    /// and [`AceMq::declare`].
    pub async fn apply(self) -> Result<TopologyPlan> {
        let plan = self.compare().await?;
        plan.refuse_drift()?;
        self.mq.declare(&self.topology).await?;
        Ok(plan)
    }

    /// Fails unless everything exists as it is wanted, and declares nothing. What is unknown is
    /// let pass; the plan that is returned tells it.
    ///
    /// For services without the permission to configure, whose topology somebody else owns. Without
    /// that permission the broker does not compare: what exists is unknown.
    ///
    /// # Errors
    ///
    /// [`Error::TopologyMismatch`] with the first difference, [`Error::NotFound`] with everything
    /// that is missing; else as [`dry_run`](Self::dry_run).
    pub async fn validate(self) -> Result<TopologyPlan> {
        let plan = self.compare().await?;
        plan.require()?;
        Ok(plan)
    }

    async fn compare(&self) -> Result<TopologyPlan> {
        self.topology.check()?;
        let mut plan = TopologyPlan::default();
        for exchange in &self.topology.exchanges {
            let finding = self.core().find_exchange(exchange).await?;
            plan.note(ObjectKind::Exchange, exchange.name.clone(), finding);
        }
        for queue in &self.topology.queues {
            let finding = self.core().find_queue(queue).await?;
            plan.note(ObjectKind::Queue, queue.name.clone(), finding);
        }
        for binding in &self.topology.bindings {
            let finding = self.find_binding(binding, &plan).await?;
            plan.note(ObjectKind::Binding, binding.to_string(), finding);
        }
        Ok(plan)
    }

    /// A binding of an object that is not there yet cannot be there either.
    async fn find_binding(&self, binding: &Binding, plan: &TopologyPlan) -> Result<Finding> {
        let (kind, name) = match &binding.to {
            Destination::Queue(name) => (ObjectKind::Queue, name),
            Destination::Exchange(name) => (ObjectKind::Exchange, name),
        };
        if plan.creates(ObjectKind::Exchange, &binding.exchange) || plan.creates(kind, name) {
            return Ok(Finding::Create);
        }
        #[cfg(feature = "management")]
        if let Some(api) = &self.management {
            return api.find_binding(binding).await;
        }
        let found = self.core().on_link(|link| link.has_binding(binding)).await?;
        Ok(match found {
            Some(true) => Finding::Present,
            Some(false) => Finding::Create,
            None => Finding::Unknown { reason: "AMQP cannot show bindings".to_owned() },
        })
    }

    fn core(&self) -> &Core {
        self.mq.core()
    }
}

impl Core {
    async fn find_exchange(&self, exchange: &Exchange) -> Result<Finding> {
        let found = self.on_link(|link| link.has_exchange(&exchange.name)).await;
        self.compared(found, Topology::new().exchange(exchange.clone())).await
    }

    async fn find_queue(&self, queue: &Queue) -> Result<Finding> {
        let found = self.on_link(|link| link.inspect(&queue.name)).await;
        // Not by `queue`, which brings the dead-letter queue with it.
        let alone = Topology { queues: vec![queue.clone()], ..Topology::new() };
        self.compared(found.map(|found| found.is_some()), alone).await
    }

    /// Has the broker compare an object that exists.
    async fn compared(&self, exists: Result<bool>, object: Topology) -> Result<Finding> {
        let compared = match exists {
            Ok(false) => return Ok(Finding::Create),
            Ok(true) => self.on_link(|link| link.declare(&object)).await,
            Err(error) => Err(error),
        };
        match compared {
            Ok(()) => Ok(Finding::Present),
            Err(Error::TopologyMismatch { argument, wanted, found, .. }) => {
                Ok(Finding::Drift { argument, wanted, found })
            }
            Err(Error::BrokerRefused { reason, .. }) => Ok(Finding::Unknown { reason }),
            Err(error) => Err(error),
        }
    }
}
