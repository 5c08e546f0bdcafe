//! The page through which host and kernels of one operator talk, and what a failed wait leaves in it.

use crate::driver::Pinned;
use crate::error::Error;
use crate::operands::RawOperand;
use crate::routing::RoutingFault;
use cudarc::driver::CudaContext;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{self, HOST_ABORT, HostPage, LOST, Report};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An [`abi::HostPage`] in pinned memory.
pub(crate) struct Page(Pinned);

const PAGE_BYTES: usize = 4096;

/// What [`Report::valid`] holds: nothing yet is 0, …
const WRITTEN: u32 = 1;
/// … and while the host reads.
const TAKEN: u32 = 2;

/// Words behind the [`HostPage`] from which copy engines take flag values.
const FLAG_WORDS_OFFSET_BYTES: usize = 1024;

/// More than the calls whose copies can be on their way at once (2).
pub(crate) const FLAG_WORDS: u32 = 16;

impl Page {
    pub fn allocate(ctx: &Arc<CudaContext>) -> Result<Self, Error> {
        Pinned::allocate(ctx, PAGE_BYTES).map(Self)
    }

    pub fn device_address(&self) -> u64 {
        self.0.device_address()
    }

    /// Makes every wait of this rank's kernels end; they tell the other ranks.
    pub fn abort(&self) {
        self.raise(1);
    }

    /// The same, since a rank is lost; the other ranks of this node are told which.
    pub fn abort_without(&self, rank: u32) {
        self.raise(LOST | rank);
    }

    /// The first cause stays.
    fn raise(&self, cause: u32) {
        let word = self.0.word(offset_of!(HostPage, abort));
        let _ = word.compare_exchange(0, cause, Ordering::Release, Ordering::Relaxed);
    }

    pub fn is_aborted(&self) -> bool {
        self.0
            .word(offset_of!(HostPage, abort))
            .load(Ordering::Relaxed)
            != 0
    }

    /// Whether the kernels' waits have ended, or will at once: nobody keeps what is to be copied.
    pub fn is_over(&self) -> bool {
        let valid = offset_of!(HostPage, report) + offset_of!(Report, valid);
        self.is_aborted() || self.0.word(valid).load(Ordering::Acquire) != 0
    }

    /// The epoch whose copies are due.
    pub fn doorbell(&self) -> u32 {
        self.0
            .word(offset_of!(HostPage, doorbell))
            .load(Ordering::Acquire)
    }

    /// What the kernel that rang wants copied: its rows of A. Read after [`Self::doorbell`], which was written after it.
    pub fn copy_source(&self) -> RawOperand {
        let read = |offset| self.0.double_word(offset).load(Ordering::Relaxed);
        RawOperand {
            ptr: read(offset_of!(HostPage, source)),
            row_stride_elems: read(offset_of!(HostPage, source_row_bytes)) / Dtype::Bf16.bytes(),
        }
    }

    /// The first failed wait of this rank, if there is one.
    pub fn failure(&self) -> Option<Error> {
        let at = offset_of!(HostPage, report);
        let valid = self.0.word(at + offset_of!(Report, valid));
        (valid.load(Ordering::Acquire) != 0).then(|| timeout(&self.read(at)))
    }

    /// That a call met another one, if that is why it gave up.
    pub fn overlap(&self) -> Option<Error> {
        self.failure()
            .filter(|error| matches!(error, Error::Overlap { .. }))
    }

