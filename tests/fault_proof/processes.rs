//! The services as processes: each behind proxies of its own, to be killed, frozen and cut off.

use std::{
    any::Any,
    io::{BufRead, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use acemq::{AceMq, OutboxRelay};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    accounts, office, shop, steps,
    support::{amqp_url, proxy::Proxy},
    system::{Names, Site, System, again, pool, postgres_url},
};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Shop,
    Relay,
    CheckAndPack,
    Price,
    Accounts,
    Office,
}

const ROLES: [Role; 10] = [
    Role::Shop,
    Role::Relay,
    Role::Relay,
    Role::CheckAndPack,
    Role::CheckAndPack,
    Role::Price,
    Role::Accounts,
    Role::Accounts,
    Role::Office,
    Role::Office,
];

/// How long a process may take to end in good order.
const END: Duration = Duration::from_secs(60);

/// All that a process has to know.
#[derive(Clone, Serialize, Deserialize)]
struct Service {
    role: Role,
    number: i32,
    names: Names,
    amqp: String,
    postgres: String,
}

/// A service in a process; dropping it kills the process.
pub struct Process {
    service: Service,
    child: Child,
    pub broker: Proxy,
    pub database: Proxy,
}

impl Process {
    async fn start(role: Role, number: i32, names: Names) -> Self {
        let (broker, amqp) = Proxy::in_front_of(&amqp_url(), 5672).await;
        let (database, postgres) = Proxy::in_front_of(&postgres_url(), 5432).await;
        let service = Service { role, number, names, amqp, postgres };
        Self { child: service.spawn(), service, broker, database }
    }

    pub fn role(&self) -> Role {
        self.service.role
    }

    /// Sends the process a signal, `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
        assert!(sent.success(), "kill -{signal}");
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Tells the process to end in good order, and waits for that.
    async fn stop(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"stop\n").unwrap();
        let deadline = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{}", self.service.said());
                return;
            }
            assert!(Instant::now() < deadline, "does not end: {}", self.service.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Service {
    fn spawn(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env("ACEMQ_CHILD", serde_json::to_string(self).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.log()).unwrap())
            .spawn()
            .unwrap()
    }

    fn log(&self) -> PathBuf {
        let name = format!("{:?}-{}.log", self.role, self.number);
        logs(&self.names).join(name)
    }

    /// The end of what the process said.
    fn said(&self) -> String {
        let said = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(20)..].join("\n");
        format!("{:?} {}:\n{last}", self.role, self.number)
    }
}

fn logs(names: &Names) -> PathBuf {
    std::env::temp_dir().join(format!("acemq-{}", names.base))
}

pub struct Processes {
    pub all: Vec<Process>,
    names: Names,
    started: i32,
    /// Numbers of shops that were killed with calls under way.
    pub killed_callers: Vec<i32>,
}

impl Processes {
    pub async fn start(system: &System) -> Self {
        let names = system.site.names.clone();
        std::fs::create_dir_all(logs(&names)).unwrap();
        let mut all = Vec::new();
        for (role, number) in ROLES.into_iter().zip(1..) {
            all.push(Process::start(role, number, names.clone()).await);
        }
        let started = i32::try_from(ROLES.len()).unwrap();
        Self { all, names, started, killed_callers: Vec::new() }
    }

    /// Kills a process and starts another one in its place.
    pub fn replace(&mut self, index: usize) {
        self.started += 1;
        let process = &mut self.all[index];
        process.end();
        if process.role() == Role::Shop {
            self.killed_callers.push(process.service.number);
        }
        process.service.number = self.started;
        process.child = process.service.spawn();
    }

    /// A process that ended by itself has failed.
    pub fn assert_alive(&mut self) {
        for process in &mut self.all {
            let ended = process.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended with {ended:?}: {}", process.service.said());
        }
    }

    /// No more orders.
    pub async fn stop_the_shop(&mut self) {
        let shops = self.all.iter_mut().filter(|process| process.role() == Role::Shop);
        for shop in shops {
            shop.stop().await;
        }
        self.all.retain(|process| process.role() != Role::Shop);
    }

    pub async fn stop_all(&mut self) {
        self.assert_alive();
        futures::future::join_all(self.all.iter_mut().map(Process::stop)).await;
        self.all.clear();
        std::fs::remove_dir_all(logs(&self.names)).unwrap();
    }
}

/// The life of a process.
pub async fn serve() {
    let service = std::env::var("ACEMQ_CHILD").expect("only the fault test starts this");
    let service: Service = serde_json::from_str(&service).unwrap();
    let site = service.site().await;
    let stop = told_to_stop();
    if service.role == Role::Shop {
        shop::run(&site, stop).await;
    } else {
        let _running = start(service.role, &site).await;
        stop.await;
        site.mq.close().await;
    }
}

impl Service {
    async fn site(&self) -> Site {
        let connect = async || {
            AceMq::options(&self.amqp)
                .client_name(format!("{:?}", self.role))
                .heartbeat(Duration::from_secs(2))
                .shutdown_timeout(Duration::from_secs(10))
                .connect()
                .await
        };
        let db = pool(&self.postgres, &self.names.schema, self.connections());
        let (names, number) = (self.names.clone(), self.number);
        Site { mq: again("to connect", connect).await, db, names, number }
    }

    fn connections(&self) -> u32 {
        match self.role {
            Role::Shop => 6,
            Role::Office => 5,
            Role::Price => 1,
            Role::Relay | Role::CheckAndPack | Role::Accounts => 3,
        }
    }
}

/// Starts what the process runs, to be kept.
async fn start(role: Role, site: &Site) -> Box<dyn Any> {
    match role {
        Role::Shop => unreachable!("it runs by itself"),
        Role::Relay => Box::new(
            OutboxRelay::new(&site.mq, site.outbox())
                .lease(Duration::from_secs(2))
                .poll_interval(Duration::from_millis(50))
                .start(),
        ),
        Role::CheckAndPack => Box::new(steps::start_check_and_pack(site).await),
        Role::Price => Box::new(steps::start_price(site).await),
        Role::Accounts => Box::new(accounts::start(site).await),
        Role::Office => Box::new(office::start(site).await),
    }
}

/// Ends when the test says so. A test that is gone ends the process at once.
async fn told_to_stop() {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        match std::io::stdin().lock().read_line(&mut line) {
            Ok(1..) => drop(tell.send(())),
            _ => std::process::exit(1),
        }
    });
    told.await.expect("the thread tells or ends the process");
}
