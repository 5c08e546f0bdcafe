//! Edits of the text of a kernel before it is compiled.

use crate::mutants::{PLANT, with_mutants};
use mkernel::Communicator;

/// A definition that prevents inlining. A kernel of a test is compiled for few runs, and without inlining that takes less than
/// half the time. Findings then name only the innermost function.
const NOT_INLINED: &str = "#define MK_DEVICE __device__ inline\n";

/// Edits the text of a kernel. An edit is a pair of strings, in one of four forms:
///
/// - (`@name`, `a => b`) replaces `a` by `b` in the line that ends with the comment `// @name`.
/// - (`@name`, text) replaces that line by the text, which may be empty.
/// - ([`PLANT`], address) plants all mutants, with the switch at this address.
/// - (text, other text) replaces the text wherever it occurs.
///
/// Functions of simulated kernels are not inlined, even without an edit.
///
/// # Panics
/// The kernel does not have the text or the tag.
pub fn apply_edits(ranks: &Communicator, edits: &[(String, String)], text: &mut String) {
    let (switches, edits): (Vec<_>, Vec<_>) = edits.iter().partition(|(from, _)| from == PLANT);
    for (_, switch) in switches {
        *text = with_mutants(text, switch);
    }
    if ranks.is_simulated() {
        text.insert_str(0, NOT_INLINED);
    }
    for (from, to) in edits {
        *text = match from.strip_prefix('@') {
            Some(tag) => edited_line(text, tag, to),
            None => {
                assert!(text.contains(from.as_str()), "the kernel has no\n{from}");
                text.replace(from.as_str(), to)
            }
        };
    }
}

fn edited_line(text: &str, tag: &str, to: &str) -> String {
    let comment = format!("// @{tag}");
    let mut count = 0;
    let edited = |line: &str| {
        if !line.ends_with(&comment) {
            return line.to_owned();
        }
        count += 1;
        match to.split_once(" => ") {
            None => to.to_owned(),
            Some((part, other)) => {
                assert!(
                    line.contains(part),
                    "the line @{tag} has no {part}:\n{line}"
                );
                line.replace(part, other)
            }
        }
    };
    let lines: Vec<String> = text.lines().map(edited).collect();
    assert_eq!(count, 1, "lines of the kernel with the tag @{tag}");
    lines.join("\n") + "\n"
}
