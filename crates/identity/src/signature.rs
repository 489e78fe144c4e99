//! Checks of Ed25519 keys and signatures, strict everywhere.

use ed25519_dalek::{Signature, VerifyingKey};
use exo_types::NodeId;

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// Whether `node` signed `message`. Strict: small-order keys and malleable signatures count as no.
pub fn verify_signature(node: NodeId, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
    VerifyingKey::from_bytes(&node.0)
        .is_ok_and(|key| key.verify_strict(message, &Signature::from_bytes(signature)).is_ok())
}

/// Whether these bytes are a usable public key. A small-order point would let anyone sign in its name.
pub fn is_sound_key(key: &[u8; 32]) -> bool {
    VerifyingKey::from_bytes(key).is_ok_and(|k| !k.is_weak())
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    #[test]
    fn a_signature_holds_for_its_message_and_key_only() {
        let (a, b) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let [a_id, b_id] = [&a, &b].map(|key| NodeId(key.verifying_key().to_bytes()));
        let signature = a.sign(b"hello").to_bytes();
        assert!(verify_signature(a_id, b"hello", &signature));
        assert!(!verify_signature(a_id, b"hullo", &signature));
        assert!(!verify_signature(b_id, b"hello", &signature));
    }

    #[test]
    fn the_identity_point_is_no_key() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert!(!is_sound_key(&identity));
        assert!(is_sound_key(&SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes()));
    }
}
