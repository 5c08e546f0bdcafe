//! What rustc says about each mistake in `#[fused_kernel(...)]`: one file in `tests/ui` per message.
//!
//! The `.stderr` files are those of the pinned toolchain: `TRYBUILD=overwrite cargo test --test macro_ui`.

#[test]
fn messages() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/*.rs");
}
