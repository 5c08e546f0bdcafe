//! The struct of a kernel's operands, and the functions that make calls.

use crate::docs::OperandDoc;
use mkernel_spec::Dtype;
use mkernel_spec::abi::Operand;
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{ItemStruct, Visibility};

/// An operand in generated code.
struct Generated {
    doc: String,
    field: Ident,
    /// The type parameter of the slice.
    slice: Ident,
    /// The type of the field.
    reference: TokenStream,
    /// The requirements of the slice.
    bound: TokenStream,
    /// The expression that passes the operand to a `Call`.
    pass: TokenStream,
}

impl Generated {
    fn new(operand: &OperandDoc) -> Self {
        let pass = match operand.written {
            true => quote!(write),
            false => quote!(read),
        };
        Self::passed(operand, operand.operand, operand.written, &pass)
    }

    /// An input that the call replaces by a result.
    fn replaced(input: &OperandDoc, result: Operand) -> Self {
        let replaced = Self::passed(input, result, true, &quote!(update));
        let doc = format!(
            "{} The call writes `{}` in its place.",
            replaced.doc,
            result.name()
        );
        Self { doc, ..replaced }
    }

    /// The field of an operand, which a method of `Call` passes as operand `passed`.
    fn passed(operand: &OperandDoc, passed: Operand, written: bool, method: &TokenStream) -> Self {
        let element = match operand.dtype {
            Dtype::Bf16 => quote!(::mkernel::half::bf16),
            Dtype::Fp16 => quote!(::mkernel::half::f16),
            Dtype::E4m3 => quote!(::mkernel::float8::F8E4M3),
            Dtype::Fp32 => quote!(f32),
            Dtype::Int32 => quote!(i32),
        };
        let field = format_ident!("{}", operand.operand.name());
        let variant = |operand: Operand| format_ident!("{}", format!("{operand:?}"));
        let (slice, passed) = (variant(operand.operand), variant(passed));
        let (reference, bound) = match written {
            true => (
                quote!(&'a mut #slice),
                quote!(::mkernel::operands::Writable<#element>),
            ),
            false => (
                quote!(&'a #slice),
                quote!(::mkernel::operands::Readable<#element>),
            ),
        };
        let pass = quote!(.#method(::mkernel::Operand::#passed, operands.#field));
        Self {
            doc: operand.summary(),
            field,
            slice,
            reference,
            bound,
            pass,
        }
    }
}

/// The names of a struct of operands and of the functions that take the struct, and the words for this form in their
/// documentation.
struct Names {
    operands: Ident,
    call: Ident,
    launch: Ident,
    form: &'static str,
}

/// Generates the structs of operands and the functions that make calls. A kernel that adds a residual and returns the new one has a
/// second form, in which the new residual replaces the residual.
pub fn generate(target: &ItemStruct, operands: &[OperandDoc]) -> TokenStream {
    let ident = &target.ident;
    let names = Names {
        operands: format_ident!("{ident}Operands"),
        call: format_ident!("call"),
        launch: format_ident!("launch"),
        form: "",
    };
    let all: Vec<_> = operands.iter().map(Generated::new).collect();
    let calls = form(target, &names, &all);
    let has = |operand| operands.iter().any(|of| of.operand == operand);
    if !(has(Operand::Residual) && has(Operand::ResidualOut)) {
        return calls;
    }
    let names = Names {
        operands: format_ident!("{ident}InPlace"),
        call: format_ident!("call_in_place"),
        launch: format_ident!("launch_in_place"),
        form: " in which the new residual takes the place of the residual",
    };
    let kept = operands
        .iter()
        .filter(|of| of.operand != Operand::ResidualOut);
    let replaced = kept.map(|of| match of.operand {
        Operand::Residual => Generated::replaced(of, Operand::ResidualOut),
        _ => Generated::new(of),
    });
    let in_place = form(target, &names, &replaced.collect::<Vec<_>>());
    quote!(#calls #in_place)
}

/// Generates a struct of operands, and the functions that take it.
fn form(target: &ItemStruct, names: &Names, operands: &[Generated]) -> TokenStream {
    let structure = operands_struct(target, names, operands);
    let (ident, visibility) = (&target.ident, &target.vis);
    let Names {
        operands: name,
        call,
        launch,
        form,
    } = names;
    let call_doc = format!(
        "Creates a call on `stream`{form}. It is not enqueued yet: launch it, or capture it into a graph."
    );
    let launch_doc = format!(
        "Enqueues a call on `stream`{form}, and returns immediately. `Communicator::synchronize` waits for it."
    );
    let slices: Vec<_> = operands.iter().map(|operand| &operand.slice).collect();
    let bounds = operands.iter().map(|operand| &operand.bound);
    let bounds: Vec<_> = slices
        .iter()
        .zip(bounds)
        .map(|(slice, bound)| quote!(#slice: #bound + ?Sized))
        .collect();
    let passes = operands.iter().map(|operand| &operand.pass);
    let stream = quote!(::std::sync::Arc<::mkernel::cudarc::driver::CudaStream>);
    quote! {
        #structure

        impl #ident {
            #[doc = #call_doc]
            #[allow(dead_code)]
            #visibility fn #call<'a, #(#bounds),*>(
                &'a self,
                stream: &'a #stream,
                operands: #name<'a, #(#slices),*>,
            ) -> ::mkernel::Call<'a> {
                self.operator.call(stream)#(#passes)*
            }

            #[doc = #launch_doc]
            ///
            /// # Errors
            /// All mistakes in the sizes of operands, or an earlier failure of the communicator.
            #[allow(dead_code)]
            #visibility fn #launch<#(#bounds),*>(
                &self,
                stream: &#stream,
                operands: #name<'_, #(#slices),*>,
            ) -> ::core::result::Result<(), ::mkernel::Error> {
                self.#call(stream, operands).launch()
            }
        }
    }
}

fn operands_struct(target: &ItemStruct, names: &Names, operands: &[Generated]) -> TokenStream {
    let (name, visibility) = (&names.operands, &target.vis);
    let doc = format!(
        "The operands of a call of [`{}`]{}.",
        target.ident, names.form
    );
    let slices = operands.iter().map(|operand| &operand.slice);
    let fields = operands.iter().map(|operand| field(operand, visibility));
    quote! {
        #[doc = #doc]
        #[allow(dead_code)]
        #visibility struct #name<'a, #(#slices: ?Sized),*> {
            #(#fields),*
        }
    }
}

fn field(operand: &Generated, visibility: &Visibility) -> TokenStream {
    let Generated {
        doc,
        field,
        reference,
        ..
    } = operand;
    quote! {
        #[doc = #doc]
        #visibility #field: #reference
    }
}
