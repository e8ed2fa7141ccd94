//! What a durable saga refuses.

use std::time::Duration;

use acemq::{Error, Saga, StepError};

use super::{
    noting,
    world::{Lite, World, run},
};

#[tokio::test]
async fn what_a_journal_could_not_hold_is_refused_by_name() {
    run(|world: Lite| async move {
        let saga = || Saga::<u32>::named("s").durable(world.journal());
        let ok = |_: u32, _: u32| Ok::<u32, StepError>(1);
        let refused = [
            saga().build().unwrap_err(),
            saga().step("a", noting(&world)).lease(Duration::from_millis(99)).build().unwrap_err(),
            saga().step("a\0", noting(&world)).build().unwrap_err(),
            saga().wait_for("a", Duration::ZERO, ok).build().unwrap_err(),
        ];
        let texts = refused.map(|error| {
            assert!(matches!(error, Error::InvalidOption { .. }), "{error:?}");
            error.to_string()
        });
        assert!(texts[0].contains("has no step to remember"), "{}", texts[0]);
        assert!(texts[1].contains("99ms") && texts[1].contains("lease"), "{}", texts[1]);
        assert!(texts[2].contains("NUL"), "{}", texts[2]);
        assert!(texts[3].contains("leaves the answer no time"), "{}", texts[3]);

        let saga = saga().step("a", noting(&world)).build().unwrap();
        for key in ["", &"k".repeat(256), "nul\0"] {
            let refused = saga.start(key, &1).await.unwrap_err();
            assert!(matches!(refused, Error::InvalidOption { .. }), "{refused:?}");
        }
        let id = saga.start("k", &1).await.unwrap().id;
        let refused = saga.signal(id, "a", &1).await.unwrap_err().to_string();
        assert!(refused.contains("is no step that waits for an answer"), "{refused}");
        assert!(saga.worker().concurrency(0).start().is_err());
        assert!(saga.worker().poll_interval(Duration::ZERO).start().is_err());
    })
    .await;
}

#[tokio::test]
async fn a_state_that_cannot_be_read_again_is_no_loss() {
    run(|world: Lite| async move {
        // JSON has no map whose keys are numbers in pairs.
        type State = std::collections::HashMap<(u8, u8), u8>;
        let saga = Saga::<State>::named("s")
            .durable(world.journal())
            .step("a", |_: State| async { Ok::<_, StepError>(State::from([((1, 2), 3)])) })
            .compensate_with(noting(&world))
            .build()
            .unwrap();
        let outcome = saga.run("k", &State::new()).await.unwrap();
        assert_eq!(outcome.failed_at(), Some("a"));
        assert!(outcome.failure().unwrap().to_string().contains("cannot be written as JSON"));
        // The step has run: what it did is undone.
        assert_eq!(world.effects().await, ["undo a"]);
        let refused = saga.start("k2", &State::from([((1, 2), 3)])).await.unwrap_err();
        assert!(matches!(refused, Error::Codec { .. }), "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn a_state_whose_reading_panics_holds_up_no_other_run() {
    #[derive(Clone, serde::Serialize)]
    struct Unlucky(u32);

    impl<'de> serde::Deserialize<'de> for Unlucky {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let number = u32::deserialize(from)?;
            assert_ne!(number, 13);
            Ok(Self(number))
        }
    }

    run(|world: Lite| async move {
        let saga = Saga::<Unlucky>::named("s")
            .durable(world.journal())
            .step("a", |n: Unlucky| async move { Ok::<_, StepError>(Unlucky(n.0 + 1)) })
            .step("b", noting(&world))
            .build()
            .unwrap();
        let torn = saga.start("k1", &Unlucky(12)).await.unwrap().id;
        saga.start("k2", &Unlucky(1)).await.unwrap();
        let report = saga.resume_all().await.unwrap();
        assert_eq!((report.claimed, report.complete, report.given_back), (2, 1, 1));
        let run = saga.status(torn).await.unwrap().unwrap();
        assert_eq!(run.problem(), Some("reading or writing its state panicked"));
        assert_eq!(world.effects().await, ["do b"]);
    })
    .await;
}
