//! The operators, a folder for each kind: operators that are declared alike share a configuration and a plan.
//!
//! Folders have the same files: `config.rs` (the options that the user writes), `check.rs` (the limits of the options),
//! `op_plan.rs` (the part of a plan that only this kind has), `plan.rs` (the choice of a plan) and `memory.rs` (the regions that
//! kernels use). Other crates have a module of the folder's name for each task, and dispatch by a `match` on
//! [`Problem`](crate::Problem) or [`OpPlan`](crate::plan::OpPlan).

pub mod attention;
pub mod collective;
pub mod combine;
pub mod dispatch;
pub mod gemm;
