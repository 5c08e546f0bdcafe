//! The list of the kernels that find mutants, which a run of all mutants writes.

use super::Mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The kernels that find the mutants of each header, or of each function of the text that the templates emit. The kernel that
/// finds the most mutants is the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finders(BTreeMap<String, Vec<String>>);

/// Returns the header or the function whose line in the list has the kernels for a mutant.
fn place(mutant: &Mutant) -> String {
    match mutant.file.starts_with("mk/") {
        true => mutant.file.clone(),
        false => format!("{} | {}", mutant.file, mutant.function),
    }
}

impl Finders {
    /// Parses a list, as `Display` writes it.
    ///
    /// # Panics
    /// A line has no kernels.
    pub fn parse(list: &str) -> Self {
        let parsed = list.lines().map(|line| {
            let (place, kernels) = line.split_once(" <- ").expect("kernels behind an arrow");
            (
                place.to_owned(),
                kernels.split(", ").map(str::to_owned).collect(),
            )
        });
        Self(parsed.collect())
    }

    /// Makes a list of the mutants and kernels that have found each other.
    pub fn of<'f>(found: impl Iterator<Item = (&'f Mutant, &'f str)>) -> Self {
        let mut counts: BTreeMap<_, BTreeMap<&str, usize>> = BTreeMap::new();
        for (mutant, kernel) in found {
            *counts
                .entry(place(mutant))
                .or_default()
                .entry(kernel)
                .or_default() += 1;
        }
        let sorted = counts.into_iter().map(|(place, counts)| {
            let mut kernels: Vec<_> = counts.into_iter().collect();
            kernels.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let kernels = kernels.into_iter().map(|(kernel, _)| kernel.to_owned());
            (place, kernels.collect())
        });
        Self(sorted.collect())
    }

    /// Returns the kernels that find the mutants of the same header or function as this one.
    pub fn kernels_of(&self, mutant: &Mutant) -> &[String] {
        self.0.get(&place(mutant)).map_or(&[], Vec::as_slice)
    }

    /// Draws about `count` kernels: all kernels in some lines of the list, which `seed` chooses.
    pub fn draw(&self, seed: impl Hash, count: usize) -> BTreeSet<&str> {
        let mut lines: Vec<_> = self.0.iter().collect();
        lines.sort_by_cached_key(|(place, _)| {
            let mut hasher = DefaultHasher::new();
            (&seed, place).hash(&mut hasher);
            hasher.finish()
        });
        let mut drawn = BTreeSet::new();
        for (_, kernels) in lines {
            if drawn.len() < count {
                drawn.extend(kernels.iter().map(String::as_str));
            }
        }
        drawn
    }
}

/// Writes a line for each header or function.
impl fmt::Display for Finders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.0.iter();
        lines.try_for_each(|(place, kernels)| writeln!(f, "{place} <- {}", kernels.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::Operator;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let mutant = |file: &str| Mutant {
            file: file.into(),
            line: 0,
            function: "run".into(),
            operator: Operator::Deleted,
            what: "wait()".into(),
            before: 0,
        };
        let [header, text] = ["mk/x.cuh", "kernel"].map(mutant);
        let found = [(&header, "a: b"), (&text, "a: b"), (&header, "c: d")];
        let finders = Finders::of(found.into_iter().chain([(&header, "c: d")]));
        let list = "kernel | run <- a: b\nmk/x.cuh <- c: d, a: b\n";
        assert_eq!(finders.to_string(), list);
        assert_eq!(Finders::parse(list), finders);
        assert_eq!(finders.kernels_of(&header), ["c: d", "a: b"]);
        let most = (0..9).map(|seed| finders.draw(seed, 1).len()).max();
        assert_eq!(most, Some(2), "all kernels of a line");
    }
}
