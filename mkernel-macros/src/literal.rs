//! A configuration as the Rust expression that makes it.

use mkernel_spec::{
    AttentionConfig, AttentionTuning, CombineConfig, Dim, DispatchConfig, Epilogue, GemmConfig,
    KernelConfig, Problem, Tuning,
};
use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote};

/// `::mkernel::KernelConfig { … }`
pub fn config(config: &KernelConfig) -> TokenStream {
    let KernelConfig {
        name,
        world,
        nodes,
        problem,
    } = config;
    let name = option(
        name.as_ref()
            .map(|name| quote!(::std::string::String::from(#name))),
    );
    let problem = match problem {
        Problem::Gemm(config) => {
            let config = gemm_literal(config);
            quote!(::mkernel::Problem::Gemm(#config))
        }
        Problem::Attention(config) => {
            let config = attention_literal(config);
            quote!(::mkernel::Problem::Attention(#config))
        }
        Problem::Dispatch(config) => {
            let config = dispatch_literal(config);
            quote!(::mkernel::Problem::Dispatch(#config))
        }
        Problem::Combine(config) => {
            let config = combine_literal(config);
            quote!(::mkernel::Problem::Combine(#config))
        }
    };
    quote! {
        ::mkernel::KernelConfig {
            name: #name,
            world: #world,
            nodes: #nodes,
            problem: #problem,
        }
    }
}

/// The shape of a problem, where a dynamic dimension is a variable of its name: `::mkernel::GemmShape { m, n: 1024 }`
pub fn shape(problem: &Problem) -> TokenStream {
    let shape = match problem {
        Problem::Gemm(_) => quote!(::mkernel::GemmShape),
        Problem::Attention(_) => quote!(::mkernel::AttentionShape),
        Problem::Dispatch(_) => quote!(::mkernel::DispatchShape),
        Problem::Combine(_) => quote!(::mkernel::CombineShape),
    };
    let sizes = problem.dims().into_iter().map(|(field, dim)| {
        let name = format_ident!("{}", field.name());
        dim.fixed()
            .map_or_else(|| quote!(#name), |size| quote!(#name: #size))
    });
    quote!(#shape { #(#sizes),* })
}

fn dim(dim: Dim) -> TokenStream {
    match dim {
        Dim::Static(size) => quote!(::mkernel::Dim::Static(#size)),
        Dim::Dynamic(_) => quote!(::mkernel::Dim::DYNAMIC),
    }
}

fn gemm_literal(config: &GemmConfig) -> TokenStream {
    let GemmConfig {
        op,
        m,
        n,
        k,
        b_layout,
        epilogue,
        tuning,
    } = config;
    let op = variant(op);
    let [m, n, k] = [*m, *n, *k].map(dim);
    let b_layout = variant(b_layout);
    let epilogue = epilogue_literal(epilogue);
    let tuning = tuning_literal(tuning);
    quote! {
        ::mkernel::GemmConfig {
            op: ::mkernel::GemmOp::#op,
            m: #m,
            n: #n,
            k: #k,
            b_layout: ::mkernel::BLayout::#b_layout,
            epilogue: #epilogue,
            tuning: #tuning,
        }
    }
}

fn attention_literal(config: &AttentionConfig) -> TokenStream {
    let AttentionConfig {
        op,
        batch,
        seq,
        heads,
        kv_heads,
        head_dim,
        layout,
        causal,
        placement,
        scale,
        tuning,
    } = config;
    let (op, layout, placement) = (variant(op), variant(layout), variant(placement));
    let [batch, seq, heads, kv_heads, head_dim] =
        [*batch, *seq, *heads, *kv_heads, *head_dim].map(dim);
    let scale = match scale.fixed() {
        Some(value) => quote!(::mkernel::Scale::new(#value)),
        None => quote!(::mkernel::Scale::default()),
    };
    let AttentionTuning {
        comm_ctas,
        kv_slots,
    } = tuning;
    let [comm_ctas, kv_slots] = [comm_ctas, kv_slots].map(|value| option(*value));
    quote! {
        ::mkernel::AttentionConfig {
            op: ::mkernel::AttentionOp::#op,
            batch: #batch,
            seq: #seq,
            heads: #heads,
            kv_heads: #kv_heads,
            head_dim: #head_dim,
            layout: ::mkernel::Layout::#layout,
            causal: #causal,
            placement: ::mkernel::Placement::#placement,
            scale: #scale,
            tuning: ::mkernel::AttentionTuning {
                comm_ctas: #comm_ctas,
                kv_slots: #kv_slots,
            },
        }
    }
}

fn dispatch_literal(config: &DispatchConfig) -> TokenStream {
    let DispatchConfig {
        op,
        experts,
        top_k,
        max_tokens,
        hidden,
        intermediate,
        b_layout,
        swiglu,
        max_rows,
        tile_m,
        tile_n,
        comm_ctas,
    } = config;
    let (op, b_layout) = (variant(op), variant(b_layout));
    let [experts, top_k, max_tokens, hidden, intermediate] =
        [*experts, *top_k, *max_tokens, *hidden, *intermediate].map(dim);
    let [max_rows, tile_m, tile_n, comm_ctas] =
        [max_rows, tile_m, tile_n, comm_ctas].map(|value| option(*value));
    quote! {
        ::mkernel::DispatchConfig {
            op: ::mkernel::DispatchOp::#op,
            experts: #experts,
            top_k: #top_k,
            max_tokens: #max_tokens,
            hidden: #hidden,
            intermediate: #intermediate,
            b_layout: ::mkernel::BLayout::#b_layout,
            swiglu: #swiglu,
            max_rows: #max_rows,
            tile_m: #tile_m,
            tile_n: #tile_n,
            comm_ctas: #comm_ctas,
        }
    }
}

fn combine_literal(config: &CombineConfig) -> TokenStream {
    let CombineConfig {
        op,
        experts,
        top_k,
        max_tokens,
        hidden,
        max_rows,
    } = config;
    let op = variant(op);
    let [experts, top_k, max_tokens, hidden] = [*experts, *top_k, *max_tokens, *hidden].map(dim);
    let max_rows = option(*max_rows);
    quote! {
        ::mkernel::CombineConfig {
            op: ::mkernel::CombineOp::#op,
            experts: #experts,
            top_k: #top_k,
            max_tokens: #max_tokens,
            hidden: #hidden,
            max_rows: #max_rows,
        }
    }
}

fn epilogue_literal(epilogue: &Epilogue) -> TokenStream {
    if *epilogue == Epilogue::default() {
        return quote!(::mkernel::Epilogue::default());
    }
    let Epilogue {
        bias,
        residual,
        activation,
        output,
    } = epilogue;
    let (activation, output) = (variant(activation), variant(output));
    quote! {
        ::mkernel::Epilogue {
            bias: #bias,
            residual: #residual,
            activation: ::mkernel::Activation::#activation,
            output: ::mkernel::Dtype::#output,
        }
    }
}

fn tuning_literal(tuning: &Tuning) -> TokenStream {
    if *tuning == Tuning::default() {
        return quote!(::mkernel::Tuning::default());
    }
    let Tuning {
        tile_m,
        tile_n,
        stages,
        transfer,
        comm_ctas,
        k_slices,
        chunk_rows,
        group_m,
        round_tiles,
        shots,
        pace_steps,
    } = tuning;
    let [
        tile_m,
        tile_n,
        stages,
        comm_ctas,
        k_slices,
        chunk_rows,
        group_m,
        round_tiles,
        shots,
        pace_steps,
    ] = [
        tile_m,
        tile_n,
        stages,
        comm_ctas,
        k_slices,
        chunk_rows,
        group_m,
        round_tiles,
        shots,
        pace_steps,
    ]
    .map(|value| option(*value));
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
            round_tiles: #round_tiles,
            shots: #shots,
            pace_steps: #pace_steps,
        }
    }
}

fn option(value: Option<impl ToTokens>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// The name of a variant without fields, as `Debug` prints it.
fn variant(value: &impl std::fmt::Debug) -> Ident {
    format_ident!("{value:?}")
}
