//! Rust expressions that construct a configuration and a shape.

use crate::docs::Ranks;
use mkernel_spec::{KernelConfig, Problem};
use proc_macro2::TokenStream;
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

/// The expression of a shape, such as `::mkernel::spec::GemmShape { m, n: 1024 }`. A dynamic dimension is a variable.
pub fn shape(problem: &Problem) -> TokenStream {
    let shape = match problem {
        Problem::Gemm(_) => quote!(GemmShape),
        Problem::Attention(_) => quote!(AttentionShape),
        Problem::Dispatch(_) => quote!(DispatchShape),
        Problem::Combine(_) => quote!(CombineShape),
        Problem::Collective(_) => quote!(CollectiveShape),
    };
    let sizes = problem.dims().into_iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed()
            .map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote!(::mkernel::spec::#shape { #(#sizes),* })
}
