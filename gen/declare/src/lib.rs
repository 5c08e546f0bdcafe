//! From `key = value` to a checked [`KernelSpec`](mkernel_spec::KernelSpec), with a place for every mistake.
//!
//! `#[fused_kernel(...)]`, the scan of a user's crate, TOML files and flags all declare kernels as keys and values.
//! [`Draft`] turns them into a spec and reports every mistake at once, so that all doors say the same;
//! a place is whatever the door points with: tokens, or `file:line:column`.

mod attribute;
mod declaration;
mod draft;
mod reading;
mod value;

pub use attribute::parse_attribute;
pub use declaration::{Declaration, Declared, Mistake};
pub use draft::Draft;
pub use value::Value;
