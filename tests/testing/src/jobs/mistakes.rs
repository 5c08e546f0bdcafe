//! Mistakes that are planted in kernels, each of which must be found.

use super::runs::none_fails;
use super::simulated::Simulated;

/// Kernels with mistakes are compiled for one test each. Without inlining that takes less than half the time. Findings then
/// name the innermost function alone.
const NOT_INLINED: &str = "#define MK_DEVICE __device__ inline\n";

/// Plants a mistake in a kernel's text. `from` is text that is replaced by `to`, or the tag of a line: `@name` is the line
/// that ends with the comment `// @name`. Of a tagged line, `to` is what takes its place, if anything does; or, as in
/// `a => b`, what becomes of a part of it.
pub fn apply(edits: &[(String, String)], text: &mut String) {
    if !edits.is_empty() {
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
    let mut found = 0;
    let edited = |line: &str| {
        if !line.ends_with(&comment) {
            return line.to_owned();
        }
        found += 1;
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
    assert_eq!(found, 1, "lines of the kernel with the tag @{tag}");
    lines.join("\n") + "\n"
}

/// `job` with replacements in its kernel's text: a planted mistake.
pub fn planted<J: Simulated>(mut job: J, edits: &[(&str, &str)]) -> J {
    let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
    job.edit(edits.iter().map(owned).collect());
    job
}

/// Of each mistake, by name, some seed below `seeds` finds something.
pub fn all_are_found<J: Simulated + Sync>(mistakes: &[(&str, J)], seeds: u64) {
    none_fails(mistakes, |(name, job)| {
        let started = std::time::Instant::now();
        let found = (0..seeds).find_map(|seed| Some((seed, job.run(seed).err()?)));
        let (seed, failure) = found.ok_or(format!("{name}: not found"))?;
        let mut lines = failure.lines();
        let line = lines.find(|line| !line.contains("simulator found"));
        println!(
            "{name}: seed {seed}, {:?}: {}",
            started.elapsed(),
            line.unwrap_or("")
        );
        // A text that does not compile, or a replacement that finds nothing, proves nothing.
        let nothing = ["does not compile", "a rank panicked"];
        match nothing.iter().any(|text| failure.contains(text)) {
            true => Err(format!("{name}: {failure}")),
            false => Ok(()),
        }
    });
}
