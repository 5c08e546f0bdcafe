//! Inputs and reference of `dispatch_gemm`.

use super::gemm::{factors, shares};
use super::inputs::Inputs;
use super::other_batch::{Lines, OtherBatch};
use super::quantised::Quantised;
use super::reference::{Matrix, multiply, padded};
use super::router;
use super::routing::{OtherTokens, Routing, Sizes, TokenLoad, choose, within_max_rows};
use mkernel::Operand;
use mkernel::spec::plan::{DispatchPlan, SCALE_BLOCK};
use mkernel::{
    KernelConfig, KernelPlan,
    spec::{BLayout, Dim, Dtype, Problem, Scales, Shape},
};

pub(super) fn sizes(plan: &KernelPlan, op_plan: &DispatchPlan) -> Sizes {
    let shape = op_plan.shape;
    Sizes {
        world: plan.spec.world() as usize,
        experts: shape.experts as usize,
        top_k: shape.top_k as usize,
        max_tokens: shape.max_tokens as usize,
        max_rows: op_plan.max_rows as usize,
    }
}

/// Random tokens, and the experts of each.
pub fn inputs(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    load: TokenLoad,
    seed: u64,
    call: u32,
) -> Inputs {
    // With scales of tensors, all ranks have one scale of tokens.
    let has_one_scale = op_plan.config.scales == Scales::Tensor;
    let mut inputs = Inputs::random(plan, seed, call, |operand| {
        has_one_scale && operand == Operand::AScales
    });
    let sizes = sizes(plan, op_plan);
    let (mut ids, mut counts) = choose(sizes, load, seed, call);
    if op_plan.config.router.chooses() {
        router::choose(
            op_plan,
            sizes,
            seed ^ u64::from(call),
            &mut inputs,
            &mut ids,
        );
        counts = within_max_rows(sizes, &ids, &counts);
    }
    let counts = counts.into_iter().map(|count| vec![count]).collect();
    inputs.numbers = vec![(Operand::TopkIds, ids), (Operand::NumTokens, counts)];
    inputs
}

/// A column of integers.
fn numbers(values: Vec<f32>) -> Matrix {
    Matrix {
        values,
        cols: 1,
        terms: 0,
        errors: Vec::new(),
        dtype: Dtype::Int32,
    }
}

/// The rows of C of `rank`, and their errors. `rows` are the source rank and the
/// token of each row, for each expert of `rank`.
pub(super) fn outputs(
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rows: &[Vec<(usize, usize)>],
    rank: usize,
    threads: usize,
) -> (Vec<f32>, Vec<f32>) {
    let hidden = op_plan.shape.hidden as usize;
    let weight_cols = op_plan.weight_cols() as usize;
    let [of_tokens, of_weights] = shares(op_plan.config.scales);
    let tokens = (Operand::Tokens, Operand::AScales);
    let tokens = factors(inputs, tokens, hidden, of_tokens, 1);
    // Experts have scales of their own, and blocks of up begin where up does.
    let parts = rows.len()
        * match op_plan.config.scales {
            Scales::Block => op_plan.weights_of_col() as usize,
            _ => 1,
        };
    let weights = (Operand::B, Operand::BScales);
    let weights = &factors(inputs, weights, hidden, of_weights, parts)[rank];
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for (rows, weight) in rows.iter().zip(weights.chunks(hidden * weight_cols)) {
        let gathered: Vec<f32> = rows
            .iter()
            .flat_map(|(source, token)| &tokens[*source][token * hidden..(token + 1) * hidden])
            .copied()
            .collect();
        let is_transposed = op_plan.config.b_layout == BLayout::Nk;
        let product = multiply(
            &gathered,
            weight,
            is_transposed,
            (weight_cols, hidden),
            threads,
        )
        .of_factors(op_plan.config.dtype);
        let product = match op_plan.config.swiglu {
            true => product.swiglu(&[]),
            false => product,
        };
        values.extend(product.values);
        errors.extend(product.errors);
    }
    (values, errors)
}

/// The rows that the tokens of a call give.
pub(super) fn routing(sizes: Sizes, inputs: &Inputs) -> Routing {
    let counts = inputs.numbers(Operand::NumTokens).iter();
    let counts: Vec<i32> = counts.map(|count| count[0]).collect();
    Routing::new(sizes, inputs.numbers(Operand::TopkIds), &counts)
}