    /// What was wrong with the operands of a call, if that was not taken yet. Kernels write the next one when it has been.
    pub fn take_fault(&self) -> Option<Error> {
        let at = offset_of!(HostPage, fault);
        let valid = self.0.word(at + offset_of!(Report, valid));
        // One thread takes it, and is left alone meanwhile: kernels write only where there is 0.
        valid
            .compare_exchange(WRITTEN, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let report = self.read(at);
        valid.store(0, Ordering::Release);
        let (rank, fault) = RoutingFault::of(&report)?;
        let epoch = report.epoch;
        Some(Error::Routing { rank, epoch, fault })
    }

    /// The report at an offset, whose `valid` the caller has seen.
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

    /// Puts `epoch` where a copy engine can take it from; returns the address.
    pub fn flag_word(&self, epoch: u32) -> u64 {
        let offset = FLAG_WORDS_OFFSET_BYTES + 4 * (epoch % FLAG_WORDS) as usize;
        self.0.word(offset).store(epoch, Ordering::Release);
        self.0.device_address() + offset as u64
    }
}

/// The report of a failed wait as an error.
fn timeout(report: &Report) -> Error {
    let (aborted_by, lost) = match report.aborted_by {
        HOST_ABORT => return Error::Aborted { cause: None },
        0 => (None, None),
        by if by & LOST != 0 => (None, Some(by & !LOST)),
        by => (Some(by - 1), None),
    };
    if report.wait == abi::Wait::Overlap as u32 {
        return Error::Overlap {
            rank: report.rank,
            operator: report.peer,
            call: report.wanted,
            other_operator: report.index,
            other_call: report.seen,
        };
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
        epoch: report.epoch,
        aborted_by,
        lost,
        waited: Duration::from_nanos(report.waited_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: Report = Report {
        valid: 1,
        rank: 2,
        cta: 77,
        role: abi::Role::Load as u32,
        wait: abi::Wait::Chunk as u32,
        peer: 5,
        index: 11,
        wanted: 9,
        seen: 8,
        epoch: 9,
        aborted_by: 0,
        waited_ns: 30_000_000_000,
    };

    #[test]
    fn a_report_becomes_an_error_that_says_all() {
        let text = timeout(&REPORT).to_string();
        for part in [
            "rank 2 waited 30s",
            "chunk",
            "number 11",
            "from rank 5",
            "wanted 9",
            "saw 8",
            "role load",
            "CTA 77",
            "call 9",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn who_gave_up_first_is_told() {
        let text = timeout(&Report {
            aborted_by: 4,
            ..REPORT
        })
        .to_string();
        assert!(text.ends_with("until rank 3 gave up"), "{text}");
        let text = timeout(&Report {
            aborted_by: LOST | 11,
            ..REPORT
        })
        .to_string();
        assert!(text.ends_with("until rank 11 was lost"), "{text}");
        let error = timeout(&Report {
            aborted_by: HOST_ABORT,
            ..REPORT
        });
        assert!(matches!(error, Error::Aborted { cause: None }), "{error}");
    }

    #[test]
    fn faults_of_tokens_name_rank_and_value() {
        let fault = |wait, aborted_by| {
            let report = Report {
                wait: wait as u32,
                aborted_by,
                ..REPORT
            };
            let (rank, fault) = RoutingFault::of(&report).expect("a fault");
            let epoch = report.epoch;
            Error::Routing { rank, epoch, fault }.to_string()
        };
        let text = fault(abi::Wait::Expert, 4);
        for part in [
            "rank 3, call 9",
            "token 11",
            "expert 8",
            "choice 5",
            "0 to 8",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(fault(abi::Wait::ExpertTwice, 0).contains("rank 2, call 9: token 11"));
        assert!(fault(abi::Wait::Place, 0).contains("place 8 of 9"));
    }

    #[test]
    fn calls_that_overlap_are_named() {
        let text = timeout(&Report {
            wait: abi::Wait::Overlap as u32,
            ..REPORT
        })
        .to_string();
        for part in ["rank 2: call 9 of operator 5", "call 8 of operator 11"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn unknown_numbers_are_no_panic() {
        let odd = Report {
            role: 99,
            wait: 98,
            ..REPORT
        };
        assert!(timeout(&odd).to_string().contains("unknown role"));
        assert!(RoutingFault::of(&odd).is_none());
    }

    #[test]
    fn the_page_holds_all_that_is_in_it() {
        assert!(size_of::<HostPage>() <= FLAG_WORDS_OFFSET_BYTES);
        assert!(FLAG_WORDS_OFFSET_BYTES + 4 * FLAG_WORDS as usize <= PAGE_BYTES);
        for report in [offset_of!(HostPage, report), offset_of!(HostPage, fault)] {
            assert_eq!((report + offset_of!(Report, waited_ns)) % 8, 0);
        }
    }
}
