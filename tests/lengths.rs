//! The limit of the length of source files. Clippy limits functions (`clippy.toml`).

use std::fs;
use std::path::Path;

/// The most lines of a file.
const MAX_LINES: usize = 400;

/// Returns the source files below a folder that are longer than the limit, with their lengths.
fn long_files(folder: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(folder).expect("a readable folder");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name in UTF-8");
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                long_files(&path, found);
            }
            continue;
        }
        if [".rs", ".cuh", ".cu", ".cpp", ".tera"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            let lines = fs::read_to_string(&path)
                .expect("text in UTF-8")
                .lines()
                .count();
            if lines > MAX_LINES {
                found.push(format!("{}: {lines} lines", path.display()));
            }
        }
    }
}

#[test]
fn no_file_is_too_long() {
    let mut found = Vec::new();
    long_files(Path::new(env!("CARGO_MANIFEST_DIR")), &mut found);
    assert!(
        found.is_empty(),
        "split what has more than {MAX_LINES} lines:\n{}",
        found.join("\n")
    );
}
