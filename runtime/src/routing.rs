//! [`RoutingFault`]: what a kernel found wrong with tokens and their experts.

use mkernel_spec::abi::{Report, Wait};

/// What is wrong with tokens, experts or places of a rank. Every rank returns it. Of `dispatch_gemm`, none writes results of
/// that call; `combine` leaves out rows whose places are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingFault {
    /// A number that no expert has.
    #[error("token {token} has expert {expert} as choice {choice}, there are {experts}; pass ids of 0 to {}", .experts - 1)]
    Expert {
        /// Of the rank's tokens.
        token: u32,
        /// Of the token's choices.
        choice: u32,
        /// What was passed.
        expert: i32,
        /// Experts over all ranks.
        experts: u32,
    },
    /// One expert as two choices of a token.
    #[error(
        "token {token} has expert {expert} twice, again as choice {choice}; pass each expert once"
    )]
    ExpertTwice {
        /// Of the rank's tokens.
        token: u32,
        /// The second of the two.
        choice: u32,
        /// What was passed.
        expert: i32,
    },
    /// More tokens than declared, or fewer than none.
    #[error(
        "there are {tokens} tokens; pass a count of 0 to {max_tokens}, or declare a larger max_tokens"
    )]
    Tokens {
        /// What was passed.
        tokens: i32,
        /// As declared.
        max_tokens: u32,
    },
    /// More rows than declared.
    #[error("its experts get {rows} rows, {} more than it has room for ({max_rows}); declare a larger max_rows, or leave it out", .rows - .max_rows)]
    Rows {
        /// All of its experts'.
        rows: u32,
        /// As declared.
        max_rows: u32,
    },
    /// A place that no row has.
    #[error(
        "choice {choice} of token {token} is at place {place} of {places}; pass the places that dispatch_gemm wrote for as many tokens"
    )]
    Place {
        /// Of the rank's tokens.
        token: u32,
        /// Of the token's choices.
        choice: u32,
        /// What was passed.
        place: i32,
        /// Over all ranks.
        places: u32,
    },
}

impl RoutingFault {
    /// Of which rank it is, and what; none if the report is of a wait.
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
        } else if is(Wait::Place) {
            Self::Place {
                token,
                choice,
                place: seen as i32,
                places: wanted,
            }
        } else {
            return None;
        };
        Some((source, fault))
    }
}
