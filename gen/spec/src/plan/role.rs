//! [`Role`]: what some warps of some CTAs do.

use serde::Serialize;

/// What some CTAs, or some warps of every CTA, do. Where a warp has several roles, it has them in the order of the plan's
/// list; all warps of the CTA are done with the first ones before any begins the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Role {
    /// `load`, `multiply`, `store`: in kernels, a member type of the same name in camel case.
    pub name: &'static str,
    /// The CTAs that have it: `first..end`.
    pub ctas: (u32, u32),
    /// Their warps that have it: `first..end`.
    pub warps: (u32, u32),
    /// What it does, for people.
    pub about: String,
}