/// The expected C, expert offsets and row indices of `rank`, behind the experts and weights that the kernel chooses.
pub fn expected(
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    inputs: &Inputs,
    rank: u32,
    threads: usize,
) -> Option<Vec<Matrix>> {
    let sizes = sizes(plan, op_plan);
    let routing = routing(sizes, inputs);
    let (hidden, cols) = (
        op_plan.shape.hidden as usize,
        op_plan.shape.intermediate as usize,
    );
    let rank = rank as usize;
    let (values, errors) = outputs(op_plan, inputs, &routing.rows[rank], rank, threads);
    let quantises = op_plan.config.quantises_results();
    let c = Matrix {
        values,
        cols,
        terms: hidden,
        errors,
        dtype: match quantises {
            true => Dtype::Fp32, // which is not rounded before it becomes e4m3
            false => op_plan.types().c,
        },
    };
    let mut c = match quantises {
        true => {
            let Quantised { elements, scales } = Quantised::of(&c, SCALE_BLOCK as usize);
            vec![elements, scales]
        }
        false => vec![c],
    };
    for of_rows in &mut c {
        let values = std::mem::take(&mut of_rows.values);
        of_rows.values = padded(values, sizes.max_rows * of_rows.cols);
    }
    let [offsets, row_indices] = [&routing.offsets(rank), &routing.row_indices[rank]]
        .map(|numbers| numbers.iter().map(|number| *number as f32).collect());
    let mut expected = router::expected(op_plan, sizes, inputs, rank);
    let scales = c.split_off(1);
    expected.extend(c);
    expected.extend([
        numbers(offsets),
        numbers(padded(row_indices, sizes.max_tokens * sizes.top_k)),
    ]);
    expected.extend(scales);
    Some(expected)
}

/// The last half of the tokens of each rank, in reverse order. `None` if the kernel does not promise equal bits: `moe_layer` always does.
pub fn other_batch(
    config: &KernelConfig,
    plan: &KernelPlan,
    op_plan: &DispatchPlan,
    first: &Inputs,
) -> Option<OtherBatch> {
    let (mut config, mut shape) = (config.clone(), plan.shape());
    let (Problem::Dispatch(of), Shape::Dispatch(to)) = (&mut config.problem, &mut shape) else {
        return None;
    };
    if !op_plan.returns() && !of.batch_invariant {
        return None;
    }
    let tokens = OtherTokens::of(first);
    to.max_tokens = tokens.most() as u64;
    of.max_tokens = Dim::Static(to.max_tokens);
    let sizes = sizes(plan, op_plan);
    let ids = tokens.choices(first.numbers(Operand::TopkIds), sizes.top_k);
    let numbers = vec![(Operand::TopkIds, ids), tokens.counts()];
    let other = OtherBatch::planned(config, shape, None, numbers)?;
    let [before, after] = [first, &other.inputs].map(|inputs| routing(sizes, inputs));
    Some(other.of(first, |_, spec| match spec.operand {
        Operand::AScales if op_plan.config.scales == Scales::Tensor => None,
        Operand::TopkIds | Operand::TopkWeights => Some(tokens.lines(sizes.top_k)),
        Operand::Tokens | Operand::AScales | Operand::Logits => {
            Some(tokens.lines(spec.cols as usize))
        }
        Operand::C if op_plan.returns() => Some(tokens.lines(spec.cols as usize)),
        Operand::C | Operand::CScales => {
            Some(rows_of_tokens(&tokens, [&before, &after], spec.cols))
        }
        _ => None,
    }))
}

/// The rows of tokens in the order of the other batch, and where the first call has the rows of these tokens.
fn rows_of_tokens(tokens: &OtherTokens, [before, after]: [&Routing; 2], cols: u64) -> Lines {
    let mut places = Vec::new();
    for (rank, (before, after)) in before.rows.iter().zip(&after.rows).enumerate() {
        let (mut first_before, mut row) = (0, 0);
        for (before, after) in before.iter().zip(after) {
            for (source, token) in after {
                let token = (*source, tokens.0[*source][*token]);
                let found = before.binary_search(&token).ok();
                places.extend(found.map(|found| [(rank, row), (rank, first_before + found)]));
                row += 1;
            }
            first_before += before.len();
        }
    }
    Lines {
        cols: cols as usize,
        places,
    }
}
