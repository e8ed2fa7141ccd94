//! The first step takes what enters.

use acemq::{AceMq, HandlerError, Message};

async fn count(text: Message<String>) -> Result<Option<usize>, HandlerError> {
    Ok(Some(text.payload().len()))
}

fn wrong(mq: &AceMq) {
    let _ = mq.pipeline::<u64>("numbers").step("count", count);
}

fn main() {}
