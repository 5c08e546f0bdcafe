//! Runs on simulated GPUs wait for the chunks that the plan, and so its drawing, gives to tiles.

use super::{code, mkernel_gen, stderr};
use mkernel_spec::{
    Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec, Transfer, Tuning,
};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const RANKS: u32 = 2;
const SMS: u32 = 3;
const M: u64 = 768;

fn plan() -> KernelPlan {
    let tuning = Tuning {
        tile_m: Some(64),
        tile_n: Some(128),
        transfer: Some(Transfer::SmPush),
        ..Tuning::default()
    };
    let config = GemmConfig {
        m: Dim::Static(M),
        n: Dim::Static(256),
        k: Dim::Static(256),
        tuning,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let spec = SizedSpec::validate(KernelConfig::new(RANKS, config)).expect("valid");
    KernelPlan::new(&spec, &Device::simulated(SMS)).expect("a plan")
}

/// The events of a traced run with a seed.
fn events(seed: u64) -> Vec<Value> {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("trace.json");
    let mut command = mkernel_gen(dir.path());
    command
        .args([
            "trace",
            "--device=sim",
            "--op=ag_gemm",
            "--n=256",
            "--k=256",
        ])
        .args(["--tile-m=64", "--tile-n=128", "--transfer=sm_push"])
        .args([
            format!("--world={RANKS}"),
            format!("--sms={SMS}"),
            format!("--m={M}"),
        ])
        .args(["--skew=90".to_owned(), format!("--seed={seed}")])
        .arg("--out")
        .arg(&out);
    let output = command.output().expect("mkernel-gen starts");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = fs::read_to_string(out).expect("a trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let all = trace["traceEvents"].as_array().expect("events").iter();
    let spans = all.filter(|event| event["ph"] == "X");
    spans.cloned().collect()
}

/// The begin and the end of a span, with some room for rounding.
fn range(span: &Value) -> (f64, f64) {
    let at = |name: &str| span[name].as_f64().expect("a time");
    (at("ts"), at("ts") + at("dur"))
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a number")).expect("a small number")
}

#[test]
fn tiles_wait_for_the_chunks_that_the_plan_gives_to_them() {
    let plan = plan();
    let (gemm, topology) = (plan.gemm().expect("a GEMM"), plan.spec.topology());
    let chunks = gemm.chunks.as_ref().expect("chunks");
    let mut waits = 0;
    for seed in 0..4 {
        let events = events(seed);
        let named = |name: &str| -> Vec<&Value> {
            let spans = events.iter();
            spans.filter(|span| span["name"] == name).collect()
        };
        for wait in named("waits for a chunk of a peer's shard") {
            let (begin, end) = range(wait);
            let contains = |tile: &&&Value| {
                let (first, last) = range(tile);
                tile["pid"] == wait["pid"]
                    && tile["tid"] == wait["tid"]
                    && first <= begin
                    && end <= last + 1e-3
            };
            let tiles = named("load tile");
            let tile = tiles.iter().find(contains).expect("a tile around the wait");
            let sequence = gemm.tile_sequence(number(&wait["pid"]), topology);
            let tile = sequence[number(&tile["args"]["index"]) as usize];
            let rows = gemm.rows_of_tile(tile, topology);
            let wanted = gemm.chunks_of_rows(rows, topology);
            let chunk = number(&wait["args"]["index"]) / chunks.k_slices;
            let found = wanted.iter().any(|of| {
                (of.source, of.source * chunks.per_shard + of.chunk)
                    == (number(&wait["args"]["rank"]), chunk)
            });
            assert!(found, "{wait} in {tile:?}, which has {wanted:?}");
            waits += 1;
        }
    }
    assert!(waits > 5, "only {waits} waits");
}
