//! Turns `key = value` pairs into a checked [`KernelSpec`](mkernel_spec::KernelSpec), or into diagnostics with
//! positions.
//!
//! Kernels are declared in `#[fused_kernel(...)]`, in TOML files and by command-line flags. All three forms are keys and
//! values. [`Parser`] collects the pairs of one kernel, checks them, and reports every error at once, so that all
//! forms of declaration give the same messages. A span is the position that a reader attaches to errors: tokens, or the text
//! `file:line:column`.

mod attribute;
mod binder;
mod declaration;
mod parser;

pub use attribute::parse_attribute;
pub use declaration::{Declaration, Declared, SpannedDiagnostic};
pub use parser::Parser;
