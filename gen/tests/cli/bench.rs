//! `mkernel-gen bench` without GPUs: reports of earlier results, and refusals.

use super::{code, expect_parts, file, json_lines, run, stderr, stdout, succeeds};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

/// A line of results.
pub fn measured(host: &str, m: u64, us: f64) -> Value {
    json!({
        "kind": "bench", "schema": 1, "host": host, "gpu": "NVIDIA H200", "label": format!("gemm_ar m={m} n=8192 k=2048"),
        "op": "gemm_ar", "dtype": "bf16", "ranks": 4, "nodes": 1, "sizes": {"m": m, "n": 8192, "k": 2048},
        "id": "gemm_ar_sm90a_g4", "checked": true, "rounds": 11, "calls": 20, "copies": 8,
        "us": us, "min_us": us * 0.9, "max_us": us * 1.2, "bound_us": us * 0.5, "bound_reason": "link", "estimate_us": us,
        "rivals": [{"name": "cuBLAS, then NCCL", "us": us * 2.0, "min_us": us * 1.9, "max_us": us * 2.1}],
        "notes": ["torch was not compared"],
    })
}

fn lines(all: &[Value]) -> String {
    all.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn files_of_several_hosts_become_one_report() {
    let dir = TempDir::new().expect("temporary folder");
    let first = [measured("node-1", 1, 15.0), measured("node-1", 256, 50.0)];
    let failed = json!({"ok": false, "label": "gemm_ar m=512", "problems": []});
    let first = file(
        &dir,
        "first.jsonl",
        &lines(&[&first[..], &[failed]].concat()),
    );
    let second = file(&dir, "second.jsonl", &lines(&[measured("node-2", 1, 14.0)]));
    let out = dir.path().join("new/merged");
    let args = |out: &str| {
        let from = [&first, &second].map(|path| format!("--from={}", path.display()));
        run(&["bench", &from[0], &from[1], out])
    };
    let output = args(&format!("--out={}", out.display()));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    expect_parts(text, &["30.0 (x 2.00)", "50 %"]);
    assert!(text.ends_with("note: torch was not compared\n"), "{text}");

    let html = fs::read_to_string(out.join("report.html")).expect("a report");
    assert_eq!(
        html.matches("<svg").count(),
        4,
        "two hosts with two plots each"
    );
    expect_parts(&html, &["of node-1", "of node-2"]);
    let merged = fs::read_to_string(out.join("results.jsonl")).expect("results");
    assert_eq!(merged.lines().count(), 3, "{merged}");

    // The results may be reported in the folder from which they are read.
    let again = format!("--from={}", out.join("results.jsonl").display());
    let output = run(&[
        "--json",
        "bench",
        &again,
        &format!("--out={}", out.display()),
    ]);
    assert_eq!(json_lines(&output), merged_values(&merged));
    let rewritten = fs::read_to_string(out.join("results.jsonl")).expect("results");
    assert_eq!(rewritten, merged);
}

fn merged_values(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn all_wrong_lines_are_named() {
    let dir = TempDir::new().expect("temporary folder");
    let mut newer = measured("node-1", 1, 15.0);
    newer["schema"] = 9.into();
    let mut never = measured("node-1", 1, 15.0);
    never["us"] = 0.into();
    let right = measured("node-1", 1, 15.0);
    let path = file(&dir, "r.jsonl", &lines(&[newer, right, never, json!([1])]));
    let empty = file(&dir, "empty.jsonl", "\n");
    let from = [&path, &empty].map(|path| format!("--from={}", path.display()));
    let output = run(&["bench", &from[0], &from[1]]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = stderr(&output);
    expect_parts(
        text,
        &[
            "r.jsonl:1: error: the line has schema 9",
            "r.jsonl:3: error: a time is not",
            "r.jsonl:4: error: the line has no schema",
            "empty.jsonl: error: no measurement",
            "help: ",
            "error: 4 errors in the results",
        ],
    );
    let output = run(&["bench", "--from=/absent/results.jsonl"]);
    assert_eq!(code(&output), 4, "{}", stderr(&output));
}

#[test]
fn simulated_gpus_are_refused_with_a_way_out() {
    let kernel = ["--op=all_reduce", "--world=2", "--m=16", "--n=1024"];
    let output = run(&[&["bench", "--device=sim"], &kernel[..]].concat());
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let text = stderr(&output);
    expect_parts(
        text,
        &["times of simulated GPUs mean nothing", "mkernel-gen run"],
    );
    // No host has so many GPUs.
    let many = [
        "--op=all_reduce",
        "--world=64",
        "--nodes=8",
        "--m=64",
        "--n=1024",
    ];
    let output = run(&[&["bench", "--device=auto"], &many[..]].concat());
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    let text = stderr(&output);
    expect_parts(text, &["the kernels need 64 GPUs, and this host has"]);
}

#[test]
fn kernels_are_wanted_unless_earlier_results_are_given() {
    let output = run(&["bench", "--device=gpu"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    expect_parts(stderr(&output), &["no kernel given"]);
    let output = run(&["bench", "--from=r.jsonl", "--op=gemm"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("remove the kernels, or --from"));
}

/// A dry run lists the kernels of a preset, for any number of ranks, on a host without GPUs.
#[test]
fn presets_are_listed_without_gpus() {
    for (preset, kernels) in [("mission", 38), ("seed", 25)] {
        let args = ["bench", "--preset", preset, "--dry-run", "--ranks=8"];
        let output = succeeds(&args);
        let lines: Vec<_> = stdout(&output).lines().collect();
        assert_eq!(lines.len(), 1 + kernels, "{lines:?}");
        assert!(lines[1..].iter().all(|line| line.contains("_sm90a_g8_")));
        let output = run(&[&["--json"], &args[..]].concat());
        let plans = json_lines(&output);
        assert_eq!(plans.len(), kernels);
        assert!(plans.iter().all(|plan| plan["kind"] == "plan"));
    }
    let output = run(&["bench", "--preset=seed", "--op=gemm"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("--preset has kernels of its own"));
    let output = run(&["bench", "--preset=all"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("mission"), "{}", stderr(&output));
}
