//! A run starts with what the first step takes.

use acemq::{Error, Pipeline};

async fn wrong(texts: Pipeline<String>) -> Result<String, Error> {
    texts.send(&7_u64).await
}

fn main() {}
