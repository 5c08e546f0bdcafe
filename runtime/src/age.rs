//! Brings an operator into the state that it has after many calls, for tests of counters that wrap around.

use crate::driver;
use crate::error::Error;
use crate::operator::Operator;
use mkernel_spec::abi::State;
use std::mem::{offset_of, size_of};

impl Operator {
    /// Changes this rank's workspace to what it would be if the `made` calls so far had been repeated until there were
    /// `calls` calls. Every rank must do the same, between two barriers. The counts of puts from other nodes are
    /// multiplied in the same way.
    ///
    /// # Errors
    /// Returns an error if a call of the driver fails.
    ///
    /// # Safety
    /// No rank may have a call under way. `made` must be even, and `calls` must be a multiple of it.
    #[doc(hidden)]
    pub unsafe fn pretend_calls(&self, made: u32, calls: u32) -> Result<(), Error> {
        // Copy engines may still be working after the end of the last call.
        let synchronized = self.context().synchronize();
        synchronized.map_err(|source| Error::Cuda {
            call: "cuCtxSynchronize",
            source,
        })?;
        let times = calls / made;
        let scale = |bytes: &mut [u8], at: usize| {
            if let Some(word) = bytes.get_mut(at..at + 4) {
                let value = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                word.copy_from_slice(&value.wrapping_mul(times).to_ne_bytes());
            }
        };
        for region in &self.plan().workspace.regions {
            let at = self.workspace() + region.offset_bytes;
            let words: Vec<usize> = match region.name {
                "state" => (offset_of!(State, epoch)..offset_of!(State, abort))
                    .chain(offset_of!(State, sent)..size_of::<State>())
                    .step_by(4)
                    .collect(),
                _ => match region.element.words_of_calls() {
                    Some((period, places)) => (0..region.bytes)
                        .step_by(period as usize)
                        .flat_map(|at| places.iter().map(move |place| (at + place) as usize))
                        .collect(),
                    None => continue,
                },
            };
            // SAFETY: the region is part of the workspace, which lives as long as this operator. The caller guarantees
            // that nothing else accesses it.
            unsafe {
                driver::edit_memory(at, region.bytes as usize, |bytes| {
                    words.into_iter().for_each(|word| scale(bytes, word));
                })?;
            }
        }
        if let Some(fabric) = self.fabric() {
            fabric.pretend(times)?;
        }
        Ok(())
    }
}
