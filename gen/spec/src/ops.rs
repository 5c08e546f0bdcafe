//! The operators, a folder for each kind of them: operators that are declared alike share its configuration and its plan.
//!
//! A folder has the same files: `config.rs` (what the user writes), `check.rs` (what is possible), `op_plan.rs` (what only
//! its plans have), `plan.rs` (how a plan is chosen) and `memory.rs` (the regions that kernels use). Other crates have a
//! module of the folder's name for each task, with a function that [`by_problem!`](crate::by_problem) calls.

pub mod attention;
pub mod collective;
pub mod combine;
pub mod dispatch;
pub mod gemm;

/// Passes the kinds of operators to a macro: variant, module, operators, and types.
#[doc(hidden)]
#[macro_export]
macro_rules! problems {
    ($then:ident! $($with:tt)*) => {
        $crate::$then! {
            [$($with)*]
            Gemm gemm GemmOp [AgGemm GemmRs GemmAr] GemmConfig GemmShape GemmPlan;
            Attention attention AttentionOp [RingAttention] AttentionConfig AttentionShape AttentionPlan;
            Dispatch dispatch DispatchOp [DispatchGemm] DispatchConfig DispatchShape DispatchPlan;
            Combine combine CombineOp [Combine] CombineConfig CombineShape CombinePlan;
            Collective collective CollectiveOp [AllReduce AllGather ReduceScatter] CollectiveConfig CollectiveShape CollectivePlan;
        }
    };
}

/// Calls a function of the module that has the name of an operator's kind:
/// `by_problem!(&plan.op_plan, OpPlan(op_plan) => about(plan, op_plan))` calls `gemm::about`, `attention::about` or that of another
/// module in scope. [`Problem`](crate::Problem), [`Shape`](crate::Shape) and [`OpPlan`](crate::plan::OpPlan) have variants
/// of these kinds.
#[macro_export]
macro_rules! by_problem {
    ($of:expr, $Enum:ident($value:ident) => $function:ident($($arg:expr),* $(,)?)) => {
        $crate::problems!(call_by_problem! ($of) $Enum $value $function ($($arg),*))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! call_by_problem {
    (
        [($of:expr) $Enum:ident $value:ident $function:ident $args:tt]
        $($Variant:ident $module:ident $Op:ident $ops:tt $Config:ident $Shape:ident $Plan:ident;)+
    ) => {
        match $of {
            $($Enum::$Variant($value) => $module::$function $args,)+
        }
    };
}

/// Evaluates the same expression for the value of each kind: `each_problem!(self, Problem(config) => config.dims())`.
macro_rules! each_problem {
    ($of:expr, $Enum:ident($value:ident) => $result:expr) => {
        $crate::problems!(evaluate_by_problem! ($of) $Enum $value ($result))
    };
}
pub(crate) use each_problem;

#[doc(hidden)]
#[macro_export]
macro_rules! evaluate_by_problem {
    (
        [($of:expr) $Enum:ident $value:ident ($result:expr)]
        $($Variant:ident $module:ident $Op:ident $ops:tt $Config:ident $Shape:ident $Plan:ident;)+
    ) => {
        match $of {
            $($Enum::$Variant($value) => $result,)+
        }
    };
}
