//! [`Immediate`]: the meaning of the 32 bits of immediate data that travel with a write.

use mkernel_spec::fabric::MAX_CHANNELS;

/// The number of bits of a put's sequence number.
const SEQUENCE_BITS: u32 = 20;

/// The modulus of sequence numbers.
pub const SEQUENCE_MODULUS: u32 = 1 << SEQUENCE_BITS;

/// The modulus of the number of delivered puts in credit messages.
pub const CREDIT_MODULUS: u32 = 1 << 30;

const CREDIT: u32 = 1 << 31;
const CLOSE: u32 = CREDIT | CREDIT_MODULUS;

/// The exclusive upper limit of numbers of lost ranks.
const RANK_MODULUS: u32 = 1 << 16;

const _: () = assert!(MAX_CHANNELS << SEQUENCE_BITS == CREDIT);

/// The meaning of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// The write carries data.
    Put {
        /// The channel, below [`MAX_CHANNELS`].
        channel: u16,
        /// The position of the put in its channel, modulo [`SEQUENCE_MODULUS`].
        sequence: u32,
    },
    /// A message without data: the sender of the message has delivered puts and returns their credits.
    Credit {
        /// The number of the receiver's puts that have been delivered so far, modulo [`CREDIT_MODULUS`].
        delivered: u32,
    },
    /// A message without data: the sender sends nothing more and accepts nothing more. Either all its puts have
    /// completed, or it has aborted.
    Close {
        /// The rank whose loss made the sender abort, as numbered by [`Arrivals::abort`](crate::Arrivals::abort). The number is
        /// below 65535.
        lost_rank: Option<u32>,
    },
}

impl Immediate {
    /// Encodes the message in 32 bits. Numbers are taken modulo their range.
    #[must_use]
    pub const fn encode(self) -> u32 {
        match self {
            Self::Put { channel, sequence } => {
                ((channel as u32 % MAX_CHANNELS) << SEQUENCE_BITS) | (sequence % SEQUENCE_MODULUS)
            }
            Self::Credit { delivered } => CREDIT | (delivered % CREDIT_MODULUS),
            Self::Close { lost_rank: None } => CLOSE,
            Self::Close {
                lost_rank: Some(rank),
            } => CLOSE | (1 + rank % (RANK_MODULUS - 1)),
        }
    }

    /// Decodes 32 bits.
    ///
    /// # Errors
    ///
    /// Returns an error if the bits have no meaning.
    pub fn decode(bits: u32) -> Result<Self, String> {
        match bits & CLOSE {
            CLOSE if bits < CLOSE | RANK_MODULUS => Ok(Self::Close {
                lost_rank: (bits % RANK_MODULUS).checked_sub(1),
            }),
            CLOSE => Err(format!(
                "it sent the immediate data {bits:#x}, which has no meaning"
            )),
            CREDIT => Ok(Self::Credit {
                delivered: bits % CREDIT_MODULUS,
            }),
            _ => Ok(Self::Put {
                channel: (bits >> SEQUENCE_BITS) as u16,
                sequence: bits % SEQUENCE_MODULUS,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_has_at_most_one_meaning(bits: u32) {
            match Immediate::decode(bits) {
                Ok(meaning) => prop_assert_eq!(meaning.encode(), bits),
                Err(_) => prop_assert!(bits >= CLOSE | RANK_MODULUS),
            }
        }
    }

    #[test]
    fn a_close_differs_from_every_other_message() {
        for lost_rank in [None, Some(0), Some(RANK_MODULUS - 2)] {
            let close = Immediate::Close { lost_rank };
            assert_eq!(Immediate::decode(close.encode()), Ok(close));
        }
        let most = Immediate::Credit {
            delivered: CREDIT_MODULUS - 1,
        };
        assert_eq!(Immediate::decode(CLOSE - 1), Ok(most));
    }
}
