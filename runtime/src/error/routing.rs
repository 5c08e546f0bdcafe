//! [`RoutingFault`]: a fault that a kernel found in the tokens of a call and their experts.

use super::operator_id::OperatorId;
use mkernel_spec::abi::{Report, Wait};

/// A fault in the tokens, experts or row indices of a rank. Every rank returns the fault. In `dispatch_gemm`, no rank writes
/// results of that call. `combine` leaves out the rows whose indices are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingFault {
    /// There is no expert with this id.
    #[error("token {token} has expert {expert} as choice {choice}, but there are {experts} experts. Pass ids from 0 to {}, or -1 for no choice", .experts - 1)]
    Expert {
        /// The token, as a row of the rank's tokens.
        token: u32,
        /// The index among the token's choices.
        choice: u32,
        /// The id that was passed.
        expert: i32,
        /// The number of experts of all ranks.
        experts: u32,
    },
    /// A token has one expert twice.
    #[error(
        "token {token} has expert {expert} twice; choice {choice} repeats it. Pass each expert once"
    )]
    ExpertTwice {
        /// The token, as a row of the rank's tokens.
        token: u32,
        /// The index of the second of the two choices.
        choice: u32,
        /// The id that was passed.
        expert: i32,
    },
    /// The number of tokens is negative, or larger than declared.
    #[error(
        "the number of tokens is {tokens}, but 0 to {max_tokens} are possible. Pass a number in this range, or declare a larger max_tokens"
    )]
    Tokens {
        /// The number that was passed.
        tokens: i32,
        /// The limit that was declared.
        max_tokens: u32,
    },
    /// The experts of a rank get more rows than declared.
    #[error("its experts get {rows} rows, but max_rows is {max_rows}, which is {} too few. Declare a larger max_rows, or leave it out", .rows - .max_rows)]
    Rows {
        /// The number of rows of all experts of the rank.
        rows: u32,
        /// The limit that was declared.
        max_rows: u32,
    },
    /// The word with the rows of a call is negative, or larger than the operator was prepared for. The call has no rows.
    #[error(
        "the call has {rows} rows, but 0 to {most} are possible. Write a number in this range to the word with the rows, or \
         prepare the operator for more"
    )]
    CallRows {
        /// The number in the word.
        rows: i32,
        /// The most rows that the operator takes.
        most: u32,
    },
    /// A number of cached rows is negative, or larger than the operator was prepared for. The call has no rows.
    #[error(
        "cached_rows says that rank {rank} has {rows} cached rows of sequence {sequence}, but 0 to {most} are possible. \
         Give a number in this range, or prepare the operator with a larger `cached`"
    )]
    CachedRows {
        /// The rank of the cached rows.
        rank: u32,
        /// The index of the sequence.
        sequence: u32,
        /// The number that was passed.
        rows: i32,
        /// The most cached rows of a sequence on a rank.
        most: u32,
    },
    /// An offset of packed sequences is not possible. The call has no rows.
    #[error(transparent)]
    Offset(OffsetFault),
    /// There is no row with this index.
    #[error(
        "choice {choice} of token {token} has row index {row_index}, but there are {rows} rows. Pass the `row_indices` that dispatch_gemm wrote for the same number of tokens"
    )]
    RowIndex {
        /// The token, as a row of the rank's tokens.
        token: u32,
        /// The index among the token's choices.
        choice: u32,
        /// The index that was passed.
        row_index: i32,
        /// The number of rows of all ranks.
        rows: u32,
    },
    /// An offset of an expert is not possible. The rank has no rows in this call.
    #[error(
        "offset {number} of `expert_offsets` is {offset}, but {before} to {most} are possible. Pass the `expert_offsets` that \
         dispatch_gemm wrote in the same call as the rows"
    )]
    ExpertOffset {
        /// The index of the offset.
        number: u32,
        /// The value of the offset.
        offset: i32,
        /// The value of the preceding offset.
        before: i32,
        /// The most rows of the rank's experts, or 0 for the first offset.
        most: u32,
    },
    /// The rank of a row has fewer rows. The token's sum lacks the row.
    #[error(
        "choice {choice} of token {token} has row index {row_index}, but the rank of this row has {rows} rows. Pass the `row_indices` and, on \
         that rank, the `expert_offsets` that dispatch_gemm wrote in the same call"
    )]
    NoSuchRow {
        /// The token, as a row of the rank's tokens.
        token: u32,
        /// The index among the token's choices.
        choice: u32,
        /// The index that was passed.
        row_index: i32,
        /// The number of rows of the rank of the row.
        rows: u32,
    },
}

