//! Rust expressions that construct a configuration and a shape.

use crate::docs::Ranks;
use mkernel_spec::{KernelConfig, Options, Problem};
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{ExprStruct, Member, parse_quote};

/// The expression of a configuration, `::mkernel::KernelConfig { … }`. Ranks and nodes that the declaration does not fix
/// are the variables `world` and `nodes`.
pub fn config(config: &KernelConfig, ranks: Ranks) -> TokenStream {
    let literal = config.literal();
    let mut literal: ExprStruct = match syn::parse_str(&literal) {
        Ok(literal) => literal,
        Err(error) => {
            let message = format!("invalid Rust expression: {literal} ({error})"); // Not reached: `literal` writes valid Rust.
            return quote!(::core::compile_error!(#message));
        }
    };
    for field in &mut literal.fields {
        let Member::Named(name) = &field.member else {
            continue;
        };
        if name == "world" && ranks.world.is_none() || name == "nodes" && ranks.nodes.is_none() {
            field.expr = parse_quote!(#name);
        }
    }
    literal.into_token_stream()
}

/// The expression of a shape, such as `::mkernel::spec::GemmShape { m, n: 1024 }`. A dynamic dimension is a variable.
pub fn shape(problem: &Problem) -> TokenStream {
    let shape = format_ident!("{}Shape", problem.kind());
    let sizes = problem.dims().into_iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed()
            .map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote!(::mkernel::spec::#shape { #(#sizes),* })
}
