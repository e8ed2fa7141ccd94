//! A process that is killed at any point, again and again, and others that go on with its runs.
//!
//! Two forms. In the first a child dies at its n-th point, for every n: a point is before and after
//! each call of the journal, and before and after each effect of a step or compensation. A second
//! one goes on and dies as well, and a third goes on to the end. In the second form a child drives many
//! runs at a time and starts others; it dies by a dice at these points, or is killed from outside,
//! until all have ended. What has to hold for each run is in `audit`.
//!
//! `ACEMQ_SAGA_RUNS` sets the runs of the second form on each database, and has every database pass
//! through every point. The short form has 150, and shares the points out among the databases.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acemq::{
    DurableSaga, ParallelSteps, Result, RunStatus, Saga, SagaJournal, SagaRun, StartedRun,
    StepContext, StepError,
    inbox::OwnedTransaction,
    saga::{
        InDoubt, JournalEntry, JournaledRun, NewRun, RunClaim, RunFilter, RunLease, RunNext,
        Settlement,
    },
};
use futures::{FutureExt, future::BoxFuture};
use uuid::Uuid;

use super::world::{Lite, Pg, World, run};

// --- the saga ------------------------------------------------------------------------------------

/// How a run is to end, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Complete,
    /// Fails at the last step.
    Undone,
    /// Fails beside another step.
    UndoneBeside,
    /// Fails at the last step, and one compensation fails too.
    Torn,
}

impl Plan {
    fn of(run: u64) -> Self {
        [Self::Complete, Self::Undone, Self::Torn, Self::UndoneBeside][(run % 4) as usize]
    }
}

/// The steps that have effects, in their order; `left` and `right` run side by side.
const STEPS: [&str; 6] = ["retried", "asked", "left", "right", "written", "last"];

/// A step whose repetition is not wanted: in doubt it is compensated.
const ONCE: &str = "asked";

fn act<W: World>(
    world: &W,
    dice: &Dice,
) -> impl Fn(u64) -> BoxFuture<'static, Acted> + 'static + Send + Sync {
    let (world, dice) = (world.clone(), dice.clone());
    move |run| {
        let (world, dice) = (world.clone(), dice.clone());
        Box::pin(async move {
            let step = StepContext::current().expect("a step runs");
            dice.point();
            let (plan, name) = (Plan::of(run), step.step());
            let fails = matches!(
                (plan, name, step.is_compensation()),
                (Plan::Undone | Plan::Torn, "last", false)
                    | (Plan::UndoneBeside, "right", false)
                    | (Plan::Torn, "asked", true)
            );
            if fails {
                return Err(StepError::fatal("as planned"));
            }
            world.effect(&step.idempotency_key()).await?;
            dice.point();
            Ok(())
        })
    }
}

type Acted = std::result::Result<(), StepError>;

fn saga<W: World>(world: &W, dice: &Dice) -> DurableSaga<u64, Deadly<W::Journal>> {
    let act = || act(world, dice);
    let beside = || {
        let act = act();
        move |run: u64| {
            let acted = act(run);
            async move { acted.await.map(|()| |_: &mut u64| {}) }
        }
    };
    let (name, inner) = (world.name().to_owned(), dice.clone());
    Saga::<u64>::named("killed")
        .durable(Deadly { inner: world.journal(), dice: dice.clone() })
        .step("retried", act())
        .compensate_with(act())
        .step("asked", act())
        .in_doubt(InDoubt::Compensate)
        .compensate_with(act())
        .wait("paused", Duration::from_millis(1))
        .wait_for("answered", Duration::from_hours(1), |run: u64, (): ()| Ok::<_, StepError>(run))
        .parallel(
            ParallelSteps::new()
                .step("left", beside())
                .compensate_with(act())
                .step("right", beside())
                .compensate_with(act()),
        )
        .step_in_transaction("written", move |run: u64, tx| {
            let (name, dice) = (name.clone(), inner.clone());
            let key = StepContext::current().expect("a step runs").idempotency_key();
            async move {
                W::effect_in(tx, &name, &key).await?;
                dice.point();
                Ok::<_, StepError>(run)
            }
            .boxed()
        })
        .compensate_with(act())
        .step("last", act())
        .compensate_with(act())
        .build()
        .unwrap()
}

