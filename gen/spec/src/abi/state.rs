//! Structs in memory that the host and kernels share: reports, the host page, and the state of calls.

use super::limits::{MAX_BUCKETS, MAX_RANKS};

/// [`Report::aborted_by`] when the rank's own host set [`HostPage::abort`].
pub const HOST_ABORT: u32 = u32::MAX;

/// A bit of abort words and of [`Report::aborted_by`], which is set if the host has received a report that a rank failed. The
/// other bits hold the number of this rank.
pub const HEARD: u32 = 1 << 30;

/// A bit that is set beside [`HEARD`]: the rank is lost, not only its call.
pub const LOST: u32 = 1 << 29;

/// The bit that marks a hash of all lengths of a call, which ranks compare in place of a number of rows. The lengths are the
/// offsets of packed sequences, or the rows and the cached rows.
pub const LENGTHS_HASH: u32 = 1 << 31;

/// The report that a kernel leaves for the host when a wait has passed its deadline, or when operands of a call have wrong values.
/// `valid` is written last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// 1 once all other fields are written.
    pub valid: u32,
    /// The rank that waited.
    pub rank: u32,
    /// The CTA that waited.
    pub cta: u32,
    /// The [`Role`](super::Role) that waited.
    pub role: u32,
    /// The [`Wait`](super::Wait) that was awaited.
    pub wait: u32,
    /// The rank that should have signalled, if there is one.
    pub peer: u32,
    /// The index of the awaited flag, stage or buffer.
    pub index: u32,
    /// The value awaited.
    pub wanted: u32,
    /// The value last seen.
    pub seen: u32,
    /// The call, counted from 1.
    pub epoch: u32,
    /// 0: the deadline of this rank passed; 1 + r: rank r aborted; [`HEARD`] and r: rank r has failed, or is lost if
    /// [`LOST`] is set; [`HOST_ABORT`]: the host aborted.
    pub aborted_by: u32,
    /// The duration of the wait, ns.
    pub waited_ns: u64,
}

/// A page of pinned host memory per operator instance, mapped on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPage {
    /// Host → device: not 0 makes every wait of this rank end. 1, or [`HEARD`] and a rank.
    pub abort: u32,
    /// Device → host: the epoch whose copies the host is to enqueue (copy-engine transfer).
    pub doorbell: u32,
    /// Device → host: the address of the rows to copy; written before the doorbell.
    pub source: u64,
    /// Device → host: the row stride of the rows to copy.
    pub source_row_bytes: u64,
    /// Host → device: the epoch whose copies the host begins, unless they are withdrawn.
    pub claimed: u32,
    /// Host → device: the claimed epoch whose copies never run, neither now nor later.
    pub answered: u32,
    /// Device → host: not 0 after a kernel gave up its copies. The host then enqueues no more copies.
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
    /// The number of calls whose epoch all CTAs have read.
    pub epoch: u32,
    /// CTAs that have read the epoch, over all calls.
    pub readers: u32,
    /// Any rank → this rank: 1 + the rank that gave up, or [`HEARD`] and a rank; not 0 makes every wait of this rank end.
    pub abort: u32,
    /// Whether a report was claimed.
    pub reported: u32,
    /// The mark of the last call in which the report of wrong values was claimed.
    pub faulted: u32,
    /// Copy engines → this rank: by destination rank, the epoch whose copies have all left.
    pub sent: [u32; MAX_RANKS],
    /// By bucket: the number of calls that ran the bucket.
    pub bucket_epochs: [u32; MAX_BUCKETS],
}

/// The state that calls of all operators of a communicator on a GPU share, to ensure that one call at a time is under way. The
/// state lies in device memory. It is zero before the first call and is never reset.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// CTAs of all calls that are counted, modulo 2^32.
    pub due: u32,
    /// CTAs of all calls that have left, modulo 2^32. CTAs of large grids are counted with `due`.
    pub left: u32,
    /// The call whose first CTA entered last.
    pub last: u64,
    /// Whether this rank has given up a call. If so, this rank makes no later call.
    pub failed: u32,
    padding: [u32; 27],
    /// Counts like `due`, one for each of the first CTAs. A CTA adds the number of its call's CTAs to its count when it
    /// enters.
    pub entered: [u32; GATE_WORDS],
}

/// The number of CTAs that have a word of [`Gate::entered`] each.
pub const GATE_WORDS: usize = 256;
