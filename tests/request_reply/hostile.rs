//! A peer that replies with anything, to anybody.

use acemq::{AceMq, BytesCodec, Envelope, HeaderValue, Headers, RequestError};
use bytes::Bytes;

use crate::{
    LONG, answer_to, ask, responder,
    support::{Inbox, eventually, soon},
};

/// Sends a reply by hand.
async fn reply(
    mq: &AceMq,
    address: &str,
    envelope: Envelope,
    content_type: &str,
    body: &'static [u8],
) {
    let publisher = mq.publisher_with::<Bytes>("", address, BytesCodec).content_type(content_type);
    publisher.send_with(&Bytes::from_static(body), envelope).await.unwrap();
}

on_both_brokers! {
    async fn strangers_replies_are_counted_and_disturb_nobody(fx) {
        let queue = fx.queue("requests").await;
        let requester = fx.mq.requester().await.unwrap();
        let address = requester.reply_queue().unwrap();
        let mut table = Headers::new();
        table.insert("acemq-error", HeaderValue::List(vec![HeaderValue::Null]));
        let strange = [
            Envelope::new(),
            Envelope::new().correlation("no such call"),
            Envelope::new().correlation("x".repeat(60_000)),
            Envelope::new().with_id("\0\n日本").correlation("é\0"),
            Envelope::new().header("acemq-error", ""),
            Envelope::new().header("acemq-error", HeaderValue::Null),
            Envelope::new().header("acemq-error", HeaderValue::Table(table)),
            Envelope::new().header("acemq-error", "x".repeat(100_000)),
            Envelope::new().header("acemq-reply-to", address.as_str()),
        ];
        let count = strange.len() as u64;
        for envelope in strange {
            reply(&fx.mq, &address, envelope, "image/png", b"\xff\x00").await;
        }
        eventually("the count", async || requester.stats().unmatched == count).await;
        assert_eq!(fx.mq.queue_length(&address).await.unwrap(), Some(0));
        let _responder = responder(&fx.mq, &queue).await;
        assert_eq!(ask(&requester, &queue, 1).await.unwrap(), answer_to(1));
        requester.close().await;
    }

    async fn a_call_survives_every_kind_of_reply_and_takes_only_the_first(fx) {
        let queue = fx.queue("requests").await;
        let mut requests = Inbox::of(&fx.mq, &queue).await;
        let requester = fx.mq.requester().await.unwrap();
        let error = "acemq-error";
        let mut table = Headers::new();
        table.insert("a", 1);
        type Headed = Box<dyn Fn(Envelope) -> Envelope + Send>;
        let with = |value: HeaderValue| -> Headed { Box::new(move |e| e.header(error, value.clone())) };
        let cases: Vec<(Headed, &str, &'static [u8], &str)> = vec![
            (Box::new(|e| e), "application/json", b"7", "7"),
            (Box::new(|e| e), "application/json", b"{broken", "undecodable"),
            (Box::new(|e| e), "image/png", b"7", "undecodable"),
            (Box::new(|e| e), "application/json", b"", "undecodable"),
            (with("".into()), "application/json", b"7", "7"),
            (with(HeaderValue::Null), "application/json", b"7", "7"),
            (with(HeaderValue::Table(table)), "application/json", b"7", "7"),
            (with("Gone: sku 42".into()), "application/json", b"7", "Gone/sku 42"),
            (with("no stock".into()), "image/png", b"\xff", "Error/no stock"),
            (with(HeaderValue::Bytes(Bytes::from_static(b"A: \xff"))), "x", b"", "A/\u{fffd}"),
            (with(HeaderValue::Int(404)), "application/json", b"null", "Error/404"),
            (with("two\nlines\0".into()), "application/json", b"null", "Error/two lines "),
        ];
        for (headed, content_type, body, expected) in cases {
            let (asking, target) = (requester.clone(), queue.clone());
            let call = tokio::spawn(async move { asking.request::<_, u64>("", &target, &1, LONG).await });
            let request = requests.next().await;
            let before = requester.stats().unmatched;
            // Another call's correlation and other letters first, then the answer twice.
            let id = request.envelope().correlation_id();
            let address = request.reply_to().unwrap();
            for wrong in [id.to_uppercase() + " ", format!("{id}0"), id[1..].to_owned()] {
                reply(&fx.mq, address, Envelope::new().correlation(wrong), "application/json", b"666").await;
            }
            for _ in 0..2 {
                let envelope = headed(Envelope::new().correlation(id));
                reply(&fx.mq, address, envelope, content_type, body).await;
            }
            let found = match soon("the end of the call", call).await.unwrap() {
                Ok(answer) => answer.to_string(),
                Err(RequestError::ResponderFailed { error_type, message }) => format!("{error_type}/{message}"),
                Err(RequestError::Undecodable { .. }) => "undecodable".into(),
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(found, expected);
            eventually("the rest", async || requester.stats().unmatched == before + 4).await;
        }
        let oversized = requester.start::<_, u64>("", &queue, &1, LONG).await.unwrap();
        let request = requests.next().await;
        let envelope = Envelope::new().correlation(request.envelope().correlation_id())
            .header(error, format!("Big: {}", "y".repeat(100_000)));
        reply(&fx.mq, request.reply_to().unwrap(), envelope, "application/json", b"null").await;
        match soon("the end", oversized).await {
            Err(RequestError::ResponderFailed { error_type, message }) => {
                assert!(error_type == "Big" && message.len() <= 8192);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(requester.stats().in_flight, 0);
        requester.close().await;
    }
}
