//! Who a node is: its key, the certificate that makes it a member, and the words people compare.

mod cert;
mod key;
mod words;

pub use cert::{CertDecodeError, CertError, ClusterId, MemberCert, Role};
pub(crate) use key::is_sound_key;
pub use key::{KeyFileError, NodeKey, verify_signature};
pub use words::check_words;
