//! The options of kernels that choose the experts of tokens from the router's logits.

use crate::config::{Dtype, Field, Scale};
use crate::diagnostic::Diagnostics;
use crate::options::option::{OptionSpec, options};
use crate::options::option_type::{OptionType, choices};
use crate::options::value::Value;
use serde::{Deserialize, Serialize};

/// The most groups: a lane of a warp has the score of a group.
const MAX_GROUPS: u32 = 32;

choices! {
    /// How the experts of tokens are chosen.
    #[derive(Default)]
    pub enum Scores {
        /// The caller passes the experts and their weights.
        #[default]
        Given = "given",
        /// The scores of a token's experts are the softmax of its logits.
        Softmax = "softmax",
        /// The score of an expert is the sigmoid of its logit.
        Sigmoid = "sigmoid",
    }
}

options! {
    /// The choice of experts from the router's logits: the `top_k` experts with the greatest scores.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Router {
        options {
            /// Whether the caller passes the experts of tokens (given), or the kernel chooses experts by the softmax or the sigmoid of
            /// the router's logits.
            ///
            /// The kernel then reads `logits`, and writes `topk_ids` and `topk_weights`.
            scores: Scores as SCORES,
            /// Type of the logits: fp32, or the type of C, which is the default.
            #[among(Dtype::RESULTS)]
            #[serde(skip_serializing_if = "Option::is_none")]
            logits: Option<Dtype> as LOGITS,
            /// Whether `score_bias[experts]`, fp32, is added to scores for the choice of experts. Weights are scores without the bias.
            score_bias: bool as SCORE_BIAS,
            /// Groups of consecutive experts. A token has experts of its `top_groups` best groups only.
            ///
            /// The score of a group is the sum of its two greatest scores, which include the bias.
            #[serde(skip_serializing_if = "Option::is_none")]
            groups: Option<u32> as GROUPS,
            /// Groups that may have experts of a token.
            #[serde(skip_serializing_if = "Option::is_none")]
            top_groups: Option<u32> as TOP_GROUPS,
            /// Whether the weights of a token are divided by their sum.
            renormalise: bool as RENORMALISE,
            /// The factor by which weights are multiplied last, a number above 0; 1 if absent.
            #[serde(skip_serializing_if = "Option::is_none")]
            score_scale: Option<Scale> as SCORE_SCALE,
        }
    }
}

impl Router {
    /// Whether the kernel chooses the experts of tokens.
    #[must_use]
    pub const fn chooses(&self) -> bool {
        !matches!(self.scores, Scores::Given)
    }

    /// The number of groups, and the number of groups that may have experts of a token; `None` if all experts are one group.
    #[must_use]
    pub const fn restricts(&self) -> Option<[u32; 2]> {
        match (self.groups, self.top_groups) {
            (Some(groups), Some(top)) => Some([groups, top]),
            _ => None,
        }
    }

