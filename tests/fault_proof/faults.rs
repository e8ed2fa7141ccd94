//! What breaks, at random moments, and is mended after a random time.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    office::MAIL_RUNG,
    processes::{Processes, Role},
    support::rabbitmqctl,
    system::System,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Freeze,
    CutBroker,
    CutDatabase,
    CutEverything,
    StallBroker,
    StallDatabase,
    DeafenBroker,
    DeleteReplyQueue,
    DeleteRung,
    RestartBroker,
    RestartDatabase,
}

/// How many times of a hundred each is chosen, where it is allowed.
const ODDS: [(Fault, u32); 10] = [
    (Fault::Kill, 22),
    (Fault::Freeze, 15),
    (Fault::CutBroker, 20),
    (Fault::CutDatabase, 10),
    (Fault::CutEverything, 4),
    (Fault::StallBroker, 10),
    (Fault::StallDatabase, 8),
    (Fault::DeafenBroker, 4),
    (Fault::DeleteReplyQueue, 5),
    (Fault::DeleteRung, 2),
];

/// A restart stands apart: every so often.
const RESTART_EVERY: Duration = Duration::from_secs(20);

/// How often each fault was made.
pub struct Told(BTreeMap<Fault, u32>);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.0.iter().map(|(fault, count)| format!("{fault:?} {count}")).collect();
        write!(f, "{} faults: {}", self.0.values().sum::<u32>(), counts.join(", "))
    }
}

/// Breaks things for this long, and leaves everything healed.
pub async fn inject(
    system: &System,
    processes: &mut Processes,
    random: fastrand::Rng,
    time: Duration,
) -> Told {
    let end = Instant::now() + time;
    let mut injector =
        Injector { system, processes, random, broken: Vec::new(), told: Told(BTreeMap::new()) };
    let mut next_restart = Instant::now() + RESTART_EVERY / 2;
    while Instant::now() < end {
        sleep(Duration::from_millis(injector.random.u64(50..700))).await;
        injector.mend_what_is_due();
        injector.processes.assert_alive();
        let restarts = restarts();
        let fault = if !restarts.is_empty() && Instant::now() > next_restart {
            next_restart = Instant::now() + RESTART_EVERY;
            restarts[injector.random.usize(..restarts.len())]
        } else {
            injector.any_fault()
        };
        injector.make(fault).await;
        *injector.told.0.entry(fault).or_default() += 1;
    }
    injector.mend_everything();
    injector.told
}

/// The restarts that the environment allows.
fn restarts() -> Vec<Fault> {
    let allowed = std::env::var("ACEMQ_FAULT_RESTARTS").unwrap_or_default();
    let words = allowed.split(',').filter(|word| !word.is_empty());
    words
        .map(|word| match word {
            "broker" => Fault::RestartBroker,
            "database" => Fault::RestartDatabase,
            word => panic!("ACEMQ_FAULT_RESTARTS names `{word}`, not broker or database"),
        })
        .collect()
}

/// What is broken now, and until when.
struct Broken {
    until: Instant,
    process: usize,
    fault: Fault,
}

struct Injector<'a> {
    system: &'a System,
    processes: &'a mut Processes,
    random: fastrand::Rng,
    broken: Vec<Broken>,
    told: Told,
}

