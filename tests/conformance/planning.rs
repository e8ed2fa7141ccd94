//! Topology plans: what they find, and that they change nothing.

use acemq::{
    Binding, Error, Exchange, Queue, Topology, TopologyPlan,
    topology::{Finding, ObjectKind},
};

use crate::support::{Broker, Fixture};

/// An exchange, a queue and a binding.
struct Wanted {
    exchange: String,
    queue: String,
}

impl Wanted {
    fn new(fx: &Fixture) -> Self {
        Self { exchange: fx.name("exchange"), queue: fx.name("queue") }
    }

    fn topology(&self) -> Topology {
        Topology::new()
            .exchange(self.own_exchange())
            .queue(Queue::classic(self.queue.as_str()))
            .bind(self.queue.as_str(), self.exchange.as_str(), "order.*")
    }

    /// One that goes with its last binding, so that a test leaves nothing.
    fn own_exchange(&self) -> Exchange {
        Exchange::topic(self.exchange.as_str()).auto_delete()
    }
}

fn labels(plan: &TopologyPlan) -> Vec<&'static str> {
    plan.objects.iter().map(|object| object.finding.label()).collect()
}

on_both_brokers! {
    async fn a_dry_run_creates_nothing(fx) {
        let wanted = Wanted::new(&fx);
        for _ in 0..2 {
            let plan = fx.mq.plan(&wanted.topology()).dry_run().await.unwrap();
            assert_eq!(labels(&plan), ["create"; 3]);
        }
        assert_eq!(fx.mq.queue_length(&wanted.queue).await.unwrap(), None);
    }

    async fn apply_creates_what_is_missing_and_tells_it(fx) {
        let wanted = Wanted::new(&fx);
        fx.mq.declare(&Topology::new().queue(Queue::classic(wanted.queue.as_str()))).await.unwrap();
        let plan = fx.mq.plan(&wanted.topology()).apply().await.unwrap();
        assert_eq!(labels(&plan), ["create", "present", "create"]);
        let bindings = if fx.broker == Broker::Memory { "present" } else { "unknown" };
        let after = fx.mq.plan(&wanted.topology()).validate().await.unwrap();
        assert_eq!(labels(&after), ["present", "present", bindings]);
        assert_eq!(after.unknown().count(), usize::from(fx.broker == Broker::RabbitMq));
    }

    async fn apply_refuses_a_drift_before_it_declares_anything(fx) {
        let wanted = Wanted::new(&fx);
        let other = Queue::classic(wanted.queue.as_str()).max_length(5, acemq::Overflow::DropHead);
        fx.mq.declare(&Topology::new().queue(other)).await.unwrap();

        let error = fx.mq.plan(&wanted.topology()).apply().await.unwrap_err();
        assert!(
            matches!(&error, Error::TopologyMismatch { name, argument, .. }
                if *name == wanted.queue && argument == "x-max-length"),
            "{error}"
        );
        let plan = fx.mq.plan(&wanted.topology()).dry_run().await.unwrap();
        assert_eq!(labels(&plan), ["create", "drift", "create"]);
        let drift = plan.drifts().next().unwrap();
        assert_eq!((drift.kind, &drift.name), (ObjectKind::Queue, &wanted.queue));
        assert!(plan.to_string().contains("x-max-length"), "{plan}");
    }

    async fn exchanges_are_compared_too(fx) {
        let wanted = Wanted::new(&fx);
        fx.mq.declare(&wanted.topology()).await.unwrap();
        let other = Topology::new().exchange(Exchange::fanout(wanted.exchange.as_str()).auto_delete());
        let plan = fx.mq.plan(&other).dry_run().await.unwrap();
        assert!(
            matches!(&plan.objects[0].finding, Finding::Drift { argument, .. } if argument == "type"),
            "{plan}"
        );
    }

    async fn validate_names_everything_that_is_missing(fx) {
        let wanted = Wanted::new(&fx);
        let error = fx.mq.plan(&wanted.topology()).validate().await.unwrap_err();
        let Error::NotFound { reason } = &error else { panic!("{error}") };
        assert!(reason.contains(&wanted.queue) && reason.contains(&wanted.exchange), "{reason}");
        assert_eq!(fx.mq.queue_length(&wanted.queue).await.unwrap(), None);
    }

    async fn the_queue_of_another_connection_is_unknown(fx) {
        let name = fx.name("mine");
        let exclusive = Topology::new().queue(Queue::classic(name.as_str()).exclusive());
        fx.mq.declare(&exclusive).await.unwrap();
        let plan = fx.another().await.plan(&exclusive).dry_run().await.unwrap();
        assert_eq!(labels(&plan), ["unknown"], "{plan}");
    }

    async fn a_plan_that_cannot_work_is_refused(fx) {
        let nameless = Topology::new().binding(Binding::new("", "exchange", ""));
        let error = fx.mq.plan(&nameless).dry_run().await.unwrap_err();
        assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
    }
}

/// Bindings by RabbitMQ's management API.
#[cfg(feature = "management")]
mod managed {
    use acemq::{Binding, Error, HeaderMatch, ManagementApi, Queue, Topology};

    use super::{Wanted, labels};
    use crate::support::{Broker, management_url, run};

    fn api() -> ManagementApi {
        ManagementApi::new(&management_url()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bindings_are_found_where_the_management_api_is_given() {
        run(Broker::RabbitMq, |fx| async move {
            let wanted = Wanted::new(&fx);
            fx.mq.declare(&wanted.topology()).await.unwrap();
            let headers = fx.name("headers");
            let of_headers =
                Binding::headers(wanted.queue.as_str(), "amq.headers", HeaderMatch::All)
                    .argument("kind", "invoice")
                    .argument("version", 3_i64);
            let missing = wanted
                .topology()
                .bind(wanted.queue.as_str(), wanted.exchange.as_str(), "invoice.*")
                .queue(Queue::classic(headers.as_str()))
                .binding(of_headers.clone());
            let plan = fx.mq.plan(&missing).management(api()).dry_run().await.unwrap();
            assert_eq!(
                labels(&plan),
                ["present", "present", "create", "present", "create", "create"]
            );

            fx.mq.declare(&Topology::new().binding(of_headers)).await.unwrap();
            let plan = fx.mq.plan(&missing).management(api()).dry_run().await.unwrap();
            assert_eq!(labels(&plan)[5], "present");
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_management_api_that_refuses_is_an_error_without_the_password() {
        run(Broker::RabbitMq, |fx| async move {
            let wanted = Wanted::new(&fx);
            fx.mq.declare(&wanted.topology()).await.unwrap();
            let url = management_url().replace("guest:guest", "guest:s3cret");
            let api = ManagementApi::new(&url).unwrap();
            assert!(!format!("{api:?}").contains("s3cret"));
            let error = fx.mq.plan(&wanted.topology()).management(api).dry_run().await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            assert!(!format!("{error:?} {error}").contains("s3cret"));
        })
        .await;
    }

    #[test]
    fn a_url_that_is_none_is_refused() {
        for url in ["amqp://localhost", "nonsense", ""] {
            let error = ManagementApi::new(url).unwrap_err();
            assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
        }
    }
}
