//! The 32 bits that travel with a write.

use mkernel_spec::fabric::MAX_CHANNELS;

/// Bits of a put's sequence number.
const SEQUENCE_BITS: u32 = 20;

/// Sequence numbers are counted modulo this.
pub const SEQUENCE_MODULUS: u32 = 1 << SEQUENCE_BITS;

/// Given-back puts are counted modulo this.
pub const CREDIT_MODULUS: u32 = 1 << 30;

const CREDIT: u32 = 1 << 31;
const CLOSE: u32 = CREDIT | CREDIT_MODULUS;

/// Numbers of lost endpoints are below this.
const RANK_MODULUS: u32 = 1 << 16;

const _: () = assert!(MAX_CHANNELS << SEQUENCE_BITS == CREDIT);

/// What a write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Data.
    Put {
        /// Below [`MAX_CHANNELS`].
        channel: u16,
        /// Of the channel, counted modulo [`SEQUENCE_MODULUS`].
        sequence: u32,
    },
    /// No data: the sender has delivered puts.
    Credit {
        /// How many of this receiver's puts it has delivered so far, modulo [`CREDIT_MODULUS`].
        delivered: u32,
    },
    /// No data, and nothing more will come, nor is taken: all puts of the sender have left; or it has given up.
    Close {
        /// Whose loss made it give up, as [`Arrivals::abort`](crate::Arrivals::abort) numbers them: below 65535.
        lost_rank: Option<u32>,
    },
}

impl Immediate {
    /// As 32 bits; numbers are taken modulo their range.
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

    /// From 32 bits.
    ///
    /// # Errors
    ///
    /// That they mean nothing.
    pub fn decode(bits: u32) -> Result<Self, String> {
        match bits & CLOSE {
            CLOSE if bits < CLOSE | RANK_MODULUS => Ok(Self::Close {
                lost_rank: (bits % RANK_MODULUS).checked_sub(1),
            }),
            CLOSE => Err(format!("it sent {bits:#x}, which means nothing")),
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
        fn every_value_has_one_meaning_or_none(bits: u32) {
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
