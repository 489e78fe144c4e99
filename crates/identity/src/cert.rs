//! Membership in writing: an admin's signature over "this key belongs to this cluster in this role".

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use exo_types::{NodeId, ParseIdError};
use serde::{Deserialize, Serialize};

use crate::signature::{SIGNATURE_BYTES, verify_signature};

/// Longest name of a member, in bytes of UTF-8.
const NAME_BYTES_MAX: usize = 64;
/// Longest encoded certificate: the fields above it, a name, a signature, and room for a field to come.
const ENCODED_BYTES_MAX: usize = 512;
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

/// What an admin signs: that `node` belongs to `cluster` in this role.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Statement {
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
    /// The admin who signs.
    pub issuer: NodeId,
}

/// Proof that the issuer of `statement` made it.
///
/// Encoded as the postcard form of the statement, then the 64 bytes of the signature over a domain string and those
/// bytes. `serde` carries the encoded form and checks it on the way in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct MemberCert {
    /// What was signed.
    pub statement: Statement,
    /// The issuer's signature over [`Statement::to_sign`].
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

impl Statement {
    /// Says that `issuer` admits `node`. The name is cut and cleaned rather than refused: it comes from a host name.
    pub fn new(
        issuer: NodeId,
        cluster: ClusterId,
        node: NodeId,
        name: &str,
        role: Role,
        issued_unix_s: u64,
    ) -> Self {
        Self { cluster, node, name: clean_name(name), role, issued_unix_s, issuer }
    }

    /// The bytes that the issuer's key signs.
    pub fn to_sign(&self) -> Vec<u8> {
        [DOMAIN, &self.encode()].concat()
    }

    /// The certificate, once the issuer has signed [`Statement::to_sign`]. Checks nothing; [`MemberCert::verify`] does.
    pub fn signed(self, signature: [u8; SIGNATURE_BYTES]) -> MemberCert {
        MemberCert { statement: self, signature }
    }

    fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain fields in memory always serialise")
    }
}

impl MemberCert {
    /// Whether an admin, by the caller's list, really signed this. The caller also compares `cluster`.
    pub fn verify(&self, admins: impl Fn(&NodeId) -> bool) -> Result<(), CertError> {
        let (node, issuer) = (self.statement.node, self.statement.issuer);
        if !admins(&issuer) {
            return Err(CertError::NotAnAdmin { node, issuer });
        }
        if verify_signature(issuer, &self.statement.to_sign(), &self.signature) {
            Ok(())
        } else {
            Err(CertError::BadSignature { node, issuer })
        }
    }

    /// The certificate as bytes, at most 512.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.statement.encode();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Reads [`MemberCert::encode`]'s bytes. Checks form only; [`MemberCert::verify`] checks the signature.
    pub fn decode(bytes: &[u8]) -> Result<Self, CertDecodeError> {
        let error = |why| CertDecodeError { len_bytes: bytes.len(), why };
        if bytes.len() > ENCODED_BYTES_MAX {
            return Err(error("longer than any certificate"));
        }
        let (fields, signature) =
            bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or_else(|| error("shorter than a signature"))?;
        let (statement, rest) =
            postcard::take_from_bytes::<Statement>(fields).map_err(|_| error("its fields do not decode"))?;
        if !rest.is_empty() {
            return Err(error("bytes left over after its fields"));
        }
        if statement.name.len() > NAME_BYTES_MAX || clean_name(&statement.name) != statement.name {
            return Err(error("its name is too long or has control characters"));
        }
        // One certificate, one encoding: what is signed is rebuilt from the fields.
        if statement.encode() == fields {
            Ok(statement.signed(*signature))
        } else {
            Err(error("its encoding is not canonical"))
        }
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
    use ed25519_dalek::{Signer, SigningKey};
    use proptest::prelude::*;

    use super::*;

    /// The key of a seed, and the node it belongs to.
    fn key(seed: u8) -> (SigningKey, NodeId) {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let id = NodeId(key.verifying_key().to_bytes());
        (key, id)
    }

    /// An admin, and the certificate of a worker that it admitted under this name.
    fn admitted(name: &str) -> (NodeId, MemberCert) {
        let ((key, admin), (_, node)) = (key(1), key(2));
        let cluster = ClusterId([7; 16]);
        let statement = Statement::new(admin, cluster, node, name, Role::Worker, 1_700_000_000);
        let signature = key.sign(&statement.to_sign()).to_bytes();
        (admin, statement.signed(signature))
    }

    #[test]
    fn an_issued_certificate_survives_its_encoding_and_verifies() {
        let (admin, cert) = admitted("laptop");
        let read = MemberCert::decode(&cert.encode()).unwrap();
        assert_eq!(read, cert);
        assert_eq!(read.verify(|id| *id == admin), Ok(()));
        let wire = postcard::to_allocvec(&cert).unwrap();
        assert_eq!(postcard::from_bytes::<MemberCert>(&wire).unwrap(), cert);
    }

    #[test]
    fn a_worker_cannot_make_itself_an_admin() {
        let (admin, mut cert) = admitted("laptop");
        cert.statement.role = Role::Admin;
        let verdict = cert.verify(|id| *id == admin);
        assert!(matches!(verdict, Err(CertError::BadSignature { .. })), "{verdict:?}");
    }

    #[test]
    fn a_certificate_from_a_stranger_is_refused_whatever_it_says() {
        let (_, cert) = admitted("laptop");
        assert!(matches!(cert.verify(|_| false), Err(CertError::NotAnAdmin { .. })));
    }

    #[test]
    fn names_are_cut_on_a_character_and_lose_control_codes() {
        let (_, cert) = admitted(&("\u{1b}[31m".to_owned() + &"ä".repeat(100)));
        let name = &cert.statement.name;
        assert!(name.len() <= 64 && !name.contains('\u{1b}'));
        assert!(MemberCert::decode(&cert.encode()).is_ok());
    }

    /// Certificates of earlier builds are in journals and files: neither their fields nor their order may change.
    #[test]
    fn the_encoding_is_that_of_the_first_build() {
        let (admin, cert) = admitted("laptop");
        let Statement { cluster, node, issued_unix_s, .. } = cert.statement;
        assert_eq!(issued_unix_s, 1_700_000_000);
        let expected = [
            &cluster.0[..],
            &node.0,
            &[6],
            b"laptop",
            &[0], // worker
            &[0x80, 0xe2, 0xcf, 0xaa, 0x06],
            &admin.0,
            &cert.signature,
        ];
        assert_eq!(cert.encode(), expected.concat());
    }

    proptest! {
        /// No change of any byte goes unnoticed, and no bytes at all make the decoder panic.
        #[test]
        fn a_changed_byte_never_verifies(at in 0usize..300, flip in 1u8..) {
            let (admin, cert) = admitted("laptop");
            let mut bytes = cert.encode();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            if let Ok(read) = MemberCert::decode(&bytes) {
                prop_assert!(read.verify(|id| *id == admin).is_err());
            }
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = MemberCert::decode(&bytes);
        }
    }
}
