//! The runs that ended, as metrics tell.

use std::collections::BTreeMap;

use acemq::{Saga, StepError, telemetry::metric::SAGA_RUN_TOTAL};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use super::{
    noting,
    world::{Lite, World, run},
};

/// A local recorder hears this thread only, which is where this test's tasks run.
#[tokio::test]
async fn each_run_that_ends_is_counted_by_its_outcome() {
    let recorder: &'static DebuggingRecorder = Box::leak(Box::new(DebuggingRecorder::new()));
    let _guard = metrics::set_default_local_recorder(recorder);
    run(|world: Lite| async move {
        let saga = Saga::<u32>::named("counted")
            .durable(world.journal())
            .step("a", noting(&world))
            .compensate_with(|n: u32| async move {
                if n == 2 { Err(StepError::fatal("refused")) } else { Ok(()) }
            })
            .step(
                "b",
                |n: u32| async move { if n > 0 { Err(StepError::fatal("no")) } else { Ok(()) } },
            )
            .build()
            .unwrap();
        for n in [0, 0, 0, 1, 1, 2] {
            saga.start(&uuid::Uuid::new_v4().to_string(), &n).await.unwrap();
        }
        saga.resume_all().await.unwrap();
    })
    .await;
    let mut counts = BTreeMap::new();
    for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
        let key = key.key();
        if let (SAGA_RUN_TOTAL, DebugValue::Counter(count)) = (key.name(), value) {
            let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
            counts.insert(labels.join(" "), count);
        }
    }
    let expected = [("counted compensated", 2), ("counted complete", 3), ("counted unresolved", 1)];
    let expected = expected.map(|(labels, count)| (labels.to_owned(), count));
    assert_eq!(counts, BTreeMap::from(expected));
}
