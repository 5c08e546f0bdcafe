//! The kernel of the fabric test, which is the same for all clusters.

use crate::kernel_template::KernelTemplate;
use crate::render::layout_assertion;
use mkernel_spec::abi::{FLAG_STRIDE_BYTES, StructLayout};
use mkernel_spec::fabric::PUT_CHANNELS;
use mkernel_spec::fabric_test::{
    ACKS, KERNEL, MAX_NODES, MESSAGES, PICK_UPS, THREADS, args_layout, results_layout,
};
use mkernel_spec::{Arch, Backend};
use serde::Serialize;

/// The variables of the template.
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
    args_assertion: String,
    results_assertion: String,
}

impl KernelTemplate {
    /// The kernel of the fabric test.
    #[must_use]
    pub fn fabric_test(arch: Arch, backend: Backend) -> Self {
        let context = RenderContext {
            id: KERNEL,
            threads: THREADS,
            max_nodes: MAX_NODES,
            messages: MESSAGES,
            acks: ACKS,
            channels: PUT_CHANNELS,
            pick_ups: PICK_UPS,
            flag_stride: FLAG_STRIDE_BYTES,
            args_assertion: assertion("Args", &args_layout()),
            results_assertion: assertion("Results", &results_layout()),
        };
        Self::new(KERNEL, (arch, backend), "fabric_test.cu.tera", &context)
    }
}

fn assertion(name: &str, layout: &StructLayout) -> String {
    layout_assertion(name, layout.size_bytes, layout.fields.iter().copied())
}
