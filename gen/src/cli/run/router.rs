//! Random logits, and the experts that a router chooses from them.

use super::inputs::{Inputs, Random, rounded};
use super::reference::{Matrix, padded};
use super::routing::{NO_CHOICE, Sizes};
use mkernel::Operand;
use mkernel::spec::plan::DispatchPlan;
use mkernel::spec::{Dtype, Router, Scores};

/// The part of the greatest number of a token by which two numbers differ if kernels rank both alike.
const LEAST_GAP: f64 = 1e-5;
/// Logits are drawn again for a token with a closer decision, this often at most.
const MOST_DRAWS: u32 = 1000;
/// The largest error of a weight, as a part of the weight.
pub(super) const WEIGHT_ERROR: f32 = 1e-5;

/// The choices of a token: experts and weights. `is_close` if rounding decides about an expert.
struct Choices {
    ids: Vec<i32>,
    weights: Vec<f64>,
    is_close: bool,
}

/// Makes logits with which tokens often have the experts `ids`, and replaces `ids` by the experts that the router chooses.
/// Adds the weights of these experts to the inputs.
pub(super) fn choose(
    op_plan: &DispatchPlan,
    sizes: Sizes,
    seed: u64,
    inputs: &mut Inputs,
    ids: &mut [Vec<i32>],
) {
    let router = &op_plan.config.router;
    let dtype = op_plan.types().logits;
    // Biases are smaller than differences of scores, so that tokens have different experts.
    let share = match router.scores {
        Scores::Softmax => 0.25 / sizes.experts as f32,
        Scores::Sigmoid | Scores::Given => 0.25,
    };
    for (operand, ranks) in &mut inputs.floats {
        if *operand == Operand::ScoreBias {
            ranks.iter_mut().flatten().for_each(|bias| *bias *= share);
        }
    }
    let biases = inputs.of(Operand::ScoreBias).to_vec();
    let mut random = Random(seed ^ 0x6c6f_6769_7473);
    let mut weights = Vec::new();
    for (operand, ranks) in &mut inputs.floats {
        if *operand != Operand::Logits {
            continue;
        }
        for (rank, (logits, ids)) in ranks.iter_mut().zip(ids.iter_mut()).enumerate() {
            let bias = biases.get(rank).map_or(&[][..], Vec::as_slice);
            let mut of_rank = Vec::with_capacity(ids.len());
            let tokens = logits
                .chunks_mut(sizes.experts)
                .zip(ids.chunks_mut(sizes.top_k));
            for (logits, ids) in tokens {
                for id in ids.iter().filter(|id| **id != NO_CHOICE) {
                    logits[*id as usize] = rounded(logits[*id as usize] + 1.5, dtype);
                }
                let mut choices = of_token(router, logits, bias, sizes.top_k);
                for _ in 0..MOST_DRAWS {
                    if !choices.is_close {
                        break;
                    }
                    logits
                        .iter_mut()
                        .for_each(|x| *x = rounded(2.0 * random.fraction(), dtype));
                    choices = of_token(router, logits, bias, sizes.top_k);
                }
                ids.copy_from_slice(&choices.ids);
                of_rank.extend(choices.weights.iter().map(|weight| *weight as f32));
            }
            weights.push(of_rank);
        }
    }
    inputs.floats.push((Operand::TopkWeights, weights));
}

/// The choices of a token with these logits. `bias` is empty if scores have no bias.
fn of_token(router: &Router, logits: &[f32], bias: &[f32], top_k: usize) -> Choices {
    let scores = scores(router.scores, logits);
    let biased = |expert: usize| scores[expert] + bias.get(expert).map_or(0.0, |x| f64::from(*x));
    let mut candidates: Vec<usize> = (0..logits.len()).collect();
    let mut is_close = false;
    let ranked: Vec<f64> = match (bias, router.restricts()) {
        ([], None) => logits.iter().map(|x| f64::from(*x)).collect(),
        _ => candidates.iter().map(|expert| biased(*expert)).collect(),
    };
    if let Some([groups, top]) = router.restricts() {
        let each = logits.len() / groups as usize;
        let sums = ranked.chunks(each).map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group.iter().take(2).sum()
        });
        let (kept, is_near) = greatest(
            &sums.collect::<Vec<f64>>(),
            (0..groups as usize).collect(),
            top as usize,
        );
        is_close |= is_near;
        candidates.retain(|expert| kept.contains(&(expert / each)));
    }
    let (chosen, is_near) = greatest(&ranked, candidates, top_k);
    is_close |= is_near && !(bias.is_empty() && router.restricts().is_none());
    let sum: f64 = match router.renormalise {
        true => chosen.iter().map(|expert| scores[*expert]).sum(),
        false => 1.0,
    };
    let weight = |expert: &usize| scores[*expert] / sum * f64::from(router.scale());
    Choices {
        ids: chosen.iter().map(|expert| *expert as i32).collect(),
        weights: chosen.iter().map(weight).collect(),
        is_close,
    }
}

