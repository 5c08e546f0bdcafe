//! The golden configurations in `tests/configs/*.toml`. Each file has one kernel, in the format of the command line.

use mkernel_compile::{CudaSource, render};
use mkernel_spec::plan::GemmPlan;
use mkernel_spec::{Device, KernelConfig, KernelPlan, SizedSpec};
use serde::Deserialize;
use std::fs;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kernel: Vec<KernelConfig>,
}

/// A golden configuration with its plan and its rendered kernel.
pub struct Golden {
    /// The stem of the names of the configuration's file and of the snapshot.
    pub name: String,
    /// The plan for an H200.
    pub plan: KernelPlan,
    /// The rendered kernel.
    pub source: CudaSource,
}

impl Golden {
    /// Reads the configuration in `path`, plans it and renders its kernel.
    ///
    /// # Panics
    /// The file is not a valid configuration of one kernel.
    pub fn read(path: &Path) -> Self {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let name = name.expect("a file stem in UTF-8").to_owned();
        let text = fs::read_to_string(path).expect("a readable file");
        let file: File = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let [config] = <[KernelConfig; 1]>::try_from(file.kernel)
            .unwrap_or_else(|all| panic!("{name}: {} kernels instead of 1", all.len()));
        let plan = SizedSpec::validate(config)
            .and_then(|spec| KernelPlan::new(&spec, &Device::h200()))
            .unwrap_or_else(|diagnostics| panic!("{name}: {diagnostics}"));
        let source = render(&plan).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        Self { name, plan, source }
    }

    /// Returns the GEMM part of the plan.
    ///
    /// # Panics
    /// The operator is no GEMM.
    pub fn gemm(&self) -> &GemmPlan {
        self.plan.gemm().expect("a GEMM")
    }

    /// Reads all golden configurations, ordered by name.
    ///
    /// # Panics
    /// A file is not a valid configuration of one kernel.
    pub fn all() -> Vec<Self> {
        // The folder belongs to a package above this package.
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let folder = packages
            .map(|package| package.join("tests/configs"))
            .find(|folder| folder.is_dir());
        let folder = folder.expect("the folder tests/configs");
        let mut paths: Vec<_> = fs::read_dir(folder)
            .expect("the folder tests/configs")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|e| e == "toml"))
            .collect();
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }
}
