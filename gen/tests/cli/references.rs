//! Runs whose references need rules of their own.

use super::run::errors_of;
use super::*;

/// The reference allows for the rounding of a node's sum before it is sent.
#[test]
fn sums_of_several_nodes_are_right() {
    let kernel = ["--op=gemm_rs", "--world=4", "--nodes=2", "--output=fp32"];
    let sizes = ["--m=130", "--n=136", "--k=136", "--seed=0", "--calls=1"];
    let output = succeeds(&[&["run", "--device=sim"], &kernel[..], &sizes].concat());
    expect_parts(stdout(&output), &["correct: all"]);
}

/// The most rows of a call are rows that the ranks do not divide evenly, so some ranks have fewer rows than others or none.
/// Calls after the first have fewer rows.
#[test]
fn rows_that_the_ranks_do_not_divide_are_right() {
    for op in ["ag_gemm", "gemm_rs", "all_gather", "reduce_scatter"] {
        let sizes = ["--world=4", "--m=..=7", "--n=8", "--seed=1", "--calls=2"];
        let k: &[&str] = if op.contains("gemm") { &["--k=8"] } else { &[] };
        let machine = ["run", "--device=sim", "--sms=3", "--op", op];
        let output = run(&[&machine[..], &sizes, k].concat());
        assert_eq!(
            code(&output),
            0,
            "{op}: {}{}",
            stdout(&output),
            stderr(&output)
        );
        let text = stdout(&output);
        assert!(text.contains("correct: all"), "{op}: {text}");
    }
}

/// Norms agree with the reference, in all types, on one node and on several nodes.
#[test]
fn norms_are_right() {
    let kernel = ["--op=all_reduce", "--residual", "--norm=rms", "--eps=1e-5"];
    let sizes = ["--m=9", "--n=1032", "--seed=0", "--calls=2"];
    for ranks in [
        &["--world=2", "--bias"][..],
        &["--world=2", "--dtype=fp16"],
        &["--world=4", "--nodes=2"],
    ] {
        let output = run(&[&["run", "--device=sim"], &kernel[..], ranks, &sizes].concat());
        assert_eq!(code(&output), 0, "{ranks:?}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains("correct: all"), "{ranks:?}: {text}");
    }
    let gemm = ["--op=gemm_rs", "--bias", "--activation=silu", "--norm=rms"];
    let sizes_of_gemm = ["--m=9", "--n=264", "--k=136", "--seed=0", "--calls=2"];
    for given in [
        &["--world=2"][..],
        &["--world=2", "--op=gemm_ar", "--shots=2"],
    ] {
        let gemm = match given.len() {
            1 => &gemm[..],
            _ => &gemm[1..],
        };
        let output = succeeds(&[&["run", "--device=sim"], given, gemm, &sizes_of_gemm].concat());
        let text = stdout(&output);
        assert!(text.contains("correct: all"), "{text}");
    }
    let one_shot = ["--world=2", "--shots=1", "--output=fp32", "--eps=0"];
    let (code, text) =
        errors_of(&[&["--device=sim"], &gemm[..], &one_shot, &sizes_of_gemm].concat());
    assert_eq!(code, 1, "{text}");
    expect_parts(
        &text,
        &[
            "0 is not a normal number",
            "what is normalised has the elements of the residual",
            "use shots = 2",
        ],
    );
    let without = ["--op=all_reduce", "--world=2", "--residual", "--eps=0.1"];
    let (code, text) = errors_of(&[&["--device=sim"], &without[..], &sizes].concat());
    assert_eq!(code, 1, "{text}");
    expect_parts(&text, &["residual", "eps", "add norm = \"rms\""]);
}
