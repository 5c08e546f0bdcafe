//! [`build`]: gets the machine code of a plan.

use crate::cubin::Cubin;
use crate::error::GenError;
use crate::kernel_template::KernelTemplate;
use crate::store::Store;
use mkernel_spec::KernelPlan;

/// Gets the machine code of `plan` from `store`, which renders and compiles the kernel if necessary.
///
/// # Errors
/// The errors of [`Store::get_or_render`].
pub fn build(plan: &KernelPlan, store: &Store) -> Result<Cubin, GenError> {
    store.get_or_render(&KernelTemplate::of(plan))
}
