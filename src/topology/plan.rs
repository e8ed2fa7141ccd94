//! What declaring a topology would do on a broker as it is.

use std::fmt;

use serde::Serialize;

use crate::error::{Error, Result};

/// What declaring a topology would do, object by object, in the order of declaring; see
/// [`AceMq::plan`](crate::AceMq::plan).
///
/// `Display` prints a line for each object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TopologyPlan {
    /// Every object of the topology.
    pub objects: Vec<PlannedObject>,
}

/// One object of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedObject {
    /// What it is.
    pub kind: ObjectKind,
    /// Its name; of a binding `source --key--> destination`.
    pub name: String,
    /// How the broker compares to it.
    #[serde(flatten)]
    pub finding: Finding,
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ObjectKind {
    /// An exchange.
    Exchange,
    /// A queue.
    Queue,
    /// A binding of a queue or of an exchange.
    Binding,
}

/// How the broker compares to what is wanted (wire contract, section 16).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "finding")]
#[non_exhaustive]
pub enum Finding {
    /// It does not exist: declaring creates it.
    Create,
    /// It exists as it is wanted: declaring changes nothing.
    Present,
    /// It exists with another property: declaring is refused.
    Drift {
        /// The property or argument that differs. There may be more: the broker names the first.
        argument: String,
        /// The value that is wanted.
        wanted: String,
        /// The value that it has.
        found: String,
    },
    /// It could not be found out.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl TopologyPlan {
    /// Returns the objects that do not exist yet.
    pub fn to_create(&self) -> impl Iterator<Item = &PlannedObject> {
        self.objects.iter().filter(|object| object.finding == Finding::Create)
    }

    /// Returns the objects that exist with other properties.
    pub fn drifts(&self) -> impl Iterator<Item = &PlannedObject> {
        self.objects.iter().filter(|object| matches!(object.finding, Finding::Drift { .. }))
    }

    /// Returns the objects that could not be compared.
    pub fn unknown(&self) -> impl Iterator<Item = &PlannedObject> {
        self.objects.iter().filter(|object| matches!(object.finding, Finding::Unknown { .. }))
    }

    pub(crate) fn note(&mut self, kind: ObjectKind, name: String, finding: Finding) {
        self.objects.push(PlannedObject { kind, name, finding });
    }

    /// Whether an object is one that declaring creates.
    pub(crate) fn creates(&self, kind: ObjectKind, name: &str) -> bool {
        self.to_create().any(|object| object.kind == kind && object.name == name)
    }

    /// Fails with the first drift, as declaring it would.
    pub(crate) fn refuse_drift(&self) -> Result<()> {
        self.objects.iter().find_map(PlannedObject::mismatch).map_or(Ok(()), Err)
    }

    /// Fails with the first drift, or else with everything that is missing.
    pub(crate) fn require(&self) -> Result<()> {
        self.refuse_drift()?;
        let missing: Vec<String> = self.to_create().map(PlannedObject::title).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::NotFound { reason: missing.join(", ") })
    }
}

impl PlannedObject {
    fn title(&self) -> String {
        format!("{} `{}`", self.kind, self.name)
    }

    fn mismatch(&self) -> Option<Error> {
        let Finding::Drift { argument, wanted, found } = &self.finding else { return None };
        Some(Error::TopologyMismatch {
            object: self.kind.to_string(),
            name: self.name.clone(),
            argument: argument.clone(),
            wanted: wanted.clone(),
            found: found.clone(),
        })
    }
}

impl fmt::Display for TopologyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.iter().try_for_each(|object| writeln!(f, "{object}"))
    }
}

impl fmt::Display for PlannedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<9} {}", self.finding.label(), self.kind.to_string(), self.name)?;
        match &self.finding {
            Finding::Create | Finding::Present => Ok(()),
            Finding::Drift { argument, wanted, found } => {
                write!(f, ": has {argument} = {found}, but {wanted} is wanted")
            }
            Finding::Unknown { reason } => write!(f, ": {reason}"),
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exchange => "exchange",
            Self::Queue => "queue",
            Self::Binding => "binding",
        })
    }
}

impl Finding {
    /// Returns the word of the plan: `create`, `present`, `drift` or `unknown`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Present => "present",
            Self::Drift { .. } => "drift",
            Self::Unknown { .. } => "unknown",
        }
    }
}
