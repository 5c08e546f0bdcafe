//! [`ProtocolFault`]: the fault of a message of another process, and [`Peer`]: the sender of the message.

use std::fmt;

/// The fault of a message of another process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolFault {
    /// The other end does not speak the protocol of this crate.
    #[error(
        "it does not speak mkernel's protocol. If another program uses the port, set MKERNEL_PORT to a free one"
    )]
    NotMkernel,
    /// The other end is built from another version of this crate.
    #[error(
        "it speaks version {found} of the protocol, but this process speaks version {expected}. Run the same build on every rank"
    )]
    Version {
        /// The version of the message.
        found: u16,
        /// The version of this crate.
        expected: u16,
    },
    /// The message is longer than any valid message.
    #[error("its message has {bytes} bytes, but at most {limit} are allowed")]
    TooLong {
        /// The length of the message.
        bytes: usize,
        /// The longest valid length.
        limit: usize,
    },
    /// The message ends too early, or has invalid contents.
    #[error("its message is malformed")]
    Malformed,
    /// The message belongs to another job.
    #[error("it belongs to another job. Set MKERNEL_PORT to a port that no other job uses")]
    OtherJob,
    /// The other rank is in another step.
    #[error("it is in step {found:?}. Every rank must make the same calls in the same order")]
    WrongStep {
        /// The step of the other rank.
        found: String,
    },
    /// The other rank has another world size.
    #[error("it was started with WORLD_SIZE {found}, but rank 0 with {expected}")]
    World {
        /// The world size of the other rank.
        found: u32,
        /// The world size of rank 0.
        expected: u32,
    },
    /// The other process has a rank outside of the world, or rank 0.
    #[error("it has rank {rank} of {world}, but only ranks 1 to {} may connect", .world.saturating_sub(1))]
    Rank {
        /// The rank of the other process.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// Two processes have the same rank.
    #[error("rank {rank} is already connected. Check whether another job uses this port")]
    DuplicateRank {
        /// The rank that both processes have.
        rank: u32,
    },
    /// Rank 0 refused this process.
    #[error("it refused this rank: {reason}")]
    Refused {
        /// The reason that rank 0 sent.
        reason: String,
    },
    /// Rank 0 has a secret, but this process has none.
    #[error("it requires a secret. Set MKERNEL_SECRET to the same value on all ranks")]
    SecretMissing,
    /// This process has a secret, but rank 0 has none.
    #[error(
        "it has no secret, but this process has one. Set MKERNEL_SECRET to the same value on all ranks"
    )]
    NoSecret,
    /// The proof is not valid for this job's secret.
    #[error(
        "it does not know this job's secret. Set MKERNEL_SECRET to the same value on all ranks"
    )]
    WrongSecret,
    /// The other end of a local socket belongs to another user.
    #[error("it runs as user {found}, but this process runs as user {expected}")]
    User {
        /// The user of the other process.
        found: u32,
        /// The user of this process.
        expected: u32,
    },
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A rank.
    Rank(u32),
    /// A process that has not sent its rank yet.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Unknown => f.write_str("an unknown process"),
        }
    }
}
