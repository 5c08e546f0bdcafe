//! Layers whose kernel chooses the experts of tokens from logits. All weights are exact.

use super::layer::Layer;
use mkernel::spec::{Router, Scores};

/// The logit of the first choice of a token. Its sigmoid is 1 in fp32, and so are the sigmoids of the next few whole numbers below.
const CHOSEN: f32 = 64.0;
/// The logit of an expert that is not chosen. In fp32, its part of a softmax with chosen experts is 0.
const NOT_CHOSEN: f32 = -64.0;

impl Layer {
    /// Lets the kernel choose the experts of all calls. With a softmax, all experts of a token have equal weights, and the expert with
    /// the lowest number is the first choice. A sigmoid keeps the order of choices.
    ///
    /// # Panics
    /// The weights of the experts would not be exact, or the router would choose other experts.
    #[must_use]
    pub fn routed(mut self, router: Router) -> Self {
        assert!(self.top_k.is_power_of_two() && !router.score_bias && router.restricts().is_none());
        self.router = router;
        if router.scores == Scores::Softmax {
            let tokens = self.calls.iter_mut().flatten().flatten();
            tokens.for_each(|ids| ids.sort_unstable());
        }
        self
    }

    /// Returns the logits of a rank's tokens. Logits of tokens that the rank does not have are NaN.
    pub(super) fn logits(&self, index: usize, rank: usize) -> Vec<f32> {
        if !self.router.chooses() {
            return Vec::new();
        }
        let experts = self.experts as usize;
        let mut logits: Vec<f32> = Vec::new();
        for ids in &self.calls[index][rank] {
            let first = logits.len();
            logits.resize(first + experts, NOT_CHOSEN);
            for (entry, id) in ids.iter().enumerate() {
                let step = match self.router.scores {
                    Scores::Softmax => 0.0,
                    _ => entry as f32,
                };
                logits[first + *id as usize] = CHOSEN - step;
            }
        }
        logits.resize(self.max_tokens as usize * experts, f32::NAN);
        logits
    }

    /// Returns the weight of a choice.
    pub(super) fn topk_weight(&self, token: usize, entry: usize) -> f32 {
        let router = &self.router;
        let share = match router.scores {
            Scores::Given => return [1.0, 2.0, -1.0][(token + 2 * entry) % 3],
            Scores::Sigmoid if !router.renormalise => 1.0,
            Scores::Softmax | Scores::Sigmoid => 1.0 / self.top_k as f32,
        };
        share * router.scale()
    }
}
