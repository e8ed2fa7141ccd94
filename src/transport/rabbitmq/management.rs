//! RabbitMQ's management API: what AMQP cannot show.

use std::{fmt, time::Duration};

use reqwest::{Client, StatusCode, Url};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    message::{HeaderValue, Headers},
    topology::{Binding, Destination, Finding},
};

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Reads RabbitMQ's management API, for what AMQP cannot show.
///
/// It only reads. `Debug` and errors never show the password.
#[derive(Clone)]
pub struct ManagementApi {
    client: Client,
    url: Url,
    user: String,
    password: Option<String>,
    virtual_host: String,
}

/// A queue, as the management API lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueSummary {
    /// Its name.
    pub name: String,
    /// `classic`, `quorum` or `stream`.
    #[serde(rename(deserialize = "type"), default)]
    pub kind: String,
    /// Messages, those that are being handled included.
    #[serde(default)]
    pub messages: u64,
    /// Consumers.
    #[serde(default)]
    pub consumers: u64,
}

/// A binding as the API lists it.
#[derive(Deserialize)]
struct Listed {
    source: String,
    routing_key: String,
    arguments: Value,
}

impl ManagementApi {
    /// Reads the URL, for instance `http://guest:guest@localhost:15672`; the virtual host is `/`
    /// unless [`virtual_host`](Self::virtual_host) sets another. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] for a URL that is not `http` or `https`.
    pub fn new(url: &str) -> Result<Self> {
        // The URL may hold a password: the error shows none of it.
        let invalid = |reason: &str| Error::invalid("management URL", "", reason);
        let mut url =
            Url::parse(url).map_err(|error| invalid(&format!("cannot be read: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("is neither http nor https"));
        }
        let (user, password) = (decoded(url.username()), url.password().map(decoded));
        // Neither can fail for a URL that has a host.
        let _ = (url.set_username(""), url.set_password(None));
        let client = Client::builder().timeout(ANSWER_WITHIN).build();
        let client = client.map_err(|error| invalid(&format!("cannot be used: {error}")))?;
        Ok(Self { client, url, user, password, virtual_host: "/".to_owned() })
    }

    /// Sets the virtual host. Default: `/`.
    #[must_use]
    pub fn virtual_host(mut self, name: impl Into<String>) -> Self {
        self.virtual_host = name.into();
        self
    }

    /// Returns the broker's version, such as `3.10.8`.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the API refuses, [`Error::Connect`] if it cannot be reached.
    pub async fn broker_version(&self) -> Result<String> {
        #[derive(Deserialize)]
        struct Overview {
            rabbitmq_version: String,
        }
        let overview: Overview =
            self.get(&["api", "overview"]).await?.ok_or_else(|| self.none())?;
        Ok(overview.rabbitmq_version)
    }

    /// Returns every queue of the virtual host, by name. The counts are some seconds old.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the API refuses, [`Error::Connect`] if it cannot be reached.
    pub async fn queues(&self) -> Result<Vec<QueueSummary>> {
        let queues = self.get(&["api", "queues", &self.virtual_host]).await?;
        let mut queues: Vec<QueueSummary> = queues.ok_or_else(|| self.none())?;
        queues.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(queues)
    }

    /// Looks a binding up by the destination's list.
    pub(crate) async fn find_binding(&self, wanted: &Binding) -> Result<Finding> {
        let kind = match wanted.to {
            Destination::Queue(_) => "queues",
            Destination::Exchange(_) => "exchanges",
        };
        let mut path = vec!["api", kind, &self.virtual_host, wanted.destination(), "bindings"];
        if kind == "exchanges" {
            path.push("destination");
        }
        let listed: Option<Vec<Listed>> = self.get(&path).await?;
        let Some(listed) = listed else { return Ok(Finding::Create) };
        let same_way = |listed: &&Listed| {
            listed.source == wanted.exchange && listed.routing_key == wanted.routing_key
        };
        let found = listed.iter().filter(same_way);
        let is_there = found.into_iter().any(|listed| same(&wanted.arguments, &listed.arguments));
        Ok(if is_there { Finding::Present } else { Finding::Create })
    }

    /// Reads an answer; none if there is no such object.
    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.client.get(url).basic_auth(&self.user, self.password.as_deref());
        let answer = request.send().await.map_err(|error| self.unreachable(error))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status => {
                let reason = format!("the management API answered {status}");
                return Err(Error::Refused { endpoint: self.endpoint(), reason });
            }
        }
        let body = answer.bytes().await.map_err(|error| self.unreachable(error))?;
        serde_json::from_slice(&body).map(Some).map_err(|error| {
            let reason = format!("the management API's answer cannot be read: {error}");
            Error::Refused { endpoint: self.endpoint(), reason }
        })
    }

    fn none(&self) -> Error {
        let reason = "the management API knows no such virtual host".to_owned();
        Error::Refused { endpoint: self.endpoint(), reason }
    }

    fn unreachable(&self, error: reqwest::Error) -> Error {
        Error::Connect { endpoint: self.endpoint(), source: error.without_url().into() }
    }

    fn endpoint(&self) -> String {
        format!("{} (virtual host {})", self.url, self.virtual_host)
    }
}

impl fmt::Debug for ManagementApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementApi")
            .field("url", &self.url.as_str())
            .field("user", &self.user)
            .field("virtual_host", &self.virtual_host)
            .finish_non_exhaustive()
    }
}

/// Compares arguments with their JSON, in which widths and kinds of text are gone.
fn same(wanted: &Headers, listed: &Value) -> bool {
    // Where there are none, the API lists an empty object, or an empty list.
    let count = listed.as_object().map_or(0, serde_json::Map::len);
    wanted.len() == count
        && wanted
            .iter()
            .all(|(name, value)| listed.get(name).is_some_and(|json| equal(value, json)))
}

fn equal(wanted: &HeaderValue, listed: &Value) -> bool {
    match (wanted, listed) {
        (HeaderValue::Null, json) => json.is_null(),
        (HeaderValue::Bool(wanted), json) => json.as_bool() == Some(*wanted),
        (HeaderValue::Double(wanted), json) => json.as_f64() == Some(*wanted),
        (wanted, Value::Number(json)) => wanted.as_i64().is_some_and(|n| json.as_i64() == Some(n)),
        (wanted, Value::String(json)) => wanted.as_str() == Some(json),
        _ => false,
    }
}

/// Undoes the percent encoding of a part of a URL.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}