    /// The factor by which weights are multiplied.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.score_scale.and_then(Scale::fixed).unwrap_or(1.0)
    }

    /// The part of an identifier that stands for the options; empty if the kernel chooses nothing.
    pub(super) fn id(&self) -> String {
        if !self.chooses() {
            return String::new();
        }
        let groups = self
            .restricts()
            .map(|[groups, top]| format!("_g{top}of{groups}"));
        [
            format!("_{}", self.scores),
            self.logits
                .map_or_else(String::new, |dtype| format!("_{dtype}")),
            if self.score_bias { "_bias" } else { "" }.to_owned(),
            groups.unwrap_or_default(),
            if self.renormalise { "_norm" } else { "" }.to_owned(),
        ]
        .concat()
    }

    /// Records every mistake. `result` is the type of C; sizes that are not known yet are `None`.
    pub(super) fn check(
        &self,
        [experts, top_k]: [Option<u64>; 2],
        result: Dtype,
        found: &mut Diagnostics,
    ) {
        if !self.chooses() {
            return self.check_given(found);
        }
        self.check_limits(found);
        found.require(
            self.logits
                .is_none_or(|dtype| dtype == Dtype::Fp32 || dtype == result),
            Field::LOGITS,
            || {
                format!(
                    "a kernel with results of {result} does not convert logits of {}",
                    self.logits.unwrap_or(result)
                )
            },
            format!("use fp32 or {result}"),
        );
        self.check_groups(experts, top_k, found);
        found.require(
            self.scale().is_normal() && self.scale() > 0.0,
            Field::SCORE_SCALE,
            || format!("{} is not a normal number above 0", self.scale()),
            "use the factor of the model, such as 2.5",
        );
    }

    /// Records options that have no effect, because the caller passes the experts.
    fn check_given(&self, found: &mut Diagnostics) {
        let options = [
            (Field::LOGITS, self.logits.is_some()),
            (Field::SCORE_BIAS, self.score_bias),
            (Field::GROUPS, self.groups.is_some()),
            (Field::TOP_GROUPS, self.top_groups.is_some()),
            (Field::RENORMALISE, self.renormalise),
            (Field::SCORE_SCALE, self.score_scale.is_some()),
        ];
        for (field, is_given) in options {
            found.require(
                !is_given,
                field,
                || "with scores = given, the kernel reads no logits".to_owned(),
                "remove it, or set scores = softmax or sigmoid",
            );
        }
    }

    fn check_groups(&self, experts: Option<u64>, top_k: Option<u64>, found: &mut Diagnostics) {
        let (groups, top) = match (self.groups, self.top_groups) {
            (None, None) => return,
            (Some(groups), Some(top)) => (groups, top),
            (given, _) => {
                let (field, other) = match given {
                    Some(_) => (Field::GROUPS, Field::TOP_GROUPS),
                    None => (Field::TOP_GROUPS, Field::GROUPS),
                };
                let why = || format!("it has no effect without {other}");
                return found.require(false, field, why, format!("set {other} too, or remove it"));
            }
        };
        found.require(
            (1..=MAX_GROUPS).contains(&groups),
            Field::GROUPS,
            || {
                format!(
                    "{groups} groups are not in 1..={MAX_GROUPS} (a lane has the score of a group)"
                )
            },
            "use a number in that range",
        );
        found.require(
            (1..=groups.max(1)).contains(&top),
            Field::TOP_GROUPS,
            || format!("a token cannot have experts of {top} of {groups} groups"),
            format!("use 1 to {}", groups.max(1)),
        );
        let Some(experts) = experts.filter(|_| groups > 0) else {
            return;
        };
        found.require(
            experts.is_multiple_of(groups.into()),
            Field::GROUPS,
            || format!("{experts} experts cannot be divided evenly among {groups} groups"),
            "use a divisor of the experts",
        );
        let each = experts / u64::from(groups);
        let most = each * u64::from(top.min(groups));
        if let Some(top_k) = top_k {
            found.require(
                top_k <= most,
                Field::TOP_K,
                || format!("{top_k} is more than the {most} experts in {top} of {groups} groups"),
                format!(
                    "use at most {most}, or top_groups = {}",
                    top_k.div_ceil(each.max(1))
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dim, DispatchConfig, DispatchOp, KernelConfig};
    use crate::spec::KernelSpec;

    /// The mistakes of a `dispatch_gemm` of 30 experts, 8 for each token, with this router.
    fn mistakes(router: Router) -> Vec<String> {
        let config = DispatchConfig {
            experts: Dim::Static(30),
            top_k: Dim::Static(8),
            router,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        match KernelSpec::validate(KernelConfig::new(2, config)) {
            Ok(_) => Vec::new(),
            Err(found) => found.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let found = mistakes(Router {
            scores: Scores::Sigmoid,
            logits: Some(Dtype::Fp16),
            groups: Some(7),
            top_groups: Some(1),
            score_scale: Some(Scale::new(-1.0)),
            ..Router::default()
        });
        assert_eq!(found.len(), 4, "{found:?}");
        for part in [
            "fp16",
            "30 experts",
            "8 is more than the 4 experts in 1 of 7 groups",
            "-1",
        ] {
            assert!(
                found.iter().any(|one| one.contains(part)),
                "{part}: {found:?}"
            );
        }
        let all = Router {
            scores: Scores::Given,
            logits: Some(Dtype::Fp32),
            score_bias: true,
            groups: Some(2),
            top_groups: Some(1),
            renormalise: true,
            score_scale: Some(Scale::new(2.5)),
        };
        assert_eq!(mistakes(all).len(), 6);
        assert!(
            mistakes(Router {
                scores: Scores::Softmax,
                ..all
            })
            .is_empty()
        );
    }

    #[test]
    fn groups_and_top_groups_are_given_together_and_fit() {
        for (groups, top_groups, count) in [
            (Some(3), None, 1),
            (None, Some(3), 1),
            (Some(0), Some(0), 2),
            (Some(33), Some(34), 4),
            (Some(5), Some(6), 1),
            (Some(5), Some(2), 0),
            (Some(30), Some(7), 1),
            (Some(30), Some(8), 0),
        ] {
            let router = Router {
                scores: Scores::Softmax,
                groups,
                top_groups,
                ..Router::default()
            };
            let found = mistakes(router);
            assert_eq!(found.len(), count, "{groups:?} {top_groups:?}: {found:?}");
        }
    }
}
