//! [`Problem`] and [`Shape`]: what is computed, a variant for each kind of operator.

use crate::field::Field;
use crate::ops::attention::{AttentionConfig, AttentionOp, AttentionShape};
use crate::ops::collective::{CollectiveConfig, CollectiveOp, CollectiveShape};
use crate::ops::combine::{CombineConfig, CombineOp, CombineShape};
use crate::ops::dispatch::{DispatchConfig, DispatchOp, DispatchShape};
use crate::ops::gemm::{GemmConfig, GemmOp, GemmShape};
use crate::options::dim::Dim;
use crate::options::op::Op;
use crate::options::option::{OperatorConfig, OptionSpec, Options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};

/// The computation: the configuration of one kind of operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Problem {
    /// A GEMM, and the exchange between ranks for it.
    Gemm(GemmConfig),
    /// Attention over a sequence that ranks share.
    Attention(AttentionConfig),
    /// Tokens on their way to experts.
    Dispatch(DispatchConfig),
    /// Results of experts on their way back.
    Combine(CombineConfig),
    /// A collective without a product.
    Collective(CollectiveConfig),
}

impl Problem {
    /// Sets `batch_invariant` of the operator. Attention has no such option and stays as it is.
    pub const fn set_batch_invariant(&mut self, is_invariant: bool) {
        match self {
            Self::Gemm(config) => config.batch_invariant = is_invariant,
            Self::Dispatch(config) => config.batch_invariant = is_invariant,
            Self::Combine(config) => config.batch_invariant = is_invariant,
            Self::Collective(config) => config.batch_invariant = is_invariant,
            Self::Attention(_) => {}
        }
    }
}

/// Sizes of all dimensions of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Shape {
    /// The sizes of a GEMM.
    Gemm(GemmShape),
    /// The sizes of attention.
    Attention(AttentionShape),
    /// The sizes of a dispatch.
    Dispatch(DispatchShape),
    /// The sizes of a combine.
    Combine(CombineShape),
    /// The sizes of a collective.
    Collective(CollectiveShape),
}

/// The configuration of one kind of operator, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SizedProblem {
    Gemm(GemmConfig, GemmShape),
    Attention(AttentionConfig, AttentionShape),
    Dispatch(DispatchConfig, DispatchShape),
    Combine(CombineConfig, CombineShape),
    Collective(CollectiveConfig, CollectiveShape),
}

impl SizedProblem {
    /// The sizes.
    pub const fn shape(&self) -> Shape {
        match *self {
            Self::Gemm(_, shape) => Shape::Gemm(shape),
            Self::Attention(_, shape) => Shape::Attention(shape),
            Self::Dispatch(_, shape) => Shape::Dispatch(shape),
            Self::Combine(_, shape) => Shape::Combine(shape),
            Self::Collective(_, shape) => Shape::Collective(shape),
        }
    }
}

/// Converts the configurations and shapes of all kinds.
macro_rules! from_kinds {
    ($($kind:ident: $config:ty, $shape:ty;)+) => {
        $(
            impl From<$config> for Problem {
                fn from(config: $config) -> Self {
                    Self::$kind(config)
                }
            }

            impl From<$shape> for Shape {
                fn from(shape: $shape) -> Self {
                    Self::$kind(shape)
                }
            }
        )+
    };
}

from_kinds! {
    Gemm: GemmConfig, GemmShape;
    Attention: AttentionConfig, AttentionShape;
    Dispatch: DispatchConfig, DispatchShape;
    Combine: CombineConfig, CombineShape;
    Collective: CollectiveConfig, CollectiveShape;
}

impl Op {
    /// The operator with every size dynamic, and every option at its default.
    #[must_use]
    pub fn problem(self) -> Problem {
        match self {
            Self::AgGemm => GemmConfig::new(GemmOp::AgGemm).into(),
            Self::GemmRs => GemmConfig::new(GemmOp::GemmRs).into(),
            Self::GemmAr => GemmConfig::new(GemmOp::GemmAr).into(),
            Self::Gemm => GemmConfig::new(GemmOp::Gemm).into(),
            Self::RingAttention => AttentionConfig::new(AttentionOp::RingAttention).into(),
            Self::DispatchGemm => DispatchConfig::new(DispatchOp::DispatchGemm).into(),
            Self::GemmCombine => DispatchConfig::new(DispatchOp::GemmCombine).into(),
            Self::MoeLayer => DispatchConfig::new(DispatchOp::MoeLayer).into(),
            Self::Combine => CombineConfig::new(CombineOp::Combine).into(),
            Self::AllReduce => CollectiveConfig::new(CollectiveOp::AllReduce).into(),
            Self::AllGather => CollectiveConfig::new(CollectiveOp::AllGather).into(),
            Self::ReduceScatter => CollectiveConfig::new(CollectiveOp::ReduceScatter).into(),
            Self::Broadcast => CollectiveConfig::new(CollectiveOp::Broadcast).into(),
            Self::AllToAll => CollectiveConfig::new(CollectiveOp::AllToAll).into(),
        }
    }
}

