//! Who a node is to others: signatures, certificates of members, and the words that people compare.
//!
//! A node is its Ed25519 key, and its [`NodeId`](exo_types::NodeId) is the public half. An admin of a cluster signs a
//! [`Statement`] ("this key belongs to this cluster in this role"); the statement with the signature is a
//! [`MemberCert`], which anyone who knows the admins can check.
//!
//! **Architecture invariant:** no secret key is ever here. Whoever holds one signs the bytes of
//! [`Statement::to_sign`] and hands back the signature.
//!
//! Start reading at [`MemberCert`].

#![forbid(unsafe_code)]

mod cert;
mod signature;
mod words;

pub use cert::{CertDecodeError, CertError, ClusterId, MemberCert, Role, Statement};
pub use signature::{SIGNATURE_BYTES, is_sound_key, verify_signature};
pub use words::check_words;
