//! The golden configurations: `tests/configs/*.toml`, one kernel per file, in the format of the command line.
#![allow(dead_code, reason = "each test file uses a part")]

use mkernel_compile::{CudaSource, render};
use mkernel_spec::plan::GemmPlan;
use mkernel_spec::{Device, KernelConfig, KernelPlan, KernelSpec};
use serde::Deserialize;
use std::fs;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kernel: Vec<KernelConfig>,
}

/// One golden kernel.
pub struct Golden {
    /// Stem of its file, and of its snapshot.
    pub name: String,
    pub plan: KernelPlan,
    pub source: CudaSource,
}

impl Golden {
    /// Reads, plans and renders `path`.
    pub fn read(path: &Path) -> Self {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let name = name.expect("a file stem in UTF-8").to_owned();
        let text = fs::read_to_string(path).expect("a readable file");
        let file: File = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let [config] = <[KernelConfig; 1]>::try_from(file.kernel)
            .unwrap_or_else(|all| panic!("{name}: {} kernels instead of 1", all.len()));
        let plan = KernelSpec::validate(config)
            .and_then(|spec| KernelPlan::new(&spec, &Device::h200()))
            .unwrap_or_else(|diagnostics| panic!("{name}: {diagnostics}"));
        let source = render(&plan).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        Self { name, plan, source }
    }

    /// The plan of a GEMM operator.
    pub fn gemm(&self) -> &GemmPlan {
        self.plan.gemm().expect("a GEMM")
    }

    /// All of them, by name.
    pub fn all() -> Vec<Self> {
        // Of the package that has this file as a module, or of one above it.
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let folder = packages
            .map(|package| package.join("tests/configs"))
            .find(|folder| folder.is_dir());
        let folder = folder.expect("the folder of this file");
        let mut paths: Vec<_> = fs::read_dir(folder)
            .expect("the folder of this file")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|e| e == "toml"))
            .collect();
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }
}
