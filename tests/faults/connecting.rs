//! Making the first connection: errors come in time and say what is wrong.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use acemq::{AceMq, ConnectionState, Error, Queue, Result, Topology};
use tokio::net::TcpListener;

use crate::{
    World, address_of_the_broker,
    support::{
        Inbox, eventually,
        proxy::{Mute, Proxy},
        soon,
    },
    through,
};

const MS: Duration = Duration::from_millis(1);

/// The error of a connect, and how long it took.
async fn failure(connect: impl Future<Output = Result<AceMq>>) -> (Error, Duration) {
    let started = Instant::now();
    let result = tokio::time::timeout(Duration::from_secs(20), connect).await;
    (result.expect("an answer in time").expect_err("a failure"), started.elapsed())
}

/// A port of this machine on which nothing listens.
async fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_there_is_an_error_after_the_patience() {
    let options = AceMq::options(through(unused_port().await)).wait_for_broker(700 * MS);
    let (error, took) = failure(options.connect()).await;
    assert!(matches!(&error, Error::Connect { endpoint, .. } if endpoint.contains("127.0.0.1")));
    assert!(error.is_retryable());
    assert!((300 * MS..2000 * MS).contains(&took), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_accepts_and_says_nothing_is_an_error_after_one_attempt() {
    for scheme in ["amqp", "amqps"] {
        let mute = Mute::start().await;
        let url = format!("{scheme}://guest:guest@127.0.0.1:{}/%2f", mute.port());
        let options = AceMq::options(url).attempt_timeout(300 * MS).wait_for_broker(Duration::ZERO);
        let (error, took) = failure(options.connect()).await;
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        assert!((300 * MS..2000 * MS).contains(&took), "{scheme}: {took:?}");
        assert!(mute.accepted() > 0);
        eventually("the abandoned connections to be closed", async || mute.open() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_that_is_dropped_half_way_leaves_no_connection_behind() {
    for scheme in ["amqp", "amqps"] {
        let mute = Mute::start().await;
        let url = format!("{scheme}://guest:guest@127.0.0.1:{}/%2f", mute.port());
        let connect = tokio::spawn(AceMq::options(url).connect());
        eventually("both connections to be dialled", async || mute.open() == 2).await;
        connect.abort();
        eventually("both to be closed", async || mute.open() == 0).await;
    }
    // The same at any moment of a connect that would succeed.
    let world = World::new().await;
    for number in 0..20_u32 {
        let limit = number * MS / 2;
        if let Ok(mq) = tokio::time::timeout(limit, world.options().connect()).await {
            mq.unwrap().close().await;
        }
    }
    eventually("all connections to be closed", async || world.proxy.open() == 0).await;
    world.fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_at_once_and_appears_nowhere() {
    let url = format!("amqp://guest:hunter2@{}/%2f", address_of_the_broker());
    let options = AceMq::options(url);
    assert!(!format!("{options:?}").contains("hunter2"));
    let (error, took) = failure(options.connect()).await;
    assert!(
        matches!(&error, Error::Refused { reason, .. } if reason.contains("ACCESS_REFUSED")),
        "{error:?}"
    );
    assert!(!error.is_retryable());
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_virtual_host_is_refused_at_once_with_its_name() {
    let url = format!("amqp://guest:guest@{}/no-such-place", address_of_the_broker());
    let (error, took) = failure(AceMq::connect(url)).await;
    assert!(
        matches!(&error, Error::Refused { endpoint, reason }
        if endpoint.ends_with("/no-such-place") && reason.contains("no-such-place")),
        "{error:?}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_a_port_without_it_is_an_error_in_time() {
    let url = format!("amqps://guest:guest@{}/%2f", address_of_the_broker());
    let options = AceMq::options(url).attempt_timeout(2000 * MS).wait_for_broker(Duration::ZERO);
    let (error, took) = failure(options.connect()).await;
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_without_their_password() {
    for url in [
        "",
        "localhost",
        "amqp:",
        "amqp//guest:hunter2@localhost",
        "http://guest:hunter2@localhost:5672",
        "rabbitmq://guest:hunter2@localhost",
        "amqp://guest:hunter2@localhost:99999/",
        "amqp://guest:hunter2@localhost:port/",
        "amqp://guest:hunter2@[::1/",
        "amqp://guest:hunter2@localhost?heartbeat=often",
        "AMQP://guest:hunter2@ /",
        "guest:hunter2",
        "\0",
    ] {
        let options = AceMq::options(url).wait_for_broker(Duration::ZERO);
        let debug = format!("{options:?}");
        let (error, took) = failure(options.connect()).await;
        assert!(matches!(error, Error::InvalidOption { option: "url", .. }), "{url}: {error:?}");
        assert!(!format!("{debug} {error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        assert!(took < 100 * MS, "{url}: {took:?}");
    }
}

#[tokio::test]
async fn options_that_leave_nothing_are_refused_by_their_name() {
    let options = || AceMq::options("memory://");
    for (options, name) in [
        (options().heartbeat(Duration::ZERO), "heartbeat"),
        (options().attempt_timeout(Duration::ZERO), "attempt_timeout"),
        (options().confirm_timeout(Duration::ZERO), "confirm_timeout"),
        (options().reconnect_cap(Duration::ZERO), "reconnect_cap"),
        (options().max_in_flight(0), "max_in_flight"),
        (options().max_in_flight(usize::MAX), "max_in_flight"),
        (options().client_name(""), "client_name"),
        (options().client_name("n".repeat(256)), "client_name"),
    ] {
        let error = options.connect().await.unwrap_err();
        assert!(matches!(error, Error::InvalidOption { option, .. } if option == name), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durations_without_end_are_limits_that_are_never_reached() {
    let world = World::new().await;
    for url in ["memory://", &world.url] {
        let mq = AceMq::options(url)
            .heartbeat(Duration::MAX)
            .attempt_timeout(Duration::MAX)
            .wait_for_broker(Duration::MAX)
            .reconnect_cap(Duration::MAX)
            .confirm_timeout(Duration::MAX)
            .shutdown_timeout(Duration::MAX)
            .connect()
            .await
            .unwrap();
        let queue = world.fx.name("endless");
        mq.declare(&Topology::new().queue(Queue::new(queue.as_str()))).await.unwrap();
        let mut inbox = Inbox::of(&mq, &queue).await;
        mq.publisher::<u32>("", queue.as_str()).send(&1).await.unwrap();
        inbox.next().await;
        soon("the close", mq.close()).await;
    }
    world.fx.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_up_later_is_connected_to_without_help() {
    let proxy = Proxy::to(&address_of_the_broker()).await;
    proxy.refuse();
    let connect = tokio::spawn(AceMq::connect(through(proxy.port())));
    eventually("some attempts", async || proxy.attempts() >= 6).await;
    assert!(!connect.is_finished());
    proxy.forward();
    let mq = soon("the connection", connect).await.unwrap().unwrap();
    assert_eq!(mq.state(), ConnectionState::Ready);
    mq.close().await;
}
