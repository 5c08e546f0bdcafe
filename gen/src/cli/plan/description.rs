//! [`Description`]: the part of a plan's description that the module of an operator adds.

use crate::cli::format::count;
use mkernel_spec::Topology;
use mkernel_spec::plan::TokenChunks;

/// The part of a plan's description that depends on its operator.
pub(super) struct Description {
    /// The formula that the kernel computes, with its sizes.
    pub computes: String,
    /// The plan in a few words.
    pub summary: String,
    /// The titles and the lines of further sections.
    pub sections: Vec<(&'static str, Vec<String>)>,
    /// The division of shared memory, in a few words.
    pub shared: String,
}

/// The line of a plan about chunks that are acknowledged.
pub(super) fn acknowledged(chunks: &TokenChunks, max_tokens: u64) -> Option<String> {
    let room = chunks.room_tokens;
    let text = format!(
        "{room} tokens of each node under way; later ones wait until earlier ones have been acknowledged"
    );
    chunks.are_acknowledged(max_tokens).then_some(text)
}

/// `1 rank`, `8 ranks` or `4 ranks on 2 nodes`.
pub(super) fn ranks_on(topology: Topology) -> String {
    let ranks = count(topology.world() as usize, "rank");
    match topology.nodes {
        1 => ranks,
        nodes => format!("{ranks} on {nodes} nodes"),
    }
}
