//! Edits of the text of a kernel before it is compiled.

use crate::mutants::{PLANT, with_mutants};
use mkernel::Communicator;

/// A definition that prevents inlining. A kernel of a test is compiled for few runs, and without inlining the compilation
/// takes less than half the time. Findings then name only the innermost function.
const NOT_INLINED: &str = "#define MK_DEVICE __device__ inline\n";

/// Edits the text of a kernel. An edit is an old text and a new text, which replaces all occurrences of the old text, or
/// [`PLANT`] and the address of a switch.
///
/// Functions of simulated kernels are not inlined, even without an edit.
///
/// # Panics
/// The kernel does not have the text.
pub fn apply_edits(ranks: &Communicator, edits: &[(String, String)], text: &mut String) {
    let (switches, edits): (Vec<_>, Vec<_>) = edits.iter().partition(|(from, _)| from == PLANT);
    for (_, switch) in switches {
        *text = with_mutants(text, switch);
    }
    if ranks.is_simulated() {
        text.insert_str(0, NOT_INLINED);
    }
    for (from, to) in edits {
        assert!(text.contains(from.as_str()), "the kernel has no\n{from}");
        *text = text.replace(from.as_str(), to);
    }
}
