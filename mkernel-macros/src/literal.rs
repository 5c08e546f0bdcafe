//! Rust expressions that construct a configuration and a shape.

use mkernel_spec::{KernelConfig, Options, Problem};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// The expression of a configuration, `::mkernel::KernelConfig { … }`.
pub fn config(config: &KernelConfig) -> TokenStream {
    let literal = config.literal();
    literal.parse().unwrap_or_else(|error| {
        let message = format!("invalid Rust expression: {literal} ({error})"); // Not reached: `literal` writes valid Rust.
        quote!(::core::compile_error!(#message))
    })
}

/// The expression of a shape, such as `::mkernel::GemmShape { m, n: 1024 }`. A dynamic dimension is a variable.
pub fn shape(problem: &Problem) -> TokenStream {
    let shape = format_ident!("{}Shape", problem.kind());
    let sizes = problem.dims().into_iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed()
            .map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote!(::mkernel::#shape { #(#sizes),* })
}
