//! The struct of a kernel's operands, and the functions that make calls.

use crate::docs::OperandDoc;
use mkernel_spec::Dtype;
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
        let element = match operand.dtype {
            Dtype::Bf16 => quote!(::mkernel::half::bf16),
            Dtype::Fp16 => quote!(::mkernel::half::f16),
            Dtype::E4m3 => quote!(::mkernel::float8::F8E4M3),
            Dtype::Fp32 => quote!(f32),
            Dtype::Int32 => quote!(i32),
        };
        let field = format_ident!("{}", operand.operand.name());
        let slice = format_ident!("{}", format!("{:?}", operand.operand));
        let (reference, bound, method) = match operand.written {
            true => (
                quote!(&'a mut #slice),
                quote!(::mkernel::operands::Writable<#element>),
                quote!(write),
            ),
            false => (
                quote!(&'a #slice),
                quote!(::mkernel::operands::Readable<#element>),
                quote!(read),
            ),
        };
        let pass = quote!(.#method(::mkernel::Operand::#slice, operands.#field));
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

/// Generates the struct of operands and the functions `call` and `launch`.
pub fn generate(target: &ItemStruct, operands: &[OperandDoc]) -> TokenStream {
    let operands: Vec<_> = operands.iter().map(Generated::new).collect();
    let structure = operands_struct(target, &operands);
    let (ident, visibility) = (&target.ident, &target.vis);
    let name = operands_name(ident);
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
            /// Creates a call on `stream`, which is not enqueued yet: launch it, or capture it into a graph.
            #[allow(dead_code)]
            #visibility fn call<'a, #(#bounds),*>(
                &'a self,
                stream: &'a #stream,
                operands: #name<'a, #(#slices),*>,
            ) -> ::mkernel::Call<'a> {
                self.operator.call(stream)#(#passes)*
            }

            /// Enqueues a call on `stream` and returns immediately. `Communicator::synchronize` waits for it.
            ///
            /// # Errors
            /// All mistakes in the sizes of operands, or an earlier failure of the communicator.
            #[allow(dead_code)]
            #visibility fn launch<#(#bounds),*>(
                &self,
                stream: &#stream,
                operands: #name<'_, #(#slices),*>,
            ) -> ::core::result::Result<(), ::mkernel::Error> {
                self.call(stream, operands).launch()
            }
        }
    }
}

fn operands_name(ident: &Ident) -> Ident {
    format_ident!("{ident}Operands")
}

fn operands_struct(target: &ItemStruct, operands: &[Generated]) -> TokenStream {
    let (name, visibility) = (operands_name(&target.ident), &target.vis);
    let doc = format!("The operands of a call of [`{}`].", target.ident);
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
