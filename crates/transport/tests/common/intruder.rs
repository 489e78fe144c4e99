//! A TLS client that is not ours: any key, any protocol name, and it believes whatever server it meets.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// DER around an Ed25519 seed and around a public key (RFC 8410).
const PRIVATE: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
const PUBLIC: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// What the intruder shows: the public key `shown`, signed with the seed `seed` (which need not fit).
pub fn config(seed: u8, shown: [u8; 32], alpn: &[&[u8]]) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let der = [PRIVATE, &[seed; 32]].concat();
    let signer = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).unwrap();
    let key = CertifiedKey::new(vec![CertificateDer::from([PUBLIC, &shown].concat())], signer);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(key))));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

/// A TLS connection as that intruder. The server may still refuse it afterwards: its verdict comes last.
pub async fn connect(addr: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("exo").unwrap(), tcp).await
}
