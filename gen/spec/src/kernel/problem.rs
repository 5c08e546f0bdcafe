//! [`Problem`] and [`Shape`]: what is computed, a variant for each kind of operator.

use crate::field::Field;
use crate::ops::{attention, collective, combine, dispatch, each_problem, gemm};
use crate::options::dim::Dim;
use crate::options::op::Op;
use crate::options::option::{OptionSpec, Options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};

#[doc(hidden)]
#[macro_export]
macro_rules! problem_enums {
    (
        []
        $($Variant:ident $module:ident $KindOp:ident [$($Op:ident)+] $Config:ident $Shape:ident $Plan:ident;)+
    ) => {
        /// What is computed: the configuration of one kind of operator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(untagged)]
        pub enum Problem {
            $(#[doc = concat!("See [`", stringify!($Config), "`](", stringify!($module), "::", stringify!($Config), ").")]
            $Variant($module::$Config),)+
        }

        /// Sizes of all dimensions of a [`Problem`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(untagged)]
        pub enum Shape {
            $(#[doc = concat!("See [`", stringify!($Shape), "`](", stringify!($module), "::", stringify!($Shape), ").")]
            $Variant($module::$Shape),)+
        }

        $(
            impl From<$module::$Config> for Problem {
                fn from(config: $module::$Config) -> Self {
                    Self::$Variant(config)
                }
            }

            impl From<$module::$Shape> for Shape {
                fn from(shape: $module::$Shape) -> Self {
                    Self::$Variant(shape)
                }
            }
        )+

        impl Op {
            /// The operator with nothing decided: every size is dynamic, and every option has its default.
            #[must_use]
            pub fn problem(self) -> Problem {
                match self {
                    $($(Self::$Op => $module::$Config::new($module::$KindOp::$Op).into(),)+)+
                }
            }
        }

        impl Problem {
            /// The name of its variant, which is also that of the variant of [`Shape`].
            #[must_use]
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$Variant(_) => stringify!($Variant),)+
                }
            }
        }
    };
}
crate::problems!(problem_enums!);

impl Problem {
    /// The operator.
    #[must_use]
    pub const fn op(&self) -> Op {
        each_problem!(self, Problem(config) => config.op.op())
    }

    /// Its dimensions, in the order in which `prepare` takes their sizes.
    #[must_use]
    pub fn dims(&self) -> Vec<(Field, Dim)> {
        each_problem!(self, Problem(config) => config.dims())
    }

    /// The same, to be changed.
    pub fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
        each_problem!(self, Problem(config) => config.dims_mut())
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

    /// Its shape, if no dimension is dynamic.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        each_problem!(self, Problem(config) => config.shape().map(Shape::from))
    }

    /// The GEMM, if it is one.
    #[must_use]
    pub const fn gemm(&self) -> Option<&gemm::GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub const fn gemm_mut(&mut self) -> Option<&mut gemm::GemmConfig> {
        match self {
            Self::Gemm(config) => Some(config),
            _ => None,
        }
    }
}

/// The operator, and the options of its variant: their places in TOML are not within another.
impl Options for Problem {
    fn options(&self, _: Option<&'static str>) -> Vec<OptionSpec> {
        let place = ("KernelConfig", None);
        let mut all = vec![OptionSpec::new::<Op>(
            Field::OP,
            place,
            &["The operator."],
            None,
        )];
        all.extend(each_problem!(self, Problem(config) => config.options(None)));
        all
    }

    /// The operator is only checked: the problem is of it already.
    fn assign(&mut self, field: Field, value: &Value) -> Result<bool, String> {
        match field {
            Field::OP => Op::read(value).map(|_| true),
            _ => each_problem!(self, Problem(config) => config.assign(field, value)),
        }
    }
}

impl Shape {
    /// The size of a dimension; none if the problem does not have it.
    #[must_use]
    pub fn size(&self, field: Field) -> Option<u64> {
        each_problem!(self, Shape(shape) => shape.size(field))
    }
}
