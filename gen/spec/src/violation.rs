//! Mistakes in a configuration: all of them at once, each with its field, value, limit and a way out.

use std::fmt;

/// A field of [`KernelConfig`](crate::KernelConfig), by the one name it has in TOML, in
/// `#[fused_kernel(...)]`, as a flag (`--tile-m`) and in messages.
///
/// This crate knows fields, never files or tokens: each front door maps a field to its own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Field {
    /// `op`
    Op,
    /// `name`
    Name,
    /// `world`
    World,
    /// `nodes`
    Nodes,
    /// `m`
    M,
    /// `n`
    N,
    /// `k`
    K,
    /// `b_layout`
    BLayout,
    /// `bias`
    Bias,
    /// `activation`
    Activation,
    /// `residual`
    Residual,
    /// `output`
    Output,
    /// `tile_m`
    TileM,
    /// `tile_n`
    TileN,
    /// `stages`
    Stages,
    /// `transfer`
    Transfer,
    /// `comm_ctas`
    CommCtas,
    /// `k_slices`
    KSlices,
    /// `chunk_rows`
    ChunkRows,
    /// `group_m`
    GroupM,
    /// `round_tiles`
    RoundTiles,
    /// `shots`
    Shots,
    /// `pace_steps`
    PaceSteps,
    /// `batch`
    Batch,
    /// `seq`
    Seq,
    /// `heads`
    Heads,
    /// `kv_heads`
    KvHeads,
    /// `head_dim`
    HeadDim,
    /// `layout`
    Layout,
    /// `causal`
    Causal,
    /// `placement`
    Placement,
    /// `scale`
    Scale,
    /// `kv_slots`
    KvSlots,
    /// `experts`
    Experts,
    /// `top_k`
    TopK,
    /// `max_tokens`
    MaxTokens,
    /// `hidden`
    Hidden,
    /// `intermediate`
    Intermediate,
    /// `swiglu`
    Swiglu,
    /// `max_rows`
    MaxRows,
}

impl Field {
    /// Every field, in the order in which a person writes them.
    pub const ALL: [Self; 40] = [
        Self::Op,
        Self::Name,
        Self::World,
        Self::Nodes,
        Self::M,
        Self::N,
        Self::K,
        Self::BLayout,
        Self::Bias,
        Self::Activation,
        Self::Residual,
        Self::Output,
        Self::TileM,
        Self::TileN,
        Self::Stages,
        Self::Transfer,
        Self::CommCtas,
        Self::KSlices,
        Self::ChunkRows,
        Self::GroupM,
        Self::RoundTiles,
        Self::Shots,
        Self::PaceSteps,
        Self::Batch,
        Self::Seq,
        Self::Heads,
        Self::KvHeads,
        Self::HeadDim,
        Self::Layout,
        Self::Causal,
        Self::Placement,
        Self::Scale,
        Self::KvSlots,
        Self::Experts,
        Self::TopK,
        Self::MaxTokens,
        Self::Hidden,
        Self::Intermediate,
        Self::Swiglu,
        Self::MaxRows,
    ];

    /// The field's name, as in TOML.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Op => "op",
            Self::Name => "name",
            Self::World => "world",
            Self::Nodes => "nodes",
            Self::M => "m",
            Self::N => "n",
            Self::K => "k",
            Self::BLayout => "b_layout",
            Self::Bias => "bias",
            Self::Activation => "activation",
            Self::Residual => "residual",
            Self::Output => "output",
            Self::TileM => "tile_m",
            Self::TileN => "tile_n",
            Self::Stages => "stages",
            Self::Transfer => "transfer",
            Self::CommCtas => "comm_ctas",
            Self::KSlices => "k_slices",
            Self::ChunkRows => "chunk_rows",
            Self::GroupM => "group_m",
            Self::RoundTiles => "round_tiles",
            Self::Shots => "shots",
            Self::PaceSteps => "pace_steps",
            Self::Batch => "batch",
            Self::Seq => "seq",
            Self::Heads => "heads",
            Self::KvHeads => "kv_heads",
            Self::HeadDim => "head_dim",
            Self::Layout => "layout",
            Self::Causal => "causal",
            Self::Placement => "placement",
            Self::Scale => "scale",
            Self::KvSlots => "kv_slots",
            Self::Experts => "experts",
            Self::TopK => "top_k",
            Self::MaxTokens => "max_tokens",
            Self::Hidden => "hidden",
            Self::Intermediate => "intermediate",
            Self::Swiglu => "swiglu",
            Self::MaxRows => "max_rows",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub field: Field,
    /// The value, the limit, and where the limit comes from.
    pub reason: String,
    /// What would work.
    pub help: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.reason, self.help)
    }
}

/// Every mistake found, never empty when it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Records one mistake, once.
    pub fn push(&mut self, field: Field, reason: impl Into<String>, help: impl Into<String>) {
        let violation = Violation {
            field,
            reason: reason.into(),
            help: help.into(),
        };
        if !self.0.contains(&violation) {
            self.0.push(violation);
        }
    }

    /// Records a mistake unless `ok`.
    pub fn require(
        &mut self,
        ok: bool,
        field: Field,
        reason: impl FnOnce() -> String,
        help: impl Into<String>,
    ) {
        if !ok {
            self.push(field, reason(), help);
        }
    }

    /// `value` if nothing was recorded, else all that was.
    ///
    /// # Errors
    /// The recorded violations.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }

    /// The violations, in the order found.
    pub fn iter(&self) -> std::slice::Iter<'_, Violation> {
        self.0.iter()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many were recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'a> IntoIterator for &'a Violations {
    type Item = &'a Violation;
    type IntoIter = std::slice::Iter<'a, Violation>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, v) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{v}")?;
        }
        Ok(())
    }
}