impl Problem {
    /// The configuration, whatever the kind of operator.
    #[must_use]
    pub fn config(&self) -> &dyn OperatorConfig {
        match self {
            Self::Gemm(config) => config,
            Self::Attention(config) => config,
            Self::Dispatch(config) => config,
            Self::Combine(config) => config,
            Self::Collective(config) => config,
        }
    }

    /// The configuration, to be changed.
    pub fn config_mut(&mut self) -> &mut dyn OperatorConfig {
        match self {
            Self::Gemm(config) => config,
            Self::Attention(config) => config,
            Self::Dispatch(config) => config,
            Self::Combine(config) => config,
            Self::Collective(config) => config,
        }
    }

    /// The operator.
    #[must_use]
    pub fn op(&self) -> Op {
        self.config().op()
    }

    /// The dimensions.
    #[must_use]
    pub fn dims(&self) -> Vec<(Field, Dim)> {
        self.config().dims()
    }

    /// The dimensions, to be changed.
    pub fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
        self.config_mut().dims_mut()
    }

    /// The dimension that each call gives if it is dynamic. Sizes of other dynamic dimensions are given when the kernel
    /// is prepared.
    #[must_use]
    pub const fn run_time_dim(&self) -> Option<Field> {
        match self {
            Self::Gemm(_) | Self::Collective(_) => Some(Field::M),
            Self::Attention(_) => Some(Field::SEQ),
            _ => None,
        }
    }

    /// Whether ranks communicate. If not, calls of one rank need no calls of other ranks.
    #[must_use]
    pub fn communicates(&self) -> bool {
        self.gemm().is_none_or(|gemm| gemm.op.communicates())
    }

    /// The sizes, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        self.sized().map(|sized| sized.shape())
    }

    /// The problem with its sizes, if no dimension is dynamic.
    pub(super) fn sized(&self) -> Option<SizedProblem> {
        Some(match *self {
            Self::Gemm(of) => SizedProblem::Gemm(of, of.shape()?),
            Self::Attention(of) => SizedProblem::Attention(of, of.shape()?),
            Self::Dispatch(of) => SizedProblem::Dispatch(of, of.shape()?),
            Self::Combine(of) => SizedProblem::Combine(of, of.shape()?),
            Self::Collective(of) => SizedProblem::Collective(of, of.shape()?),
        })
    }

    /// The GEMM; `None` if the problem is not a GEMM.
    #[must_use]
    pub const fn gemm(&self) -> Option<&GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }

    /// The GEMM, to be changed; `None` if the problem is not a GEMM.
    pub const fn gemm_mut(&mut self) -> Option<&mut GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }
}

/// The operator, and the options of its variant. No TOML table contains these options.
impl Options for Problem {
    fn options(&self, _: Option<&'static str>) -> Vec<OptionSpec> {
        let place = ("KernelConfig", None);
        let mut all = vec![OptionSpec::new::<Op>(
            Field::OP,
            place,
            &["The operator."],
            None,
        )];
        all.extend(self.config().options(None));
        all
    }

    /// The operator is only checked, since the variant of the problem has it already.
    fn assign(&mut self, field: Field, value: &Value) -> Result<bool, String> {
        match field {
            Field::OP => Op::read(value).map(|_| true),
            _ => self.config_mut().assign(field, value),
        }
    }
}

impl Shape {
    /// The size of a dimension; `None` if the problem does not have the dimension.
    #[must_use]
    pub fn size(&self, field: Field) -> Option<u64> {
        match self {
            Self::Gemm(shape) => shape.size(field),
            Self::Attention(shape) => shape.size(field),
            Self::Dispatch(shape) => shape.size(field),
            Self::Combine(shape) => shape.size(field),
            Self::Collective(shape) => shape.size(field),
        }
    }
}
