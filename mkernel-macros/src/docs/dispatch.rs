//! The documentation of operators with products of experts.

use super::gemm::{SAME, blocks};
use super::operand::OperandDoc;
use super::phrases::{Ranks, size};
use mkernel_spec::abi::Operand;
use mkernel_spec::plan::DispatchPlan;
use mkernel_spec::{BLayout, DispatchConfig, DispatchOp, Dtype, Scales, Scores};

/// Paragraphs of Markdown about the computation.
pub fn semantics(config: &DispatchConfig, ranks: Ranks) -> Vec<String> {
    let result = match config.swiglu {
        true => "`silu(x · gate) · (x · up)`",
        false => "`x · W`",
    };
    let computes = match config.op {
        DispatchOp::DispatchGemm => format!(
            "{result} for each token and each of its {} of {} experts, on the rank of the expert. Rows are ordered by expert, then by source rank and token.",
            size(config.top_k, "k"),
            size(config.experts, "E")
        ),
        DispatchOp::MoeLayer => format!(
            "{result} of each token and each of its {} of {} experts, times the expert's down projection, summed with the router's weights on the token's rank.",
            size(config.top_k, "k"),
            size(config.experts, "E")
        ),
        DispatchOp::GemmCombine => format!(
            "`A · W` of each row, with the weight of the row's expert, summed with the router's weights over the rows of each token, on the token's rank. A token has up to {} rows of {} experts. Rows are ordered by expert, as `dispatch_gemm` leaves them.",
            size(config.top_k, "k"),
            size(config.experts, "E")
        ),
    };
    let experts = match config.router.scores {
        Scores::Given => String::new(),
        scores => format!(" The kernel chooses the experts of a token by {scores} of its logits."),
    };
    vec![
        format!("{computes}{experts}"),
        format!(
            "{}; {}, fp32 accumulate.",
            ranks.words(),
            config.types().tokens
        ),
    ]
}

/// The operands of a rank.
pub fn operands(config: &DispatchConfig, ranks: Ranks) -> Vec<OperandDoc> {
    match config.op.dispatches() {
        true => operands_of_tokens(config, ranks),
        false => operands_of_rows(config, ranks),
    }
}

/// The shape of the down projections of `local` experts.
fn down_shape(config: &DispatchConfig, local: &str) -> String {
    let (hidden, cols) = (size(config.hidden, "H"), size(config.intermediate, "I"));
    match config.b_layout {
        BLayout::Kn => format!("[{local}, {cols}, {hidden}]"),
        BLayout::Nk => format!("[{local}, {hidden}, {cols}]"),
    }
}

/// The operands of a kernel whose experts have rows.
fn operands_of_rows(config: &DispatchConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (tokens, hidden) = (size(config.max_tokens, "T"), size(config.hidden, "H"));
    let cols = size(config.intermediate, "I");
    let local = ranks.part(config.experts, "E");
    let choices = format!("[{tokens}, {}]", size(config.top_k, "k"));
    let weight = down_shape(config, &local);
    let types = config.types();
    let numbers = |operand, shape| OperandDoc::new(operand, Dtype::Int32, shape);
    let mut operands = vec![
        OperandDoc::new(Operand::A, types.tokens, format!("[max_rows, {cols}]"))
            .note("only rows of experts"),
        numbers(Operand::ExpertOffsets, format!("[{local} + 1]"))
            .note("as `dispatch_gemm` writes them"),
        numbers(Operand::NumTokens, "[1]".to_owned()),
        numbers(Operand::RowIndices, choices.clone()).note("as `dispatch_gemm` writes them"),
        OperandDoc::new(Operand::TopkWeights, Dtype::Fp32, choices),
        OperandDoc::new(Operand::B, types.weights, weight),
        OperandDoc::new(Operand::C, types.c, format!("[{tokens}, {hidden}]"))
            .note("only the first `num_tokens` rows"),
    ];
    let (of_cols, of_hidden) = (blocks(config.intermediate, "I"), blocks(config.hidden, "H"));
    let (of_rows, of_weights) = match config.scales {
        Scales::None => return operands,
        Scales::Tensor => ("[1]".to_owned(), format!("[{local}]")),
        Scales::Row => ("[max_rows]".to_owned(), format!("[{local}, {hidden}]")),
        Scales::Block => (
            format!("[max_rows, {of_cols}]"),
            format!("[{local}, {of_hidden}, {of_cols}]"),
        ),
    };
    let scales = [(Operand::AScales, of_rows), (Operand::BScales, of_weights)];
    operands.extend(scales.map(|(operand, shape)| OperandDoc::new(operand, Dtype::Fp32, shape)));
    operands
}

