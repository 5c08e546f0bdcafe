//! Kernels whose text the command line changes.

use crate::lab::Failure;
use mkernel::{Communicator, KernelConfig, Operator, Shape};

/// What is replaced, and by what.
pub type Edit = (String, String);

/// Reads `what is replaced=>by what`.
pub fn edit(text: &str) -> Result<Edit, String> {
    let parts = text.split_once("=>");
    let (from, to) = parts.ok_or("write what is replaced, =>, and by what")?;
    Ok((from.to_owned(), to.to_owned()))
}

/// The operator with `edits`, each of which its text must have. Collective.
pub fn prepare(
    ranks: &Communicator,
    config: &KernelConfig,
    shape: impl Into<Shape>,
    edits: &[Edit],
) -> Result<Operator, Failure> {
    let mut missing = Vec::new();
    let edit = |text: &mut String| {
        for (from, to) in edits {
            if !text.contains(from) {
                missing.push(from);
            }
            *text = text.replace(from, to);
        }
    };
    // SAFETY: whoever gives edits on the command line answers for the kernel that they make.
    let operator = unsafe { ranks.prepare_edited(config, shape, edit) }?;
    match missing.is_empty() {
        true => Ok(operator),
        false => Err(format!("the kernel has no {missing:?}").into()),
    }
}
