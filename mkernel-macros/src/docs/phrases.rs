//! Phrases that the documentation of several operators shares.

use mkernel_spec::Dim;

/// The ranks of a kernel that its declaration fixes. The communicator determines all other ranks.
#[derive(Clone, Copy)]
pub struct Ranks {
    pub world: Option<u32>,
    pub nodes: Option<u32>,
}

impl Ranks {
    /// The ranks in words, such as `8 ranks of one node`.
    pub fn words(self) -> String {
        match (self.world, self.nodes) {
            (None, None) => "The W ranks of the communicator".to_owned(),
            (None, Some(1)) => "W ranks of one node".to_owned(),
            (None, Some(nodes)) => format!("W ranks of {nodes} nodes"),
            (Some(1), _) => "One rank".to_owned(),
            (Some(world), None) => format!("{world} ranks"),
            (Some(world), Some(1)) => format!("{world} ranks of one node"),
            (Some(world), Some(nodes)) => format!("{world} ranks of {nodes} nodes"),
        }
    }

    /// The number of ranks, or `W`.
    pub fn world(self) -> String {
        self.times(1)
    }

    /// A multiple of the number of ranks, such as `16` or `2W`.
    pub fn times(self, factor: u32) -> String {
        match (self.world, factor) {
            (Some(world), _) => (world * factor).to_string(),
            (None, 1) => "W".to_owned(),
            (None, factor) => format!("{factor}W"),
        }
    }

    /// The rows of a rank if the dimension is divided among ranks, rounded up.
    pub fn shard(self, dim: Dim, name: &str) -> String {
        match (dim.fixed(), self.world) {
            (_, Some(1)) => size(dim, name),
            (Some(rows), Some(world)) => rows.div_ceil(world.into()).to_string(),
            _ => format!("⌈{}/{}⌉", size(dim, name), self.world()),
        }
    }

    /// The rows of a shard from each rank.
    pub fn shards(self, dim: Dim, name: &str) -> String {
        match (dim.fixed(), self.world) {
            (Some(rows), Some(world)) => {
                let world = u64::from(world);
                (rows.div_ceil(world) * world).to_string()
            }
            (_, Some(1)) => size(dim, name),
            _ => format!("{}·{}", self.world(), self.shard(dim, name)),
        }
    }

    /// The part of a rank if the dimension is divided equally among ranks.
    pub fn part(self, dim: Dim, name: &str) -> String {
        match (dim.fixed(), self.world) {
            (Some(elems), Some(world)) => (elems / u64::from(world)).to_string(),
            _ => format!("{}/{}", size(dim, name), self.world()),
        }
    }
}

/// The size of a dimension, or its name if it is dynamic.
pub fn size(dim: Dim, name: &str) -> String {
    dim.fixed().map_or(name.to_owned(), |size| size.to_string())
}
