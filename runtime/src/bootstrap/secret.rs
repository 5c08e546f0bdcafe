//! What ranks of a job know and strangers don't, and how they prove it without sending it.
//!
//! Both ends of a connection draw a random number; each then sends HMAC-SHA256 (RFC 2104) of a word for its role and all
//! that was said so far, both numbers included. So a proof is worth nothing on another connection, in another role,
//! or with another rank, world or job. The end that connects proves first: whoever reaches the port without the
//! secret gets nothing to try secrets on.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;
/// So that it cannot be guessed from proofs that were overheard.
const MIN_BYTES: usize = 16;

/// A job's secret. Never printed.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// None if it is too short.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // HMAC takes keys of any length.
        let mac = Hmac::new_from_slice(bytes).ok()?;
        (bytes.len() >= MIN_BYTES).then_some(Self(mac))
    }

    pub(super) fn prove(&self, role: Role, said: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac(role, said).finalize().into_bytes().into()
    }

    /// In a time that does not depend on `proof`.
    pub(super) fn verify(&self, role: Role, said: &[u8], proof: &[u8]) -> bool {
        self.mac(role, said).verify_slice(proof).is_ok()
    }

    fn mac(&self, role: Role, said: &[u8]) -> Hmac<Sha256> {
        let word: &[u8] = match role {
            Role::Joins => b"mkernel rendezvous: joins\0",
            Role::Gathers => b"mkernel rendezvous: gathers\0",
        };
        self.0.clone().chain_update(word).chain_update(said)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Whose proof it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// The rank that connects.
    Joins,
    /// Rank 0.
    Gathers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_secret_role_and_conversation() {
        let secret = Secret::new(&[7; 16]).expect("long enough");
        let proof = secret.prove(Role::Joins, b"said");
        assert!(secret.verify(Role::Joins, b"said", &proof));
        assert!(!secret.verify(Role::Gathers, b"said", &proof));
        assert!(!secret.verify(Role::Joins, b"said again", &proof));
        assert!(!secret.verify(Role::Joins, b"said", &proof[..31]));
        assert!(!secret.verify(Role::Joins, b"said", &[]));
        let other = Secret::new(&[8; 16]).expect("long enough");
        assert!(!other.verify(Role::Joins, b"said", &proof));
        assert!(Secret::new(&[7; 15]).is_none());
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    /// RFC 4231, test case 1, which tells that this is HMAC-SHA256 and no other.
    #[test]
    fn the_mac_is_hmac_sha256() {
        let mac: Hmac<Sha256> = Hmac::new_from_slice(&[0x0b; 20]).expect("any length");
        let found = mac.chain_update(b"Hi There").finalize().into_bytes();
        assert_eq!(found[..4], [0xb0, 0x34, 0x4c, 0x61]);
    }
}
