//! Attribute and item → item, documentation, impls; or item and every diagnostic.

use crate::docs::Ranks;
use crate::handle::{self, Declared};
use mkernel_declare::{Declaration, Parser, SpannedDiagnostic, parse_attribute};
use mkernel_spec::{Device, Field, KernelConfig, KernelPlan};
use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Fields, ItemStruct};

type Diagnostics = Vec<SpannedDiagnostic<TokenStream>>;

/// Expands `#[fused_kernel(attribute)] item`. If there are errors, the item is still part of the result, so that rustc
/// does not report it as missing.
pub fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut parser = parse_attribute(attribute);
    let target = read_item(&mut parser, &item);
    let whole = target
        .as_ref()
        .map_or_else(|| first_token(&item), |t| t.ident.to_token_stream());
    match (parser.finish(whole).and_then(plan_if_static), target) {
        (Ok((declaration, plan)), Some(target)) => {
            let config = declaration.spec.config();
            let ranks = ranks(&declaration);
            handle::generate(&target, &Declared { config, ranks }, plan.as_ref())
        }
        (Ok(_), None) => item, // Not reached: without a target the parser has a diagnostic.
        (Err(diagnostics), _) => {
            let errors = diagnostics.into_iter().map(into_compile_error);
            quote!(#item #(#errors)*)
        }
    }
}

fn read_item(parser: &mut Parser<TokenStream>, item: &TokenStream) -> Option<ItemStruct> {
    let help = "declare a type for the kernel, as in `pub struct UpProjection;`";
    let Ok(target) = syn::parse2::<ItemStruct>(item.clone()) else {
        parser.error(
            first_token(item),
            "#[fused_kernel] must be on a unit struct",
            help,
        );
        return None;
    };
    if !matches!(target.fields, Fields::Unit) {
        let span = target.fields.to_token_stream();
        parser.error(
            span,
            "a struct with #[fused_kernel] cannot have fields",
            help,
        );
    }
    if !target.generics.params.is_empty() {
        let span = target.generics.to_token_stream();
        parser.error(
            span,
            "a struct with #[fused_kernel] cannot have generic parameters",
            help,
        );
    }
    Some(target)
}

/// A declaration, with its plan if all sizes and the ranks are known.
type Planned = (Declaration<TokenStream>, Option<KernelPlan>);

/// The ranks that a declaration fixes.
fn ranks(declaration: &Declaration<TokenStream>) -> Ranks {
    let KernelConfig { world, nodes, .. } = *declaration.spec.config();
    Ranks {
        world: declaration.gives(Field::WORLD).then_some(world),
        nodes: declaration.gives(Field::NODES).then_some(nodes),
    }
}

fn plan_if_static(declaration: Declaration<TokenStream>) -> Result<Planned, Diagnostics> {
    let sized = declaration.spec.clone().sized().ok();
    let Some(sized) = sized.filter(|_| declaration.gives(Field::WORLD)) else {
        return Ok((declaration, None));
    };
    match KernelPlan::new(&sized, &Device::h200()) {
        Ok(plan) => Ok((declaration, Some(plan))),
        Err(found) => Err(declaration.diagnostics(&found)),
    }
}

fn into_compile_error(diagnostic: SpannedDiagnostic<TokenStream>) -> TokenStream {
    let message = format!("{}\nhelp: {}", diagnostic.reason, diagnostic.help);
    syn::Error::new_spanned(diagnostic.span, message).into_compile_error()
}

