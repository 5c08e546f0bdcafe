//! The page of pinned memory through which the host and the kernels of one operator communicate, and the reports of
//! failed waits in it.

use crate::driver::Pinned;
use crate::error::{Error, OperatorId, RoutingFault, RowOfTwoTokens};
use crate::operator_names::OperatorNames;
use crate::tensors::SymmetricPlace;
use cudarc::driver::CudaContext;
use mkernel_spec::abi::{self, HEARD, HOST_ABORT, HostPage, LENGTHS_HASH, LOST, Report};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// The reason why the host ends the waits of a rank's kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AbortCause {
    /// The program has aborted, or this rank has failed.
    Host,
    /// A call of this rank has failed.
    Failed(u32),
    /// The process or the thread of this rank has ended.
    Lost(u32),
}

/// The rows of A that copy engines copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySource {
    /// The address of the first element.
    pub address: u64,
    /// The distance from one row to the next.
    pub row_stride_bytes: u64,
}

/// An [`abi::HostPage`] in pinned memory.
pub(crate) struct Page(Pinned);

const PAGE_BYTES: usize = 4096;

/// The value of [`Report::valid`] after a kernel has written the report. The value before is 0.
const WRITTEN: u32 = 1;
/// The value of [`Report::valid`] while the host reads the report.
const TAKEN: u32 = 2;

/// The offset of the words, after the [`HostPage`], from which copy engines copy flag values.
const FLAG_WORDS_OFFSET_BYTES: usize = 1024;

/// The number of these words. The copies of at most 2 calls are under way at once, so a word is not reused too early.
pub(crate) const FLAG_WORDS: u32 = 16;

impl Page {
    pub fn allocate(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        Pinned::allocate(ctx, PAGE_BYTES).map(Self)
    }

    pub fn device_address(&self) -> u64 {
        self.0.device_address()
    }

    /// Ends all waits of this rank's kernels, unless they have been ended already. The kernels also abort the other ranks of
    /// the node, whose reports name the rank of the cause.
    pub fn abort(&self, cause: AbortCause) {
        let value = match cause {
            AbortCause::Host => 1,
            AbortCause::Failed(rank) => HEARD | rank,
            AbortCause::Lost(rank) => HEARD | LOST | rank,
        };
        let word = self.0.word(offset_of!(HostPage, abort));
        let _ = word.compare_exchange(0, value, Ordering::Release, Ordering::Relaxed);
    }

