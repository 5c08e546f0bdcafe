//! Embeds every file of this folder, so that a new file needs no entry in a list.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The tables: name, documentation, folder and extension.
const TABLES: [(&str, &str, &str, &str); 3] = [
    (
        "TEMPLATES",
        "Templates of Tera, from which kernels are assembled.",
        "",
        "tera",
    ),
    (
        "DEVICE_HEADERS",
        "Device code: plain CUDA C++.",
        "device",
        "cuh",
    ),
    (
        "SIMULATOR_HEADERS",
        "Headers that replace those of the same name on simulated GPUs.",
        "simulator",
        "cuh",
    ),
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut text = String::new();
    for (constant, doc, folder, ending) in TABLES {
        let folder = root.join(folder);
        writeln!(text, "/// {doc}").expect("memory");
        writeln!(text, "pub const {constant}: &[(&str, &str)] = &[").expect("memory");
        for path in files(&folder, ending) {
            let name = path.strip_prefix(&folder).expect("a file of the folder");
            // Includes use forward slashes on every system.
            let name = name.to_str().expect("ASCII").replace('\\', "/");
            writeln!(text, "    ({name:?}, include_str!({path:?})),").expect("memory");
        }
        text.push_str("];\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("files.rs"), text).expect("OUT_DIR can be written to");
}

/// All files below a folder with the extension `ending`, sorted by path.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(folder).expect("a folder of templates");
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("a readable folder").path()) {
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}
