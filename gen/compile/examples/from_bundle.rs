//! Gets a kernel from a bundle without a compiler: `from_bundle DIR`, where DIR was written by `mkernel-gen build --op
//! ag_gemm --world 8 --m 8192 --n 1024 --k 8192 --b-layout nk --out DIR`. The example needs no feature of this crate.

use mkernel_compile::{Store, build};
use mkernel_spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelConfig, KernelPlan, SizedSpec};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("pass a bundle")?;
    let store = Store::without_cache().with_bundle(folder).without_jit();
    let up = GemmConfig {
        m: Dim::Static(8192),
        n: Dim::Static(1024),
        k: Dim::Static(8192),
        b_layout: BLayout::Nk,
        ..GemmConfig::new(GemmOp::AgGemm)
    };
    let spec = SizedSpec::validate(KernelConfig::new(8, up))?;
    let plan = KernelPlan::new(&spec, &Device::h200())?;
    let cubin = build(&plan, &store)?;
    println!("{}: {} bytes", cubin.id, cubin.bytes.len());
    Ok(())
}
