//! The documentation of a GEMM operator.

use super::phrases::ranks_on;
use mkernel_spec::plan::GemmPlan;
use mkernel_spec::{BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, KernelConfig};

/// Lines of Markdown with the semantics and a table of operands.
pub fn lines(config: &GemmConfig, kernel: &KernelConfig) -> Vec<String> {
    let KernelConfig { world, nodes, .. } = *kernel;
    let mut lines = vec![
        format!("{} {}", semantics(config.op), layout(config, world, nodes)),
        String::new(),
    ];
    lines.extend(epilogue(config));
    lines.extend(operands(config, world));
    lines
}

/// Summarises the plan in a few words.
pub fn planned(plan: &GemmPlan) -> String {
    let transfer = plan
        .transfer
        .map_or(String::new(), |transfer| format!(", transfer {transfer}"));
    format!(
        "tile {}×{}, {} stages{transfer}",
        plan.tile.m, plan.tile.n, plan.stages
    )
}

fn semantics(op: GemmOp) -> &'static str {
    match op {
        GemmOp::AgGemm => {
            "`C[M,N] = AllGather(A)[M,K] · B`. Each rank has its rows of A and a B of its own."
        }
        GemmOp::GemmRs => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over all ranks. Each rank gets its rows of the sum."
        }
        GemmOp::GemmAr => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over all ranks. Each rank gets the whole sum, bitwise the same."
        }
    }
}

/// The formula of the epilogue, if it does more than round.
fn epilogue(config: &GemmConfig) -> Vec<String> {
    let epilogue = config.epilogue;
    let plain = Epilogue {
        output: epilogue.output,
        ..Epilogue::default()
    };
    if epilogue == plain {
        return Vec::new();
    }
    let formula = epilogue.formula("sum");
    vec![
        format!(
            "Each element `sum` of that sum becomes `{formula}` in C, computed in fp32 and rounded once."
        ),
        String::new(),
    ]
}

fn layout(config: &GemmConfig, world: u32, nodes: u32) -> String {
    let ranks = ranks_on(world, nodes);
    let types = match config.epilogue.output {
        Dtype::Bf16 => "bf16 in and out".to_owned(),
        other => format!("bf16 in, {other} out"),
    };
    format!("{ranks}; row-major {types}, fp32 accumulate.")
}

fn operands(config: &GemmConfig, world: u32) -> Vec<String> {
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let (m, n, k) = (
        size(config.m, "M"),
        size(config.n, "N"),
        size(config.k, "K"),
    );
    let shard_rows = match (config.m.fixed(), world) {
        (_, 1) => m.clone(),
        (Some(m), world) => m.div_ceil(u64::from(world)).to_string(),
        (None, world) => format!("⌈M/{world}⌉"),
    };
    let of_rank = match world {
        1 => String::new(),
        _ => format!("rows `r·{shard_rows}..` on rank r, perhaps fewer on the last ranks; "),
    };
    let b = match config.b_layout {
        BLayout::Kn => format!("`[{k}, {n}]` | `[K, N]`; read"),
        BLayout::Nk => format!("`[{n}, {k}]` | `[N, K]`; read"),
    };
    let shard = format!("[{shard_rows}, ");
    let whole = (format!("[{m}, "), String::new());
    let (a, c) = match config.op {
        GemmOp::AgGemm => ((shard, of_rank), whole),
        GemmOp::GemmRs => (whole, (shard, of_rank)),
        _ => (whole.clone(), whole),
    };
    let mut lines = vec![
        "| operand | on each rank | |".to_owned(),
        "|---|---|---|".to_owned(),
        format!("| A | `{}{k}]` | {}read |", a.0, a.1),
        format!("| B | {b} |"),
        format!("| C | `{}{n}]` | {}written |", c.0, c.1),
    ];
    if config.epilogue.bias {
        let common = common(config.op.reduces());
        lines.push(format!("| bias | `[{n}]` | {common}read |"));
    }
    if config.epilogue.residual {
        let common = common(config.op == GemmOp::GemmAr);
        lines.push(format!(
            "| residual | `{}{n}]` | {}{common}read |",
            c.0, c.1
        ));
    }
    lines
}

fn common(is_common: bool) -> &'static str {
    if is_common {
        "the same on all ranks; "
    } else {
        ""
    }
}
