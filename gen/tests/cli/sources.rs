//! Kernels of crates that are left out or refused, and flags without effect.

use super::*;

/// Kernels that macros declare are named, and structs that the attribute refuses are errors.
#[test]
fn kernels_of_macros_and_structs_with_fields_are_named() {
    let dir = TempDir::new().expect("temporary folder");
    std::fs::create_dir(dir.path().join("src")).expect("folder");
    let options = "op = ag_gemm, world = 2, m = 8, n = 8, k = 8";
    let by_macro =
        format!("macro_rules! make {{ () => {{ #[fused_kernel({options})] struct A; }} }}\n");
    let check = |structs: &str| {
        let text = format!("{by_macro}{structs}");
        std::fs::write(dir.path().join("src/lib.rs"), text).expect("file");
        run(&["check", "--crate", dir.path().to_str().expect("UTF-8")])
    };
    let output = check(&format!("#[fused_kernel({options})] struct B;\n"));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1, "{}", stdout(&output));
    let note = "src/lib.rs:1:1: kernels that this macro declares are left out";
    assert!(stderr(&output).contains(note), "{}", stderr(&output));
    for wrong in ["struct B { a: u32 }", "struct B<T>;"] {
        let output = check(&format!("#[fused_kernel({options})] {wrong}\n"));
        assert_eq!(code(&output), 1, "{}", stdout(&output));
        expect_parts(stderr(&output), &["unit struct"]);
    }
}

#[test]
fn sizes_that_no_kernel_takes_are_refused() {
    let dir = TempDir::new().expect("temporary folder");
    let text = "[[kernel]]\nop = 'ag_gemm'\nworld = 2\nm = 8\nn = 8\nk = 'dynamic'\n";
    let path = file(&dir, "k.toml", text).display().to_string();
    succeeds(&["check", &path, "--k=8"]);
    let output = run(&["check", &path, "--k=8", "--m=64", "--seq=9"]);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    expect_parts(
        stderr(&output),
        &[
            "--m: error: m has no effect: it is a constant of all kernels",
            "--seq: error: seq has no effect: no kernel has this size",
            "2 errors",
        ],
    );
}
