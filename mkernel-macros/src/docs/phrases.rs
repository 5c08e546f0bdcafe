//! Phrases that the documentation of several operators has in common.

use mkernel_spec::Dim;

/// `8 ranks of one node`, `16 ranks of 2 nodes`
pub fn ranks_on(world: u32, nodes: u32) -> String {
    match (world, nodes) {
        (1, _) => "One rank".to_owned(),
        (_, 1) => format!("{world} ranks of one node"),
        _ => format!("{world} ranks of {nodes} nodes"),
    }
}

/// What one rank has of a dimension that all have equal parts of.
pub fn part(dim: Dim, world: u32, name: &str) -> String {
    match dim.fixed() {
        Some(size) => (size / u64::from(world)).to_string(),
        None => format!("{name}/{world}"),
    }
}
