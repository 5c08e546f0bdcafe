//! Tokens and their experts: which experts each token has in a run, and where its rows should be.

use super::inputs::Random;

/// Sizes that decide where rows are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub world: usize,
    pub experts: usize,
    pub top_k: usize,
    pub max_tokens: usize,
    pub max_rows: usize,
}

impl Sizes {
    fn local(&self) -> usize {
        self.experts / self.world
    }
}

/// How tokens choose in a call.
#[derive(Clone, Copy, Debug)]
enum Taste {
    Even,
    /// Expert e as often as 1/(e + 1) says.
    Zipf,
    /// All tokens have expert 0, and otherwise the last ones.
    Same,
    /// All experts of a token are on one rank, as far as that has so many.
    Local,
}

/// Ids of every rank's tokens, and how many there are: all, fewer, or none.
pub fn choose(sizes: Sizes, seed: u64, call: u32) -> (Vec<Vec<i32>>, Vec<i32>) {
    let mut random = Random(seed ^ (u64::from(call) << 32) ^ 0x746f_6b65_6e73);
    let taste = [Taste::Even, Taste::Zipf, Taste::Local, Taste::Same]
        [(seed.wrapping_add(call.into()) % 4) as usize];
    let counts: Vec<i32> = (0..sizes.world)
        .map(|_| match random.next() % 4 {
            0 => random.below(sizes.max_tokens + 1) as i32,
            1 if sizes.world > 1 => 0,
            _ => sizes.max_tokens as i32,
        })
        .collect();
    let ids = (0..sizes.world)
        .map(|_| {
            (0..sizes.max_tokens)
                .flat_map(|_| token(sizes, taste, &mut random))
                .collect()
        })
        .collect();
    (ids, counts)
}

fn token(sizes: Sizes, taste: Taste, random: &mut Random) -> Vec<i32> {
    let mut chosen: Vec<usize> = Vec::with_capacity(sizes.top_k);
    let rank = random.below(sizes.world);
    while chosen.len() < sizes.top_k {
        let expert = match taste {
            Taste::Even => random.below(sizes.experts),
            Taste::Zipf => {
                let most = (sizes.experts as f64 + 1.0).ln();
                let x = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
                ((x * most).exp() as usize - 1).min(sizes.experts - 1)
            }
            Taste::Same if chosen.is_empty() => 0,
            Taste::Same => sizes.experts - chosen.len(),
            Taste::Local if chosen.len() < sizes.local() => {
                rank * sizes.local() + random.below(sizes.local())
            }
            Taste::Local => random.below(sizes.experts),
        };
        if !chosen.contains(&expert) {
            chosen.push(expert);
        }
    }
    let first = random.below(sizes.top_k);
    chosen.rotate_left(first);
    chosen.into_iter().map(|expert| expert as i32).collect()
}

/// Where rows are: by rank, which token of which rank each is, by expert.
pub struct Routing {
    /// By rank and local expert: source rank and token of each row.
    pub rows: Vec<Vec<Vec<(usize, usize)>>>,
    /// By rank, of its tokens' choices; of tokens that there are not, nothing.
    pub places: Vec<Vec<i32>>,
}

impl Routing {
    pub fn new(sizes: Sizes, ids: &[Vec<i32>], counts: &[i32]) -> Self {
        let local = sizes.local();
        let mut rows = vec![vec![Vec::new(); local]; sizes.world];
        for (source, (ids, count)) in ids.iter().zip(counts).enumerate() {
            for (token, choices) in ids.chunks(sizes.top_k).enumerate().take(*count as usize) {
                for expert in choices.iter().map(|id| *id as usize) {
                    rows[expert / local][expert % local].push((source, token));
                }
            }
        }
        let place = |source: usize, token: usize, expert: usize| {
            let of_rank: &Vec<Vec<_>> = &rows[expert / local];
            let before: usize = of_rank[..expert % local].iter().map(Vec::len).sum();
            let within = of_rank[expert % local].binary_search(&(source, token));
            (expert / local * sizes.max_rows + before + within.unwrap_or(0)) as i32
        };
        let places = (0..sizes.world)
            .map(|source| {
                let there = ids[source]
                    .iter()
                    .take(counts[source] as usize * sizes.top_k);
                there
                    .enumerate()
                    .map(|(i, id)| place(source, i / sizes.top_k, *id as usize))
                    .collect()
            })
            .collect();
        Self { rows, places }
    }

    pub fn offsets(&self, rank: usize) -> Vec<f32> {
        let mut end = 0;
        let ends = self.rows[rank].iter().map(|rows| {
            end += rows.len();
            end as f32
        });
        [0.0].into_iter().chain(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        world: 2,
        experts: 4,
        top_k: 2,
        max_tokens: 3,
        max_rows: 100,
    };

    #[test]
    fn rows_of_an_expert_are_in_the_order_of_source_and_token() {
        let ids = [vec![3, 0, 0, 1, 2, 3], vec![0, 2, 1, 0, 3, 3]];
        let routing = Routing::new(SIZES, &ids, &[3, 2]);
        assert_eq!(routing.offsets(0), [0.0, 4.0, 6.0]);
        assert_eq!(routing.offsets(1), [0.0, 2.0, 4.0]);
        assert_eq!(routing.places[0], [102, 0, 1, 4, 100, 103]);
        assert_eq!(routing.places[1], [2, 101, 5, 3]);
    }

    #[test]
    fn nobody_chooses_an_expert_twice() {
        for seed in 0..40 {
            let (ids, counts) = choose(SIZES, seed, 1);
            assert_eq!((ids.len(), counts.len()), (2, 2));
            for token in ids.iter().flat_map(|ids| ids.chunks(2)) {
                assert!(token[0] != token[1] && token.iter().all(|id| (0..4).contains(id)));
            }
        }
    }
}
