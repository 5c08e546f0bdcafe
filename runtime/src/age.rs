//! An operator as it is after many calls: for tests of what happens when counts of calls wrap.

use crate::driver;
use crate::error::Error;
use crate::operator::Operator;
use cudarc::driver::{DriverError, result};
use mkernel_spec::abi::{FLAG_STRIDE_BYTES, State};
use std::mem::{offset_of, size_of};

/// Regions of the workspace whose words count alike in every call, or hold the call that wrote them last.
const COUNTERS: [&str; 13] = [
    "begun",
    "chunk_ready",
    "counted",
    "flags",
    "lists_ready",
    "pace",
    "packed",
    "partial_ready",
    "put_ready",
    "read",
    "result_ready",
    "routed",
    "split_ready",
];

/// Regions in which some words hold the mark of the call that wrote the words beside them: the period of the pattern in bytes,
/// and where in it the marks are. Unchanged, the marks of the first calls would come again just after call 2^32.
const MARKED: [(&str, usize, &[usize]); 3] = [
    ("list_positions", 8, &[0]),
    ("token_counts", 16, &[4, 12]),
    ("topk_packets", 16, &[4, 12]),
];

impl Operator {
    /// Makes this rank's workspace what it would be if the `made` calls so far had been repeated until there were `calls`.
    /// Every rank must do the same, between two barriers. Kernels of several nodes whose calls all make as many puts cannot
    /// take part: their proxies count those, too.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// No rank may have a call under way, `made` must be even, and `calls` a multiple of it.
    #[doc(hidden)]
    pub unsafe fn pretend_calls(&self, made: u32, calls: u32) -> Result<(), Error> {
        driver::bind(self.context())?;
        let times = calls / made;
        let scale = |bytes: &mut [u8], at: usize| {
            if let Some(word) = bytes.get_mut(at..at + 4) {
                let value = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                word.copy_from_slice(&value.wrapping_mul(times).to_ne_bytes());
            }
        };
        for region in &self.plan().workspace.regions {
            let at = self.workspace() + region.offset_bytes;
            let mut bytes = vec![0; region.bytes as usize];
            let words: Vec<usize> = match region.name {
                "state" => (offset_of!(State, epoch)..offset_of!(State, abort))
                    .chain(offset_of!(State, sent)..size_of::<State>())
                    .step_by(4)
                    .collect(),
                name if COUNTERS.contains(&name) => (0..bytes.len())
                    .step_by(FLAG_STRIDE_BYTES as usize)
                    .collect(),
                name => match MARKED.iter().find(|marked| marked.0 == name) {
                    Some((_, period, marks)) => (0..bytes.len())
                        .step_by(*period)
                        .flat_map(|at| marks.iter().map(move |mark| at + mark))
                        .collect(),
                    None => continue,
                },
            };
            let failed = |call| move |source: DriverError| Error::Cuda { call, source };
            // SAFETY: the region is part of the workspace, which lives as long as this operator does; by the caller, nobody
            // else accesses it.
            unsafe {
                result::memcpy_dtoh_sync(&mut bytes, at).map_err(failed("cuMemcpyDtoH"))?;
                words.into_iter().for_each(|word| scale(&mut bytes, word));
                result::memcpy_htod_sync(at, &bytes).map_err(failed("cuMemcpyHtoD"))?;
            }
        }
        Ok(())
    }
}
