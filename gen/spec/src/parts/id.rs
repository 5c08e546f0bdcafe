//! The identifiers of kernels.

use crate::arch::Arch;
use crate::topology::Topology;
use std::fmt::Display;

/// The beginning of a kernel's identifier, such as `gemm_rs_sm90a_g4`.
pub(crate) fn id_prefix(op: impl Display, arch: Arch, topology: Topology) -> String {
    format!("{op}_{}_g{topology}", arch.id())
}

/// A part of an identifier that stands for an option; empty unless the option is given.
pub(crate) const fn part(is_given: bool, text: &'static str) -> &'static str {
    if is_given { text } else { "" }
}
