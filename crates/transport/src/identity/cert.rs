//! Membership in writing: an admin's signature over "this key belongs to this cluster in this role".

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use exo_types::{NodeId, ParseIdError};
use serde::{Deserialize, Serialize};

use super::key::{NodeKey, verify_signature};

/// Longest name of a member, in bytes of UTF-8.
const NAME_BYTES_MAX: usize = 64;
/// Longest encoded certificate: the fields above it, a name, a signature, and room for a field to come.
const ENCODED_BYTES_MAX: usize = 512;
const SIGNATURE_BYTES: usize = 64;
/// First bytes of what is signed, so that no other signed message can be read as a certificate.
const DOMAIN: &[u8] = b"exo member certificate v1\0";

/// A cluster: drawn at random by its founder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// All of it in lower-case hexadecimal (32 characters). `Display` prints the first 8.
    pub fn to_full(self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_full()[..8])
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

impl FromStr for ClusterId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bytes = HEXLOWER.decode(text.to_lowercase().as_bytes()).ok();
        bytes.and_then(|b| <[u8; 16]>::try_from(b).ok()).map(Self).ok_or_else(|| ParseIdError {
            what: "cluster id (32 hexadecimal characters)",
            text: text.chars().take(80).collect(),
        })
    }
}

/// What a member may do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Lends its devices and uses the cluster.
    Worker,
    /// Also admits and removes members.
    Admin,
}

/// Proof that `issuer` admitted `node` to `cluster`.
///
/// Encoded as the postcard form of the fields in this order without the signature, then the 64 bytes of the
/// signature over a domain string and those bytes. `serde` carries the encoded form and checks it on the way in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct MemberCert {
    /// The cluster joined.
    pub cluster: ClusterId,
    /// Who joined.
    pub node: NodeId,
    /// Name for people, at most 64 bytes, no control characters.
    pub name: String,
    /// In which role.
    pub role: Role,
    /// When, in seconds since 1970, by the issuer's clock. For people; nothing expires by it.
    pub issued_unix_s: u64,
    /// The admin who signed.
    pub issuer: NodeId,
    /// Their signature.
    pub signature: [u8; SIGNATURE_BYTES],
}

/// A certificate that proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertError {
    /// Signed by a key that is no admin of the cluster.
    #[error("the certificate of {node} is signed by {issuer}, who is no admin of this cluster")]
    NotAnAdmin {
        /// Whose certificate.
        node: NodeId,
        /// Who signed.
        issuer: NodeId,
    },
    /// Altered after signing, or never signed.
    #[error("the certificate of {node} does not carry a signature of {issuer}")]
    BadSignature {
        /// Whose certificate.
        node: NodeId,
        /// Who is said to have signed.
        issuer: NodeId,
    },
}

/// Bytes that are no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a member certificate ({len_bytes} bytes): {why}")]
pub struct CertDecodeError {
    /// How many bytes were offered.
    pub len_bytes: usize,
    /// What is wrong with them.
    pub why: &'static str,
}

#[derive(Serialize, Deserialize)]
struct Body {
    cluster: ClusterId,
    node: NodeId,
    name: String,
    role: Role,
    issued_unix_s: u64,
    issuer: NodeId,
}

impl MemberCert {
    /// Admits `node`. The name is cut and cleaned rather than refused: it comes from a host name.
    pub fn issue(
        admin: &NodeKey,
        cluster: ClusterId,
        node: NodeId,
        name: &str,
        role: Role,
        issued_unix_s: u64,
    ) -> Self {
        let (name, issuer) = (clean_name(name), admin.node_id());
        let mut cert =
            Self { cluster, node, name, role, issued_unix_s, issuer, signature: [0; SIGNATURE_BYTES] };
        cert.signature = admin.sign(&signed_bytes(&cert.body_bytes()));
        cert
    }

    /// Whether an admin, by the caller's list, really signed this. The caller also compares `cluster`.
    pub fn verify(&self, admins: impl Fn(&NodeId) -> bool) -> Result<(), CertError> {
        let (node, issuer) = (self.node, self.issuer);
        if !admins(&issuer) {
            return Err(CertError::NotAnAdmin { node, issuer });
        }
        if verify_signature(issuer, &signed_bytes(&self.body_bytes()), &self.signature) {
            Ok(())
        } else {
            Err(CertError::BadSignature { node, issuer })
        }
    }

