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
/// /// gate_up of a layer under tensor parallelism. The batch size is given at run time.
/// #[fused_kernel(op = ag_gemm, world = 8, m = dynamic, n = 7168, k = 8192, b_layout = nk)]
/// pub struct GateUp;
///
/// let operator = GateUp::prepare(&communicator, 4096)?;
/// ```
///
/// The options `op`, `world` and the sizes of the operator are required. A size is an integer or `dynamic`. Other
/// values are words, strings, plain numbers, `true` or `false`. Names of constants cannot be used, because the macro
/// does not know their values.
///
/// Each error in an option is a compile error at that option, and all of them are reported at once. If all sizes are
/// known, this includes kernels that do not fit the default device, an H200.
///
/// The macro adds documentation to the struct and implements `mkernel::FusedKernel` for it. It also adds the function
/// `prepare`, which takes the sizes of the dynamic dimensions in the order of the tables below.
///
#[doc = include_str!(concat!(env!("OUT_DIR"), "/options.md"))]
#[proc_macro_attribute]
pub fn fused_kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into()).into()
}
