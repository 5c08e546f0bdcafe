//! The compile errors of `#[fused_kernel(...)]`, with one file in `tests/ui` for each message.
//!
//! The `.stderr` files are those of the pinned toolchain: `TRYBUILD=overwrite cargo test -p mkernel-macros --test ui`.
//! The files need no other crate than this one, so that little is built for them; what compiles is in the workspace's
//! `tests/attribute.rs`.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
