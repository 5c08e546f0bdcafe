//! The kernel of the fabric test, which is the same for all clusters.

use super::{TERA, tidy};
use crate::error::GenError;
use crate::source::CudaSource;
use mkernel_spec::Target;
use mkernel_spec::abi::{FLAG_STRIDE_BYTES, StructLayout};
use mkernel_spec::fabric_test::{
    ACKS, CHANNELS, KERNEL, MAX_NODES, MESSAGES, PICK_UPS, THREADS, args_layout, results_layout,
};
use serde::Serialize;
use tera::Context;

/// All that the template knows.
#[derive(Serialize)]
struct RenderContext {
    id: &'static str,
    threads: u32,
    max_nodes: u32,
    messages: u16,
    acks: u16,
    channels: u16,
    pick_ups: u32,
    flag_stride: u64,
    args_asserts: String,
    results_asserts: String,
}

/// Renders the kernel of the fabric test.
///
/// # Errors
/// [`GenError::Render`] if the template is wrong, which is a defect of this crate.
pub fn render_fabric_test(target: Target) -> Result<CudaSource, GenError> {
    let failed = |source| GenError::Render {
        id: KERNEL.to_owned(),
        source,
    };
    let tera = TERA
        .as_ref()
        .map_err(|e| failed(tera::Error::message(e.to_string())))?;
    let context = RenderContext {
        id: KERNEL,
        threads: THREADS,
        max_nodes: MAX_NODES,
        messages: MESSAGES,
        acks: ACKS,
        channels: CHANNELS,
        pick_ups: PICK_UPS,
        flag_stride: FLAG_STRIDE_BYTES,
        args_asserts: asserts("Args", &args_layout()),
        results_asserts: asserts("Results", &results_layout()),
    };
    let context = Context::from_serialize(&context).map_err(failed)?;
    let text = tera
        .render("fabric_test.cu.tera", &context)
        .map_err(failed)?;
    Ok(CudaSource {
        id: KERNEL.to_owned(),
        target,
        text: tidy(&text),
    })
}

/// That the struct called `name` lies in memory as the host's does.
fn asserts(name: &str, layout: &StructLayout) -> String {
    let differs = format!("\"{name} differs from the host's\"");
    let size = format!(
        "static_assert(sizeof({name}) == {}, {differs});",
        layout.size_bytes
    );
    let offsets = layout.fields.iter().map(|(field, offset)| {
        format!("static_assert(MK_OFFSET({name}, {field}) == {offset}, {differs});")
    });
    std::iter::once(size)
        .chain(offsets)
        .collect::<Vec<_>>()
        .join("\n")
}
