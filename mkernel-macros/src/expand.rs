//! Attribute and item → item, documentation, impls; or item and every mistake.

use crate::docs;
use mkernel_declare::{Declaration, Draft, Mistake, parse_attribute};
use mkernel_spec::{Device, Dim, Field, KernelConfig, KernelPlan, Tuning};
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Fields, ItemStruct, parse_quote};

type Mistakes = Vec<Mistake<TokenStream>>;

/// What `#[fused_kernel(attribute)] item` becomes. The item survives every mistake, so that rustc
/// does not complain about its absence too.
pub fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut draft = parse_attribute(attribute);
    let target = read_item(&mut draft, &item);
    let place = target.as_ref().map_or_else(|| first_token(&item), |t| t.ident.to_token_stream());
    match (draft.finish(place).and_then(plan_if_static), target) {
        (Ok((declaration, plan)), Some(target)) => {
            generate(&target, declaration.spec.config(), plan.as_ref())
        }
        (Ok(_), None) => item, // Not reached: without a target the draft has a mistake.
        (Err(mistakes), _) => {
            let errors = mistakes.into_iter().map(into_compile_error);
            quote!(#item #(#errors)*)
        }
    }
}

fn read_item(draft: &mut Draft<TokenStream>, item: &TokenStream) -> Option<ItemStruct> {
    let help = "declare a type for the kernel, as in `pub struct UpProjection;`";
    let Ok(target) = syn::parse2::<ItemStruct>(item.clone()) else {
        draft.mistake(first_token(item), "#[fused_kernel] is not on a unit struct", help);
        return None;
    };
    if !matches!(target.fields, Fields::Unit) {
        let place = target.fields.to_token_stream();
        draft.mistake(place, "the struct of a #[fused_kernel] has no fields", help);
    }
    if !target.generics.params.is_empty() {
        let place = target.generics.to_token_stream();
        draft.mistake(place, "the struct of a #[fused_kernel] has no generics", help);
    }
    Some(target)
}

type Planned = (Declaration<TokenStream>, Option<KernelPlan>);

fn plan_if_static(declaration: Declaration<TokenStream>) -> Result<Planned, Mistakes> {
    if declaration.spec.shape().is_none() {
        return Ok((declaration, None));
    }
    match KernelPlan::new(&declaration.spec, &Device::h200()) {
        Ok(plan) => Ok((declaration, Some(plan))),
        Err(found) => Err(declaration.mistakes(&found)),
    }
}

fn into_compile_error(mistake: Mistake<TokenStream>) -> TokenStream {
    let message = format!("{}\nhelp: {}", mistake.reason, mistake.help);
    syn::Error::new_spanned(mistake.place, message).into_compile_error()
}

fn first_token(tokens: &TokenStream) -> TokenStream {
    tokens.clone().into_iter().next().map_or_else(TokenStream::new, TokenTree::into)
}

fn generate(target: &ItemStruct, config: &KernelConfig, plan: Option<&KernelPlan>) -> TokenStream {
    let documented = with_docs(target, &docs::lines(config, plan));
    let (ident, visibility) = (&target.ident, &target.vis);
    let config_literal = config_literal(config);
    let dims = [(Field::M, config.m), (Field::N, config.n), (Field::K, config.k)];
    let params = dims.iter().filter(|(_, dim)| dim.fixed().is_none()).map(|(field, _)| {
        let name = format_ident!("{}", field.name());
        quote!(#name: u64)
    });
    let sizes = dims.iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed().map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote! {
        #documented

        impl ::mkernel::FusedKernel for #ident {
            fn config() -> ::mkernel::KernelConfig {
                #config_literal
            }
        }

        impl #ident {
            /// Plans, compiles and sets up this kernel for the communicator's ranks; every rank calls it, with the same sizes.
            ///
            /// # Errors
            /// What stopped it, on this rank or on another.
            #[allow(dead_code)]
            #visibility fn prepare(
                comm: &::mkernel::Communicator,
                #(#params),*
            ) -> ::core::result::Result<::mkernel::Operator, ::mkernel::Error> {
                comm.prepare_fused::<Self>(::mkernel::Shape { #(#sizes),* })
            }
        }
    }
}

/// The struct, the kernel's documentation after the user's own.
fn with_docs(target: &ItemStruct, lines: &[String]) -> ItemStruct {
    let mut documented = target.clone();
    documented.attrs.extend(lines.iter().map(|line| -> Attribute { parse_quote!(#[doc = #line]) }));
    documented
}

fn config_literal(config: &KernelConfig) -> TokenStream {
    let KernelConfig { name, op, world, m, n, k, b_layout, tuning } = config;
    let name = option(name.as_ref().map(|name| quote!(::std::string::String::from(#name))));
    let op = variant(op);
    let [m, n, k] = [m, n, k].map(|dim| match dim {
        Dim::Static(size) => quote!(::mkernel::Dim::Static(#size)),
        Dim::Dynamic(_) => quote!(::mkernel::Dim::DYNAMIC),
    });
    let b_layout = variant(b_layout);
    let tuning = tuning_literal(tuning);
    quote! {
        ::mkernel::KernelConfig {
            name: #name,
            op: ::mkernel::Op::#op,
            world: #world,
            m: #m,
            n: #n,
            k: #k,
            b_layout: ::mkernel::BLayout::#b_layout,
            tuning: #tuning,
        }
    }
}

fn tuning_literal(tuning: &Tuning) -> TokenStream {
    if *tuning == Tuning::default() {
        return quote!(::mkernel::Tuning::default());
    }
    let Tuning { tile_m, tile_n, stages, transfer, comm_ctas, k_slices, chunk_rows, group_m } =
        tuning;
    let [tile_m, tile_n, stages, comm_ctas, k_slices, chunk_rows, group_m] =
        [tile_m, tile_n, stages, comm_ctas, k_slices, chunk_rows, group_m].map(|value| option(*value));
    let transfer = option(transfer.map(|transfer| {
        let transfer = variant(&transfer);
        quote!(::mkernel::Transfer::#transfer)
    }));
    quote! {
        ::mkernel::Tuning {
            tile_m: #tile_m,
            tile_n: #tile_n,
            stages: #stages,
            transfer: #transfer,
            comm_ctas: #comm_ctas,
            k_slices: #k_slices,
            chunk_rows: #chunk_rows,
            group_m: #group_m,
        }
    }
}

fn option<T: ToTokens>(value: impl Into<Option<T>>) -> TokenStream {
    match value.into() {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// The name of a variant without fields, as `Debug` prints it.
fn variant(value: &impl std::fmt::Debug) -> Ident {
    format_ident!("{value:?}")
}
