//! Operators whose kernel text is edited by flags on the command line of a benchmark.

use crate::lab::Failure;
use mkernel::testing::prepare_edited;
use mkernel::{Communicator, KernelConfig, Operator, Sizes};

/// A replacement in the text of a kernel: the text that is replaced, and the new text.
pub type Edit = (String, String);

/// Parses an edit of the form `old text=>new text`.
///
/// # Errors
/// The text has no `=>`.
pub fn edit(text: &str) -> Result<Edit, String> {
    let parts = text.split_once("=>");
    let (from, to) = parts.ok_or("write what is replaced, =>, and by what")?;
    Ok((from.to_owned(), to.to_owned()))
}

/// Prepares an operator whose kernel text has been edited. All ranks must call this together.
///
/// # Errors
/// The text does not contain the old text of an edit, or the operator cannot be prepared.
pub fn prepare(
    ranks: &Communicator,
    config: &KernelConfig,
    shape: impl Into<Sizes>,
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
    // SAFETY: the user who gives edits on the command line is responsible for the kernel that results.
    let operator = unsafe { prepare_edited(ranks, config, shape, edit) }?;
    match missing.is_empty() {
        true => Ok(operator),
        false => Err(format!("the kernel has no {missing:?}").into()),
    }
}
