//! Replacements in the text of kernels, which the command line gives.

use crate::lab::Failure;
use mkernel::{Communicator, KernelConfig, Operator, Shape};

/// A replacement: the old text and the new text.
pub type Edit = (String, String);

/// Parses `old text=>new text`.
pub fn edit(text: &str) -> Result<Edit, String> {
    let parts = text.split_once("=>");
    let (from, to) = parts.ok_or("an edit has the form OLD=>NEW")?;
    Ok((from.to_owned(), to.to_owned()))
}

/// Prepares the operator with `edits`. The text of the kernel must contain each old text. Collective.
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
    // SAFETY: the user who passes edits on the command line is responsible for the resulting kernel.
    let operator = unsafe { ranks.prepare_edited(config, shape, edit) }?;
    match missing.is_empty() {
        true => Ok(operator),
        false => Err(format!("the kernel has no {missing:?}").into()),
    }
}