fn first_token(tokens: &TokenStream) -> TokenStream {
    tokens
        .clone()
        .into_iter()
        .next()
        .map_or_else(TokenStream::new, TokenTree::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{Activation, Dtype, Epilogue, Transfer, Tuning};

    /// The configuration in an expansion.
    fn declared(expanded: &str) -> KernelConfig {
        let (_, call) = expanded
            .split_once(":: mkernel :: declared (")
            .expect("a call");
        let (literal, _) = call.split_once("}\")").expect("an object");
        let json: syn::LitStr = syn::parse_str(&format!("{literal}}}\"")).expect("a string");
        serde_json::from_str(&json.value()).expect("a configuration")
    }

    /// The errors of the expansion, with the tokens that they point at.
    fn errors(attribute: &str, item: &str) -> Vec<String> {
        let expanded = expand(
            attribute.parse().expect("tokens"),
            item.parse().expect("tokens"),
        )
        .to_string();
        let item = item.parse::<TokenStream>().expect("tokens").to_string();
        let rest = expanded.strip_prefix(&item).expect("the item survives");
        let messages = rest.split("compile_error ! {").skip(1);
        messages
            .map(|m| {
                m.trim()
                    .trim_end_matches('}')
                    .trim()
                    .trim_matches('"')
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn a_dynamic_dimension_becomes_an_argument() {
        let attribute = quote!(op = ag_gemm, m = dynamic, n = 1024, k = 8192);
        let item = quote!(
            /// Mine.
            pub(crate) struct Up;
        );
        let expanded = expand(attribute, item).to_string();
        let json = concat!(
            r#"{"world":8,"op":"ag_gemm","m":"dynamic","n":1024,"k":8192,"dtype":"bf16","scales":"none","#,
            r#""b_layout":"kn","symmetric_result":false,"symmetric_a":false,"batch_invariant":false,"#,
            r#""epilogue":{"bias":false,"residual":false,"activation":"none","swiglu":false,"#,
            r#""norm":"none","eps":0.000001,"result_scales":"none"},"tuning":{}}"#
        );
        let expected = quote! {
            fn config(world: u32, nodes: u32) -> ::mkernel::spec::KernelConfig {
                ::mkernel::spec::KernelConfig { world, nodes, ..::mkernel::declared(#json) }
            }
        };
        for part in [
            expected,
            quote!(pub(crate) struct Up),
            quote!(pub(crate) fn prepare(ranks: &::mkernel::Communicator, m: u64,)),
            quote!(ranks.prepare_fused::<Self>([(::mkernel::spec::Field::M, m)])),
            quote!(pub(crate) struct UpOperands<'a, A: ?Sized, B: ?Sized, C: ?Sized>),
            quote!(.write(::mkernel::Operand::C, operands.c)),
        ] {
            assert!(expanded.contains(&part.to_string()), "{part} in {expanded}");
        }
        assert!(
            expanded.starts_with("# [doc = r\" Mine.\"] # [doc = \"\"] # [doc = \"# Fused kernel")
        );
        for doc in [
            "| `a` | `[⌈M/W⌉, 8192]`, bf16, read; rows",
            "Planned and compiled by `prepare`",
        ] {
            assert!(expanded.contains(doc), "{doc} in {expanded}");
        }
    }

    #[test]
    fn fixed_choices_and_static_sizes() {
        let attribute = quote!(
            op = ag_gemm,
            world = 8,
            m = 8192,
            n = 1024,
            k = 8192,
            b_layout = nk,
            name = "up",
            tile_m = 128,
            transfer = copy_engine
        );
        let expanded = expand(
            attribute,
            quote!(
                struct Up;
            ),
        )
        .to_string();
        let config = declared(&expanded);
        let tuning = Tuning {
            tile_m: Some(128),
            transfer: Some(Transfer::CopyEngine),
            ..Tuning::default()
        };
        assert_eq!(config.problem.gemm().expect("a GEMM").tuning, tuning);
        assert_eq!((config.world, config.name.as_deref()), (8, Some("up")));
        assert!(
            expanded.contains("KernelConfig { nodes , .. "),
            "{expanded}"
        );
        assert!(
            expanded.contains("| `a` | `[1024, 8192]`, bf16, read; rows"),
            "{expanded}"
        );
        assert!(
            expanded.contains("Planned for NVIDIA H200: tile 128×"),
            "{expanded}"
        );
        assert!(
            expanded.contains("transfer copy_engine; bound "),
            "{expanded}"
        );
    }

    #[test]
    fn an_epilogue_has_operands_and_a_formula() {
        let attribute = quote!(
            op = gemm_ar,
            world = 8,
            m = dynamic,
            n = 1024,
            k = 8192,
            bias = true,
            activation = gelu_tanh,
            residual = true,
            output = fp32
        );
        let expanded = expand(
            attribute,
            quote!(
                struct Down;
            ),
        )
        .to_string();
        let epilogue = Epilogue {
            bias: true,
            residual: true,
            activation: Activation::GeluTanh,
            output: Some(Dtype::Fp32),
            ..Epilogue::default()
        };
        let config = declared(&expanded);
        assert_eq!(config.problem.gemm().expect("a GEMM").epilogue, epilogue);
        for line in [
            "becomes `gelu_tanh(sum + bias) + residual` in C",
            "| `bias` | `[1024]`, bf16, read; the same on all ranks |",
            "| `residual` | `[M, 1024]`, bf16, read; the same on all ranks |",
            "| `c` | `[M, 1024]`, fp32, written |",
            "bf16 in, fp32 out",
        ] {
            assert!(expanded.contains(line), "{line} in {expanded}");
        }
    }

    #[test]
    fn swiglu_has_a_weight_of_twice_the_columns() {
        let attribute = quote!(
            op = gemm,
            m = dynamic,
            n = 1024,
            k = 8192,
            b_layout = nk,
            bias = true,
            swiglu = true
        );
        let expanded = expand(
            attribute,
            quote!(
                struct Up;
            ),
        )
        .to_string();
        let config = declared(&expanded);
        assert!(config.problem.gemm().expect("a GEMM").epilogue.swiglu);
        for line in [
            "becomes `swiglu(sum + bias)` in C",
            "| `b` | `[2·1024, 8192]`, bf16, read |",
            "| `bias` | `[2·1024]`, bf16, read |",
            "| `c` | `[M, 1024]`, bf16, written |",
        ] {
            assert!(expanded.contains(line), "{line} in {expanded}");
        }
    }

    #[test]
    fn errors_of_attribute_and_item_are_reported_at_once() {
        let found = errors(
            "op = ag_gemm, world = 3, m = dynamic, k = 8191, tile_m = 100, stage = 4",
            "pub struct Up<T>(T);",
        );
        assert_eq!(found.len(), 7, "{found:#?}");
        assert!(found[0].starts_with("there is no option `stage`\\nhelp: did you mean `stages`?"));
        assert!(found[1].starts_with("a struct with #[fused_kernel] cannot have fields"));
        assert!(
            found[2].starts_with("a struct with #[fused_kernel] cannot have generic parameters")
        );
        assert!(found[3].starts_with("`n` is missing"));
        assert!(found[4].starts_with("world: 3 ranks"));
        assert!(found[5].starts_with("k: 8191 is not a multiple of 8"));
        assert!(found[6].starts_with("tile_m: 100"));
    }

    #[test]
    fn a_plan_that_exceeds_shared_memory_is_an_error() {
        let all = "op = ag_gemm, world = 8, m = 8192, n = 1024, k = 8192";
        let found = errors(
            &format!("{all}, tile_m = 128, tile_n = 256, stages = 8"),
            "struct Up;",
        );
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("stages: 8 stages of a 128x256 tile need"),
            "{found:?}"
        );
    }

    #[test]
    fn other_items() {
        for item in ["fn up() {}", "enum Up { }", "impl Up { }"] {
            let found = errors("op = ag_gemm, world = 8, m = 1, n = 8, k = 8", item);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with("#[fused_kernel] must be on a unit struct"),
                "{found:?}"
            );
        }
    }
}
