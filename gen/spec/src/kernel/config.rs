//! [`KernelConfig`]: a kernel as the user asks for it.

use super::problem::Problem;
use crate::diagnostic::Diagnostics;
use crate::field::Field;
use crate::options::Op;
use crate::options::option::{OptionSpec, Options, options};
use crate::options::option_type::OptionType;
use crate::options::value::Value;
use serde::{Deserialize, Serialize};

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(nodes: &u32) -> bool {
    *nodes == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(traced: &bool) -> bool {
    !*traced
}

options! {
    /// A kernel as the user asks for it. In TOML and in attributes, its options stand beside the options of the
    /// problem.
    #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub struct KernelConfig {
        options {
            /// The name in listings and errors; by default the kernel's id.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            name: Option<String> as NAME,
            /// Ranks, one GPU each: 1, 2, 4 or 8 on one node, and 1 to 8 for each of several nodes.
            world: u32 as WORLD,
            /// Nodes, with equal numbers of ranks, which are numbered node by node; 1 if absent.
            #[serde(default = "one", skip_serializing_if = "is_one")]
            nodes: u32 as NODES,
            /// The most SMs that the kernel uses; all SMs if absent. Other kernels that run beside this kernel and wait for
            /// other ranks, such as kernels of NCCL, need SMs that this kernel leaves free.
            #[limits(1..=1024)]
            #[serde(default, skip_serializing_if = "Option::is_none")]
            max_sms: Option<u32> as MAX_SMS,
            /// Whether the kernel records when waits and steps of its roles begin and end, for `Operator::trace`. The results
            /// are the same.
            #[serde(default, skip_serializing_if = "is_false")]
            traced: bool as TRACED,
        }
        groups {
            /// The computation.
            #[serde(flatten)]
            problem: Problem,
        }
    }
}

impl KernelConfig {
    /// A kernel for one node, without a name.
    #[must_use]
    pub fn new(world: u32, problem: impl Into<Problem>) -> Self {
        Self {
            name: None,
            world,
            nodes: 1,
            max_sms: None,
            traced: false,
            problem: problem.into(),
        }
    }

    /// The operator.
    #[must_use]
    pub fn op(&self) -> Op {
        self.problem.op()
    }
}

impl Op {
    /// The options of kernels of this operator, the option `op` first.
    #[must_use]
    pub fn options(self) -> Vec<OptionSpec> {
        let mut options = KernelConfig::new(1, self.problem()).options(None);
        options.sort_by_key(|option| option.field != Field::OP);
        options
    }

    /// Whether the user may write `field` of a kernel of this operator.
    #[must_use]
    pub fn takes(self, field: Field) -> bool {
        self.options().iter().any(|option| option.field == field)
    }
}

impl Field {
    /// All fields, in the order in which the user writes them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for option in Op::ALL.into_iter().flat_map(Op::options) {
            if !all.contains(&option.field) {
                all.push(option.field);
            }
        }
        all
    }
}
