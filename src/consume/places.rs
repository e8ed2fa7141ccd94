//! The places of handlers that run at the same time, whose number can change meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};

/// The places of one consumer, shared by all its subscriptions, so that handlers of a lost one
/// count too.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    count: Mutex<Count>,
    /// The prefetch: more handlers would have nothing to do.
    most: usize,
    is_fixed: bool,
}

#[derive(Debug)]
struct Count {
    /// How many places there are to be.
    wanted: usize,
    /// How many more there are, each to be given up instead of used.
    surplus: usize,
}

impl Places {
    pub(super) fn new(number: usize, most: u16, is_fixed: bool) -> Self {
        Self {
            free: Arc::new(Semaphore::new(number)),
            count: Mutex::new(Count { wanted: number, surplus: 0 }),
            most: usize::from(most),
            is_fixed,
        }
    }

    /// Waits for a place. Dropping the future gives nothing up.
    pub(super) async fn take(&self) -> std::result::Result<OwnedSemaphorePermit, AcquireError> {
        loop {
            let place = Arc::clone(&self.free).acquire_owned().await?;
            let mut count = self.count();
            if count.surplus == 0 {
                return Ok(place);
            }
            count.surplus -= 1;
            place.forget();
        }
    }

    pub(super) fn number(&self) -> usize {
        self.count().wanted
    }

    /// Changes their number. Places that handlers have are given up as these end.
    pub(super) fn change(&self, wanted: usize) -> Result<()> {
        check(wanted, self.most)?;
        if self.is_fixed {
            let reason = "cannot change while a consumer takes batches";
            return Err(Error::invalid("concurrency", wanted, reason));
        }
        let mut count = self.count();
        let there_are = count.wanted + count.surplus;
        count.surplus = there_are.saturating_sub(wanted);
        self.free.add_permits(wanted.saturating_sub(there_are));
        count.wanted = wanted;
        Ok(())
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a number of handlers that cannot work.
pub(super) fn check(handlers: usize, prefetch: usize) -> Result<()> {
    if handlers == 0 {
        return Err(Error::invalid("concurrency", 0, "would handle nothing; use 1 or more"));
    }
    if handlers > prefetch {
        let reason = format!("is over the prefetch of {prefetch}, which limits it");
        return Err(Error::invalid("concurrency", handlers, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Takes places until there is none.
    fn take_all(places: &Places) -> Vec<OwnedSemaphorePermit> {
        std::iter::from_fn(|| places.take().now_or_never().map(|place| place.unwrap())).collect()
    }

    #[test]
    fn places_in_use_are_given_up_as_they_become_free() {
        let places = Places::new(4, 10, false);
        let mut used = take_all(&places);
        let mut waiting = Box::pin(places.take());
        assert!((&mut waiting).now_or_never().is_none());
        places.change(2).unwrap();
        used.truncate(2);
        // Who waited before the change gets none of those either.
        assert!((&mut waiting).now_or_never().is_none());
        used.truncate(1);
        assert!(waiting.now_or_never().is_some());
        used.clear();
        assert_eq!(take_all(&places).len(), 2);
    }

    #[test]
    fn changes_there_and_back_leave_as_many_as_asked_for_last() {
        for used in 0..=2 {
            let places = Places::new(2, 10, false);
            let held: Vec<_> = take_all(&places).into_iter().take(used).collect();
            for wanted in [1, 5, 2, 10, 1, 3] {
                places.change(wanted).unwrap();
            }
            drop(held);
            assert_eq!((take_all(&places).len(), places.number()), (3, 3));
        }
    }

    #[test]
    fn numbers_that_cannot_work_change_nothing() {
        let places = Places::new(2, 10, false);
        assert!(places.change(0).is_err());
        assert!(places.change(11).is_err());
        assert_eq!((take_all(&places).len(), places.number()), (2, 2));
        assert!(Places::new(2, 10, true).change(3).is_err());
    }
}
