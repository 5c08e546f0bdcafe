//! [`Routed`]: the destinations of the tokens of all ranks if experts are chosen at random.

use crate::parts::schedule::{Popularity, Routing};
use crate::topology::Topology;

/// The numbers of tokens that each rank has for each node and for each rank.
pub(crate) struct Routed {
    topology: Topology,
    to_nodes: Vec<u32>,
    to_ranks: Vec<u32>,
    rows: Vec<u32>,
}

/// The sizes of a layer of experts.
#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    pub experts: u64,
    pub top_k: u64,
    pub max_tokens: u64,
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to 1, without 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 2f64.powi(-53)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.fraction() * end as f64) as u64
    }
}

impl Routed {
    /// Chooses different experts for each token of each rank. Popular experts are on random ranks.
    pub fn new(tokens: Tokens, topology: Topology, routing: Routing) -> Self {
        let Tokens {
            experts,
            top_k,
            max_tokens,
        } = tokens;
        let (world, nodes) = (topology.world() as usize, topology.nodes as usize);
        let mut random = Random(routing.seed);
        let mut places: Vec<u64> = (0..experts).collect();
        for place in (1..places.len()).rev() {
            places.swap(place, random.below(place as u64 + 1) as usize);
        }
        let mut routed = Self {
            topology,
            to_nodes: vec![0; world * nodes],
            to_ranks: vec![0; world * world],
            rows: vec![0; world],
        };
        let local = experts / u64::from(topology.world());
        let mut chosen: Vec<u64> = Vec::new();
        for source in 0..topology.world() {
            for _ in 0..max_tokens {
                chosen.clear();
                while (chosen.len() as u64) < top_k {
                    let expert = places[expert(experts, routing.popularity, &mut random) as usize];
                    if !chosen.contains(&expert) {
                        chosen.push(expert);
                    }
                }
                routed.add(source, &chosen, local);
            }
        }
        routed
    }

    fn add(&mut self, source: u32, chosen: &[u64], local: u64) {
        let (world, nodes) = (self.topology.world() as usize, self.topology.nodes as usize);
        let ranks = || chosen.iter().map(|expert| (expert / local) as u32);
        let node = |rank| self.topology.node_of(rank);
        for (at, rank) in ranks().enumerate() {
            self.rows[rank as usize] += 1;
            if ranks().take(at).all(|before| before != rank) {
                self.to_ranks[source as usize * world + rank as usize] += 1;
            }
            if ranks().take(at).all(|before| node(before) != node(rank)) {
                self.to_nodes[source as usize * nodes + node(rank) as usize] += 1;
            }
        }
    }

    /// The tokens of `source` with an expert on a node.
    pub fn to_node(&self, source: u32, node: u32) -> u32 {
        self.to_nodes[source as usize * self.topology.nodes as usize + node as usize]
    }

    /// The tokens of `source` with an expert on a rank.
    pub fn to_rank(&self, source: u32, rank: u32) -> u32 {
        self.to_ranks[source as usize * self.topology.world() as usize + rank as usize]
    }

    /// The rows of a rank: the choices of all tokens.
    pub fn rows(&self, rank: u32) -> u32 {
        self.rows[rank as usize]
    }

    /// The most tokens of a rank for a node.
    pub fn most_to_node(&self) -> u32 {
        self.to_nodes.iter().copied().max().unwrap_or(0)
    }
}

/// The place of an expert by popularity.
fn expert(experts: u64, popularity: Popularity, random: &mut Random) -> u64 {
    match popularity {
        Popularity::Uniform => random.below(experts),
        // The integral of 1/x, inverted.
        Popularity::Zipf => {
            let x = random.fraction() * (experts as f64 + 1.0).ln();
            (x.exp() as u64).saturating_sub(1).min(experts - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::dispatch::ExpectedRouting;

    const TOPOLOGY: Topology = Topology {
        nodes: 4,
        local_world: 2,
    };
    const TOKENS: Tokens = Tokens {
        experts: 64,
        top_k: 4,
        max_tokens: 1000,
    };

    fn routed(popularity: Popularity) -> Routed {
        Routed::new(
            TOKENS,
            TOPOLOGY,
            Routing {
                popularity,
                seed: 1,
            },
        )
    }

    #[test]
    fn uniform_tokens_are_those_of_the_cost_model() {
        let routed = routed(Popularity::Uniform);
        let expected = ExpectedRouting::of(TOPOLOGY, 64, 4, 1000);
        let put: u32 = (1..4).map(|node| routed.to_node(0, node)).sum();
        assert!(
            (f64::from(put) / expected.put_tokens - 1.0).abs() < 0.05,
            "{put}"
        );
        let rows: u32 = (0..8).map(|rank| routed.rows(rank)).sum();
        assert_eq!(rows, 8 * 4 * 1000);
    }

    #[test]
    fn popular_experts_give_their_rank_more_rows() {
        let most = |routed: &Routed| (0..8).map(|rank| routed.rows(rank)).max();
        assert!(most(&routed(Popularity::Zipf)) > most(&routed(Popularity::Uniform)));
    }
}
