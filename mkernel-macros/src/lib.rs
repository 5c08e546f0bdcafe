//! The `#[fused_kernel]` attribute. Use it through the crate `mkernel`, which re-exports it.

mod docs;
mod expand;
mod literal;

use proc_macro::TokenStream;

/// Declares a fused kernel on a unit struct.
///
/// ```text
/// use mkernel::fused_kernel;
///
/// /// gate_up of a layer under tensor parallelism: the batch is known at run time.
/// #[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 7168, k = 8192, b_layout = nk)]
/// pub struct GateUp;
///
/// let operator = GateUp::prepare(&communicator, 4096)?;
/// ```
///
/// Required are `op`, `world` and the sizes of the operator; a size is an integer or `dynamic`. Values are words, strings,
/// plain numbers, `true` or `false`: constants are not visible here.
///
/// Every mistake is a compile error at its own token, all of them at once; where all sizes are known that includes
/// what does not fit the default device, an H200. The struct gets documentation, an `mkernel::FusedKernel`
/// impl, and `prepare`, which takes the sizes of the dynamic dimensions, in the order in which the tables have them.
///
#[doc = include_str!(concat!(env!("OUT_DIR"), "/options.md"))]
#[proc_macro_attribute]
pub fn fused_kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into()).into()
}
