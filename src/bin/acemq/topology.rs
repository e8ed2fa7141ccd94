//! `acemq topology`.

use std::{collections::BTreeMap, path::PathBuf};

use acemq::{
    Binding, BoxError, Exchange, ExchangeKind, HeaderValue, Queue, Topology, TopologyPlan,
};
use clap::Subcommand;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Common, End, broker,
    output::{Output, ask},
};

#[derive(Subcommand)]
pub enum Command {
    /// What declaring the file's topology would do
    Plan {
        /// A JSON file; its form is in the documentation of the command line
        file: PathBuf,
    },
    /// Declares what is missing, unless something exists with other properties
    Apply {
        /// A JSON file
        file: PathBuf,
    },
    /// Exits with 3 unless everything in the file exists as it stands there
    Validate {
        /// A JSON file
        file: PathBuf,
    },
}

pub async fn run(command: Command, common: &Common, output: &Output) -> Result<End, BoxError> {
    let (Command::Plan { file } | Command::Apply { file } | Command::Validate { file }) = &command;
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let topology = read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mq = broker::connect(common).await?;
    let planner = || -> Result<_, BoxError> {
        let planner = mq.plan(&topology);
        Ok(match broker::management(common)? {
            Some(api) => planner.management(api),
            None => planner,
        })
    };
    let plan = planner()?.dry_run().await?;
    let missing = plan.to_create().count();
    let is_sound = plan.drifts().count() == 0;
    let end = match &command {
        Command::Plan { .. } => End::Done,
        _ if missing == 0 && is_sound => End::Done,
        Command::Apply { .. } if is_sound => {
            if ask(&format!("Declare {missing} objects?"), common.yes)? {
                planner()?.apply().await?;
            }
            End::Done
        }
        _ => End::Found,
    };
    output.print(&plan, &lines(&plan))?;
    mq.close().await;
    Ok(end)
}

fn lines(plan: &TopologyPlan) -> Vec<String> {
    plan.objects.iter().map(ToString::to_string).collect()
}

/// A topology as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exchanges: Vec<FileExchange>,
    #[serde(default)]
    queues: Vec<FileQueue>,
    #[serde(default)]
    bindings: Vec<FileBinding>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileExchange {
    name: String,
    kind: Kind,
    #[serde(default = "yes")]
    durable: bool,
    #[serde(default)]
    auto_delete: bool,
    #[serde(default)]
    arguments: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Direct,
    Topic,
    Fanout,
    Headers,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileQueue {
    name: String,
    #[serde(default)]
    kind: FileQueueKind,
    #[serde(default = "yes")]
    durable: bool,
    #[serde(default)]
    auto_delete: bool,
    #[serde(default)]
    arguments: BTreeMap<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum FileQueueKind {
    /// A quorum queue with a dead-letter queue, as `Queue::new`.
    #[default]
    Standard,
    Quorum,
    Classic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBinding {
    /// The exchange that messages come from.
    from: String,
    queue: Option<String>,
    exchange: Option<String>,
    #[serde(default)]
    routing_key: String,
    #[serde(default)]
    arguments: BTreeMap<String, Value>,
}

fn yes() -> bool {
    true
}

fn read(text: &str) -> Result<Topology, BoxError> {
    let file: File = serde_json::from_str(text)?;
    let mut topology = Topology::new();
    for exchange in file.exchanges {
        topology = topology.exchange(exchange.read()?);
    }
    for queue in file.queues {
        topology = topology.queue(queue.read()?);
    }
    for binding in file.bindings {
        topology = topology.binding(binding.read()?);
    }
    Ok(topology)
}

impl FileExchange {
    fn read(self) -> Result<Exchange, BoxError> {
        let kind = match self.kind {
            Kind::Direct => ExchangeKind::Direct,
            Kind::Topic => ExchangeKind::Topic,
            Kind::Fanout => ExchangeKind::Fanout,
            Kind::Headers => ExchangeKind::Headers,
        };
        let mut exchange = Exchange::new(self.name, kind);
        if !self.durable {
            exchange = exchange.transient();
        }
        if self.auto_delete {
            exchange = exchange.auto_delete();
        }
        for (name, value) in self.arguments {
            exchange = exchange.argument(&name, argument(&name, &value)?);
        }
        Ok(exchange)
    }
}

impl FileQueue {
    fn read(self) -> Result<Queue, BoxError> {
        let mut queue = match self.kind {
            FileQueueKind::Standard => Queue::new(self.name),
            FileQueueKind::Quorum => Queue::quorum(self.name),
            FileQueueKind::Classic => Queue::classic(self.name),
        };
        if !self.durable {
            queue = queue.transient();
        }
        if self.auto_delete {
            queue = queue.auto_delete();
        }
        for (name, value) in self.arguments {
            queue = queue.argument(&name, argument(&name, &value)?);
        }
        Ok(queue)
    }
}

impl FileBinding {
    fn read(self) -> Result<Binding, BoxError> {
        let mut binding = match (self.queue, self.exchange) {
            (Some(queue), None) => Binding::new(queue, self.from, self.routing_key),
            (None, Some(exchange)) => Binding::exchange(exchange, self.from, self.routing_key),
            _ => {
                let from = self.from;
                return Err(format!("a binding from `{from}` needs `queue` or `exchange`").into());
            }
        };
        for (name, value) in self.arguments {
            binding = binding.argument(&name, argument(&name, &value)?);
        }
        Ok(binding)
    }
}

fn argument(name: &str, value: &Value) -> Result<HeaderValue, BoxError> {
    Ok(match value {
        Value::Bool(value) => (*value).into(),
        Value::String(value) => value.as_str().into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => return Err(format!("argument `{name}`: {number} is no integer").into()),
        },
        other => {
            return Err(format!("argument `{name}`: {other} is no text, number or truth").into());
        }
    })
}
