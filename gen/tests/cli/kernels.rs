//! Plans and source of kernels from files, crates and flags.

use super::*;

#[test]
fn examples_are_valid() {
    for name in ["llama.toml", "ag_gemm_sweep.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../examples")
            .join(name);
        let output = succeeds(&["--json", "check", path.to_str().expect("UTF-8")]);
        let lines = json_lines(&output);
        assert!(lines.len() >= 5);
        assert!(
            lines
                .iter()
                .all(|line| line["ok"] == true && line["id"].is_string())
        );
    }
}

#[test]
fn errors_of_all_kernels_and_files_are_reported_at_once() {
    let dir = TempDir::new().expect("temporary folder");
    let first = file(
        &dir,
        "first.toml",
        "[[kernel]]\nop = 'ag_gemm'\nworld = 3\nm = 1\nn = 9\nk = 8\n",
    );
    let second = file(
        &dir,
        "second.toml",
        "[[kernel]]\nop = 'ag_gemm'\nworld = 8\nm = 8\nn = 8\nk = 8\n[[kernel]]\nop = 'gemv'\nworld = 8\nm = 8\nn = 8\nk = 8\nq = 1\n",
    );
    let (first, second) = (first.display().to_string(), second.display().to_string());
    let output = run(&["check", &first, &second]);
    assert_eq!(code(&output), 1);
    assert!(stdout(&output).starts_with(&format!("{second}:1:1: ag_gemm m=8 n=8 k=8: ok, ")));
    let places: Vec<_> = stderr(&output)
        .lines()
        .filter_map(|line| line.split_once(": error: ").map(|l| l.0))
        .collect();
    let wanted = [
        format!("{first}:3:9"),
        format!("{first}:5:5"),
        format!("{second}:8:6"),
        format!("{second}:13:1"),
    ];
    assert_eq!(places, wanted);
    assert!(stderr(&output).contains("help: use 1, 2, 4 or 8"));
    assert!(stderr(&output).ends_with("error: 4 errors in the configuration\n"));

    let output = run(&["check", "--json", &first, &second]);
    let lines = json_lines(&output);
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[4]["place"], format!("{second}:13:1"));
    assert_eq!(lines[4]["reason"], "there is no option `q`");
}

#[test]
fn an_error_stops_commands_before_they_act() {
    let dir = TempDir::new().expect("temporary folder");
    let path = file(
        &dir,
        "f.toml",
        "[[kernel]]\nop = 'ag_gemm'\nworld = 3\nm = 1\nn = 8\nk = 8\n",
    );
    for command in ["plan", "render", "build"] {
        let output = run(&[command, path.to_str().expect("UTF-8")]);
        assert_eq!(code(&output), 1, "{command}");
        assert!(output.stdout.is_empty(), "{command}");
    }
}

