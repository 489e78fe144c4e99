//! TLS 1.3 with raw public keys both ways: who may complete a handshake, and nothing about what follows it.
//!
//! Sessions are never resumed: a resumed session skips the verifier, and a removed member would come back in.

use std::sync::Arc;

use exo_identity::is_sound_key;
use exo_stdx::Mutex;
use exo_types::NodeId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use zeroize::Zeroizing;

use crate::key::NodeKey;
use crate::members::MemberSet;

/// Cluster traffic between members.
pub(crate) const ALPN_CLUSTER: &[u8] = b"exo/1";
/// The join exchange, open to unknown keys.
pub(crate) const ALPN_JOIN: &[u8] = b"exo-join/1";

/// DER of an Ed25519 private key up to the seed (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// DER of an Ed25519 public key up to the key (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Everything TLS needs to know of this node; makes a configuration per purpose.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    key: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
}

/// Whose key a handshake accepts.
#[derive(Debug)]
enum Accept {
    /// Any current member.
    Members(MemberSet),
    /// This one, if a member.
    Peer(NodeId, MemberSet),
    /// Whoever proves a key.
    Anyone,
}

/// Checks the other side's key; the same for both roles and both transports.
#[derive(Debug)]
pub(crate) struct Verifier {
    accept: Accept,
    /// The key last offered, so that a refused dial can say whom it met.
    seen: Mutex<Option<NodeId>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Identity {
    pub(crate) fn new(key: &NodeKey) -> Result<Self, Error> {
        let mut der = Zeroizing::new(PKCS8_PREFIX.to_vec());
        der.extend_from_slice(&key.seed()[..]);
        let signer = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der.as_slice()))?;
        let spki = [&SPKI_PREFIX[..], &key.node_id().0].concat();
        let key = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signer));
        Ok(Self { key, provider: Arc::new(ring::default_provider()) })
    }

    /// Accepts connections of current members.
    pub(crate) fn server(&self, members: &MemberSet) -> Result<rustls::ServerConfig, Error> {
        self.server_config(Accept::Members(members.clone()), ALPN_CLUSTER)
    }

    /// Accepts the join exchange from anyone who proves a key.
    pub(crate) fn join_server(&self) -> Result<rustls::ServerConfig, Error> {
        self.server_config(Accept::Anyone, ALPN_JOIN)
    }

    /// Connects to `peer` and to no one else.
    pub(crate) fn client(
        &self,
        peer: NodeId,
        members: &MemberSet,
    ) -> Result<(rustls::ClientConfig, Arc<Verifier>), Error> {
        self.client_config(Accept::Peer(peer, members.clone()), ALPN_CLUSTER)
    }

    /// Connects to whoever answers, for the join exchange.
    pub(crate) fn join_client(&self) -> Result<(rustls::ClientConfig, Arc<Verifier>), Error> {
        self.client_config(Accept::Anyone, ALPN_JOIN)
    }

    fn server_config(&self, accept: Accept, alpn: &[u8]) -> Result<rustls::ServerConfig, Error> {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(Verifier::new(accept, &self.provider)))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.key.clone())));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn client_config(
        &self,
        accept: Accept,
        alpn: &[u8],
    ) -> Result<(rustls::ClientConfig, Arc<Verifier>), Error> {
        let verifier = Arc::new(Verifier::new(accept, &self.provider));
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.key.clone())));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok((config, verifier))
    }
}

/// TLS wants a name to ask for; ours says nothing, the key says it all.
pub(crate) const SERVER_NAME: &str = "exo";

/// [`SERVER_NAME`] as rustls wants it.
pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from(SERVER_NAME).expect("a constant host name")
}

/// The key inside an Ed25519 SubjectPublicKeyInfo; `None` for any other kind of certificate.
pub(crate) fn node_of(certs: &[CertificateDer<'_>]) -> Option<NodeId> {
    let [only] = certs else { return None };
    let key: &[u8; 32] = only.as_ref().strip_prefix(&SPKI_PREFIX)?.try_into().ok()?;
    is_sound_key(key).then_some(NodeId(*key))
}

impl Verifier {
    fn new(accept: Accept, provider: &CryptoProvider) -> Self {
        Self { accept, seen: Mutex::new(None), algorithms: provider.signature_verification_algorithms }
    }

    /// The key the other side offered last, whether it was accepted or not.
    pub(crate) fn seen(&self) -> Option<NodeId> {
        *self.seen.lock()
    }

    fn check(&self, cert: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        if !chain.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let node = node_of(std::slice::from_ref(cert)).ok_or(CertificateError::BadEncoding)?;
        *self.seen.lock() = Some(node);
        let welcome = match &self.accept {
            Accept::Members(members) => members.contains(node),
            Accept::Peer(peer, members) => node == *peer && members.contains(node),
            Accept::Anyone => true,
        };
        if welcome { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }
}

/// What both sides prove, and how: the methods that [`ServerCertVerifier`] and [`ClientCertVerifier`] share.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is off".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            proof: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, proof, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(cert, chain).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(cert, chain).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
