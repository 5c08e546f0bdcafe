//! The compile errors of `#[fused_kernel(...)]` and of calls of declared kernels, with one file for each message.
//!
//! The `.stderr` files hold the output of the pinned toolchain: `TRYBUILD=overwrite cargo test -p mkernel-macros --test ui`.
//! Declarations that compile are in the workspace's `tests/attribute.rs`.

#[test]
fn messages() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    cases.compile_fail("tests/calls/*.rs");
}
