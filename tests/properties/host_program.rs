//! Programs of the host that include the headers of kernels and run their device code.

use mkernel_compile::{HostCxx, headers};
use mkernel_spec::Backend;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Compiles the first of these files, which can include the other files and the headers, and returns the output of the
/// program.
pub fn output(files: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in headers(Backend::HostCxx).iter().chain(files) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let mut compile = HostCxx::load().expect("a C++ compiler").command();
    compile.args(["-std=c++20", "-w", "-I.", files[0].0, "-o", "program"]);
    let compiled = compile.current_dir(folder.path()).output();
    let compiled = compiled.expect("a program");
    let log = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{log}");
    let program = Command::new(Path::new("./program"))
        .current_dir(folder.path())
        .output();
    program.expect("a program")
}
