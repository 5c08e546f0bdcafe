//! The command line `mkernel-gen`: checks, plans, renders and compiles mkernel kernels ahead of time, and runs them.
//!
//! This library is for programs that have the command line in them, such as the Python package.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments of flags are help texts, in which brackets are not links"
)]

mod cli;
mod scan;

pub use cli::run;
