//! The kernel's parameter: the contents of each argument, and its offset.

use super::extent::Extent;
use super::limits::MAX_RANKS;
use super::operand::Operand;
use super::trace::TraceBuffer;
use crate::config::Dtype;
use crate::fabric::KernelEndpoint;
use serde::Serialize;

/// The start of a tensor map or pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The operand's first element.
    Operand(Operand),
    /// A row that lies a number of rows before the operand's first row. Kernels never access rows before the operand.
    BeforeOperand {
        /// The operand.
        operand: Operand,
        /// The number of rows.
        rows: u64,
    },
    /// An offset in this rank's workspace.
    Workspace {
        /// The offset from the start of the workspace, in bytes.
        offset_bytes: u64,
    },
}

/// The distance from one index to the next, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stride {
    /// A distance that the plan knows.
    Bytes(u64),
    /// The row stride that the caller gives for the operand.
    RowOf(Operand),
    /// The bytes of a number of rows of the operand.
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
    /// The address of the first element.
    pub source: Source,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Elements per dimension, innermost first. A dimension that is 0 on this rank is encoded as 1, over the workspace.
    pub extents: Vec<Extent>,
    /// Strides of dimensions 1, 2, …
    pub strides: Vec<Stride>,
    /// Elements of the box that one instruction moves, innermost first.
    pub box_elems: Vec<u32>,
    /// Whether the box has only the rows that [`rows_of_load`] returns for the call.
    pub box_of_call: bool,
}

/// The rows of one load: at most `most`, and at most the rows of the call rounded up to 8, where the swizzle repeats. TMA takes
/// longer to fill rows out of bounds with zeros than to load rows.
#[must_use]
pub fn rows_of_load(most: u32, rows: u64) -> u32 {
    u64::from(most).min(rows.max(1).next_multiple_of(8)) as u32
}

/// The contents of one kernel argument. The runtime fills them in.
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
    /// Addresses of an operand in symmetric memory on the ranks of this node, as this rank sees them: `[u64; MAX_RANKS]`, indexed
    /// by local rank, 0 beyond the last rank.
    OnPeers(Operand),
    /// Tensor maps over an operand in symmetric memory on the ranks of this node, indexed by local rank.
    TensorMapsOnPeers {
        /// The map on each rank.
        map: TensorMapSpec,
        /// The number of ranks of the node.
        count: usize,
    },
    /// The place of an operand in symmetric memory, u64. The place is the same on all ranks.
    SymmetricPlace(Operand),
    /// Addresses of the workspaces of the ranks of this node, as this rank sees them: `[u64; MAX_RANKS]`, indexed by local rank, 0
    /// beyond the last rank.
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
    /// The rows of the call, u32, unless the kernel reads them from memory.
    Rows,
    /// The address of a word with the rows of the call, or null.
    RowsAddress,
    /// The rows of a box that depends on the rows of the call, u32.
    BoxRows {
        /// The largest number of rows.
        most: u32,
    },
    /// The [`KernelEndpoint`] of this rank.
    Endpoint,
    /// The [`TraceBuffer`] of this rank.
    Trace,
}

impl ArgKind {
    /// The declaration of the argument in CUDA, with `name`.
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
            Self::Trace => format!("mk::TraceBuffer {name}"),
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
            Self::Trace => (size_of::<TraceBuffer>(), align_of::<TraceBuffer>()),
        }
    }
}

/// One kernel argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arg {
    /// The name of the argument in the kernel.
    pub name: &'static str,
    /// The contents of the argument.
    pub kind: ArgKind,
    /// The offset in the argument struct, in bytes.
    pub offset_bytes: usize,
}

/// The kernel's one parameter, a struct passed by value; the template prints it from this table and asserts each offset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

    /// The layout with one more argument at the end.
    #[must_use]
    pub(crate) fn with(self, name: &'static str, kind: ArgKind) -> Self {
        let kinds = self.args.into_iter().map(|arg| (arg.name, arg.kind));
        Self::new(kinds.chain([(name, kind)]).collect())
    }

    /// The alignment of the struct, in bytes.
    #[must_use]
    pub fn align(&self) -> usize {
        let aligns = self.args.iter().map(|arg| arg.kind.size_align().1);
        aligns.max().unwrap_or(1)
    }
}
