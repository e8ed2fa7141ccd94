//! What is meant to become of each run, and what became of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use acemq::{AceMq, HandlerError, Message, Pipeline, PipelineBuilder, RetryPolicy};
use serde::{Deserialize, Serialize};

use crate::support::{Fixture, Inbox};

pub const STEPS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// How a run is meant to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum End {
    Completes,
    /// At the step of this index, which is not the last: that one completes a run in any case.
    Early(usize),
    Rejected(usize),
    Panics(usize),
}

/// A run, and the steps that it went through.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub number: usize,
    pub end: End,
    steps: Vec<usize>,
}

impl Job {
    pub fn new(number: usize, random: &mut fastrand::Rng) -> Self {
        let end = match number % 20 {
            0 | 7 => End::Early(random.usize(..STEPS.len() - 1)),
            3 => End::Rejected(random.usize(..STEPS.len())),
            12 => End::Panics(random.usize(..STEPS.len())),
            _ => End::Completes,
        };
        Self { number, end, steps: Vec::new() }
    }
}

/// Five steps that fail now and then, and end runs as they are meant to end. A run that ends early
/// is told to the queue `early`, one that completes goes to `results`.
pub fn pipeline(mq: &AceMq, name: &str, results: &str) -> PipelineBuilder<Job, Job> {
    let step = |index: usize| {
        let early = mq.publisher::<Job>("", early(results));
        move |job: Message<Job>| {
            let early = early.clone();
            async move {
                let mut job = job.into_payload();
                if fastrand::u8(..20) == 0 {
                    return Err(HandlerError::retry("now and then"));
                }
                match job.end {
                    End::Rejected(at) if at == index => Err(HandlerError::reject("meant to")),
                    End::Panics(at) if at == index => panic!("meant to"),
                    End::Early(at) if at == index => {
                        early.send(&job).await?;
                        Ok(None)
                    }
                    _ => {
                        job.steps.push(index);
                        Ok(Some(job))
                    }
                }
            }
        }
    };
    mq.pipeline::<Job>(name)
        .retry(RetryPolicy::fixed(40, Duration::from_millis(5)))
        .concurrency(4)
        .step(STEPS[0], step(0))
        .step(STEPS[1], step(1))
        .step(STEPS[2], step(2))
        .step(STEPS[3], step(3))
        .step(STEPS[4], step(4))
        .results_to("", results)
}

/// The queue that runs are told to which end early.
pub fn early(results: &str) -> String {
    format!("{results}.early")
}

/// Where runs ended, with how often each was seen there: once, or more often where a message came
/// again after a loss.
pub struct Ends {
    results: (String, Inbox),
    told_early: (String, Inbox),
    pub completed: BTreeMap<usize, u64>,
    pub early: BTreeMap<usize, u64>,
    /// In the dead letters of a step.
    pub dead: BTreeMap<(usize, usize), u64>,
}

impl Ends {
    /// Reads every place until each of these runs has ended as it is meant to.
    pub async fn of(fx: &Fixture, jobs: &[Job], pipeline: &str, results: &str) -> Self {
        let (early, of_early) = (early(results), |end| matches!(end, End::Early(_)));
        let mut ends = Self {
            results: (results.to_owned(), Inbox::of(&fx.mq, results).await),
            told_early: (early.clone(), Inbox::of(&fx.mq, &early).await),
            completed: BTreeMap::new(),
            early: BTreeMap::new(),
            dead: BTreeMap::new(),
        };
        let expected = |wanted: fn(End) -> bool| jobs.iter().filter(|job| wanted(job.end)).count();
        while ends.completed.len() < expected(|end| end == End::Completes) {
            let message = ends.results.1.next().await;
            ends.note_result(&message);
        }
        while ends.early.len() < expected(of_early) {
            let message = ends.told_early.1.next().await;
            ends.note_early(&message);
        }
        for index in 0..STEPS.len() {
            ends.read_dead_letters(fx, jobs, pipeline, index).await;
        }
        ends
    }