/// Kills the process at one of its points.
#[derive(Clone)]
struct Dice(Arc<Death>);

enum Death {
    /// At the n-th point.
    At(u64, AtomicU64),
    /// At each with this chance, one in so many.
    By(u64, Mutex<fastrand::Rng>),
}

impl Dice {
    fn never() -> Self {
        Self::at(u64::MAX)
    }

    fn at(point: u64) -> Self {
        Self(Arc::new(Death::At(point, AtomicU64::new(0))))
    }

    fn by_chance(one_in: u64, seed: u64) -> Self {
        Self(Arc::new(Death::By(one_in, Mutex::new(fastrand::Rng::with_seed(seed)))))
    }

    fn point(&self) {
        let dies = match &*self.0 {
            Death::At(point, passed) => passed.fetch_add(1, Ordering::SeqCst) + 1 == *point,
            Death::By(one_in, random) => random.lock().unwrap().u64(..*one_in) == 0,
        };
        if dies {
            std::process::abort();
        }
    }
}

/// A journal whose process may die before and after each call.
#[derive(Clone)]
struct Deadly<J> {
    inner: J,
    dice: Dice,
}

impl<J> Deadly<J> {
    async fn around<A>(&self, call: impl Future<Output = Result<A>>) -> Result<A> {
        self.dice.point();
        let answer = call.await;
        self.dice.point();
        answer
    }
}

impl<J: SagaJournal> SagaJournal for Deadly<J> {
    type Database = J::Database;

    async fn begin(&self) -> Result<OwnedTransaction<J::Database>> {
        self.inner.begin().await
    }
    async fn create(
        &self,
        tx: &mut OwnedTransaction<J::Database>,
        run: &NewRun,
    ) -> Result<StartedRun> {
        self.around(self.inner.create(tx, run)).await
    }
    async fn claim(&self, claim: &RunClaim) -> Result<Vec<RunLease>> {
        self.around(self.inner.claim(claim)).await
    }
    async fn record(
        &self,
        tx: &mut OwnedTransaction<J::Database>,
        lease: &RunLease,
        entries: &[JournalEntry],
        next: &RunNext,
    ) -> Result<bool> {
        self.around(self.inner.record(tx, lease, entries, next)).await
    }
    async fn write(
        &self,
        lease: &RunLease,
        entries: &[JournalEntry],
        next: &RunNext,
    ) -> Result<bool> {
        let mut tx = self.begin().await?;
        let held = self.record(&mut tx, lease, entries, next).await?;
        if held {
            tx.commit().await.unwrap();
            self.dice.point();
        }
        Ok(held)
    }
    async fn renew(&self, lease: &RunLease, length: Duration) -> Result<bool> {
        self.inner.renew(lease, length).await
    }
    async fn load(&self, id: Uuid) -> Result<Option<JournaledRun>> {
        self.inner.load(id).await
    }
    async fn find(&self, saga: &str, which: RunFilter<'_>, limit: u32) -> Result<Vec<Uuid>> {
        self.inner.find(saga, which, limit).await
    }
    async fn count(&self, saga: &str, status: RunStatus) -> Result<u64> {
        self.inner.count(saga, status).await
    }
    async fn signal(
        &self,
        tx: &mut OwnedTransaction<J::Database>,
        id: Uuid,
        name: &str,
        payload: &str,
    ) -> Result<bool> {
        self.around(self.inner.signal(tx, id, name, payload)).await
    }
    async fn signalled(
        &self,
        tx: &mut OwnedTransaction<J::Database>,
        id: Uuid,
        name: &str,
    ) -> Result<Option<String>> {
        self.around(self.inner.signalled(tx, id, name)).await
    }
    async fn settle(&self, saga: &str, id: Uuid, how: Settlement<'_>) -> Result<bool> {
        self.inner.settle(saga, id, how).await
    }
    async fn other_versions(&self, saga: &str, version: u32) -> Result<Vec<u32>> {
        self.inner.other_versions(saga, version).await
    }
    async fn purge(&self, saga: &str, older_than: Duration, limit: u32) -> Result<u64> {
        self.inner.purge(saga, older_than, limit).await
    }
}

