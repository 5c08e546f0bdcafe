//! Why a step cannot be completed, and how the other ranks hear of it.

use super::ProtocolFault;
use super::wire::{Reader, put_string};
use crate::error::{Error, Peer, with_causes};
use std::time::Duration;

/// Text of another process, short and without control characters.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .take(500)
        .collect()
}

/// Why a step cannot be completed: rank 0 tells all others, any other rank tells rank 0.
#[derive(Debug)]
pub(super) enum Failure {
    Missing {
        ranks: Vec<u32>,
        /// Whom rank 0 refused, and why.
        refused: Vec<String>,
    },
    Left {
        rank: u32,
    },
    /// It said no goodbye.
    Lost {
        rank: u32,
    },
    Protocol {
        rank: u32,
        fault: ProtocolFault,
    },
    /// Of another rank, in its own words.
    Told {
        rank: u32,
        text: String,
    },
    /// Of this rank itself.
    Own {
        rank: u32,
        error: Error,
    },
}

/// [`Failure`] as the other ranks hear of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Missing(Vec<u32>),
    Left(u32),
    Lost(u32),
    Told(u32, String),
}

impl Failure {
    pub fn encode(&self) -> Vec<u8> {
        let (code, ranks, text) = match self {
            Self::Missing { ranks, .. } => (1, ranks.clone(), String::new()),
            Self::Left { rank } => (2, vec![*rank], String::new()),
            Self::Protocol { rank, fault } => (3, vec![*rank], fault.to_string()),
            Self::Lost { rank } => (4, vec![*rank], String::new()),
            Self::Told { rank, text } => (3, vec![*rank], text.clone()),
            Self::Own { rank, error } => (3, vec![*rank], with_causes(error)),
        };
        let mut bytes = vec![code];
        bytes.extend_from_slice(&u32::try_from(ranks.len()).unwrap_or(u32::MAX).to_le_bytes());
        ranks
            .iter()
            .for_each(|rank| bytes.extend_from_slice(&rank.to_le_bytes()));
        put_string(&mut bytes, text.as_bytes());
        bytes
    }

    pub fn decode(payload: &[u8]) -> Result<Heard, ProtocolFault> {
        let mut reader = Reader(payload);
        let code = reader.u8()?;
        let count = reader.u32()?;
        let ranks = (0..count)
            .map(|_| reader.u32())
            .collect::<Result<Vec<_>, _>>()?;
        let text = printable(reader.string()?);
        match (code, ranks.as_slice()) {
            (1, [_, ..]) => Ok(Heard::Missing(ranks)),
            (2, [rank]) => Ok(Heard::Left(*rank)),
            (3, [rank]) => Ok(Heard::Told(*rank, text)),
            (4, [rank]) => Ok(Heard::Lost(*rank)),
            _ => Err(ProtocolFault::Malformed),
        }
    }

    pub fn into_error(self, step: &'static str, waited: Duration) -> Error {
        match self {
            Self::Missing { ranks, refused } => Error::RanksMissing {
                step,
                ranks,
                waited,
                refused,
            },
            Self::Left { rank } | Self::Lost { rank } => Error::RankLeft { rank, step },
            Self::Protocol { rank, fault } => Error::Protocol {
                peer: Peer::Rank(rank),
                step,
                source: fault,
            },
            Self::Told { rank, text } => Heard::Told(rank, text).into_error(step, waited),
            Self::Own { error, .. } => error,
        }
    }
}

impl Heard {
    pub fn into_error(self, step: &'static str, waited: Duration) -> Error {
        match self {
            Self::Missing(ranks) => Error::RanksMissing {
                step,
                ranks,
                waited,
                refused: Vec::new(),
            },
            Self::Left(rank) | Self::Lost(rank) => Error::RankLeft { rank, step },
            Self::Told(rank, text) => Error::RanksFailed {
                step,
                failures: vec![(rank, text)],
            },
        }
    }
}
