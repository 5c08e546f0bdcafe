//! [`Secret`]: the shared secret of a job, and the proof that a rank knows the secret without sending it.
//!
//! Each end of a connection creates a random number. It then sends the HMAC-SHA256 (RFC 2104) of a label for its side
//! and of all messages so far, which include both numbers. A proof is therefore not valid for another connection, the
//! other side, or another rank, world or job. The end that connects sends its proof first: a program that reaches the
//! port without the secret gets no proof on which it could test guesses.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// The length of a proof in bytes.
pub(crate) const PROOF_BYTES: usize = 32;
/// The minimum length of a secret in bytes, so that it cannot be guessed from recorded proofs.
const MIN_BYTES: usize = 16;

/// The secret of a job. It is never printed.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// Returns `None` if the secret is too short.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // HMAC accepts keys of any length.
        let mac = Hmac::new_from_slice(bytes).ok()?;
        (bytes.len() >= MIN_BYTES).then_some(Self(mac))
    }

    /// Returns a key for groups of the ranks of a job with this nonce.
    pub(crate) fn key_of_groups(&self, nonce: &[u8]) -> [u8; PROOF_BYTES] {
        let mac = self.0.clone().chain_update(b"mkernel groups\0");
        mac.chain_update(nonce).finalize().into_bytes().into()
    }

    pub(crate) fn prove(&self, role: Side, messages: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac(role, messages).finalize().into_bytes().into()
    }

    /// Verifies a proof in a time that does not depend on its contents.
    pub(crate) fn verify(&self, role: Side, messages: &[u8], proof: &[u8]) -> bool {
        self.mac(role, messages).verify_slice(proof).is_ok()
    }

    fn mac(&self, role: Side, messages: &[u8]) -> Hmac<Sha256> {
        let word: &[u8] = match role {
            Side::Client => b"mkernel rendezvous: joins\0",
            Side::Server => b"mkernel rendezvous: gathers\0",
        };
        self.0.clone().chain_update(word).chain_update(messages)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The end of a connection that made a proof.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// The rank that connects.
    Client,
    /// Rank 0.
    Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_secret_role_and_conversation() {
        let secret = Secret::new(&[7; 16]).expect("long enough");
        let proof = secret.prove(Side::Client, b"messages");
        assert!(secret.verify(Side::Client, b"messages", &proof));
        assert!(!secret.verify(Side::Server, b"messages", &proof));
        assert!(!secret.verify(Side::Client, b"messages again", &proof));
        assert!(!secret.verify(Side::Client, b"messages", &proof[..31]));
        assert!(!secret.verify(Side::Client, b"messages", &[]));
        let other = Secret::new(&[8; 16]).expect("long enough");
        assert!(!other.verify(Side::Client, b"messages", &proof));
        assert!(Secret::new(&[7; 15]).is_none());
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    /// This is test case 1 of RFC 4231. It confirms that the function is HMAC-SHA256.
    #[test]
    fn the_mac_is_hmac_sha256() {
        let mac: Hmac<Sha256> = Hmac::new_from_slice(&[0x0b; 20]).expect("any length");
        let found = mac.chain_update(b"Hi There").finalize().into_bytes();
        assert_eq!(found[..4], [0xb0, 0x34, 0x4c, 0x61]);
    }
}
