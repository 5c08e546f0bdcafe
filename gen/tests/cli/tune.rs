//! `mkernel-gen tune` without GPUs: refusals. Measured choices in plans and in runs.

use super::*;

const GEMM: [&str; 6] = [
    "--op=gemm",
    "--world=1",
    "--m=1000",
    "--n=4096",
    "--k=4096",
    "--b-layout=nk",
];

#[test]
fn kernels_whose_choices_cannot_be_measured_are_refused_at_once() {
    let dir = TempDir::new().expect("temporary folder");
    let kernels = "[[kernel]]\nop = 'gemm_ar'\nworld = 2\nm = '..=64'\nn = 64\nk = 64\n\
                   [[kernel]]\nop = 'gemm'\nworld = 1\nm = 64\nn = 64\nk = 64\nstages = 3\n\
                   [[kernel]]\nop = 'combine'\nworld = 2\nexperts = 8\ntop_k = 2\nmax_tokens = 64\nhidden = 64\n";
    let kernels = file(&dir, "kernels.toml", kernels);
    let output = run(&["tune", "--device=gpu", &kernels.display().to_string()]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = stderr(&output);
    expect_parts(
        text,
        &[
            "each call gives its number of rows",
            "--m 256",
            "options fix choices that tune is to make",
            "the operator leaves no choices to the planner",
            "3 errors",
        ],
    );
}

#[test]
fn simulated_gpus_and_other_files_are_refused() {
    let output = run(&[&["tune", "--device=sim"], &GEMM[..]].concat());
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("times of simulated GPUs mean nothing"));
    let dir = TempDir::new().expect("temporary folder");
    let other = file(&dir, "kernels.toml", "[[kernel]]\nop = 'gemm'\n");
    let out = format!("--out={}", other.display());
    let output = run(&[&["tune", "--device=gpu", &out], &GEMM[..]].concat());
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("has no measured choices"), "{text}");
    assert!(text.contains("unknown field `kernel`"), "{text}");
}

/// The plan of the GEMM with this value of `MKERNEL_TUNED`.
fn plan(tuned: &Path, json: bool) -> Output {
    let dir = TempDir::new().expect("temporary folder");
    let mut command = mkernel_gen(&dir.path().join("cache"));
    command
        .args(json.then_some("--json"))
        .arg("plan")
        .args(GEMM);
    let output = command.env("MKERNEL_TUNED", tuned).output();
    output.expect("mkernel-gen starts")
}

#[test]
fn plans_show_measured_choices_and_times() {
    let dir = TempDir::new().expect("temporary folder");
    let table = "[[tuned]]\ngpu = 'NVIDIA H200'\nsm_count = 132\nlink_gb_s = 344.0\nus = 21.5\nuntuned_us = 25.0\n\
                 kernel = { op = 'gemm', world = 1, m = 1024, n = 4096, k = 4096, b_layout = 'nk', tuning = { tile_m = 64 } }\n";
    let tuned = file(&dir, "tuned.toml", table);
    let output = plan(&tuned, false);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("_t64x"), "{text}");
    let times =
        "21.5 µs, by choices of `mkernel-gen tune`; by the choices of the cost model 25.0 µs";
    assert!(text.contains(times), "{text}");
    let lines = json_lines(&plan(&tuned, true));
    assert_eq!(lines[0]["tuned"]["us"], 21.5, "{lines:?}");

    let untuned = plan(Path::new("none"), false);
    assert!(!stdout(&untuned).contains("mkernel-gen tune"));
    assert!(stdout(&untuned).contains("_t128x"));
    let absent = plan(&dir.path().join("absent.toml"), false);
    assert_eq!(code(&absent), 4, "{}", stderr(&absent));
    expect_parts(stderr(&absent), &["MKERNEL_TUNED is"]);
}
