//! `mkernel-gen`: checks, plans, renders and compiles mkernel kernels ahead of time, and runs them.

fn main() -> std::process::ExitCode {
    mkernel_gen::run(std::env::args_os()).into()
}