    /// The certificate as bytes, at most 512.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.body_bytes();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Reads [`MemberCert::encode`]'s bytes. Checks form only; [`MemberCert::verify`] checks the signature.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertDecodeError> {
        let error = |why| CertDecodeError { len_bytes: bytes.len(), why };
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(error("longer than any certificate"));
        }
        let (body, signature) =
            bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or_else(|| error("shorter than a signature"))?;
        let (fields, rest) =
            postcard::take_from_bytes::<Body>(body).map_err(|_| error("its fields do not decode"))?;
        if !rest.is_empty() {
            return Err(error("bytes left over after its fields"));
        }
        if fields.name.len() > NAME_BYTES_MAX || clean_name(&fields.name) != fields.name {
            return Err(error("its name is too long or has control characters"));
        }
        let Body { cluster, node, name, role, issued_unix_s, issuer } = fields;
        let cert = Self { cluster, node, name, role, issued_unix_s, issuer, signature: *signature };
        // One certificate, one encoding: what is signed is rebuilt from the fields.
        if cert.body_bytes() == body { Ok(cert) } else { Err(error("its encoding is not canonical")) }
    }

    fn body_bytes(&self) -> Vec<u8> {
        let body = Body {
            cluster: self.cluster,
            node: self.node,
            name: self.name.clone(),
            role: self.role,
            issued_unix_s: self.issued_unix_s,
            issuer: self.issuer,
        };
        postcard::to_allocvec(&body).expect("plain fields in memory always serialise")
    }
}

impl From<MemberCert> for Vec<u8> {
    fn from(cert: MemberCert) -> Self {
        cert.encode()
    }
}

impl TryFrom<Vec<u8>> for MemberCert {
    type Error = CertDecodeError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, CertDecodeError> {
        Self::decode(&bytes)
    }
}

fn signed_bytes(body: &[u8]) -> Vec<u8> {
    [DOMAIN, body].concat()
}

fn clean_name(name: &str) -> String {
    let mut clean = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if clean.len() + c.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        clean.push(c);
    }
    clean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cert() -> (NodeKey, MemberCert) {
        let admin = NodeKey::from_seed(&[1; 32]);
        let node = NodeKey::from_seed(&[2; 32]).node_id();
        let cert = MemberCert::issue(&admin, ClusterId([7; 16]), node, "laptop", Role::Worker, 1_700_000_000);
        (admin, cert)
    }

    #[test]
    fn an_issued_certificate_survives_its_encoding_and_verifies() {
        let (admin, cert) = cert();
        let read = MemberCert::decode(&cert.encode()).unwrap();
        assert_eq!(read, cert);
        assert_eq!(read.verify(|id| *id == admin.node_id()), Ok(()));
        let wire = postcard::to_allocvec(&cert).unwrap();
        assert_eq!(postcard::from_bytes::<MemberCert>(&wire).unwrap(), cert);
    }

    #[test]
    fn a_worker_cannot_make_itself_an_admin() {
        let (admin, mut cert) = cert();
        cert.role = Role::Admin;
        let verdict = cert.verify(|id| *id == admin.node_id());
        assert!(matches!(verdict, Err(CertError::BadSignature { .. })), "{verdict:?}");
    }

    #[test]
    fn a_certificate_from_a_stranger_is_refused_whatever_it_says() {
        let (_, cert) = cert();
        assert!(matches!(cert.verify(|_| false), Err(CertError::NotAnAdmin { .. })));
    }

    #[test]
    fn names_are_cut_on_a_character_and_lose_control_codes() {
        let long = "\u{1b}[31m".to_owned() + &"ä".repeat(100);
        let admin = NodeKey::from_seed(&[1; 32]);
        let cert = MemberCert::issue(&admin, ClusterId([0; 16]), admin.node_id(), &long, Role::Admin, 0);
        assert!(cert.name.len() <= 64 && !cert.name.contains('\u{1b}'));
        assert!(MemberCert::decode(&cert.encode()).is_ok());
    }

    proptest! {
        /// No change of any byte goes unnoticed, and no bytes at all make the decoder panic.
        #[test]
        fn a_changed_byte_never_verifies(at in 0usize..300, flip in 1u8..) {
            let (admin, cert) = cert();
            let mut bytes = cert.encode();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            if let Ok(read) = MemberCert::decode(&bytes) {
                prop_assert!(read.verify(|id| *id == admin.node_id()).is_err());
            }
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = MemberCert::decode(&bytes);
        }
    }
}
