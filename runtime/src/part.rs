//! [`Part`]: the part of a GPU that a rank has.

/// The part of a GPU that a rank has: its index among the ranks that share the GPU, and the number of these ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub index: u32,
    /// The number of ranks that share the GPU.
    pub count: u32,
}

impl Part {
    /// The part of a rank that has a GPU to itself.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns the parts of the ranks, given the GPU ordinal of each rank.
    pub fn of_ranks(ordinals: &[usize]) -> Vec<Self> {
        let same =
            |ranks: &[usize], ordinal| ranks.iter().filter(|o| **o == ordinal).count() as u32;
        let part = |(rank, ordinal): (usize, &usize)| Self {
            index: same(&ordinals[..rank], *ordinal),
            count: same(ordinals, *ordinal),
        };
        ordinals.iter().enumerate().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_the_same_gpu_share_it() {
        assert_eq!(Part::of_ranks(&[0, 1]), [Part::WHOLE; 2]);
        let part = |index, count| Part { index, count };
        assert_eq!(
            Part::of_ranks(&[3, 0, 3, 3]),
            [part(0, 3), Part::WHOLE, part(1, 3), part(2, 3)]
        );
    }
}
