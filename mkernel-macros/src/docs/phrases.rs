//! Phrases that the documentation of several operators has in common.

use mkernel_spec::Dim;

/// The ranks of a kernel, such as `8 ranks of one node` or `16 ranks of 2 nodes`.
pub fn ranks_on(world: u32, nodes: u32) -> String {
    match (world, nodes) {
        (1, _) => "One rank".to_owned(),
        (_, 1) => format!("{world} ranks of one node"),
        _ => format!("{world} ranks of {nodes} nodes"),
    }
}

/// The part of one rank of a dimension that is divided equally among ranks, as a number or as `name` divided by
/// `world`.
pub fn part(dim: Dim, world: u32, name: &str) -> String {
    match dim.fixed() {
        Some(size) => (size / u64::from(world)).to_string(),
        None => format!("{name}/{world}"),
    }
}