    fn note_result(&mut self, message: &Message<bytes::Bytes>) {
        let job = read(message);
        assert_eq!((job.end, &job.steps[..]), (End::Completes, &[0, 1, 2, 3, 4][..]), "{job:?}");
        *self.completed.entry(job.number).or_default() += 1;
    }

    fn note_early(&mut self, message: &Message<bytes::Bytes>) {
        let job = read(message);
        let through: Vec<usize> = (0..job.steps.len()).collect();
        assert_eq!((job.end, &job.steps), (End::Early(through.len()), &through), "{job:?}");
        *self.early.entry(job.number).or_default() += 1;
    }

    async fn read_dead_letters(&mut self, fx: &Fixture, jobs: &[Job], pipeline: &str, step: usize) {
        let meant =
            |job: &&Job| matches!(job.end, End::Rejected(at) | End::Panics(at) if at == step);
        let meant: BTreeSet<usize> = jobs.iter().filter(meant).map(|job| job.number).collect();
        let mut found = BTreeSet::new();
        let mut inbox = Inbox::of(&fx.mq, &format!("{pipeline}.{}.dlq", STEPS[step])).await;
        while found.len() < meant.len() {
            let job = read(&inbox.next().await);
            assert!(meant.contains(&job.number), "{job:?} is dead at step {step}");
            found.insert(job.number);
            *self.dead.entry((step, job.number)).or_default() += 1;
        }
    }

    /// Reads what came again after each run had been seen; the pipeline is closed.
    pub async fn read_rest(&mut self, fx: &Fixture) {
        for queue in [&self.results.0, &self.told_early.0] {
            fx.mq.publisher::<String>("", queue.as_str()).send(&LAST.to_owned()).await.unwrap();
        }
        while let Some(message) = Some(self.results.1.next().await).filter(is_not_last) {
            self.note_result(&message);
        }
        while let Some(message) = Some(self.told_early.1.next().await).filter(is_not_last) {
            self.note_early(&message);
        }
    }

    /// Every run is in one place only, and none is in another.
    pub fn assert_each_of(&self, jobs: &[Job]) {
        let mut seen = BTreeSet::new();
        let places = self.completed.keys().chain(self.early.keys());
        for number in places.chain(self.dead.keys().map(|(_, number)| number)) {
            assert!(seen.insert(*number), "run {number} ended in two ways");
        }
        assert_eq!(seen, jobs.iter().map(|job| job.number).collect());
    }

    pub fn twice(&self) -> u64 {
        let twice = |seen: u64, distinct: u64| seen - distinct;
        twice(seen(&self.completed), distinct(&self.completed))
            + twice(seen(&self.early), distinct(&self.early))
            + twice(seen(&self.dead), distinct(&self.dead))
    }
}

/// A counter agrees with what was seen: each end is counted, and none more often than it was seen.
pub fn assert_counted<K>(what: &str, counted: u64, ends: &BTreeMap<K, u64>) {
    let possible = distinct(ends)..=seen(ends);
    assert!(possible.contains(&counted), "{what}: {counted} counted, {possible:?} seen");
}

pub fn distinct<K>(ends: &BTreeMap<K, u64>) -> u64 {
    ends.len() as u64
}

fn seen<K>(ends: &BTreeMap<K, u64>) -> u64 {
    ends.values().sum()
}

/// What is read after everything else.
const LAST: &str = "the last";

fn is_not_last(message: &Message<bytes::Bytes>) -> bool {
    serde_json::from_slice::<String>(message.body()).is_err()
}

fn read(message: &Message<bytes::Bytes>) -> Job {
    serde_json::from_slice(message.body()).unwrap()
}

/// Waits until no message is in a step's queue, and none is parked.
pub async fn until_empty(fx: &Fixture, pipeline: &Pipeline<Job>) {
    for step in STEPS {
        fx.until_length(&pipeline.queue_for(step).unwrap(), 0).await;
        fx.until_length(&format!("{}.{step}.parked", pipeline.name()), 0).await;
    }
}
