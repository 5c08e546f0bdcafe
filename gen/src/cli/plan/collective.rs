//! Describes the plan of a collective.

use super::description::{Description, ranks_on};
use mkernel_spec::plan::{Body, CollectivePlan};
use mkernel_spec::{CollectiveOp, Norm, Protocol, Scales, Topology};

pub(super) fn describe(body: &Body, op_plan: &CollectivePlan, topology: Topology) -> Description {
    Description {
        computes: computes(op_plan, topology),
        summary: format!(
            "{}{} CTAs of {} threads",
            travel(op_plan, topology),
            body.launch.grid_ctas,
            body.launch.threads
        ),
        sections: sections(op_plan, topology),
        shared: "nothing".to_owned(),
    }
}

fn sections(op_plan: &CollectivePlan, topology: Topology) -> Vec<(&'static str, Vec<String>)> {
    let transfer = ("transfer", transfer(op_plan, topology));
    let norm = op_plan.norm.map(|norm| {
        let warps = match norm.warps {
            1 => "a warp for each row".to_owned(),
            warps => format!("{warps} warps for each row, which send each other sums of squares"),
        };
        ("norm", vec![warps])
    });
    let exchange = match op_plan.shares_magnitudes() {
        true => "; with the squares, the warps of a row send each other greatest magnitudes",
        false => "",
    };
    let (sent, made) = (op_plan.config.scales, op_plan.config.epilogue.result_scales);
    let of_rows = [
        (
            sent,
            format!("one for each {sent}, behind the elements of the row"),
        ),
        (made, format!("one for each {made} of Y{exchange}")),
    ];
    let of_rows = of_rows.into_iter().filter(|(of, _)| *of != Scales::None);
    let scales = of_rows.map(|(_, line)| ("scales", vec![line]));
    let sections = [transfer].into_iter().chain(norm);
    sections.chain(scales).collect()
}

fn computes(op_plan: &CollectivePlan, topology: Topology) -> String {
    let shape = op_plan.shape;
    let (formula, whose) = match op_plan.config.op {
        CollectiveOp::AllReduce => ("Σ_r X_r", " on every rank"),
        CollectiveOp::AllGather => ("rows of all ranks", " on every rank"),
        CollectiveOp::ReduceScatter => ("Σ_r X_r", ", rank r keeps its rows"),
        CollectiveOp::AllToAll => ("rows of all ranks' X", ", rank r gets its rows of each"),
        CollectiveOp::Broadcast => ("X of the root", " on every rank"),
    };
    let epilogue = op_plan.config.epilogue;
    let formula = match epilogue.norm {
        Norm::None => formula.to_owned(),
        norm => format!("{norm}({})", epilogue.addends(formula)),
    };
    format!(
        "Y = {formula} [{}, {}]{whose}, {}, {}{}",
        shape.m,
        shape.n,
        ranks_on(topology),
        op_plan.config.dtype,
        match epilogue.quantises() {
            true => format!(", Y in {}", op_plan.config.result_dtype()),
            false => String::new(),
        }
    )
}

/// The protocol of the data, in a few words.
fn travel(op_plan: &CollectivePlan, topology: Topology) -> String {
    match (op_plan.protocol, op_plan.shots) {
        _ if topology.world() == 1 => String::new(),
        (Protocol::Ll, 1) => "packets, one shot, ".to_owned(),
        (Protocol::Ll, 2) => "packets, two shots, ".to_owned(),
        (Protocol::Ll, _) => "packets, ".to_owned(),
        (Protocol::Simple, _) => format!("chunks of {} bytes, ", op_plan.chunk_vecs * 16),
    }
}

fn transfer(op_plan: &CollectivePlan, topology: Topology) -> Vec<String> {
    if topology.world() == 1 {
        return vec!["none: one rank".to_owned()];
    }
    vec![match (op_plan.protocol, op_plan.shots) {
        (Protocol::Ll, 1) => "Lamport packets; every rank adds up everything".to_owned(),
        (Protocol::Ll, 2) => {
            "Lamport packets; each rank adds up its part and sends it to all".to_owned()
        }
        (Protocol::Ll, _) if op_plan.config.op.reduces() => "Lamport packets".to_owned(),
        (Protocol::Ll, _) => "packets that carry flags".to_owned(),
        (Protocol::Simple, _) => format!(
            "chunks of {} bytes with a flag each, {} per rank",
            op_plan.chunk_vecs * 16,
            op_plan.shard_chunks()
        ),
    }]
}
