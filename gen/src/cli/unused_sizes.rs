//! Flags of sizes that no kernel takes.

use super::flags::{KernelFlags, flag_of};
use mkernel_declare::SpannedDiagnostic;
use mkernel_spec::{Field, KernelConfig, Op, Values};

/// The mistakes of flags that give a size that is a constant of all kernels, or that no kernel has. With `resize`, flags replace
/// constants.
pub fn unused_sizes(
    flags: &KernelFlags,
    kernels: &[KernelConfig],
    resize: bool,
) -> Vec<SpannedDiagnostic<String>> {
    let given = Field::all().into_iter();
    let given = given.filter(|field| is_size(*field) && !flags.sizes(*field).is_empty());
    let mistake = |field: Field| {
        let dims = kernels.iter().flat_map(|config| config.problem.dims());
        let dims: Vec<_> = dims.filter(|(name, _)| *name == field).collect();
        let is_taken = dims.iter().any(|(_, dim)| resize || dim.fixed().is_none());
        let why = match dims.is_empty() {
            true => "no kernel has this size",
            false => "it is a constant of all kernels",
        };
        (!is_taken).then(|| SpannedDiagnostic {
            span: flag_of(field),
            reason: format!("{field} has no effect: {why}"),
            help: format!("remove the flag, or declare {field} = \"dynamic\""),
        })
    };
    given.filter_map(mistake).collect()
}

/// Whether any operator has this size.
fn is_size(field: Field) -> bool {
    let mut options = Op::ALL.into_iter().flat_map(Op::options);
    options.any(|option| option.field == field && option.values == Values::Size)
}
