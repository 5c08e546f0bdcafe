//! `mkernel-gen`: checks, plans, renders and compiles mkernel kernels, ahead of time.

mod cli;
mod scan;

fn main() -> std::process::ExitCode {
    cli::main()
}
