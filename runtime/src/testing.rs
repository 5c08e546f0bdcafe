//! Tools for the tests of this crate and for work on its templates, with the feature `testing`. These tools are not part
//! of the stable interface.

use crate::communicator::Communicator;
use crate::driver;
use crate::error::Error;
use crate::operator::Operator;
use crate::prepare::Code;
use mkernel_spec::abi::State;
use mkernel_spec::plan::Workspace;
use mkernel_spec::{KernelConfig, Sizes};
use std::mem::{offset_of, size_of};

/// Prepares an operator as [`Communicator::prepare`] does, with a kernel whose CUDA text is changed by `edit`. This is for work
/// on templates, and for tests that inject mistakes. `edit` must make the same changes on every rank. The plan is not changed,
/// so the work of the host (arguments, memory, copies) must still fit the text.
///
/// # Errors
/// The errors of [`Communicator::prepare`]. If the text does not compile, the error is [`Error::Build`] with
/// the compiler's messages.
///
/// ```compile_fail,E0133
/// # use mkernel::{Communicator, KernelConfig, Shape, testing::prepare_edited};
/// # fn f(comm: &Communicator, config: &KernelConfig, shape: Shape) {
/// let operator = prepare_edited(comm, config, shape, |text| text.clear());
/// # }
/// ```
///
/// # Safety
/// The text is executed as it is, on simulated GPUs as code of this process. It must access only what the kernel's
/// arguments give it and what the unchanged text would access, and it must end.
pub unsafe fn prepare_edited(
    ranks: &Communicator,
    config: &KernelConfig,
    sizes: impl Into<Sizes>,
    edit: impl FnOnce(&mut String),
) -> Result<Operator, Error> {
    ranks.prepare_code((config, None), sizes.into(), |template| {
        let mut source = template.render()?;
        source.text = source.with_headers();
        edit(&mut source.text);
        Ok(Code::Text(source))
    })
}

/// Calls `body` with each item, in a thread of its own, and returns the values in the order of the items.
///
/// # Panics
/// A call of `body` panics.
pub fn in_threads<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    body: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |item| scope.spawn(|| body(item));
        let threads: Vec<_> = items.into_iter().map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|value| value.expect("no thread panics"))
            .collect()
    })
}

/// Sets the counters in this rank's workspace of an operator as if `calls` calls had been made instead of the `made` calls so
/// far, for tests of counters that wrap around. Every rank must make this change between two barriers. The counts of puts from
/// other nodes are multiplied by `calls / made`.
///
/// # Errors
/// Returns an error if a call of the driver fails.
///
/// # Safety
/// No rank may have a call under way. `made` must be even, and `calls` must be a multiple of it.
pub unsafe fn pretend_calls(operator: &Operator, made: u32, calls: u32) -> Result<(), Error> {
    // Copy engines may still be working after the end of the last call.
    let synchronized = operator.context().synchronize();
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
    for (_, region) in operator.plan().workspace_regions() {
        let at = operator.workspace() + region.offset_bytes;
        let words: Vec<usize> = match region.id() {
            Workspace::STATE => (offset_of!(State, epoch)..offset_of!(State, abort))
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
    if let Some(fabric) = operator.fabric() {
        fabric.pretend(times)?;
    }
    Ok(())
}