// --- what has to hold ----------------------------------------------------------------------------

/// What happened in one run, by the ledger of effects and by the journal.
struct Evidence {
    run: SagaRun,
    plan: Plan,
    effects: Vec<String>,
    started: Vec<String>,
}

impl Evidence {
    fn did(&self, step: &str) -> usize {
        self.effects.iter().filter(|effect| *effect == step).count()
    }

    fn undid(&self, step: &str) -> usize {
        self.did(&format!("{step}/undo"))
    }

    fn check(&self) {
        match self.run.status() {
            RunStatus::Complete => self.check_complete(),
            RunStatus::Compensated | RunStatus::Unresolved => self.check_undone(),
            status => panic!("{status:?} is no end: {self:?}"),
        }
        for step in STEPS {
            let begun = self.started.iter().filter(|started| *started == step).count();
            assert!(self.did(step) <= begun, "{step} ran without a record of it: {self:?}");
            assert!(begun > 0 || self.undid(step) == 0, "{step} never started: {self:?}");
        }
        let repeated = self.started.iter().filter(|started| *started == ONCE).count();
        assert!(repeated <= 1, "{ONCE} was repeated in doubt: {self:?}");
        assert!(self.did("written") <= 1, "what commits with the journal did twice: {self:?}");
    }

    fn check_complete(&self) {
        assert_eq!(self.plan, Plan::Complete, "{self:?}");
        for step in STEPS {
            assert!(self.did(step) > 0, "{step} is lost: {self:?}");
            assert_eq!(self.undid(step), 0, "{step} was undone: {self:?}");
        }
    }

    fn check_undone(&self) {
        let failed = self.run.failed_at().expect("it failed at a step");
        let place = |step: &str| STEPS.iter().position(|one| *one == step);
        // A run whose plan was to complete was in doubt: at the step that is not to be repeated, or
        // at one over which too many processes died.
        let listed: Vec<&str> =
            self.run.unresolved().iter().map(|unresolved| &*unresolved.step).collect();
        assert_eq!(self.run.status() == RunStatus::Unresolved, !listed.is_empty(), "{self:?}");
        for step in STEPS {
            if listed.contains(&step) {
                continue;
            }
            assert!(self.did(step) == 0 || self.undid(step) > 0, "{step} is left: {self:?}");
            let beside = ["left", "right"].contains(&failed) && ["left", "right"].contains(&step);
            if place(step) > place(failed) && !beside {
                assert_eq!(self.did(step), 0, "{step} ran after the failure: {self:?}");
            }
        }
        if self.plan == Plan::Torn && self.started.iter().any(|step| step == ONCE) {
            assert!(listed.contains(&ONCE), "a compensation that failed is not listed: {self:?}");
        }
        let order: Vec<_> = self.run.undone().iter().filter_map(|step| place(step)).collect();
        let sides = |place: usize| if place == 3 { 2 } else { place };
        assert!(order.iter().rev().map(|place| sides(*place)).is_sorted(), "{self:?}");
        let first_undo = self.effects.iter().position(|effect| effect.ends_with("/undo"));
        let last_do = self.effects.iter().rposition(|effect| !effect.ends_with("/undo"));
        assert!(first_undo.is_none() || last_do < first_undo, "a step after the undoing: {self:?}");
    }
}

impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { run, plan, effects, started } = self;
        let status = (run.key(), run.status(), run.failed_at(), run.failure());
        write!(f, "{plan:?} {status:?} {effects:?} started {started:?} {:?}", run.unresolved())
    }
}

/// Checks every run, and that there are so many; returns how many ended in which way.
async fn audit<W: World>(world: &W, runs: u64) -> HashMap<RunStatus, usize> {
    let saga = saga(world, &Dice::never());
    let mut effects = HashMap::<String, Vec<String>>::new();
    for effect in world.effects().await {
        let (run, step) = effect.split_once('/').unwrap();
        effects.entry(run.to_owned()).or_default().push(step.to_owned());
    }
    let started = "SELECT run_id FROM {p}saga_journal WHERE kind = 'STARTED' ORDER BY run_id, seq";
    let steps = started.replace("SELECT run_id", "SELECT step");
    let mut begun = HashMap::<String, Vec<String>>::new();
    for (run, step) in world.texts(started).await.into_iter().zip(world.texts(&steps).await) {
        begun.entry(run).or_default().push(step);
    }
    let mut ends = HashMap::new();
    for number in 0..runs {
        let run = saga.status_of(&number.to_string()).await.unwrap();
        let run = run.unwrap_or_else(|| panic!("run {number} was never started"));
        let id = run.id().to_string();
        *ends.entry(run.status()).or_default() += 1;
        let evidence = Evidence {
            run,
            plan: Plan::of(number),
            effects: effects.remove(&id).unwrap_or_default(),
            started: begun.remove(&id).unwrap_or_default(),
        };
        evidence.check();
    }
    assert!(effects.is_empty(), "effects of runs that do not exist: {effects:?}");
    let unresolved = saga.unresolved(u32::MAX).await.unwrap().len();
    assert_eq!(unresolved, ends.get(&RunStatus::Unresolved).copied().unwrap_or(0));
    ends
}

