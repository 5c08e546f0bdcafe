//! The struct of a handle, and the functions that prepare it.

use crate::docs::{OperandDoc, Ranks};
use crate::{calls, docs, literal};
use mkernel_spec::{Field, KernelConfig, KernelPlan};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Fields, ItemStruct, parse_quote};

/// The configuration and the ranks of a declaration.
pub struct Declared<'a> {
    pub config: &'a KernelConfig,
    pub ranks: Ranks,
}

/// Generates the handle, with its documentation and all of its functions.
pub fn generate(
    target: &ItemStruct,
    declared: &Declared,
    plan: Option<&KernelPlan>,
) -> TokenStream {
    let Declared { config, ranks } = *declared;
    let operands = docs::operands(config, ranks);
    let documented = handle(target, &docs::lines(config, ranks, plan));
    let traits = traits(&target.ident, declared, &operands);
    let prepare = prepare(target, config);
    let calls = calls::generate(target, &operands);
    quote! {
        #documented
        #traits
        #prepare
        #calls
    }
}

/// The struct as the handle of a prepared operator, with the kernel's documentation after the user's.
fn handle(target: &ItemStruct, lines: &[String]) -> ItemStruct {
    let mut documented = target.clone();
    documented.attrs.extend(
        lines
            .iter()
            .map(|line| -> Attribute { parse_quote!(#[doc = #line]) }),
    );
    documented.fields = Fields::Named(parse_quote!({ operator: ::mkernel::Operator }));
    documented.semi_token = None;
    documented
}

fn traits(ident: &Ident, declared: &Declared, operands: &[OperandDoc]) -> TokenStream {
    let config = literal::config(declared.config, declared.ranks);
    let operands = operands.iter().map(|of| {
        let operand = format_ident!("{}", format!("{:?}", of.operand));
        let dtype = format_ident!("{}", format!("{:?}", of.dtype));
        let written = of.written;
        quote!((::mkernel::Operand::#operand, ::mkernel::spec::Dtype::#dtype, #written))
    });
    quote! {
        impl ::mkernel::FusedKernel for #ident {
            const OPERANDS: &'static [(::mkernel::Operand, ::mkernel::spec::Dtype, bool)] = &[#(#operands),*];

            #[allow(unused_variables)]
            fn config(world: u32, nodes: u32) -> ::mkernel::spec::KernelConfig {
                #config
            }

            fn operator(&self) -> &::mkernel::Operator {
                &self.operator
            }

            fn wrap(operator: ::mkernel::Operator) -> Self {
                Self { operator }
            }
        }

        impl ::core::convert::TryFrom<::mkernel::Operator> for #ident {
            type Error = ::mkernel::Error;

            fn try_from(operator: ::mkernel::Operator) -> ::core::result::Result<Self, ::mkernel::Error> {
                ::mkernel::FusedKernel::from_operator(operator)
            }
        }
    }
}

/// The sizes that a declaration leaves open.
struct Open {
    /// The struct of sizes, if there are several.
    structure: TokenStream,
    /// The argument of `prepare` with its comma; nothing if there are no sizes.
    argument: TokenStream,
    /// The expression of the sizes.
    sizes: TokenStream,
}

impl Open {
    fn new(target: &ItemStruct, config: &KernelConfig) -> Self {
        let dims = config.problem.dims().into_iter();
        let open = dims.filter(|(_, dim)| dim.fixed().is_none());
        let open: Vec<Field> = open.map(|(field, _)| field).collect();
        let names: Vec<Ident> = open.iter().map(|f| format_ident!("{}", f.name())).collect();
        let consts = open
            .iter()
            .map(|f| format_ident!("{}", f.name().to_uppercase()));
        let consts: Vec<_> = consts
            .map(|of| quote!(::mkernel::spec::Field::#of))
            .collect();
        match &names[..] {
            [] => Self {
                structure: TokenStream::new(),
                argument: TokenStream::new(),
                sizes: quote!([]),
            },
            [name] => Self {
                structure: TokenStream::new(),
                argument: quote!(#name: u64,),
                sizes: quote!([#((#consts, #name)),*]),
            },
            names => {
                let structure = format_ident!("{}Sizes", target.ident);
                Self {
                    argument: quote!(sizes: #structure,),
                    sizes: quote!([#((#consts, sizes.#names)),*]),
                    structure: sizes_struct(target, &structure, names),
                }
            }
        }
    }
}

fn sizes_struct(target: &ItemStruct, name: &Ident, sizes: &[Ident]) -> TokenStream {
    let visibility = &target.vis;
    let doc = format!("The sizes with which [`{}`] is prepared.", target.ident);
    let docs = sizes.iter().map(|size| format!("The option `{size}`."));
    quote! {
        #[doc = #doc]
        #[allow(dead_code)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #visibility struct #name {
            #(#[doc = #docs] #visibility #sizes: u64),*
        }
    }
}

fn prepare(target: &ItemStruct, config: &KernelConfig) -> TokenStream {
    let (ident, visibility) = (&target.ident, &target.vis);
    let Open {
        structure,
        argument,
        sizes,
    } = Open::new(target, config);
    let (kind, kind_config) = literal::kind(&config.problem);
    quote! {
        #structure

        impl #ident {
            /// Plans, compiles and sets up this kernel for the ranks of the communicator. All ranks must call it
            /// with the same sizes.
            ///
            /// # Errors
            /// The error of this rank or of another rank.
            #[allow(dead_code)]
            #visibility fn prepare(
                ranks: &::mkernel::Communicator,
                #argument
            ) -> ::core::result::Result<Self, ::mkernel::Error> {
                ranks.prepare_fused::<Self>(#sizes)
            }

            /// Prepares the kernel as `prepare` does, after `options` has set options that are known only at run time.
            /// Operands must keep the types of the declaration.
            ///
            /// # Errors
            /// The error of this rank or of another rank, or `Error::Kernel` if operands differ from the declaration.
            #[allow(dead_code)]
            #visibility fn prepare_with(
                ranks: &::mkernel::Communicator,
                #argument
                options: impl ::core::ops::FnOnce(&mut ::mkernel::spec::#kind_config),
            ) -> ::core::result::Result<Self, ::mkernel::Error> {
                ranks.prepare_fused_with::<Self>(#sizes, |config| {
                    if let ::mkernel::spec::Problem::#kind(problem) = &mut config.problem {
                        options(problem);
                    }
                })
            }

            /// Returns the prepared operator.
            #[allow(dead_code)]
            #visibility const fn operator(&self) -> &::mkernel::Operator {
                &self.operator
            }

            /// Returns the plan of the kernel.
            #[allow(dead_code)]
            #visibility fn plan(&self) -> &::mkernel::KernelPlan {
                self.operator.plan()
            }
        }
    }
}
