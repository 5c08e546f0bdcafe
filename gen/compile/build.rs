//! Embeds every file of `templates/`, so that a new one needs no entry in a list.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../templates");
    let root = fs::canonicalize(&root).expect("the workspace has templates/");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut text = String::new();
    for (constant, folder, ending) in [
        ("TEMPLATES", "", "tera"),
        ("DEVICE_HEADERS", "device", "cuh"),
        ("SIMULATOR_HEADERS", "simulator", "cuh"),
    ] {
        let folder = root.join(folder);
        writeln!(text, "const {constant}: &[(&str, &str)] = &[").expect("memory");
        for path in files(&folder, ending) {
            let name = path.strip_prefix(&folder).expect("a file of the folder");
            // Includes use forward slashes on every system.
            let name = name.to_str().expect("ASCII").replace('\\', "/");
            writeln!(text, "    ({name:?}, include_str!({path:?})),").expect("memory");
        }
        text.push_str("];\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("templates.rs"), text).expect("OUT_DIR can be written to");
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
