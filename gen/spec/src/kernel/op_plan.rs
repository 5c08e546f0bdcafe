//! [`OpPlan`]: what only the plans of one kind of operator have.

use crate::ops::{attention, collective, combine, dispatch, gemm};
use serde::Serialize;

#[doc(hidden)]
#[macro_export]
macro_rules! op_plan_enum {
    (
        []
        $($Variant:ident $module:ident $Op:ident $ops:tt $Config:ident $Shape:ident $Plan:ident;)+
    ) => {
        /// The part of a plan that depends on the kind of operator.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum OpPlan {
            $(#[doc = concat!("See [`", stringify!($Plan), "`](", stringify!($module), "::", stringify!($Plan), ").")]
            $Variant($module::$Plan),)+
        }
    };
}
crate::problems!(op_plan_enum!);
