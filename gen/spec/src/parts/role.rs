//! [`Role`]: the work of some warps of some CTAs.

use super::waits::{Step, used};
use crate::abi;
use serde::Serialize;
use std::fmt;

/// The work of some CTAs, or of some warps of every CTA. A warp with several roles runs them in the order of the plan's list. All
/// warps of the CTA complete the earlier roles before any warp begins the later roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// The code that the warps run.
    pub kind: RoleKind,
    /// The CTAs that have the role: `first..end`.
    pub ctas: (u32, u32),
    /// The warps of these CTAs that have the role: `first..end`.
    pub warps: (u32, u32),
    /// A description for readers of the kernel.
    pub about: String,
    /// The waits and signals of the role, in the order of a call.
    pub steps: Vec<Step>,
}

impl Role {
    /// Creates the role of these warps of these CTAs.
    pub(crate) fn new(kind: RoleKind, ctas: (u32, u32), warps: (u32, u32), about: &str) -> Self {
        Self {
            kind,
            ctas,
            warps,
            about: about.to_owned(),
            steps: Vec::new(),
        }
    }

    /// Returns the role with these steps. Steps without waits and signals in this plan are left out.
    pub(crate) fn with(self, steps: Vec<Step>) -> Self {
        Self {
            steps: used(steps),
            ..self
        }
    }

    /// Whether some warp has both this role and the other role.
    #[must_use]
    pub const fn shares_warps_with(&self, other: &Self) -> bool {
        overlap(self.ctas, other.ctas) && overlap(self.warps, other.warps)
    }
}

const fn overlap(a: (u32, u32), b: (u32, u32)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// Declares the kinds of roles. Each variant has the name of the member type of `Kernel` in the source of a kernel, and the codes
/// by which reports name the waits of the role.
macro_rules! role_kinds {
    ($($(#[$attr:meta])* $kind:ident = $($code:ident)|+;)+) => {
        /// The code that a role runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum RoleKind {
            $($(#[$attr])* $kind,)+
        }

        impl RoleKind {
            /// All kinds of roles.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The name of the C++ type, a member of `Kernel`.
            #[must_use]
            pub const fn cxx(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            /// The codes by which reports name the waits of the role.
            #[must_use]
            pub const fn codes(self) -> &'static [abi::Role] {
                match self {
                    $(Self::$kind => &[$(abi::Role::$code),+],)+
                }
            }
        }
    };
}

role_kinds! {
    /// Brings operands to shared memory.
    Load = Load | Push;
    /// Issues wgmma instructions.
    Multiply = Multiply;
    /// Stores tiles or rows of the result.
    Store = Store;
    /// Adds up rows in shared memory.
    Add = Multiply;
    /// Copies results of other ranks to the caller's tensor.
    Collect = Collect;
    /// Adds up sums that other ranks have sent.
    Reduce = Reduce;
    /// Sends and receives packets of a collective.
    Exchange = Reduce | Collect;
    /// Sends own rows or chunks through shared memory.
    Push = Push;
    /// Sends own rows through registers, in CTAs that compute.
    PushByRegisters = Push;
    /// Sends own chunks of an all-gather.
    PushShard = Push;
    /// Sends own K and V, and forwards K and V of other nodes.
    PushKv = Push;
    /// Sends tokens to the ranks of their experts.
    SendTokens = Push;
    /// Adds up the sums of ranks with few tokens, without the pipeline.
    SumFewTokens = Load | Push;
    /// Watches arrivals, puts, and forwards, each in warps of its own.
    Communicate = Push | Collect;
    /// Watches the arrivals of puts.
    WatchArrivals = Push | Collect;
    /// Puts own chunks to other nodes.
    PutShard = Push;
    /// Puts own K and V to other nodes.
    PutKv = Push;
    /// Puts sums of this node to other nodes.
    PutSums = Push;
    /// Acknowledges sums of other nodes, so that their places can be reused.
    AcknowledgeSums = Push;
    /// Forwards lists of tokens of other nodes.
    RelayLists = Push;
    /// Forwards chunks of other nodes.
    Relay = Push;
}

impl RoleKind {
    /// Whether the warps of the role hold wgmma accumulators. These warps take registers from the warps that move data.
    #[must_use]
    pub const fn holds_accumulators(self) -> bool {
        matches!(self, Self::Multiply)
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.cxx())
    }
}
