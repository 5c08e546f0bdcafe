//! Runs of kernels; on simulated GPUs if the host has no GPU.

use super::*;

/// A kernel that is small enough for a debug build of the simulator.
const TINY: [&str; 8] = [
    "run",
    "--device=sim",
    "--ranks=2",
    "--m=128",
    "--n=64",
    "--k=64",
    "--sms=2",
    "--calls=2",
];

#[test]
fn kernels_of_several_nodes_run_over_a_bad_network() {
    let gemm = &["--b-layout=nk", "--m=128", "--n=64", "--k=64"][..];
    let attention = &[
        "--batch=1",
        "--seq=260",
        "--heads=2",
        "--kv-heads=1",
        "--head-dim=64",
        "--causal",
    ];
    for (op, sizes) in [
        ("ag_gemm", gemm),
        ("gemm_rs", gemm),
        ("gemm_ar", gemm),
        ("ring_attention", attention),
    ] {
        let kernel = ["--op", op, "--world=4", "--nodes=2"];
        let network = ["--jitter-us=50", "--loss=0.05", "--seed=3"];
        let machine = ["run", "--device=sim", "--sms=3", "--calls=2"];
        let output = succeeds(&[&machine[..], &kernel, &network, sizes].concat());
        let text = stdout(&output);
        expect_parts(text, &["4 ranks on 2 nodes", "correct: all"]);
    }
    let kernel = ["--op=gemm", "--world=4", "--nodes=2"];
    let alone = [&["run", "--device=sim", "--sms=3"], &kernel[..], gemm].concat();
    succeeds(&alone);
    let output = run(&[&alone[..], &["--loss=0.05"]].concat());
    expect_parts(stderr(&output), &["no kernel here does"]);
    let kernel = ["--op=dispatch_gemm", "--world=4", "--nodes=2"];
    let experts = ["--experts=8", "--top-k=2", "--max-tokens=12"];
    let sizes = ["--hidden=72", "--intermediate=64", "--sms=4", "--calls=3"];
    let network = ["--jitter-us=50", "--loss=0.05", "--seed=3"];
    let output = succeeds(
        &[
            &["run", "--device=sim"],
            &kernel[..],
            &experts,
            &sizes,
            &network,
        ]
        .concat(),
    );
    expect_parts(stdout(&output), &["correct: all"]);
    let (code, text) = errors_of(&["--loss=0.1"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("add --nodes 2"), "{text}");
}

pub fn errors_of(args: &[&str]) -> (i32, String) {
    let output = run(&[&["run"], args].concat());
    assert!(output.stdout.is_empty(), "{}", stdout(&output));
    (code(&output), stderr(&output).to_owned())
}

#[test]
fn wrong_usage_is_2() {
    for (args, part) in [
        (&["--seeds", "5..5"][..], "the range is empty"),
        (&["--seeds", "5"], "0..100"),
        (&["--seed", "1", "--seeds", "0..2"], "cannot be used with"),
        (&["--skew", "101"], "101"),
        (&["--sms", "0"], "0"),
        (&["--seed", "-1"], "invalid value '-1'"),
        (&["--m", "-3"], "a size of 1 or more"),
        (&["examples/small.toml", "--bias", "true"], "--bias=true"),
        (&["--calls", "0"], "0"),
        (&["--device", "tpu"], "auto"),
        (&["--device", "gpu", "--sms", "4"], "--device sim"),
        (
            &["--device", "sim", "--seeds", "0..2", "--trace", "t"],
            "single run",
        ),
    ] {
        let (code, text) = errors_of(args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(part), "{args:?}: {text}");
    }
}

/// A kernel that fits neither a GPU nor this host is rejected before anything is allocated.
#[test]
fn sizes_that_do_not_fit_are_refused_with_the_figures() {
    let large = [
        "--op=gemm_rs",
        "--world=8",
        "--m=524288",
        "--n=524288",
        "--k=8",
    ];
    for command in ["check", "plan", "build"] {
        let output = run(&[&[command], &large[..]].concat());
        assert_eq!(code(&output), 1, "{command}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("bytes of memory of NVIDIA H200"),
            "{command}: {}",
            stderr(&output)
        );
    }
    let kernel = ["--device=sim", "--op=ag_gemm", "--world=2"];
    let sizes = ["--m=2147483647", "--n=8", "--k=8"];
    let (code, text) = errors_of(&[&kernel[..], &sizes].concat());
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("of host memory"), "{text}");
}

