//! `trace` on the GPUs of this host:
//!
//! ```sh
//! cargo test --release -p mkernel-gen --test cli -- --ignored --nocapture on_gpus
//! ```

use super::trace::{check_file, check_summary, number};
use super::*;
use std::fs;

/// A larger kernel of each operator.
const KERNELS: [(&str, &[&str]); 14] = [
    (
        "ag_gemm",
        &["--m=4096", "--n=4096", "--k=4096", "--b-layout=nk"],
    ),
    (
        "gemm_rs",
        &["--m=4096", "--n=4096", "--k=4096", "--b-layout=nk"],
    ),
    (
        "gemm_ar",
        &["--m=4096", "--n=4096", "--k=4096", "--b-layout=nk"],
    ),
    (
        "gemm",
        &["--m=4096", "--n=4096", "--k=4096", "--b-layout=nk"],
    ),
    (
        "ring_attention",
        &[
            "--batch=1",
            "--seq=8192",
            "--heads=16",
            "--kv-heads=4",
            "--head-dim=128",
        ],
    ),
    (
        "dispatch_gemm",
        &[
            "--experts=64",
            "--top-k=4",
            "--max-tokens=1024",
            "--max-rows=8192",
            "--hidden=2048",
            "--intermediate=1024",
            "--b-layout=nk",
        ],
    ),
    (
        "moe_layer",
        &[
            "--experts=64",
            "--top-k=4",
            "--max-tokens=1024",
            "--hidden=2048",
            "--intermediate=768",
            "--b-layout=nk",
            "--swiglu=true",
        ],
    ),
    (
        "gemm_combine",
        &[
            "--experts=64",
            "--top-k=4",
            "--max-tokens=1024",
            "--hidden=2048",
            "--intermediate=768",
            "--b-layout=nk",
        ],
    ),
    (
        "combine",
        &[
            "--experts=64",
            "--top-k=4",
            "--max-tokens=1024",
            "--max-rows=8192",
            "--hidden=2048",
        ],
    ),
    ("all_reduce", &["--m=4096", "--n=4096"]),
    ("all_gather", &["--m=4096", "--n=4096"]),
    ("reduce_scatter", &["--m=4096", "--n=4096"]),
    ("broadcast", &["--m=4096", "--n=4096"]),
    ("all_to_all", &["--m=4096", "--n=4096"]),
];

/// Runs a command with a kernel on GPUs, and returns its line.
fn on_gpus(command: &[&str], world: usize, (op, kernel): (&str, &[&str])) -> Value {
    let world = if op == "gemm" { 1 } else { world };
    let (op_flag, world) = (format!("--op={op}"), format!("--world={world}"));
    let flags = ["--json", &op_flag, &world, "--device=gpu"];
    let output = run(&[command, &flags, kernel].concat());
    let text = format!("{op}: {}{}", stdout(&output), stderr(&output));
    assert_eq!(code(&output), 0, "{text}");
    json_lines(&output).remove(0)
}

/// Prints the time of a call that is traced as a multiple of the time of a call that is not, by two measurements of each in
/// turns.
#[test]
#[ignore = "needs GPUs"]
fn each_operator_is_traced_on_gpus() {
    let gpus = mkernel::device_count().expect("GPUs");
    let world = [8, 4, 2].into_iter().find(|world| *world <= gpus);
    let world = world.expect("two GPUs");
    let dir = TempDir::new().expect("temporary folder");
    let path = dir.path().join("trace.json");
    let out = format!("--out={}", path.display());
    for kernel in KERNELS {
        let op = kernel.0;
        let line = on_gpus(&["trace", "--events=8192", &out], world, kernel);
        check_summary(op, &line);
        let file = fs::read_to_string(&path).expect("a file");
        let file: Value = serde_json::from_str(&file).expect("JSON");
        let ranks = line["ranks"].as_array().expect("ranks").len();
        let arrows = check_file(op, ranks, &file);
        let time = |traced| {
            let bench = ["bench", traced, "--no-rivals", "--no-check"];
            number(&on_gpus(&bench, world, kernel)["us"])
        };
        let [plain, traced] = ["--traced=false", "--traced=true"];
        let times = [plain, traced, plain, traced].map(time);
        let ratio = (times[1] + times[3]) / (times[0] + times[2]);
        let error = &line["clock_error_us"];
        println!(
            "{op}: {:.1} µs, traced {ratio:.3} times as long; {arrows} arrows; clocks to {error} µs",
            times[0]
        );
    }
}