    pub fn is_aborted(&self) -> bool {
        self.0
            .word(offset_of!(HostPage, abort))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Returns the epoch whose copies the kernel has requested.
    pub fn doorbell(&self) -> u32 {
        self.0
            .word(offset_of!(HostPage, doorbell))
            .load(Ordering::Acquire)
    }

    /// Announces the copies of `epoch`. Returns false if the kernel has withdrawn its request. In that case the kernel may have
    /// ended, so no copy may be made.
    ///
    /// If this returns true, the kernel runs until all of its copies have been read, or until [`Self::answer`].
    pub fn claim(&self, epoch: u32) -> bool {
        self.0
            .word(offset_of!(HostPage, claimed))
            .store(epoch, Ordering::Relaxed);
        // The kernel runs the mirror image of this code: it writes its own word, fences, and reads the other word. At least one
        // of the two sides sees the write of the other side.
        fence(Ordering::SeqCst);
        !self.is_withdrawn()
    }

    /// Returns whether a kernel has withdrawn its request after its wait was aborted.
    pub fn is_withdrawn(&self) -> bool {
        self.0
            .word(offset_of!(HostPage, withdrawn))
            .load(Ordering::Acquire)
            != 0
    }

    /// Reports that no copy of `epoch` is running and that none will be started.
    pub fn answer(&self, epoch: u32) {
        self.0
            .word(offset_of!(HostPage, answered))
            .store(epoch, Ordering::Release);
    }

    /// Returns the epoch of the last answer.
    pub fn answered(&self) -> u32 {
        self.0
            .word(offset_of!(HostPage, answered))
            .load(Ordering::Relaxed)
    }

    /// Returns the rows of A that the kernel wants copied. This must be read after [`Self::claim`]: before the claim, a kernel
    /// may withdraw its request and another kernel may make one.
    pub fn copy_source(&self) -> CopySource {
        let read = |offset| self.0.double_word(offset).load(Ordering::Relaxed);
        CopySource {
            address: read(offset_of!(HostPage, source)),
            row_stride_bytes: read(offset_of!(HostPage, source_row_bytes)),
        }
    }

    /// Returns the first failed wait of this rank in a call of `operator`, if there is one.
    pub fn failure(&self, operator: &OperatorId, others: &OperatorNames) -> Option<Error> {
        let at = offset_of!(HostPage, report);
        let valid = self.0.word(at + offset_of!(Report, valid));
        (valid.load(Ordering::Acquire) != 0).then(|| timeout(&self.read(at), operator, others))
    }

    /// Returns the error of a call that failed because it overlapped with another call, if there is one.
    pub fn overlap(&self, operator: &OperatorId, others: &OperatorNames) -> Option<Error> {
        self.failure(operator, others)
            .filter(|error| matches!(error, Error::Overlap { .. }))
    }

    /// Takes the error of a call with invalid operand values, if there is a new error. Kernels can write the next error after
    /// that.
    pub fn take_fault(&self, operator: &OperatorId) -> Option<Error> {
        let at = offset_of!(HostPage, fault);
        let valid = self.0.word(at + offset_of!(Report, valid));
        // Only one thread takes the report. Kernels do not overwrite the report while it is read, since they write only where
        // `valid` is 0.
        valid
            .compare_exchange(WRITTEN, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let report = self.read(at);
        valid.store(0, Ordering::Release);
        let (rank, fault) = RoutingFault::of(&report)?;
        Some(Error::Routing {
            rank,
            operator: operator.clone(),
            epoch: report.epoch,
            fault,
        })
    }

    /// Reads the report at an offset. The caller has seen its `valid` word set.
    fn read(&self, at: usize) -> Report {
        let word = |field: usize| self.0.word(at + field);
        let read = |field: usize| word(field).load(Ordering::Relaxed);
        let waited_ns = at + offset_of!(Report, waited_ns);
        Report {
            valid: WRITTEN,
            rank: read(offset_of!(Report, rank)),
            cta: read(offset_of!(Report, cta)),
            role: read(offset_of!(Report, role)),
            wait: read(offset_of!(Report, wait)),
            peer: read(offset_of!(Report, peer)),
            index: read(offset_of!(Report, index)),
            wanted: read(offset_of!(Report, wanted)),
            seen: read(offset_of!(Report, seen)),
            epoch: read(offset_of!(Report, epoch)),
            aborted_by: read(offset_of!(Report, aborted_by)),
            waited_ns: self.0.double_word(waited_ns).load(Ordering::Relaxed),
        }
    }

    /// Writes `epoch` to a word from which a copy engine can copy it, and returns the address of the word.
    pub fn flag_word(&self, epoch: u32) -> u64 {
        let offset = FLAG_WORDS_OFFSET_BYTES + 4 * (epoch % FLAG_WORDS) as usize;
        self.0.word(offset).store(epoch, Ordering::Release);
        self.0.device_address() + offset as u64
    }
}

/// Converts the report of a failed wait into an error.
fn timeout(report: &Report, operator: &OperatorId, others: &OperatorNames) -> Error {
    let (aborted_by, lost) = match report.aborted_by {
        HOST_ABORT => return Error::Aborted { cause: None },
        0 => (None, None),
        by if by & (HEARD | LOST) == HEARD | LOST => (None, Some(by & !(HEARD | LOST))),
        by if by & HEARD != 0 => (Some(by & !HEARD), None),
        by => (Some(by - 1), None),
    };
    if report.wait == abi::Wait::Overlap as u32 {
        return Error::Overlap {
            rank: report.rank,
            operator: operator.clone(),
            call: report.wanted,
            other_operator: others.find(report.index),
            other_call: report.seen,
        };
    }
    if let Some(error) = mismatch(report, operator) {
        return error;
    }
    Error::Timeout {
        rank: report.rank,
        cta: report.cta,
        role: abi::Role::describe(report.role),
        awaited: abi::Wait::describe(report.wait),
        peer: report.peer,
        index: report.index,
        wanted: report.wanted,
        seen: report.seen,
        operator: operator.clone(),
        epoch: report.epoch,
        calls: Arc::default(),
        aborted_by,
        lost,
        waited: Duration::from_nanos(report.waited_ns),
    }
}

/// Returns the error for operands of several ranks that do not fit together, or `None` if the report has no such fault.
fn mismatch(report: &Report, operator: &OperatorId) -> Option<Error> {
    if report.wait == abi::Wait::RowTwice as u32 {
        return Some(Error::RowOfTwoTokens(RowOfTwoTokens {
            rank: report.wanted,
            operator: operator.clone(),
            call: report.epoch,
            token: report.index,
            choice: report.peer,
            row_index: report.seen as i32,
        }));
    }
    let has_offsets = report.wanted & LENGTHS_HASH != 0;
    if report.wait == abi::Wait::SameRows as u32 && has_offsets {
        return Some(Error::DifferentOffsets {
            rank: report.rank,
            peer: report.peer,
            call: report.epoch,
            operator: operator.clone(),
        });
    }
    if report.wait == abi::Wait::SameRows as u32 {
        return Some(Error::DifferentRows {
            rank: report.rank,
            rows: report.wanted,
            peer: report.peer,
            peer_rows: report.seen,
            call: report.epoch,
            operator: operator.clone(),
        });
    }
    if report.wait == abi::Wait::SamePlace as u32 {
        let number = u64::from(report.wanted) << 32 | u64::from(report.seen);
        let (extent, offset_bytes) = SymmetricPlace::parts_of(number);
        return Some(Error::DifferentPlaces {
            rank: report.rank,
            peer: report.peer,
            extent,
            offset_bytes,
            call: report.epoch,
            operator: operator.clone(),
        });
    }
    None
}

#[cfg(test)]
mod tests;
