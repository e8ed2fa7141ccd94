//! The records of a claim on their way: in lanes, and counted until the broker has answered.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

use crate::outbox::ClaimedRecord;

/// Claimed records without a broker's answer.
#[derive(Default)]
pub(super) struct Unanswered {
    count: AtomicUsize,
    /// Signalled with every answer.
    answered: Notify,
}

impl Unanswered {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits for the next answer of the broker.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }
}

/// One record that waits for its answer; counted until it is dropped, whatever the reason.
pub(super) struct Waiting(Arc<Unanswered>);

impl Waiting {
    pub(super) fn new(unanswered: &Arc<Unanswered>) -> Self {
        unanswered.count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(unanswered))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.answered.notify_one();
    }
}

/// The records of one ordering key, or one without, to be published one after another.
pub(super) type Lane = VecDeque<(ClaimedRecord, Waiting)>;

/// One lane for each ordering key, and one for each record without.
pub(super) fn lanes(records: impl Iterator<Item = (ClaimedRecord, Waiting)>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut of_keys: HashMap<String, usize> = HashMap::new();
    for (record, waiting) in records {
        let next = lanes.len();
        let lane = record.record().get_ordering_key().map(str::to_owned);
        match lane.map_or(next, |key| *of_keys.entry(key).or_insert(next)) {
            lane if lane < next => lanes[lane].push_back((record, waiting)),
            _ => lanes.push(VecDeque::from([(record, waiting)])),
        }
    }
    lanes
}
