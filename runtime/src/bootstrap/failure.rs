//! [`StepFailure`]: the reason why a step cannot be completed, and its report to the other ranks.

use super::wait::STOPPED;
use super::wire::{Reader, put_string};
use crate::error::{Error, Peer, ProtocolFault, with_causes};
use std::time::Duration;

/// Converts text of another process into a short text without control characters.
pub(crate) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .take(500)
        .collect()
}

/// The reason why a step cannot be completed. Rank 0 reports the reason to all other ranks; any other rank reports it to rank
/// 0.
#[derive(Debug)]
pub(super) enum StepFailure {
    Missing {
        ranks: Vec<u32>,
        /// On rank 0, the connections that were refused, with the reasons.
        refused: Vec<String>,
    },
    Left {
        rank: u32,
    },
    /// The connection of the rank closed without a `Goodbye` frame.
    Lost {
        rank: u32,
    },
    Protocol {
        rank: u32,
        fault: ProtocolFault,
    },
    /// A failure of another rank, with the text that the rank sent.
    Reported {
        rank: u32,
        text: String,
    },
    /// A call of the rank has failed. The rank still takes part in steps, so this failure ends no step.
    Call {
        rank: u32,
    },
    /// A failure of this rank itself.
    Own {
        rank: u32,
        error: Error,
    },
}

/// A [`StepFailure`] as another rank has reported it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportedFailure {
    Missing(Vec<u32>),
    Left(u32),
    Lost(u32),
    Reported(u32, String),
    Call(u32),
}

impl StepFailure {
    /// Returns the failure of a step that was aborted on `rank`.
    pub fn stopped(rank: u32) -> Self {
        let text = STOPPED.to_owned();
        Self::Reported { rank, text }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (code, ranks, text) = match self {
            Self::Missing { ranks, .. } => (1, ranks.clone(), String::new()),
            Self::Left { rank } => (2, vec![*rank], String::new()),
            Self::Protocol { rank, fault } => (3, vec![*rank], fault.to_string()),
            Self::Lost { rank } => (4, vec![*rank], String::new()),
            Self::Reported { rank, text } => (3, vec![*rank], text.clone()),
            Self::Call { rank } => (5, vec![*rank], String::new()),
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

    pub fn decode(payload: &[u8]) -> Result<ReportedFailure, ProtocolFault> {
        let mut reader = Reader(payload);
        let code = reader.u8()?;
        let count = reader.u32()?;
        let ranks = (0..count)
            .map(|_| reader.u32())
            .collect::<Result<Vec<_>, _>>()?;
        let text = printable(reader.string()?);
        match (code, ranks.as_slice()) {
            (1, [_, ..]) => Ok(ReportedFailure::Missing(ranks)),
            (2, [rank]) => Ok(ReportedFailure::Left(*rank)),
            (3, [rank]) => Ok(ReportedFailure::Reported(*rank, text)),
            (4, [rank]) => Ok(ReportedFailure::Lost(*rank)),
            (5, [rank]) => Ok(ReportedFailure::Call(*rank)),
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
            Self::Left { rank } | Self::Lost { rank } | Self::Call { rank } => {
                Error::RankLeft { rank, step }
            }
            Self::Protocol { rank, fault } => Error::Protocol {
                peer: Peer::Rank(rank),
                step,
                source: fault,
            },
            Self::Reported { rank, text } => {
                ReportedFailure::Reported(rank, text).into_error(step, waited)
            }
            Self::Own { error, .. } => error,
        }
    }
}

impl ReportedFailure {
    pub fn into_error(self, step: &'static str, waited: Duration) -> Error {
        match self {
            Self::Missing(ranks) => Error::RanksMissing {
                step,
                ranks,
                waited,
                refused: Vec::new(),
            },
            Self::Left(rank) | Self::Lost(rank) | Self::Call(rank) => {
                Error::RankLeft { rank, step }
            }
            Self::Reported(rank, text) => Error::RanksFailed {
                step,
                failures: vec![(rank, text)],
            },
        }
    }
}