// --- a death at every point ----------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_death_at_every_point_on_postgres() {
    run(every_point::<Pg>).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_death_at_every_point_on_mysql() {
    run(every_point::<super::world::Maria>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_death_at_every_point_on_sqlite() {
    run(every_point::<Lite>).await;
}

/// The run's number is its plan. The runs of a plan die in their first children at one point after
/// the other, until a child lives to its end. In the short form each database has a third of them.
async fn every_point<W: World>(world: W) {
    let mut random = fastrand::Rng::with_seed(11);
    let (first, step) = match (long_form(), W::NAME) {
        (true, _) => (1, 1),
        (_, "postgres") => (1, 3),
        (_, "mysql") => (2, 3),
        _ => (3, 3),
    };
    let mut points = [first; 4];
    let mut survived = [false; 4];
    let mut number = 0;
    while survived != [true; 4] {
        let plan = usize::try_from(number % 4).unwrap();
        let point = points[plan];
        world.make_due().await;
        let died = until_exit(child::<W>(&world, &format!("at {number} {point}"))).await;
        world.make_due().await;
        until_exit(child::<W>(&world, &format!("at {number} {}", random.u64(1..30)))).await;
        finish(&world, number).await;
        if !died {
            assert!(point > 24, "only {point} points were passed");
            survived[plan] = true;
        }
        points[plan] += step;
        number += 1;
    }
    let ends = audit(&world, number).await;
    println!("{}: deaths up to points {points:?} of four plans: {ends:?}", W::NAME);
}

/// Goes on to the end, in this process.
async fn finish<W: World>(world: &W, number: u64) {
    world.make_due().await;
    let saga = saga(world, &Dice::never());
    let id = begin(&saga, number).await;
    let _ = saga.outcome(id).await.unwrap();
}

/// Starts a run, unless that has happened, and gives it the answer that it will wait for.
async fn begin<J: SagaJournal>(saga: &DurableSaga<u64, J>, number: u64) -> Uuid {
    let id = saga.start(&number.to_string(), &number).await.unwrap().id;
    saga.signal(id, "answered", &()).await.unwrap();
    id
}

// --- many runs at a time -------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_survive_many_deaths_on_postgres() {
    run(many_deaths::<Pg>).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_survive_many_deaths_on_mysql() {
    run(many_deaths::<super::world::Maria>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_survive_many_deaths_on_sqlite() {
    run(many_deaths::<Lite>).await;
}

fn wanted() -> Option<u64> {
    std::env::var("ACEMQ_SAGA_RUNS").ok().and_then(|text| text.parse().ok())
}

fn long_form() -> bool {
    wanted().is_some()
}

async fn many_deaths<W: World>(world: W) {
    let runs = wanted().unwrap_or(150);
    let mut random = fastrand::Rng::with_seed(7);
    let mut deaths = 0;
    loop {
        world.make_due().await;
        let mut child = child::<W>(&world, &format!("many {runs} {}", random.u64(1..)));
        if random.bool() {
            // From outside, anywhere; a child that is done before is not killed.
            let patience = Duration::from_millis(random.u64(60..400));
            if tokio::time::timeout(patience, until_ended(&mut child)).await.is_err() {
                child.kill().unwrap();
            }
        }
        if !until_exit(child).await {
            break;
        }
        deaths += 1;
    }
    let ends = audit(&world, runs).await;
    println!("{}: {runs} runs, {deaths} deaths: {ends:?}", W::NAME);
    assert!(deaths > 5, "only {deaths} deaths");
    for end in [RunStatus::Complete, RunStatus::Compensated, RunStatus::Unresolved] {
        assert!(ends.contains_key(&end), "{ends:?}");
    }
}

// --- the child -----------------------------------------------------------------------------------

async fn until_ended(child: &mut Child) {
    let mut look = tokio::time::interval(Duration::from_millis(2));
    while child.try_wait().unwrap().is_none() {
        look.tick().await;
    }
}

/// Waits for the child; returns whether it was killed, by itself or from outside.
async fn until_exit(mut child: Child) -> bool {
    use std::os::unix::process::ExitStatusExt;
    crate::support::soon("a child to end", until_ended(&mut child)).await;
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal().is_some(), "a child failed: {status}");
    !status.success()
}

fn child<W: World>(world: &W, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["durable::kills::process", "--exact", "--ignored", "--nocapture"])
        .env("ACEMQ_CHILD", format!("{} {} {what}", W::NAME, world.name()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of the tests above, which start it by its name"]
async fn process() {
    let order = std::env::var("ACEMQ_CHILD").expect("only the tests above start this");
    let words: Vec<&str> = order.split(' ').collect();
    let [database, name, what, number, chance] = words[..] else { panic!("{order}") };
    let (number, chance) = (number.parse().unwrap(), chance.parse().unwrap());
    match database {
        "postgres" => work(Pg::open(name).await, what, number, chance).await,
        #[cfg(feature = "mysql")]
        "mysql" => work(super::world::Maria::open(name).await, what, number, chance).await,
        _ => work(Lite::open(name).await, what, number, chance).await,
    }
}

async fn work<W: World>(world: W, what: &str, number: u64, chance: u64) {
    if what == "at" {
        let saga = saga(&world, &Dice::at(chance));
        let id = begin(&saga, number).await;
        let _ = saga.outcome(id).await.unwrap();
        return;
    }
    let saga = saga(&world, &Dice::by_chance(150, chance));
    let worker = saga.worker().concurrency(8).poll_interval(Duration::from_millis(20));
    let worker = worker.start().unwrap();
    // Those that are there were started in their order; the last one is started again.
    let there = world.texts("SELECT id FROM {p}saga").await.len() as u64;
    for run in there.saturating_sub(1)..number {
        begin(&saga, run).await;
    }
    let open = "SELECT id FROM {p}saga WHERE next_at IS NOT NULL";
    let ended = async || world.texts(open).await.is_empty();
    crate::support::eventually("every run to end", ended).await;
    worker.close().await;
}
