//! The Rust expression that constructs a configuration, and the names of its types.

use crate::docs::Ranks;
use mkernel_spec::{KernelConfig, Problem};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

/// The expression of a configuration: the checked declaration as JSON, in which the variables `world` and `nodes` replace
/// the ranks and nodes that the declaration does not fix.
pub fn config(config: &KernelConfig, ranks: Ranks) -> TokenStream {
    let json = serde_json::to_string(config).expect("options are words and numbers");
    let declared = quote!(::mkernel::declared(#json));
    match (ranks.world, ranks.nodes) {
        (Some(_), Some(_)) => declared,
        (Some(_), None) => quote!(::mkernel::spec::KernelConfig { nodes, ..#declared }),
        (None, Some(_)) => quote!(::mkernel::spec::KernelConfig { world, ..#declared }),
        (None, None) => quote!(::mkernel::spec::KernelConfig { world, nodes, ..#declared }),
    }
}

/// The variant of a problem, and the type of its configuration.
pub fn kind(problem: &Problem) -> (Ident, Ident) {
    let kind = match problem {
        Problem::Gemm(_) => "Gemm",
        Problem::Attention(_) => "Attention",
        Problem::Dispatch(_) => "Dispatch",
        Problem::Combine(_) => "Combine",
        Problem::Collective(_) => "Collective",
    };
    (format_ident!("{kind}"), format_ident!("{kind}Config"))
}
