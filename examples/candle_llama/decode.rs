//! The decoding loop, and the comparison of its results.

use super::model::{Model, State};
use candle_core::Result;
use mkernel_candle::{Graph, Ranks};
use std::time::{Duration, Instant};

/// The result of a step for one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token with the largest logit.
    pub token: u32,
    /// The two largest logits.
    pub best: f32,
    pub second: f32,
}

/// The choices of all steps, for each sequence.
pub type Choices = Vec<Vec<Choice>>;

/// Computes `steps` tokens of each sequence, and then computes them again without reading them back. Returns the choices,
/// and the time of the second pass.
pub fn decode(
    model: &Model<'_>,
    ranks: &Ranks,
    state: &State,
    steps: usize,
) -> Result<(Choices, Duration)> {
    let graph = match ranks.device().is_cpu() {
        true => None,
        // SAFETY: the model and the state live longer than the graph. A step writes only to tensors of the state.
        false => Some(unsafe { ranks.capture(|| model.step(state)) }?),
    };
    let step = |graph: Option<&Graph>| match graph {
        Some(graph) => graph.replay(),
        None => model.step(state),
    };
    state.reset()?;
    let mut choices = Choices::new();
    for _ in 0..steps {
        step(graph.as_ref())?;
        // Reading tensors waits for the GPU, but does not return errors of kernels.
        ranks.synchronize()?;
        let chosen = state.tokens()?.into_iter().zip(state.logits()?);
        choices.resize(chosen.len(), Vec::new());
        for (all, (token, logits)) in choices.iter_mut().zip(chosen) {
            all.push(choice(token, &logits)?);
        }
    }
    for (sequence, tokens) in state.history()?.iter().enumerate() {
        let chosen: Vec<u32> = choices[sequence]
            .iter()
            .map(|choice| choice.token)
            .collect();
        if &chosen != tokens {
            candle_core::bail!(
                "the history of sequence {sequence} is {tokens:?}, but {chosen:?} were chosen"
            );
        }
    }

    state.reset()?;
    ranks.synchronize()?;
    ranks
        .communicator()
        .barrier()
        .map_err(candle_core::Error::wrap)?;
    let started = Instant::now();
    for _ in 0..steps {
        step(graph.as_ref())?;
    }
    ranks.synchronize()?;
    Ok((choices, started.elapsed()))
}

/// Returns the choice of a token from its logits.
fn choice(token: u32, logits: &[f32]) -> Result<Choice> {
    let others = (0..).zip(logits).filter(|(other, _)| *other != token);
    let second = others.fold(f32::NEG_INFINITY, |most, (_, logit)| most.max(*logit));
    match logits.get(token as usize) {
        Some(&best) if best >= second => Ok(Choice {
            token,
            best,
            second,
        }),
        best => candle_core::bail!(
            "token {token} was chosen with the logit {best:?}, but another one has {second}"
        ),
    }
}

/// The distance between the choices of two runs.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The largest difference of the largest logits of a step.
    pub difference: f32,
    /// The smallest distance between the two largest logits of a step.
    pub gap: f32,
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the largest logits differ by at most {}, and are at least {} above the second ones",
            self.difference, self.gap
        )
    }
}

/// Compares two runs, whose logits differ by some roundings to bf16, since the runs add in different orders. Tokens must be
/// equal as long as the two largest logits differ by more than the logits of the runs do.
pub fn compare(one: &Choices, other: &Choices) -> std::result::Result<Comparison, String> {
    let mut found = Comparison {
        difference: 0.0,
        gap: f32::INFINITY,
    };
    for (sequence, (one, other)) in one.iter().zip(other).enumerate() {
        for (step, (one, other)) in one.iter().zip(other).enumerate() {
            let gap = (one.best - one.second).min(other.best - other.second);
            if one.token != other.token {
                let limit = 2.0 * found.difference;
                if gap > limit {
                    return Err(format!(
                        "sequence {sequence} goes on with token {} or {} at step {step}, where the best logit is {gap} above \
                         the second one, and logits differ by {}",
                        one.token, other.token, found.difference
                    ));
                }
                // Another text follows.
                break;
            }
            found.difference = found.difference.max((one.best - other.best).abs());
            found.gap = found.gap.min(gap);
        }
    }
    Ok(found)
}
