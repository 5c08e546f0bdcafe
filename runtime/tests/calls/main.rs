//! The compile errors of calls of declared kernels, with one file in `ui` for each message.
//!
//! The `.stderr` files are those of the pinned toolchain:
//! `TRYBUILD=overwrite cargo test -p mkernel --test calls`.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/calls/ui/*.rs");
}
