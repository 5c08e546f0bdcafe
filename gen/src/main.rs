//! `mkernel-gen`: checks, plans, renders and compiles mkernel kernels ahead of time, and runs them.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments of flags are help texts, in which brackets are not links"
)]

mod cli;
mod scan;

fn main() -> std::process::ExitCode {
    cli::main()
}
