//! The `#[fused_kernel]` attribute. Use it through the crate `mkernel`, which re-exports it.

mod calls;
mod docs;
mod expand;
mod handle;
mod literal;

use proc_macro::TokenStream;

/// Declares a fused kernel on a unit struct.
///
/// ```text
/// use mkernel::fused_kernel;
///
/// /// gate_up of a layer under tensor parallelism. The batch size is given at run time.
/// #[fused_kernel(op = ag_gemm, m = dynamic, n = 7168, k = 8192, b_layout = nk)]
/// pub struct GateUp;
///
/// let gate_up = GateUp::prepare(&ranks, 4096)?;
/// gate_up.launch(&stream, GateUpOperands { a: &x, b: &weights, c: &mut y })?;
/// ```
///
/// The options `op` and the sizes of the operator are required. A size is an integer, `dynamic`, or `"..=8192"`. With
/// `dynamic`, `prepare` takes the size. `"..=8192"` fixes the largest number of rows, and each call gives its number of
/// rows. Only `m` and `seq` may have this form. Other values are words, strings, plain numbers, `true` or `false`. Names
/// of constants cannot be used, because the macro does not know their values. The communicator determines the ranks and
/// nodes, unless the options `world` and `nodes` fix their numbers.
///
/// Each error in an option is a compile error at that option, and all errors are reported at once. If all sizes and
/// `world` are known, this includes kernels that do not fit the default device, an H200.
///
/// The macro makes the struct a handle of the prepared operator:
///
/// - `prepare` takes the communicator and the sizes of the dynamic dimensions: a number for one dimension, or a struct such as
///   `GateUpSizes { m, k }` for several.
/// - `prepare_with` also takes a function, which sets options that are known only at run time. Operands must keep the types
///   of the declaration. `TryFrom<Operator>` makes a handle of an operator that was prepared in another way.
/// - `launch` takes a stream and a struct with the operands by name. An operand that is missing, or whose element type
///   or mutability is wrong, is a compile error. Sizes are checked at the call.
/// - `call` makes the call of `launch` without enqueuing the call, for graphs.
/// - The trait `mkernel::FusedKernel` gives access to the operator.
///
#[doc = include_str!(concat!(env!("OUT_DIR"), "/options.md"))]
#[proc_macro_attribute]
pub fn fused_kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into()).into()
}
