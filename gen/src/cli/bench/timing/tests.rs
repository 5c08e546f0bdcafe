//! Graphs of calls on simulated GPUs, which have no times but the same results.

use super::*;
use crate::cli::machine::{Machine, Simulated};
use crate::cli::run::ranks::{Job, merge};
use crate::cli::run::routing::TokenLoad;
use crate::cli::toml_file;
use mkernel::KernelConfig;
use mkernel::network::Transport;
use mkernel::spec::{Device, SizedSpec};

const SMS: u32 = 4;

/// An operator of each kind, on two ranks. Some calls give their rows.
const KERNELS: [&str; 8] = [
    "op = 'gemm_ar'\nm = 128\nn = 64\nk = 128\nb_layout = 'nk'\nbias = true\nresidual = true",
    "op = 'gemm_rs'\nm = '..=96'\nn = 64\nk = 64",
    "op = 'all_reduce'\nm = 32\nn = 128\nsymmetric_result = true",
    "op = 'broadcast'\nm = 32\nn = 128\nroot = 1",
    "op = 'ring_attention'\nbatch = 1\nseq = 256\nheads = 2\nkv_heads = 1\nhead_dim = 64",
    "op = 'dispatch_gemm'\nexperts = 4\ntop_k = 2\nmax_tokens = 16\nhidden = 128\nintermediate = 64",
    "op = 'moe_layer'\nswiglu = true\nexperts = 4\ntop_k = 2\nmax_tokens = 16\nhidden = 128\nintermediate = 64",
    "op = 'combine'\nexperts = 4\ntop_k = 2\nmax_tokens = 16\nhidden = 128",
];

fn planned(kernel: &str, device: &Device) -> (KernelConfig, KernelPlan) {
    let text = format!("[[kernel]]\n{kernel}");
    let (declared, wrong) = toml_file::read(Path::new("test"), &text);
    let declared = declared.into_iter().next();
    let Some(Ok(declaration)) = declared else {
        panic!("{kernel}: {wrong:?} {declared:?}");
    };
    let config = declaration.spec.config().clone();
    let spec = SizedSpec::validate(config.clone()).expect("valid");
    let plan = KernelPlan::new(&spec, device).expect("a plan");
    (config, plan)
}

fn job<'a>(config: &'a KernelConfig, plan: &'a KernelPlan) -> Job<'a> {
    Job {
        config,
        plan,
        machine: Machine::Simulated(Simulated {
            sms: SMS,
            skew: 20,
            timeline: false,
        }),
        load: TokenLoad::Full,
        seed: 3,
        calls: 1,
        threads: 1,
        transport: Transport::default(),
        launched: None,
    }
}

/// Replays a graph of calls, and compares the results of each copy of the operands with the reference.
fn replay(job: &Job) {
    let calls = job.inputs();
    let results = job.on_ranks(|ranks| {
        let operator = ranks.prepare(job.config, job.plan.shape())?;
        let mut timing = Timing::new(ranks, operator.plan(), &calls[0])?;
        // The first copy is used twice.
        assert!(timing.memory.len() > 1, "these operands are small");
        timing.memory.truncate(2);
        timing.calls = 3;
        let graph = timing.kernel_graph(&operator)?;
        let stream = ranks.default_stream();
        ranks.barrier()?;
        graph.launch(&stream)?;
        ranks.synchronize(&stream)?;
        let copies = timing.memory.iter().map(|copy| copy.download(&stream));
        let found = copies.collect::<Result<Vec<_>, _>>()?;
        // Memory may be freed only while no kernel of any rank runs.
        ranks.barrier()?;
        job.judged(ranks.rank(), operator.plan().clone(), &calls, &found)
    });
    let ran = merge(results.expect("ranks")).expect("no rank fails");
    let op = job.plan.spec.op();
    assert!(ran.verdict.elements > 0, "{op}");
    assert_eq!(ran.verdict.wrong, 0, "{op}: {:?}", ran.verdict);
    assert!(ran.repeats, "{op}: copies have different results");
}

#[test]
fn graphs_make_right_calls_on_each_copy_of_the_operands() {
    for kernel in KERNELS {
        let (config, plan) = planned(&format!("world = 2\n{kernel}"), &Device::simulated(SMS));
        replay(&job(&config, &plan));
    }
}

#[test]
fn libraries_that_are_missing_are_noted_on_all_ranks() {
    let text = "op = 'gemm_ar'\nworld = 2\nm = 128\nn = 64\nk = 128";
    let (config, plan) = planned(text, &Device::simulated(SMS));
    let (rivals, _) = rivals::of(&plan);
    let empty = tempfile::tempdir().expect("temporary folder");
    let dirs = (Some(empty.path()), Some(empty.path()));
    let notes = job(&config, &plan).on_ranks(|ranks| {
        let libraries = Libraries::load(ranks, &ranks.default_stream(), &rivals, dirs)?;
        assert!(!rivals.iter().any(|rival| libraries.can_run(rival)));
        Ok(libraries.missing())
    });
    for notes in notes.expect("ranks") {
        let notes = notes.expect("no rank fails");
        assert!(
            notes[0].starts_with("cuBLAS was not compared: cuBLAS was not found"),
            "{notes:?}"
        );
        assert_eq!(
            notes[1],
            "NCCL was not compared: NCCL was not found; give its folder with --nccl-dir"
        );
    }
}

#[test]
fn short_calls_share_a_graph_and_small_operands_have_copies() {
    let plan = |m: u64| {
        let kernel = format!("op = 'gemm'\nworld = 1\nm = {m}\nn = 8192\nk = 8192");
        planned(&kernel, &Device::default()).1
    };
    // The weights have 128 MiB.
    let (few, many) = (plan(16), plan(8192));
    assert_eq!((calls_of_graph(&few), calls_of_graph(&many)), (20, 1));
    assert_eq!(
        (copies(&few, 20), copies(&few, 1), copies(&many, 20)),
        (2, 1, 1)
    );
}
