//! Jobs of `dispatch_gemm` and `combine`: a layer of experts.
//!
//! `dispatch_gemm` sends tokens to their experts and multiplies there. `combine` returns the weighted sums. A job makes
//! several calls with different tokens. The expected results are whole numbers, so all bits of the results are known.

mod buffers;
mod calls;
mod choices;
mod layer;
mod recovery;
mod reference;
mod router;
mod scales;

pub use layer::{Form, Layer, ResultBits, Routing};
pub use recovery::{InvalidCall, all_recover, invalid_calls};
pub use scales::quantised;