/// The operands of a kernel to whose experts tokens are sent.
fn operands_of_tokens(config: &DispatchConfig, ranks: Ranks) -> Vec<OperandDoc> {
    let (tokens, hidden) = (size(config.max_tokens, "T"), size(config.hidden, "H"));
    let cols = size(config.intermediate, "I");
    let local = ranks.part(config.experts, "E");
    let weight_cols = match config.swiglu {
        true => format!("2·{cols}"),
        false => cols.clone(),
    };
    let weight = match config.b_layout {
        BLayout::Kn => format!("[{local}, {hidden}, {weight_cols}]"),
        BLayout::Nk => format!("[{local}, {weight_cols}, {hidden}]"),
    };
    let choices = format!("[{tokens}, {}]", size(config.top_k, "k"));
    let types = config.types();
    let mut operands = vec![
        OperandDoc::new(
            Operand::Tokens,
            types.tokens,
            format!("[{tokens}, {hidden}]"),
        )
        .note("only the first `num_tokens` rows"),
        OperandDoc::new(Operand::NumTokens, Dtype::Int32, "[1]".to_owned()),
    ];
    operands.extend(routes(config, &tokens, &choices));
    let b = OperandDoc::new(Operand::B, types.weights, weight);
    operands.extend(match config.op.returns() {
        false => vec![
            b,
            OperandDoc::new(Operand::C, types.c, format!("[max_rows, {cols}]"))
                .note("only rows that have a token"),
            OperandDoc::new(
                Operand::ExpertOffsets,
                Dtype::Int32,
                format!("[{local} + 1]"),
            )
            .written(),
            OperandDoc::new(Operand::RowIndices, Dtype::Int32, choices)
                .written()
                .note("rank · max_rows + row, or -1, for `combine`"),
        ],
        true => {
            let down = down_shape(config, &local);
            vec![
                b,
                OperandDoc::new(Operand::Down, types.weights, down),
                OperandDoc::new(Operand::C, types.c, format!("[{tokens}, {hidden}]"))
                    .note("only the first `num_tokens` rows"),
            ]
        }
    });
    operands.extend(scales(config, (&tokens, &local, &weight_cols)));
    if config.quantises_results() {
        let shape = format!("[max_rows, {}]", blocks(config.intermediate, "I"));
        operands.push(
            OperandDoc::new(Operand::CScales, Dtype::Fp32, shape)
                .note("only rows that have a token"),
        );
    }
    operands
}

/// The experts of `tokens` tokens and their weights: read, or chosen from logits and written.
fn routes(config: &DispatchConfig, tokens: &str, choices: &str) -> Vec<OperandDoc> {
    let ids = OperandDoc::new(Operand::TopkIds, Dtype::Int32, choices.to_owned());
    let weights = OperandDoc::new(Operand::TopkWeights, Dtype::Fp32, choices.to_owned());
    if !config.router.chooses() {
        let mut given = vec![ids.note("no expert twice for a token, -1 for no choice")];
        given.extend((config.op == DispatchOp::MoeLayer).then_some(weights));
        return given;
    }
    let experts = size(config.experts, "E");
    let logits = format!("[{tokens}, {experts}]");
    let mut routes = vec![
        OperandDoc::new(Operand::Logits, config.types().logits, logits)
            .note("only the first `num_tokens` rows"),
    ];
    if config.router.score_bias {
        routes.push(OperandDoc::new(
            Operand::ScoreBias,
            Dtype::Fp32,
            format!("[{experts}]"),
        ));
    }
    let written = [ids, weights].map(|of| of.written().note("only the first `num_tokens` rows"));
    routes.extend(written);
    routes
}

/// The scales of `tokens` tokens, and of `local` experts of this rank, whose weights have `weight_cols` columns.
fn scales(
    config: &DispatchConfig,
    (tokens, local, weight_cols): (&str, &str, &str),
) -> Vec<OperandDoc> {
    let up = if config.swiglu { "2·" } else { "" };
    let (of_tokens, of_weights) = match config.scales {
        Scales::None => return Vec::new(),
        Scales::Tensor => ("[1]".to_owned(), format!("[{local}]")),
        Scales::Row => (format!("[{tokens}]"), format!("[{local}, {weight_cols}]")),
        Scales::Block => {
            let of_cols = blocks(config.intermediate, "I");
            let of_hidden = blocks(config.hidden, "H");
            (
                format!("[{tokens}, {of_hidden}]"),
                format!("[{local}, {up}{of_cols}, {of_hidden}]"),
            )
        }
    };
    let of_tokens = OperandDoc::new(Operand::AScales, Dtype::Fp32, of_tokens);
    let mut scales = vec![
        match config.scales {
            Scales::Tensor => of_tokens.note(SAME),
            _ => of_tokens,
        },
        OperandDoc::new(Operand::BScales, Dtype::Fp32, of_weights),
    ];
    if config.op == DispatchOp::MoeLayer {
        let (rows, cols) = (blocks(config.hidden, "H"), blocks(config.intermediate, "I"));
        let of_down = format!("[{local}, {rows}, {cols}]");
        scales.push(OperandDoc::new(Operand::DownScales, Dtype::Fp32, of_down));
    }
    scales
}

/// Summarises the plan in a few words.
pub fn planned(plan: &DispatchPlan) -> String {
    let tile = format!(
        "tile {}×{}, {} stages",
        plan.tile.m, plan.tile.n, plan.stages
    );
    match plan.dispatches() {
        true => format!("{tile}, {} communication CTAs", plan.comm_ctas),
        false => tile,
    }
}