impl Injector<'_> {
    fn any_fault(&mut self) -> Fault {
        let all: u32 = ODDS.iter().map(|(_, odds)| odds).sum();
        let mut at = self.random.u32(..all);
        for (fault, odds) in ODDS {
            if at < odds {
                return fault;
            }
            at -= odds;
        }
        unreachable!("below the sum")
    }

    fn mend_what_is_due(&mut self) {
        let now = Instant::now();
        for broken in self.broken.extract_if(.., |broken| broken.until <= now) {
            mend(self.processes, broken.process, broken.fault);
        }
    }

    fn mend_everything(&mut self) {
        for broken in self.broken.drain(..) {
            mend(self.processes, broken.process, broken.fault);
        }
    }

    async fn make(&mut self, fault: Fault) {
        let index = self.random.usize(..self.processes.all.len());
        let process = &self.processes.all[index];
        match fault {
            Fault::Kill => {
                // The fresh one is as healthy as it can be.
                self.processes.replace(index);
            }
            Fault::Freeze => {
                process.signal("STOP");
                self.mend_later(index, fault, 100..3500);
            }
            Fault::CutBroker => process.broker.cut(),
            Fault::CutDatabase => process.database.cut(),
            Fault::CutEverything => {
                for process in &self.processes.all {
                    process.broker.cut();
                    process.database.cut();
                }
            }
            Fault::StallBroker => {
                process.broker.stall();
                self.mend_later(index, fault, 100..6000);
            }
            Fault::StallDatabase => {
                process.database.stall();
                self.mend_later(index, fault, 100..4000);
            }
            Fault::DeafenBroker => {
                process.broker.deafen();
                self.mend_later(index, fault, 100..3000);
            }
            Fault::DeleteReplyQueue => self.delete_a_reply_queue().await,
            Fault::DeleteRung => self.delete_the_rung_of_mail().await,
            Fault::RestartBroker => {
                // It does not stop before it has got rid of what nobody reads.
                self.mend_everything();
                rabbitmqctl::restart(Duration::from_millis(self.random.u64(..3000))).await;
            }
            Fault::RestartDatabase => restart_the_database().await,
        }
    }

    fn mend_later(&mut self, process: usize, fault: Fault, millis: std::ops::Range<u64>) {
        let until = Instant::now() + Duration::from_millis(self.random.u64(millis));
        self.broken.push(Broken { until, process, fault });
    }

    /// Its calls fail, and another one takes its place.
    async fn delete_a_reply_queue(&mut self) {
        let names: Vec<String> = sqlx::query_scalar("SELECT name FROM reply_queues ORDER BY name")
            .fetch_all(&self.system.site.db)
            .await
            .unwrap_or_default();
        if !names.is_empty() {
            let name = &names[self.random.usize(..names.len())];
            let _ = self.system.site.mq.delete_queue(name).await;
        }
    }

    /// What a rung holds goes with it. So nobody may be writing to it, and it has to be empty.
    async fn delete_the_rung_of_mail(&mut self) {
        self.mend_everything();
        let rung = self.system.site.names.of(MAIL_RUNG);
        let writers = || self.processes.all.iter().filter(|process| process.role() == Role::Office);
        for process in writers() {
            process.signal("STOP");
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut empty_for = 0;
        while empty_for < 10 && Instant::now() < deadline {
            let length = self.system.site.mq.queue_length(&rung).await;
            empty_for = if matches!(length, Ok(Some(0) | None)) { empty_for + 1 } else { 0 };
            sleep(Duration::from_millis(20)).await;
        }
        if empty_for == 10 {
            let _ = self.system.site.mq.delete_queue(&rung).await;
        }
        for process in writers() {
            process.signal("CONT");
        }
    }
}

fn mend(processes: &Processes, index: usize, fault: Fault) {
    let process = &processes.all[index];
    match fault {
        Fault::Freeze => process.signal("CONT"),
        Fault::StallDatabase => process.database.forward(),
        // What was swallowed is a hole in the stream, and nobody can go on behind it.
        Fault::DeafenBroker => {
            process.broker.forward();
            process.broker.cut();
        }
        _ => process.broker.forward(),
    }
}

async fn restart_the_database() {
    let command = std::env::var("ACEMQ_FAULT_RESTART_DATABASE")
        .expect("restarts of the database need ACEMQ_FAULT_RESTART_DATABASE, a command");
    let restarted = tokio::process::Command::new("sh").args(["-c", &command]).status().await;
    assert!(restarted.unwrap().success(), "{command}");
}
