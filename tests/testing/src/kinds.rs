//! A small operator of each kind, for tests of resources that operators of a communicator share.

use mkernel_spec::KernelConfig;

/// The operators, in the format of the command line.
const KINDS: &str = r#"
[[kernel]]
op = "dispatch_gemm"
experts = 8
top_k = 2
max_tokens = 32
hidden = 256
intermediate = 128

[[kernel]]
op = "combine"
experts = 8
top_k = 2
max_tokens = 32
hidden = 256

[[kernel]]
op = "ring_attention"
batch = 1
seq = 512
heads = 2
kv_heads = 1
head_dim = 64

[[kernel]]
op = "ag_gemm"
m = 512
n = 128
k = 64

[[kernel]]
op = "ag_gemm"
m = 256
n = 64
k = 64

[[kernel]]
op = "gemm_rs"
m = 512
n = 128
k = 64

[[kernel]]
op = "gemm_ar"
m = 512
n = 128
k = 64

[[kernel]]
op = "all_reduce"
m = 64
n = 128

[[kernel]]
op = "all_gather"
m = 64
n = 128

[[kernel]]
op = "reduce_scatter"
m = 64
n = 128
"#;

/// The index of `dispatch_gemm`.
pub const DISPATCH: usize = 0;
/// The index of `combine`, whose row indices `dispatch_gemm` makes.
pub const COMBINE: usize = 1;

/// Returns ten operators, at least one of each kind, for `world` ranks in this many nodes.
///
/// # Panics
/// Never, as long as the configurations are valid.
#[must_use]
pub fn ten_kinds(world: u32, nodes: u32) -> Vec<KernelConfig> {
    let file: toml::Table = toml::from_str(KINDS).expect("valid");
    let kernels = file["kernel"].as_array().expect("an array");
    let on_ranks = |kernel: &toml::Value| {
        let mut kernel = kernel.as_table().expect("a table").clone();
        kernel.insert("world".into(), world.into());
        kernel.insert("nodes".into(), nodes.into());
        kernel.try_into().expect("a configuration")
    };
    kernels.iter().map(on_ranks).collect()
}