/// With `--verbose`, each rank prints its memory and the bytes that it has sent, and at the end the bytes of its NICs.
#[test]
fn verbose_runs_show_the_heap_and_the_fabric() {
    let kernel = [
        "--op=ag_gemm",
        "--world=2",
        "--nodes=2",
        "--b-layout=nk",
        "--seed=0",
    ];
    let sizes = ["--m=128", "--n=64", "--k=64", "--sms=3", "--calls=1"];
    let output = run(&[&["run", "--verbose", "--device=sim"], &kernel[..], &sizes].concat());
    let text = stderr(&output);
    assert_eq!(code(&output), 0, "{text}");
    for rank in [0, 1] {
        let has = |what: &str| {
            let mut lines = text.lines();
            lines.any(|line| line.contains(what) && line.contains(&format!("rank={rank}")))
        };
        assert!(has("heap: 1 workspaces and 0 tensors of "), "{text}");
        assert!(has("fabric: emulated to 1 peers: "), "{text}");
    }
    assert!(text.contains("the fabric has ended"), "{text}");
    assert!(text.contains("nic=\"emulated0\""), "{text}");
}

#[test]
fn variables_stand_for_flags_that_were_not_given() {
    let with = |name: &str, value: &str, args: &[&str]| {
        let cache = TempDir::new().expect("temporary folder");
        let mut command = mkernel_gen(cache.path());
        let output = command.arg("run").env(name, value).args(args).output();
        output.expect("mkernel-gen starts")
    };
    for (name, value, expected) in [
        ("MKERNEL_DEVICE", "tpu", "one of auto, gpu, sim"),
        ("MKERNEL_SIM_SMS", "foo", "a number from 1 to 1024"),
        ("MKERNEL_SIM_SKEW", "101", "a number from 0 to 100"),
        ("MKERNEL_SIM_SEED", "-1", "a number from 0"),
        ("MKERNEL_TRANSPORT", "abc", "one of emulated, rc, efa"),
    ] {
        let device: &[&str] = match name {
            "MKERNEL_DEVICE" => &[],
            _ => &["--device=sim"],
        };
        let output = with(name, value, &[device, &TINY[2..]].concat());
        assert_eq!(code(&output), 2, "{name}: {}", stderr(&output));
        expect_parts(stderr(&output), &[name, value, expected]);
    }
    let output = with(
        "MKERNEL_SIM_SMS",
        "3",
        &[&TINY[1..6], &["--seed=1", "--calls=1"]].concat(),
    );
    let text = stdout(&output);
    assert!(text.contains("2 simulated GPUs with 3 SMs"), "{text}");
    let output = with("MKERNEL_DEVICE", "gpu", &["--sms=3"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    expect_parts(stderr(&output), &["add --device sim"]);
}

#[test]
fn errors_of_flags_have_exit_code_1_and_name_the_flag() {
    let (code, text) = errors_of(&["--device=sim", "--ranks=3", "--k=9"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("--ranks: error: world: 3 ranks"), "{text}");
    expect_parts(&text, &["--k: error: k: 9 is not a multiple of 8"]);

    let lone = ["--device=sim", "--sms=1", "--nodes=2", "--ranks=4"];
    let (code, text) = errors_of(&lone);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("--nodes: error: nodes: "), "{text}");
    assert!(
        text.contains("1 error in") && !text.contains("comm_ctas"),
        "{text}"
    );

    let dir = TempDir::new().expect("temporary folder");
    let open = "[[kernel]]\nop = 'ag_gemm'\nworld = 8\nm = 'dynamic'\nn = 8\nk = 8\n";
    let path = file(&dir, "open.toml", open);
    let (code, text) = errors_of(&["--device=sim", path.to_str().expect("UTF-8")]);
    assert_eq!(code, 1, "{text}");
    expect_parts(&text, &["there is no plan, since the size of m is unknown"]);
}

#[test]
fn files_that_are_not_there_are_4() {
    let (code, text) = errors_of(&["/nowhere.toml"]);
    assert_eq!(code, 4, "{text}");
}

/// Attention with small heads, shared keys, partial tiles and a mask. The placement determines which ranks need which
/// keys.
#[test]
fn attention_over_simulated_ranks_matches_the_reference() {
    let of = |rest: &str| {
        let flags = "run --device=sim --sms=2 --calls=2 --seeds=0..1 --skew=60 --json --op=ring_attention \
                     --batch=1 --heads=2 --kv-heads=1";
        let args: Vec<&str> = flags
            .split_whitespace()
            .chain(rest.split_whitespace())
            .collect();
        let output = run(&args);
        assert_eq!(code(&output), 0, "{rest}: {}", stderr(&output));
        for line in run_several::outcomes(&output).0 {
            assert_eq!(
                (&line["ok"], &line["repeats"]),
                (&true.into(), &true.into())
            );
        }
    };
    of("--world=2 --seq=301 --head-dim=64 --layout=bhsd");
    of("--world=2 --seq=300 --head-dim=64 --causal --scale=0.3 --kv-slots=1 --comm-ctas=1");
    of("--world=4 --seq=43 --head-dim=64 --causal --placement=zigzag");
}

#[test]
fn simulated_ranks_match_the_reference() {
    let output = succeeds(&[&TINY[..], &["--json", "--seeds=0..3"]].concat());
    let (lines, summary) = run_several::outcomes(&output);
    assert_eq!((lines.len(), &summary["right"]), (3, &3.into()));
    assert_eq!(
        (&summary["ok"], &summary["interrupted"]),
        (&true.into(), &false.into())
    );
    for (seed, line) in lines.iter().enumerate() {
        assert_eq!(line["ok"], true);
        assert_eq!((&line["seed"], &line["ranks"]), (&seed.into(), &2.into()));
        assert_eq!(
            (&line["simulated"], &line["repeats"]),
            (&true.into(), &true.into())
        );
        // The elements of both ranks, in both calls.
        assert_eq!(
            (&line["elements"], &line["wrong"]),
            (&(4 * 128 * 64).into(), &0.into())
        );
        assert!(line["relative_error"].as_f64().expect("a number") < 4e-3);
        assert!(line["seconds"].is_number() && line["id"].is_string());
        assert!(line["replay"].is_null() && line["problems"] == serde_json::json!([]));
    }
}

#[test]
fn an_epilogue_by_flags_is_computed_too() {
    let kernel = [
        "run",
        "--json",
        "--device=sim",
        "--sms=2",
        "--calls=2",
        "--seed=1",
        "--op=gemm_rs",
        "--world=2",
        "--m=70",
        "--n=72",
        "--k=64",
    ];
    let epilogue = [
        "--bias",
        "--residual=true",
        "--activation=gelu",
        "--output=fp32",
    ];
    let output = succeeds(&[&kernel[..], &epilogue].concat());
    let line = &json_lines(&output)[0];
    assert_eq!(
        (&line["ok"], &line["elements"]),
        (&true.into(), &(2 * 70 * 72).into())
    );
    let id = line["id"].as_str().expect("an id");
    assert!(id.ends_with("_bias_gelu_residual_fp32"), "{id}");

    let output = run(&[&kernel[..], &["--bias=1", "--activation=gel"]].concat());
    assert_eq!(code(&output), 1);
    expect_parts(
        stderr(&output),
        &[
            "--bias: error: bias: 1 is not possible",
            "write `true` or `false`",
            "did you mean `gelu`",
        ],
    );
}

#[test]
fn output_names_the_devices_and_the_result() {
    let output = succeeds(&[&TINY[..], &["--seed=7"]].concat());
    expect_parts(
        stdout(&output),
        &[
            "AllGather(A)[128,64]",
            "2 simulated GPUs with 2 SMs",
            "seed 7",
            "correct: all 32768 elements of 2 calls",
            "bitwise identical when repeated",
        ],
    );
}

#[test]
fn traces_are_written_with_their_units() {
    let dir = TempDir::new().expect("temporary folder");
    let trace = dir.path().join("trace.txt").display().to_string();
    succeeds(&[&TINY[..], &["--trace", &trace]].concat());
    let lines = std::fs::read_to_string(trace).expect("a file");
    assert!(lines.lines().count() > 10, "{lines}");
    let heading = lines.lines().next().unwrap_or_default();
    assert!(heading.contains("µs"), "{heading}");
    let output = run(&[&TINY[..], &["--timeline", "t.json"]].concat());
    assert_eq!(code(&output), 2, "timelines are made by `trace`");
}

#[test]
fn negative_seeds_are_refused_with_the_limits() {
    for command in ["run", "trace", "bench", "tune"] {
        let output = run(&[command, "--seed", "-1"]);
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        let text = stderr(&output);
        let help = "write an integer from 0 to 9223372036854775807";
        assert!(text.contains("-1") && text.contains(help), "{text}");
    }
}

#[test]
fn without_a_compiler_there_is_a_way_out_said_once() {
    let cache = TempDir::new().expect("temporary folder");
    let mut command = mkernel_gen(cache.path());
    command
        .env("MKERNEL_CXX", "/nowhere/c++")
        .args(TINY)
        .arg("--seeds=0..9");
    let output = command.output().expect("mkernel-gen starts");
    assert_eq!(code(&output), 4, "{}", stdout(&output));
    assert!(stdout(&output).contains("unset MKERNEL_CXX"));
    // Other seeds would give the same message.
    assert_eq!(
        stdout(&output).matches("\n  seed ").count(),
        1,
        "{}",
        stdout(&output)
    );
}
