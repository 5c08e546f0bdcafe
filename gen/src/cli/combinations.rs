//! [`combinations`]: the sizes of a kernel that flags give with several sizes for a dimension.

use mkernel_spec::Dim;

/// All combinations of one size for each dimension.
pub fn combinations(sizes: &[Vec<Dim>]) -> Vec<Vec<Dim>> {
    let none = vec![Vec::new()];
    sizes.iter().fold(none, |chosen, sizes| {
        let with = |dims: &Vec<Dim>, size: Dim| [dims.as_slice(), &[size]].concat();
        let chosen = chosen.iter();
        chosen
            .flat_map(|dims| sizes.iter().map(move |size| with(dims, *size)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_of_a_dimension_meets_each_size_of_the_others() {
        let dims = |sizes: &[u64]| sizes.iter().copied().map(Dim::Static).collect::<Vec<_>>();
        let found = combinations(&[dims(&[1, 2]), dims(&[3]), dims(&[4, 5])]);
        let expected = [[1, 3, 4], [1, 3, 5], [2, 3, 4], [2, 3, 5]];
        assert_eq!(found, expected.map(|sizes| dims(&sizes)));
        assert_eq!(combinations(&[]), [Vec::new()]);
    }
}