fn scores(kind: Scores, logits: &[f32]) -> Vec<f64> {
    let logits = logits.iter().map(|x| f64::from(*x));
    match kind {
        Scores::Softmax => {
            let sum: f64 = logits.clone().map(f64::exp).sum();
            logits.map(|x| x.exp() / sum).collect()
        }
        Scores::Sigmoid | Scores::Given => logits.map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    }
}

/// The `count` candidates with the greatest numbers, the lowest of equal candidates first, and whether unequal numbers of
/// candidates are too close to rank.
fn greatest(numbers: &[f64], mut candidates: Vec<usize>, count: usize) -> (Vec<usize>, bool) {
    candidates.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a]).then(a.cmp(b)));
    let most = candidates
        .iter()
        .fold(0.0, |most: f64, at| most.max(numbers[*at].abs()));
    let pairs = candidates.windows(2).take(count);
    let mut gaps = pairs.map(|pair| numbers[pair[0]] - numbers[pair[1]]);
    let is_close = gaps.any(|gap| gap != 0.0 && gap < LEAST_GAP * most);
    candidates.truncate(count);
    (candidates, is_close)
}

/// The expected experts and weights of the choices of `rank`; nothing if the caller passes these.
pub(super) fn expected(
    op_plan: &DispatchPlan,
    sizes: Sizes,
    inputs: &Inputs,
    rank: usize,
) -> Vec<Matrix> {
    if !op_plan.config.router.chooses() {
        return Vec::new();
    }
    let written = inputs.numbers(Operand::NumTokens)[rank][0] as usize * sizes.top_k;
    let ids = &inputs.numbers(Operand::TopkIds)[rank][..written];
    let weights = &inputs.of(Operand::TopkWeights)[rank][..written];
    let matrix = |values: Vec<f32>, errors, dtype| Matrix {
        values: padded(values, sizes.max_tokens * sizes.top_k),
        cols: 1,
        terms: 0,
        errors,
        dtype,
    };
    let errors = weights.iter().map(|weight| weight * WEIGHT_ERROR).collect();
    vec![
        matrix(
            ids.iter().map(|id| *id as f32).collect(),
            Vec::new(),
            Dtype::Int32,
        ),
        matrix(weights.to_vec(), errors, Dtype::Fp32),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a router of DeepSeek-V3: two of four groups, and a bias that only the choice sees.
    #[test]
    fn groups_and_biases_decide_about_experts_and_not_about_weights() {
        let router = Router {
            scores: Scores::Sigmoid,
            groups: Some(4),
            top_groups: Some(2),
            renormalise: true,
            ..Router::default()
        };
        // The groups have sums of about 1.76, 1.46, 1.95 and 1.
        let logits = [2.0, 2.0, 9.0, -0.15, 3.5, 4.0, 0.0, 0.0];
        let chosen = of_token(&router, &logits, &[], 3);
        assert_eq!(chosen.ids, [5, 4, 0]);
        let sum: f64 = chosen.weights.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9 && !chosen.is_close);
        let bias = [0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let chosen = of_token(
            &Router {
                renormalise: false,
                ..router
            },
            &logits,
            &bias,
            3,
        );
        assert_eq!(chosen.ids, [2, 5, 4]);
        assert!(
            (chosen.weights[0] - 1.0).abs() < 1e-3,
            "{:?}",
            chosen.weights
        );
    }

    #[test]
    fn ties_go_to_the_lowest_expert_and_close_decisions_are_found() {
        let router = Router {
            scores: Scores::Softmax,
            ..Router::default()
        };
        let tied = of_token(&router, &[0.0, 1.0, 1.0, 1.0], &[], 2);
        assert_eq!((tied.ids, tied.is_close), (vec![1, 2], false));
        let bias = [0.0, 0.0, 1e-7, 0.0];
        assert!(of_token(&router, &[0.0, 1.0, 1.0, 1.0], &bias, 2).is_close);
    }
}