#[test]
fn wrong_usage_is_2() {
    let toml = "kernels.toml";
    for args in [
        &[][..],
        &["check"],
        &["plan", "--banana"],
        &["plan", toml, "--op", "ag_gemm"],
        &["plan", toml, "--m", "many"],
        &["plan", toml, "--sm-count", "-1"],
        &["build", toml, "--jobs", "0"],
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn an_unreadable_file_has_exit_code_4() {
    let output = run(&["plan", "/nowhere/kernels.toml"]);
    assert_eq!(code(&output), 4);
    expect_parts(
        stderr(&output),
        &["cannot read /nowhere/kernels.toml\n    caused by: No such file"],
    );
}

#[test]
fn kernels_come_from_standard_input_too() {
    let cache = TempDir::new().expect("temporary folder");
    let mut child = mkernel_gen(cache.path())
        .args(["check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("mkernel-gen starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(b"[[kernel]]\nop='ag_gemm'\nworld=8\nm=8\nn=8\nk=8\n")
        .expect("write");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).starts_with("-:1:1: ag_gemm m=8 n=8 k=8: ok"));
}

#[test]
fn a_plan_names_roles_and_their_waits() {
    let output = succeeds(&[&["plan"], &KERNEL[..]].concat());
    expect_parts(
        stdout(&output),
        &[
            "C[8192,1024] = AllGather(A)[8192,8192] · B, 8 ranks, B as [K,N], bf16, fp32 accumulate\n",
            "a  [1024, 8192]  read, bf16, a shard of 8192 rows\n",
            "c  [8192, 1024]  written, bf16\n",
            "roles      Push      CTAs 0..8    warps 0..12",
            "Multiply  CTAs 8..132  warps 4..12",
            "tiles      128x128: 64 x 8 = 512 tiles, 4.13 waves of 124 CTAs\n",
            "transfer   sm_push: chunks of ",
            "workspace  state ",
            "moves      link       112.0 MiB  sent and received by each rank\n",
            "bound      341 µs by link: compute ",
            "estimate   ",
            "device     NVIDIA H200: 132 SMs",
        ],
    );
}

#[test]
fn a_plan_shows_its_scaling_over_nodes() {
    let kernel = [
        "--op=gemm_rs",
        "--world=8",
        "--nodes=2",
        "--m=8192",
        "--n=8192",
        "--k=1024",
    ];
    let output = run(&[&["plan"], &kernel[..]].concat());
    expect_parts(
        stdout(&output),
        &[
            "8 ranks on 2 nodes",
            "NIC         16.0 MiB  sent and received by each rank, in ",
            ", NIC ",
        ],
    );
    let output = run(&[&["plan", "--json", "--scaling"], &kernel[..]].concat());
    let rows: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let nodes: Vec<_> = rows.iter().map(|row| row["nodes"].as_u64()).collect();
    assert_eq!(nodes, [2, 4, 8, 16, 32, 64].map(Some));
    let of_last = |name: &str| rows[5][name].as_u64().expect("a number");
    assert_eq!((of_last("ranks"), of_last("queue_pairs")), (256, 63));
    assert_eq!(of_last("nic_bytes"), 63 * 8192 / 256 * 8192 * 2);
}

#[test]
fn a_plan_as_json() {
    let output = run(&[
        &["plan", "--json", "--sm-count=100", "--link-gb-s=172"],
        &KERNEL[..],
    ]
    .concat());
    let lines = json_lines(&output);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["label"], "ag_gemm m=8192 n=1024 k=8192");
    assert_eq!(lines[0]["grid_ctas"], 100);
    assert_eq!(lines[0]["tile"]["n"], 128);
    assert_eq!(lines[0]["bound_reason"], "link");
    let us = lines[0]["bound_us"].as_f64().expect("a number");
    assert!((682.0..684.0).contains(&us), "{us}");
}

#[test]
fn a_device_from_a_file() {
    let dir = TempDir::new().expect("temporary folder");
    let good = file(&dir, "good.toml", "name = 'half'\nsm_count = 66\n");
    let bad = file(&dir, "bad.toml", "sms = 66\n");
    let device = |path: &Path| format!("--device-file={}", path.display());
    let output = run(&[&["plan", "--json", &device(&good)], &KERNEL[..]].concat());
    assert_eq!(json_lines(&output)[0]["device"]["sm_count"], 66);
    let output = run(&[&["plan", &device(&bad)], &KERNEL[..]].concat());
    assert_eq!(code(&output), 1);
    expect_parts(stderr(&output), &["unknown field `sms`"]);
    let output = run(&[&["plan", "--link-gb-s=0"], &KERNEL[..]].concat());
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("device: error: link_gb_s: 0 is not possible"));
}

#[test]
fn sizes_for_dynamic_dimensions() {
    let kernel = ["--op=ag_gemm", "--world=8", "--n=1024", "--k=8192"];
    let output = run(&[&["plan", "--json", "--m=1024,4096"], &kernel[..]].concat());
    let sizes: Vec<_> = json_lines(&output)
        .iter()
        .map(|l| l["shape"]["m"].clone())
        .collect();
    assert_eq!(sizes, [1024, 4096]);

    let output = run(&[&["plan", "--m=dynamic"], &kernel[..]].concat());
    assert_eq!(code(&output), 1);
    expect_parts(
        stderr(&output),
        &["there is no plan, since the size of m is unknown"],
    );

    let output = run(&[&["check", "--m=dynamic"], &kernel[..]].concat());
    assert_eq!(code(&output), 0);
}

