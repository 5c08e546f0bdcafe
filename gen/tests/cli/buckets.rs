//! Plans of kernels with buckets.

use super::{expect_parts, json_lines, run, stdout};

#[test]
fn a_plan_shows_its_buckets() {
    let kernel = ["--op=gemm_ar", "--world=8", "--n=7168", "--k=2048"];
    let output = run(&[&["plan", "--m=..=8192"], &kernel[..]].concat());
    for wanted in [
        "buckets        0..=32 rows  ",
        "..=8192 rows  ",
        "packets (..=32 rows) ",
    ] {
        let text = stdout(&output);
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    let collective = ["--op=all_reduce", "--world=8", "--n=8192"];
    let output = run(&[&["plan", "--m=..=8192"], &collective[..]].concat());
    expect_parts(
        stdout(&output),
        &["packets, one shot, ", "packets, two shots, ", "chunks of "],
    );
    let one = ["plan", "--m=..=8192", "--buckets=1"];
    let output = run(&[&one, &kernel[..]].concat());
    assert!(!stdout(&output).contains("rows  "), "{}", stdout(&output));
}

/// A kernel with buckets has the values of the body for the most rows, and the memory of the whole kernel.
#[test]
fn buckets_as_json() {
    let kernel = [
        "--op=gemm_ar",
        "--world=8",
        "--m=..=8192",
        "--n=1024",
        "--k=8192",
    ];
    let lines = json_lines(&run(&[&["plan", "--json"], &kernel[..]].concat()));
    let plan = &lines[0];
    assert_eq!(plan["shape"]["m"], 8192);
    let fewer = plan["fewer_rows"].as_array().expect("buckets");
    let ends = format!("_buckets{}", fewer.len() + 1);
    assert!(plan["id"].as_str().expect("an id").ends_with(&ends));
    for body in fewer {
        assert!(body["shape"]["m"].as_u64() < Some(8192));
        assert!(body["smem_bytes"].as_u64() <= plan["smem_bytes"].as_u64());
        assert!(body["workspace"]["bytes"].as_u64() <= plan["workspace"]["bytes"].as_u64());
    }
}
