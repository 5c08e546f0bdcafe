//! [`build`]: renders and compiles the kernel of a plan.

use crate::cubin::Cubin;
use crate::error::GenError;
use crate::render::render;
use crate::store::Store;
use mkernel_spec::KernelPlan;

/// Renders the kernel of `plan` and gets its machine code from `store`, which compiles the kernel if necessary.
///
/// # Errors
/// [`GenError::Render`], and the errors of [`Store::get_or_build`].
pub fn build(plan: &KernelPlan, store: &Store) -> Result<Cubin, GenError> {
    store.get_or_build(&render(plan)?)
}
