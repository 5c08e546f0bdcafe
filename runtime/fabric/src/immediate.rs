//! The 32 bits that travel with a write.

use mkernel_spec::fabric::MAX_CHANNELS;

/// Bits of a put's sequence number.
const SEQUENCE_BITS: u32 = 20;

/// Sequence numbers are counted modulo this.
pub const SEQUENCES: u32 = 1 << SEQUENCE_BITS;

/// Given-back puts are counted modulo this.
pub const RETURNS: u32 = 1 << 30;

const CREDIT: u32 = 1 << 31;
const GOODBYE: u32 = CREDIT | RETURNS;

/// Numbers of lost endpoints are below this.
const LOST: u32 = 1 << 16;

const _: () = assert!(MAX_CHANNELS << SEQUENCE_BITS == CREDIT);

/// What a write means.
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
    /// No data, and nothing more will come, nor is taken: all puts of the sender have left; or it has given up.
    Goodbye {
        /// Whose loss made it give up, as [`Arrivals::abort`](crate::Arrivals::abort) numbers them: below 65535.
        lost: Option<u32>,
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
            Self::Goodbye { lost: None } => GOODBYE,
            Self::Goodbye { lost: Some(lost) } => GOODBYE | (1 + lost % (LOST - 1)),
        }
    }

    /// From 32 bits.
    ///
    /// # Errors
    ///
    /// That they mean nothing.
    pub fn decode(bits: u32) -> Result<Self, String> {
        match bits & GOODBYE {
            GOODBYE if bits < GOODBYE | LOST => Ok(Self::Goodbye {
                lost: (bits % LOST).checked_sub(1),
            }),
            GOODBYE => Err(format!("it sent {bits:#x}, which means nothing")),
            CREDIT => Ok(Self::Credit {
                returned: bits % RETURNS,
            }),
            _ => Ok(Self::Put {
                channel: (bits >> SEQUENCE_BITS) as u16,
                sequence: bits % SEQUENCES,
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
                Err(_) => prop_assert!(bits >= GOODBYE | LOST),
            }
        }
    }

    #[test]
    fn a_goodbye_is_no_other_message() {
        for lost in [None, Some(0), Some(LOST - 2)] {
            let goodbye = Immediate::Goodbye { lost };
            assert_eq!(Immediate::decode(goodbye.encode()), Ok(goodbye));
        }
        let most = Immediate::Credit {
            returned: RETURNS - 1,
        };
        assert_eq!(Immediate::decode(GOODBYE - 1), Ok(most));
    }
}
