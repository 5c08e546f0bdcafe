//! The documentation of a collective.

use super::phrases::ranks_on;
use mkernel_spec::plan::CollectivePlan;
use mkernel_spec::{CollectiveConfig, CollectiveOp, Dim, KernelConfig};

/// Lines of Markdown with the semantics and a table of operands.
pub fn lines(config: &CollectiveConfig, kernel: &KernelConfig) -> Vec<String> {
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let (m, n) = (size(config.m, "M"), size(config.n, "N"));
    let shard = match config.m.fixed() {
        Some(m) => m.div_ceil(kernel.world.into()).to_string(),
        None => format!("⌈M/{}⌉", kernel.world),
    };
    let (semantics, x, y) = match config.op {
        CollectiveOp::AllReduce => (
            "`Y = Σ_r X_r`. Every rank gets the whole sum, bitwise the same.",
            &m,
            &m,
        ),
        CollectiveOp::AllGather => (
            "`Y` has the rows of all ranks, in the order of ranks.",
            &shard,
            &m,
        ),
        CollectiveOp::ReduceScatter => ("`Y` has this rank's rows of `Σ_r X_r`.", &m, &shard),
    };
    let ranks = ranks_on(kernel.world, kernel.nodes);
    let sums = match config.op.reduces() {
        true => ", added up in fp32",
        false => "",
    };
    vec![
        semantics.to_owned(),
        String::new(),
        format!(
            "{ranks}; {}{sums}. The last ranks may have fewer rows.",
            config.dtype
        ),
        String::new(),
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!("| X | `[{x}, {n}]` | read |"),
        format!("| Y | `[{y}, {n}]` | written |"),
    ]
}

/// Summarises the plan in a few words.
pub fn planned(plan: &CollectivePlan) -> String {
    match (plan.protocol, plan.shots) {
        (protocol, 0) => format!("protocol {protocol}"),
        (protocol, shots) => format!(
            "protocol {protocol}, {shots} shot{}",
            if shots == 1 { "" } else { "s" }
        ),
    }
}
