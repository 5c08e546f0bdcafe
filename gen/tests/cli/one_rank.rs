//! Kernels of many ranks run on one rank, with the options that only many ranks need.

use super::*;

const GEMM: [&str; 3] = ["--m=40", "--n=72", "--k=136"];
const TENSOR: [&str; 2] = ["--m=9", "--n=264"];
const SEQUENCES: [&str; 5] = [
    "--batch=2",
    "--seq=70",
    "--heads=2",
    "--kv-heads=1",
    "--head-dim=64",
];
const LENGTHS: [&str; 5] = [
    "--batch=2",
    "--seq=..=70",
    "--heads=2",
    "--kv-heads=1",
    "--head-dim=64",
];
const TOKENS: [&str; 4] = ["--experts=6", "--top-k=3", "--max-tokens=9", "--hidden=72"];

#[test]
fn options_of_many_ranks_run_on_one() {
    for (kernel, sizes) in [
        (&["ag_gemm", "--transfer=copy_engine"][..], &GEMM[..]),
        (
            &["ag_gemm", "--comm-ctas=8", "--k-slices=2", "--symmetric-a"],
            &GEMM,
        ),
        (&["gemm_rs", "--shots=1", "--residual"], &GEMM),
        (&["gemm_rs", "--shots=2", "--round-tiles=4"], &GEMM),
        (&["gemm_ar", "--symmetric-result"], &GEMM),
        (
            &["gemm_ar", "--norm=rms", "--bias", "--activation=gelu"],
            &["--m=..=40", "--n=72", "--k=136"],
        ),
        (&["all_reduce", "--packet-kib=4"], &TENSOR),
        (
            &["all_reduce", "--protocol=ll", "--norm=rms", "--residual"],
            &TENSOR,
        ),
        (
            &["all_gather", "--protocol=ll", "--symmetric-result"],
            &TENSOR,
        ),
        (
            &["ring_attention", "--placement=zigzag", "--causal"],
            &SEQUENCES,
        ),
        (
            &["ring_attention", "--packed", "--causal", "--kv-slots=1"],
            &SEQUENCES,
        ),
        (&["ring_attention", "--cached=300", "--causal"], &LENGTHS),
        (
            &["dispatch_gemm", "--intermediate=64", "--put-tokens=4"],
            &TOKENS,
        ),
        (
            &["combine", "--put-tokens=4", "--puts-in-flight=2"],
            &TOKENS,
        ),
    ] {
        let machine = ["run", "--device=sim", "--sms=3", "--calls=2", "--seed=1"];
        let output = run(&[&machine[..], &["--world=1", "--op"], kernel, sizes].concat());
        assert_eq!(code(&output), 0, "{kernel:?}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains("correct: all"), "{kernel:?}: {text}");
    }
}
