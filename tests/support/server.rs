//! Which RabbitMQ the tests run on, for the few rules in which its versions differ.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Broker, amqp_url, soon};

/// The first number of the broker's version. `memory://` has the rules of RabbitMQ 3.
pub async fn major_version(broker: Broker) -> u32 {
    match broker {
        Broker::Memory => 3,
        Broker::RabbitMq => soon("the broker's greeting", greeting_version()).await,
    }
}

/// Whether what a quorum queue without a limit of its own takes back is counted toward the
/// broker's: none on RabbitMQ 3, 20 from RabbitMQ 4 on.
pub async fn limits_deliveries_by_default(broker: Broker) -> bool {
    major_version(broker).await >= 4
}

/// The server tells its version before anybody has logged in.
async fn greeting_version() -> u32 {
    let url = url::Url::parse(&amqp_url()).unwrap();
    let address = (url.host_str().unwrap(), url.port().unwrap_or(5672));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01").await.unwrap();
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut start = vec![0; length as usize];
    stream.read_exact(&mut start).await.unwrap();
    version_in(&start).expect("the greeting names a version")
}

/// The number after `version` as a field name, `S` as its type and four bytes of length.
fn version_in(start: &[u8]) -> Option<u32> {
    const FIELD: &[u8] = b"\x07versionS";
    let at = start.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len() + 4;
    let text = String::from_utf8_lossy(&start[at..]);
    text.split('.').next()?.parse().ok()
}
