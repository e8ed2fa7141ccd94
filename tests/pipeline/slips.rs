//! Slips that come from elsewhere: routes of other declarations, itineraries, both, and neither.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use acemq::{Envelope, Itinerary, Message, RoutingSlip};

use crate::{
    STEPS, built, name, next,
    support::{eventually, soon},
    three,
};

on_both_brokers! {
    async fn a_message_without_a_slip_is_at_the_step_whose_queue_it_came_to(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let _pipeline = built(builder).await;
        // As .NET does: through the default exchange, to the queue.
        fx.mq.publisher::<u64>("", format!("{name}.add")).send(&10).await.unwrap();
        assert_eq!(next(&mut told).await.0, 11);
    }

    async fn a_route_on_the_message_wins_over_the_declaration(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let direct = fx.mq.publisher::<u64>(name.as_str(), "double");
        let short = RoutingSlip::new(["double", "tell"]).unwrap();
        direct.send_with(&10, Envelope::new().with_route(short)).await.unwrap();
        assert_eq!(next(&mut told).await.0, 20, "without the step in the middle");

        // Its end is the end, whatever is declared; a step of elsewhere is no guess.
        let only = RoutingSlip::new(["double"]).unwrap();
        direct.send_with(&10, Envelope::new().with_route(only)).await.unwrap();
        eventually("the end", async || pipeline.completed() == 2).await;
        let foreign = RoutingSlip::new(["double", "ship"]).unwrap();
        direct.send_with(&10, Envelope::new().with_route(foreign)).await.unwrap();
        fx.until_length(&format!("{name}.double.dlq"), 1).await;
        assert!(told.try_recv().is_err());
    }

    async fn an_itinerary_leads_through_steps_and_on_to_elsewhere(fx) {
        let name = name(&fx, &STEPS);
        let elsewhere = fx.queue("elsewhere").await;
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let route = Itinerary::new()
            .then(name.as_str(), "add")
            .then(name.as_str(), "double")
            .then("", elsewhere.as_str());
        // Beside a route trio, which the itinerary wins over.
        let both = Envelope::new().with_route(RoutingSlip::new(["tell"]).unwrap());
        pipeline.send_slip(&route, &5, both).await.unwrap();
        let mut inbox = crate::support::Inbox::of(&fx.mq, &elsewhere).await;
        let message = inbox.next().await;
        assert_eq!(message.body(), "12");
        let slip = Itinerary::from(message.headers()).unwrap().unwrap();
        assert_eq!((slip.done().len(), slip.remaining().len()), (2, 1));
        assert!(told.try_recv().is_err());

        let finished = pipeline.send_slip(&Itinerary::new(), &1, Envelope::new()).await;
        assert!(matches!(finished, Err(acemq::Error::InvalidOption { .. })), "{finished:?}");
    }

    async fn malformed_slips_are_dead_lettered_between_good_ones(fx) {
        let name = name(&fx, &STEPS);
        let (builder, mut told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let direct = fx.mq.publisher::<u64>(name.as_str(), "add");
        let malformed = ["", "{", "[]", "null", "7", r#"{"steps":7}"#, r#"{"steps":[7]}"#];
        let mut wrong = 0;
        for text in malformed {
            let envelope = Envelope::new().header(Itinerary::HEADER, text);
            // What the reader takes for a finished slip is one: the run is complete.
            let fatal = Itinerary::from(envelope.headers()).is_err();
            wrong += u64::from(fatal);
            direct.send_with(&1, envelope).await.unwrap();
            direct.send(&1).await.unwrap();
            assert_eq!(next(&mut told).await.0, 2, "{text}");
        }
        assert!(wrong > 3);
        fx.until_length(&format!("{name}.add.dlq"), wrong).await;
        assert_eq!(pipeline.step("add").unwrap().stats().retried, 0);
    }

    async fn an_itinerary_to_nowhere_is_dead_lettered_and_can_be_resumed(fx) {
        let name = name(&fx, &STEPS);
        let missing = fx.name("missing");
        let (builder, _told) = three(&fx.mq, &name);
        let pipeline = built(builder).await;
        let route = Itinerary::new().then(name.as_str(), "add").then("", missing.as_str());
        pipeline.send_slip(&route, &5, Envelope::new()).await.unwrap();
        let dead = format!("{name}.add.dlq");
        fx.until_length(&dead, 1).await;
        fx.mq.declare(&acemq::Topology::new().queue(acemq::Queue::new(missing.as_str()))).await.unwrap();
        let report = soon("the replay", fx.mq.replay(dead.as_str()).run()).await.unwrap();
        assert_eq!(report.moved(), 1);
        fx.until_length(&missing, 1).await;
    }

    async fn a_step_does_nothing_for_a_message_whose_slip_leads_nowhere(fx) {
        let name = name(&fx, &["work"]);
        let worked = Arc::new(AtomicUsize::new(0));
        let work = Arc::clone(&worked);
        let step = move |n: Message<u64>| {
            work.fetch_add(1, Ordering::SeqCst);
            async move { Ok(Some(*n.payload())) }
        };
        let pipeline = built(fx.mq.pipeline::<u64>(name.as_str()).step("work", step)).await;
        let direct = fx.mq.publisher::<u64>(name.as_str(), "work");
        let foreign = RoutingSlip::new(["work", "ship"]).unwrap();
        direct.send_with(&1, Envelope::new().with_route(foreign)).await.unwrap();
        direct.send_with(&1, Envelope::new().header(Itinerary::HEADER, "{")).await.unwrap();
        fx.until_length(&format!("{name}.work.dlq"), 2).await;
        assert_eq!(worked.load(Ordering::SeqCst), 0);
        pipeline.send(&1).await.unwrap();
        eventually("the good one", async || pipeline.completed() == 1).await;
        assert_eq!(worked.load(Ordering::SeqCst), 1);
    }
}
