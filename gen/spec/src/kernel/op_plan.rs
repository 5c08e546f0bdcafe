//! [`OpPlan`]: what only the plans of one kind of operator have.

use crate::ops::attention::AttentionPlan;
use crate::ops::collective::CollectivePlan;
use crate::ops::combine::CombinePlan;
use crate::ops::dispatch::DispatchPlan;
use crate::ops::gemm::GemmPlan;
use serde::Serialize;

/// The part of a plan that depends on the kind of operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OpPlan {
    /// How a GEMM is computed.
    Gemm(GemmPlan),
    /// How attention is computed.
    Attention(AttentionPlan),
    /// How tokens reach experts and are multiplied.
    Dispatch(DispatchPlan),
    /// How results of experts are added up.
    Combine(CombinePlan),
    /// How a collective is computed.
    Collective(CollectivePlan),
}
