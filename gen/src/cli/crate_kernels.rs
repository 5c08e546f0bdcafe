//! The kernels of a crate.

use super::failure::Failure;
use super::output::print_note;
use crate::scan::{self, FusedKernel};
use mkernel_declare::SpannedDiagnostic;
use std::path::Path;

/// Reads the kernels of the crate in `dir`, and adds errors in files as a whole. Notes name macros that may declare kernels.
pub fn read(
    dir: &Path,
    diagnostics: &mut Vec<SpannedDiagnostic<String>>,
) -> Result<Vec<FusedKernel>, Failure> {
    let found = scan::scan_crate(dir).map_err(|source| Failure::Read {
        path: dir.to_owned(),
        source,
    })?;
    for place in &found.macros {
        print_note(&format!(
            "{place}: kernels that this macro declares are left out"
        ));
    }
    if found.kernels.is_empty() && found.diagnostics.is_empty() {
        diagnostics.push(SpannedDiagnostic {
            span: dir.display().to_string(),
            reason: "no #[fused_kernel] in its src/ or examples/".to_owned(),
            help: "name the folder of a crate that declares kernels".to_owned(),
        });
    }
    diagnostics.extend(found.diagnostics);
    Ok(found.kernels)
}
