//! `mkernel-gen simulate`: its schedules beside real runs, its times beside measured times, and its errors.

mod measured;
mod puts;

use super::*;

const KERNEL: [&str; 4] = [
    "--op=all_gather",
    "--m=8192",
    "--n=8192",
    "--gpus-per-node=4",
];

fn simulated(args: &[&str]) -> Vec<Value> {
    let output = succeeds(&[&["simulate", "--json"], args].concat());
    json_lines(&output)
}

fn us(args: &[&str]) -> f64 {
    simulated(args)[0]["us"].as_f64().expect("a time")
}

/// One rank stands for all ranks if all ranks act alike. Only forwarders differ, which take peers by their numbers.
#[test]
fn one_rank_stands_for_all_ranks() {
    let kernels: [&[&str]; 4] = [
        &["--op=all_reduce", "--m=4096", "--n=4096"],
        &["--op=ag_gemm", "--m=8192", "--n=512", "--k=2048"],
        &["--op=gemm_ar", "--m=2048", "--n=4096", "--k=512"],
        &[
            "--op=ring_attention",
            "--batch=1",
            "--heads=8",
            "--kv-heads=8",
            "--head-dim=128",
            "--seq=8192",
        ],
    ];
    for kernel in kernels {
        for nodes in ["--nodes=2", "--nodes=4"] {
            let args = [kernel, &[nodes, "--gpus-per-node=4"]].concat();
            let one = simulated(&args).remove(0);
            let all = simulated(&[&args[..], &["--all-ranks"]].concat()).remove(0);
            assert_eq!(one["simulated_ranks"], 1);
            assert_eq!(all["simulated_ranks"], all["ranks"]);
            for field in [
                "puts",
                "arrivals",
                "nic_out_bytes",
                "nic_in_bytes",
                "link_out_bytes",
                "link_in_bytes",
            ] {
                assert_eq!(one[field], all[field], "{field} of {args:?}");
            }
            let [one, all] = [one, all].map(|line| line["us"].as_f64().expect("a time"));
            assert!(
                (one / all - 1.0).abs() < 0.02,
                "{args:?}: {one} and {all} µs"
            );
        }
    }
}

/// Bytes equal the plan's traffic, and no time is below the plan's bound.
#[test]
fn traffic_is_that_of_the_plan() {
    let mut kernel = vec!["simulate", "--json", "--nodes=2,4,8"];
    kernel.extend(KERNEL);
    let output = run(&kernel);
    for line in json_lines(&output) {
        let ranks = format!("--world={}", line["ranks"]);
        let nodes = format!("--nodes={}", line["nodes"]);
        let plan = run(&[
            "plan",
            "--json",
            "--op=all_gather",
            "--m=8192",
            "--n=8192",
            &ranks,
            &nodes,
        ]);
        let plan = json_lines(&plan).remove(0);
        assert_eq!(line["nic_out_bytes"], plan["traffic"]["nic_bytes"]);
        assert_eq!(line["link_out_bytes"], plan["traffic"]["link_bytes"]);
        assert_eq!(line["workspace_bytes"], plan["workspace"]["bytes"]);
        assert!(line["us"].as_f64() > line["bound_us"].as_f64(), "{line}");
    }
}

/// A slower resource never makes a call faster.
#[test]
fn slower_networks_take_longer() {
    let with = |flag: &'static str| us(&[&KERNEL[..], &["--nodes=4", flag]].concat());
    let usual = with("--nic-us=2");
    for slower in [
        "--nic-gbit=100",
        "--nic-us=50",
        "--link-gb-s=100",
        "--proxy-put-us=100",
        "--proxy-arrival-us=100",
        "--pickup-us=60",
    ] {
        assert!(
            with(slower) > 1.02 * usual,
            "{slower}: {} and {usual}",
            with(slower)
        );
    }
    let two = ["--nodes=4", "--rails=2", "--nic-gbit=400"];
    assert!(us(&[&KERNEL[..], &two].concat()) <= usual);
    let across = ["--nodes=4", "--leaf-nodes=2"];
    let free = us(&[&KERNEL[..], &across].concat());
    let crowded = us(&[&KERNEL[..], &across, &["--oversubscription=8"]].concat());
    assert!(crowded > 2.0 * free, "{crowded} and {free}");
    let within = us(&[&KERNEL[..], &["--nodes=4", "--oversubscription=8"]].concat());
    assert!(
        (within / free - 1.0).abs() < 0.02,
        "one leaf switch has all nodes: {within}, {free}"
    );
}

#[test]
fn popular_experts_take_longer() {
    let kernel = [
        "--op=dispatch_gemm",
        "--experts=64",
        "--top-k=4",
        "--max-tokens=512",
        "--hidden=2048",
        "--intermediate=1024",
        "--gpus-per-node=4",
        "--nodes=2",
    ];
    let with = |flags: &[&str]| us(&[&kernel[..], flags].concat());
    assert!(with(&["--routing=zipf"]) > with(&["--routing=uniform"]));
    assert_eq!(
        with(&["--seed=3"]),
        with(&["--seed=3"]),
        "a seed repeats a run"
    );
    assert_ne!(with(&["--seed=3"]), with(&["--seed=4"]));
}

#[test]
fn times_over_nodes_are_a_table_and_a_plot() {
    let dir = TempDir::new().expect("temporary folder");
    let plot = dir.path().join("times.svg");
    let flag = format!("--plot={}", plot.display());
    let output = succeeds(&[&["simulate"], &KERNEL[..], &["--nodes=2,4,8", &flag]].concat());
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 2 + 3, "{text}");
    expect_parts(text, &["NVLink out", "NIC out", "busiest", "bound"]);
    let svg = std::fs::read_to_string(&plot).expect("a plot");
    expect_parts(&svg, &["nodes", "all_gather m=8192 n=8192", "bound of"]);
}

#[test]
fn mistakes_have_a_way_out() {
    let fails = |args: &[&str], words: &[&str]| {
        let output = run(&[&["simulate"], args].concat());
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        expect_parts(stderr(&output), words);
    };
    fails(
        &["--op=broadcast", "--m=64", "--n=64"],
        &[
            "messages of broadcast are not modelled yet",
            "use all_gather",
        ],
    );
    fails(
        &[&KERNEL[..], &["--nodes=1"]].concat(),
        &["puts nothing", "use 2 nodes"],
    );
    fails(
        &[&KERNEL[..], &["--nodes=2,x", "--world=8"]].concat(),
        &["`x` is not a number of nodes", "use --gpus-per-node"],
    );
    fails(
        &[&KERNEL[..], &["--nodes=2000"]].concat(),
        &["2000 is not in 1..=1024"],
    );
    fails(
        &[
            &KERNEL[..],
            &["--rails=0", "--oversubscription=0.5", "--nic-us=-1"],
        ]
        .concat(),
        &[
            "--rails: error: 0 is not possible",
            "use 1 to 8",
            "--oversubscription",
            "--nic-us",
        ],
    );
}
