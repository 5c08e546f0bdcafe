//! [`OpPlan`]: the parts of plans that only one kind of operator has.

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
    /// The plan of a GEMM.
    Gemm(GemmPlan),
    /// The plan of attention.
    Attention(AttentionPlan),
    /// The plan of a dispatch: how tokens reach experts and are multiplied.
    Dispatch(DispatchPlan),
    /// The plan of a combine: how results of experts are added up.
    Combine(CombinePlan),
    /// The plan of a collective.
    Collective(CollectivePlan),
}