#[test]
fn a_users_crate_is_scanned() {
    let dir = fixture("user_crate");
    let output = succeeds(&["check", "--json", "--crate", &dir]);
    let lines = json_lines(&output);
    let found: Vec<_> = lines
        .iter()
        .map(|l| {
            let place = l["place"]
                .as_str()
                .expect("a place")
                .strip_prefix(&dir)
                .expect("in the crate");
            format!(
                "{} {place} {}",
                l["label"].as_str().expect("a label"),
                l["unknown_dims"]
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "Demo /examples/demo.rs:2:8 []",
            "GateUp /src/layers/mod.rs:4:8 [\"m\",\"k\"]",
            "Static /src/lib.rs:9:12 []",
            "DynamicRows /src/lib.rs:13:12 [\"world\",\"m\"]",
            "InAFunction /src/lib.rs:19:16 []",
        ]
    );

    let plan = ["plan", "--json", "--m=256", "--k=512", "--crate", &dir];
    let output = run(&plan);
    assert_eq!(code(&output), 1);
    expect_parts(
        stderr(&output),
        &["DynamicRows: there is no plan, since the size of world is unknown"],
    );
    let output = succeeds(&[&plan[..], &["--world=4"]].concat());
    assert_eq!(json_lines(&output).len(), 5);
}

#[test]
fn errors_in_a_crate_have_positions() {
    let dir = fixture("wrong_crate");
    let output = run(&["check", "--crate", &dir]);
    assert_eq!(code(&output), 1);
    let found: Vec<_> = stderr(&output)
        .lines()
        .filter(|line| line.contains(": error: "))
        .map(|line| line.strip_prefix(&dir).expect("in the crate"))
        .collect();
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(found[0].starts_with("/src/not_rust.rs:1:"), "{found:#?}");
    assert!(found[1].starts_with("/src/lib.rs:5:5: error: there is no option `stage`"));
    assert!(found[2].starts_with("/src/lib.rs:4:27: error: world: 3 ranks"));
    assert!(found[3].starts_with("/src/lib.rs:4:47: error: n: 1001 is not a multiple of 8"));
    assert!(found[4].starts_with("/src/lib.rs:10:12: error: `m`, `n`, `k` are missing"));

    let output = run(&["check", "--crate", "/nowhere"]);
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("cannot read /nowhere"));

    let dir = TempDir::new().expect("temporary folder");
    std::fs::create_dir(dir.path().join("src")).expect("folder");
    std::fs::write(dir.path().join("src/latin.rs"), b"// caf\xe9\n").expect("file");
    let output = run(&["check", "--crate", dir.path().to_str().expect("UTF-8")]);
    assert_eq!(code(&output), 1);
    let text = stderr(&output);
    expect_parts(
        text,
        &["src/latin.rs: error: cannot be read as Rust: it is not UTF-8"],
    );
}

#[test]
fn rendered_source_goes_to_a_folder() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("cuda").display().to_string();
    let output = succeeds(&[&["render", "--json", "--out", &out], &KERNEL[..]].concat());
    let line = &json_lines(&output)[0];
    let path = line["path"].as_str().expect("a path");
    let id = line["id"].as_str().expect("an id");
    assert!(path.ends_with(&format!("{id}.cu")));
    let text = std::fs::read_to_string(path).expect("written");
    assert!(text.contains(id));
    assert!(Path::new(&out).join("mk/base.cuh").is_file());

    let printed = run(&[&["render"], &KERNEL[..]].concat());
    assert_eq!(stdout(&printed), text);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let cache = TempDir::new().expect("temporary folder");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = mkernel_gen(cache.path())
        .arg("plan")
        .args(KERNEL)
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("mkernel-gen starts");
    assert_eq!(code(&output), 0);
    assert_eq!(stderr(&output), "");
}

#[test]
fn plans_for_simulated_gpus_show_no_times() {
    let dir = TempDir::new().expect("temporary folder");
    let device = file(&dir, "device.toml", "backend = 'host_cxx'\nsm_count = 8\n");
    let device = format!("--device-file={}", device.display());
    let output = succeeds(&[
        "plan",
        &device,
        "--op=ag_gemm",
        "--world=2",
        "--m=512",
        "--n=512",
        "--k=512",
    ]);
    let text = stdout(&output);
    for absent in ["bound", "estimate", "TFLOP/s", "at entry"] {
        assert!(!text.contains(absent), "{absent:?} in {text}");
    }
}
