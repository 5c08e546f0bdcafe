//! The experts that tokens of the benchmark choose, and the resulting rows of each expert.

use clap::ValueEnum;
use mkernel_testing::lab::Random;

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Taste {
    /// All experts are equally likely.
    Even,
    /// The probability of expert e is proportional to 1/(e + 1).
    Zipf,
}

/// The experts of all tokens of all ranks. Every rank computes equal experts.
pub struct Tokens {
    pub per_rank: u64,
    pub top_k: u64,
    experts: u64,
    world: u64,
    /// The experts of each rank's tokens: [token][choice].
    pub ids: Vec<Vec<i32>>,
}

impl Tokens {
    pub fn choose(
        taste: Taste,
        world: u32,
        experts: u64,
        top_k: u64,
        per_rank: u64,
        seed: u64,
    ) -> Self {
        let mut random = Random(seed);
        let mut token = || {
            let mut chosen: Vec<i32> = Vec::with_capacity(top_k as usize);
            while chosen.len() < top_k as usize {
                let expert = match taste {
                    Taste::Even => random.below(experts),
                    Taste::Zipf => zipf(fraction(&mut random), experts),
                } as i32;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen
        };
        let ids = (0..world)
            .map(|_| (0..per_rank).flat_map(|_| token()).collect())
            .collect();
        Self {
            per_rank,
            top_k,
            experts,
            world: world.into(),
            ids,
        }
    }

    pub fn local_experts(&self) -> u64 {
        self.experts / self.world
    }

    /// Returns the rows of an expert in order, each as the number of its token over all ranks.
    pub fn rows_of(&self, expert: u64) -> Vec<u64> {
        let choices = self.ids.iter().flatten().enumerate();
        choices
            .filter(|(_, id)| **id as u64 == expert)
            .map(|(i, _)| i as u64 / self.top_k)
            .collect()
    }

    /// Returns the number of rows of each rank.
    pub fn rows(&self) -> Vec<u64> {
        let mut rows = vec![0; self.world as usize];
        for id in self.ids.iter().flatten() {
            rows[(*id as u64 / self.local_experts()) as usize] += 1;
        }
        rows
    }
}

/// Maps a uniform number to an expert, by an approximate inverse of the sum of 1/(e + 1).
fn zipf(x: f64, experts: u64) -> u64 {
    let most = (experts as f64 + 1.0).ln();
    ((x * most).exp() as u64 - 1).min(experts - 1)
}

/// Returns a random number from 0 to 1.
pub fn fraction(random: &mut Random) -> f64 {
    (random.draw() >> 11) as f64 / (1u64 << 53) as f64
}
