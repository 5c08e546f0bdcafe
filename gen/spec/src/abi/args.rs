//! The kernel's parameter: what each argument holds, and where it lies.

use super::limits::MAX_RANKS;
use super::operand::{Extent, Operand};
use crate::config::Dtype;
use crate::fabric::KernelEndpoint;
use serde::Serialize;

/// Where a tensor map or pointer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// At the operand's first element.
    Operand(Operand),
    /// A number of rows before it. Nothing lies there: kernels only access what is in the operand.
    BeforeOperand {
        /// The operand.
        operand: Operand,
        /// The number of rows.
        rows: u64,
    },
    /// In this rank's workspace.
    Workspace {
        /// From its start.
        offset_bytes: u64,
    },
}

/// Bytes from one index to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stride {
    /// Known to the plan.
    Bytes(u64),
    /// The row stride that the caller gives for the operand.
    RowOf(Operand),
    /// A number of rows of the operand.
    RowsOf {
        /// The operand.
        operand: Operand,
        /// The number of rows on this rank.
        rows: Extent,
    },
}

/// A tensor map (`CUtensorMap`), 128-byte swizzle, zero fill out of bounds, 256-byte L2 promotion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorMapSpec {
    /// Where it starts.
    pub source: Source,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements per dimension, innermost first. A dimension that is 0 on this rank is encoded as 1, over the workspace.
    pub extents: Vec<Extent>,
    /// Strides of dimensions 1, 2, …
    pub strides: Vec<Stride>,
    /// Elements of the box that one instruction moves, innermost first.
    pub box_elems: Vec<u32>,
    /// Whether the box has only as many rows as [`rows_of_load`] says of the call.
    pub box_of_call: bool,
}

/// Rows that one load brings: at most `most`, and no more than a call has, rounded up to 8, where the swizzle repeats. Rows out
/// of bounds take longer to fill with zeros than others to load.
#[must_use]
pub fn rows_of_load(most: u32, rows: u64) -> u32 {
    u64::from(most).min(rows.max(1).next_multiple_of(8)) as u32
}

/// What one kernel argument holds; the runtime fills it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgKind {
    /// A tensor map, 128 bytes, aligned to 128.
    TensorMap(TensorMapSpec),
    /// The address of an operand.
    Pointer(Operand),
    /// The address of an operand that this kernel writes, although other kernels only read it.
    Result(Operand),
    /// The operand's row stride in bytes, u64.
    RowStrideBytes(Operand),
    /// Addresses of an operand in symmetric memory on this node's ranks as this rank sees them, `[u64; MAX_RANKS]`, by
    /// their number on the node; 0 beyond the last.
    OnPeers(Operand),
    /// Tensor maps over an operand in symmetric memory on this node's ranks, by their number on the node.
    TensorMapsOnPeers {
        /// The map on each of them.
        map: TensorMapSpec,
        /// Ranks of the node.
        count: usize,
    },
    /// Where an operand lies in symmetric memory, u64: the same on all ranks.
    SymmetricPlace(Operand),
    /// Addresses of the workspaces of this node's ranks as this rank sees them, `[u64; MAX_RANKS]`, by their number on
    /// the node; 0 beyond the last.
    Workspaces,
    /// Address of the [`HostPage`](super::HostPage).
    HostPage,
    /// Address of the [`Gate`](super::Gate).
    Gate,
    /// The operator's number in its communicator, from 1 on, u32.
    OperatorNumber,
    /// The deadline of every wait, ns, u64.
    DeadlineNs,
    /// This rank, u32.
    Rank,
    /// The rows of the call, u32, if they are not read from memory.
    Rows,
    /// The address of a word with the rows of the call, or null.
    RowsAddress,
    /// The rows of a box that depends on the rows of the call, u32.
    BoxRows {
        /// The most.
        most: u32,
    },
    /// The [`KernelEndpoint`] of this rank.
    Endpoint,
}

impl ArgKind {
    /// Its declaration in CUDA, with `name`.
    #[must_use]
    pub fn declare(&self, name: &str) -> String {
        match self {
            Self::TensorMap(_) => format!("CUtensorMap {name}"),
            Self::Pointer(operand) if operand.is_result() => format!("mk::u8* {name}"),
            Self::Result(_) => format!("mk::u8* {name}"),
            Self::Pointer(_) => format!("const mk::u8* {name}"),
            Self::RowStrideBytes(_) | Self::DeadlineNs | Self::SymmetricPlace(_) => {
                format!("mk::u64 {name}")
            }
            Self::TensorMapsOnPeers { count, .. } => format!("CUtensorMap {name}[{count}]"),
            Self::Workspaces | Self::OnPeers(_) => format!("mk::u8* {name}[mk::kMaxRanks]"),
            Self::HostPage => format!("mk::HostPage* {name}"),
            Self::Gate => format!("mk::Gate* {name}"),
            Self::Rank | Self::OperatorNumber | Self::Rows | Self::BoxRows { .. } => {
                format!("mk::u32 {name}")
            }
            Self::RowsAddress => format!("const mk::u32* {name}"),
            Self::Endpoint => format!("mk::KernelEndpoint {name}"),
        }
    }

    const fn size_align(&self) -> (usize, usize) {
        match self {
            Self::TensorMap(_) => (128, 128),
            Self::TensorMapsOnPeers { count, .. } => (128 * *count, 128),
            Self::Pointer(_)
            | Self::Result(_)
            | Self::RowStrideBytes(_)
            | Self::HostPage
            | Self::RowsAddress
            | Self::Gate
            | Self::SymmetricPlace(_)
            | Self::DeadlineNs => (8, 8),
            Self::Workspaces | Self::OnPeers(_) => (8 * MAX_RANKS, 8),
            Self::Rank | Self::OperatorNumber | Self::Rows | Self::BoxRows { .. } => (4, 4),
            Self::Endpoint => (size_of::<KernelEndpoint>(), align_of::<KernelEndpoint>()),
        }
    }
}

/// One kernel argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arg {
    /// Its name in the kernel.
    pub name: &'static str,
    /// What it holds.
    pub kind: ArgKind,
    /// Where it lies in the argument struct.
    pub offset_bytes: usize,
}

/// The kernel's one parameter, a struct passed by value; the template prints it from this table and asserts each offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArgLayout {
    /// The fields, in order.
    pub args: Vec<Arg>,
    /// Size of the struct.
    pub size_bytes: usize,
}

impl ArgLayout {
    /// Lays the arguments out as a C compiler does.
    #[must_use]
    pub fn new(kinds: Vec<(&'static str, ArgKind)>) -> Self {
        let (mut offset, mut align) = (0, 1);
        let mut args = Vec::with_capacity(kinds.len());
        for (name, kind) in kinds {
            let (size, field_align) = kind.size_align();
            offset = usize::next_multiple_of(offset, field_align);
            align = align.max(field_align);
            args.push(Arg {
                name,
                kind,
                offset_bytes: offset,
            });
            offset += size;
        }
        Self {
            args,
            size_bytes: offset.next_multiple_of(align),
        }
    }

    /// Where the struct may start: at a multiple of this.
    #[must_use]
    pub fn align(&self) -> usize {
        let aligns = self.args.iter().map(|arg| arg.kind.size_align().1);
        aligns.max().unwrap_or(1)
    }
}
