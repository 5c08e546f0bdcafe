//! Writes the options into the documentation of `#[fused_kernel]`.

use mkernel_spec::OptionTable;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let section = |table: &OptionTable| format!("Options of {}:\n\n{table}", table.title());
    let sections: Vec<_> = OptionTable::all().iter().map(section).collect();
    let path = Path::new(&env::var("OUT_DIR")?).join("options.md");
    fs::write(path, sections.join("\n"))?;
    Ok(())
}
