//! The messages at hand: those of one key one after another, those of different keys side by side.

use std::collections::{HashSet, VecDeque};

/// Work that waits, each with its key, and the keys that are being worked on.
#[derive(Debug)]
pub(super) struct Lanes<J> {
    most: usize,
    waiting: VecDeque<(String, J)>,
    busy: HashSet<String>,
}

impl<J> Lanes<J> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, waiting: VecDeque::new(), busy: HashSet::new() }
    }

    pub(super) fn add(&mut self, key: String, job: J) {
        self.waiting.push_back((key, job));
    }

    /// Takes the next job whose key is idle, if there is a lane for it.
    pub(super) fn start(&mut self) -> Option<(String, J)> {
        if self.busy.len() >= self.most {
            return None;
        }
        let next = self.waiting.iter().position(|(key, _)| !self.busy.contains(key))?;
        let (key, job) = self.waiting.remove(next)?;
        self.busy.insert(key.clone());
        Some((key, job))
    }

    /// Frees the lane of a key.
    pub(super) fn end(&mut self, key: &str) {
        self.busy.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn jobs_of_a_key_never_overlap_and_keep_their_order(
            keys in proptest::collection::vec(0_u8..5, 0..60),
            most in 1_usize..6,
            ends in proptest::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let mut lanes = Lanes::new(most);
            for (number, key) in keys.iter().enumerate() {
                lanes.add(key.to_string(), number);
            }
            let (mut running, mut last, mut done) = (Vec::new(), [None; 5], 0);
            let mut ends = ends.into_iter();
            loop {
                while let Some((key, number)) = lanes.start() {
                    let index = key.parse::<usize>().unwrap();
                    prop_assert!(running.iter().all(|other: &String| *other != key));
                    prop_assert!(last[index] < Some(number));
                    last[index] = Some(number);
                    running.push(key);
                    prop_assert!(running.len() <= most);
                }
                if running.is_empty() {
                    break;
                }
                let Some(end) = ends.next() else { break };
                let key = running.swap_remove(end.index(running.len()));
                lanes.end(&key);
                done += 1;
            }
            prop_assert_eq!(done, keys.len());
        }
    }
}
