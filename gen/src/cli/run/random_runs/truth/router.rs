//! The experts of tokens and their weights, given or chosen from logits.

use super::sums::size;
use super::{Element, Job};
use mkernel::Operand;
use mkernel::spec::{DispatchConfig, Scores};

/// The experts of the tokens of all ranks, and the weights of these experts.
pub struct Chosen {
    pub ids: Vec<Vec<i32>>,
    pub weights: Vec<Vec<f64>>,
}

impl Chosen {
    pub fn of(job: &Job, config: &DispatchConfig) -> Self {
        if config.router.scores == Scores::Given {
            return Self {
                ids: job.inputs.numbers(Operand::TopkIds).to_vec(),
                weights: job.floats_of_ranks(Operand::TopkWeights),
            };
        }
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for rank in 0..job.world {
            let bias = job.floats(Operand::ScoreBias, rank);
            let logits = job.floats(Operand::Logits, rank);
            let tokens = logits.chunks(size(config.experts));
            let entries: Vec<(i32, f64)> = tokens
                .flat_map(|logits| choices(config, logits, &bias))
                .collect();
            ids.push(entries.iter().map(|entry| entry.0).collect());
            weights.push(entries.iter().map(|entry| entry.1).collect());
        }
        Self { ids, weights }
    }

    /// The experts and weights that the kernel writes on a rank, if it chooses experts.
    pub fn written(&self, job: &Job, config: &DispatchConfig, rank: usize) -> Vec<Vec<Element>> {
        if config.router.scores == Scores::Given {
            return Vec::new();
        }
        let count = job.inputs.numbers(Operand::NumTokens)[rank][0] as usize;
        let count = count * size(config.top_k);
        let ids = self.ids[rank].iter().map(|id| (f64::from(*id), 0.0));
        let weights = self.weights[rank]
            .iter()
            .map(|weight| (*weight, weight / f64::from(1 << 16)));
        let within = |(entry, element)| (entry < count).then_some(element);
        vec![
            ids.enumerate().map(within).collect(),
            weights.enumerate().map(within).collect(),
        ]
    }
}

/// The experts of a token and their weights.
fn choices(config: &DispatchConfig, logits: &[f64], bias: &[f64]) -> Vec<(i32, f64)> {
    let router = &config.router;
    let exponentials: f64 = logits.iter().map(|x| x.exp()).sum();
    let score = |expert: usize| match router.scores {
        Scores::Softmax => logits[expert].exp() / exponentials,
        _ => 1.0 / (1.0 + (-logits[expert]).exp()),
    };
    let mut values: Vec<f64> = (0..logits.len())
        .map(|expert| score(expert) + bias.get(expert).unwrap_or(&0.0))
        .collect();
    if let (Some(groups), Some(top_groups)) = (router.groups, router.top_groups) {
        let each = logits.len() / groups as usize;
        let mut sums: Vec<f64> = values
            .chunks(each)
            .map(|group| {
                (0..2.min(each))
                    .zip(descending(group))
                    .map(|(_, value)| value)
                    .sum()
            })
            .collect();
        let mut is_kept = vec![false; groups as usize];
        for _ in 0..top_groups {
            is_kept[take_first_greatest(&mut sums)] = true;
        }
        for (expert, value) in values.iter_mut().enumerate() {
            if !is_kept[expert / each] {
                *value = f64::NEG_INFINITY;
            }
        }
    }
    let experts: Vec<usize> = (0..size(config.top_k))
        .map(|_| take_first_greatest(&mut values))
        .collect();
    let sum: f64 = experts.iter().map(|expert| score(*expert)).sum();
    let divisor = if router.renormalise { sum } else { 1.0 };
    let factor = router
        .score_scale
        .and_then(|scale| scale.fixed())
        .map_or(1.0, f64::from);
    let entry = |expert: &usize| (*expert as i32, score(*expert) / divisor * factor);
    experts.iter().map(entry).collect()
}

fn descending(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.reverse();
    values
}

/// The index of the first of the greatest values, which then becomes the least.
fn take_first_greatest(values: &mut [f64]) -> usize {
    let mut first = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[first] {
            first = at;
        }
    }
    values[first] = f64::NEG_INFINITY;
    first
}