/// Two tokens of a call of `combine` or `gemm_combine` have one row index. `combine` finds this mistake only across nodes, and only
/// if `max_rows` bounds the memory of the rank that has the row. The call fails on all ranks, since the sums of both tokens would be
/// wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank}, call {call} of {operator}: choice {choice} of token {token} has row index {row_index}, and so has another token. Pass the \
     `row_indices` that dispatch_gemm wrote for the same tokens"
)]
pub struct RowOfTwoTokens {
    /// The rank of one of the tokens.
    pub rank: u32,
    /// The operator of the call.
    pub operator: OperatorId,
    /// The number of the operator's call, counted from 1.
    pub call: u32,
    /// The token, as a row of the rank's tokens. For a rank on another node, the position of the token among the tokens that
    /// the rank sent to this node.
    pub token: u32,
    /// The index among the token's choices.
    pub choice: u32,
    /// The row index.
    pub row_index: i32,
}

/// A fault in the offsets of packed sequences, `cu_seqlens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffsetFault {
    /// The first sequence does not begin at row 0.
    #[error("offset 0 is {offset}, but the first one is 0. Let the first sequence begin at row 0")]
    First {
        /// The first offset.
        offset: i32,
    },
    /// An offset is negative.
    #[error("offset {number} is {offset}, a negative number. Give offsets from 0 on")]
    Negative {
        /// The index of the offset.
        number: u32,
        /// The value of the offset.
        offset: i32,
    },
    /// A sequence would end before it begins.
    #[error(
        "offset {number} is {offset}, less than the previous offset {before}. Give offsets that do not decrease, and repeat the \
         last one for sequences that there are not"
    )]
    Decreases {
        /// The index of the offset.
        number: u32,
        /// The value of the offset.
        offset: i32,
        /// The value of the preceding offset.
        before: i32,
    },
    /// The sequences have more rows than the operator was prepared for.
    #[error(
        "offset {number} is {offset}, but the operator was prepared for {most} rows at most. Prepare it for more, or make \
         several calls"
    )]
    TooManyRows {
        /// The index of the first offset that is too large.
        number: u32,
        /// The value of the offset.
        offset: u32,
        /// The most rows that the operator takes.
        most: u32,
    },
}

impl OffsetFault {
    /// Returns the fault of offset `number`. `limit` is the preceding offset if `offset` is less than it, or else the most
    /// rows.
    const fn new(number: u32, offset: u32, limit: u32) -> Self {
        match number {
            0 => Self::First {
                offset: offset as i32,
            },
            _ if offset > i32::MAX as u32 => Self::Negative {
                number,
                offset: offset as i32,
            },
            _ if offset < limit => Self::Decreases {
                number,
                offset: offset as i32,
                before: limit as i32,
            },
            _ => Self::TooManyRows {
                number,
                offset,
                most: limit,
            },
        }
    }
}

impl RoutingFault {
    /// Returns the rank whose operands are invalid, and the fault. Returns `None` if the report is about a wait.
    pub(crate) fn of(report: &Report) -> Option<(u32, Self)> {
        let Report {
            peer: choice,
            index: token,
            wanted,
            seen,
            ..
        } = *report;
        let is = |wait: Wait| report.wait == wait as u32;
        let source = match report.aborted_by {
            0 => report.rank,
            by => by - 1,
        };
        let fault = if is(Wait::Expert) {
            Self::Expert {
                token,
                choice,
                expert: seen as i32,
                experts: wanted,
            }
        } else if is(Wait::ExpertTwice) {
            Self::ExpertTwice {
                token,
                choice,
                expert: seen as i32,
            }
        } else if is(Wait::Tokens) {
            Self::Tokens {
                tokens: seen as i32,
                max_tokens: wanted,
            }
        } else if is(Wait::Rows) {
            Self::Rows {
                rows: seen,
                max_rows: wanted,
            }
        } else if is(Wait::CallRows) {
            Self::CallRows {
                rows: seen as i32,
                most: wanted,
            }
        } else if is(Wait::CachedRows) {
            Self::CachedRows {
                rank: choice,
                sequence: token,
                rows: seen as i32,
                most: wanted,
            }
        } else if is(Wait::Offset) {
            Self::Offset(OffsetFault::new(token, seen, wanted))
        } else {
            Self::of_rows(report)?
        };
        Some((source, fault))
    }

    /// Returns the fault in the places of rows, or `None` if the report is about something else.
    fn of_rows(report: &Report) -> Option<Self> {
        let is = |wait: Wait| report.wait == wait as u32;
        let (token, choice, row_index) = (report.index, report.peer, report.seen as i32);
        if is(Wait::RowIndex) {
            Some(Self::RowIndex {
                token,
                choice,
                row_index,
                rows: report.wanted,
            })
        } else if is(Wait::NoSuchRow) {
            Some(Self::NoSuchRow {
                token,
                choice,
                row_index,
                rows: report.wanted,
            })
        } else if is(Wait::ExpertOffset) {
            Some(Self::ExpertOffset {
                number: report.index,
                offset: report.seen as i32,
                before: report.peer as i32,
                most: report.wanted,
            })
        } else {
            None
        }
    }
}
