//! What rustdoc shows on a `#[fused_kernel]` struct.

use mkernel_spec::{BLayout, Dim, Dtype, Epilogue, KernelConfig, KernelPlan, Op};

/// Lines of Markdown: semantics, what each rank passes, and the plan where all sizes are known.
pub fn lines(config: &KernelConfig, plan: Option<&KernelPlan>) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!("# Fused kernel: `{}`", config.op),
        String::new(),
        format!("{} {}", semantics(config.op), layout(config)),
        String::new(),
    ];
    lines.extend(epilogue(config));
    lines.extend(operands(config));
    lines.push(String::new());
    lines.push(match plan {
        Some(plan) => planned(plan),
        None => "Planned and compiled at `prepare`, when every size is known.".to_owned(),
    });
    lines
}

fn semantics(op: Op) -> &'static str {
    match op {
        Op::AgGemm => {
            "`C[M,N] = AllGather(A)[M,K] · B`: each rank holds its rows of A and a B of its own."
        }
        Op::GemmRs => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over the ranks' A and B: each rank keeps its rows of the sum."
        }
        Op::GemmAr => {
            "`C = Σ_r A_r[M,K] · B_r`, summed over the ranks' A and B: each rank gets all of the sum, with the same bits."
        }
        _ => "",
    }
}

/// What becomes of the sum, if anything does but its rounding.
fn epilogue(config: &KernelConfig) -> Vec<String> {
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
            "Of each element of that sum, C has `{formula}`, computed in fp32 and rounded once."
        ),
        String::new(),
    ]
}

fn layout(config: &KernelConfig) -> String {
    let ranks = match config.world {
        1 => "One rank".to_owned(),
        world => format!("{world} ranks of one node"),
    };
    let types = match config.epilogue.output {
        Dtype::Bf16 => "bf16 in and out",
        Dtype::Fp32 => "bf16 in, fp32 out",
    };
    format!("{ranks}; row-major {types}, fp32 accumulate.")
}

fn operands(config: &KernelConfig) -> Vec<String> {
    let size = |dim: Dim, name: &str| dim.fixed().map_or(name.to_owned(), |size| size.to_string());
    let (m, n, k) = (
        size(config.m, "M"),
        size(config.n, "N"),
        size(config.k, "K"),
    );
    let shard_rows = match (config.m.fixed(), config.world) {
        (_, 1) => m.clone(),
        (Some(m), world) => m.div_ceil(u64::from(world)).to_string(),
        (None, world) => format!("⌈M/{world}⌉"),
    };
    let of_rank = match config.world {
        1 => String::new(),
        _ => format!("rows `r·{shard_rows}..` on rank r, the last ranks perhaps fewer; "),
    };
    let b = match config.b_layout {
        BLayout::Kn => format!("`[{k}, {n}]` | `[K, N]`; read"),
        BLayout::Nk => format!("`[{n}, {k}]` | `[N, K]`; read"),
    };
    let shard = format!("[{shard_rows}, ");
    let whole = (format!("[{m}, "), String::new());
    let (a, c) = match config.op {
        Op::AgGemm => ((shard, of_rank), whole),
        Op::GemmRs => (whole, (shard, of_rank)),
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
        let common = common(config.op == Op::GemmAr);
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

fn planned(plan: &KernelPlan) -> String {
    let transfer = plan
        .transfer
        .map_or(String::new(), |transfer| format!(", transfer {transfer}"));
    format!(
        "Planned for {}: tile {}×{}, {} stages{transfer}; bound {:.0} µs ({}), estimate {:.0} µs.",
        plan.device.name,
        plan.tile.m,
        plan.tile.n,
        plan.stages,
        plan.bound.us(),
        plan.bound.reason(),
        plan.estimate_us,
    )
}
