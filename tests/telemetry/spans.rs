//! Spans, joined over messages by OpenTelemetry.

use std::collections::HashMap;

use acemq::{Message, ResultExt};
use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument;
use tracing_subscriber::prelude::*;

use crate::support::{eventually, soon};

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

on_both_brokers! {
    async fn one_trace_leads_from_the_request_over_both_publishes_to_the_last_handler(fixture) {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry()
            .with(layer.with_filter(tracing_subscriber::filter::Targets::new().with_targets([
                ("acemq", tracing::Level::INFO),
                ("telemetry", tracing::Level::INFO),
            ])));
        let _subscribed = tracing::subscriber::set_default(subscriber);

        let (first, second) = (fixture.queue("first").await, fixture.queue("second").await);
        let onward = fixture.mq.publisher::<u32>("", second.as_str());
        let consumer = fixture
            .mq
            .consumer::<u32>(first.as_str())
            .start(move |message: Message<u32>| {
                let onward = onward.clone();
                async move {
                    onward.send(message.payload()).await?;
                    Ok(())
                }
            })
            .await
            .unwrap();
        let last = fixture
            .mq
            .consumer::<u32>(second.as_str())
            .start(|_: Message<u32>| async { Err("broken").reject() })
            .await
            .unwrap();
        let publisher = fixture.mq.publisher::<u32>("", first.as_str());
        let request = tracing::info_span!("request");
        publisher.send(&1).instrument(request.clone()).await.unwrap();
        drop(request);
        eventually("the message to be set aside", async || last.stats().dead_lettered == 1).await;
        soon("the close", async { tokio::join!(consumer.close(), last.close()) }).await;

        let spans = exporter.get_finished_spans().unwrap();
        let by_name: HashMap<&str, &SpanData> =
            spans.iter().map(|span| (span.name.as_ref(), span)).collect();
        let way = [
            "request".to_owned(),
            format!("{first} publish"),
            format!("{first} process"),
            format!("{second} publish"),
            format!("{second} process"),
        ];
        for pair in way.windows(2) {
            let (cause, effect) = (by_name[pair[0].as_str()], by_name[pair[1].as_str()]);
            assert_eq!(effect.parent_span_id, cause.span_context.span_id(), "{pair:?}");
            assert_eq!(effect.span_context.trace_id(), cause.span_context.trace_id());
        }
        let (published, processed) = (by_name[way[1].as_str()], by_name[way[4].as_str()]);
        assert_eq!(published.span_kind, SpanKind::Producer);
        assert_eq!(processed.span_kind, SpanKind::Consumer);
        assert_eq!(attribute(published, "messaging.acemq.outcome").as_deref(), Some("confirmed"));
        assert_eq!(attribute(processed, "messaging.acemq.outcome").as_deref(), Some("dead_lettered"));
        assert_eq!(attribute(processed, "messaging.acemq.reason").as_deref(), Some("the handler rejected it: broken"));
        assert!(matches!(processed.status, opentelemetry::trace::Status::Error { .. }));
    }
}
