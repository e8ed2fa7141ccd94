//! What reached a queue, message by message, in the order in which it came.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use acemq::{AceMq, Consumer, Message};
use bytes::Bytes;
use tokio::sync::watch;

use crate::support::{AnyBody, soon};

/// Messages as `key:number`, with the ids that they came under.
#[derive(Clone)]
pub struct Ledger {
    entries: Arc<Mutex<Vec<(String, String)>>>,
    length: watch::Receiver<usize>,
    _consumer: Arc<Consumer>,
}

/// The comparison of what came with what had to come.
#[derive(Debug, PartialEq, Eq)]
pub struct Audit {
    pub lost: usize,
    pub phantoms: usize,
    pub duplicates: usize,
    /// Messages that came under more than one id.
    pub renamed: usize,
    /// First arrivals after a later message of the same key.
    pub inversions: usize,
}

impl Ledger {
    /// Consumes a queue, one message at a time, and writes everything down.
    pub async fn of(mq: &AceMq, queue: &str) -> Self {
        let entries: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let (sender, length) = watch::channel(0);
        let written = Arc::clone(&entries);
        let consumer = mq
            .consumer_with::<Bytes>(queue, AnyBody)
            .prefetch(500)
            .start(move |message: Message<Bytes>| {
                let text = String::from_utf8(message.payload().to_vec()).unwrap();
                let mut entries = written.lock().unwrap();
                entries.push((text, message.id().to_owned()));
                sender.send_replace(entries.len());
                async { Ok(()) }
            })
            .await
            .unwrap();
        Self { entries, length, _consumer: Arc::new(consumer) }
    }

    pub fn len(&self) -> usize {
        *self.length.borrow()
    }

    /// Waits until so many messages came.
    pub async fn until_length(&mut self, length: usize) {
        soon("messages", self.length.wait_for(|len| *len >= length)).await.unwrap();
    }

    /// How many different messages came.
    pub fn different(&self) -> usize {
        let entries = self.entries.lock().unwrap();
        entries.iter().map(|(text, _)| text).collect::<std::collections::HashSet<_>>().len()
    }

    /// The bodies in the order in which they came.
    pub fn texts(&self) -> Vec<String> {
        self.entries.lock().unwrap().iter().map(|(text, _)| text.clone()).collect()
    }

    /// Compares with the committed messages; those with `free` as their key have no order.
    pub fn audit(&self, committed: &[String]) -> Audit {
        let entries = self.entries.lock().unwrap();
        let mut ids: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut last: HashMap<&str, u64> = HashMap::new();
        let mut inversions = 0;
        for (text, id) in entries.iter() {
            let seen = ids.entry(text).or_default();
            if seen.is_empty() {
                let (key, number) = text.split_once(':').unwrap();
                let number: u64 = number.parse().unwrap();
                let last = last.entry(key).or_default();
                inversions += usize::from(key != "free" && number < *last);
                *last = number.max(*last);
            }
            seen.push(id);
        }
        let came = committed.iter().filter(|text| ids.contains_key(text.as_str())).count();
        Audit {
            lost: committed.len() - came,
            phantoms: ids.len() - came,
            duplicates: entries.len() - ids.len(),
            renamed: ids.values().filter(|ids| ids.iter().any(|id| *id != ids[0])).count(),
            inversions,
        }
    }
}
