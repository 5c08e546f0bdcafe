//! What host and device must agree on byte by byte. Written once here; the rendered kernel prints or asserts it.

mod codes;
mod operand;
mod structs;

use crate::config::Dtype;
use crate::fabric::CommandRing;
use serde::Serialize;

pub use codes::{Role, Wait, codes_header};
pub use operand::{Extent, Operand, OperandSpec};
pub(crate) use structs::layout;
pub use structs::{StructLayout, shared_structs};

/// The largest world of one node; arrays over ranks have this length.
pub const MAX_RANKS: usize = 8;

/// Bytes from one flag to the next: a line of L2, so that who polls one flag doesn't hold up the writer of another.
pub const FLAG_STRIDE_BYTES: u64 = 128;

/// Where a tensor map or pointer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// At the operand's first element.
    Operand(Operand),
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
    /// As many of those rows.
    RowsOf {
        /// Whose.
        operand: Operand,
        /// How many on this rank.
        rows: Extent,
    },
}

/// A tensor map (`CUtensorMap`), 128-byte swizzle, zero fill out of bounds, 256-byte L2 promotion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorMapSpec {
    /// Where it starts.
    pub source: Source,
    /// What its elements are.
    pub dtype: Dtype,
    /// Elements per dimension, innermost first. A dimension that is 0 on this rank is encoded as 1, over the workspace.
    pub extents: Vec<Extent>,
    /// Strides of dimensions 1, 2, …
    pub strides: Vec<Stride>,
    /// Elements of the box that one instruction moves, innermost first.
    pub box_elems: Vec<u32>,
}

/// What one kernel argument holds; the runtime fills it in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgKind {
    /// A tensor map, 128 bytes, aligned to 128.
    TensorMap(TensorMapSpec),
    /// The operand's address, …
    Pointer(Operand),
    /// … of one that is written though it is usually read.
    Result(Operand),
    /// The operand's row stride in bytes, u64.
    RowStrideBytes(Operand),
    /// Addresses of the workspaces of this node's ranks as this rank sees them, `[u64; MAX_RANKS]`, by their number on
    /// the node; 0 beyond the last.
    Workspaces,
    /// Address of the [`HostPage`].
    HostPage,
    /// Address of the [`Gate`].
    Gate,
    /// The operator's number in its communicator, from 1 on, u32.
    OperatorNumber,
    /// The deadline of every wait, ns, u64.
    DeadlineNs,
    /// This rank, u32.
    Rank,
    /// The [`CommandRing`] of this rank.
    Ring,
    /// Address of the arrival words in host memory, by peer and channel, [`FLAG_STRIDE_BYTES`] apart.
    Arrivals,
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
            Self::RowStrideBytes(_) | Self::DeadlineNs => format!("mk::u64 {name}"),
            Self::Workspaces => format!("mk::u8* {name}[mk::kMaxRanks]"),
            Self::HostPage => format!("mk::HostPage* {name}"),
            Self::Gate => format!("mk::Gate* {name}"),
            Self::Rank | Self::OperatorNumber => format!("mk::u32 {name}"),
            Self::Ring => format!("mk::CommandRing {name}"),
            Self::Arrivals => format!("const mk::u8* {name}"),
        }
    }

    const fn size_align(&self) -> (usize, usize) {
        match self {
            Self::TensorMap(_) => (128, 128),
            Self::Pointer(_)
            | Self::Result(_)
            | Self::RowStrideBytes(_)
            | Self::HostPage
            | Self::Gate
            | Self::DeadlineNs
            | Self::Arrivals => (8, 8),
            Self::Workspaces => (8 * MAX_RANKS, 8),
            Self::Rank | Self::OperatorNumber => (4, 4),
            Self::Ring => (size_of::<CommandRing>(), align_of::<CommandRing>()),
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
}

/// [`Report::aborted_by`] when the rank's own host set [`HostPage::abort`].
pub const HOST_ABORT: u32 = u32::MAX;

/// In abort words and [`Report::aborted_by`]: beside this bit, a rank that is lost.
pub const LOST: u32 = 1 << 30;

/// What a wait that passed its deadline leaves for the host, or a call whose operands have wrong values. `valid` is
/// written last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// 1 once the rest is written.
    pub valid: u32,
    /// The rank that waited.
    pub rank: u32,
    /// Its CTA.
    pub cta: u32,
    /// Who waited: a [`Role`].
    pub role: u32,
    /// For what: a [`Wait`].
    pub wait: u32,
    /// The rank that should have come, where there is one.
    pub peer: u32,
    /// Which flag, stage or buffer.
    pub index: u32,
    /// The value awaited.
    pub wanted: u32,
    /// The value last seen.
    pub seen: u32,
    /// The call, counted from 1.
    pub epoch: u32,
    /// 0: its own deadline passed; 1 + r: rank r aborted; [`LOST`] and r: rank r is lost; [`HOST_ABORT`]:
    /// the host aborted.
    pub aborted_by: u32,
    /// How long it waited.
    pub waited_ns: u64,
}

/// A page of pinned host memory per operator instance, mapped on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPage {
    /// Host → device: not 0 makes every wait of this rank end. 1, or [`LOST`] and a rank.
    pub abort: u32,
    /// Device → host: the epoch whose copies the host is to enqueue (copy-engine transfer).
    pub doorbell: u32,
    /// Device → host: the address of the rows to copy; written before the doorbell.
    pub source: u64,
    /// Device → host: their row stride.
    pub source_row_bytes: u64,
    /// Host → device: the epoch whose copies the host begins, unless they are withdrawn.
    pub claimed: u32,
    /// Host → device: the claimed epoch of which no copy runs or ever will.
    pub answered: u32,
    /// Device → host: not 0 after a kernel gave up its copies; none are wanted from then on.
    pub withdrawn: u32,
    /// Device → host: the first wait that failed.
    pub report: Report,
    /// Device → host: what is wrong with the values of a call's operands. `valid` is 0 again when the host has read it.
    pub fault: Report,
}

/// The first bytes of each rank's workspace. Zero before the first call; nothing resets it after.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Calls of which all CTAs know.
    pub epoch: u32,
    /// CTAs that have read the epoch, over all calls.
    pub readers: u32,
    /// Any rank → this rank: 1 + the rank that gave up, or [`LOST`] and a rank; not 0 makes every wait of this rank end.
    pub abort: u32,
    /// Whether a report was claimed.
    pub reported: u32,
    /// The mark of the last call in which the report of wrong values was claimed.
    pub faulted: u32,
    /// Copy engines → this rank: by destination rank, the epoch whose copies have all left.
    pub sent: [u32; MAX_RANKS],
}

/// What calls of all operators of a communicator on a GPU have in common: that one at a time is under way. In device memory,
/// zero before the first call; nothing resets it after.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// CTAs of all calls that are counted, modulo 2^32.
    pub due: u32,
    /// Which call's first CTA has entered last.
    pub last: u64,
    padding: [u32; 28],
    /// As `due`, with a call's CTAs added as soon as the one that has the word enters.
    pub entered: [u32; GATE_WORDS],
}

/// CTAs that have a word of [`Gate::entered`] of their own.
pub const GATE_WORDS: usize = 256;
