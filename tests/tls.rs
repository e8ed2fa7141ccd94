//! `amqps://`: a TLS server of the test's own in front of the broker.

mod support;

use std::{sync::Arc, time::Duration};

use acemq::{AceMq, ConnectOptions, Error, Queue, Topology};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{amqp_url, soon, unique};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer},
        server::WebPkiClientVerifier,
    },
};

/// An authority that signs the server's and the client's certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity { certificate: certificate.der().clone(), pem: certificate.pem(), key }
    }

    fn pem(&self) -> String {
        self.0.pem()
    }
}

/// Serves TLS with the identity and forwards to the broker; returns its port.
async fn serve(identity: &Identity, clients_of: Option<&Authority>) -> u16 {
    let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
    let config = match clients_of {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.0.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    }
    .with_single_cert(vec![identity.certificate.clone()], key)
    .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = url::Url::parse(&amqp_url()).unwrap();
    let broker = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5672));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, broker) = (acceptor.clone(), broker.clone());
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(broker).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

fn options(port: u16) -> ConnectOptions {
    let mut url = url::Url::parse(&amqp_url()).unwrap();
    url.set_host(Some("localhost")).unwrap();
    url.set_port(Some(port)).unwrap();
    let url = url.as_str().replacen("amqp://", "amqps://", 1);
    AceMq::options(url).wait_for_broker(Duration::ZERO).attempt_timeout(Duration::from_secs(5))
}

async fn works(mq: &AceMq) {
    let queue = unique("tls");
    let queue = queue.as_str();
    mq.declare(&Topology::new().queue(Queue::classic(queue))).await.unwrap();
    mq.publisher::<String>("", queue).send(&"secret".repeat(50_000)).await.unwrap();
    assert_eq!(mq.queue_length(queue).await.unwrap(), Some(1));
    mq.delete_queue(queue).await.unwrap();
    mq.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_authority_is_given_is_trusted() {
    let authority = Authority::new();
    let port = serve(&authority.sign("localhost"), None).await;
    let connecting = options(port).ca_certificate(authority.pem()).connect();
    let mq = soon("the connection", connecting).await.unwrap();
    works(&mq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_an_unknown_authority_or_another_name_is_refused() {
    let authority = Authority::new();
    let port = serve(&authority.sign("localhost"), None).await;
    let stranger = soon("the refusal", options(port).connect()).await.unwrap_err();
    assert!(matches!(stranger, Error::Connect { .. }), "{stranger:?}");

    let port = serve(&authority.sign("elsewhere.example"), None).await;
    let connecting = options(port).ca_certificate(authority.pem()).connect();
    let wrong_name = soon("the refusal", connecting).await.unwrap_err();
    assert!(matches!(wrong_name, Error::Connect { .. }), "{wrong_name:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_presented_where_the_broker_asks_for_one() {
    let authority = Authority::new();
    let port = serve(&authority.sign("localhost"), Some(&authority)).await;
    let without = options(port).ca_certificate(authority.pem()).connect();
    assert!(soon("the refusal", without).await.is_err());

    let client = authority.sign("checkout");
    let with = options(port)
        .ca_certificate(authority.pem())
        .client_certificate(client.pem.as_bytes(), client.key.serialize_pem())
        .connect();
    let mq = soon("the connection", with).await.unwrap();
    works(&mq).await;
}

#[tokio::test]
async fn a_client_certificate_without_tls_is_refused_before_connecting() {
    let client = Authority::new().sign("checkout");
    let options = AceMq::options(amqp_url());
    let options = options.client_certificate(client.pem.as_bytes(), client.key.serialize_pem());
    let error = options.connect().await.unwrap_err();
    assert!(
        matches!(error, Error::InvalidOption { option: "client_certificate", .. }),
        "{error:?}"
    );
}
