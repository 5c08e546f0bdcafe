//! A configuration as the Rust expression that makes it.

use mkernel_spec::{KernelConfig, Options, Problem};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// `::mkernel::KernelConfig { … }`
pub fn config(config: &KernelConfig) -> TokenStream {
    let literal = config.literal();
    literal.parse().unwrap_or_else(|error| {
        let message = format!("no Rust: {literal} ({error})"); // Not reached: types write what rustc reads.
        quote!(::core::compile_error!(#message))
    })
}

/// The shape of a problem, where a dynamic dimension is a variable of its name: `::mkernel::GemmShape { m, n: 1024 }`
pub fn shape(problem: &Problem) -> TokenStream {
    let shape = format_ident!("{}Shape", problem.kind());
    let sizes = problem.dims().into_iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed()
            .map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote!(::mkernel::#shape { #(#sizes),* })
}
