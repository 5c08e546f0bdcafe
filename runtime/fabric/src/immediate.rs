//! The 32 bits that travel with a write.

use mkernel_spec::fabric::MAX_CHANNELS;

/// Bits of a put's sequence number.
const SEQUENCE_BITS: u32 = 20;

/// Sequence numbers are counted modulo this.
pub const SEQUENCES: u32 = 1 << SEQUENCE_BITS;

/// Given-back puts are counted modulo this.
pub const RETURNS: u32 = 1 << 31;

const CREDIT: u32 = 1 << 31;

const _: () = assert!(MAX_CHANNELS << SEQUENCE_BITS == CREDIT);

/// What a write means. Every value of 32 bits is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Data.
    Put {
        /// Below [`MAX_CHANNELS`].
        channel: u16,
        /// Of the channel, counted modulo [`SEQUENCES`].
        sequence: u32,
    },
    /// No data: the sender has delivered puts.
    Credit {
        /// How many of this receiver's puts it has delivered so far, modulo [`RETURNS`].
        returned: u32,
    },
}

impl Immediate {
    /// As 32 bits; numbers are taken modulo their range.
    #[must_use]
    pub const fn encode(self) -> u32 {
        match self {
            Self::Put { channel, sequence } => {
                ((channel as u32 % MAX_CHANNELS) << SEQUENCE_BITS) | (sequence % SEQUENCES)
            }
            Self::Credit { returned } => CREDIT | (returned % RETURNS),
        }
    }

    /// From 32 bits.
    #[must_use]
    pub const fn decode(bits: u32) -> Self {
        if bits & CREDIT != 0 {
            return Self::Credit {
                returned: bits % RETURNS,
            };
        }
        Self::Put {
            channel: (bits >> SEQUENCE_BITS) as u16,
            sequence: bits % SEQUENCES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_has_one_meaning(bits: u32) {
            prop_assert_eq!(Immediate::decode(bits).encode(), bits);
        }
    }
}
