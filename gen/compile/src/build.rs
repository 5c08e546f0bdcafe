//! [`build`]: the whole way from plan to machine code.

use crate::cubin::Cubin;
use crate::error::GenError;
use crate::render::render;
use crate::store::Store;
use mkernel_spec::KernelPlan;

/// Renders the kernel of `plan` and takes its machine code from `store`, which compiles it if it must.
///
/// # Errors
/// [`GenError::Render`], and those of [`Store::get_or_build`].
pub fn build(plan: &KernelPlan, store: &Store) -> Result<Cubin, GenError> {
    store.get_or_build(&render(plan)?)
}
